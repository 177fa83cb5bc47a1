"""Lists that change while the server runs, and their notifications.

In the stateless protocol the bus notifies the open `subscriptions/listen` streams; in the session
protocol the session that made the change is notified.
"""

from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from conformance.server.samples import Context

BUS = InMemorySubscriptionBus()

_extra = {"tools": False, "prompts": False}


def has_extra(kind: str) -> bool:
    """Return whether the list of this kind has its extra entry."""
    return _extra[kind]


def is_stateless(ctx: Context) -> bool:
    """Return whether this request uses the stateless protocol."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


async def toggle_tool(ctx: Context) -> None:
    """Add or remove the extra tool, and notify."""
    _extra["tools"] = not _extra["tools"]
    await BUS.publish(ToolsListChanged())
    if not is_stateless(ctx):
        await ctx.session.send_tool_list_changed()


async def toggle_prompt(ctx: Context) -> None:
    """Add or remove the extra prompt, and notify."""
    _extra["prompts"] = not _extra["prompts"]
    await BUS.publish(PromptsListChanged())
    if not is_stateless(ctx):
        await ctx.session.send_prompt_list_changed()
