"""The body of a response that arrives on a client connection, and its deadlines."""

import pytest

from tests.http.scripted_server import ok
from tests.http.test_client_connection import CHUNKED, ConnectionBench, body, reason, run
from trunkline.http.client_connection import ClientLimits, ResponseTooLarge
from trunkline.jsonrpc import ConnectionLost


def test_data_before_a_failure_is_received_first() -> None:
    bench = ConnectionBench()
    response = bench.answer(ok(b"1234")[:-1])
    bench.connection.eof_received()
    assert run(response.receive()) == b"123"
    with pytest.raises(ConnectionLost, match="after 3 of 4 bytes"):
        run(response.receive())


def test_buffered_data_is_received_at_once_and_the_end_is_none() -> None:
    bench = ConnectionBench()
    response = bench.answer(CHUNKED, b"1\r\na\r\n", b"1\r\nb\r\n")
    assert run(response.receive()) == b"ab"
    bench.connection.data_received(b"1\r\nc\r\n0\r\n\r\n")
    assert run(response.receive()) == b"c"
    assert run(response.receive()) is None
    assert bench.is_reusable


def test_reading_pauses_while_a_body_is_not_received() -> None:
    bench = ConnectionBench()
    piece = b"10000\r\n" + bytes(65536) + b"\r\n"
    response = bench.answer(CHUNKED, *[piece] * 8)
    assert bench.transport.reading
    bench.connection.data_received(piece)
    assert not bench.transport.reading
    assert run(response.receive()) == bytes(9 * 65536)
    assert bench.transport.reading


def test_a_paused_body_does_not_time_out() -> None:
    bench = ConnectionBench()
    response = bench.answer(CHUNKED, b"100000\r\n" + bytes(600_000))
    bench.clock.now += 1000
    assert bench.connection.deadline > bench.clock.now
    bench.connection.data_received(bytes(10))  # in transit before the pause
    bench.clock.now += 1000
    assert bench.connection.deadline > bench.clock.now
    run(response.receive())
    assert bench.connection.deadline == bench.clock.now + 9


def test_a_body_that_ends_while_paused_leaves_a_reading_connection() -> None:
    bench = ConnectionBench()
    response = bench.answer(CHUNKED, b"927c0\r\n" + bytes(600_000))
    bench.connection.data_received(b"\r\n0\r\n\r\n")
    assert bench.transport.reading
    assert bench.is_reusable
    assert len(run(response.receive()) or b"") == 600_000


def test_a_body_announced_as_too_large_fails_at_once() -> None:
    bench = ConnectionBench()
    response = bench.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 5001\r\n\r\n")
    with pytest.raises(ResponseTooLarge, match="h:1: expected a body of at most 5000 bytes"):
        body(response)
    assert not bench.is_reusable


@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n"])
def test_a_buffered_body_that_is_too_large_is_rejected(end: bytes) -> None:
    bench = ConnectionBench()
    response = bench.answer(CHUNKED, b"1389\r\n" + bytes(5001) + b"\r\n" + end)
    with pytest.raises(ResponseTooLarge):
        body(response)
    with pytest.raises(ResponseTooLarge):
        body(response)
    assert bench.transport.closing == (not end)


def test_a_body_that_grows_too_large_is_rejected() -> None:
    bench = ConnectionBench()
    response = bench.answer(CHUNKED, b"1388\r\n" + bytes(5000) + b"\r\n")
    reading = response.read()
    reading.send(None)
    bench.connection.data_received(b"1\r\nx\r\n")
    with pytest.raises(ResponseTooLarge):
        reading.send(None)
    assert not bench.is_reusable


def test_closing_an_unfinished_response_closes_its_connection() -> None:
    for raw, kept in ((ok(b"1234"), True), (ok(b"1234")[:-1], False), (CHUNKED, False)):
        bench = ConnectionBench()
        response = bench.answer(raw)
        response.close()
        response.close()
        assert bench.is_reusable == kept
        if not kept:
            with pytest.raises(ConnectionLost, match="the response was closed"):
                body(response)


def test_a_finished_response_does_not_affect_the_next_one() -> None:
    bench = ConnectionBench()
    first = bench.answer(ok(b"first"))
    second = bench.answer(CHUNKED, b"100000\r\n" + bytes(600_000))
    assert not bench.transport.reading
    deadline = bench.connection.deadline
    first.disable_read_timeout()
    assert run(first.receive()) == b"first"
    first.close()
    assert not bench.transport.reading
    assert bench.connection.deadline == deadline
    assert not bench.transport.closing
    assert run(second.receive())


def test_deadlines_follow_the_response() -> None:
    bench = ConnectionBench()
    now = bench.clock.now
    response = bench.ask()
    assert bench.connection.deadline == now + 7
    bench.clock.now = now + 5
    bench.connection.data_received(CHUNKED)
    assert bench.connection.deadline == now + 14
    bench.connection.data_received(b"1\r\na\r\n")
    response.disable_read_timeout()
    assert bench.connection.deadline > now + 1e9
    bench.connection.data_received(b"1\r\na\r\n")
    assert bench.connection.deadline > now + 1e9
    bench.connection.data_received(b"0\r\n\r\n")
    assert bench.connection.deadline == now + 5 + 4
    bench.ask()
    bench.connection.data_received(CHUNKED)
    assert bench.connection.deadline == now + 14


def test_without_limits_nothing_times_out() -> None:
    bench = ConnectionBench(ClientLimits(idle_timeout=None))
    bench.ask()
    assert bench.connection.deadline > 1e9
    bench.connection.data_received(CHUNKED)
    assert bench.connection.deadline > 1e9


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "no response within 7 s"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/", "no response within 7 s"),
        (CHUNKED, "no more of the body within 9 s"),
    ],
)
def test_an_expired_request_fails(raw: bytes, expected: str) -> None:
    bench = ConnectionBench()
    response = bench.answer(raw)
    bench.connection.expire()
    assert reason(response) == f"h:1: {expected}"
    assert not bench.is_reusable


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (b"x: y", 4),
        (b"keep-alive: timeout=5", 4),
        (b"keep-alive: max=3, Timeout=5", 4),
        (b"keep-alive: timeout=500", 30),
        (b"keep-alive: timeout=0", 0),
        (b"keep-alive: timeout=x", 4),
    ],
)
def test_a_connection_is_kept_for_less_time_than_the_server_keeps_it(
    header: bytes, seconds: float
) -> None:
    bench = ConnectionBench()
    bench.answer(ok(b"", header))
    assert bench.connection.deadline == bench.clock.now + seconds
    bench.clock.now += seconds
    assert not bench.connection.is_usable()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"


def test_the_head_callback_is_called_once_with_the_head() -> None:
    bench, statuses = ConnectionBench(), list[int]()
    response = bench.ask()
    response.on_head(lambda: statuses.append(response.status))
    bench.connection.data_received(HEAD % 4 + b"ab")
    assert statuses == [200]
    bench.connection.data_received(b"cd")
    assert (statuses, body(response)) == ([200], b"abcd")


def test_the_head_callback_is_called_on_failure() -> None:
    bench, statuses = ConnectionBench(), list[str]()
    response = bench.ask()
    response.on_head(lambda: statuses.append(str(response.failure())))
    bench.connection.connection_lost(None)
    assert statuses == ["h:1: the connection was closed before the response"]
    assert response.status == 0


def test_a_removed_head_callback_is_not_called() -> None:
    bench, statuses = ConnectionBench(), list[int]()
    response = bench.ask()
    response.on_head(lambda: statuses.append(response.status))
    bench.connection.data_received(b"HTTP/1.1 ")
    response.on_head(None)
    bench.connection.data_received(b"200 OK\r\ncontent-length: 0\r\n\r\n")
    assert (statuses, response.status) == ([], 200)
