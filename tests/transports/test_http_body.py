"""Bodies and time: what is held, what is waited for, and when an answer is given up."""

import pytest

from tests.transports.faulty import ok
from tests.transports.test_http_wire import CHUNKED, Bench, body, reason, run
from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.http_response import ResponseTooLarge
from trunkline.transports.http_wire import ClientLimits


def test_what_came_before_a_failure_is_received_before_it() -> None:
    bench = Bench()
    response = bench.answer(ok(b"1234")[:-1])
    bench.wire.eof_received()
    assert run(response.receive()) == b"123"
    with pytest.raises(ConnectionLost, match="after 3 of 4 bytes"):
        run(response.receive())


def test_all_that_has_come_is_received_at_once_and_the_end_is_none() -> None:
    bench = Bench()
    response = bench.answer(CHUNKED, b"1\r\na\r\n", b"1\r\nb\r\n")
    assert run(response.receive()) == b"ab"
    bench.wire.data_received(b"1\r\nc\r\n0\r\n\r\n")
    assert run(response.receive()) == b"c"
    assert run(response.receive()) is None
    assert bench.is_reusable


def test_of_a_body_that_nobody_takes_in_only_a_little_is_read() -> None:
    bench = Bench()
    piece = b"10000\r\n" + bytes(65536) + b"\r\n"
    response = bench.answer(CHUNKED, *[piece] * 8)
    assert bench.transport.reading
    bench.wire.data_received(piece)
    assert not bench.transport.reading
    assert run(response.receive()) == bytes(9 * 65536)
    assert bench.transport.reading


def test_while_nobody_takes_it_in_a_body_is_not_late() -> None:
    bench = Bench()
    response = bench.answer(CHUNKED, b"100000\r\n" + bytes(600_000))
    bench.clock.now += 1000
    assert bench.wire.deadline > bench.clock.now
    bench.wire.data_received(bytes(10))  # which was on its way
    bench.clock.now += 1000
    assert bench.wire.deadline > bench.clock.now
    run(response.receive())
    assert bench.wire.deadline == bench.clock.now + 9


def test_a_body_that_ends_while_reading_is_paused_leaves_a_wire_that_reads() -> None:
    bench = Bench()
    response = bench.answer(CHUNKED, b"927c0\r\n" + bytes(600_000))
    bench.wire.data_received(b"\r\n0\r\n\r\n")
    assert bench.transport.reading
    assert bench.is_reusable
    assert len(run(response.receive()) or b"") == 600_000


def test_a_body_that_is_said_to_be_too_large_is_not_waited_for() -> None:
    bench = Bench()
    response = bench.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 5001\r\n\r\n")
    with pytest.raises(ResponseTooLarge, match="h:1: expected a body of at most 5000 bytes"):
        body(response)
    assert not bench.is_reusable


@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n"])
def test_a_body_that_came_and_is_too_large_is_refused(end: bytes) -> None:
    bench = Bench()
    response = bench.answer(CHUNKED, b"1389\r\n" + bytes(5001) + b"\r\n" + end)
    with pytest.raises(ResponseTooLarge):
        body(response)
    with pytest.raises(ResponseTooLarge):
        body(response)
    assert bench.transport.closing == (not end)


def test_a_body_that_becomes_too_large_while_it_is_read_is_refused() -> None:
    bench = Bench()
    response = bench.answer(CHUNKED, b"1388\r\n" + bytes(5000) + b"\r\n")
    reading = response.read()
    reading.send(None)
    bench.wire.data_received(b"1\r\nx\r\n")
    with pytest.raises(ResponseTooLarge):
        reading.send(None)
    assert not bench.is_reusable


def test_an_answer_that_is_closed_takes_its_connection_with_it_unless_it_has_ended() -> None:
    for raw, kept in ((ok(b"1234"), True), (ok(b"1234")[:-1], False), (CHUNKED, False)):
        bench = Bench()
        response = bench.answer(raw)
        response.close()
        response.close()
        assert bench.is_reusable == kept
        if not kept:
            with pytest.raises(ConnectionLost, match="the answer was given up"):
                body(response)


def test_an_answer_that_has_ended_leaves_the_next_one_alone() -> None:
    bench = Bench()
    first = bench.answer(ok(b"first"))
    second = bench.answer(CHUNKED, b"100000\r\n" + bytes(600_000))
    assert not bench.transport.reading
    deadline = bench.wire.deadline
    first.be_patient()
    assert run(first.receive()) == b"first"
    first.close()
    assert not bench.transport.reading
    assert bench.wire.deadline == deadline
    assert not bench.transport.closing
    assert run(second.receive())


def test_deadlines_follow_the_answer() -> None:
    bench = Bench()
    now = bench.clock.now
    response = bench.ask()
    assert bench.wire.deadline == now + 7
    bench.clock.now = now + 5
    bench.wire.data_received(CHUNKED)
    assert bench.wire.deadline == now + 14
    bench.wire.data_received(b"1\r\na\r\n")
    response.be_patient()
    assert bench.wire.deadline > now + 1e9
    bench.wire.data_received(b"1\r\na\r\n")
    assert bench.wire.deadline > now + 1e9
    bench.wire.data_received(b"0\r\n\r\n")
    assert bench.wire.deadline == now + 5 + 4
    bench.ask()
    bench.wire.data_received(CHUNKED)
    assert bench.wire.deadline == now + 14


def test_without_limits_nothing_is_late() -> None:
    bench = Bench(ClientLimits(idle_timeout=None))
    bench.ask()
    assert bench.wire.deadline > 1e9
    bench.wire.data_received(CHUNKED)
    assert bench.wire.deadline > 1e9


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "no answer within 7 s"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/", "no answer within 7 s"),
        (CHUNKED, "nothing more of the body within 9 s"),
    ],
)
def test_what_is_late_is_given_up(raw: bytes, expected: str) -> None:
    bench = Bench()
    response = bench.answer(raw)
    bench.wire.expire()
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
def test_a_wire_is_kept_for_less_time_than_the_server_keeps_it(
    header: bytes, seconds: float
) -> None:
    bench = Bench()
    bench.answer(ok(b"", header))
    assert bench.wire.deadline == bench.clock.now + seconds
    bench.clock.now += seconds
    assert not bench.wire.is_free()
