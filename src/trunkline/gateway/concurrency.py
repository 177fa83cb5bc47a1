"""The queue of one upstream: how many calls run at a time, and for how long each may take.

    submit ──> started at once ──────────────────────────────> done
           ──> waiting ──> started when another one has ended ──>
                  └──────────── overdue ──> cancelled with TimeoutError

The queue does not start calls itself and does not observe their end. Its owner reports a running
call with `watch`, and its end with `remove`.

One timer serves all calls, because a timer per call would cost more than the rest of the queue. All
calls have the same timeout, so the oldest call expires first.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from trunkline.jsonrpc import PendingResult

StartCall: TypeAlias = Callable[[], PendingResult]


T = TypeVar("T")


class UpstreamQueue(Generic[T]):
    """The running and waiting calls of one upstream."""

    _now: Callable[[], float]  # the clock of the running loop; set when the first call is watched

    def __init__(
        self, max_in_flight: int, timeout: float, awaiting_client_since: Callable[[T], float | None]
    ) -> None:
        """Create an empty queue.

        `awaiting_client_since` returns when the backend sent the request that a client has not
        answered yet. The time of a call that waits for its client does not count against the
        backend.
        """
        self.max_in_flight = max_in_flight
        self._awaiting_client_since = awaiting_client_since
        self._timeout = timeout
        # All running and waiting calls: start time, allowed seconds and client. The call that
        # expires first comes first. Calls wait only while `max_in_flight` calls are running.
        self.deadlines: dict[PendingResult, tuple[float, float, T]] = {}
        # The calls that wait, with the function that starts each
        self._waiting: dict[PendingResult, StartCall] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self.deadlines)

    @property
    def full(self) -> bool:
        """Whether one more call would have to wait."""
        return len(self.deadlines) >= self.max_in_flight

    def submit(self, start: StartCall, client: T) -> PendingResult:
        """Call `start` now, or when a slot is free; raises what `start` raises if called now."""
        if self.full:
            answer = PendingResult()
            answer.add_callback(self._on_waiting_done)
            self._waiting[answer] = start
        else:
            answer = start()
        if not answer.done:
            self.watch(answer, client)
        return answer

    def watch(self, answer: PendingResult, client: T) -> None:
        """Count a running call, and cancel it when its time is up."""
        # This runs for every call: `_now` saves the lookup of the running loop.
        if self._timer is None:
            self._start_timer()
        self.deadlines[answer] = (self._now(), self._timeout, client)

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._timer = loop.call_at(loop.time() + self._timeout, self._cancel_overdue)

    def adjust_limit(self, change: int) -> None:
        """Change the number of slots; a call that waits for its client gives up its slot."""
        self.max_in_flight += change
        self._start_waiting()

    def reconfigure(self, limit_change: int, timeout: float) -> None:
        """Change the number of slots and the timeout.

        With a shorter timeout, calls in flight have no more time left than a call that starts now.
        """
        self._timeout = timeout
        if self.deadlines:
            loop = asyncio.get_running_loop()
            latest = loop.time() + timeout
            for answer, (started_at, allowed, client) in self.deadlines.items():
                self.deadlines[answer] = (started_at, min(allowed, latest - started_at), client)
            self.close()
            started_at, allowed, _ = next(iter(self.deadlines.values()))
            self._timer = loop.call_at(started_at + allowed, self._cancel_overdue)
        self.adjust_limit(limit_change)

    def remove(self, answer: PendingResult) -> None:
        """Forget a call that has ended, and start the next one."""
        self.deadlines.pop(answer, None)
        if self._waiting:
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and len(self.deadlines) - len(self._waiting) < self.max_in_flight:
            self._start_one(next(iter(self._waiting)))

    def _start_one(self, answer: PendingResult) -> None:
        start = self._waiting.pop(answer)
        try:
            running = start()
        except Exception as error:
            answer.set_exception(error)
            return
        # From here on, cancelling the answer cancels the running call.
        answer.set_canceller(lambda answer: running.cancel(answer.cancel_reason))
        running.add_callback(lambda _: self.remove(answer))
        running.add_callback(answer.copy_from)

    def _on_waiting_done(self, answer: PendingResult) -> None:
        self._waiting.pop(answer, None)
        self.deadlines.pop(answer, None)

    def _cancel_overdue(self) -> None:
        """Cancel the calls whose time is up, and set the timer for the next one."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for answer, (started_at, allowed, client) in list(self.deadlines.items()):
            if started_at + allowed > now:
                break
            asked_at = self._awaiting_client_since(client)
            if asked_at is not None and asked_at >= started_at:
                # Moved to the end: the call gets its whole timeout again from now on.
                del self.deadlines[answer]
                self.deadlines[answer] = (started_at, now + self._timeout - started_at, client)
            else:
                answer.cancel(TimeoutError())
        # A call that does not end at once is skipped here, so that it is cancelled only once.
        ends = (started_at + allowed for started_at, allowed, _ in self.deadlines.values())
        if (next_check := next((end for end in ends if end > now), None)) is not None:
            self._timer = loop.call_at(next_check, self._cancel_overdue)

    def fail_queued(self, error: BaseException) -> None:
        """Fail all waiting calls."""
        for answer in list(self._waiting):
            answer.set_exception(error)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
