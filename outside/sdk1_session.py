"""A session of the official Python SDK 1.x that tolerates notifications while it ends.

It stops reading before its transport does. A notification in between, such as a changed tool list,
makes the stdio and WebSocket transports fail with BrokenResourceError:
https://github.com/modelcontextprotocol/python-sdk/issues/1960. Servers may send notifications at
any time, so this error is ignored here, but only after the work with the session is done.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from anyio import BrokenResourceError
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


@asynccontextmanager
async def session_over(
    transport: AbstractAsyncContextManager[Any], **callbacks: Any
) -> AsyncIterator[tuple[Any, ...]]:
    """Yield a session and the other values of the transport."""
    done = False
    try:
        async with (
            transport as (read, write, *more),
            ClientSession(read, write, **callbacks) as session,
        ):
            yield session, *more
            done = True
    except* BrokenResourceError:
        if not done:
            raise


def stdio(command: str, *args: str) -> AbstractAsyncContextManager[Any]:
    """Return the transport that starts a server."""
    return stdio_client(StdioServerParameters(command=command, args=list(args)))
