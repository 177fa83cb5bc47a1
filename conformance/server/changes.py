"""Lists that change while the server runs, and telling everyone who wants to know.

In the envelope era the bus tells the open `subscriptions/listen` streams; in the handshake era the
session that made the change is told, on its own channel.
"""

from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from conformance.server.samples import Context

BUS = InMemorySubscriptionBus()

_extra = {"tools": False, "prompts": False}


def has_extra(kind: str) -> bool:
    """Say whether the list of this kind has its extra entry now."""
    return _extra[kind]


def speaks_envelope(ctx: Context) -> bool:
    """Say whether this request came in the envelope era."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


async def toggle_tool(ctx: Context) -> None:
    """Add the extra tool, or take it away, and tell."""
    _extra["tools"] = not _extra["tools"]
    await BUS.publish(ToolsListChanged())
    if not speaks_envelope(ctx):
        await ctx.session.send_tool_list_changed()


async def toggle_prompt(ctx: Context) -> None:
    """Add the extra prompt, or take it away, and tell."""
    _extra["prompts"] = not _extra["prompts"]
    await BUS.publish(PromptsListChanged())
    if not speaks_envelope(ctx):
        await ctx.session.send_prompt_list_changed()
