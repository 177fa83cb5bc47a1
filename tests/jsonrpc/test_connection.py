"""A Peer over a Transport: concurrent calls both ways, cancellation, limits and timeouts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.jsonrpc.peer_messages import (
    MALFORMED_RESPONSE,
    NOTIFICATION,
    UnencodableText,
    batch_payload,
    request_payload,
)
from tests.tasks import settle, stop, tidy
from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Connection,
    ConnectionLost,
    ErrorResponse,
    IdRemapper,
    Incident,
    InvalidResult,
    LocalProtocolError,
    Notification,
    Peer,
    Raw,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
    memory_pipe,
)


class ScriptedTransport:
    """A Transport whose other end is the test: it delivers payloads and makes room."""

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

    def deliver(self, *payloads: bytes | Exception | None) -> None:
        for payload in payloads:
            self.inbox.put_nowait(payload)

    def make_room(self, count: int = 1) -> None:
        for _ in range(count):
            self.room.release()


class MethodTable:
    """A Handler with the methods of a test."""

    def __init__(self, **methods: Callable[[Request], Any]) -> None:
        self.methods = methods
        self.notifications: list[str] = []
        self.violations: list[RemoteProtocolError] = []
        self.on_notification: Callable[[Notification], Awaitable[None] | None] = lambda _: None

    def called(self, request: Request) -> Any:
        return {} if request.method == "ping" else self.methods[request.method](request)

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        self.notifications.append(notification.method)
        return self.on_notification(notification)

    def violated(self, violation: RemoteProtocolError) -> None:
        self.violations.append(violation)


class BlockingMethod:
    """A method that waits until it is released, and counts its cancellations."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.started = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, _: Request) -> str:
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "done"


class Point(msgspec.Struct):
    x: int


def ignore_incident(incident: Incident) -> None:
    """Drop the incident."""


def cancelled_notification(id: int) -> Notification:
    return Notification("cancelled", {"id": id})


def outcome(answer: dict[str, Any]) -> tuple[Any, Any]:
    """Return the id of a response, and its result or error code."""
    return answer["id"], answer["result"] if "result" in answer else answer["error"]["code"]


# Responding


@pytest.mark.holds("M2")
@tidy
async def test_a_slow_call_never_blocks_a_ping() -> None:
    near, far = memory_pipe()
    gate = BlockingMethod()
    async with Connection(far, MethodTable(slow=gate)), Connection(near) as client:
        slow = asyncio.create_task(client.call("slow"))
        await gate.started.wait()
        assert await client.call("ping") == Raw(b"{}")
        gate.release.set()
        assert await slow == Raw(b'"done"')


@pytest.mark.holds("S4.1")
@tidy
async def test_responses_carry_the_request_ids_and_are_sent_when_ready() -> None:
    gate, transport = BlockingMethod(), ScriptedTransport()
    async with Connection(transport, MethodTable(slow=gate)):
        transport.deliver(request_payload("a", "slow"), request_payload(2, "ping"))
        await settle()
        gate.release.set()
        await settle()
        assert [outcome(answer) for answer in transport.sent] == [(2, {}), ("a", "done")]


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
        (RpcError(7, "no", UnencodableText("x")), INTERNAL_ERROR, 1),
        (KeyError("secret"), INTERNAL_ERROR, 1),
        (asyncio.CancelledError(), INTERNAL_ERROR, 1),
        (object(), INTERNAL_ERROR, 1),
        (UnencodableText("x"), INTERNAL_ERROR, 1),
    ],
)
@tidy
async def test_a_failing_handler_still_responds_and_later_requests_work(
    how: Callable[[Any], Any], value: Any, code: int, incidents: int
) -> None:
    seen: list[Incident] = []
    transport = ScriptedTransport()
    async with Connection(transport, MethodTable(bad=lambda _: how(value)), report=seen.append):
        transport.deliver(request_payload(1, "bad"))
        await settle()
        transport.deliver(request_payload(2, "ping"))
        await settle()
        assert [outcome(answer) for answer in transport.sent] == [(1, code), (2, {})]
        assert "secret" not in str(transport.sent)
    assert [incident.method for incident in seen] == ["bad"] * incidents


@tidy
async def test_a_handler_that_cancels_its_own_task_still_gets_a_response() -> None:
    async def give_up(_: Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    transport = ScriptedTransport()
    async with Connection(
        transport, MethodTable(bad=give_up), report=ignore_incident
    ) as connection:
        transport.deliver(request_payload(1, "bad"))
        await settle()
        assert outcome(transport.sent[0]) == (1, INTERNAL_ERROR)
        assert connection.peer.idle


@tidy
async def test_the_null_handler_rejects_requests_and_ignores_the_rest() -> None:
    transport = ScriptedTransport()
    async with Connection(transport):
        transport.deliver(request_payload(1), NOTIFICATION, b"garbage")
        await settle()
    assert [outcome(answer) for answer in transport.sent] == [(1, METHOD_NOT_FOUND), (None, -32700)]


@pytest.mark.holds("S4.4")
@tidy
async def test_a_batch_is_answered_in_order_when_its_first_call_is_slowest() -> None:
    gate, transport = BlockingMethod(), ScriptedTransport()
    async with Connection(transport, MethodTable(slow=gate), Peer(batch_policy="allow")):
        transport.deliver(
            batch_payload(
                request_payload(1, "slow"), NOTIFICATION, request_payload(2, "ping"), b"7"
            ),
            request_payload(3, "ping"),
        )
        await settle()
        assert [outcome(answer) for answer in transport.sent] == [(3, {})]
        gate.release.set()
        await settle()
        answers = [outcome(answer) for answer in transport.sent[1]]
        assert answers == [(1, "done"), (2, {}), (None, INVALID_REQUEST)]


@pytest.mark.holds("M2")
@tidy
async def test_invalid_input_is_answered_and_the_next_payload_served() -> None:
    handler, transport = MethodTable(), ScriptedTransport()
    error = RpcError.parse_error("too long")
    violation = RemoteProtocolError(error, ErrorResponse(None, error).encode())
    async with Connection(transport, handler):
        transport.deliver(violation, request_payload(1, "ping"))
        await settle()
        assert [outcome(answer) for answer in transport.sent] == [(None, -32700), (1, {})]
    assert handler.violations == [violation]


@tidy
async def test_a_request_with_half_a_character_is_answered_under_its_id() -> None:
    transport = ScriptedTransport()
    async with Connection(transport, MethodTable()):
        transport.deliver(b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"text":"\\ud83d"}}')
        await settle()
    assert [outcome(each) for each in transport.sent] == [(7, -32700)]


@pytest.mark.holds("C10")
@tidy
async def test_notifications_are_handled_in_order_before_more_is_read() -> None:
    handler, transport, gate = MethodTable(), ScriptedTransport(), BlockingMethod()

    async def wait(_: Notification) -> None:
        await gate(Request(0, "m"))

    handler.on_notification = wait
    async with Connection(transport, handler):
        transport.deliver(
            Notification("a").encode(), Notification("b").encode(), request_payload(1, "ping")
        )
        await gate.started.wait()
        await settle()
        assert (handler.notifications, transport.sent) == (["a"], [])
        gate.release.set()
        await settle()
        assert (handler.notifications, len(transport.sent)) == (["a", "b"], 1)


@pytest.mark.holds("C10")
@pytest.mark.parametrize("how", [at_once, later])
@pytest.mark.parametrize("error", [KeyError("x"), RpcError(1, "no"), asyncio.CancelledError()])
@tidy
async def test_a_failing_notification_is_not_answered_and_ends_nothing(
    how: Callable[[Any], Any], error: BaseException
) -> None:
    handler, transport = MethodTable(), ScriptedTransport()
    handler.on_notification = lambda _: how(error)
    async with Connection(transport, handler, report=ignore_incident):
        transport.deliver(NOTIFICATION, request_payload(1, "ping"))
        await settle()
        assert [outcome(answer) for answer in transport.sent] == [(1, {})]


@tidy
async def test_a_handler_that_fails_on_a_violation_is_reported() -> None:
    class Strict(MethodTable):
        def violated(self, violation: RemoteProtocolError) -> None:
            raise violation

    seen: list[Incident] = []
    transport = ScriptedTransport()
    async with Connection(transport, Strict(), report=seen.append):
        transport.deliver(b"garbage", request_payload(1, "ping"))
        await settle()
        assert len(transport.sent) == 2
    assert [type(incident.error) for incident in seen] == [RemoteProtocolError]


# Cancelling requests of the other side


@pytest.mark.holds("M2")
@pytest.mark.parametrize(("error", "sent"), [(None, []), (RpcError(7, "no"), [("a", 7)])])
@tidy
async def test_a_cancelled_request_is_stopped_and_answered_as_asked(
    error: RpcError | None, sent: list[Any]
) -> None:
    gate, transport = BlockingMethod(), ScriptedTransport()
    async with Connection(transport, MethodTable(slow=gate)) as connection:
        transport.deliver(request_payload("a", "slow"))
        await gate.started.wait()
        assert connection.cancel_request("a", error)
        assert not connection.cancel_request("a", error)
        await settle()
        assert gate.cancelled == 1
        assert [outcome(answer) for answer in transport.sent] == sent
        assert connection.peer.idle


@pytest.mark.parametrize("other", [2, "1", None, True, 1.0])
@tidy
async def test_an_unknown_request_id_cancels_nothing(other: object) -> None:
    gate, transport = BlockingMethod(), ScriptedTransport()
    async with Connection(transport, MethodTable(slow=gate)) as connection:
        transport.deliver(request_payload(1, "slow"))
        await gate.started.wait()
        assert not connection.cancel_request(other)
        gate.release.set()
        await settle()
        assert transport.sent


@tidy
async def test_a_request_can_be_cancelled_before_it_has_begun() -> None:
    handler, transport = MethodTable(slow=BlockingMethod()), ScriptedTransport()
    connection = Connection(transport, handler, Peer(batch_policy="allow"))
    cancelled: list[bool] = []
    handler.on_notification = lambda _: cancelled.append(connection.cancel_request(1))
    async with connection:
        transport.deliver(
            batch_payload(request_payload(1, "slow"), NOTIFICATION, request_payload(2, "ping"))
        )
        await settle()
        assert cancelled == [True]
        assert [outcome(answer) for answer in transport.sent[0]] == [(2, {})]


@tidy
async def test_the_rest_of_a_batch_is_answered_when_its_last_call_is_cancelled() -> None:
    gate, transport = BlockingMethod(), ScriptedTransport()
    async with Connection(
        transport, MethodTable(slow=gate), Peer(batch_policy="allow")
    ) as connection:
        transport.deliver(batch_payload(request_payload(1, "slow"), request_payload(2, "ping")))
        await gate.started.wait()
        assert connection.cancel_request(1)
        await settle()
        assert [outcome(answer) for answer in transport.sent[0]] == [(2, {})]


@tidy
async def test_the_result_of_a_handler_that_ignores_its_cancellation_is_dropped() -> None:
    cancelled = asyncio.Event()

    async def stubborn(_: Request) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
        return 1

    transport = ScriptedTransport()
    async with Connection(transport, MethodTable(slow=stubborn)) as connection:
        transport.deliver(request_payload(1, "slow"))
        await settle()
        assert connection.cancel_request(1)
        await cancelled.wait()
        await settle()
        assert transport.sent == []


# Calls


@tidy
async def test_a_call_returns_raw_json_or_raises_the_error_that_was_sent() -> None:
    transport = ScriptedTransport()
    async with Connection(transport) as connection:
        calls = [asyncio.create_task(connection.call("m", [n])) for n in range(3)]
        await settle()
        assert [request["params"] for request in transport.sent] == [[0], [1], [2]]
        transport.deliver(
            ErrorResponse(2, RpcError(7, "no", b"[1.0]")).encode(),
            b'{"jsonrpc":"2.0","id":1,"result":1.0}',
            MALFORMED_RESPONSE % 3,
        )
        assert await calls[0] == Raw(b"1.0")
        with pytest.raises(RpcError) as error:
            await calls[1]
        assert error.value == RpcError(7, "no", b"[1.0]")
        with pytest.raises(RpcError, match="malformed"):
            await calls[2]


@tidy
async def test_a_call_returns_the_type_that_its_caller_asks_for() -> None:
    near, far = memory_pipe()
    answers = MethodTable(
        stock=lambda _: {"apple": 3},
        point=lambda _: {"x": 1},
        nothing=lambda _: None,
    )
    async with Connection(far, answers), Connection(near) as client:
        assert await client.call("stock", result=dict[str, int]) == {"apple": 3}
        assert (await client.call("point", result=Point)).x == 1
        assert await client.call("nothing", result=type(None)) is None
        assert await client.call("nothing", result=int | None) is None
        assert await client.call("nothing") == Raw(b"null")
        with pytest.raises(
            InvalidResult, match=r"result of 'stock' .* `str`.*`\$\[\.\.\.\]`"
        ) as wrong:
            await client.call("stock", result=dict[str, str])
        assert (wrong.value.method, wrong.value.result) == ("stock", Raw(b'{"apple":3}'))


@tidy
async def test_a_result_type_that_nothing_can_be_read_as_is_refused_before_the_call() -> None:
    transport = ScriptedTransport()
    async with Connection(transport) as connection:
        with pytest.raises(TypeError):
            await connection.call("m", result=dict[str, int] | Point)
    assert transport.sent == []


@tidy
async def test_unencodable_params_raise_a_local_error_and_leave_nothing_behind() -> None:
    remapper = IdRemapper()
    transport = ScriptedTransport()
    async with Connection(transport, peer=Peer("fs", remapper)) as connection:
        with pytest.raises(LocalProtocolError):
            await connection.call("m", 1)
        with pytest.raises(LocalProtocolError):
            await connection.notify("m", {"a": object()})
        assert remapper.pending_count() == 0
        await connection.notify("told", [1])
    assert [message["method"] for message in transport.sent] == ["told"]


@tidy
async def test_a_call_that_takes_too_long_is_withdrawn() -> None:
    remapper, transport, handler = IdRemapper(), ScriptedTransport(), MethodTable()
    async with Connection(
        transport, handler, Peer("fs", remapper), cancellation=cancelled_notification
    ) as connection:
        with pytest.raises(TimeoutError):
            await connection.call("m", timeout=0)
        await settle()
        assert [message["method"] for message in transport.sent] == ["m", "cancelled"]
        assert transport.sent[1]["params"] == {"id": 1}
        assert remapper.pending_count() == 0
        transport.deliver(Response(1, 1).encode())  # too late
        await settle()
        assert handler.violations == []


@tidy
async def test_a_response_before_the_timeout_is_returned() -> None:
    near, far = memory_pipe()
    async with Connection(far, MethodTable()), Connection(near) as client:
        assert await client.call("ping", timeout=5) == Raw(b"{}")


@pytest.mark.parametrize("answer", [Response(1, 1).encode(), MALFORMED_RESPONSE % 1, None])
@tidy
async def test_a_response_just_after_the_cancellation_is_ignored(answer: bytes | None) -> None:
    transport = ScriptedTransport()
    connection = Connection(transport, cancellation=cancelled_notification)
    async with connection:
        call = asyncio.create_task(connection.call("m"))
        await settle()
        transport.deliver(answer)  # wakes the connection before the cancellation wakes the call
        await stop(call)
        await settle()
        assert connection.peer.idle
    assert [message["method"] for message in transport.sent] == ["m"]


@tidy
async def test_a_call_cancelled_at_any_moment_leaves_nothing_behind() -> None:
    remapper = IdRemapper()
    near, far = memory_pipe(0)
    server = Connection(far, MethodTable(slow=lambda _: later(1)))
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
async def test_calls_made_directly_on_the_peer_are_left_alone() -> None:
    transport = ScriptedTransport()
    async with Connection(transport) as connection:
        ids = [connection.peer.call("m") for _ in range(2)]
        transport.deliver(Response(ids[0], 1).encode())
        await settle()
        assert not connection.peer.forget(ids[0])
    assert not connection.peer.forget(ids[1])
