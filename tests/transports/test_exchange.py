"""Exchange: the value that a request is, whoever carries it."""

import pytest

from trunkline.transports.exchange import Head, HttpRequest


def test_a_request_is_a_value_that_nobody_changes() -> None:
    request, same = (
        HttpRequest(Head("GET", "/mcp", "a=1", {b"host": b"h"}, frozenset(), "127.0.0.1"), b"")
        for _ in range(2)
    )
    assert request == same
    assert (request.method, request.path, request.query) == ("GET", "/mcp", "a=1")
    assert (request.headers, request.repeated) == ({b"host": b"h"}, frozenset())
    assert request.address == "127.0.0.1"
    with pytest.raises(AttributeError):
        setattr(request, "method", "POST")  # noqa: B010  what pyright would not let us write


def test_printing_a_request_shows_nothing_that_may_be_secret() -> None:
    headers = {b"authorization": b"Bearer canary"}
    head = Head("GET", "/mcp", "t=canary", headers, frozenset(), "127.0.0.1")
    request = HttpRequest(head, b"canary")
    assert repr(request) == "HttpRequest('GET', '/mcp', …)"
