"""Byte stream to payloads: any chunking, bounded lines, and recovery after a long line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Framer, LocalProtocolError, RemoteProtocolError, frame

LINES = st.lists(
    st.lists(st.sampled_from([b"a", b"bc", b" ", b"\r", b"\xff"]), max_size=9).map(b"".join),
    max_size=8,
)


def show(found: list[bytes | RemoteProtocolError]) -> list[bytes | str]:
    return [item if isinstance(item, bytes) else str(item) for item in found]


@pytest.mark.holds("O4.1")
def test_a_line_is_a_payload() -> None:
    framer = Framer()
    assert framer.feed(b'{"a":1}\n{"b"') == [b'{"a":1}']
    assert framer.feed(b":2}\r\n") == [b'{"b":2}']
    assert framer.close() == []


@pytest.mark.holds("O4.1")
def test_blank_lines_are_ignored() -> None:
    assert Framer().feed(b"\n\r\n  \t\r\n1\n\n") == [b"1"]


def test_the_last_line_needs_no_end() -> None:
    framer = Framer()
    assert framer.feed(b"1\n2") == [b"1"]
    assert framer.close() == [b"2"]
    assert framer.close() == []


def test_a_line_too_long_is_reported_once_and_the_next_is_read() -> None:
    framer = Framer(max_line=5)
    found = framer.feed(b"12345\n123456\r\n1\n")
    assert found[0] == b"12345"
    assert isinstance(found[1], RemoteProtocolError)
    assert found[2:] == [b"1"]
    answer = json.loads(found[1].error_payload or b"")
    assert answer["id"] is None
    assert answer["error"] == {
        "code": -32700,
        "message": "Parse error: expected a line of at most 5 bytes, got 7",
    }


def test_a_line_may_be_as_long_as_the_limit_without_its_end() -> None:
    assert Framer(max_line=5).feed(b"12345\r\n") == [b"12345"]
    framer = Framer(max_line=5)
    assert [framer.feed(bytes([byte])) for byte in b"12345\r\n"][-1] == [b"12345"]


def test_a_line_too_long_costs_no_more_memory_than_the_limit() -> None:
    framer = Framer(max_line=1000)
    for _ in range(1000):
        assert framer.feed(b"x" * 100) == []
        assert framer.buffered <= 1001
    assert show(framer.feed(b"\n1\n")) == [
        "Parse error: expected a line of at most 1000 bytes, got 100000",
        b"1",
    ]


def test_a_line_too_long_at_the_very_end_is_reported_too() -> None:
    framer = Framer(max_line=2)
    framer.feed(b"12345")
    assert [type(item) for item in framer.close()] == [RemoteProtocolError]


@given(LINES, st.data())
def test_how_the_stream_is_cut_changes_nothing(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"\n".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    whole, pieces = Framer(max_line=6), Framer(max_line=6)
    expected = whole.feed(stream) + whole.close()
    found: list[bytes | RemoteProtocolError] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += pieces.feed(stream[start:end])
    assert show(found + pieces.close()) == show(expected)


@given(LINES)
def test_framed_payloads_come_back_unchanged(lines: list[bytes]) -> None:
    framer = Framer()
    stream = b"".join(line + b"\n" for line in lines)
    stripped = [line.removesuffix(b"\r") for line in lines]
    assert framer.feed(stream) == [line for line in stripped if line.strip()]


def test_a_payload_is_sent_as_one_line() -> None:
    assert frame(b'{"a":1}') == b'{"a":1}\n'
    with pytest.raises(LocalProtocolError, match="line break"):
        frame(b"{\n}")


@pytest.mark.parametrize("size", [1, 7, 300, 5000])
@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":"' + b"x" * 2000 + b'"}',
        b'{"result":"' + b"x" * 2000 + b'","jsonrpc":"2.0","id":7}',
    ],
)
def test_the_id_of_a_response_that_is_too_long_is_found_in_any_chunking(
    line: bytes, size: int
) -> None:
    for limit in (100, len(line) - 1):
        framer, found = Framer(limit), list[object]()
        for at in range(0, len(line) + 1, size):
            found += framer.feed((line + b"\n")[at : at + size])
        (accusation,) = found
        assert isinstance(accusation, RemoteProtocolError)
        assert accusation.response_id == 7
        assert framer.buffered == 0
