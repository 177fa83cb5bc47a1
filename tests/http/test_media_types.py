"""Media types: ranges, weights, and malformed headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.http.media_types import accepts, is_json, is_utf8, media_type

JSON, EVENTS = "application/json", "text/event-stream"


@pytest.mark.parametrize(
    ("accept", "json", "events"),
    [
        (None, True, True),
        (b"application/json, text/event-stream", True, True),
        (b"text/event-stream,application/json", True, True),
        (b"application/json", True, False),
        (b"text/event-stream", False, True),
        (b"*/*", True, True),
        (b"*", True, True),
        (b"application/*", True, False),
        (b"text/*", False, True),
        (b"text/*, application/json;q=0.5", True, True),
        (b"text/html, image/gif, *; q=.2, */*; q=.2", True, True),
        (b"APPLICATION/JSON , Text/*", True, True),
        (b"application/json;charset=utf-8, text/event-stream; a=b; q=0.001", True, True),
        # A weight of zero excludes, and the most specific range decides.
        (b"application/json;q=0, text/event-stream", False, True),
        (b"*/*, application/json;q=0", False, True),
        (b"application/json;Q=0.000 , */*;q=0.1", False, True),
        (b"application/json; q = 0. , */*", False, True),
        (b"*/*;q=0, application/json", True, False),
        (b"text/*;q=0, text/event-stream", False, True),
        (b"text/event-stream, text/*;q=0, */*;q=0", False, True),
        (b"text/*;q=0, */*", True, False),
        (b"application/json;v=1;q=0, application/json, text/event-stream;q=0", True, False),
        (b"application/json, application/json;v=1;q=0", True, False),
        # Quoted separators do not count.
        (b'text/html;a="x, application/json, y"', False, False),
        (b'text/html;a="\\", application/json, y", text/event-stream', False, True),
        (b'application/json;a="b;q=0"', True, False),
        (b'text/event-stream, text/html;a="x, application/json', False, True),
        # Malformed ranges accept nothing, and do not affect other ranges.
        (b"", False, False),
        (b" , ;q=0,, ;;", False, False),
        (b"json", False, False),
        (b"*/json", False, False),
        (b"application", False, False),
        (b"application/jsonx, application/jso", False, False),
        (b"application/json;q=x, text/event-stream;q=", True, True),
        (b"application/json;q=-1;q", True, False),
        (b"\xff\x00\n, application/json", True, False),
        (b'"\\', False, False),
    ],
)
def test_the_most_specific_range_decides(accept: bytes | None, json: bool, events: bool) -> None:
    assert accepts(accept, JSON) is json
    assert accepts(accept, EVENTS) is events


@pytest.mark.parametrize(
    ("content_type", "expected", "utf8"),
    [
        (None, "", True),
        (b"", "", True),
        (b"application/json", JSON, True),
        (b"Application/JSON ; Charset=UTF-8", JSON, True),
        (b'application/json;charset="utf-8"', JSON, True),
        (b"application/json;charset=utf8;a=b", JSON, True),
        (b"application/json; charset=latin-1", JSON, False),
        (b"application/json; charset=utf-16", JSON, False),
        (b"application/json; charset=utf-8; charset=utf-7", JSON, False),
        (b"application/json; charset=", JSON, False),
        (b"application/json; charset", JSON, False),
        (b'application/json; a="; charset=latin-1"', JSON, True),
        (b"application/vnd.api+json;", "application/vnd.api+json", True),
        (b"application/json, text/html", "", True),
        (b"application/json text/html", "", True),
        (b"application/", "", True),
        (b"/json", "", True),
        (b"json", "", True),
        (b"a/b/c", "", True),
        (b"application/json\n", JSON, True),
        (b"\xff/\xfe", "", True),
        (b";charset=utf-8", "", True),
    ],
)
def test_a_media_type_is_read_without_its_parameters(
    content_type: bytes | None, expected: str, utf8: bool
) -> None:
    assert media_type(content_type) == expected
    assert is_utf8(content_type) is utf8
    assert is_json(content_type) is (expected == JSON and utf8)


@given(st.one_of(st.binary(), st.text('a/*;,q=0." \\').map(str.encode)))
def test_malformed_headers_do_not_raise(header: bytes) -> None:
    assert accepts(header, JSON) in {True, False}
    assert is_utf8(header) in {True, False}
    assert media_type(header) == "" or media_type(header).count("/") == 1
