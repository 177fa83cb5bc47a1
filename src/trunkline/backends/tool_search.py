"""Tool search: the built-in tools with which a model finds the tool that it needs, and calls it.

    find_tools{query} ──> names and arguments, a line each ──> call_tool{name, arguments}
                                                          └──> describe_tool{name}, if in doubt

    Registry ──catalogue changed──> ToolFinder ──in slices──> ToolIndex ──> what a caller may see

A client that lists these three tools instead of five hundred carries three definitions in its
context. The router unwraps `call_tool` before it looks up the tool, and routes the inner call.

Rule upheld here: the catalogue is indexed between calls, in slices, and only where it changed. A
search waits until the index matches the catalogue.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct

from trunkline.backends.functions import FunctionBackend, current_call, current_caller
from trunkline.gateway.call_context import ToolSearch
from trunkline.gateway.registry import Registry
from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.routing.catalog import Catalog, CatalogEntry
from trunkline.routing.visibility import CALL_TOOL
from trunkline.search.tool_index import ToolIndex, ToolMatch, tool_signature, tool_summary
from trunkline.search.usage import MAX_RETURNED

# How many seconds indexing blocks the event loop at a time.
INDEXING_SLICE = 0.002


class ToolUsage(Protocol):
    """Knows which of the tools that its searches returned a caller used."""

    def shares(self, principal: Principal, surface: str) -> Mapping[str, float]:
        """Return how much a caller used each tool on a surface, from 0 to 1."""
        ...


class ToolFinder:
    """Finds tools by what they do, among those that a caller may see."""

    def __init__(
        self,
        registry: Registry,
        indexing_slice: float = INDEXING_SLICE,
        usage: ToolUsage | None = None,
    ) -> None:
        """Start indexing. With `usage`, tools that a caller used rank higher for this caller."""
        self._registry = registry
        self._usage = usage
        self._slice = indexing_slice
        self._index = ToolIndex()
        self._indexed: Catalog | None = None
        self._indexing: asyncio.Task[None] | None = None
        self._remove_listener = registry.add_listener(self._on_catalog_changed)
        self._start_indexing()

    def __len__(self) -> int:
        return len(self._index)

    async def find(
        self, caller: Caller, query: str, limit: int, backend: str | None = None
    ) -> list[ToolMatch]:
        """Return the best matches among the tools that the caller may see."""
        await self._registry.wait_listed(caller.client_features)
        await self._wait_indexed()
        visibility = self._registry.visibility

        def allow(entry: CatalogEntry) -> bool:
            return backend in (None, entry.backend) and visibility.is_offered(caller, entry)

        if self._usage is None:
            return self._index.find(query, limit, allow)
        used = self._usage.shares(caller.principal, visibility.surface_id(caller))
        return self._index.find(query, limit, allow, used)

    def describe_search(self, caller: Caller, found: Sequence[ToolMatch]) -> ToolSearch | None:
        """Return the record of a search; None if use does not affect the ranking."""
        if self._usage is None:
            return None
        names = [match.entry.public_name for match in found]
        copies = [name for match in found for name in shown_copies(match)]
        surface = self._registry.visibility.surface_id(caller)
        return ToolSearch(surface, tuple(dict.fromkeys([*names, *copies]))[:MAX_RETURNED])

    def suggest(self, caller: Caller, name: str, limit: int) -> list[ToolMatch]:
        """Return tools with a similar name, as far as they are indexed."""
        visibility = self._registry.visibility
        return self._index.find(name, limit, lambda entry: visibility.is_offered(caller, entry))

    async def find_by_name(self, caller: Caller, name: str) -> CatalogEntry | None:
        """Return the tool of this name, if the caller may see it."""
        entry = self._registry.catalog.find(FeatureKind.TOOL, name)
        if entry is None:
            # A server that is starting may offer it.
            await self._registry.wait_listed(caller.client_features)
            entry = self._registry.catalog.find(FeatureKind.TOOL, name)
        return entry if entry and self._registry.visibility.is_offered(caller, entry) else None

    def visible_backends(self, caller: Caller) -> list[str]:
        """Return the backends that have a tool which the caller may see."""
        return list(dict.fromkeys(entry.backend for entry in self._visible_tools(caller)))

    def _visible_tools(self, caller: Caller) -> list[CatalogEntry]:
        visibility = self._registry.visibility
        return [
            entry
            for entry in self._registry.catalog.entries(FeatureKind.TOOL)
            if entry.backend not in visibility.search_backends
            and visibility.is_offered(caller, entry)
        ]

    # Following the catalogue

    def _on_catalog_changed(self, kinds: tuple[FeatureKind, ...]) -> None:
        if FeatureKind.TOOL in kinds:
            self._start_indexing()

    def _start_indexing(self) -> None:
        if self._indexing is None or self._indexing.done():
            self._indexing = asyncio.create_task(self._index_catalog())

    async def _index_catalog(self) -> None:
        """Index until the index matches the catalogue, which may change meanwhile."""
        while self._indexed is not (catalog := self._registry.catalog):
            searches = self._registry.visibility.search_backends
            tools = [e for e in catalog.entries(FeatureKind.TOOL) if e.backend not in searches]
            await self._update_index(tools)
            self._indexed = catalog

    async def _update_index(self, tools: list[CatalogEntry]) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._slice
        for _ in self._index.update(tools):
            if clock() > deadline:
                await asyncio.sleep(0)
                deadline = clock() + self._slice

    async def _wait_indexed(self) -> None:
        """Wait until the index is complete. An equal catalogue needs no indexing."""
        while self._indexing is not None and not self._indexing.done():
            await asyncio.shield(self._indexing)

    async def aclose(self) -> None:
        """Stop following the catalogue."""
        self._remove_listener()
        if self._indexing is not None:
            self._indexing.cancel()
            await asyncio.gather(self._indexing, return_exceptions=True)


MAX_QUERY_LENGTH = 1000
MAX_FOUND_TOOLS = 50
DEFAULT_FOUND_TOOLS = 5

# How many equal tools of other servers are named with a tool that was found.
_MAX_COPIES = 5

# The number of suggestions for an unknown name.
_MAX_SUGGESTIONS = 3

QueryArgument = Annotated[
    str,
    Meta(
        max_length=MAX_QUERY_LENGTH,
        description="What the tool should do, in a few words of English.",
    ),
]
LimitArgument = Annotated[
    int, Meta(ge=1, le=MAX_FOUND_TOOLS, description="How many to return; 5 unless set.")
]
BackendArgument = Annotated[str, Meta(description="Only the tools of this server.")]
NameArgument = Annotated[str, Meta(description="The tool's name, as find_tools returns it.")]
ToolArguments = Annotated[
    dict[str, Any], Meta(description="The tool's arguments, as its inputSchema has them.")
]


class FoundTool(Struct, frozen=True, omit_defaults=True):
    """One tool that was found; `arguments` are its parameters on one line, `?` if optional."""

    name: str
    description: str
    arguments: str
    score: float
    also: tuple[str, ...] = ()
    """The names of equal tools of other servers."""


class SearchTools(FunctionBackend):
    """The backend of the three search tools."""

    def __init__(self, finder: ToolFinder) -> None:
        super().__init__()
        self._finder = finder
        self.tool("find_tools", readOnlyHint=True, openWorldHint=False)(self.find_tools)
        self.tool("describe_tool", readOnlyHint=True, openWorldHint=False)(self.describe_tool)
        self.tool(CALL_TOOL)(self.call_tool)

    def find_tools(
        self,
        query: QueryArgument,
        limit: LimitArgument = DEFAULT_FOUND_TOOLS,
        backend: BackendArgument | None = None,
    ) -> Any:
        """Find tools by what they do, best match first.

        There are more tools than those listed: look here before you say that something cannot be
        done. Call what you find with call_tool; use describe_tool if the arguments are not clear.
        """
        caller = current_caller()
        if backend is not None:
            self._require_backend(caller, backend)
        return self._find(caller, query, limit, backend)

    async def _find(
        self, caller: Caller, query: str, limit: int, backend: str | None
    ) -> dict[str, Any]:
        found = await self._finder.find(caller, query, limit, backend)
        current_call().search = self._finder.describe_search(caller, found)
        answer: dict[str, Any] = {"tools": [describe_match(each) for each in found]}
        if not found:
            answer["hint"] = "nothing matches; try other words, or one of these servers"
            answer["backends"] = self._finder.visible_backends(caller)
        return answer

    def _require_backend(self, caller: Caller, backend: str) -> None:
        known = self._finder.visible_backends(caller)
        if backend not in known:
            there = ", ".join(known) or "none"
            raise RpcError.invalid_params(f"unknown backend {backend!r}; known backends: {there}")

    async def describe_tool(self, name: NameArgument) -> Raw:
        """Return the whole definition of one tool: its description and its inputSchema."""
        caller = current_caller()
        entry = await self._finder.find_by_name(caller, name)
        if entry is None:
            close = self._finder.suggest(caller, name, _MAX_SUGGESTIONS)
            names = ", ".join(found.entry.public_name for found in close)
            hint = f"did you mean {names}?" if names else "use find_tools to find one"
            raise RpcError.invalid_params(f"Unknown tool: {name}; {hint}")
        return entry.definition

    def call_tool(self, name: NameArgument, arguments: ToolArguments | None = None) -> Any:
        """Call any tool by its name, whether it is listed or not, and return its result."""
        raise RpcError.internal_error("the gateway runs call_tool itself")

    async def aclose(self) -> None:
        """Stop the finder."""
        await self._finder.aclose()
        await super().aclose()


def describe_match(found: ToolMatch) -> FoundTool:
    """Return the name, summary and signature of a tool for a model."""
    definition = found.entry.definition
    name, score = found.entry.public_name, round(found.score, 3)
    summary, signature = tool_summary(definition), tool_signature(definition)
    return FoundTool(name, summary, signature, score, shown_copies(found))


def shown_copies(found: ToolMatch) -> tuple[str, ...]:
    """Return the names of equal tools that are shown with a match."""
    return found.copies[:_MAX_COPIES]
