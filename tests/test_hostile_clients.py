"""Hostile HTTP clients in front of a gateway: each is cut off or answered, and nobody else notices.

A canary calls a tool all the while, in both eras; its answers stay right. Afterwards nothing of the
hostile ones is left: no connection, no session, no call in flight.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.gateway.conftest import no_patience
from tests.gateway.letters import meta
from tests.gateway.servers import Hold, Server, gateway, tool
from tests.http_client import HOST, Site, site
from tests.transports.exchanges import call
from trunkline.transports.http_message import HttpLimits

__all__ = ["no_patience"]

STRICT = HttpLimits(
    head_timeout=0.2,
    body_timeout=0.3,
    idle_timeout=0.3,
    write_timeout=0.2,
    half_closed=0.05,
    linger=1.0,  # nobody waits for it here, and a busy machine may well be late
    max_body=64 * 1024,
    high_water=4096,
)
ALLOWED = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"

Hostility = Callable[["Bad"], Awaitable[None]]


class Bad:
    """A client that means no good."""

    def __init__(self, port: int, server: Server, hold: Hold) -> None:
        self.port, self.server, self.hold = port, server, hold

    async def come(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(HOST, self.port)

    def head(self, *lines: str, method: str = "POST") -> bytes:
        every = (f"{method} /mcp HTTP/1.1", f"host: {HOST}:{self.port}", *lines)
        return ("\r\n".join(every) + "\r\n" + ALLOWED + "\r\n").encode()

    async def until_cut_off(self) -> bytes:
        """Return all that is said until the gateway has had enough."""
        said = b""
        try:
            while piece := await self.reader.read(65536):
                said += piece
        except ConnectionError:
            pass
        return said


async def slow_head(bad: Bad) -> None:
    bad.writer.write(b"POST /mcp HTTP/1.1\r\nhost: x")
    assert b"408" in await bad.until_cut_off()


async def slow_body(bad: Bad) -> None:
    bad.writer.write(bad.head("content-length: 100") + b'{"json')
    assert b"408" in await bad.until_cut_off()


async def smuggler(bad: Bad) -> None:
    both = bad.head("content-length: 5", "transfer-encoding: chunked")
    bad.writer.write(both + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    said = await bad.until_cut_off()
    assert said.startswith(b"HTTP/1.1 400")
    assert said.count(b"HTTP/1.1") == 1


async def oversized(bad: Bad) -> None:
    bad.writer.write(bad.head(f"content-length: {10**9}"))
    assert (await bad.until_cut_off()).startswith(b"HTTP/1.1 413")


async def endless_head(bad: Bad) -> None:
    bad.writer.write(b"GET / HTTP/1.1\r\n" + b"x-more: and more\r\n" * 5000)
    assert (await bad.until_cut_off()).startswith(b"HTTP/1.1 431")


async def garbage(bad: Bad) -> None:
    bad.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 100)
    assert (await bad.until_cut_off()).startswith(b"HTTP/1.1 400")


async def half_closed(bad: Bad) -> None:
    bad.writer.write(bad.head("content-length: 2") + b"{}")
    bad.writer.write_eof()
    assert (await bad.until_cut_off()).startswith(b"HTTP/1.1 400")


async def pipeliner(bad: Bad) -> None:
    one = f"GET /healthz HTTP/1.1\r\nhost: {HOST}:{bad.port}\r\n\r\n".encode()
    bad.writer.write(one * 10_000)
    said = b""
    while said.count(b"HTTP/1.1 200") < 10_000:
        piece = await bad.reader.read(2**20)
        assert piece, "expected 10,000 answers"
        said += piece
    assert b"HTTP/1.1 4" not in said


async def slow_reader(bad: Bad) -> None:
    one = f"GET /healthz HTTP/1.1\r\nhost: {HOST}:{bad.port}\r\n\r\n".encode()
    cast("asyncio.Transport", bad.writer.transport).pause_reading()
    # More than all buffers on the way hold: then it is the gateway that cannot write.
    bad.writer.write(one * 200_000)
    lost = asyncio.ensure_future(bad.writer.wait_closed())
    while not bad.writer.transport.is_closing() and not lost.done():
        bad.writer.write(one)
        await asyncio.sleep(0)
    await asyncio.gather(lost, return_exceptions=True)


async def resetting(bad: Bad) -> None:
    """Reset the connection in the midst of a call; in the envelope era that cancels it."""
    body = json.dumps(call(1, "tools/call", name="s__hold", _meta=meta())).encode()
    mirrors = ("mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: s__hold")
    bad.writer.write(bad.head(f"content-length: {len(body)}", *mirrors) + body)
    await bad.hold.begun.wait()
    linger = struct.pack("ii", 1, 0)
    bad.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    bad.writer.transport.abort()
    while bad.server.count("notifications/cancelled") < 3:  # each of them
        await asyncio.sleep(0)


HOSTILITIES: list[Hostility] = [
    slow_head,
    slow_body,
    smuggler,
    oversized,
    endless_head,
    garbage,
    half_closed,
    pipeliner,
    slow_reader,
    resetting,
]


async def sing(here: Site, heard: asyncio.Event) -> None:
    """Call a tool again and again, in both eras, and look at every answer."""
    old, new = await here.old(), here.new()
    number = 0
    while True:
        for client in (old, new):
            number += 1
            reply = await client.ask("tools/call", number, name="s__echo", arguments={"n": number})
            assert reply.json["id"] == number
            assert reply.result["content"][0]["text"] == str(number)
            reply.close()
        heard.set()


@pytest.mark.parametrize("hostility", HOSTILITIES, ids=lambda each: each.__name__)
async def test_a_hostile_client_is_cut_off_and_the_canary_never_notices(
    hostility: Hostility,
) -> None:
    server, hold = Server(tools=[tool("echo"), tool("hold")]), Hold()

    def answer(params: Any) -> Any:
        if params["name"] == "hold":
            return hold(params)
        return {"content": [{"type": "text", "text": str(params["arguments"]["n"])}]}

    server.methods["tools/call"] = answer
    async with site(gateway(s=server), server, limits=STRICT) as here:
        heard = asyncio.Event()
        canary = asyncio.create_task(sing(here, heard))
        bads = [Bad(here.port, server, hold) for _ in range(3)]
        await asyncio.gather(*(bad.come() for bad in bads))
        async with asyncio.timeout(20):
            await asyncio.gather(*(hostility(bad) for bad in bads))
            heard.clear()
            await heard.wait()
        for bad in bads:
            bad.writer.transport.abort()
        hold.let_go.set()
        assert not canary.done()
        canary.cancel()
        await asyncio.gather(canary, return_exceptions=True)
        assert here.gateway.remapper.pending_count() == 0
