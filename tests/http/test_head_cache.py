"""Cached request heads: found again for any body length, and never mistaken for another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.test_message import POST, new_reader, read
from trunkline.http.exchange import HttpRequest
from trunkline.http.message import (
    DEFAULT_FLAGS,
    MAX_CACHED_HEAD_BYTES,
    MAX_CACHED_HEADS,
    HeadCache,
    ParsedRequest,
    RequestReader,
    RequestRejected,
)
from trunkline.http.states import ReaderPhase

BEFORE, AFTER = b"POST / HTTP/1.1\r\nhost: a\r\nContent-Length: ", b"\r\nx: y\r\n\r\n"


def piece(body: bytes, digits: bytes | None = None) -> bytes:
    return BEFORE + (b"%d" % len(body) if digits is None else digits) + AFTER + body


def knowing(max_body: int = 1000) -> HeadCache[str]:
    heads = HeadCache[str](max_body)
    heads.store(piece(b"{}"), "kept")
    return heads


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_cached_head_is_found_with_another_body(body: bytes, other: bytes) -> None:
    heads = knowing()
    if heads.find(piece(body)) is None:
        heads.store(piece(body), "another")  # more digits, but the same length
        assert len(b"%d" % len(body)) > 1
    for known in (body, b"{}", body[::-1]):
        assert heads.find(piece(known)) == ("kept", known)
    same = len(b"%d" % len(other)) in (1, len(b"%d" % len(body)))
    assert heads.find(piece(other)) == (("kept", other) if same else None)


def test_format_directives_in_a_head_are_literal() -> None:
    heads, other = HeadCache[str](1000), piece(b"{}").replace(b"x: y", b"%d: 100%")
    heads.store(other, "kept")
    assert heads.find(other) == ("kept", b"{}")
    assert heads.find(piece(b"{}").replace(b"x: y", b"2: 100%")) is None
    assert heads.find(other.replace(b"100%", b"100%%")) is None


def test_a_length_is_never_negative() -> None:
    heads = HeadCache[str](1000)
    heads.store(piece(bytes(100)), "kept")
    assert heads.find(piece(b"", b"-1")) is None  # shorter by as much as its length says
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
def test_any_other_difference_goes_to_the_parser(other: bytes) -> None:
    assert knowing().find(other) is None


@pytest.mark.parametrize(("max_body", "kept"), [(8, 0), (9, 1), (10, 1), (98, 1), (99, 2)])
def test_possibly_oversized_bodies_go_to_the_parser(max_body: int, kept: int) -> None:
    heads = knowing(max_body)
    heads.store(piece(b"1234567890"), "kept")
    assert len(heads) == kept
    assert (heads.find(piece(b"123456789")) is not None) == (kept > 0)
    assert (heads.find(piece(b"1234567890")) is not None) == (kept > 1)


@pytest.mark.parametrize(
    "strange",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        piece(b"{}", b"3"),
        piece(b"{}", b"x"),
        piece(b"{}").replace(b"x: y", b"x: " + b"y" * MAX_CACHED_HEAD_BYTES),
        b"POST / HTTP/1.1\r\nx: content-length: 2\r\n\r\n{}",
        b"content-length: 2",
        b"",
    ],
)
def test_a_head_without_a_length_is_not_cached(strange: bytes) -> None:
    heads = HeadCache[str](100)
    heads.store(strange, "kept")
    assert len(heads) == 0


def test_a_few_different_heads_are_cached() -> None:
    heads = HeadCache[int](100)
    kinds = [
        piece(b"{}").replace(b"host: a", b"host: " + b"a" * n)
        for n in range(1, 2 * MAX_CACHED_HEADS)
    ]
    for number, kind in enumerate(kinds[:MAX_CACHED_HEADS]):
        heads.store(kind, number)
    assert [heads.find(kind) for kind in kinds[:MAX_CACHED_HEADS]] == [
        (n, b"{}") for n in range(MAX_CACHED_HEADS)
    ]
    for number, kind in enumerate(kinds):
        heads.store(kind, number)
        assert len(heads) <= MAX_CACHED_HEADS
    found = [heads.find(kind) is not None for kind in kinds]
    assert (
        found == [False] * (len(kinds) - MAX_CACHED_HEADS) + [True] * MAX_CACHED_HEADS
    )  # the newest
    assert heads.find(kinds[-1]) == (len(kinds) - 1, b"{}")
    heads.clear()
    assert heads.find(kinds[-1]) is None


def test_app_data_of_a_cached_head_is_shared() -> None:
    reader = new_reader()
    reader.feed(POST + b"content-length: 2\r\n\r\nhi")
    first, second = (
        reader.head_cache.find(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        for body in (b"ho!", b"")
    )
    assert first is not None
    assert second is not None
    assert [first[1], second[1]] == [b"ho!", b""]
    assert first[0] is second[0]
    first[0].app_data = "something"
    other = POST + b"x: 2\r\ncontent-length: 2\r\n\r\nhi"
    assert reader.head_cache.find(other) is None
    reader.feed(other)
    assert isinstance(last := reader.parsed[-1], ParsedRequest)
    assert last.request.head.app_data is None


def test_a_head_that_differs_with_every_request_is_not_cached() -> None:
    reader = new_reader()
    for header in (b"TraceParent", b"x-request-id", b"B3"):
        reader.feed(POST + header + b": 1\r\ncontent-length: 2\r\n\r\nhi")
    assert len(reader.head_cache) == 0
    assert len(reader.parsed) == 3


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
"""Requests with partly equal heads."""


@given(st.lists(st.sampled_from(ORDINARY), max_size=12), st.data())
def test_a_cached_head_equals_the_parsed_one(sent: list[bytes], data: st.DataObject) -> None:
    fresh: list[ParsedRequest | RequestRejected] = []
    for one in sent:
        fresh += read(one)
    knowing = new_reader()
    for one in sent:
        cut = data.draw(st.sampled_from([0, 0, 0, len(one) // 2, len(one) - 1]))
        for piece in (one[:cut], one[cut:]):
            if piece:
                take(knowing, piece)
    assert list(knowing.parsed) == fresh


def take(reader: RequestReader, piece: bytes) -> None:
    """Read a request with the parser, or from the cache where possible."""
    found = reader.head_cache.find(piece) if reader.phase is ReaderPhase.IDLE else None
    if found is None:
        reader.feed(piece)
    else:
        reader.parsed.append(ParsedRequest(HttpRequest(*found), DEFAULT_FLAGS))


@given(st.lists(st.sampled_from(ORDINARY), min_size=2, max_size=6))
def test_pipelined_requests_are_parsed_separately(sent: list[bytes]) -> None:
    knowing = new_reader()
    for one in sent:
        knowing.feed(one)
    knowing.parsed.clear()
    knowing.feed(b"".join(sent))
    assert len(knowing.parsed) == len(sent)


def test_the_number_of_cached_heads_is_limited() -> None:
    reader = new_reader()
    for number in range(100):
        reader.feed(POST + b"x: %d\r\ncontent-length: 2\r\n\r\nhi" % number)
        reader.feed(POST + b"x: %s\r\ncontent-length: 2\r\n\r\nhi" % (b"y" * 4000))
    assert len(reader.parsed) == 200
    assert len(reader.head_cache) <= MAX_CACHED_HEADS
    reader.stop()
    assert len(reader.head_cache) == 0
