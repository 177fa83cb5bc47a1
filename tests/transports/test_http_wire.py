"""One connection, byte by byte: what counts as an answer, and when a wire may be asked again."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.faulty import ok
from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.departures import Departures
from trunkline.transports.http_response import HttpResponse
from trunkline.transports.http_wire import ClientLimits, Owner, Wire

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LOOP = asyncio.new_event_loop()
LOOP.close()
LIMITS = ClientLimits(max_head=1000, max_headers=10, max_body=5000, head_timeout=7, idle_timeout=9)


class Transport(asyncio.Transport):
    """Takes in all that is written; nothing is behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.unsent = 0
        self.closing = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written.append(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.written += list_of_data

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        class Socket:
            def setsockopt(self, *option: int) -> None: ...

        return Socket()


class Clock:
    """As much of a loop as a wire needs."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def create_future(self) -> "asyncio.Future[None]":
        return asyncio.Future(loop=LOOP)


class Bench:
    """A wire, and all that it does to others."""

    def __init__(self, limits: ClientLimits = LIMITS) -> None:
        self.clock = Clock()
        self.freed: list[Wire] = []
        self.gone: list[Wire] = []
        self.wires: list[Wire] = []
        loop = cast("asyncio.AbstractEventLoop", self.clock)
        self.departures = Departures(loop, lambda: len(self.wires) - 1)
        free, gone = self.freed.append, self.gone.append
        owner = Owner("h:1", loop, limits, free, gone, self.departures)
        self.wire = Wire(owner)
        self.wires.append(self.wire)
        self.transport = Transport()
        self.wire.connection_made(self.transport)

    def ask(self, *, bodiless: bool = False) -> HttpResponse:
        response = HttpResponse(self.wire)
        if bodiless:
            self.wire.expect_no_body()
        self.wire.ask(b"HEAD", b"BODY", response)
        return response

    def answer(self, *pieces: bytes, bodiless: bool = False) -> HttpResponse:
        response = self.ask(bodiless=bodiless)
        for piece in pieces:
            if not self.transport.closing:  # as a transport does
                self.wire.data_received(piece)
        return response

    @property
    def is_reusable(self) -> bool:
        assert self.transport.closing != bool(self.freed)
        return not self.transport.closing


def run(coroutine: Any) -> Any:
    """Return what a coroutine returns that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    pytest.fail("it waits")


def body(response: HttpResponse) -> bytes:
    return run(response.read())


def reason(response: HttpResponse) -> str:
    if response.status:
        with pytest.raises(ConnectionLost) as failure:
            body(response)
        return str(failure.value)
    return str(response.failed())


def test_an_answer_is_there_when_its_last_byte_is() -> None:
    bench = Bench()
    response = bench.answer(ok(b"hi", b"Content-Type: text/plain  ", b"X: 1", b"x: 2"))
    assert bench.transport.written == [b"HEADBODY"]
    assert response.status == 200
    assert response.headers == {b"content-type": b"text/plain", b"x": b"1", b"content-length": b"2"}
    assert body(response) == b"hi"
    assert body(response) == b""
    assert run(response.receive()) is None
    assert bench.is_reusable
    assert bench.wire.is_free()


def test_a_large_request_is_not_copied() -> None:
    bench = Bench()
    large = bytes(100_000)
    bench.wire.ask(b"HEAD", large, HttpResponse(bench.wire))
    assert bench.transport.written[1] is large


@pytest.mark.parametrize(
    ("raw", "status", "expected"),
    [
        (ok(), 200, b""),
        (ok(b"no", status=b"404 Not Found"), 404, b"no"),
        (ok(b"", b"location: http://elsewhere/", status=b"307 R"), 307, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"1"), 200, b"1"),
        (b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\nHTTP/1.1 104 A\r\n\r\n" + ok(b"2"), 200, b"2"),
        (CHUNKED + b"1\r\na\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", 200, b"a0123456789"),
        (CHUNKED + b"1\r\na\r\n0\r\nX: trailer\r\n\r\n", 200, b"a"),
        (ok(b"h2", b"connection: upgrade", b"upgrade: h2c"), 200, b"h2"),
        (ok(b"i", b"content-encoding: Identity"), 200, b"i"),
        (b"HTTP/1.1 200\r\ncontent-length: 1\r\n\r\nx", 200, b"x"),
    ],
)
def test_an_answer_ends_where_it_says_and_the_wire_can_be_asked_again(
    raw: bytes, status: int, expected: bytes
) -> None:
    for pieces in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        bench = Bench()
        response = bench.answer(*pieces)
        assert response.status == status
        assert b"x" not in response.headers
        assert b"link" not in response.headers
        assert body(response) == expected
        assert bench.is_reusable
        assert body(bench.answer(ok(b"next"))) == b"next"


@pytest.mark.parametrize(
    "raw",
    [
        ok(b"x", b"connection: close"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
        ok(b"x") + b"y",
        ok(b"x") + ok(b"y"),
        ok(b"x") + b"HTTP/1.1 200 OK\r\ncontent-le",
        ok(b"x", b"connection: close") + ok(b"y"),
        CHUNKED + b"1\r\nx\r\n0\r\n\r\nHTTP",
    ],
)
def test_a_wire_that_is_to_be_closed_or_holds_more_than_the_answer_is_not_used_again(
    raw: bytes,
) -> None:
    bench = Bench()
    assert body(bench.answer(raw)) == b"x"
    assert not bench.is_reusable


def test_a_surplus_answer_that_comes_later_ends_the_wire_and_answers_nobody() -> None:
    bench = Bench()
    assert body(bench.answer(ok(b"mine"))) == b"mine"
    assert bench.wire.is_free()
    bench.wire.data_received(ok(b"of nobody"))
    assert bench.transport.closing
    assert not bench.wire.is_free()


def test_what_a_server_says_before_it_is_asked_ends_the_wire() -> None:
    bench = Bench()
    bench.wire.data_received(ok(b"early"))
    assert not bench.wire.is_free()


def test_an_answer_before_the_request_has_left_is_an_answer_and_the_last_one() -> None:
    bench = Bench()
    bench.transport.unsent = 1
    assert body(bench.answer(ok(b"too large", status=b"413 Too Large"))) == b"too large"
    assert not bench.is_reusable


@pytest.mark.parametrize("head", [ok(b"12345"), ok(), CHUNKED, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_the_answer_to_a_bodiless_request_is_its_head(head: bytes) -> None:
    bench = Bench()
    response = bench.answer(b"HTTP/1.1 100 Continue\r\n\r\n" + head, bodiless=True)
    assert response.status == 200
    assert body(response) == b""
    assert not bench.is_reusable


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "expected HTTP/1.1: "),
        (b"\x16\x03\x01", "expected HTTP/1.1: "),
        (b"HTTP/1.1 200 OK\nx: y\n\n", "expected HTTP/1.1: "),
        (b"HTTP/1.1 000 OK\r\n\r\n", "expected a status from 200 on, got 0"),
        (b"HTTP/1.1 101 S\r\n\r\n", "expected a status from 200 on, got 101"),
        (
            b"HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
            "expected a status from 200 on, got 101",
        ),
        (ok(b"x", b"content-length: 1"), "expected HTTP/1.1: Duplicate "),
        (ok(b"x", b"transfer-encoding: chunked"), "expected HTTP/1.1: Content-Length"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "expected HTTP/1.1: Inv"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n", "expected HTTP/1.1: Inv"),
        (b"HTTP/1.1 200 OK\r\nx : y\r\n\r\n", "expected HTTP/1.1: Inv"),
        (ok(b"x", b"content-encoding: gzip"), "expected content-encoding b'identity', got b'gzip'"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "expected transfer-encoding b'chunked', got b'gzip, chunked'",
        ),
        (ok(b"", b"x: " + b"x" * 1000), "expected a head of at most 1000 bytes, got 1024"),
        (
            b"HTTP/1.1 200 OK\r\nx: " + b"x" * 1000,
            "expected at most 1000 bytes before the body",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 50, "expected at most 1000 bytes before the body"),
        (ok(b"", *[b"x%d: y" % i for i in range(10)]), "expected at most 10 headers, got 11"),
    ],
)
def test_what_is_no_answer_for_us_is_refused(raw: bytes, expected: str) -> None:
    for pieces in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        bench = Bench()
        response = bench.answer(*pieces)
        assert not response.status
        if pieces == [raw] or len(raw) < 1000:
            assert reason(response).startswith(f"h:1: {expected}")
        else:
            assert "at most 1000 bytes" in reason(response)
        assert not bench.is_reusable


def test_a_large_body_does_not_make_its_head_large() -> None:
    bench = Bench()
    assert body(bench.answer(ok(b"x" * 4000))) == b"x" * 4000


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (CHUNKED + b"ZZ\r\n", "expected HTTP/1.1: Invalid character in chunk size"),
        (CHUNKED + b"FFFFFFFFFFFFFFFFFF\r\n", "expected HTTP/1.1: Chunk size overf"),
        (CHUNKED + b"1\r\nxy", "expected HTTP/1.1: "),
        (CHUNKED + b"1;" + b"x" * 1001, "expected at most 1000 bytes before the body"),
        (CHUNKED + b"0\r\nx: " + b"x" * 1001, "expected at most 1000 bytes before the body"),
        (CHUNKED + b"1\r\na\r\n0\r\n" + b"x: y\r\n" * 200, "expected at most 1000 bytes before th"),
    ],
)
def test_a_body_that_breaks_its_form_fails_whoever_reads_it(raw: bytes, expected: str) -> None:
    bench = Bench()
    response = bench.answer(*[raw[i : i + 1] for i in range(len(raw))])
    assert response.status == 200
    assert reason(response).startswith(f"h:1: {expected}")
    assert not bench.is_reusable


@pytest.mark.parametrize(
    ("raw", "exc", "expected"),
    [
        (b"", None, "the connection was closed before the answer"),
        (b"", ConnectionResetError(104, ""), "connection reset by peer before the answer"),
        (b"", RuntimeError("x"), "the connection was closed before the answer"),
        (b"HTTP/1.1 200 OK\r\nx: y", None, "the connection was closed before the answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", None, "the connection was closed before the answer"),
        (ok(b"1234")[:-1], None, "the connection was closed after 3 of 4 bytes of the body"),
        (CHUNKED + b"5\r\n123", None, "the connection was closed before the end of the body"),
        (CHUNKED + b"3\r\n123\r\n", None, "the connection was closed before the end of the body"),
        (
            CHUNKED + b"3\r\n123\r\n0\r\n",
            None,
            "the connection was closed before the end of the body",
        ),
        (
            CHUNKED[:-2] + b"transfer-encoding: identity\r\n\r\nx",
            None,
            "the connection was closed before the end of the body",
        ),
        (
            b"HTTP/1.1 200 OK\r\n\r\n123",
            ConnectionResetError(104, ""),
            "connection reset by peer before the end of the body",
        ),
    ],
)
def test_a_connection_that_ends_too_early_fails_the_answer(
    raw: bytes, exc: Exception | None, expected: str
) -> None:
    bench = Bench()
    response = bench.answer(raw)
    bench.wire.connection_lost(exc)
    assert reason(response) == f"h:1: {expected}"
    assert bench.gone == [bench.wire]
    assert not bench.freed


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_answer_without_a_length_ends_with_the_connection(version: bytes) -> None:
    bench = Bench()
    response = bench.answer(b"HTTP/" + version + b" 200 OK\r\n\r\nto the", b" end")
    bench.wire.eof_received()
    bench.wire.connection_lost(None)
    assert body(response) == b"to the end"
    assert not bench.freed


def test_only_a_kept_wire_that_is_closed_before_it_has_heard_anything_is_stale() -> None:
    for before, begun, stale in (
        ([CHUNKED + b"0\r\n", b"\r\n"], b"", True),
        ([CHUNKED + b"0\r\n", b"\r\n"], b"H", False),
        ([], b"", False),
    ):
        bench = Bench()
        if before:
            bench.answer(*before)
        bench.answer(begun)
        bench.wire.connection_lost(None)
        assert bench.wire.stale == stale


def test_a_wire_that_we_gave_up_is_not_stale() -> None:
    bench = Bench()
    bench.answer(ok())
    bench.ask()
    bench.wire.expire()
    bench.wire.connection_lost(None)
    assert not bench.wire.stale


def test_a_request_among_others_leaves_with_them_unless_nobody_wants_it_any_more() -> None:
    bench = Bench()
    bench.wires.append(Bench().wire)  # which has been asked as well
    response = bench.ask()
    assert bench.transport.written == []
    bench.departures.flush()
    assert bench.transport.written == [b"HEADBODY"]
    bench.wire.data_received(ok())
    assert response.status == 200
    given_up = bench.ask()
    given_up.close()
    bench.departures.flush()
    assert bench.transport.written == [b"HEADBODY"]
    assert bench.transport.closing


def test_what_comes_before_the_request_has_left_is_no_answer_to_it() -> None:
    bench = Bench()
    bench.answer(ok())
    bench.freed.clear()
    bench.wires.append(Bench().wire)  # which has been asked as well
    response = bench.ask()
    bench.wire.data_received(ok(b"somebody else's"))
    assert not response.status
    assert "before it was asked" in str(response.failed())
    assert not bench.is_reusable
    assert bench.wire.stale
    bench.departures.flush()
    assert bench.transport.written == [b"HEADBODY"]  # the first one alone


@given(st.lists(st.sampled_from([1, 2, 3, 7, 40]), min_size=1, max_size=8), st.booleans())
def test_however_the_bytes_are_cut_it_is_the_same_answer(sizes: list[int], early: bool) -> None:
    raw = (
        b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"3\r\nabc\r\n4;x\r\ndefg\r\n0\r\nt: u\r\n\r\n"
    )
    bench = Bench()
    response = bench.ask()
    found, step = b"", 0
    while raw:
        size = sizes[step % len(sizes)]
        bench.wire.data_received(raw[:size])
        raw, step = raw[size:], step + 1
        if early and response.status and response.received > len(found):
            found += run(response.receive()) or b""
    assert found + body(response) == b"abcdefg"
    assert response.headers == {b"transfer-encoding": b"chunked"}
    assert bench.is_reusable


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([ok(b"hello"), ok(b"x", b"connection: close"), CHUNKED, b"0\r\n\r\n"]),
            st.sampled_from([b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/1.1 ", b"200 OK\r\n", b"\r\n"]),
        ),
        max_size=6,
    )
)
def test_whatever_comes_either_an_answer_has_ended_or_the_connection_has(
    pieces: list[bytes],
) -> None:
    bench = Bench()
    response = bench.answer(*pieces)
    bench.wire.connection_lost(None)
    try:
        body(response) if response.status else reason(response)
    except ConnectionLost as why:
        assert str(why).startswith("h:1: ")
    if bench.freed and not bench.transport.closing:
        assert response.status
        assert body(response) == b""
