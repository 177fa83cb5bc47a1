"""Exporter: hands spans over to a collector, a batch at a time, and holds up nobody.

    take ──> waiting, bounded ──(a moment, or enough of them)──> POST ──> sent
                 └── too many ──> dropped, counted      refused for now ──> again, a little later

Refuses to know spans: `deliver` is whoever writes and posts them.

Rules upheld here:
1. What waits is bounded; what finds no room is dropped, and counted.
2. A batch is offered a few times, with growing patience, then dropped, and counted.
3. Whoever watches the log hears once that it does not work, and once that it does again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from trunkline.routing import backoff

BATCH = 512
WAITING = 4096
DELAY = 2.0
"""How many seconds a span waits for others to come with it."""

TRIES = 5
LONGEST = 60.0
"""How many seconds a collector can have us wait."""

PARTING = 2.0
"""How many seconds are left to deliver what waits when the gateway ends."""


class Delivery(NamedTuple):
    """What came of offering a batch: why not, if not; and whether, and when, to try again."""

    problem: str | None = None
    again: bool = False
    after: float | None = None


T = TypeVar("T")
"""What is delivered."""


class Exporter(Generic[T]):
    """Takes spans, and delivers them."""

    def __init__(
        self,
        deliver: Callable[[list[T]], Awaitable[Delivery]],
        tell: Callable[[str | None], None],
        chance: Callable[[], float],
        delay: float = DELAY,
    ) -> None:
        """Begin; `tell` hears what is wrong, and None when nothing is any more."""
        self.sent = 0
        self.dropped = 0
        self._deliver = deliver
        self._tell = tell
        self._chance = chance
        self._delay = delay
        self._waiting: list[T] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._troubled = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, span: T) -> None:
        """Have a span delivered, some time."""
        if self._closed or len(self._waiting) >= WAITING:
            self.dropped += 1
            return
        self._waiting.append(span)
        if self._sending is None:
            self._see_to_it()

    def _see_to_it(self) -> None:
        """Send what waits at once if that is enough, else in a moment."""
        if len(self._waiting) >= BATCH:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._begin)

    def _begin(self) -> None:
        self._rest()
        self._sending = asyncio.get_running_loop().create_task(self._send())
        self._sending.add_done_callback(self._ended)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if not task.cancelled():
            task.exception()  # seen: `deliver` says what is wrong by itself
        if self._waiting and not self._closed:
            self._see_to_it()

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            done = False
            try:
                done = await self._offer(batch)
            finally:
                if done:
                    self.sent += len(batch)
                else:
                    self.dropped += len(batch)

    async def _offer(self, batch: list[T]) -> bool:
        for failures in range(1, TRIES + 1):
            delivery = await self._deliver(batch)
            self._note(delivery.problem)
            if delivery.problem is None:
                return True
            if not delivery.again or failures == TRIES or self._closed:
                break
            wait = backoff.delay(failures, self._chance())
            await asyncio.sleep(max(wait, min(delivery.after or 0.0, LONGEST)))
        return False

    def _note(self, problem: str | None) -> None:
        if (problem is not None) != self._troubled:
            self._troubled = problem is not None
            self._tell(problem)

    async def aclose(self) -> None:
        """Deliver what waits, if that is quick."""
        self._rest()
        if self._sending is None and self._waiting:
            self._begin()
        self._closed = True
        sending = self._sending
        if sending is not None:
            await asyncio.wait({sending}, timeout=PARTING)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        self.dropped += len(self._waiting)
        self._waiting = []
