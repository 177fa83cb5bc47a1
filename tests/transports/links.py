"""Links to MCP servers over HTTP for tests, with hardly any patience."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.jsonrpc.test_channel import settle
from tests.transports.faulty import faulty
from tests.transports.web import Web
from trunkline.jsonrpc import (
    ConnectionLost,
    IdRemapper,
    Notification,
    Raw,
    Request,
    RpcError,
    from_raw,
)
from trunkline.routing.call import withdrawal
from trunkline.transports import http_stream, streamable
from trunkline.transports.http_client import HttpClient
from trunkline.transports.streamable import Streamable

EMPTY = Raw(b"{}")
SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"


class Ear:
    """Hears what the server says, in order, and answers its questions as the test says."""

    def __init__(self) -> None:
        self.heard: list[str] = []
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
        self.heard.append(notification.method)
        self.arrived.put_nowait(notification.method)
        if notification.method == "broken":
            raise ZeroDivisionError
        return self._take_in() if notification.method == "slow" else None

    async def _take_in(self) -> None:
        await settle()
        self.heard.append("taken in")

    def violated(self, violation: Exception) -> None:
        raise AssertionError("expected nobody to be told")


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable, "RETRY", 0.001)
    for name in ("RETRY", "MIN_RETRY"):
        monkeypatch.setattr(http_stream, name, 0.001)
    for name in ("GRACE", "GOODBYE"):
        monkeypatch.setattr(streamable, name, 0.2)


@asynccontextmanager
async def linked(
    web: Web, era: str = "handshake", *headers: tuple[bytes, bytes]
) -> AsyncGenerator[Streamable]:
    """Speak to a server for a moment, and see to it that nothing is left afterwards."""
    remapper = IdRemapper()
    async with faulty(web.play) as server:
        client = HttpClient(server.url, headers)
        link = Streamable(client, "s", remapper, withdrawal if era == "handshake" else None)
        try:
            yield link
        finally:
            await link.aclose()
        assert remapper.pending_count() == 0
        assert client.connections == 0


@asynccontextmanager
async def in_session(
    web: Web, ear: Ear | None = None, version: str | None = None
) -> AsyncGenerator[Streamable]:
    """The same, once hands are shaken."""
    async with linked(web) as link:
        await link.call("initialize", EMPTY)
        link.opened(version or web.version, ear or Ear())
        yield link


async def call(link: Streamable, method: str = "tools/call", **options: Any) -> Any:
    return from_raw(await link.call(method, Raw(b'{"name":"t"}'), **options), object)


async def refusal(calling: Awaitable[Any]) -> Any:
    with pytest.raises((ConnectionLost, RpcError)) as failed:
        await calling
    return failed.value
