"""Delivery of webhook messages: order, retries, dead messages, restarts, several gateways."""

import asyncio
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.tasks import tidy
from trunkline.gateway.events import (
    BackendStateChanged,
    KillSwitchChanged,
    WebhookFinished,
)
from trunkline.http.webhooks import WebhookAttempt
from trunkline.jsonrpc.webhooks import DeliveryOutcome, RetrySchedule, classify_status
from trunkline.webhooks import delivery as delivery_module
from trunkline.webhooks.delivery import MAX_REFUSALS, TargetSettings, WebhookDelivery, default_file
from trunkline.webhooks.messages import EventMessages
from trunkline.webhooks.store import WebhookStore


@pytest.fixture(autouse=True)
def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "POLL_INTERVAL", 0.01)


class Receiver:
    """A target that answers as told and keeps what it accepted."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        """The statuses of the next answers; 200 afterwards."""
        self.attempts: list[str] = []
        self.accepted: list[tuple[str, bytes]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_closed = False

    async def attempt(self, id: str, body: bytes) -> WebhookAttempt:
        self.attempts.append(id)
        await self.may_answer.wait()
        status = self.statuses.pop(0) if self.statuses else 200
        outcome = classify_status(status)
        if outcome is DeliveryOutcome.DELIVERED:
            self.accepted.append((id, body))
        return WebhookAttempt(outcome, status, None if status == 200 else f"status {status}")

    async def aclose(self) -> None:
        self.is_closed = True


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Finished(list[WebhookFinished]):
    """What came of the messages; `until` waits for a number of them."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def __call__(self, event: WebhookFinished) -> None:
        self.append(event)
        self._changed.set()

    async def until(self, count: int) -> list[str]:
        while len(self) < count:
            self._changed.clear()
            await self._changed.wait()
        return [event.outcome for event in self]


def settings_of(name: str, receiver: Receiver, **changes: object) -> TargetSettings:
    values: dict[str, object] = {"events": ("*",), "servers": (), "max_queue": 1000} | changes
    return TargetSettings(name=name, open=lambda: receiver, **values)  # type: ignore[arg-type]


@asynccontextmanager
async def delivering(
    folder: Path,
    *targets: TargetSettings,
    finished: Callable[[WebhookFinished], None] = lambda event: None,
    schedule: RetrySchedule | None = None,
    clock: Callable[[], float] | None = None,
) -> AsyncGenerator[WebhookDelivery]:
    delivery = WebhookDelivery(
        default_file(folder),
        targets,
        EventMessages("gw"),
        finished,
        schedule=schedule,
        clock=clock or Clock(),
    )
    delivery.start()
    delivery.start()
    try:
        yield delivery
    finally:
        await delivery.aclose()


def kill(name: str) -> KillSwitchChanged:
    return KillSwitchChanged("tool", name, disabled=True, by="ada")


def tool_name(body: bytes) -> str:
    """Return the name in a message about a kill switch."""
    return body.decode().partition('"name":"')[2].partition('"')[0]


def names(receiver: Receiver) -> list[str]:
    return [tool_name(body) for _, body in receiver.accepted]


def stored(folder: Path, target: str = "ops") -> list[str]:
    store = WebhookStore(default_file(folder))
    store.open()
    found = [tool_name(each.body) for each in store.next_messages(target, 1000)]
    store.close()
    return found


@tidy
async def test_events_are_delivered_in_order_to_the_targets_that_want_them(tmp_path: Path) -> None:
    everything, servers = Receiver(), Receiver()
    finished = Finished()
    targets = (
        settings_of("ops", everything),
        settings_of("pager", servers, events=("server.*",), servers=("fs",)),
    )
    async with delivering(tmp_path, *targets, finished=finished) as delivery:
        for number in range(120):
            delivery.record(kill(f"t{number}"))
        delivery.record(BackendStateChanged("fs", "failed", None, None))
        delivery.record(BackendStateChanged("git", "failed", None, None))
        assert await finished.until(123) == ["delivered"] * 123
        assert names(everything)[:120] == [f"t{number}" for number in range(120)]
        assert len(everything.accepted) == 122
        assert len({id for id, _ in everything.accepted}) == 122
        assert len(servers.accepted) == 1
        assert delivery.finished == {("ops", "delivered"): 122, ("pager", "delivered"): 1}
        assert [state[:3] for state in await delivery.states()] == [("ops", 0, 0), ("pager", 0, 0)]
    assert everything.is_closed


@tidy
async def test_a_failed_message_holds_back_the_next_ones_until_it_is_delivered(
    tmp_path: Path,
) -> None:
    receiver, finished = Receiver(500, 503), Finished()
    schedule = RetrySchedule(first_delay=0.0)
    target = settings_of("ops", receiver)
    async with delivering(tmp_path, target, finished=finished, schedule=schedule) as delivery:
        delivery.record(kill("a"))
        delivery.record(kill("b"))
        await finished.until(3)
    assert names(receiver) == ["a", "b"]
    assert len(receiver.attempts) == 4
    assert len(set(receiver.attempts)) == 2
    assert [(each.outcome, each.attempts) for each in finished] == [
        ("retrying", 1),
        ("delivered", 3),
        ("delivered", 1),
    ]


@tidy
async def test_the_next_attempt_waits_for_its_time(tmp_path: Path) -> None:
    receiver, finished, clock = Receiver(500), Finished(), Clock()
    schedule = RetrySchedule(first_delay=100.0)
    target = settings_of("ops", receiver)
    async with delivering(
        tmp_path, target, finished=finished, schedule=schedule, clock=clock
    ) as delivery:
        delivery.record(kill("a"))
        while (await delivery.states())[0].problem is None:
            await asyncio.sleep(0)
        assert len(receiver.attempts) == 1
        clock.now += 101.0
        await finished.until(2)
    assert names(receiver) == ["a"]


@tidy
async def test_a_message_that_fails_too_long_is_dead_and_the_next_one_follows(
    tmp_path: Path,
) -> None:
    receiver, finished = Receiver(500), Finished()
    schedule = RetrySchedule(give_up_after=0.0)
    target = settings_of("ops", receiver)
    async with delivering(tmp_path, target, finished=finished, schedule=schedule) as delivery:
        delivery.record(kill("a"))
        delivery.record(kill("b"))
        assert await finished.until(2) == ["dead", "delivered"]
        assert (await delivery.states())[0].dead == 1
    assert names(receiver) == ["b"]


@tidy
async def test_a_target_that_refuses_several_messages_is_switched_off(tmp_path: Path) -> None:
    refused = [403] * (MAX_REFUSALS - 1)
    receiver, finished = Receiver(*refused, 200, *refused, 403), Finished()
    async with delivering(tmp_path, settings_of("ops", receiver), finished=finished) as delivery:
        for number in range(2 * MAX_REFUSALS + 2):
            delivery.record(kill(f"t{number}"))
        dead = ["dead"] * (MAX_REFUSALS - 1)
        assert await finished.until(2 * MAX_REFUSALS + 1) == [
            *dead,
            "delivered",
            *dead,
            "dead",
            "off",
        ]
        (state,) = await delivery.states()
        assert state.off_reason == "it refused 5 messages in a row: status 403"
        assert state.waiting == 2
    assert finished[-1].problem == state.off_reason


@tidy
async def test_410_switches_a_target_off_and_keeps_its_messages(tmp_path: Path) -> None:
    receiver, finished = Receiver(410), Finished()
    async with delivering(tmp_path, settings_of("ops", receiver), finished=finished) as delivery:
        delivery.record(kill("a"))
        assert await finished.until(1) == ["off"]
        delivery.record(kill("b"))
        while (await delivery.states())[0].waiting < 2:
            await asyncio.sleep(0)
    store = WebhookStore(default_file(tmp_path))
    store.open()
    store.retry_dead("ops")
    store.close()
    async with delivering(tmp_path, settings_of("ops", receiver), finished=finished):
        await finished.until(3)
    assert names(receiver) == ["a", "b"]


@tidy
async def test_a_slow_target_delays_only_its_own_messages(tmp_path: Path) -> None:
    slow, fast, finished = Receiver(), Receiver(), Finished()
    slow.may_answer.clear()
    targets = settings_of("slow", slow), settings_of("fast", fast)
    async with delivering(tmp_path, *targets, finished=finished) as delivery:
        for number in range(60):
            delivery.record(kill(f"t{number}"))
        await finished.until(60)
        assert len(fast.accepted) == 60
    assert stored(tmp_path, "slow")[:2] == ["t0", "t1"]


@tidy
async def test_messages_without_room_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver()
    receiver.may_answer.clear()
    async with delivering(tmp_path, settings_of("ops", receiver, max_queue=3)) as delivery:
        for number in range(5):
            delivery.record(kill(f"t{number}"))
        while delivery.dropped < 2:
            await asyncio.sleep(0)
        monkeypatch.setattr(delivery_module, "MAX_PENDING", 0)
        delivery.record(kill("t5"))
        assert delivery.dropped == 3
    assert stored(tmp_path) == ["t0", "t1", "t2"]
    assert [each.message for each in caplog.records] == [
        "trunkline: webhook messages are dropped: too many wait for a target (max_queue)"
    ]


@tidy
async def test_messages_survive_a_restart_with_their_ids(tmp_path: Path) -> None:
    receiver, finished = Receiver(), Finished()
    receiver.may_answer.clear()
    async with delivering(tmp_path, settings_of("ops", receiver)) as delivery:
        delivery.record(kill("a"))
        while not receiver.attempts:
            await asyncio.sleep(0)
        delivery.record(kill("b"))
    assert stored(tmp_path) == ["a", "b"]
    again = Receiver()
    async with delivering(tmp_path, settings_of("ops", again), finished=finished):
        await finished.until(2)
    assert names(again) == ["a", "b"]
    assert again.attempts[0] == receiver.attempts[0]
    assert stored(tmp_path) == []


@tidy
async def test_of_two_gateways_one_delivers_and_the_other_takes_over(tmp_path: Path) -> None:
    first, second, finished = Receiver(), Receiver(), Finished()
    async with delivering(tmp_path, settings_of("ops", second), finished=finished) as other:
        async with delivering(tmp_path, settings_of("ops", first), finished=finished) as one:
            one.record(kill("a"))
            other.record(kill("b"))
            await finished.until(2)
            leader = first if first.accepted else second
            assert sorted(names(leader)) == ["a", "b"]
        other.record(kill("c"))
        await finished.until(3)
    assert sorted([*names(first), *names(second)]) == ["a", "b", "c"]


@tidy
async def test_while_the_file_cannot_be_used_messages_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver, finished = Receiver(), Finished()
    default_file(tmp_path).write_text("no database" * 100)
    async with delivering(tmp_path, settings_of("ops", receiver), finished=finished) as delivery:
        delivery.record(kill("a"))
        while not caplog.records:
            await asyncio.sleep(0)
        default_file(tmp_path).unlink()
        await finished.until(1)
    assert names(receiver) == ["a"]
    assert "cannot be stored" in caplog.records[0].message
    assert caplog.records[-1].message == "trunkline: webhook messages can be stored again"


@tidy
async def test_the_state_directory_is_created(tmp_path: Path) -> None:
    receiver, finished = Receiver(), Finished()
    folder = tmp_path / "state" / "trunkline"
    async with delivering(folder, settings_of("ops", receiver), finished=finished) as delivery:
        delivery.record(kill("a"))
        await finished.until(1)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@tidy
async def test_without_a_usable_folder_delivery_waits_for_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver, finished = Receiver(), Finished()
    folder = tmp_path / "state"
    folder.touch()
    async with delivering(folder, settings_of("ops", receiver), finished=finished) as delivery:
        while not caplog.records:
            await asyncio.sleep(0)
        folder.unlink()
        delivery.record(kill("a"))
        await finished.until(1)
    assert names(receiver) == ["a"]


@tidy
async def test_at_the_end_messages_that_cannot_be_stored_are_counted(tmp_path: Path) -> None:
    default_file(tmp_path).write_text("no database" * 100)
    async with delivering(tmp_path, settings_of("ops", Receiver())) as delivery:
        delivery.record(kill("a"))
    assert delivery.dropped == 1


@tidy
async def test_a_bug_in_one_delivery_does_not_end_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver, finished = Receiver(), Finished()
    failures = [ValueError("a bug")]

    def open_target() -> Receiver:
        if failures:
            raise failures.pop()
        return receiver

    target = TargetSettings("ops", ("*",), (), 10, open_target)
    async with delivering(tmp_path, target, finished=finished) as delivery:
        delivery.record(kill("a"))
        await finished.until(1)
    assert [each.message for each in caplog.records] == [
        "trunkline: the delivery to webhook ops failed"
    ]


@tidy
async def test_messages_about_messages_are_not_sent(tmp_path: Path) -> None:
    async with delivering(tmp_path, settings_of("ops", Receiver())) as delivery:
        delivery.record(WebhookFinished("ops", "kill", "msg_1", "dead", 1, None))
        assert delivery.dropped == 0
    assert stored(tmp_path) == []
