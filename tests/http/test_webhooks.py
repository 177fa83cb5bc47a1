"""Webhooks over HTTP: a target that sends, a receiver that verifies."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.http.scripted_server import (
    ScriptedConnection,
    answers,
    on_both_loops,
    scripted_server,
)
from tests.tasks import LoopClock, tidy
from trunkline.http.client import HttpClient
from trunkline.http.listener import HttpListener
from trunkline.http.webhooks import WebhookReceiver, WebhookTarget, new_webhook_id
from trunkline.jsonrpc import Dispatcher, Incident, Notification
from trunkline.jsonrpc.webhooks import (
    ID_HEADER,
    DeliveryOutcome,
    RetrySchedule,
    WebhookVerifier,
    sign_webhook,
)

KEY = b"k" * 32
NOW = 1_700_000_000.0
EVENT = Notification("server.down", {"server": "github"})


class Inbox:
    """Keeps the notifications that a receiver hands over."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.failures = 0
        self.started = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self._received = asyncio.Event()

    async def notified(self, notification: Notification) -> None:
        self.started.set()
        await self.may_go_on.wait()
        if self.failures:
            self.failures -= 1
            raise ValueError("the disk is full")
        self.methods.append(notification.method)
        self._received.set()

    async def wait_for_next(self) -> None:
        """Wait until a notification has arrived since the last call."""
        await self._received.wait()
        self._received.clear()


@asynccontextmanager
async def receiver_for(
    notified: Callable[[Notification], Awaitable[None] | None],
    report: Callable[[Incident], None] = lambda incident: None,
    max_in_progress: int = 64,
    max_ids: int = 1000,
    now: float | None = NOW,
) -> AsyncGenerator[str]:
    receiver = WebhookReceiver(
        WebhookVerifier([KEY], max_ids=max_ids),
        notified,
        clock=time.time if now is None else lambda: now,
        max_in_progress=max_in_progress,
        report=report,
    )
    listener = HttpListener(receiver)
    await listener.listen("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.addresses[0][1]}/hook"
    finally:
        await receiver.aclose()
        await listener.aclose(5.0)


@asynccontextmanager
async def target_for(
    url: str, key: bytes = KEY, timeout: float = 60.0
) -> AsyncGenerator[WebhookTarget]:
    target = WebhookTarget(url, [key], timeout=timeout, allow=None, clock=lambda: NOW)
    try:
        yield target
    finally:
        await target.aclose()


async def post(
    url: str, headers: dict[str, str], body: bytes, method: str = "POST"
) -> tuple[int, str]:
    client = HttpClient(url)
    try:
        raw = tuple((name.encode(), value.encode()) for name, value in headers.items())
        response = await client.request(method, raw, body)
        return response.status, (await response.read()).decode()
    finally:
        await client.aclose()


def signed(id: str) -> dict[str, str]:
    return dict(sign_webhook(id, int(NOW), EVENT.encode(), [KEY]))


@on_both_loops
@tidy
async def test_a_notification_arrives_and_is_handled_once() -> None:
    inbox = Inbox()
    async with receiver_for(inbox.notified) as url, target_for(url) as target:
        assert await target.deliver(EVENT, "msg_1") == (DeliveryOutcome.DELIVERED, 204, None)
        assert await target.attempt("msg_1", EVENT.encode()) == (
            DeliveryOutcome.DELIVERED,
            204,
            None,
        )
        assert inbox.methods == ["server.down"]
        assert (await target.deliver(EVENT)).outcome is DeliveryOutcome.DELIVERED
    assert inbox.methods == ["server.down", "server.down"]


@tidy
async def test_a_dispatcher_receives_notifications() -> None:
    methods, servers = Dispatcher(), list[str]()

    @methods.notification("server.down")
    def note_server(server: str) -> None:
        servers.append(server)

    async with receiver_for(methods.notified) as url, target_for(url) as target:
        assert (await target.deliver(EVENT)).status == 204
    assert servers == ["github"]


@tidy
async def test_a_wrong_key_is_refused() -> None:
    inbox = Inbox()
    async with receiver_for(inbox.notified) as url, target_for(url, b"w" * 32) as target:
        assert await target.deliver(EVENT) == (DeliveryOutcome.REFUSED, 400, "status 400")
        status, text = await post(url, signed("msg_1") | {ID_HEADER: "msg_2"}, EVENT.encode())
        assert (status, text) == (400, "no signature matches the id, the timestamp and the body\n")
        assert await post(url, {}, b"", "GET") == (405, "expected POST\n")
    assert inbox.methods == []


@tidy
async def test_a_message_whose_handler_fails_is_tried_again_and_reported() -> None:
    inbox, incidents = Inbox(), list[Incident]()
    inbox.failures = 2
    schedule = RetrySchedule(first_delay=0.0)
    async with receiver_for(inbox.notified, incidents.append) as url, target_for(url) as target:
        assert (await target.deliver(EVENT, schedule=schedule)).status == 204
    assert inbox.methods == ["server.down"]
    assert [(each.method, str(each.error)) for each in incidents] == [
        ("server.down", "the disk is full")
    ] * 2


@tidy
async def test_an_id_that_is_being_handled_is_not_acknowledged_yet() -> None:
    inbox = Inbox()
    inbox.may_go_on.clear()
    async with receiver_for(inbox.notified) as url:
        first = asyncio.create_task(post(url, signed("msg_1"), EVENT.encode()))
        await inbox.started.wait()
        assert await post(url, signed("msg_1"), EVENT.encode()) == (503, "busy; try again\n")
        inbox.may_go_on.set()
        assert (await first)[0] == 204
    assert inbox.methods == ["server.down"]


@tidy
async def test_a_full_receiver_asks_for_another_attempt() -> None:
    inbox = Inbox()
    async with receiver_for(inbox.notified, max_in_progress=0) as url:
        assert (await post(url, signed("msg_1"), EVENT.encode()))[0] == 503
    async with receiver_for(inbox.notified, max_ids=1) as url:
        assert (await post(url, signed("msg_1"), EVENT.encode()))[0] == 204
        assert (await post(url, signed("msg_2"), EVENT.encode()))[0] == 503
        assert (await post(url, signed("msg_1"), EVENT.encode()))[0] == 204
    assert inbox.methods == ["server.down"]


@pytest.mark.parametrize(
    ("status", "answer"), [(410, DeliveryOutcome.GONE), (302, DeliveryOutcome.REFUSED)]
)
@tidy
async def test_other_answers_end_the_delivery(status: int, answer: DeliveryOutcome) -> None:
    line = b"HTTP/1.1 %d x\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n" % status
    async with scripted_server(answers(line)) as server, target_for(server.url) as target:
        assert await target.deliver(EVENT) == (answer, status, f"status {status}")


@tidy
async def test_a_long_answer_does_not_matter() -> None:
    body = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000
    async with scripted_server(answers(body)) as server, target_for(server.url) as target:
        assert (await target.deliver(EVENT)).outcome is DeliveryOutcome.DELIVERED


@tidy
async def test_a_target_without_an_answer_is_tried_again() -> None:
    async def never_answer(connection: ScriptedConnection) -> None:
        await asyncio.Event().wait()

    async with (
        scripted_server(never_answer) as server,
        target_for(server.url, timeout=0.01) as target,
    ):
        attempt = await target.attempt("msg_1", EVENT.encode())
        assert attempt == (DeliveryOutcome.RETRY, None, "no answer in 0.01 s")
        schedule = RetrySchedule(first_delay=1.0, give_up_after=0.0)
        assert (await target.deliver(EVENT, schedule=schedule)).outcome is DeliveryOutcome.RETRY


@tidy
async def test_by_default_only_public_addresses_are_connected_to() -> None:
    target = WebhookTarget("http://127.0.0.1:9/", [KEY])
    attempt = await target.attempt("msg_1", EVENT.encode())
    await target.aclose()
    assert attempt.outcome is DeliveryOutcome.RETRY
    assert attempt.problem is not None
    assert "127.0.0.1" in attempt.problem


@tidy
async def test_between_attempts_the_sender_waits() -> None:
    clock = LoopClock()
    inbox = Inbox()
    inbox.failures = 1
    async with receiver_for(inbox.notified) as url, target_for(url) as target:
        delivery = asyncio.create_task(
            target.deliver(EVENT, schedule=RetrySchedule(first_delay=8.0))
        )
        await inbox.started.wait()
        assert inbox.methods == []
        await clock.advance_until(delivery, step=1.0)
        assert delivery.result().status == 204
    assert inbox.methods == ["server.down"]


def test_ids_differ() -> None:
    assert len({new_webhook_id() for _ in range(100)}) == 100
