"""Server-sent events: as the specification says, cut anywhere, bounded."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.jsonrpc import LocalProtocolError, RemoteProtocolError
from trunkline.transports.sse import COMMENT, Event, SseParser, encode_event

TOO_LONG = "Parse error: expected an event of at most 16 bytes, got more"

Found = list[Event | RemoteProtocolError]


def parse(stream: bytes, max_event: int = 1024) -> list[Event | str]:
    return show(SseParser(max_event).feed(stream))


def show(found: Found) -> list[Event | str]:
    return [item if isinstance(item, Event) else str(item) for item in found]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        # The examples of the specification.
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [Event(b"YHOO\n+2\n10")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\n"
            b"data:second event\nid\n\ndata:  third event",
            [Event(b"first event", id="1"), Event(b"second event", id="")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [Event(b""), Event(b"\n")]),
        (b"data:test\n\ndata: test\n\n", [Event(b"test"), Event(b"test")]),
        # Line ends.
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [Event(b"a"), Event(b"b"), Event(b"c")]),
        (b"data: a\rdata: b\r\ndata: c\n\r\n", [Event(b"a\nb\nc")]),
        (b"data: a\n\r\r\n\n\ndata: b\n\n", [Event(b"a"), Event(b"b")]),
        (b"data: a\x0b\x0c\x1c\xc2\x85\n\n", [Event(b"a\x0b\x0c\x1c\xc2\x85")]),
        # The byte order mark: once, at the very beginning.
        (b"\xef\xbb\xbfdata: a\n\n", [Event(b"a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"\n\xef\xbb\xbfdata: a\n\n", []),
        (b"\xef\xbbdata: a\n\ndata: b\n\n", [Event(b"b")]),
        # Fields.
        (b"data:  a \n\n", [Event(b" a ")]),
        (b"data:\ta\n\n", [Event(b"\ta")]),
        (b"data:a:b: c\n\n", [Event(b"a:b: c")]),
        (b"data: \xff\x00\n\n", [Event(b"\xff\x00")]),
        (b"event: endpoint\ndata: /m\n\n", [Event(b"/m", "endpoint")]),
        (b"event: a\nevent:b\ndata: x\n\ndata: y\n\n", [Event(b"x", "b"), Event(b"y")]),
        (b"event: a\nevent\ndata: x\n\n", [Event(b"x")]),
        (b"event: a\xff\ndata: x\n\n", [Event(b"x", "a\ufffd")]),
        (b"id: 1\nid: \xc3\xa9\ndata: x\n\n", [Event(b"x", id="é")]),
        (b"id: 1\nid: a\x00b\ndata: x\n\n", [Event(b"x", id="1")]),
        (b"retry: 0100\ndata: x\n\n", [Event(b"x", retry=100)]),
        (b"retry: 1\nretry: 1.5\ndata: x\n\n", [Event(b"x", retry=1)]),
        (b"retry:  1\nretry: -1\nretry: +1\nretry: 1 \nretry\ndata: x\n\n", [Event(b"x")]),
        (b"retry: \xc2\xb2\xd9\xa1\ndata: x\n\n", [Event(b"x")]),
        (b"retry: " + b"9" * 999 + b"\ndata: x\n\n", [Event(b"x")]),
        (b"Data: a\n data: b\ndata : c\nfoo: d\nfoo\n\ndata: x\n\n", [Event(b"x")]),
        (b":\n: data: a\n:data: b\ndata: x\n:\n\n", [Event(b"x")]),
        # Without data it is no event, unless whoever comes back has to know of it.
        (b"event: a\n\n\n\n: b\n\n", []),
        (b"event: a\n\ndata: x\n\n", [Event(b"x")]),
        (b"id: 1\n\n", [Event(b"", id="1")]),
        (b"id: 1\ndata: \n\n", [Event(b"", id="1")]),
        (b"id\n\n", [Event(b"", id="")]),
        (b"retry: 5\nevent: a\n\n", [Event(b"", "a", retry=5)]),
        (b"id: a\x00\n\nretry: x\n\n", []),
        # What does not end is none.
        (b"data: a", []),
        (b"data: a\n", []),
        (b"data: a\r\n", []),
        (b"data: a\n\ndata: b\n", [Event(b"a")]),
        (b"", []),
    ],
)
def test_a_stream_is_read_as_the_specification_says(stream: bytes, expected: list[Event]) -> None:
    assert parse(stream) == expected
    parser, found = SseParser(1024), list[Any]()
    for place in range(len(stream)):
        found += parser.feed(stream[place : place + 1]) + parser.feed(b"")
    assert found == expected


def test_an_event_comes_out_as_soon_as_it_ends() -> None:
    parser = SseParser(99)
    assert parser.feed(b"data: a\r\n\r") == [Event(b"a")]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: b\r") == []
    assert parser.feed(b"\r") == [Event(b"b")]
    assert parser.feed(b"\ndata: c\n\n") == [Event(b"c")]


def test_what_to_come_back_with_is_remembered() -> None:
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
        (b"data:" + b"x" * 11 + b"\n\n", [Event(b"x" * 11)]),
        (b"data:" + b"x" * 12 + b"\n\ndata: a\n\n", [TOO_LONG, Event(b"a")]),
        (b"data:xxx\r\ndata:yyy\r\n\r\n", [Event(b"xxx\nyyy")]),
        (b"data:xxx\ndata:yyyy\ndata:z\n\ndata: a\n\n", [TOO_LONG, Event(b"a")]),
        (b"id:12345678\ndata:x\n\ndata: a\n\n", [TOO_LONG, Event(b"a")]),
        (b"event:1234567\nid\n\nid\n\n", [Event(b"", "1234567", ""), Event(b"", id="")]),
        (b"data\n" * 5 + b"\n" + b"data\n" * 4 + b"\n", [TOO_LONG, Event(b"\n\n\n")]),
        # What is not kept does not count, but no line may be longer than an event.
        (b": 7890123456\nfoo: bar\nretry:1\n" * 9 + b"data: a\n\n", [Event(b"a", retry=1)]),
        (b": " + b"x" * 15 + b"\ndata: a\n\ndata: b\n\n", [TOO_LONG, Event(b"b")]),
        # No more is said of it, and nothing in it is read.
        (b"x" * 99 + b"\n" + b"data: " + b"x" * 99 + b"\nid: 5\n\n", [TOO_LONG]),
        (b"data:a\n\ndata:" + b"x" * 12, [Event(b"a"), TOO_LONG]),
    ],
)
def test_an_event_too_long_is_reported_once_and_the_next_is_read(
    stream: bytes, expected: list[Event | str]
) -> None:
    assert parse(stream, max_event=16) == expected
    parser, found = SseParser(max_event=16), Found()
    for place in range(len(stream)):
        found += parser.feed(stream[place : place + 1])
        assert parser.held <= 16
    assert show(found) == expected


def test_an_event_too_long_is_an_accusation_that_is_not_answered() -> None:
    (found,) = SseParser(1).feed(b"data: x")
    assert isinstance(found, RemoteProtocolError)
    assert (found.error.code, found.answer) == (-32700, None)


def test_an_event_too_long_is_not_asked_for_again() -> None:
    parser = SseParser(16)
    parser.feed(b"id: 1\ndata: a\n\nid: 2\ndata: " + b"x" * 99)
    assert parser.last_event_id == "1"
    parser.feed(b"\n\n")
    assert parser.last_event_id == "2"


def test_an_event_too_long_costs_no_more_memory_than_the_limit() -> None:
    parser = SseParser(16)
    assert len(parser.feed(b"data: " + b"x" * 99)) == 1
    for _ in range(1000):
        assert parser.feed(b"x" * 10) == parser.feed(b"\ndata: x") == []
        assert parser.held <= 1
    assert parser.feed(b"\n\ndata: a\n\n") == [Event(b"a")]
    assert parser.held == 0


# What the specification says, in other words: slow, unbounded, and all at once.


def read(stream: bytes) -> list[Event]:
    *blocks, _ = re.split(
        rb"(?<![^\n])\n", re.sub(rb"\r\n?", b"\n", stream.removeprefix(b"\xef\xbb\xbf"))
    )
    events: list[Event] = []
    for block in blocks:
        fields: dict[bytes, list[bytes]] = {}
        for line in block.split(b"\n")[:-1]:
            name, _, value = line.partition(b":")
            fields.setdefault(name, []).append(value.removeprefix(b" "))
        ids = [value for value in fields.get(b"id", []) if b"\0" not in value]
        retries = [value for value in fields.get(b"retry", []) if re.fullmatch(rb"[0-9]+", value)]
        if b"data" in fields or ids or retries:
            events.append(
                Event(
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
def test_any_stream_is_read_as_the_specification_says(stream: bytes) -> None:
    assert parse(stream) == read(stream)


@given(STREAMS, st.integers(0, 20), st.data())
def test_how_the_stream_is_cut_changes_nothing(
    stream: bytes, max_event: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    whole, pieces, found = SseParser(max_event), SseParser(max_event), Found()
    expected = whole.feed(stream)
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += pieces.feed(stream[start:end])
    assert show(found) == show(expected)
    assert (pieces.last_event_id, pieces.retry) == (whole.last_event_id, whole.retry)
    assert pieces.held == whole.held


ONE_LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"))
RETRY = st.none() | st.integers(0, 10**15 - 1)


@given(st.binary(), st.none() | ONE_LINE, ONE_LINE, RETRY)
def test_what_is_written_is_read(
    data: bytes, id: str | None, event: str, retry: int | None
) -> None:
    last_id = None if id is None else id.encode()
    written = encode_event(data, last_id, event.encode(), retry)
    expected = Event(re.sub(rb"\r\n?", b"\n", data), event or "message", id, retry)
    assert SseParser(len(written)).feed(written + COMMENT) == [expected]


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


def test_a_comment_says_nothing() -> None:
    assert parse(COMMENT + b"data: a\n\n" + COMMENT) == [Event(b"a")]
