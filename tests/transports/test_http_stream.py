"""Messages out of events: what is kept, what is skipped, and how a stream goes on elsewhere."""

from collections import deque

import pytest

from trunkline.jsonrpc import ConnectionLost, Notification, RemoteProtocolError
from trunkline.transports import http_stream
from trunkline.transports.http_stream import MessageStream


class Answer:
    """Stands in for a response whose body comes in these pieces."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = deque(pieces)
        self.patient = self.closed = False

    async def receive(self) -> bytes | None:
        found = self._pieces.popleft() if self._pieces else None
        if isinstance(found, Exception):
            raise found
        return found

    def be_patient(self) -> None:
        self.patient = True

    def close(self) -> None:
        self.closed = True


def stream(answer: Answer) -> MessageStream:
    return MessageStream(answer)  # pyright: ignore[reportArgumentType]  all that is used of one


def event(method: str, more: str = "") -> bytes:
    return f'{more}data: {{"jsonrpc":"2.0","method":"{method}"}}\n\n'.encode()


async def methods(found: MessageStream) -> list[str]:
    heard: list[str] = []
    while (message := await found.next()) is not None:
        if isinstance(message, RemoteProtocolError):
            heard.append("broken")
        else:
            assert isinstance(message, Notification)
            heard.append(message.method)
    return heard


async def test_only_messages_are_heard_however_the_stream_is_cut() -> None:
    whole = event("a") + b": comment\n\n" + event("b", "event: other\n") + b"data: broken\n\n"
    whole += event("c", "event: message\n")
    for size in (1, 7, len(whole)):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert await methods(stream(Answer(*pieces))) == ["a", "broken", "c"]


async def test_a_batch_is_several_messages() -> None:
    batch = b'data: [{"jsonrpc":"2.0","method":"a"},1,{"jsonrpc":"2.0","method":"b"}]\n\n'
    assert await methods(stream(Answer(batch))) == ["a", "broken", "b"]


async def test_one_that_breaks_has_ended_and_goes_on_with_another_response() -> None:
    first, second = Answer(event("a", "id: 1\n"), ConnectionLost("cut")), Answer(event("b"))
    found = stream(first)
    assert await methods(found) == ["a"]
    assert found.last_id == "1"
    found.go_on(second)  # pyright: ignore[reportArgumentType]  see above
    assert (first.closed, second.patient) == (True, True)
    assert await methods(found) == ["b"]
    assert found.last_id == "1"


@pytest.mark.parametrize(("said", "delay"), [("0", 0.05), ("500", 0.5), ("99999999", 30.0)])
async def test_how_long_to_wait_is_believed_within_reason(said: str, delay: float) -> None:
    found = stream(Answer(event("a", f"retry: {said}\n")))
    await methods(found)
    assert found.delay == delay


async def test_an_event_too_long_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_stream, "MAX_EVENT", 50)
    found = stream(Answer(event("a"), event("b" * 100)))
    await found.next()
    with pytest.raises(ConnectionLost, match="malformed"):
        await found.next()


async def test_the_rest_is_read_so_that_the_connection_can_be_used_again() -> None:
    answer = Answer(event("a"), event("b"))
    found = stream(answer)
    await found.let_end()
    assert answer.closed
    assert await answer.receive() is None
