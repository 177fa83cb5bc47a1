"""Server-sent events: parsed as specified, cut anywhere, limited in size."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.http.sse import PING_COMMENT, SseEvent, SseParser, encode_event
from trunkline.jsonrpc import LocalProtocolError, RemoteProtocolError

TOO_LONG = "Parse error: expected an event of at most 16 bytes, got more"

Found = list[SseEvent | RemoteProtocolError]


def parse(stream: bytes, max_event: int = 1024) -> list[SseEvent | str]:
    return show(SseParser(max_event).feed(stream))


def show(found: Found) -> list[SseEvent | str]:
    return [item if isinstance(item, SseEvent) else str(item) for item in found]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        # The examples of the specification.
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [SseEvent(b"YHOO\n+2\n10")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\n"
            b"data:second event\nid\n\ndata:  third event",
            [SseEvent(b"first event", id="1"), SseEvent(b"second event", id="")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [SseEvent(b""), SseEvent(b"\n")]),
        (b"data:test\n\ndata: test\n\n", [SseEvent(b"test"), SseEvent(b"test")]),
        # Line ends.
        (
            b"data: a\r\n\r\ndata: b\r\rdata: c\n\n",
            [SseEvent(b"a"), SseEvent(b"b"), SseEvent(b"c")],
        ),
        (b"data: a\rdata: b\r\ndata: c\n\r\n", [SseEvent(b"a\nb\nc")]),
        (b"data: a\n\r\r\n\n\ndata: b\n\n", [SseEvent(b"a"), SseEvent(b"b")]),
        (b"data: a\x0b\x0c\x1c\xc2\x85\n\n", [SseEvent(b"a\x0b\x0c\x1c\xc2\x85")]),
        # The byte order mark: once, at the very beginning.
        (b"\xef\xbb\xbfdata: a\n\n", [SseEvent(b"a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"\n\xef\xbb\xbfdata: a\n\n", []),
        (b"\xef\xbbdata: a\n\ndata: b\n\n", [SseEvent(b"b")]),
        # Fields.
        (b"data:  a \n\n", [SseEvent(b" a ")]),
        (b"data:\ta\n\n", [SseEvent(b"\ta")]),
        (b"data:a:b: c\n\n", [SseEvent(b"a:b: c")]),
        (b"data: \xff\x00\n\n", [SseEvent(b"\xff\x00")]),
        (b"event: endpoint\ndata: /m\n\n", [SseEvent(b"/m", "endpoint")]),
        (b"event: a\nevent:b\ndata: x\n\ndata: y\n\n", [SseEvent(b"x", "b"), SseEvent(b"y")]),
        (b"event: a\nevent\ndata: x\n\n", [SseEvent(b"x")]),
        (b"event: a\xff\ndata: x\n\n", [SseEvent(b"x", "a\ufffd")]),
        (b"id: 1\nid: \xc3\xa9\ndata: x\n\n", [SseEvent(b"x", id="é")]),
        (b"id: 1\nid: a\x00b\ndata: x\n\n", [SseEvent(b"x", id="1")]),
        (b"retry: 0100\ndata: x\n\n", [SseEvent(b"x", retry=100)]),
        (b"retry: 1\nretry: 1.5\ndata: x\n\n", [SseEvent(b"x", retry=1)]),
        (b"retry:  1\nretry: -1\nretry: +1\nretry: 1 \nretry\ndata: x\n\n", [SseEvent(b"x")]),
        (b"retry: \xc2\xb2\xd9\xa1\ndata: x\n\n", [SseEvent(b"x")]),
        (b"retry: " + b"9" * 999 + b"\ndata: x\n\n", [SseEvent(b"x")]),
        (b"Data: a\n data: b\ndata : c\nfoo: d\nfoo\n\ndata: x\n\n", [SseEvent(b"x")]),
        (b":\n: data: a\n:data: b\ndata: x\n:\n\n", [SseEvent(b"x")]),
        # Without data it is an event only if a client needs it to resume.
        (b"event: a\n\n\n\n: b\n\n", []),
        (b"event: a\n\ndata: x\n\n", [SseEvent(b"x")]),
        (b"id: 1\n\n", [SseEvent(b"", id="1")]),
        (b"id: 1\ndata: \n\n", [SseEvent(b"", id="1")]),
        (b"id\n\n", [SseEvent(b"", id="")]),
        (b"retry: 5\nevent: a\n\n", [SseEvent(b"", "a", retry=5)]),
        (b"id: a\x00\n\nretry: x\n\n", []),
        # An unfinished event is ignored.
        (b"data: a", []),
        (b"data: a\n", []),
        (b"data: a\r\n", []),
        (b"data: a\n\ndata: b\n", [SseEvent(b"a")]),
        (b"", []),
    ],
)
def test_a_stream_is_parsed_as_specified(stream: bytes, expected: list[SseEvent]) -> None:
    assert parse(stream) == expected
    parser, found = SseParser(1024), list[Any]()
    for place in range(len(stream)):
        found += parser.feed(stream[place : place + 1]) + parser.feed(b"")
    assert found == expected


def test_an_event_is_returned_as_soon_as_it_ends() -> None:
    parser = SseParser(99)
    assert parser.feed(b"data: a\r\n\r") == [SseEvent(b"a")]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: b\r") == []
    assert parser.feed(b"\r") == [SseEvent(b"b")]
    assert parser.feed(b"\ndata: c\n\n") == [SseEvent(b"c")]


def test_the_last_event_id_is_kept() -> None:
    parser = SseParser(99)
    assert (parser.last_event_id, parser.retry) == ("", None)
    parser.feed(b"id: 1\nretry: 10\ndata: a\n\ndata: b\n\nretry: x\n\n")
    assert (parser.last_event_id, parser.retry) == ("1", 10)
    parser.feed(b"id: 2\nretry: 20\n")  # the id counts when its event has ended
    assert (parser.last_event_id, parser.retry) == ("1", 20)
    parser.feed(b"\n")
    assert parser.last_event_id == "2"
    parser.feed(b"id\n\n")
    assert parser.last_event_id == ""


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data:" + b"x" * 11 + b"\n\n", [SseEvent(b"x" * 11)]),
        (b"data:" + b"x" * 12 + b"\n\ndata: a\n\n", [TOO_LONG, SseEvent(b"a")]),
        (b"data:xxx\r\ndata:yyy\r\n\r\n", [SseEvent(b"xxx\nyyy")]),
        (b"data:xxx\ndata:yyyy\ndata:z\n\ndata: a\n\n", [TOO_LONG, SseEvent(b"a")]),
        (b"id:12345678\ndata:x\n\ndata: a\n\n", [TOO_LONG, SseEvent(b"a")]),
        (b"event:1234567\nid\n\nid\n\n", [SseEvent(b"", "1234567", ""), SseEvent(b"", id="")]),
        (b"data\n" * 5 + b"\n" + b"data\n" * 4 + b"\n", [TOO_LONG, SseEvent(b"\n\n\n")]),
        # Ignored lines do not count, but no line may be longer than an event.
        (b": 7890123456\nfoo: bar\nretry:1\n" * 9 + b"data: a\n\n", [SseEvent(b"a", retry=1)]),
        (b": " + b"x" * 15 + b"\ndata: a\n\ndata: b\n\n", [TOO_LONG, SseEvent(b"b")]),
        # It is reported once, and its fields are ignored.
        (b"x" * 99 + b"\n" + b"data: " + b"x" * 99 + b"\nid: 5\n\n", [TOO_LONG]),
        (b"data:a\n\ndata:" + b"x" * 12, [SseEvent(b"a"), TOO_LONG]),
    ],
)
def test_an_oversized_event_is_reported_once_and_the_next_is_parsed(
    stream: bytes, expected: list[SseEvent | str]
) -> None:
    assert parse(stream, max_event=16) == expected
    parser, found = SseParser(max_event_bytes=16), Found()
    for place in range(len(stream)):
        found += parser.feed(stream[place : place + 1])
        assert parser.buffered_bytes <= 16
    assert show(found) == expected


def test_an_oversized_event_is_an_error_without_a_response() -> None:
    (found,) = SseParser(1).feed(b"data: x")
    assert isinstance(found, RemoteProtocolError)
    assert (found.error.code, found.error_payload) == (-32700, None)


def test_an_oversized_event_is_not_requested_again() -> None:
    parser = SseParser(16)
    parser.feed(b"id: 1\ndata: a\n\nid: 2\ndata: " + b"x" * 99)
    assert parser.last_event_id == "1"
    parser.feed(b"\n\n")
    assert parser.last_event_id == "2"


def test_an_oversized_event_takes_no_more_memory_than_the_limit() -> None:
    parser = SseParser(16)
    assert len(parser.feed(b"data: " + b"x" * 99)) == 1
    for _ in range(1000):
        assert parser.feed(b"x" * 10) == parser.feed(b"\ndata: x") == []
        assert parser.buffered_bytes <= 1
    assert parser.feed(b"\n\ndata: a\n\n") == [SseEvent(b"a")]
    assert parser.buffered_bytes == 0


# A second implementation of the specification: slow, unbounded, without chunks.


def read(stream: bytes) -> list[SseEvent]:
    *blocks, _ = re.split(
        rb"(?<![^\n])\n", re.sub(rb"\r\n?", b"\n", stream.removeprefix(b"\xef\xbb\xbf"))
    )
    events: list[SseEvent] = []
    for block in blocks:
        fields: dict[bytes, list[bytes]] = {}
        for line in block.split(b"\n")[:-1]:
            name, _, value = line.partition(b":")
            fields.setdefault(name, []).append(value.removeprefix(b" "))
        ids = [value for value in fields.get(b"id", []) if b"\0" not in value]
        retries = [value for value in fields.get(b"retry", []) if re.fullmatch(rb"[0-9]+", value)]
        if b"data" in fields or ids or retries:
            events.append(
                SseEvent(
                    b"\n".join(fields.get(b"data", [])),
                    fields.get(b"event", [b""])[-1].decode(errors="replace") or "message",
                    ids[-1].decode(errors="replace") if ids else None,
                    int(retries[-1]) if retries else None,
                )
            )
    return events


PIECES = [b"data", b"id", b"event", b"retry", b"\xef\xbb\xbf", b"\xef", b"\0", b"\xff", b"a", b"7"]
ENDS = [b"\n", b"\r", b"\r\n", b"\n\n"]
STREAMS = st.lists(st.sampled_from([*PIECES, *ENDS, *ENDS, b":", b":", b" "])).map(b"".join)


@given(STREAMS)
@example(b"\n\n\r\r\n\r")
def test_any_stream_is_parsed_as_specified(stream: bytes) -> None:
    assert parse(stream) == read(stream)


@given(STREAMS, st.integers(0, 20), st.data())
def test_the_cutting_of_the_stream_makes_no_difference(
    stream: bytes, max_event: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    whole, pieces, found = SseParser(max_event), SseParser(max_event), Found()
    expected = whole.feed(stream)
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += pieces.feed(stream[start:end])
    assert show(found) == show(expected)
    assert (pieces.last_event_id, pieces.retry) == (whole.last_event_id, whole.retry)
    assert pieces.buffered_bytes == whole.buffered_bytes


ONE_LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"))
RETRY = st.none() | st.integers(0, 10**15 - 1)


@given(st.binary(), st.none() | ONE_LINE, ONE_LINE, RETRY)
def test_encoded_events_are_parsed_back(
    data: bytes, id: str | None, event: str, retry: int | None
) -> None:
    last_id = None if id is None else id.encode()
    written = encode_event(data, last_id, event.encode(), retry)
    expected = SseEvent(re.sub(rb"\r\n?", b"\n", data), event or "message", id, retry)
    assert SseParser(len(written)).feed(written + PING_COMMENT) == [expected]


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"data": b"{}"}, b"data: {}\n\n"),
        ({"data": b""}, b"data: \n\n"),
        ({"data": b"a\nb\r\n\rc\n"}, b"data: a\ndata: b\ndata: \ndata: c\ndata: \n\n"),
        ({"data": b"", "id": b"", "retry": 0}, b"id: \nretry: 0\ndata: \n\n"),
        (
            {"data": b"x", "id": b"7", "event": b"message", "retry": 500},
            b"id: 7\nevent: message\nretry: 500\ndata: x\n\n",
        ),
    ],
)
def test_an_event_is_written_line_by_line(given: dict[str, Any], written: bytes) -> None:
    assert encode_event(**given) == written


@pytest.mark.parametrize("value", [b"a\nb", b"a\r", b"\0"])
def test_a_field_cannot_break_out_of_its_line(value: bytes) -> None:
    with pytest.raises(LocalProtocolError, match="expected id on one line, got "):
        encode_event(b"", id=value)
    with pytest.raises(LocalProtocolError, match="expected event on one line, got "):
        encode_event(b"", event=value)


def test_a_comment_is_ignored() -> None:
    assert parse(PING_COMMENT + b"data: a\n\n" + PING_COMMENT) == [SseEvent(b"a")]
