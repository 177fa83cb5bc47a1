"""Responses of upstreams over HTTP: results, error statuses, and messages in event streams."""

from collections import deque
from typing import Any

import pytest

from trunkline.backends.http_responses import (
    MessageStream,
    SessionLost,
    UpstreamStatusError,
    parse_result,
    parse_retry_after,
)
from trunkline.backends.limits import DEFAULT_LIMITS, StreamLimits
from trunkline.jsonrpc import (
    ConnectionLost,
    MalformedResponse,
    Notification,
    RemoteProtocolError,
    RpcError,
)


def test_a_result_is_returned_and_an_error_raised() -> None:
    assert bytes(parse_result(b'{"jsonrpc":"2.0","id":1,"result":null}', 1)) == b"null"
    for id in (b"1", b"null"):
        body = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-1,"message":"no"}}' % id
        with pytest.raises(RpcError, match="no"):
            parse_result(body, 1)


def test_a_response_in_a_batch_is_found() -> None:
    body = b'[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"result":2}]'
    assert bytes(parse_result(body, 1)) == b"2"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "malformed"),
        (b'{"jsonrpc":"2.0","id":2}', "malformed"),
        (b'{"jsonrpc":"2.0","id":2,"result":1,"error":{"code":1,"message":""}}', "malformed"),
        (b'{"jsonrpc":"2.0","id":2,"result":1}', "does not belong"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', "does not belong"),
    ],
)
def test_other_messages_leave_the_request_without_a_response(body: bytes, why: str) -> None:
    with pytest.raises(ConnectionLost, match=why) as lost:
        parse_result(body, 1)
    assert not lost.value.peer_not_at_fault


@pytest.mark.holds("C32")
@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}',
        b'[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"error":"no"}]',
    ],
)
def test_a_malformed_response_is_the_fault_of_the_server(body: bytes) -> None:
    with pytest.raises(MalformedResponse, match="malformed") as failed:
        parse_result(body, 1)
    assert failed.value.code == -32603


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), (b"7", 7.0), (b"-1", None), (b"Wed, 21 Oct 2015", None), (b"9" * 7, None)],
)
def test_only_retry_after_in_seconds_is_parsed(header: bytes | None, seconds: float | None) -> None:
    assert parse_retry_after(header) == seconds


def test_a_status_error_quotes_the_server() -> None:
    plain, detailed = (
        UpstreamStatusError(502),
        UpstreamStatusError(400, RpcError(-1, "no"), 7.0, is_misaddressed=True),
    )
    assert str(plain) == "the server answered HTTP 502"
    assert str(detailed) == "the server answered HTTP 400: no"
    assert (detailed.retry_after, detailed.is_misaddressed) == (7.0, True)
    assert isinstance(detailed, ConnectionLost)


@pytest.mark.parametrize(
    ("status", "passes"), [(429, True), (503, True), (400, False), (404, False)]
)
def test_some_statuses_are_temporary(status: int, passes: bool) -> None:
    assert UpstreamStatusError(status).is_temporary is passes


def test_a_lost_session_says_whether_the_request_was_maybe_processed() -> None:
    lost = SessionLost(UpstreamStatusError(404, RpcError(-1, "no")), maybe_processed=True)
    assert (lost.status, lost.maybe_processed, lost.error and lost.error.message) == (
        404,
        True,
        "no",
    )


class Answer:
    """Stands in for a response whose body comes in these pieces."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = deque(pieces)
        self.idle_timeout_disabled = self.closed = False

    async def receive(self) -> bytes | None:
        found = self._pieces.popleft() if self._pieces else None
        if isinstance(found, Exception):
            raise found
        return found

    def disable_read_timeout(self) -> None:
        self.idle_timeout_disabled = True

    def close(self) -> None:
        self.closed = True


def stream(answer: Answer, limits: StreamLimits = DEFAULT_LIMITS.streams) -> MessageStream:
    response: Any = answer  # all that is used of one
    return MessageStream(response, limits)


def event(method: str, more: str = "") -> bytes:
    return f'{more}data: {{"jsonrpc":"2.0","method":"{method}"}}\n\n'.encode()


async def methods(found: MessageStream) -> list[str]:
    received: list[str] = []
    while (message := await found.next()) is not None:
        if isinstance(message, RemoteProtocolError):
            received.append("broken")
        else:
            assert isinstance(message, Notification)
            received.append(message.method)
    return received


async def test_only_messages_are_returned_however_the_stream_is_cut() -> None:
    whole = event("a") + b": comment\n\n" + event("b", "event: other\n") + b"data: broken\n\n"
    whole += event("c", "event: message\n")
    for size in (1, 7, len(whole)):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert await methods(stream(Answer(*pieces))) == ["a", "broken", "c"]


async def test_a_batch_is_several_messages() -> None:
    batch = b'data: [{"jsonrpc":"2.0","method":"a"},1,{"jsonrpc":"2.0","method":"b"}]\n\n'
    assert await methods(stream(Answer(batch))) == ["a", "broken", "b"]


async def test_a_broken_stream_ends_and_can_be_resumed() -> None:
    first, second = Answer(event("a", "id: 1\n"), ConnectionLost("cut")), Answer(event("b"))
    found = stream(first)
    assert await methods(found) == ["a"]
    assert found.last_id == "1"
    found.resume(second)  # pyright: ignore[reportArgumentType]  see above
    assert (first.closed, second.idle_timeout_disabled) == (True, True)
    assert await methods(found) == ["b"]
    assert found.last_id == "1"


@pytest.mark.parametrize(("retry", "delay"), [("0", 0.05), ("500", 0.5), ("99999999", 30.0)])
async def test_the_reconnect_delay_is_bounded(retry: str, delay: float) -> None:
    found = stream(Answer(event("a", f"retry: {retry}\n")))
    await methods(found)
    assert found.reconnect_delay == delay


async def test_an_oversized_event_ends_the_stream() -> None:
    found = stream(Answer(event("a"), event("b" * 100)), StreamLimits(max_event_bytes=50))
    await found.next()
    with pytest.raises(ConnectionLost, match="malformed"):
        await found.next()


async def test_the_rest_is_read_to_reuse_the_connection() -> None:
    answer = Answer(event("a"), event("b"))
    found = stream(answer)
    await found.drain()
    assert answer.closed
    assert await answer.receive() is None
