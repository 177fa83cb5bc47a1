"""One connection and random events: no request is lost or handled out of order."""

import asyncio
import math
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.test_connection import connection
from trunkline.http.exchange import HttpExchange
from trunkline.http.states import Activity, InputFlow, OutputFlow, Timeout, connection_state
from trunkline.write_coalescer import WriteCoalescer

POST = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
ORDINARY = {
    "post": POST,
    "get": b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n",
    "traced": POST.replace(b"Host", b"B3: 1\r\nHost"),
    "expecting": POST.replace(b"Host", b"Expect: 100-continue\r\nHost"),
    "chunked": POST.replace(b"Content-Length: 2\r\n\r\n{}", CHUNKED),
    "large": POST.replace(b" 2", b" 70000").replace(b"{}", bytes(70_000)),
}
OTHERS = {
    "last": b"GET /%d HTTP/1.0\r\n\r\n",
    "malformed": b"GET /%d\r\n\r\n",
    "offering": b"GET /%d HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
}
STEPS = ["send", "cut", "respond", "respond", "stream", "pause", "resume", "turn", "check"]
ENDS = ["eof", "drain", "abort", "lost", "expire", "upgrade"]


class Scene:
    """A connection, a client that sends requests, and a handler that the test controls."""

    def __init__(self, requests: Sequence[bytes], *, at_once: bool = False) -> None:
        self.coalescer = WriteCoalescer(asyncio.get_running_loop())
        self.server, self.transport = connection(self.handle, self.coalescer)
        self.unsent = [one.replace(b"%d", b"%d" % at) for at, one in enumerate(requests)]
        self.at_once = at_once
        self.running: list[HttpExchange] = []
        self.handled: list[str] = []

    def handle(self, exchange: HttpExchange) -> None:
        assert not self.running  # one at a time, and none for a client that does not read
        assert self.server.state.is_writable
        self.handled.append(exchange.request.path)
        self.running.append(exchange)
        if self.at_once:
            self.respond()

    def respond(self, step: str = "respond") -> None:
        if self.running:
            exchange = self.running.pop()
            headers = ((b"x-path", exchange.request.path.encode()),)
            if step == "respond":
                exchange.respond(200, headers, b"{}")
            else:
                exchange.begin(200, headers)
                exchange.finish()

    def send(self, size: int) -> None:
        """Send the rest of a request and `size` further bytes."""
        if self.transport.reading and not self.transport.closing and self.unsent:
            sent, rest = self.unsent[0], b"".join(self.unsent[1:])
            self.unsent = [rest[size:]] if size else self.unsent[1:]
            self.server.data_received(sent + rest[:size])

    def cut(self, size: int) -> None:
        """Send at most `size` bytes."""
        if self.transport.reading and not self.transport.closing and self.unsent:
            piece, self.unsent[0] = self.unsent[0][:size], self.unsent[0][size:]
            if piece:
                self.server.data_received(piece)
            self.unsent = [one for one in self.unsent if one]

    async def play(self, step: str, size: int) -> None:
        server, state = self.server, self.server.state
        match step:
            case "send":
                self.send(size)
            case "cut":
                self.cut(size)
            case "respond" | "stream":
                self.respond(step)
            case "pause" if state.is_writable:
                server.pause_writing()
            case "resume" if not state.is_writable:
                server.resume_writing()
            case "turn":
                await asyncio.sleep(0)
            case "check" if state.timeout is Timeout.NONE:
                server.expire(server.deadline)
                assert server.deadline == math.inf
            case _:
                pass

    def end(self, step: str) -> None:
        """Trigger one of the events that can end a connection."""
        server, state = self.server, self.server.state
        match step:
            case "eof" if self.transport.reading and not state.has_eof:
                self.unsent = []
                if not server.eof_received():
                    self.transport.close()  # as event loops do
            case "drain":
                server.drain()
            case "abort":
                server.abort()
            case "expire":
                server.expire(server.deadline)
            case "upgrade" if self.running and state.activity is Activity.HANDLING:
                try:
                    self.running[0].upgrade()
                except RuntimeError:  # it offers none
                    return
                self.running.clear()
            case _:
                pass

    def compare(self) -> None:
        """Compare the observed behaviour with the state of the connection."""
        state = self.server.state
        running = {Activity.HANDLING_SINGLE, Activity.HANDLING}
        assert (state.activity in running) == bool(self.running) or state.is_ending
        assert self.transport.reading == (state.input is not InputFlow.PAUSED) or state.has_eof
        assert self.coalescer.pending_writers == len(self.running)
        assert self.server.deadline < math.inf or state.timeout is Timeout.NONE
        is_closing = state.activity in {Activity.CLOSING, Activity.CLOSED}
        assert self.transport.closing == is_closing or state.has_eof
        assert self.transport.eof_written or state.activity is not Activity.LINGERING

    def answered(self) -> list[str]:
        self.coalescer.flush()
        return re.findall(r"x-path: (/\d+)\r\n", b"".join(self.transport.written).decode())


SIZES = st.sampled_from([0, 0, 1, 40, 1000, 10_000, 65_536])


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(list(ORDINARY)), min_size=1, max_size=8),
    st.sampled_from([1, 1, 1, 30]),  # more than are handled in one turn
    st.lists(st.tuples(st.sampled_from(STEPS), SIZES), max_size=40),
    st.booleans(),
)
def test_all_requests_are_answered_in_order(
    kinds: list[str], times: int, steps: list[tuple[str, int]], at_once: bool
) -> None:
    async def scenario() -> None:
        scene = Scene([ORDINARY[kind] for kind in kinds * times], at_once=at_once)
        for step, size in steps:
            await scene.play(step, size)
            scene.compare()
        await scene.play("resume", 0)
        for _ in range(3 * len(kinds) * times):
            scene.cut(65_536)
            scene.cut(65_536)
            scene.respond()
            await asyncio.sleep(0)
            scene.compare()
        assert scene.handled == [f"/{at}" for at in range(len(kinds) * times)]
        assert scene.answered() == scene.handled
        idle = connection_state(Activity.IDLE, InputFlow.OPEN, OutputFlow.OPEN)
        assert scene.server.state is idle

    asyncio.run(scenario())


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([*ORDINARY, *OTHERS]), max_size=8),
    st.lists(st.tuples(st.sampled_from([*STEPS, *STEPS, *ENDS]), SIZES), max_size=30),
    st.booleans(),
    st.booleans(),
)
def test_a_connection_may_end_at_any_time(
    kinds: list[str], steps: list[tuple[str, int]], at_once: bool, half_closes: bool
) -> None:
    async def scenario() -> None:
        scene = Scene([(ORDINARY | OTHERS)[kind] for kind in kinds], at_once=at_once)
        scene.transport.half_closes = half_closes
        for step, size in steps:
            if scene.transport.closing or step == "lost":
                break
            if step in ENDS:
                scene.end(step)
            else:
                await scene.play(step, size)
            scene.compare()
        scene.transport.close()
        scene.server.connection_lost(None)
        scene.respond()
        await asyncio.sleep(0)
        assert scene.server.state.activity is Activity.CLOSED
        assert scene.server.state.timeout is Timeout.NONE
        assert scene.coalescer.pending_writers == 0
        assert scene.handled == [f"/{at}" for at in range(len(scene.handled))]
        assert scene.answered() == scene.handled[: len(scene.answered())]

    asyncio.run(scenario())


@pytest.mark.parametrize("sent", [0, 10, len(POST)])
async def test_draining_ends_after_the_request_that_has_begun(sent: int) -> None:
    scene = Scene([POST])
    scene.cut(sent)
    scene.server.drain()
    assert scene.transport.closing == (not sent)
    scene.send(0)
    scene.respond()
    assert scene.transport.closing
    assert b"".join(scene.transport.written).count(b"connection: close\r\n") == bool(sent)


async def test_draining_drops_requests_that_wait_for_their_turn() -> None:
    scene = Scene([POST] * 100, at_once=True)
    scene.send(65_536)
    assert scene.server.state.activity is Activity.QUEUED
    scene.server.drain()
    assert scene.transport.closing
    await asyncio.sleep(0)
    assert scene.answered() == scene.handled == [f"/{at}" for at in range(64)]


async def test_draining_a_closing_connection_changes_nothing() -> None:
    scene = Scene([POST])
    scene.send(0)
    scene.server.abort()
    scene.server.drain()
    assert scene.server.state.activity is Activity.CLOSING
    scene.server.connection_lost(None)
    assert scene.server.state.activity is Activity.CLOSED
