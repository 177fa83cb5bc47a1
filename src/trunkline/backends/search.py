"""Search: the built-in tools with which a model finds the tool that it needs, and calls it.

    find_tools{query} ──> names and arguments, a line each ──> call_tool{name, arguments}
                                                          └──> describe_tool{name}, if in doubt

A client that lists these three instead of five hundred carries three definitions in its context.

Refuses to carry out `call_tool`: the gateway takes the wrapping off before it looks up whose the
call is (gateway/wrapped), and from there it is the call of that tool and nothing else.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from trunkline.backends.functions import Functions, asking
from trunkline.gateway.finder import Finder
from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.caller import Caller
from trunkline.routing.tool_index import Found, description_of, signature_of
from trunkline.routing.view import CALL_TOOL

MAX_QUERY = 1000
MAX_LIMIT = 50
LIMIT = 5

_CLOSE = 3
"""How many names are suggested for one that is unknown."""

Query = Annotated[
    str,
    Meta(max_length=MAX_QUERY, description="What the tool should do, in a few words of English."),
]
Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="How many to return; 5 unless set.")]
Backend = Annotated[str, Meta(description="Only the tools of this server.")]
Name = Annotated[str, Meta(description="The tool's name, as find_tools returns it.")]
Arguments = Annotated[
    dict[str, Any], Meta(description="The tool's arguments, as its inputSchema has them.")
]


class FoundTool(Struct, frozen=True):
    """One tool that was found; `arguments` are its parameters on one line, `?` if optional."""

    name: str
    description: str
    arguments: str
    score: float


class Search(Functions):
    """A backend of three tools that reach all others."""

    def __init__(self, finder: Finder) -> None:
        super().__init__()
        self._finder = finder
        self.tool("find_tools", readOnlyHint=True, openWorldHint=False)(self.find_tools)
        self.tool("describe_tool", readOnlyHint=True, openWorldHint=False)(self.describe_tool)
        self.tool(CALL_TOOL)(self.call_tool)

    def find_tools(self, query: Query, limit: Limit = LIMIT, backend: Backend | None = None) -> Any:
        """Find tools by what they do, best match first.

        There are more tools than those listed: look here before you say that something cannot be
        done. Call what you find with call_tool; use describe_tool if the arguments are not clear.
        """
        caller = asking()
        if backend is not None:
            self._expect_backend(caller, backend)
        return self._find(caller, query, limit, backend)

    async def _find(
        self, caller: Caller, query: str, limit: int, backend: str | None
    ) -> dict[str, Any]:
        found = await self._finder.find(caller, query, limit, backend)
        answer: dict[str, Any] = {"tools": [found_tool(each) for each in found]}
        if not found:
            answer["hint"] = "nothing matches; try other words, or one of these servers"
            answer["backends"] = self._finder.backends(caller)
        return answer

    def _expect_backend(self, caller: Caller, backend: str) -> None:
        known = self._finder.backends(caller)
        if backend not in known:
            there = ", ".join(known) or "none"
            raise RpcError.invalid_params(f"there is no backend {backend!r}; there are: {there}")

    def describe_tool(self, name: Name) -> Raw:
        """Return the whole definition of one tool: its description and its inputSchema."""
        caller = asking()
        entry = self._finder.tool(caller, name)
        if entry is None:
            close = self._finder.closest(caller, name, _CLOSE)
            names = ", ".join(found.entry.public for found in close)
            hint = f"did you mean {names}?" if names else "use find_tools to find one"
            raise RpcError.invalid_params(f"Unknown tool: {name}; {hint}")
        return entry.definition

    def call_tool(self, name: Name, arguments: Arguments | None = None) -> Any:
        """Call any tool by its name, whether it is listed or not, and return its result."""
        raise RpcError.internal_error("call_tool is carried out by the gateway itself")

    async def aclose(self) -> None:
        """End."""
        await self._finder.aclose()
        await super().aclose()


def found_tool(found: Found) -> FoundTool:
    """Return what a model needs to know of a tool, on two lines."""
    definition = found.entry.definition
    name, score = found.entry.public, round(found.score, 3)
    return FoundTool(name, description_of(definition), signature_of(definition), score)
