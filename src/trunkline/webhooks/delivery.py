"""WebhookDelivery: stores the events of a gateway, and delivers what is stored.

    event ──> EventMessages ──> pending ──writer task──> WebhookStore
                                                             │ one task for each target
                                                             v
                            removed, postponed, dead <── WebhookTarget.attempt

The event loop never waits for the file: one thread does all reads and writes. Several gateways may
share the file. All of them add messages; the one that holds the lock delivers. If it ends, another
one takes over.

Invariants:
1. Messages of one target are delivered in order: the next one is sent once the one before was
   delivered, or failed for good.
2. Every attempt for a message has the same id, also after a restart and from another gateway.
3. A slow or failing target delays nothing but its own messages.
4. Pending messages are bounded; those without room, here or in the file, are counted and reported.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from trunkline.files import HeldLock
from trunkline.gateway.events import GatewayEvent, WebhookFinished
from trunkline.http.webhooks import WebhookAttempt, new_webhook_id
from trunkline.jsonrpc.webhooks import DeliveryOutcome, RetrySchedule
from trunkline.webhooks.messages import EventMessage, EventMessages, matches
from trunkline.webhooks.store import (
    NewMessage,
    StoredMessage,
    TargetState,
    WebhookStore,
    WebhookStoreError,
)

MAX_PENDING = 10_000
"""How many messages may wait to be written to the file."""

WRITE_BATCH = 500
"""How many messages one transaction adds."""

READ_BATCH = 50
"""How many messages of one target are read, and kept in memory, at a time."""

POLL_INTERVAL = 1.0
"""How often the file is checked for messages of other gateways, and for the lock, in seconds."""

MAX_REFUSALS = 5
"""After so many refused messages in a row, a target is switched off."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class MessageTarget(Protocol):
    """What delivery needs of a WebhookTarget."""

    async def attempt(self, id: str, body: bytes) -> WebhookAttempt:
        """Send a message once."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class TargetSettings(Struct, frozen=True):
    """One target: what it wants, and how it is reached."""

    name: str
    events: tuple[str, ...]
    servers: tuple[str, ...]
    max_queue: int
    open: Callable[[], MessageTarget]


class WebhookDelivery:
    """Stores and delivers the messages of one gateway."""

    def __init__(
        self,
        path: Path,
        targets: Sequence[TargetSettings],
        messages: EventMessages,
        on_finished: Callable[[WebhookFinished], None],
        *,
        schedule: RetrySchedule | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; `start` starts it. `on_finished` gets what came of each message."""
        self._store = WebhookStore(path)
        self._lock_file = path.with_name(f"{path.name}.lock")
        self._targets = {target.name: target for target in targets}
        self._messages = messages
        self._on_finished = on_finished
        self._schedule = schedule or RetrySchedule()
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "webhooks")
        self._pending: list[NewMessage] = []
        self._has_pending = asyncio.Event()
        self._wakeups = {name: asyncio.Event() for name in self._targets}
        self._is_failing = False
        self._tasks: list[asyncio.Task[None]] = []
        self.dropped = 0
        """How many messages found no room."""
        self.finished: dict[tuple[str, str], int] = {}
        """How many messages ended, by target and outcome."""

    # Events

    def record(self, event: GatewayEvent) -> None:
        """Queue the message of an event for each target that wants it; an EventListener."""
        if isinstance(event, WebhookFinished):
            return  # a message about a message would never end
        now = self._clock()
        message = self._messages.to_message(event, now)
        if message is not None:
            self.add(message, now)

    def add(self, message: EventMessage, now: float) -> None:
        """Queue a message for each target that wants it."""
        for target in self._targets.values():
            if not matches(message, target.events, target.servers):
                continue
            if len(self._pending) >= MAX_PENDING:
                self._drop(1, "they are not written to the file in time")
                continue
            id = new_webhook_id()
            self._pending.append(NewMessage(target.name, id, message.event, message.body, now))
            self._has_pending.set()

    def _drop(self, count: int, reason: str) -> None:
        if count and not self.dropped:
            _log.warning("trunkline: webhook messages are dropped: %s", reason)
        self.dropped += count

    async def states(self) -> list[TargetState]:
        """Return the states of all targets."""
        return await self._in_thread(self._read_states)

    def _read_states(self) -> list[TargetState]:
        self._store.ensure_open()
        return self._store.read_states(list(self._targets))

    # Life

    def start(self) -> None:
        """Store and deliver from now on; needs a running loop. May be called twice."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._lead())]

    async def aclose(self) -> None:
        """Stop delivering, and store the messages that are pending."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._write_pending()
        except WebhookStoreError as error:
            self._drop(len(self._pending), str(error))
        await self._in_thread(self._store.close)
        self._thread.shutdown()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # Shielded: if its task is cancelled, the write goes on, and the next one waits for it.
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        return await asyncio.shield(running)

    async def _write(self) -> None:
        """Write pending messages to the file, as they come."""
        while True:
            await self._has_pending.wait()
            try:
                await self._write_pending()
            except WebhookStoreError as error:
                self._report_failure(error)
                await asyncio.sleep(POLL_INTERVAL)

    async def _write_pending(self) -> None:
        while self._pending:
            batch = self._pending[:WRITE_BATCH]
            room = {target.name: target.max_queue for target in self._targets.values()}
            refused = await self._in_thread(partial(self._add, batch, room))
            self._report_recovery()
            del self._pending[: len(batch)]
            self._drop(len(refused), "too many wait for a target (max_queue)")
            for wakeup in self._wakeups.values():
                wakeup.set()
        self._has_pending.clear()

    def _add(self, batch: list[NewMessage], room: dict[str, int]) -> list[NewMessage]:
        self._store.ensure_open()
        return self._store.add(batch, room)

    def _report_failure(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            _log.warning("trunkline: webhook messages cannot be stored: %s", error)

    def _report_recovery(self) -> None:
        if self._is_failing:
            self._is_failing = False
            _log.warning("trunkline: webhook messages can be stored again")

    # Delivery

    async def _lead(self) -> None:
        """Wait until no other gateway delivers, then deliver."""
        while (lock := await self._in_thread(self._try_lock)) is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_INTERVAL)
        try:
            async with asyncio.TaskGroup() as group:
                for settings in self._targets.values():
                    group.create_task(self._keep_serving(settings))
        finally:
            lock.release()

    def _try_lock(self) -> HeldLock | None:
        """Return the lock; None if another gateway holds it, or the file cannot be used."""
        try:
            self._lock_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return HeldLock.try_acquire(self._lock_file)
        except OSError as error:
            self._report_failure(error)
            return None

    async def _keep_serving(self, settings: TargetSettings) -> None:
        while True:
            try:
                await self._serve_target(settings)
            except Exception:  # a bug must not end the delivery to this or another target
                _log.exception("trunkline: the delivery to webhook %s failed", settings.name)
                await asyncio.sleep(POLL_INTERVAL)

    async def _serve_target(self, settings: TargetSettings) -> None:
        """Deliver the messages of one target, in order."""
        target, wakeup = settings.open(), self._wakeups[settings.name]
        refusals = 0
        try:
            while True:
                wakeup.clear()
                try:
                    batch = await self._in_thread(lambda: self._next_messages(settings.name))
                    pause, refusals = await self._deliver_batch(target, batch, refusals)
                except WebhookStoreError as error:
                    self._report_failure(error)
                    pause = POLL_INTERVAL
                if pause:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await wakeup.wait()
        finally:
            await target.aclose()

    def _next_messages(self, target: str) -> list[StoredMessage]:
        self._store.ensure_open()
        return self._store.next_messages(target, READ_BATCH)

    async def _deliver_batch(
        self, target: MessageTarget, batch: list[StoredMessage], refusals: int
    ) -> tuple[float, int]:
        """Deliver messages until one fails; return how long to pause, and refusals in a row."""
        delivered: list[int] = []
        try:
            for message in batch:
                if (left := message.next_at - self._clock()) > 0.0:
                    return min(left, POLL_INTERVAL), refusals
                attempt = await target.attempt(message.id, message.body)
                if attempt.outcome is not DeliveryOutcome.DELIVERED:
                    refusals = await self._handle_failure(message, attempt, refusals)
                    return 0.0, refusals
                refusals = 0
                delivered.append(message.seq)
                self._finish(message, attempt, "delivered")
        finally:
            if delivered:
                await self._in_thread(lambda: self._store.remove(delivered))
        return 0.0 if batch else POLL_INTERVAL, refusals

    async def _handle_failure(
        self, message: StoredMessage, attempt: WebhookAttempt, refusals: int
    ) -> int:
        """Postpone the message, or give it up; return the number of refusals in a row."""
        problem, now = attempt.problem or "", self._clock()
        if attempt.outcome is DeliveryOutcome.GONE:
            await self._switch_off(message, "it answered 410: it wants no more messages")
            return 0
        if attempt.outcome is DeliveryOutcome.RETRY:
            age = now - (message.first_attempt_at or now)
            delay = self._schedule.next_delay(message.attempts + 1, age, random.random())  # noqa: S311
            if delay is not None:
                next_at = now + delay
                await self._in_thread(
                    lambda: self._store.postpone(message.seq, now, next_at, problem)
                )
                if not message.attempts:  # told once: it may be tried again for a day
                    self._report(message, attempt, "retrying")
                return refusals
        await self._in_thread(lambda: self._store.set_dead(message.seq, message.target, problem))
        self._finish(message, attempt, "dead")
        if attempt.outcome is not DeliveryOutcome.REFUSED:
            return refusals
        if refusals + 1 < MAX_REFUSALS:
            return refusals + 1
        await self._switch_off(message, f"it refused {MAX_REFUSALS} messages in a row: {problem}")
        return 0

    async def _switch_off(self, message: StoredMessage, reason: str) -> None:
        target, now = message.target, self._clock()
        await self._in_thread(lambda: self._store.switch_off(target, reason, now))
        self._on_finished(WebhookFinished(target, message.event, message.id, "off", 1, reason))

    def _finish(self, message: StoredMessage, attempt: WebhookAttempt, outcome: str) -> None:
        key = (message.target, outcome)
        self.finished[key] = self.finished.get(key, 0) + 1
        self._report(message, attempt, outcome)

    def _report(self, message: StoredMessage, attempt: WebhookAttempt, outcome: str) -> None:
        self._on_finished(
            WebhookFinished(
                message.target,
                message.event,
                message.id,
                outcome,
                message.attempts + 1,
                attempt.problem,
            )
        )


def default_file(state: Path) -> Path:
    """Return the file of messages in a state directory."""
    return state / "webhooks.db"
