"""Requests out of bytes, however those are cut; and what is refused, and why."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.transports.exchange import Head, HttpRequest
from trunkline.transports.http_message import (
    BODY,
    HEAD,
    IDLE,
    OVER,
    SLICE,
    Arrival,
    HttpLimits,
    HttpRefusal,
    RequestReader,
    beginning,
    chunk,
    plain_answer,
)

POST = b"POST /mcp HTTP/1.1\r\nHost: a\r\n"
DEFAULTS = HttpLimits()
SMALL = HttpLimits(max_target=20, max_head=100, max_headers=4, max_body=10)


def new_reader(limits: HttpLimits = DEFAULTS) -> RequestReader:
    return RequestReader("192.0.2.1", limits)


def read(raw: bytes, limits: HttpLimits = DEFAULTS) -> list[Arrival | HttpRefusal]:
    reader = new_reader(limits)
    reader.feed(raw)
    return list(reader.arrivals)


def request(raw: bytes, limits: HttpLimits = DEFAULTS) -> HttpRequest:
    (arrival,) = read(raw, limits)
    assert isinstance(arrival, Arrival), arrival
    return arrival.request


def refusal(raw: bytes, limits: HttpLimits = DEFAULTS) -> HttpRefusal:
    *_, last = read(raw, limits)
    assert isinstance(last, HttpRefusal), last
    return last


def statuses(arrivals: list[Arrival | HttpRefusal]) -> list[int | str]:
    return [a.status if isinstance(a, HttpRefusal) else a.request.path for a in arrivals]


def test_a_request_is_told_in_full() -> None:
    raw = POST + b"X-One: \t 1 2 \t \r\nACCEPT: a\r\nAccept: b\r\nContent-Length: 2\r\n\r\nhi"
    assert request(raw.replace(b"/mcp", b"/a/b?c=d?e")) == HttpRequest(
        Head(
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
def test_it_does_not_matter_where_bytes_are_cut(cuts: list[int]) -> None:
    reader, edges = new_reader(), [0, *sorted(cuts), len(SEVERAL)]
    for start, end in pairwise(edges):
        reader.feed(SEVERAL[start:end])
    assert list(reader.arrivals) == read(SEVERAL)


def test_requests_come_one_after_the_other_and_trailers_do_not_matter() -> None:
    arrivals = read(SEVERAL)
    assert statuses(arrivals) == ["/1", "/2", "/3"]
    last = arrivals[-1]
    assert isinstance(last, Arrival)
    assert last.request.body == b"def"
    assert last.request.headers == {b"host": b"a", b"transfer-encoding": b"Chunked"}
    assert last.request.repeated == frozenset()


def test_the_phase_tells_how_far_a_request_is() -> None:
    reader, phases = new_reader(), list[int]()
    for piece in (b"\r\n", b"P", POST[1:] + b"content-length: 2\r\n\r\n", b"h", b"i"):
        reader.feed(piece)
        phases.append(reader.phase)
    assert phases == [IDLE, HEAD, BODY, BODY, IDLE]
    reader.feed(b"\x00")
    assert reader.phase == OVER


def test_a_known_body_may_be_fed_at_once_and_nothing_else() -> None:
    reader = new_reader()
    assert reader.appetite == SLICE
    reader.feed(POST + b"content-length: 100000\r\n\r\n" + b"x" * 10)
    assert reader.appetite == 99990
    reader.feed(b"x" * 99990 + POST)
    assert reader.appetite == SLICE


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
def test_what_could_be_read_in_two_ways_is_refused(status: int, lines: bytes) -> None:
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
def test_chunks_are_as_they_have_to_be(body: bytes) -> None:
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
def test_what_is_not_a_request_for_us_is_refused(raw: bytes, status: int) -> None:
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
def test_a_target_may_name_the_host_again(target: bytes, path: str, query: str) -> None:
    found = request(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (found.path, found.query) == (path, query)


def test_a_long_target_is_refused_before_it_ends() -> None:
    reader = new_reader(SMALL)
    reader.feed(b"GET /" + b"a" * 19)
    assert not reader.arrivals
    reader.feed(b"a")
    assert statuses(list(reader.arrivals)) == [414]


def test_a_head_has_its_size_and_no_more() -> None:
    fits = b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 85 + b"\r\n\r\n"
    assert request(fits, SMALL).headers[b"x"] == b"y" * 85
    assert refusal(fits.replace(b"yy", b"yyy"), SMALL).status == 431


@pytest.mark.parametrize("endless", [b"x: " + b"y" * 200000, b"x: y\r\n" * 40000, b"x" * 200000])
def test_a_head_without_end_is_refused_soon(endless: bytes) -> None:
    reader, fed = new_reader(), 0
    raw = POST + endless
    while not reader.arrivals:
        assert fed < 100_000
        reader.feed(raw[fed : fed + reader.appetite])
        fed += SLICE
    assert statuses(list(reader.arrivals)) == [431]
    assert fed <= DEFAULTS.max_head + 2 * SLICE


@pytest.mark.parametrize("same", [True, False])
def test_headers_are_counted_whether_they_repeat_or_not(same: bool) -> None:
    lines = [b"x%d: y\r\n" % (0 if same else number) for number in range(4)]
    head = b"GET / HTTP/1.1\r\nhost: a\r\n"
    assert request(head + b"".join(lines[:3]) + b"\r\n", SMALL)
    assert refusal(head + b"".join(lines) + b"\r\n", SMALL).status == 431


def test_a_long_body_is_refused_by_its_head() -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: "
    assert request(head + b"10\r\n\r\n0123456789", SMALL).body == b"0123456789"
    assert refusal(head + b"11\r\n\r\n", SMALL).status == 413


def test_a_long_body_in_chunks_is_refused_when_it_is_too_long() -> None:
    reader = new_reader(SMALL)
    reader.feed(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    reader.feed(b"5\r\n01234\r\n5\r\n56789\r\n")
    assert not reader.arrivals
    reader.feed(b"1\r\n0")
    assert statuses(list(reader.arrivals)) == [413]


@pytest.mark.parametrize(
    "around",
    [b"1;" + b"x" * 200000, b"0\r\nx: " + b"y" * 200000, b"0\r\n" + b"x: y\r\n" * 40000],
    ids=["extension", "trailer", "trailers"],
)
def test_what_surrounds_a_body_is_bounded(around: bytes) -> None:
    reader, fed = new_reader(), 0
    raw = CHUNKED + around
    while not reader.arrivals:
        assert fed < 100_000
        reader.feed(raw[fed : fed + SLICE])
        fed += SLICE
    assert isinstance(reader.arrivals[0], HttpRefusal)


def test_many_small_chunks_are_a_body_like_any_other() -> None:
    raw = CHUNKED + b"1\r\nx\r\n" * 50000 + b"0\r\n\r\n"
    reader = new_reader()
    for start in range(0, len(raw), SLICE):
        reader.feed(raw[start : start + SLICE])
    (arrival,) = reader.arrivals
    assert isinstance(arrival, Arrival)
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
def test_a_head_tells_whether_more_may_follow(raw: bytes, modern: bool, persistent: bool) -> None:
    (arrival,) = read(raw + raw)[:1] if not persistent else read(raw)
    assert isinstance(arrival, Arrival)
    assert (arrival.manner.modern, arrival.manner.persistent) == (modern, persistent)
    assert statuses(read(raw + raw)) == ["/"] * (1 + persistent)


def test_what_was_read_before_a_refusal_stays() -> None:
    good = b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\n"
    reader = new_reader()
    reader.feed(good + b"nonsense\r\n\r\n" + good)
    reader.feed(good)
    assert statuses(list(reader.arrivals)) == ["/1", 400]


def test_only_the_first_refusal_counts() -> None:
    reader = new_reader()
    reader.refuse(HttpRefusal(408, "slow"))
    reader.refuse(HttpRefusal(400, "late"))
    assert statuses(list(reader.arrivals)) == [408]


def test_a_reader_that_was_stopped_reads_no_more() -> None:
    reader = new_reader()
    reader.feed(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    reader.stop()
    reader.feed(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert not reader.arrivals


def test_a_client_may_wait_before_it_sends_its_body() -> None:
    reader = new_reader()
    reader.feed(POST + b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\n")
    assert reader.expects_continue
    reader.feed(b"hi")
    assert not reader.expects_continue


UPGRADE = b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"


def test_an_upgrade_may_be_offered_and_what_follows_is_kept() -> None:
    reader = new_reader()
    reader.feed(b"GET /ws HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"\r\n\x81\x00GET")
    (arrival,) = reader.arrivals
    assert isinstance(arrival, Arrival)
    assert (arrival.manner.upgradable, arrival.manner.persistent, reader.rest) == (
        True,
        False,
        b"\x81\x00GET",
    )
    assert reader.phase == OVER


def test_an_upgrade_is_not_for_the_old() -> None:
    (arrival,) = read(b"GET /ws HTTP/1.0\r\n" + UPGRADE + b"\r\n")
    assert isinstance(arrival, Arrival)
    assert not arrival.manner.upgradable


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
    (arrival,) = reader.arrivals
    assert isinstance(arrival, Arrival)
    assert arrival.request.body == b"hello"
    assert (arrival.manner.upgradable, arrival.manner.persistent) == (False, False)


def test_a_refusal_keeps_its_reason_whatever_else_goes_wrong() -> None:
    reader = new_reader(SMALL)
    with suppress(ValueError):
        try:
            raise ValueError
        finally:
            reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n")
    assert statuses(list(reader.arrivals)) == [413]


def test_a_body_that_comes_with_an_offer_is_bounded_too() -> None:
    raw = b"POST / HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n"
    limits = HttpLimits(max_body=10)
    assert statuses(read(raw + b"b\r\n0123456789a\r\n", limits)) == [413]


def test_an_answer_has_a_head() -> None:
    assert beginning(200, ((b"a", b"b"),)) == b"HTTP/1.1 200 OK\r\na: b\r\n"
    assert beginning(599, ()) == b"HTTP/1.1 599 \r\n"


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb: c", b"a\rb: c"])
def test_no_header_of_an_answer_can_hold_another(value: bytes) -> None:
    with pytest.raises(ValueError, match="expected a header in one line"):
        beginning(200, ((b"a", value),))


def test_a_refusal_is_an_answer_in_full() -> None:
    assert plain_answer(503, "later", ((b"retry-after", b"1"),)) == (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\n"
        b"connection: close\r\ncontent-length: 6\r\n\r\nlater\n"
    )


@pytest.mark.parametrize("size", [1, 16, 16384, 16385, 100000])
def test_a_chunk_says_how_long_it_is(size: int) -> None:
    assert b"".join(chunk(b"x" * size)) == b"%x\r\n" % size + b"x" * size + b"\r\n"


def test_deadlines_are_looked_at_often_enough() -> None:
    assert HttpLimits().sweep_every == 0.5
    assert HttpLimits(head_timeout=0.1).sweep_every == 0.05
    assert HttpLimits(linger=0).sweep_every == 0.01


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
def test_one_request_in_the_usual_manner_can_be_had_at_once_and_nothing_else(piece: bytes) -> None:
    reader = new_reader()
    reader.feed(POST + b"content-length: 2\r\n\r\nhi")
    found = reader.usual()
    assert found is not None
    assert (found[0].method, found[1], len(reader.arrivals)) == ("POST", b"hi", 0)
    reader.feed(piece)
    before = list(reader.arrivals)
    assert reader.usual() is None
    assert list(reader.arrivals) == before
