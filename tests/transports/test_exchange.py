"""Exchange: the value that a request is, whoever carries it."""

import pytest

from trunkline.transports.exchange import HttpRequest


def test_a_request_is_a_value_that_nobody_changes() -> None:
    request = HttpRequest("GET", "/mcp", "a=1", {b"host": b"h"}, frozenset(), b"", "127.0.0.1")
    same = HttpRequest("GET", "/mcp", "a=1", {b"host": b"h"}, frozenset(), b"", "127.0.0.1")
    assert request == same
    with pytest.raises(AttributeError):
        setattr(request, "method", "POST")  # noqa: B010  what pyright would not let us write


def test_printing_a_request_shows_nothing_that_may_be_secret() -> None:
    headers = {b"authorization": b"Bearer canary"}
    request = HttpRequest("GET", "/mcp", "t=canary", headers, frozenset(), b"canary", "127.0.0.1")
    assert repr(request) == "HttpRequest('GET', '/mcp', …)"
