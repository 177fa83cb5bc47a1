"""The server itself: the handler of each method."""

from collections.abc import Mapping
from typing import Any

from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.lowlevel.server import RequestHandler
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CompleteRequestParams,
    GetPromptRequestParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    SetLevelRequestParams,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel

from conformance.server import asking_tools, changes, plain_tools, prompts, resources
from conformance.server.asking import InputNeeded
from conformance.server.samples import Context, JsonObject, complete
from conformance.server.toolbox import Tool

_ALWAYS = plain_tools.TOOLS | asking_tools.TOOLS
_EVER = _ALWAYS | plain_tools.EXTRA
_HINT = CacheHint(ttl_ms=1000, scope="public")
_CACHEABLE: tuple[CacheableMethod, ...] = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)


class Fixture(Server[Any]):
    """A server that announces list changes in both protocols."""

    def create_initialization_options(self, *_: Any, **__: Any) -> InitializationOptions:
        """Add the notifications of list changes to the SDK's options."""
        options = NotificationOptions(prompts_changed=True, tools_changed=True)
        return super().create_initialization_options(options)


async def _nothing(ctx: Context, params: Any) -> JsonObject:
    return {}


async def _list_tools(ctx: Context, params: Any) -> JsonObject:
    tools: dict[str, Tool] = _EVER if changes.has_extra("tools") else _ALWAYS
    listed = [
        {"name": name, "description": it.description, "inputSchema": it.schema}
        for name, it in tools.items()
    ]
    return complete({"tools": listed})


async def _call_tool(ctx: Context, params: CallToolRequestParams) -> JsonObject:
    if params.name not in _EVER:
        raise MCPError(INVALID_PARAMS, f"no tool is called {params.name!r}")
    try:
        return complete(await _EVER[params.name].run(ctx, params))
    except InputNeeded as needed:
        return needed.result


def _input_schema(name: str) -> Mapping[str, Any] | None:
    return _EVER[name].schema if name in _EVER else None


async def _list_prompts(ctx: Context, params: Any) -> JsonObject:
    return complete({"prompts": prompts.listed()})


async def _prompt(ctx: Context, params: GetPromptRequestParams) -> JsonObject:
    try:
        return await prompts.made(ctx, params)
    except InputNeeded as needed:
        return needed.result


async def _list_resources(ctx: Context, params: Any) -> JsonObject:
    return complete({"resources": resources.LISTED})


async def _list_templates(ctx: Context, params: Any) -> JsonObject:
    return complete({"resourceTemplates": resources.TEMPLATES})


_HANDLERS: dict[str, tuple[type[BaseModel], RequestHandler[Any, Any]]] = {
    "tools/list": (PaginatedRequestParams, _list_tools),
    "tools/call": (CallToolRequestParams, _call_tool),
    "prompts/list": (PaginatedRequestParams, _list_prompts),
    "prompts/get": (GetPromptRequestParams, _prompt),
    "completion/complete": (CompleteRequestParams, prompts.completed),
    "resources/list": (PaginatedRequestParams, _list_resources),
    "resources/templates/list": (PaginatedRequestParams, _list_templates),
    "resources/read": (ReadResourceRequestParams, resources.read),
    "resources/subscribe": (SubscribeRequestParams, _nothing),
    "resources/unsubscribe": (UnsubscribeRequestParams, _nothing),
    "subscriptions/listen": (SubscriptionsListenRequestParams, ListenHandler(changes.BUS)),
    "logging/setLevel": (SetLevelRequestParams, _nothing),
}


def fixture() -> Fixture:
    """Return a server with every fixture."""
    server = Fixture(
        "conformance-fixture",
        version="1",
        instructions="For the conformance suite.",
        cache_hints=dict.fromkeys(_CACHEABLE, _HINT),
        get_tool_input_schema=_input_schema,
    )
    for method, (params, handler) in _HANDLERS.items():
        server.add_request_handler(method, params, handler)
    return server
