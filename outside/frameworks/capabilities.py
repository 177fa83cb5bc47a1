"""Callbacks with which the official SDKs declare roots, elicitation and sampling."""

from typing import Any

from mcp import types


def list_roots_callback(root: str) -> Any:
    async def list_roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=root)])

    return list_roots


async def sampling_callback(context: Any, params: Any) -> types.CreateMessageResult:
    text = types.TextContent(type="text", text="a sample")
    return types.CreateMessageResult(role="assistant", content=text, model="m")


async def elicitation_callback(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="decline")
