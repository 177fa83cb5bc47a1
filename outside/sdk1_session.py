"""A session of the official Python SDK 1.x, which falls over what it is told while it ends.

It stops reading before its transport does. What a server says in between, such as that its tools
have changed, nobody takes, and over stdio and WebSocket the transport fails with
BrokenResourceError instead of ending: https://github.com/modelcontextprotocol/python-sdk/issues/1960.
Servers may say such things at any time, so that is let go here; but only once all that was to be
done with the session has been done.
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
    """Yield a session, and what else the transport has to offer."""
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
    """Return the transport of a server that is to be started."""
    return stdio_client(StdioServerParameters(command=command, args=list(args)))
