"""Answers in one piece: who takes them, and what is known of their heads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.faulty import ok
from tests.transports.test_http_wire import CHUNKED, Bench, body
from trunkline.transports.http_response import Head, HttpResponse
from trunkline.transports.http_wire import Wire


class Taker:
    """Whoever takes an answer in one piece, and any other as it comes."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bool, bytes]] = []
        self.response: HttpResponse | None = None

    def complete(self, wire: Wire, head: Head, body: bytes) -> None:
        self.taken.append((head.status, head.is_json, body))

    def begin(self, wire: Wire) -> HttpResponse:
        self.response = HttpResponse(wire)
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
def test_an_answer_in_one_piece_is_taken_at_once_and_any_other_is_a_response(
    pieces: list[bytes], taken: tuple[int, bool, bytes] | None
) -> None:
    for before in (0, 2):
        bench, taker = Bench(), Taker()
        for _ in range(before):
            bench.answer(ok(b"{}", JSON))
        bench.wire.ask(b"HEAD", b"BODY", taker)
        assert bench.wire.asker is taker
        for piece in pieces:
            bench.wire.data_received(piece)
            assert bench.wire.asker is None
        assert taker.taken == ([] if taken is None else [taken])
        assert (taker.response is None) == (taken is not None)


@pytest.mark.parametrize("left", [True, False])
def test_an_answer_that_is_given_up_is_nobodys(left: bool) -> None:
    bench, taker = Bench(), Taker()
    if not left:
        bench.wires.append(Bench().wire)
    bench.wire.ask(b"HEAD", b"BODY", taker)
    bench.wire.give_up(Taker())
    assert not bench.transport.closing
    bench.wire.give_up(taker)
    assert bench.transport.closing
    bench.wire.connection_lost(None)
    bench.departures.flush()
    assert (taker.taken, taker.response, bench.wire.asker) == ([], None, None)


# Heads that were read before

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
"""Answers that say the same in part."""


@given(st.lists(st.sampled_from(PLAIN), max_size=12), st.data())
def test_a_head_that_was_read_before_says_what_it_said(
    sent: list[bytes], data: st.DataObject
) -> None:
    bench = Bench()
    for one in sent:
        cut = data.draw(st.sampled_from([0, 0, 0, len(one) // 2, len(one) - 1]))
        knowing = bench.answer(*(piece for piece in (one[:cut], one[cut:]) if piece))
        fresh = Bench().answer(one)
        assert knowing.status == fresh.status
        for each in (knowing, fresh):  # one may say no more how long its body is, which is there
            each.headers.pop(b"content-length", None)
        assert knowing.headers == fresh.headers
        assert body(knowing) == body(fresh)
        assert bench.wire.is_free()
    assert len(bench.freed) == len(sent)


def test_more_than_the_answer_ends_the_connection_though_its_head_is_known() -> None:
    bench = Bench()
    for _ in range(2):
        bench.answer(ok(b"hi"))
    response = bench.answer(ok(b"hi") + b"x")
    assert body(response) == b"hi"
    assert bench.transport.closing


def test_a_head_that_is_known_does_not_answer_what_has_no_body() -> None:
    bench = Bench()
    bench.answer(ok(b"hi"))
    response = bench.answer(ok(b"hi").removesuffix(b"hi"), bodiless=True)
    assert (response.status, body(response)) == (200, b"")
