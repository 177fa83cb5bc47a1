"""Payloads over WebSockets: hand-made frames, over a wire in memory."""

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

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.websocket import (
    WebSocketChannel,
    WebSocketLimits,
)

HASTY = WebSocketLimits(ping_after=0.01, pong_within=0.01, close_within=0.01)


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
        """Take what was sent, as a client sees it."""
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


def channel_on(wire: Wire, limits: WebSocketLimits | None = None) -> WebSocketChannel:
    return WebSocketChannel(wire, limits or WebSocketLimits(max_message=1000))


async def received(channel: WebSocketChannel) -> list[bytes]:
    """Receive until nothing more comes, for whichever reason."""
    found: list[bytes] = []
    try:
        while (payload := await channel.receive()) is not None:
            found.append(payload)
    except ConnectionLost:
        pass
    return found


# Frames


@tidy
async def test_a_text_message_is_a_payload_both_ways() -> None:
    wire = Wire()
    channel = channel_on(wire)
    wire.put(text(b'{"a":1}') + text('"ä"'.encode()))
    assert await channel.receive() == b'{"a":1}'
    assert await channel.receive() == '"ä"'.encode()
    await channel.send(b"[]")
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
def test_how_messages_are_cut_changes_nothing(
    conversation: tuple[list[bytes], list[bytes], list[bytes]],
) -> None:
    async def run() -> None:
        messages, pings, pieces = conversation
        wire = Wire()
        wire.put(*pieces, None)
        assert await received(channel_on(wire)) == messages
        assert wire.frames() == [(Opcode.PONG, ping) for ping in pings]

    asyncio.run(run())


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(garbage: bytes) -> None:
    async def run() -> None:
        wire = Wire()
        wire.put(text(b"1"), garbage, None)
        channel = channel_on(wire)
        assert (await received(channel))[0] == b"1"
        await channel.aclose()
        assert wire.closed

    asyncio.run(run())


@tidy
async def test_a_flood_of_small_frames_does_not_keep_others_from_going_on() -> None:
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
async def test_nothing_is_read_while_nobody_receives() -> None:
    wire = Wire()
    channel = channel_on(wire)
    wire.put(text(b"1"), text(b"2"), text(b"3"))
    assert await channel.receive() == b"1"
    await settle()
    assert wire.reads == 1


@tidy
async def test_many_who_receive_are_all_served() -> None:
    wire = Wire()
    channel = channel_on(wire)
    tasks = [asyncio.create_task(channel.receive()) for _ in range(3)]
    await settle()
    wire.put(text(b"1") + text(b"2"), text(b"3"))
    assert sorted(filter(None, await asyncio.gather(*tasks))) == [b"1", b"2", b"3"]


@tidy
async def test_cancelling_receive_loses_nothing() -> None:
    wire = Wire()
    channel = channel_on(wire)
    wire.room.clear()
    wire.put(text(b"", opcode=Opcode.PING) + text(b"1"))
    task = asyncio.create_task(channel.receive())
    assert await is_stuck(task)  # its pong is not read
    await stop(task)
    assert await channel.receive() == b"1"


@tidy
async def test_send_waits_while_the_client_is_behind_and_cancelling_it_loses_nothing() -> None:
    wire = Wire()
    channel = channel_on(wire)
    wire.room.clear()
    task = asyncio.create_task(channel.send(b"1"))
    assert await is_stuck(task)
    await stop(task)
    wire.room.set()
    await channel.send(b"2")
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
async def test_a_violation_ends_the_connection_and_says_why(violation: bytes, code: int) -> None:
    wire = Wire()
    channel = channel_on(wire)
    wire.put(text(b"0") + violation, text(b"9"))
    assert await channel.receive() == b"0"
    with pytest.raises(ConnectionLost):
        await channel.receive()
    assert close_codes(wire) == [code]
    with pytest.raises(ConnectionLost):
        await channel.receive()
    with pytest.raises(ConnectionLost):
        await channel.send(b"1")
    wire.put(None)
    await channel.aclose()
    assert wire.closed


@tidy
async def test_a_message_as_long_as_allowed_is_received() -> None:
    wire = Wire()
    channel = channel_on(wire)
    halves = text(b"x" * 600, fin=False) + text(b"x" * 400, opcode=Opcode.CONT)
    wire.put(text(b"x" * 1000) + halves)
    assert [await channel.receive() for _ in range(2)] == [b"x" * 1000] * 2


@tidy
async def test_what_a_refused_client_still_sends_is_read_so_that_it_can_read_why() -> None:
    wire = Wire()
    channel = channel_on(wire)
    wire.put(text(b"x" * 1001), b"more", b"and more")
    assert await received(channel) == []
    closing = asyncio.create_task(channel.aclose())
    assert await is_stuck(closing)
    assert not wire.closed
    wire.put(None)
    await closing
    assert wire.closed


@tidy
async def test_a_refused_client_that_never_ends_is_disconnected() -> None:
    wire = Wire()
    channel = channel_on(wire, WebSocketLimits(max_message=1, close_within=0.01))
    wire.put(text(b"22"))
    assert await received(channel) == []
    await channel.aclose()
    assert wire.closed


# Signs of life


@tidy
async def test_a_silent_client_is_asked_and_given_up_if_it_does_not_answer() -> None:
    wire = Wire()
    channel = channel_on(wire, HASTY)
    with pytest.raises(ConnectionLost, match="no pong in time"):
        await channel.receive()
    frames = wire.frames()
    assert [opcode for opcode, _ in frames] == [Opcode.PING, Opcode.CLOSE]
    assert frames[1][1][:2] == struct.pack("!H", 1011)
    await channel.aclose()
    assert wire.closed


@tidy
async def test_a_client_that_answers_is_asked_again_and_kept() -> None:
    wire = Wire()
    channel = channel_on(wire, WebSocketLimits(ping_after=0.001))
    task = asyncio.create_task(channel.receive())
    for _ in range(3):
        async with asyncio.timeout(5):
            while not wire.sent:
                await asyncio.sleep(0)
        assert wire.frames() == [(Opcode.PING, b"")]
        wire.put(text(b"", opcode=Opcode.PONG))
    wire.put(text(b"1"))
    assert await task == b"1"


@tidy
async def test_a_silent_client_that_does_not_read_either_is_given_up() -> None:
    wire = Wire()
    wire.room.clear()
    channel = channel_on(wire, HASTY)
    with pytest.raises(ConnectionLost, match="no pong in time"):
        await channel.receive()
    await channel.aclose()
    assert wire.closed


@tidy
async def test_a_connection_that_is_lost_is_not_asked() -> None:
    wire = Wire()
    channel = channel_on(wire, WebSocketLimits(ping_after=0.01))
    receiving = asyncio.create_task(channel.receive())
    await settle()
    wire.closed = 1  # and nobody wakes who receives
    assert await receiving is None


@tidy
async def test_a_client_is_not_suspected_while_nobody_receives() -> None:
    wire = Wire()
    channel = channel_on(wire, HASTY)
    late = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, late.set)
    await late.wait()
    wire.put(text(b"1"))
    assert await channel.receive() == b"1"
    assert wire.frames() == []


# The end


@tidy
async def test_a_client_that_says_goodbye_is_answered() -> None:
    wire = Wire()
    channel = channel_on(wire)
    wire.put(text(b"1") + text(struct.pack("!H", 1000), opcode=Opcode.CLOSE) + text(b"2"))
    assert await channel.receive() == b"1"
    assert await channel.receive() is None
    assert await channel.receive() is None
    assert wire.frames() == [close(1000)]
    with pytest.raises(ConnectionLost):
        await channel.send(b"3")
    await channel.aclose()
    assert wire.closed
    assert wire.frames() == []


@tidy
async def test_a_client_that_just_goes_ends_it() -> None:
    wire = Wire()
    channel = channel_on(wire)
    wire.put(text(b"1"), text(b"22")[:5], None)
    assert [await channel.receive(), await channel.receive()] == [b"1", None]
    with pytest.raises(ConnectionLost):
        await channel.send(b"3")
    await channel.aclose()


@tidy
async def test_closing_says_goodbye_and_waits_for_the_client_to_do_so() -> None:
    wire = Wire()
    channel = channel_on(wire)
    wire.put(text(b"1") + text(b"2"))
    assert await channel.receive() == b"1"
    closing = [asyncio.create_task(channel.aclose()) for _ in range(2)]
    for task in closing:
        assert await is_stuck(task)
    assert wire.frames() == [close(1001)]
    assert not wire.closed
    wire.put(text(b"3"), text(struct.pack("!H", 1001), opcode=Opcode.CLOSE))
    await asyncio.gather(*closing)
    assert wire.closed
    assert await channel.receive() is None
    with pytest.raises(ConnectionLost):
        await channel.send(b"4")


@pytest.mark.parametrize("reading", [True, False])
@tidy
async def test_closing_does_not_wait_for_ever(reading: bool) -> None:
    wire = Wire()
    channel = channel_on(wire, WebSocketLimits(close_within=0.01))
    if not reading:
        wire.room.clear()
    waiting = asyncio.create_task(channel.receive())
    await settle()
    await channel.aclose()
    await channel.aclose()
    assert await waiting is None
    assert wire.closed


@tidy
async def test_whoever_cancels_closing_disconnects_at_once() -> None:
    wire = Wire()
    channel = channel_on(wire)
    closing = asyncio.create_task(channel.aclose())
    assert await is_stuck(closing)
    await stop(closing)
    assert wire.closed
    assert await channel.receive() is None


@tidy
async def test_a_lost_connection_is_the_end_and_not_an_error_to_close() -> None:
    wire = Wire()
    channel = channel_on(wire)
    await wire.aclose()
    with pytest.raises(ConnectionLost):
        await channel.send(b"1")
    assert await channel.receive() is None
    await channel.aclose()
