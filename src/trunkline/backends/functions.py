"""FunctionBackend: Python functions as the tools of a built-in server.

    tools = FunctionBackend()

    @tools.tool("status")
    def status() -> dict[str, str]:
        "Report the gateway's status."     # the docstring is the tool's description

The annotations give the input schema and the check of the arguments: a function never runs with
invalid ones. A function may return a `ToolResult` to choose text and structured content itself.

Functions that take time must be async.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import msgspec

from trunkline.gateway.backend import BackendAbilities, BackendFeatures
from trunkline.gateway.call_context import CallContext
from trunkline.jsonrpc import INVALID_PARAMS, PendingResult, Raw, RpcError, to_raw
from trunkline.jsonrpc.dispatcher import ParamsInvoker, bind_params, params_type
from trunkline.jsonrpc.raw_json import first_byte
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.identity import Caller
from trunkline.mcp.versions import LATEST_SESSION_REVISION, Revision

_OBJECT = ord("{")
# A context variable, since async functions of several callers run at the same time.
_current_call: ContextVar[CallContext] = ContextVar("current_call")

Function = TypeVar("Function", bound=Callable[..., Any])


class ToolResult(NamedTuple):
    """A tool's result: text for people, structured content for programs, or an error."""

    text: str
    structured: Any = None
    is_error: bool = False


class FunctionBackend:
    """A backend whose tools are functions."""

    abilities = BackendAbilities()

    def __init__(self) -> None:
        self._tools: dict[str, tuple[ParamsInvoker, Raw]] = {}
        self._ended = asyncio.Event()

    def tool(
        self, name: str, *, output: type | None = None, **annotations: bool
    ) -> Callable[[Function], Function]:
        """Register the decorated function, sync or async, as a tool.

        `output` is the type of its structured content; `annotations` are such as readOnlyHint=True.
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
            # Schemas and bindings are built here, once, and not for each listing or call.
            self._tools[name] = (bind_params(function), to_raw(definition))
            return function

        return register

    # Results are written for each caller's revision
    revision: Revision = LATEST_SESSION_REVISION

    @property
    def capabilities(self) -> dict[str, Any]:
        """Tools only."""
        return {"tools": {}}

    async def list_features(self) -> BackendFeatures:
        """List the tools, without cache hints: they may change with the configuration."""
        tools = self._tools.items()
        return BackendFeatures(
            tuple(Feature(FeatureKind.TOOL, name, definition) for name, (_, definition) in tools)
        )

    def call(self, context: CallContext) -> PendingResult:
        """Run a function for the caller."""
        return PendingResult.from_awaitable(self._run_for(context))

    async def _run_for(self, context: CallContext) -> Raw:
        token = _current_call.set(context)
        try:
            return await self._run(context)
        finally:
            _current_call.reset(token)

    async def _run(self, context: CallContext) -> Raw:
        if context.method.name != "tools/call":
            raise RpcError.method_not_found(context.method.name)
        params = context.params
        name = params.require_text("name")
        if name not in self._tools:
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")
        invoke, _ = self._tools[name]
        revision = context.caller.revision
        arguments = params.get("arguments") or Raw(b"{}")
        try:
            if first_byte(arguments) != _OBJECT:  # no positional arguments
                raise RpcError(INVALID_PARAMS, "Invalid params: expected arguments as an object")
            outcome = invoke(arguments)
            if hasattr(outcome, "__await__"):
                outcome = await outcome
        except RpcError as error:
            if error.code == INVALID_PARAMS and revision.reports_bad_arguments_as_result:
                return tool_result(ToolResult(error.message, is_error=True), revision)
            raise
        return tool_result(outcome, revision)

    async def wait_ended(self) -> None:
        """Wait until it is closed."""
        await self._ended.wait()

    async def aclose(self) -> None:
        """Close it."""
        self._ended.set()


def current_caller() -> Caller:
    """Return the caller on whose behalf the current function runs."""
    return _current_call.get().caller


def current_call() -> CallContext:
    """Return the call that the current function carries out."""
    return _current_call.get()


def tool_result(value: Any, revision: Revision) -> Raw:
    """Return a tool's result as JSON; structured content only for revisions that have it."""
    if isinstance(value, str):
        value = ToolResult(value)
    if not isinstance(value, ToolResult):
        raw = to_raw(value)
        value = ToolResult(bytes(raw).decode(), raw if bytes(raw).startswith(b"{") else None)
    result: dict[str, Any] = {"content": [{"type": "text", "text": value.text}]}
    if revision.has_structured_content and value.structured is not None:
        result["structuredContent"] = value.structured
    if value.is_error:
        result["isError"] = True
    return to_raw(result)


def input_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON Schema of a function's arguments."""
    kind = params_type(function)
    (_,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema = definitions.pop("Params")
    schema.pop("title", None)
    return schema | ({"$defs": definitions} if definitions else {})


def output_schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of a type: an object, as MCP requires."""
    (_,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema = definitions.pop(kind.__name__)
    return schema | ({"$defs": definitions} if definitions else {})
