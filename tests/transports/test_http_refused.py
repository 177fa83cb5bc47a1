"""What a status that is no success means to whoever asked."""

import pytest

from trunkline.jsonrpc import ConnectionLost, RpcError
from trunkline.transports.http_refused import HttpRefused, SessionLost


def test_a_refusal_says_what_the_server_said() -> None:
    plain, told = HttpRefused(502), HttpRefused(400, RpcError(-1, "no"), 7.0, astray=True)
    assert str(plain) == "the server answered HTTP 502"
    assert str(told) == "the server answered HTTP 400: no"
    assert (told.retry_after, told.astray) == (7.0, True)
    assert isinstance(told, ConnectionLost)


@pytest.mark.parametrize(
    ("status", "passes"), [(429, True), (503, True), (400, False), (404, False)]
)
def test_some_of_it_passes_and_some_does_not(status: int, passes: bool) -> None:
    assert HttpRefused(status).passes is passes


def test_a_lost_session_remembers_whether_the_call_was_heard() -> None:
    lost = SessionLost(HttpRefused(404, RpcError(-1, "no")), heard=True)
    assert (lost.status, lost.heard, lost.error and lost.error.message) == (404, True, "no")
