"""Payloads over WebSockets: hand-made frames over an in-memory stream."""

import asyncio
import struct
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from tests.tasks import LoopClock, hang_guard, is_stuck, settle, stop, tidy
from trunkline.http.websocket import (
    WebSocketLimits,
    WebSocketTransport,
)
from trunkline.jsonrpc import ConnectionLost

HASTY = WebSocketLimits(ping_interval=0.01, pong_timeout=0.01, close_timeout=0.01)


class Wire:
    """A ByteStream whose other end is the test."""

    def __init__(self) -> None:
        self.sent = b""
        self.reads = 0
        self.closed = 0
        self.room = asyncio.Event()
        self.room.set()
        self._pieces: deque[bytes | None] = deque()
        self._arrival = asyncio.Event()

    async def receive(self) -> bytes | None:
        self.reads += 1
        while not self._pieces:
            if self.closed:
                return None
            self._arrival.clear()
            await self._arrival.wait()
        return self._pieces.popleft()

    async def send(self, piece: bytes) -> None:
        if self.closed:
            raise ConnectionLost("the wire is cut")
        self.sent += piece
        await self.room.wait()

    async def aclose(self) -> None:
        self.closed += 1
        self._arrival.set()

    def put(self, *pieces: bytes | None) -> None:
        self._pieces.extend(pieces)
        self._arrival.set()

    def frames(self) -> list[tuple[Opcode, bytes]]:
        """Parse the sent frames as a client does."""
        client = ClientProtocol(parse_uri(), state=State.OPEN, max_size=None)
        client.receive_data(self.sent)
        self.sent = b""
        return [
            (frame.opcode, bytes(frame.data))
            for frame in client.events_received()
            if isinstance(frame, Frame)
        ]


def parse_uri() -> Any:
    from websockets.uri import parse_uri

    return parse_uri("ws://localhost/")


def text(payload: bytes, fin: bool = True, opcode: Opcode = Opcode.TEXT) -> bytes:
    """Write a frame as a client does: masked."""
    return Frame(opcode, payload, fin).serialize(mask=True)


def close(code: int) -> tuple[Opcode, bytes]:
    return Opcode.CLOSE, struct.pack("!H", code)


def close_codes(wire: Wire) -> list[int]:
    return [
        struct.unpack("!H", data[:2])[0] for opcode, data in wire.frames() if opcode is Opcode.CLOSE
    ]


def channel_on(wire: Wire, limits: WebSocketLimits | None = None) -> WebSocketTransport:
    return WebSocketTransport(wire, limits or WebSocketLimits(max_message=1000))


async def received(transport: WebSocketTransport) -> list[bytes]:
    """Receive until the end of the stream."""
    found: list[bytes] = []
    try:
        while (payload := await transport.receive()) is not None:
            found.append(payload)
    except ConnectionLost:
        pass
    return found


# Frames


@tidy
async def test_a_text_message_is_a_payload_both_ways() -> None:
    wire = Wire()
    transport = channel_on(wire)
    wire.put(text(b'{"a":1}') + text('"ä"'.encode()))
    assert await transport.receive() == b'{"a":1}'
    assert await transport.receive() == '"ä"'.encode()
    await transport.send(b"[]")
    assert wire.frames() == [(Opcode.TEXT, b"[]")]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Make messages, pings, and the bytes of both: in frames, and in pieces, of any size."""
    messages = [m.encode() for m in draw(st.lists(st.text(max_size=40), max_size=6))]
    pings: list[bytes] = []
    stream = b""
    for message in messages:
        cuts = sorted(draw(st.lists(st.integers(0, len(message)), max_size=3)))
        parts = [message[a:b] for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True)]
        for n, part in enumerate(parts):
            if draw(st.booleans()):
                pings.append(b"%d" % len(pings))
                stream += text(pings[-1], opcode=Opcode.PING)
            stream += text(part, n == len(parts) - 1, Opcode.CONT if n else Opcode.TEXT)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    return messages, pings, pieces


@given(conversations())
def test_the_cutting_of_messages_makes_no_difference(
    exchange: tuple[list[bytes], list[bytes], list[bytes]],
) -> None:
    async def run() -> None:
        messages, pings, pieces = exchange
        wire = Wire()
        wire.put(*pieces, None)
        assert await received(channel_on(wire)) == messages
        assert wire.frames() == [(Opcode.PONG, ping) for ping in pings]

    asyncio.run(run())


@given(st.binary(max_size=200))
def test_arbitrary_bytes_do_no_harm(garbage: bytes) -> None:
    async def run() -> None:
        wire = Wire()
        wire.put(text(b"1"), garbage, None)
        transport = channel_on(wire)
        assert (await received(transport))[0] == b"1"
        await transport.aclose()
        assert wire.closed

    asyncio.run(run())


@tidy
async def test_a_flood_of_small_frames_does_not_block_other_tasks() -> None:
    wire = Wire()
    empty = text(b"", fin=False, opcode=Opcode.CONT)
    wire.put(text(b"1", fin=False) + empty * 20_000 + text(b"2", opcode=Opcode.CONT))
    receiving = asyncio.create_task(channel_on(wire).receive())
    turns = 0
    while not receiving.done():
        await asyncio.sleep(0)
        turns += 1
    assert await receiving == b"12"
    assert turns > 5  # 120,000 bytes are eight slices


@tidy
async def test_nothing_is_read_without_a_receiver() -> None:
    wire = Wire()
    transport = channel_on(wire)
    wire.put(text(b"1"), text(b"2"), text(b"3"))
    assert await transport.receive() == b"1"
    await settle()
    assert wire.reads == 1


@tidy
async def test_concurrent_receivers_are_all_served() -> None:
    wire = Wire()
    transport = channel_on(wire)
    tasks = [asyncio.create_task(transport.receive()) for _ in range(3)]
    await settle()
    wire.put(text(b"1") + text(b"2"), text(b"3"))
    assert sorted(filter(None, await asyncio.gather(*tasks))) == [b"1", b"2", b"3"]


@tidy
async def test_cancelling_receive_loses_nothing() -> None:
    wire = Wire()
    transport = channel_on(wire)
    wire.room.clear()
    wire.put(text(b"", opcode=Opcode.PING) + text(b"1"))
    task = asyncio.create_task(transport.receive())
    assert await is_stuck(task)  # its pong is not read
    await stop(task)
    assert await transport.receive() == b"1"


@tidy
async def test_send_waits_while_the_client_is_slow_and_cancelling_it_loses_nothing() -> None:
    wire = Wire()
    transport = channel_on(wire)
    wire.room.clear()
    task = asyncio.create_task(transport.send(b"1"))
    assert await is_stuck(task)
    await stop(task)
    wire.room.set()
    await transport.send(b"2")
    assert wire.frames() == [(Opcode.TEXT, b"1"), (Opcode.TEXT, b"2")]


# Violations

UNMASKED = Frame(Opcode.TEXT, b"1").serialize(mask=False)


VIOLATIONS = [
    (text(b"x" * 1001), 1009),
    (text(b"x" * 1001)[:4], 1009),
    (text(b"x" * 600, fin=False) + text(b"x" * 401, opcode=Opcode.CONT), 1009),
    (text(b"1", opcode=Opcode.BINARY), 1003),
    (text(b"1", fin=False, opcode=Opcode.BINARY) + text(b"2", opcode=Opcode.CONT), 1003),
    (text(b"1", opcode=Opcode.BINARY) + text(b"2"), 1003),
    (text(b'"\xff"'), 1007),
    (text(b'"\xc3', fin=False) + text(b'"', opcode=Opcode.CONT), 1007),
    (UNMASKED, 1002),
    (b"\xff\xff\xff\xff", 1002),
    (text(b"1", opcode=Opcode.CONT), 1002),
    (text(b"1", fin=False) + text(b"2"), 1002),
    (text(b"1", fin=False, opcode=Opcode.TEXT) + text(b"", opcode=Opcode.CLOSE), 1002),
    (b"GET / HTTP/1.1\r\n\r\n", 1002),
]
"""Masks are random, so that they have no names."""


@pytest.mark.parametrize(("violation", "code"), VIOLATIONS, ids=range(len(VIOLATIONS)))
@tidy
async def test_a_violation_closes_the_connection_with_a_reason(violation: bytes, code: int) -> None:
    wire = Wire()
    transport = channel_on(wire)
    wire.put(text(b"0") + violation, text(b"9"))
    assert await transport.receive() == b"0"
    with pytest.raises(ConnectionLost):
        await transport.receive()
    assert close_codes(wire) == [code]
    with pytest.raises(ConnectionLost):
        await transport.receive()
    with pytest.raises(ConnectionLost):
        await transport.send(b"1")
    wire.put(None)
    await transport.aclose()
    assert wire.closed


@tidy
async def test_a_message_of_the_maximum_size_is_received() -> None:
    wire = Wire()
    transport = channel_on(wire)
    halves = text(b"x" * 600, fin=False) + text(b"x" * 400, opcode=Opcode.CONT)
    wire.put(text(b"x" * 1000) + halves)
    assert [await transport.receive() for _ in range(2)] == [b"x" * 1000] * 2


@tidy
async def test_input_of_a_failed_client_is_discarded_so_that_it_can_read_the_reason() -> None:
    wire, _ = Wire(), LoopClock()  # closing does not time out
    transport = channel_on(wire)
    wire.put(text(b"x" * 1001), b"more", b"and more")
    assert await received(transport) == []
    closing = asyncio.create_task(transport.aclose())
    assert await is_stuck(closing)
    assert not wire.closed
    wire.put(None)
    await closing
    assert wire.closed


@tidy
async def test_a_failed_client_that_never_stops_is_disconnected() -> None:
    wire = Wire()
    transport = channel_on(wire, WebSocketLimits(max_message=1, close_timeout=0.01))
    wire.put(text(b"22"))
    assert await received(transport) == []
    await transport.aclose()
    assert wire.closed


# Signs of life


@tidy
async def test_a_silent_client_is_pinged_and_disconnected_without_a_pong() -> None:
    wire = Wire()
    transport = channel_on(wire, HASTY)
    with pytest.raises(ConnectionLost, match="no pong in time"):
        await transport.receive()
    frames = wire.frames()
    assert [opcode for opcode, _ in frames] == [Opcode.PING, Opcode.CLOSE]
    assert frames[1][1][:2] == struct.pack("!H", 1011)
    await transport.aclose()
    assert wire.closed


@tidy
async def test_a_client_that_answers_pings_is_kept() -> None:
    wire = Wire()
    transport = channel_on(wire, WebSocketLimits(ping_interval=0.001))
    task = asyncio.create_task(transport.receive())
    for _ in range(3):
        async with hang_guard():
            while not wire.sent:
                await asyncio.sleep(0)
        assert wire.frames() == [(Opcode.PING, b"")]
        wire.put(text(b"", opcode=Opcode.PONG))
    wire.put(text(b"1"))
    assert await task == b"1"


@tidy
async def test_a_silent_client_that_does_not_read_is_disconnected() -> None:
    wire = Wire()
    wire.room.clear()
    transport = channel_on(wire, HASTY)
    with pytest.raises(ConnectionLost, match="no pong in time"):
        await transport.receive()
    await transport.aclose()
    assert wire.closed


@tidy
async def test_a_lost_connection_is_not_pinged() -> None:
    wire, clock = Wire(), LoopClock()
    transport = channel_on(wire)
    receiving = asyncio.create_task(transport.receive())
    await settle()
    wire.closed = 1  # without waking the receiver
    await clock.advance(WebSocketLimits().ping_interval)
    assert await receiving is None


@tidy
async def test_a_client_is_not_pinged_without_a_receiver() -> None:
    wire, clock = Wire(), LoopClock()
    transport = channel_on(wire)
    await clock.advance(3600.0)
    wire.put(text(b"1"))
    assert await transport.receive() == b"1"
    assert wire.frames() == []


# The end


@tidy
async def test_a_close_frame_is_answered() -> None:
    wire = Wire()
    transport = channel_on(wire)
    wire.put(text(b"1") + text(struct.pack("!H", 1000), opcode=Opcode.CLOSE) + text(b"2"))
    assert await transport.receive() == b"1"
    assert await transport.receive() is None
    assert await transport.receive() is None
    assert wire.frames() == [close(1000)]
    with pytest.raises(ConnectionLost):
        await transport.send(b"3")
    await transport.aclose()
    assert wire.closed
    assert wire.frames() == []


@tidy
async def test_a_disconnect_ends_the_websocket() -> None:
    wire = Wire()
    transport = channel_on(wire)
    wire.put(text(b"1"), text(b"22")[:5], None)
    assert [await transport.receive(), await transport.receive()] == [b"1", None]
    with pytest.raises(ConnectionLost):
        await transport.send(b"3")
    await transport.aclose()


@tidy
async def test_closing_performs_the_closing_handshake() -> None:
    wire = Wire()
    transport = channel_on(wire)
    wire.put(text(b"1") + text(b"2"))
    assert await transport.receive() == b"1"
    closing = [asyncio.create_task(transport.aclose()) for _ in range(2)]
    for task in closing:
        assert await is_stuck(task)
    assert wire.frames() == [close(1001)]
    assert not wire.closed
    wire.put(text(b"3"), text(struct.pack("!H", 1001), opcode=Opcode.CLOSE))
    await asyncio.gather(*closing)
    assert wire.closed
    assert await transport.receive() is None
    with pytest.raises(ConnectionLost):
        await transport.send(b"4")


@pytest.mark.parametrize("reading", [True, False])
@tidy
async def test_closing_is_bounded_in_time(reading: bool) -> None:
    wire = Wire()
    transport = channel_on(wire, WebSocketLimits(close_timeout=0.01))
    if not reading:
        wire.room.clear()
    waiting = asyncio.create_task(transport.receive())
    await settle()
    await transport.aclose()
    await transport.aclose()
    assert await waiting is None
    assert wire.closed


@tidy
async def test_cancelling_close_disconnects_at_once() -> None:
    wire, _ = Wire(), LoopClock()  # closing does not time out
    transport = channel_on(wire)
    closing = asyncio.create_task(transport.aclose())
    assert await is_stuck(closing)
    await stop(closing)
    assert wire.closed
    assert await transport.receive() is None


@tidy
async def test_a_lost_connection_can_be_closed_without_an_error() -> None:
    wire = Wire()
    transport = channel_on(wire)
    await wire.aclose()
    with pytest.raises(ConnectionLost):
        await transport.send(b"1")
    assert await transport.receive() is None
    await transport.aclose()
