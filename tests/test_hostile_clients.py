"""Hostile HTTP clients in front of a gateway: each is disconnected or answered.

A canary calls a tool all the time, in both protocols, and its responses stay right. Afterwards no
connection, session or call of a hostile client is left.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.endpoints.exchanges import rpc_request
from tests.gateway.conftest import no_delays
from tests.gateway.servers import HeldAnswer, Server, make_gateway, tool
from tests.gateway.stateless_callers import meta
from tests.http_client import HOST, GatewaySite, site
from tests.tasks import LoopClock, hang_guard
from trunkline.http.message import HttpLimits

__all__ = ["no_delays"]

STRICT = HttpLimits(
    head_timeout=0.2,
    body_timeout=0.3,
    idle_timeout=5.0,
    write_timeout=0.2,
    half_closed_timeout=0.05,
    linger_timeout=1.0,
    max_body=64 * 1024,
    high_water_bytes=4096,
)
ALLOWED = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"

Attack = Callable[["HostileClient"], Awaitable[None]]


class HostileClient:
    """A hostile client."""

    def __init__(self, port: int, server: Server, hold: HeldAnswer) -> None:
        self.port, self.server, self.hold = port, server, hold

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(HOST, self.port)

    def head(self, *lines: str, method: str = "POST") -> bytes:
        every = (f"{method} /mcp HTTP/1.1", f"host: {HOST}:{self.port}", *lines)
        return ("\r\n".join(every) + "\r\n" + ALLOWED + "\r\n").encode()

    async def read_until_closed(self) -> bytes:
        """Return everything received until the gateway closes the connection."""
        received = b""
        try:
            while piece := await self.reader.read(65536):
                received += piece
        except ConnectionError:
            pass
        return received


async def slow_head(hostile: HostileClient) -> None:
    hostile.writer.write(b"POST /mcp HTTP/1.1\r\nhost: x")
    assert b"408" in await hostile.read_until_closed()


async def slow_body(hostile: HostileClient) -> None:
    hostile.writer.write(hostile.head("content-length: 100") + b'{"json')
    assert b"408" in await hostile.read_until_closed()


async def smuggling(hostile: HostileClient) -> None:
    both = hostile.head("content-length: 5", "transfer-encoding: chunked")
    hostile.writer.write(both + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    received = await hostile.read_until_closed()
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1


async def oversized_body(hostile: HostileClient) -> None:
    hostile.writer.write(hostile.head(f"content-length: {10**9}"))
    assert (await hostile.read_until_closed()).startswith(b"HTTP/1.1 413")


async def endless_head(hostile: HostileClient) -> None:
    hostile.writer.write(b"GET / HTTP/1.1\r\n" + b"x-more: and more\r\n" * 5000)
    assert (await hostile.read_until_closed()).startswith(b"HTTP/1.1 431")


async def garbage(hostile: HostileClient) -> None:
    hostile.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 100)
    assert (await hostile.read_until_closed()).startswith(b"HTTP/1.1 400")


async def half_closed(hostile: HostileClient) -> None:
    hostile.writer.write(hostile.head("content-length: 2") + b"{}")
    hostile.writer.write_eof()
    assert (await hostile.read_until_closed()).startswith(b"HTTP/1.1 400")


async def pipelining(hostile: HostileClient) -> None:
    one = f"GET /healthz HTTP/1.1\r\nhost: {HOST}:{hostile.port}\r\n\r\n".encode()
    hostile.writer.write(one * 10_000)
    received = b""
    while received.count(b"HTTP/1.1 200") < 10_000:
        piece = await hostile.reader.read(2**20)
        assert piece, "expected 10,000 answers"
        received += piece
    assert b"HTTP/1.1 4" not in received


async def slow_reader(hostile: HostileClient) -> None:
    one = f"GET /healthz HTTP/1.1\r\nhost: {HOST}:{hostile.port}\r\n\r\n".encode()
    cast("asyncio.Transport", hostile.writer.transport).pause_reading()
    # More than all buffers in between hold, so that the gateway cannot write.
    hostile.writer.write(one * 200_000)
    lost = asyncio.ensure_future(hostile.writer.wait_closed())
    while not hostile.writer.transport.is_closing() and not lost.done():
        hostile.writer.write(one)
        await asyncio.sleep(0)
    await asyncio.gather(lost, return_exceptions=True)


async def resetting(hostile: HostileClient) -> None:
    """Reset the connection during a call, which cancels it in the stateless protocol."""
    body = json.dumps(rpc_request(1, "tools/call", name="s__hold", _meta=meta())).encode()
    header_check = (
        "mcp-protocol-version: 2026-07-28",
        "mcp-method: tools/call",
        "mcp-name: s__hold",
    )
    hostile.writer.write(hostile.head(f"content-length: {len(body)}", *header_check) + body)
    await hostile.hold.started.wait()
    linger = struct.pack("ii", 1, 0)
    hostile.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    hostile.writer.transport.abort()
    while hostile.server.count("notifications/cancelled") < 3:  # one for each client
        await asyncio.sleep(0)


ATTACKS: list[Attack] = [
    slow_head,
    slow_body,
    smuggling,
    oversized_body,
    endless_head,
    garbage,
    half_closed,
    pipelining,
    slow_reader,
    resetting,
]


async def run_canary(here: GatewaySite, answered: asyncio.Event) -> None:
    """Call a tool repeatedly, in both protocols, and check every response."""
    session, stateless = await here.session_client(), here.stateless_client()
    number = 0
    while True:
        for client in (session, stateless):
            number += 1
            reply = await client.ask("tools/call", number, name="s__echo", arguments={"n": number})
            assert reply.json["id"] == number
            assert reply.result["content"][0]["text"] == str(number)
            reply.close()
        answered.set()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.__name__)
async def test_a_hostile_client_is_cut_off_and_the_canary_never_notices(
    attack: Attack,
) -> None:
    server, hold = Server(tools=[tool("echo"), tool("hold")]), HeldAnswer()

    def answer(params: Any) -> Any:
        if params["name"] == "hold":
            return hold(params)
        return {"content": [{"type": "text", "text": str(params["arguments"]["n"])}]}

    server.methods["tools/call"] = answer
    clock = LoopClock()
    async with site(make_gateway(s=server), server, limits=STRICT) as here:
        answered = asyncio.Event()
        canary = asyncio.create_task(run_canary(here, answered))
        bads = [HostileClient(here.port, server, hold) for _ in range(3)]
        await asyncio.gather(*(hostile.connect() for hostile in bads))
        async with hang_guard():
            attacks = asyncio.gather(*(attack(hostile) for hostile in bads))
            await clock.advance_until(attacks, step=0.01)
            await attacks
            answered.clear()
            waiting = asyncio.create_task(answered.wait())
            await asyncio.wait({waiting, canary}, return_when=asyncio.FIRST_COMPLETED)
            assert not canary.done(), canary
        for hostile in bads:
            hostile.writer.transport.abort()
        hold.released.set()
        assert not canary.done()
        canary.cancel()
        await asyncio.gather(canary, return_exceptions=True)
        assert here.gateway.remapper.pending_count() == 0
