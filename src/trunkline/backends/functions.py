"""Functions: Python functions as the tools of a backend of our own.

    tools = Functions()

    @tools.tool("status")
    def status() -> dict[str, str]:
        "Say how the gateway is."          # the docstring is what the model reads

The input schema comes from the annotations, and so does the check of the arguments: a function
never runs with what does not fit. A function that returns an Answer chooses its own words.

Refuses to be slow on behalf of a tool: what takes time is async.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import msgspec

from trunkline.gateway.client import Client
from trunkline.jsonrpc import INVALID_PARAMS, Due, Raw, RpcError, to_raw
from trunkline.jsonrpc.params import Invoke, invoker, params_type
from trunkline.jsonrpc.raw import first_byte
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind, Offer
from trunkline.mcp.versions import LATEST_HANDSHAKE, V2025_06_18, V2025_11_25
from trunkline.routing.call import Call

_OBJECT = ord("{")
_asking: ContextVar[Caller] = ContextVar("asking")

Function = TypeVar("Function", bound=Callable[..., Any])


class Answer(NamedTuple):
    """What a tool says: text for people, the same as a structure for programs, or why it cannot."""

    text: str
    structure: Any = None
    is_error: bool = False


class Functions:
    """A backend that is a table of functions."""

    def __init__(self) -> None:
        self._tools: dict[str, tuple[Invoke, Raw]] = {}
        self._ended = asyncio.Event()

    def tool(
        self, name: str, *, output: type | None = None, **annotations: bool
    ) -> Callable[[Function], Function]:
        """Offer the decorated function, sync or async; annotations such as readOnlyHint=True.

        `output` is the type of the structure that it answers with.
        """

        def register(function: Function) -> Function:
            definition: dict[str, Any] = {
                "name": name,
                "description": inspect.getdoc(function) or name,
                "inputSchema": input_schema(function),
            }
            if output is not None:
                definition["outputSchema"] = output_schema(output)
            if annotations:
                definition["annotations"] = annotations
            self._tools[name] = (invoker(function), to_raw(definition))
            return function

        return register

    @property
    def version(self) -> str:
        """The latest revision: it speaks them all."""
        return LATEST_HANDSHAKE

    @property
    def capabilities(self) -> dict[str, Any]:
        """It has tools."""
        return {"tools": {}}

    async def offers(self) -> tuple[Offer, ...]:
        """List the functions."""
        found = self._tools.items()
        return tuple(Offer(Kind.TOOL, name, definition) for name, (_, definition) in found)

    def call(self, call: Call, client: Client) -> Due:
        """Run a function, on behalf of whoever asks."""
        return Due.of(self._run_for(call))

    async def _run_for(self, call: Call) -> Raw:
        token = _asking.set(call.caller)
        try:
            return await self._run(call)
        finally:
            _asking.reset(token)

    async def _run(self, call: Call) -> Raw:
        if call.method != "tools/call":
            raise RpcError.method_not_found(call.method)
        params = call.params
        name = params.text("name")
        if name not in self._tools:
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")
        invoke, _ = self._tools[name]
        version = call.caller.version
        arguments = params.get("arguments") or Raw(b"{}")
        try:
            if first_byte(arguments) != _OBJECT:  # by position they would be guessed at
                raise RpcError(INVALID_PARAMS, "Invalid params: expected arguments as an object")
            outcome = invoke(arguments)
        except RpcError as error:
            # Models read results; since 2025-11-25 that is where a bad argument is explained.
            if error.code == INVALID_PARAMS and version >= V2025_11_25:
                return tool_result(Answer(error.message, is_error=True), version)
            raise
        if hasattr(outcome, "__await__"):
            outcome = await outcome
        return tool_result(outcome, version)

    left_out: tuple[str, ...] = ()
    declared: frozenset[str] | None = None
    tells_calls_apart = True
    """There is nothing to tell apart: nobody asks on the way."""

    def waits_since(self, client: Client) -> float | None:
        """Nobody is asked anything."""
        return None

    @property
    def freshness(self) -> Freshness:
        """Nothing may be kept: what is built in can change with the configuration."""
        return Freshness()

    async def ping(self) -> None:
        """Do nothing: it is here."""

    async def tell(self, method: str, params: Any) -> None:
        """Ignore it: functions want to know nothing."""

    async def follow(self, uri: str) -> None:
        """Refuse: there are no resources."""
        raise RpcError.method_not_found("resources/subscribe")

    async def unfollow(self, uri: str) -> None:
        """Ignore it."""

    async def set_level(self, level: str) -> None:
        """Ignore it: functions do not log."""

    async def wait_ended(self) -> None:
        """Wait until it is closed."""
        await self._ended.wait()

    async def aclose(self) -> None:
        """End."""
        self._ended.set()


def asking() -> Caller:
    """Return who has the function called that asks this."""
    return _asking.get()


def tool_result(value: Any, version: str) -> Raw:
    """Return the result of a tool: text for people, and structure for programs that know of it."""
    if isinstance(value, str):
        value = Answer(value)
    if not isinstance(value, Answer):
        raw = to_raw(value)
        value = Answer(bytes(raw).decode(), raw if bytes(raw).startswith(b"{") else None)
    result: dict[str, Any] = {"content": [{"type": "text", "text": value.text}]}
    if version >= V2025_06_18 and value.structure is not None:
        result["structuredContent"] = value.structure
    if value.is_error:
        result["isError"] = True
    return to_raw(result)


def input_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments of `function`."""
    kind = params_type(function)
    (_,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema = definitions.pop("Params")
    schema.pop("title", None)
    return schema | ({"$defs": definitions} if definitions else {})


def output_schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of a structure: an object, as MCP wants it."""
    (_,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema = definitions.pop(kind.__name__)
    return schema | ({"$defs": definitions} if definitions else {})
