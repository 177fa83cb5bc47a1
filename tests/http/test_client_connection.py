"""One client connection, byte by byte, without a socket or a clock."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.scripted_server import ok
from trunkline.http.client_connection import (
    ClientConnection,
    ClientLimits,
    HttpResponse,
    PoolContext,
    ResponseHead,
)
from trunkline.jsonrpc import ConnectionLost
from trunkline.write_coalescer import WriteCoalescer

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LOOP = asyncio.new_event_loop()
LOOP.close()
LIMITS = ClientLimits(max_head=1000, max_headers=10, max_body=5000, head_timeout=7, idle_timeout=9)


class FakeTransport(asyncio.Transport):
    """A transport that records what is written."""

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


class FakeLoop:
    """The part of an event loop that a connection needs."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def create_future(self) -> "asyncio.Future[None]":
        return asyncio.Future(loop=LOOP)


class ConnectionBench:
    """A connection and a record of its callbacks."""

    def __init__(self, limits: ClientLimits = LIMITS) -> None:
        self.clock = FakeLoop()
        self.freed: list[ClientConnection] = []
        self.gone: list[ClientConnection] = []
        self.connections: list[ClientConnection] = []
        loop = cast("asyncio.AbstractEventLoop", self.clock)
        self.write_coalescer = WriteCoalescer(loop, lambda: len(self.connections) - 1)
        free, gone = self.freed.append, self.gone.append
        owner = PoolContext("h:1", loop, limits, free, gone, self.write_coalescer)
        self.connection = ClientConnection(owner)
        self.connections.append(self.connection)
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)

    def ask(self, *, bodiless: bool = False) -> HttpResponse:
        response = HttpResponse(self.connection)
        if bodiless:
            self.connection.expect_no_body()
        self.connection.send(b"HEAD", b"BODY", response)
        return response

    def answer(self, *pieces: bytes, bodiless: bool = False) -> HttpResponse:
        response = self.ask(bodiless=bodiless)
        for piece in pieces:
            if not self.transport.closing:  # as a transport does
                self.connection.data_received(piece)
        return response

    @property
    def is_reusable(self) -> bool:
        assert self.transport.closing != bool(self.freed)
        return not self.transport.closing


def run(coroutine: Any) -> Any:
    """Return the result of a coroutine that does not wait."""
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
    return str(response.failure())


def test_a_response_is_complete_with_its_last_byte() -> None:
    bench = ConnectionBench()
    response = bench.answer(ok(b"hi", b"Content-Type: text/plain  ", b"X: 1", b"x: 2"))
    assert bench.transport.written == [b"HEADBODY"]
    assert response.status == 200
    assert response.headers == {b"content-type": b"text/plain", b"x": b"1", b"content-length": b"2"}
    assert body(response) == b"hi"
    assert body(response) == b""
    assert run(response.receive()) is None
    assert bench.is_reusable
    assert bench.connection.is_usable()


def test_a_large_request_is_not_copied() -> None:
    bench = ConnectionBench()
    large = bytes(100_000)
    bench.connection.send(b"HEAD", large, HttpResponse(bench.connection))
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
def test_a_response_ends_where_it_says_and_the_connection_is_reused(
    raw: bytes, status: int, expected: bytes
) -> None:
    for pieces in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        bench = ConnectionBench()
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
def test_a_connection_that_closes_or_holds_surplus_bytes_is_not_reused(
    raw: bytes,
) -> None:
    bench = ConnectionBench()
    assert body(bench.answer(raw)) == b"x"
    assert not bench.is_reusable


def test_a_late_surplus_response_closes_the_connection() -> None:
    bench = ConnectionBench()
    assert body(bench.answer(ok(b"mine"))) == b"mine"
    assert bench.connection.is_usable()
    bench.connection.data_received(ok(b"of nobody"))
    assert bench.transport.closing
    assert not bench.connection.is_usable()


def test_bytes_before_a_request_close_the_connection() -> None:
    bench = ConnectionBench()
    bench.connection.data_received(ok(b"early"))
    assert not bench.connection.is_usable()


def test_a_response_before_the_request_was_sent_counts_and_ends_the_connection() -> None:
    bench = ConnectionBench()
    bench.transport.unsent = 1
    assert body(bench.answer(ok(b"too large", status=b"413 Too Large"))) == b"too large"
    assert not bench.is_reusable


@pytest.mark.parametrize("head", [ok(b"12345"), ok(), CHUNKED, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_response_to_head_ends_with_its_head(head: bytes) -> None:
    bench = ConnectionBench()
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
def test_an_unacceptable_response_is_rejected(raw: bytes, expected: str) -> None:
    for pieces in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        bench = ConnectionBench()
        response = bench.answer(*pieces)
        assert not response.status
        if pieces == [raw] or len(raw) < 1000:
            assert reason(response).startswith(f"h:1: {expected}")
        else:
            assert "at most 1000 bytes" in reason(response)
        assert not bench.is_reusable


def test_a_large_body_does_not_make_its_head_large() -> None:
    bench = ConnectionBench()
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
def test_a_malformed_body_fails_the_read(raw: bytes, expected: str) -> None:
    bench = ConnectionBench()
    response = bench.answer(*[raw[i : i + 1] for i in range(len(raw))])
    assert response.status == 200
    assert reason(response).startswith(f"h:1: {expected}")
    assert not bench.is_reusable


@pytest.mark.parametrize(
    ("raw", "exc", "expected"),
    [
        (b"", None, "the connection was closed before the response"),
        (b"", ConnectionResetError(104, ""), "connection reset by peer before the response"),
        (b"", RuntimeError("x"), "the connection was closed before the response"),
        (b"HTTP/1.1 200 OK\r\nx: y", None, "the connection was closed before the response"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", None, "the connection was closed before the response"),
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
def test_a_connection_that_ends_early_fails_the_response(
    raw: bytes, exc: Exception | None, expected: str
) -> None:
    bench = ConnectionBench()
    response = bench.answer(raw)
    bench.connection.connection_lost(exc)
    assert reason(response) == f"h:1: {expected}"
    assert bench.gone == [bench.connection]
    assert not bench.freed


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_response_without_a_length_ends_with_the_connection(version: bytes) -> None:
    bench = ConnectionBench()
    response = bench.answer(b"HTTP/" + version + b" 200 OK\r\n\r\nto the", b" end")
    bench.connection.eof_received()
    bench.connection.connection_lost(None)
    assert body(response) == b"to the end"
    assert not bench.freed


def test_only_a_reused_connection_closed_before_the_first_byte_is_stale() -> None:
    for before, begun, stale in (
        ([CHUNKED + b"0\r\n", b"\r\n"], b"", True),
        ([CHUNKED + b"0\r\n", b"\r\n"], b"H", False),
        ([], b"", False),
    ):
        bench = ConnectionBench()
        if before:
            bench.answer(*before)
        bench.answer(*([begun] if begun else []))
        bench.connection.connection_lost(None)
        assert bench.connection.is_stale == stale


def test_a_connection_closed_by_us_is_not_stale() -> None:
    bench = ConnectionBench()
    bench.answer(ok())
    bench.ask()
    bench.connection.expire()
    bench.connection.connection_lost(None)
    assert not bench.connection.is_stale


def test_coalesced_requests_leave_together_unless_abandoned() -> None:
    bench = ConnectionBench()
    bench.connections.append(ConnectionBench().connection)  # with a pending request, too
    response = bench.ask()
    assert bench.transport.written == []
    bench.write_coalescer.flush()
    assert bench.transport.written == [b"HEADBODY"]
    bench.connection.data_received(ok())
    assert response.status == 200
    given_up = bench.ask()
    given_up.close()
    bench.write_coalescer.flush()
    assert bench.transport.written == [b"HEADBODY"]
    assert bench.transport.closing


def test_bytes_before_the_request_was_sent_are_not_its_response() -> None:
    bench = ConnectionBench()
    bench.answer(ok())
    bench.freed.clear()
    bench.connections.append(ConnectionBench().connection)  # with a pending request, too
    response = bench.ask()
    bench.connection.data_received(ok(b"somebody else's"))
    assert not response.status
    assert "without a request" in str(response.failure())
    assert not bench.is_reusable
    assert bench.connection.is_stale
    bench.write_coalescer.flush()
    assert bench.transport.written == [b"HEADBODY"]  # a single request leaves at once


@given(st.lists(st.sampled_from([1, 2, 3, 7, 40]), min_size=1, max_size=8), st.booleans())
def test_a_response_does_not_depend_on_how_its_bytes_are_cut(sizes: list[int], early: bool) -> None:
    raw = (
        b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"3\r\nabc\r\n4;x\r\ndefg\r\n0\r\nt: u\r\n\r\n"
    )
    bench = ConnectionBench()
    response = bench.ask()
    found, step = b"", 0
    while raw:
        size = sizes[step % len(sizes)]
        bench.connection.data_received(raw[:size])
        raw, step = raw[size:], step + 1
        if early and response.status and response.received_bytes > len(found):
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
def test_any_bytes_end_the_response_or_the_connection(
    pieces: list[bytes],
) -> None:
    bench = ConnectionBench()
    response = bench.answer(*pieces)
    bench.connection.connection_lost(None)
    try:
        body(response) if response.status else reason(response)
    except ConnectionLost as error:
        assert str(error).startswith("h:1: ")
    if bench.freed and not bench.transport.closing:
        assert response.status
        assert body(response) == b""


class RecordingSink:
    """A sink that records whole responses and opens an HttpResponse for others."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bool, bytes]] = []
        self.response: HttpResponse | None = None

    def handle_response(
        self, connection: ClientConnection, head: ResponseHead, body: bytes
    ) -> None:
        self.taken.append((head.status, head.is_json, body))

    def open_response(self, connection: ClientConnection) -> HttpResponse:
        self.response = HttpResponse(connection)
        return self.response


JSON = b"content-type: application/json"


@pytest.mark.parametrize(
    ("pieces", "taken"),
    [
        ([ok(b"{}", JSON)], (200, True, b"{}")),
        ([ok(b"{}")], (200, False, b"{}")),
        ([ok(b"{}", JSON, status=b"404 N")], (404, False, b"{}")),
        ([ok(b"{}", JSON, b"connection: close")], (200, True, b"{}")),
        ([CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"], (200, False, b"{}")),
        ([ok(b"x" * 5000, JSON)], (200, True, b"x" * 5000)),
        ([ok(b"x" * 5001, JSON)], None),
        ([ok(b"{}", JSON)[:-1]], None),
        ([ok(b"{}", JSON)[:-1], b"}"], None),
        ([b"HTTP/1.1 200", ok(b"{}", JSON)[12:]], None),
        ([b"HTTP/1.1 OK 200"], None),
    ],
)
def test_a_response_in_one_piece_skips_http_response(
    pieces: list[bytes], taken: tuple[int, bool, bytes] | None
) -> None:
    for before in (0, 2):
        bench, taker = ConnectionBench(), RecordingSink()
        for _ in range(before):
            bench.answer(ok(b"{}", JSON))
        bench.connection.send(b"HEAD", b"BODY", taker)
        assert bench.connection.sink is taker
        for piece in pieces:
            bench.connection.data_received(piece)
            assert bench.connection.sink is None
        assert taker.taken == ([] if taken is None else [taken])
        assert (taker.response is None) == (taken is not None)


@pytest.mark.parametrize("left", [True, False])
def test_the_response_to_an_abandoned_request_is_dropped(left: bool) -> None:
    bench, taker = ConnectionBench(), RecordingSink()
    if not left:
        bench.connections.append(ConnectionBench().connection)
    bench.connection.send(b"HEAD", b"BODY", taker)
    bench.connection.abandon(RecordingSink())
    assert not bench.transport.closing
    bench.connection.abandon(taker)
    assert bench.transport.closing
    bench.connection.connection_lost(None)
    bench.write_coalescer.flush()
    assert (taker.taken, taker.response, bench.connection.sink) == ([], None, None)


# Cached heads

PLAIN = [
    ok(b"hi"),
    ok(b"ho"),
    ok(b""),
    ok(b"\r\n\r\n"),
    ok(b"hi", b"x: 1"),
    ok(b"how are you?", b"x: 1"),
    CHUNKED + b"2\r\nhi\r\n0\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nhi",
    b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"hi"),
]
"""Responses with partly equal heads."""


@given(st.lists(st.sampled_from(PLAIN), max_size=12), st.data())
def test_a_cached_head_means_the_same_again(sent: list[bytes], data: st.DataObject) -> None:
    bench = ConnectionBench()
    for one in sent:
        cut = data.draw(st.sampled_from([0, 0, 0, len(one) // 2, len(one) - 1]))
        caching = bench.answer(*(piece for piece in (one[:cut], one[cut:]) if piece))
        fresh = ConnectionBench().answer(one)
        assert caching.status == fresh.status
        for each in (caching, fresh):  # Content-Length may be missing when the body is complete
            each.headers.pop(b"content-length", None)
        assert caching.headers == fresh.headers
        assert body(caching) == body(fresh)
        assert bench.connection.is_usable()
    assert len(bench.freed) == len(sent)


def test_surplus_bytes_after_a_cached_head_close_the_connection() -> None:
    bench = ConnectionBench()
    for _ in range(2):
        bench.answer(ok(b"hi"))
    response = bench.answer(ok(b"hi") + b"x")
    assert body(response) == b"hi"
    assert bench.transport.closing


def test_a_cached_head_is_not_used_for_a_response_without_body() -> None:
    bench = ConnectionBench()
    bench.answer(ok(b"hi"))
    response = bench.answer(ok(b"hi").removesuffix(b"hi"), bodiless=True)
    assert (response.status, body(response)) == (200, b"")
