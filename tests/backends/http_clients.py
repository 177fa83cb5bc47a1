"""Connections to MCP servers over HTTP for tests, whose delays are short."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.http_servers import FakeSessionServer
from tests.http.scripted_server import scripted_server
from tests.tasks import settle
from trunkline.backends.limits import BackendLimits, StreamLimits
from trunkline.backends.streamable_http import StreamableHttpClient
from trunkline.http.client import HttpClient
from trunkline.jsonrpc import (
    ConnectionLost,
    IdRemapper,
    Notification,
    Raw,
    Request,
    RpcError,
    from_raw,
)
from trunkline.mcp.identity import cancelled_notification
from trunkline.mcp.versions import negotiate_revision

EMPTY = Raw(b"{}")
SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"
SHORT_STREAM_LIMITS = StreamLimits(
    reconnect_delay=0.001,
    min_reconnect_delay=0.001,
    close_drain_timeout=20.0,
    session_delete_timeout=20.0,
)
SHORT_LIMITS = BackendLimits(streams=SHORT_STREAM_LIMITS, answer_drain_timeout=0.0)


class RecordingHandler:
    """Records the server's messages in order, and answers its requests as the test says."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.arrived: asyncio.Queue[str] = asyncio.Queue()
        self.answer: Any = {"yes": True}
        self.asked = asyncio.Event()

    def called(self, request: Request) -> Any:
        self.notified(Notification(request.method))
        self.asked.set()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        self.received.append(notification.method)
        self.arrived.put_nowait(notification.method)
        if notification.method == "broken":
            raise ZeroDivisionError
        return self._record_slowly() if notification.method == "slow" else None

    async def _record_slowly(self) -> None:
        await settle()
        self.received.append("taken in")

    def violated(self, violation: Exception) -> None:
        raise AssertionError("expected no notification")


@asynccontextmanager
async def connected_client(
    web: FakeSessionServer,
    era: str = "session",
    *headers: tuple[bytes, bytes],
    limits: StreamLimits = SHORT_STREAM_LIMITS,
) -> AsyncGenerator[StreamableHttpClient]:
    """Connect to a server, and check that nothing is left afterwards."""
    remapper = IdRemapper()
    async with scripted_server(web.play) as server:
        client = HttpClient(server.url, headers)
        make_cancellation = cancelled_notification if era == "session" else None
        link = StreamableHttpClient(client, "s", remapper, make_cancellation, limits=limits)
        try:
            yield link
        finally:
            await link.aclose()
        assert remapper.pending_count() == 0
        assert client.connection_count == 0


@asynccontextmanager
async def client_in_session(
    web: FakeSessionServer,
    ear: RecordingHandler | None = None,
    limits: StreamLimits = SHORT_STREAM_LIMITS,
) -> AsyncGenerator[StreamableHttpClient]:
    """The same, after `initialize`."""
    async with connected_client(web, limits=limits) as link:
        await link.call("initialize", EMPTY)
        link.on_session_opened(negotiate_revision(web.version), ear or RecordingHandler())
        yield link


async def call(link: StreamableHttpClient, method: str = "tools/call", **options: Any) -> Any:
    return from_raw(await link.call(method, Raw(b'{"name":"t"}'), **options), object)


async def error_of(calling: Awaitable[Any]) -> Any:
    with pytest.raises((ConnectionLost, RpcError)) as failed:
        await calling
    return failed.value
