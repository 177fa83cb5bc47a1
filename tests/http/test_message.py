"""Requests parsed from bytes, cut anywhere, and the reasons for rejecting them."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.http.address import TrustedProxies
from trunkline.http.exchange import HttpRequest, RequestHead
from trunkline.http.message import (
    PARSE_SLICE_BYTES,
    HttpLimits,
    ParsedRequest,
    RequestReader,
    RequestRejected,
    encode_chunk,
    response_head,
    text_response,
)
from trunkline.http.states import ReaderPhase

POST = b"POST /mcp HTTP/1.1\r\nHost: a\r\n"
DEFAULTS = HttpLimits()
SMALL = HttpLimits(max_target=20, max_head=100, max_headers=4, max_body=10)


def new_reader(limits: HttpLimits = DEFAULTS) -> RequestReader:
    return RequestReader("192.0.2.1", limits)


def read(raw: bytes, limits: HttpLimits = DEFAULTS) -> list[ParsedRequest | RequestRejected]:
    reader = new_reader(limits)
    reader.feed(raw)
    return list(reader.parsed)


def request(raw: bytes, limits: HttpLimits = DEFAULTS) -> HttpRequest:
    (arrival,) = read(raw, limits)
    assert isinstance(arrival, ParsedRequest), arrival
    return arrival.request


def rejection_of(raw: bytes, limits: HttpLimits = DEFAULTS) -> RequestRejected:
    *_, last = read(raw, limits)
    assert isinstance(last, RequestRejected), last
    return last


def statuses(arrivals: list[ParsedRequest | RequestRejected]) -> list[int | str]:
    return [a.status if isinstance(a, RequestRejected) else a.request.path for a in arrivals]


def test_each_proxy_may_add_a_forwarding_header_of_its_own() -> None:
    raw = POST + b"X-Forwarded-For: 10.0.0.9\r\nx-forwarded-for: 192.0.2.9, 10.0.0.1\r\n"
    raw += b"Content-Length: 0\r\n\r\n"
    assert request(raw).head.address == "192.0.2.1"  # it is no proxy
    reader = RequestReader("10.0.0.2", DEFAULTS, TrustedProxies(["10.0.0.0/8"]))
    reader.feed(raw)
    (arrival,) = reader.parsed
    assert isinstance(arrival, ParsedRequest)
    assert arrival.request.address == "192.0.2.9"
    assert arrival.request.headers[b"x-forwarded-for"] == b"10.0.0.9,192.0.2.9, 10.0.0.1"


def test_a_request_is_parsed_in_full() -> None:
    raw = POST + b"X-One: \t 1 2 \t \r\nACCEPT: a\r\nAccept: b\r\nContent-Length: 2\r\n\r\nhi"
    assert request(raw.replace(b"/mcp", b"/a/b?c=d?e")) == HttpRequest(
        RequestHead(
            "POST",
            "/a/b",
            "c=d?e",
            {b"host": b"a", b"x-one": b"1 2", b"accept": b"a"},
            frozenset([b"accept"]),
            "192.0.2.1",
        ),
        b"hi",
    )


def test_bytes_that_are_not_ascii_stay_in_values() -> None:
    assert request(POST + b"X: caf\xc3\xa9\r\n\r\n").headers[b"x"] == b"caf\xc3\xa9"


SEVERAL = (
    b"POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nx: y\r\n\r\nabc"
    b"\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\n"
    b"POST /3 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: Chunked\r\n\r\n"
    b"2;ext=1\r\nde\r\n1\r\nf\r\n0\r\nhost: b\r\nhost: c\r\nx: y\r\n\r\n"
)


@given(st.lists(st.integers(0, len(SEVERAL)), max_size=6))
def test_the_cutting_of_bytes_makes_no_difference(cuts: list[int]) -> None:
    reader, edges = new_reader(), [0, *sorted(cuts), len(SEVERAL)]
    for start, end in pairwise(edges):
        reader.feed(SEVERAL[start:end])
    assert list(reader.parsed) == read(SEVERAL)


def test_requests_are_parsed_in_order_and_trailers_are_ignored() -> None:
    arrivals = read(SEVERAL)
    assert statuses(arrivals) == ["/1", "/2", "/3"]
    last = arrivals[-1]
    assert isinstance(last, ParsedRequest)
    assert last.request.body == b"def"
    assert last.request.headers == {b"host": b"a", b"transfer-encoding": b"Chunked"}
    assert last.request.repeated == frozenset()


def test_the_phase_follows_the_request() -> None:
    reader, phases = new_reader(), list[ReaderPhase]()
    for piece in (b"\r\n", b"P", POST[1:] + b"content-length: 2\r\n\r\n", b"h", b"i"):
        reader.feed(piece)
        phases.append(reader.phase)
    assert phases == [
        ReaderPhase.IDLE,
        ReaderPhase.HEAD,
        ReaderPhase.BODY,
        ReaderPhase.BODY,
        ReaderPhase.IDLE,
    ]
    reader.feed(b"\x00")
    assert reader.phase is ReaderPhase.CLOSED


def test_only_a_body_of_known_length_may_be_fed_at_once() -> None:
    reader = new_reader()
    assert reader.feed_size == PARSE_SLICE_BYTES
    reader.feed(POST + b"content-length: 100000\r\n\r\n" + b"x" * 10)
    assert reader.feed_size == 99990
    reader.feed(b"x" * 99990 + POST)
    assert reader.feed_size == PARSE_SLICE_BYTES


SMUGGLED: dict[str, tuple[int, bytes]] = {
    "length and encoding": (400, b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
    "encoding and length": (400, b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"),
    "two lengths": (400, b"Content-Length: 3\r\nContent-Length: 4\r\n"),
    "the same length twice": (400, b"Content-Length: 3\r\nContent-Length: 3\r\n"),
    "a list of lengths": (400, b"Content-Length: 3, 3\r\n"),
    "a signed length": (400, b"Content-Length: +3\r\n"),
    "a negative length": (400, b"Content-Length: -3\r\n"),
    "a length in hex": (400, b"Content-Length: 0x3\r\n"),
    "no length": (400, b"Content-Length:\r\n"),
    "a length beyond counting": (400, b"Content-Length: 18446744073709551617\r\n"),
    "gzip, then chunked": (501, b"Transfer-Encoding: gzip, chunked\r\n"),
    "chunked, then gzip": (400, b"Transfer-Encoding: chunked, gzip\r\n"),
    "something like chunked": (501, b"Transfer-Encoding: xchunked\r\n"),
    "chunked in quotes": (501, b'Transfer-Encoding: "chunked"\r\n'),
    "identity": (501, b"Transfer-Encoding: identity\r\n"),
    "no encoding": (400, b"Transfer-Encoding:\r\n"),
    "chunked twice": (400, b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
    "an encoding after a control byte": (400, b"Transfer-Encoding: \x0bchunked\r\n"),
    "a space before the colon": (400, b"Content-Length : 3\r\n"),
    "a space before the name": (400, b" Content-Length: 3\r\n"),
    "a tab in the name": (400, b"Content-\tLength: 3\r\n"),
    "no name": (400, b": 3\r\n"),
    "no colon": (400, b"Content-Length\r\n"),
    "a folded line": (400, b"X: a\r\n b\r\n"),
    "a bare line feed": (400, b"X: a\nContent-Length: 3\r\n"),
    "a bare carriage return": (400, b"X: a\rContent-Length: 3\r\n"),
    "a nul": (400, b"X: a\x00b\r\n"),
    "a control byte": (400, b"X: a\x01b\r\n"),
    "a delete": (400, b"X: a\x7fb\r\n"),
    "two hosts": (400, b"Host: b\r\n"),
    "the same host twice": (400, b"Host: a\r\n"),
}


@pytest.mark.parametrize(("status", "lines"), SMUGGLED.values(), ids=SMUGGLED)
def test_ambiguous_requests_are_rejected(status: int, lines: bytes) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    arrivals = read(POST + lines + b"\r\n0\r\n\r\n" + smuggled)
    assert statuses(arrivals) == [status]


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"3\nabc\r\n0\r\n\r\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3 \r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"\r\nabc\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        b"3;a\nb\r\nabc\r\n0\r\n\r\n",
        b"0\r\nX: a\nY: b\r\n\r\n",
    ],
)
def test_malformed_chunks_are_rejected(body: bytes) -> None:
    assert statuses(read(CHUNKED + body)) == [400]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"NONSENSE / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n", 400),
        (b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Expect: wonders\r\n\r\n", 417),
    ],
)
def test_requests_that_are_not_for_us_are_rejected(raw: bytes, status: int) -> None:
    assert statuses(read(raw)) == [status]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"http://a/b?c", "/b", "c"),
        (b"HTTPS://A/b", "/b", ""),
        (b"http://a", "/", ""),
        (b"http://a?c", "/", "c"),
    ],
)
def test_an_absolute_target_may_name_the_same_host(target: bytes, path: str, query: str) -> None:
    found = request(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (found.path, found.query) == (path, query)


def test_a_long_target_is_rejected_before_it_ends() -> None:
    reader = new_reader(SMALL)
    reader.feed(b"GET /" + b"a" * 19)
    assert not reader.parsed
    reader.feed(b"a")
    assert statuses(list(reader.parsed)) == [414]


def test_the_size_of_a_head_is_limited() -> None:
    fits = b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 85 + b"\r\n\r\n"
    assert request(fits, SMALL).headers[b"x"] == b"y" * 85
    assert rejection_of(fits.replace(b"yy", b"yyy"), SMALL).status == 431


@pytest.mark.parametrize("endless", [b"x: " + b"y" * 200000, b"x: y\r\n" * 40000, b"x" * 200000])
def test_an_endless_head_is_rejected_soon(endless: bytes) -> None:
    reader, fed = new_reader(), 0
    raw = POST + endless
    while not reader.parsed:
        assert fed < 100_000
        reader.feed(raw[fed : fed + reader.feed_size])
        fed += PARSE_SLICE_BYTES
    assert statuses(list(reader.parsed)) == [431]
    assert fed <= DEFAULTS.max_head + 2 * PARSE_SLICE_BYTES


@pytest.mark.parametrize("same", [True, False])
def test_headers_are_counted_whether_they_repeat_or_not(same: bool) -> None:
    lines = [b"x%d: y\r\n" % (0 if same else number) for number in range(4)]
    head = b"GET / HTTP/1.1\r\nhost: a\r\n"
    assert request(head + b"".join(lines[:3]) + b"\r\n", SMALL)
    assert rejection_of(head + b"".join(lines) + b"\r\n", SMALL).status == 431


def test_a_long_body_is_rejected_by_its_head() -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: "
    assert request(head + b"10\r\n\r\n0123456789", SMALL).body == b"0123456789"
    assert rejection_of(head + b"11\r\n\r\n", SMALL).status == 413


def test_a_chunked_body_is_rejected_when_it_is_too_long() -> None:
    reader = new_reader(SMALL)
    reader.feed(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    reader.feed(b"5\r\n01234\r\n5\r\n56789\r\n")
    assert not reader.parsed
    reader.feed(b"1\r\n0")
    assert statuses(list(reader.parsed)) == [413]


@pytest.mark.parametrize(
    "around",
    [b"1;" + b"x" * 200000, b"0\r\nx: " + b"y" * 200000, b"0\r\n" + b"x: y\r\n" * 40000],
    ids=["extension", "trailer", "trailers"],
)
def test_the_bytes_around_a_body_are_limited(around: bytes) -> None:
    reader, fed = new_reader(), 0
    raw = CHUNKED + around
    while not reader.parsed:
        assert fed < 100_000
        reader.feed(raw[fed : fed + PARSE_SLICE_BYTES])
        fed += PARSE_SLICE_BYTES
    assert isinstance(reader.parsed[0], RequestRejected)


def test_many_small_chunks_are_a_body_like_any_other() -> None:
    raw = CHUNKED + b"1\r\nx\r\n" * 50000 + b"0\r\n\r\n"
    reader = new_reader()
    for start in range(0, len(raw), PARSE_SLICE_BYTES):
        reader.feed(raw[start : start + PARSE_SLICE_BYTES])
    (arrival,) = reader.parsed
    assert isinstance(arrival, ParsedRequest)
    assert arrival.request.body == b"x" * 50000


@pytest.mark.parametrize(
    ("raw", "modern", "persistent"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", True, True),
        (b"GET / HTTP/1.1\r\nhost: a\r\nconnection: keep-alive\r\n\r\n", True, True),
        (b"GET / HTTP/1.1\r\nhost: a\r\nconnection: foo, Close\r\n\r\n", True, False),
        (b"GET / HTTP/1.0\r\n\r\n", False, False),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", False, False),
    ],
)
def test_a_head_says_whether_the_connection_stays_open(
    raw: bytes, modern: bool, persistent: bool
) -> None:
    (arrival,) = read(raw + raw)[:1] if not persistent else read(raw)
    assert isinstance(arrival, ParsedRequest)
    assert (arrival.flags.is_http11, arrival.flags.keep_alive) == (modern, persistent)
    assert statuses(read(raw + raw)) == ["/"] * (1 + persistent)


def test_requests_before_a_rejection_stay() -> None:
    good = b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\n"
    reader = new_reader()
    reader.feed(good + b"nonsense\r\n\r\n" + good)
    reader.feed(good)
    assert statuses(list(reader.parsed)) == ["/1", 400]


def test_only_the_first_rejection_counts() -> None:
    reader = new_reader()
    reader.reject(RequestRejected(408, "slow"))
    reader.reject(RequestRejected(400, "late"))
    assert statuses(list(reader.parsed)) == [408]


def test_a_stopped_reader_reads_no_more() -> None:
    reader = new_reader()
    reader.feed(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    reader.stop()
    reader.feed(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert not reader.parsed


def test_a_client_may_expect_100_continue() -> None:
    reader = new_reader()
    reader.feed(POST + b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\n")
    assert reader.expects_continue
    reader.feed(b"hi")
    assert not reader.expects_continue


UPGRADE = b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"


def test_data_after_an_upgrade_offer_is_kept() -> None:
    reader = new_reader()
    reader.feed(b"GET /ws HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"\r\n\x81\x00GET")
    (arrival,) = reader.parsed
    assert isinstance(arrival, ParsedRequest)
    assert (arrival.flags.can_upgrade, arrival.flags.keep_alive, reader.trailing_data) == (
        True,
        False,
        b"\x81\x00GET",
    )
    assert reader.phase is ReaderPhase.CLOSED


def test_http_1_0_cannot_upgrade() -> None:
    (arrival,) = read(b"GET /ws HTTP/1.0\r\n" + UPGRADE + b"\r\n")
    assert isinstance(arrival, ParsedRequest)
    assert not arrival.flags.can_upgrade


@pytest.mark.parametrize("cut", range(0, 12, 3))
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: 5\r\n\r\n", b"hello"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
    ],
)
def test_a_body_does_not_vanish_when_an_upgrade_is_offered(
    framing: bytes, body: bytes, cut: int
) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n"
    reader = new_reader()
    reader.feed(POST + offer + framing + body[:cut])
    reader.feed(body[cut:] + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    (arrival,) = reader.parsed
    assert isinstance(arrival, ParsedRequest)
    assert arrival.request.body == b"hello"
    assert (arrival.flags.can_upgrade, arrival.flags.keep_alive) == (False, False)


def test_a_rejection_keeps_its_reason_inside_another_exception() -> None:
    reader = new_reader(SMALL)
    with suppress(ValueError):
        try:
            raise ValueError
        finally:
            reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n")
    assert statuses(list(reader.parsed)) == [413]


def test_a_body_with_an_upgrade_offer_is_limited_too() -> None:
    raw = b"POST / HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n"
    limits = HttpLimits(max_body=10)
    assert statuses(read(raw + b"b\r\n0123456789a\r\n", limits)) == [413]


def test_a_response_has_a_head() -> None:
    assert response_head(200, ((b"a", b"b"),)) == b"HTTP/1.1 200 OK\r\na: b\r\n"
    assert response_head(599, ()) == b"HTTP/1.1 599 \r\n"


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb: c", b"a\rb: c"])
def test_a_response_header_cannot_contain_another(value: bytes) -> None:
    with pytest.raises(ValueError, match="expected a header in one line"):
        response_head(200, ((b"a", value),))


def test_a_rejection_is_a_complete_response() -> None:
    assert text_response(503, "later", ((b"retry-after", b"1"),)) == (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\n"
        b"connection: close\r\ncontent-length: 6\r\n\r\nlater\n"
    )


@pytest.mark.parametrize("size", [1, 16, 16384, 16385, 100000])
def test_a_chunk_states_its_length(size: int) -> None:
    assert b"".join(encode_chunk(b"x" * size)) == b"%x\r\n" % size + b"x" * size + b"\r\n"


def test_deadlines_are_checked_often_enough() -> None:
    assert HttpLimits().sweep_interval == 0.5
    assert HttpLimits(head_timeout=0.1).sweep_interval == 0.05
    assert HttpLimits(linger_timeout=0).sweep_interval == 0.01


@pytest.mark.parametrize(
    "piece",
    [
        POST + b"content-length: 2\r\n\r\nhi" + POST + b"content-length: 0\r\n\r\n",
        POST + b"content-length: 2\r\n\r\nhi" + b"POST",
        POST + b"content-length: 2\r\n\r\nh",
        POST + b"content-length: 2\r\nconnection: close\r\n\r\nhi",
        b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.0\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
    ],
)
def test_take_default_returns_a_single_default_request_only(piece: bytes) -> None:
    reader = new_reader()
    reader.feed(POST + b"content-length: 2\r\n\r\nhi")
    found = reader.take_default()
    assert found is not None
    assert (found[0].method, found[1], len(reader.parsed)) == ("POST", b"hi", 0)
    reader.feed(piece)
    before = list(reader.parsed)
    assert reader.take_default() is None
    assert list(reader.parsed) == before
