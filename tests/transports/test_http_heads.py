"""Heads that were read before: found again whatever the length, and never mistaken for another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.test_http_message import POST, new_reader, read
from trunkline.transports.exchange import HttpRequest
from trunkline.transports.http_heads import LONGEST, MOST, Heads
from trunkline.transports.http_message import (
    IDLE,
    USUAL,
    Arrival,
    HttpRefusal,
    RequestReader,
)

BEFORE, AFTER = b"POST / HTTP/1.1\r\nhost: a\r\nContent-Length: ", b"\r\nx: y\r\n\r\n"


def piece(body: bytes, digits: bytes | None = None) -> bytes:
    return BEFORE + (b"%d" % len(body) if digits is None else digits) + AFTER + body


def knowing(max_body: int = 1000) -> Heads[str]:
    heads = Heads[str](max_body)
    heads.keep(piece(b"{}"), "kept")
    return heads


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_head_is_found_again_whatever_follows_it(body: bytes, other: bytes) -> None:
    heads = knowing()
    if heads.find(piece(body)) is None:
        heads.keep(piece(body), "another")  # it has more digits, and says the same
        assert len(b"%d" % len(body)) > 1
    for known in (body, b"{}", body[::-1]):
        assert heads.find(piece(known)) == ("kept", known)
    same = len(b"%d" % len(other)) in (1, len(b"%d" % len(body)))
    assert heads.find(piece(other)) == (("kept", other) if same else None)


def test_what_looks_like_a_format_is_taken_as_it_is() -> None:
    heads, other = Heads[str](1000), piece(b"{}").replace(b"x: y", b"%d: 100%")
    heads.keep(other, "kept")
    assert heads.find(other) == ("kept", b"{}")
    assert heads.find(piece(b"{}").replace(b"x: y", b"2: 100%")) is None
    assert heads.find(other.replace(b"100%", b"100%%")) is None


def test_a_length_is_never_negative() -> None:
    heads = Heads[str](1000)
    heads.keep(piece(bytes(100)), "kept")
    assert heads.find(piece(b"", b"-1")) is None  # as much shorter as it says
    assert heads.find(piece(b"")) == ("kept", b"")


@pytest.mark.parametrize(
    "other",
    [
        piece(b"{}", b"3"),
        piece(b"{}", b"1"),
        piece(b"{}", b"+2"),
        piece(b"{}", b" 2"),
        piece(b"{}", b"2 "),
        piece(b"{}", b""),
        piece(b"{}", b"0x2"),
        piece(b"{}", b"2\r\nContent-Length: 2"),
        piece(b"{}", b"\xc2\xb2"),
        piece(b"{}", b"0000000002"),
        piece(b"{}", b"02"),
        piece(b"{}").replace(b"host: a", b"host: b"),
        piece(b"{}").replace(b"host: a", b"host: aa"),
        piece(b"{}").replace(b"x: y", b"x: z"),
        piece(b"{}").replace(b"x: y\r\n", b"transfer-encoding: chunked\r\n"),
        piece(b"{}").replace(b"POST", b"PUT"),
        piece(b"{}").replace(b"Content-Length", b"content-length"),
        piece(b"{}")[:-3],
        BEFORE,
        BEFORE[:20],
        b"",
        b"\r\n\r\n",
        piece(b"{}") + piece(b"{}"),
    ],
)
def test_what_differs_in_anything_else_is_the_parsers(other: bytes) -> None:
    assert knowing().find(other) is None


@pytest.mark.parametrize(("max_body", "kept"), [(8, 0), (9, 1), (10, 1), (98, 1), (99, 2)])
def test_what_might_announce_too_much_is_the_parsers(max_body: int, kept: int) -> None:
    heads = knowing(max_body)
    heads.keep(piece(b"1234567890"), "kept")
    assert len(heads) == kept
    assert (heads.find(piece(b"123456789")) is not None) == (kept > 0)
    assert (heads.find(piece(b"1234567890")) is not None) == (kept > 1)


@pytest.mark.parametrize(
    "strange",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        piece(b"{}", b"3"),
        piece(b"{}", b"x"),
        piece(b"{}").replace(b"x: y", b"x: " + b"y" * LONGEST),
        b"POST / HTTP/1.1\r\nx: content-length: 2\r\n\r\n{}",
        b"content-length: 2",
        b"",
    ],
)
def test_what_has_no_length_of_its_own_is_not_kept(strange: bytes) -> None:
    heads = Heads[str](100)
    heads.keep(strange, "kept")
    assert len(heads) == 0


def test_heads_of_several_kinds_are_kept_but_not_many() -> None:
    heads = Heads[int](100)
    kinds = [piece(b"{}").replace(b"host: a", b"host: " + b"a" * n) for n in range(1, 2 * MOST)]
    for number, kind in enumerate(kinds[:MOST]):
        heads.keep(kind, number)
    assert [heads.find(kind) for kind in kinds[:MOST]] == [(n, b"{}") for n in range(MOST)]
    for number, kind in enumerate(kinds):
        heads.keep(kind, number)
        assert len(heads) <= MOST
    found = [heads.find(kind) is not None for kind in kinds]
    assert found == [False] * (len(kinds) - MOST) + [True] * MOST  # the newest
    assert heads.find(kinds[-1]) == (len(kinds) - 1, b"{}")
    heads.clear()
    assert heads.find(kinds[-1]) is None


def test_what_was_noted_about_a_head_is_there_for_the_next_that_is_the_same() -> None:
    reader = new_reader()
    reader.feed(POST + b"content-length: 2\r\n\r\nhi")
    first, second = (
        reader.known.find(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        for body in (b"ho!", b"")
    )
    assert first is not None
    assert second is not None
    assert [first[1], second[1]] == [b"ho!", b""]
    assert first[0] is second[0]
    first[0].notes = "something"
    other = POST + b"x: 2\r\ncontent-length: 2\r\n\r\nhi"
    assert reader.known.find(other) is None
    reader.feed(other)
    assert isinstance(last := reader.arrivals[-1], Arrival)
    assert last.request.head.notes is None


def test_a_head_that_is_another_with_every_request_is_not_kept() -> None:
    reader = new_reader()
    for header in (b"TraceParent", b"x-request-id", b"B3"):
        reader.feed(POST + header + b": 1\r\ncontent-length: 2\r\n\r\nhi")
    assert len(reader.known) == 0
    assert len(reader.arrivals) == 3


ORDINARY = [
    POST + b"content-length: 2\r\n\r\nhi",
    POST + b"content-length: 2\r\n\r\nho",
    POST + b"content-length: 0\r\n\r\n",
    POST + b"content-length: 12\r\n\r\nhow are you?",
    POST + b"Content-Length:   2\r\nx: y\r\n\r\nhi",
    POST + b"Content-Length:   10\r\nx: y\r\n\r\nhi, hi, hi",
    b"GET /mcp HTTP/1.1\r\nhost: a\r\n\r\n",
    POST + b"content-length: 6\r\n\r\n\r\n\r\n!!",
    POST + b"x: 1\r\ncontent-length: 2\r\n\r\nhi",
    POST + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    POST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\nhi",
    b"\r\n" + POST + b"content-length: 2\r\n\r\nhi",
]
"""Requests that say the same in part."""


@given(st.lists(st.sampled_from(ORDINARY), max_size=12), st.data())
def test_a_head_that_was_read_before_says_what_it_said(
    sent: list[bytes], data: st.DataObject
) -> None:
    fresh: list[Arrival | HttpRefusal] = []
    for one in sent:
        fresh += read(one)
    knowing = new_reader()
    for one in sent:
        cut = data.draw(st.sampled_from([0, 0, 0, len(one) // 2, len(one) - 1]))
        for piece in (one[:cut], one[cut:]):
            if piece:
                take(knowing, piece)
    assert list(knowing.arrivals) == fresh


def take(reader: RequestReader, piece: bytes) -> None:
    """Have a piece read, or recalled where that may be done."""
    found = reader.known.find(piece) if reader.phase == IDLE else None
    if found is None:
        reader.feed(piece)
    else:
        reader.arrivals.append(Arrival(HttpRequest(*found), USUAL))


@given(st.lists(st.sampled_from(ORDINARY), min_size=2, max_size=6))
def test_several_requests_in_one_piece_are_several(sent: list[bytes]) -> None:
    knowing = new_reader()
    for one in sent:
        knowing.feed(one)
    knowing.arrivals.clear()
    knowing.feed(b"".join(sent))
    assert len(knowing.arrivals) == len(sent)


def test_heads_are_not_hoarded() -> None:
    reader = new_reader()
    for number in range(100):
        reader.feed(POST + b"x: %d\r\ncontent-length: 2\r\n\r\nhi" % number)
        reader.feed(POST + b"x: %s\r\ncontent-length: 2\r\n\r\nhi" % (b"y" * 4000))
    assert len(reader.arrivals) == 200
    assert len(reader.known) <= MOST
    reader.stop()
    assert len(reader.known) == 0
