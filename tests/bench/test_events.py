"""Server-sent events."""

import pytest

from bench.gateway.events import MAX_EVENT, events, messages
from trunkline.http.sse import SseParser

TEXT = b"event: endpoint\ndata: /post\n\n: ping\n\nid: 1\ndata: {\ndata:}\n\ndata: 2\r\n\r\n"
FOUND = [("endpoint", b"/post"), ("message", b"{\n}"), ("message", b"2")]


@pytest.mark.parametrize("step", [1, 3, len(TEXT)])
def test_events_are_parsed_in_any_chunking(step: int) -> None:
    parser = SseParser(MAX_EVENT)
    parts = [TEXT[start : start + step] for start in range(0, len(TEXT), step)]
    assert [found for part in parts for found in events(parser, part)] == FOUND


def test_a_json_body_is_one_message() -> None:
    assert messages(b'{"id":1}') == [b'{"id":1}']


def test_the_messages_of_a_stream_are_its_events() -> None:
    body = b'event: message\r\nid: 7\r\ndata: {"id":1}\r\n\r\nid: 8\ndata: \n\ndata: {"id":2}'
    assert messages(body) == [b'{"id":1}', b'{"id":2}']
