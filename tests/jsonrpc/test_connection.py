"""A Peer over a Channel: calls side by side, both ways, with cancellation, limits and timeouts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.jsonrpc.peer_talk import BROKEN, TELL, Unwritable, ask, batch
from tests.jsonrpc.test_channel import settle, stop, tidy
from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Connection,
    ConnectionLost,
    ErrorResponse,
    IdRemapper,
    Incident,
    LocalProtocolError,
    Notification,
    Peer,
    Raw,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
    pipe,
)


class Script:
    """A Channel whose other end is the test: it says what arrives, and when there is room."""

    def __init__(self, room: int = 1000) -> None:
        self.inbox: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.sent: list[Any] = []
        self.room = asyncio.Semaphore(room)
        self.closed = False
        self.failure: Exception | None = None

    async def receive(self) -> bytes | None:
        found = None if self.closed and self.inbox.empty() else await self.inbox.get()
        if isinstance(found, Exception):
            raise found
        return found

    async def send(self, payload: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent.append(json.loads(payload))
        await self.room.acquire()
        if self.closed:
            raise ConnectionLost("closed by the test")

    async def aclose(self) -> None:
        self.closed = True
        self.inbox.put_nowait(None)
        self.make_room(1000)

    def say(self, *said: bytes | Exception | None) -> None:
        for one in said:
            self.inbox.put_nowait(one)

    def make_room(self, count: int = 1) -> None:
        for _ in range(count):
            self.room.release()


class Table:
    """A Handler that a test fills with functions."""

    def __init__(self, **methods: Callable[[Request], Any]) -> None:
        self.methods = methods
        self.notes: list[str] = []
        self.violations: list[RemoteProtocolError] = []
        self.on_note: Callable[[Notification], Awaitable[None] | None] = lambda _: None

    def called(self, request: Request) -> Any:
        return {} if request.method == "ping" else self.methods[request.method](request)

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        self.notes.append(notification.method)
        return self.on_note(notification)

    def violated(self, violation: RemoteProtocolError) -> None:
        self.violations.append(violation)


class Gate:
    """A method that waits until it is opened, and knows how often it was begun and cancelled."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, _: Request) -> str:
        self.begun.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "done"


class Clock:
    """The time of the running loop, which a test can set forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self.ahead)

    async def advance(self, seconds: float) -> None:
        await settle()
        self.ahead += seconds
        await settle()


def forget_it(incident: Incident) -> None:
    """Report to nobody."""


def withdrawn(id: int) -> Notification:
    return Notification("withdrawn", {"id": id})


def outcome(answer: dict[str, Any]) -> tuple[Any, Any]:
    """Show an answer as its id, and its result or error code."""
    return answer["id"], answer["result"] if "result" in answer else answer["error"]["code"]


# Answering


@tidy
async def test_a_slow_call_never_blocks_a_ping() -> None:
    near, far = pipe()
    gate = Gate()
    async with Connection(far, Table(slow=gate)), Connection(near) as client:
        slow = asyncio.create_task(client.call("slow"))
        await gate.begun.wait()
        assert await client.call("ping") == Raw(b"{}")
        gate.open.set()
        assert await slow == Raw(b'"done"')


@pytest.mark.holds("S4.1")
@tidy
async def test_answers_have_the_ids_of_their_requests_and_come_when_they_are_ready() -> None:
    gate, channel = Gate(), Script()
    async with Connection(channel, Table(slow=gate)):
        channel.say(ask("a", "slow"), ask(2, "ping"))
        await settle()
        gate.open.set()
        await settle()
        assert [outcome(answer) for answer in channel.sent] == [(2, {}), ("a", "done")]


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(value, BaseException):
        raise value
    return value


def at_once(value: Any) -> Any:
    if isinstance(value, BaseException):
        raise value
    return value


@pytest.mark.parametrize("how", [at_once, later])
@pytest.mark.parametrize(
    ("value", "code", "incidents"),
    [
        (RpcError(7, "no", {"why": "so"}), 7, 0),
        (RpcError(7, "no", object()), INTERNAL_ERROR, 1),
        (RpcError(7, "no", Unwritable("x")), INTERNAL_ERROR, 1),
        (KeyError("secret"), INTERNAL_ERROR, 1),
        (asyncio.CancelledError(), INTERNAL_ERROR, 1),
        (object(), INTERNAL_ERROR, 1),
        (Unwritable("x"), INTERNAL_ERROR, 1),
    ],
)
@tidy
async def test_whatever_goes_wrong_in_a_handler_the_request_is_answered_and_others_after_it(
    how: Callable[[Any], Any], value: Any, code: int, incidents: int
) -> None:
    seen: list[Incident] = []
    channel = Script()
    async with Connection(channel, Table(bad=lambda _: how(value)), report=seen.append):
        channel.say(ask(1, "bad"))
        await settle()
        channel.say(ask(2, "ping"))
        await settle()
        assert [outcome(answer) for answer in channel.sent] == [(1, code), (2, {})]
        assert "secret" not in str(channel.sent)
    assert [incident.method for incident in seen] == ["bad"] * incidents


@tidy
async def test_a_handler_that_cancels_its_own_task_owes_an_answer_all_the_same() -> None:
    async def give_up(_: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    channel = Script()
    async with Connection(channel, Table(bad=give_up), report=forget_it) as connection:
        channel.say(ask(1, "bad"))
        await settle()
        assert outcome(channel.sent[0]) == (1, INTERNAL_ERROR)
        assert connection.peer.idle


@tidy
async def test_those_who_only_ask_refuse_calls_and_ignore_the_rest() -> None:
    channel = Script()
    async with Connection(channel):
        channel.say(ask(1), TELL, b"garbage")
        await settle()
    assert [outcome(answer) for answer in channel.sent] == [(1, METHOD_NOT_FOUND), (None, -32700)]


@pytest.mark.holds("S4.4")
@tidy
async def test_a_batch_is_answered_in_order_though_its_first_call_is_the_slowest() -> None:
    gate, channel = Gate(), Script()
    async with Connection(channel, Table(slow=gate), Peer(batch="allow")):
        channel.say(batch(ask(1, "slow"), TELL, ask(2, "ping"), b"7"), ask(3, "ping"))
        await settle()
        assert [outcome(answer) for answer in channel.sent] == [(3, {})]
        gate.open.set()
        await settle()
        answers = [outcome(answer) for answer in channel.sent[1]]
        assert answers == [(1, "done"), (2, {}), (None, INVALID_REQUEST)]


@tidy
async def test_what_is_no_payload_is_answered_and_the_next_one_served() -> None:
    table, channel = Table(), Script()
    error = RpcError.parse_error("too long")
    violation = RemoteProtocolError(error, ErrorResponse(None, error).encode())
    async with Connection(channel, table):
        channel.say(violation, ask(1, "ping"))
        await settle()
        assert [outcome(answer) for answer in channel.sent] == [(None, -32700), (1, {})]
    assert table.violations == [violation]


@pytest.mark.holds("C10")
@tidy
async def test_notifications_are_taken_in_order_and_before_anything_else_is_read() -> None:
    table, channel, gate = Table(), Script(), Gate()

    async def wait(_: Notification) -> None:
        await gate(Request(0, "m"))

    table.on_note = wait
    async with Connection(channel, table):
        channel.say(Notification("a").encode(), Notification("b").encode(), ask(1, "ping"))
        await gate.begun.wait()
        await settle()
        assert (table.notes, channel.sent) == (["a"], [])
        gate.open.set()
        await settle()
        assert (table.notes, len(channel.sent)) == (["a", "b"], 1)


@pytest.mark.holds("C10")
@pytest.mark.parametrize("how", [at_once, later])
@pytest.mark.parametrize("error", [KeyError("x"), RpcError(1, "no"), asyncio.CancelledError()])
@tidy
async def test_a_notification_that_fails_is_not_answered_and_ends_nothing(
    how: Callable[[Any], Any], error: BaseException
) -> None:
    table, channel = Table(), Script()
    table.on_note = lambda _: how(error)
    async with Connection(channel, table, report=forget_it):
        channel.say(TELL, ask(1, "ping"))
        await settle()
        assert [outcome(answer) for answer in channel.sent] == [(1, {})]


@tidy
async def test_a_handler_that_cannot_cope_with_a_violation_is_reported() -> None:
    class Strict(Table):
        def violated(self, violation: RemoteProtocolError) -> None:
            raise violation

    seen: list[Incident] = []
    channel = Script()
    async with Connection(channel, Strict(), report=seen.append):
        channel.say(b"garbage", ask(1, "ping"))
        await settle()
        assert len(channel.sent) == 2
    assert [type(incident.error) for incident in seen] == [RemoteProtocolError]


# Cancelling what the other side asked


@pytest.mark.parametrize(("error", "sent"), [(None, []), (RpcError(7, "no"), [("a", 7)])])
@tidy
async def test_a_cancelled_request_is_stopped_and_answered_as_asked(
    error: RpcError | None, sent: list[Any]
) -> None:
    gate, channel = Gate(), Script()
    async with Connection(channel, Table(slow=gate)) as connection:
        channel.say(ask("a", "slow"))
        await gate.begun.wait()
        assert connection.cancel("a", error)
        assert not connection.cancel("a", error)
        await settle()
        assert gate.cancelled == 1
        assert [outcome(answer) for answer in channel.sent] == sent
        assert connection.peer.idle


@pytest.mark.parametrize("other", [2, "1", None, True, 1.0])
@tidy
async def test_what_is_no_id_in_flight_cancels_nothing(other: object) -> None:
    gate, channel = Gate(), Script()
    async with Connection(channel, Table(slow=gate)) as connection:
        channel.say(ask(1, "slow"))
        await gate.begun.wait()
        assert not connection.cancel(other)
        gate.open.set()
        await settle()
        assert channel.sent


@tidy
async def test_a_request_can_be_cancelled_before_it_has_begun() -> None:
    table, channel = Table(slow=Gate()), Script()
    connection = Connection(channel, table, Peer(batch="allow"))
    cancelled: list[bool] = []
    table.on_note = lambda _: cancelled.append(connection.cancel(1))
    async with connection:
        channel.say(batch(ask(1, "slow"), TELL, ask(2, "ping")))
        await settle()
        assert cancelled == [True]
        assert [outcome(answer) for answer in channel.sent[0]] == [(2, {})]


@tidy
async def test_the_rest_of_a_batch_is_answered_when_its_last_call_is_cancelled() -> None:
    gate, channel = Gate(), Script()
    async with Connection(channel, Table(slow=gate), Peer(batch="allow")) as connection:
        channel.say(batch(ask(1, "slow"), ask(2, "ping")))
        await gate.begun.wait()
        assert connection.cancel(1)
        await settle()
        assert [outcome(answer) for answer in channel.sent[0]] == [(2, {})]


@tidy
async def test_the_answer_of_a_handler_that_ignores_its_cancellation_is_dropped() -> None:
    cancelled = asyncio.Event()

    async def stubborn(_: Request) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
        return 1

    channel = Script()
    async with Connection(channel, Table(slow=stubborn)) as connection:
        channel.say(ask(1, "slow"))
        await settle()
        assert connection.cancel(1)
        await cancelled.wait()
        await settle()
        assert channel.sent == []


# Asking


@tidy
async def test_a_call_returns_raw_json_or_raises_the_error_that_was_sent() -> None:
    channel = Script()
    async with Connection(channel) as connection:
        calls = [asyncio.create_task(connection.call("m", [n])) for n in range(3)]
        await settle()
        assert [request["params"] for request in channel.sent] == [[0], [1], [2]]
        channel.say(
            ErrorResponse(2, RpcError(7, "no", b"[1.0]")).encode(),
            b'{"jsonrpc":"2.0","id":1,"result":1.0}',
            BROKEN % 3,
        )
        assert await calls[0] == Raw(b"1.0")
        with pytest.raises(RpcError) as error:
            await calls[1]
        assert error.value == RpcError(7, "no", b"[1.0]")
        with pytest.raises(RpcError, match="malformed"):
            await calls[2]


@tidy
async def test_what_cannot_be_written_is_the_fault_of_this_side_and_leaves_nothing() -> None:
    remapper = IdRemapper()
    channel = Script()
    async with Connection(channel, peer=Peer("fs", remapper)) as connection:
        with pytest.raises(LocalProtocolError):
            await connection.call("m", 1)
        with pytest.raises(LocalProtocolError):
            await connection.notify("m", {"a": object()})
        assert remapper.pending_count() == 0
        await connection.notify("told", [1])
    assert [message["method"] for message in channel.sent] == ["told"]


@tidy
async def test_a_call_that_takes_too_long_is_withdrawn() -> None:
    remapper, channel, table = IdRemapper(), Script(), Table()
    async with Connection(channel, table, Peer("fs", remapper), withdrawal=withdrawn) as connection:
        with pytest.raises(TimeoutError):
            await connection.call("m", timeout=0)
        await settle()
        assert [message["method"] for message in channel.sent] == ["m", "withdrawn"]
        assert channel.sent[1]["params"] == {"id": 1}
        assert remapper.pending_count() == 0
        channel.say(Response(1, 1).encode())  # it comes too late
        await settle()
        assert table.violations == []


@tidy
async def test_an_answer_in_time_is_returned() -> None:
    near, far = pipe()
    async with Connection(far, Table()), Connection(near) as client:
        assert await client.call("ping", timeout=5) == Raw(b"{}")


@pytest.mark.parametrize("answer", [Response(1, 1).encode(), BROKEN % 1, None])
@tidy
async def test_an_answer_just_after_the_cancellation_is_ignored(answer: bytes | None) -> None:
    channel = Script()
    connection = Connection(channel, withdrawal=withdrawn)
    async with connection:
        call = asyncio.create_task(connection.call("m"))
        await settle()
        channel.say(answer)  # wakes the connection before the call wakes to be cancelled
        await stop(call)
        await settle()
        assert connection.peer.idle
    assert [message["method"] for message in channel.sent] == ["m"]


@tidy
async def test_a_call_cancelled_at_any_moment_leaves_nothing_behind() -> None:
    remapper = IdRemapper()
    near, far = pipe(0)
    server = Connection(far, Table(slow=lambda _: later(1)))
    client = Connection(near, peer=Peer("fs", remapper))
    async with server, client:
        for steps in range(25):
            calls = [asyncio.create_task(client.call("slow")) for _ in range(3)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert done[1] == Raw(b"1")
            assert remapper.pending_count() == 0
        assert await client.call("ping") == Raw(b"{}")
        await settle()
        assert server.peer.idle


@tidy
async def test_calls_that_the_peer_made_for_somebody_else_are_none_of_ours() -> None:
    channel = Script()
    async with Connection(channel) as connection:
        ids = [connection.peer.call("m") for _ in range(2)]
        channel.say(Response(ids[0], 1).encode())
        await settle()
        assert not connection.peer.forget(ids[0])
    assert not connection.peer.forget(ids[1])
