"""The queue of one upstream: how many calls run at a time, and for how long each may take.

    submit ──> started at once ──────────────────────────────> ended
           ──> waiting ──> started when another one has ended ──>
                  └──────────── overdue ──> cancelled with TimeoutError

The owner passes a function that starts the call. `watch` adds a call that runs or waits. A finish
hook removes the call when it ends.

One timer serves all calls, because a timer per call would cost more than the rest of the queue. All
calls have the same timeout, so the oldest call expires first.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient
from trunkline.jsonrpc import PendingResult

StartCall: TypeAlias = Callable[[], PendingResult]


class _WaitingCall(NamedTuple):
    start: StartCall
    answer: PendingResult


class UpstreamQueue:
    """The running and waiting calls of one upstream."""

    _now: Callable[[], float]  # the clock of the running loop; set when the first call is watched

    def __init__(
        self,
        max_in_flight: int,
        timeout: float,
        awaiting_client_since: Callable[[DownstreamClient], float | None],
    ) -> None:
        """Create an empty queue.

        `awaiting_client_since` returns when the backend sent the request that a client has not
        answered yet. The time of a call that waits for its client does not count against the
        backend.
        """
        self.max_in_flight = max_in_flight
        self._awaiting_client_since = awaiting_client_since
        self._timeout = timeout
        # All running and waiting calls; the call that expires first comes first. Calls wait only
        # while `max_in_flight` calls are running.
        self.calls: dict[CallContext, None] = {}
        self._waiting: dict[CallContext, _WaitingCall] = {}
        self._is_starting = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def full(self) -> bool:
        """Whether one more call would have to wait."""
        return len(self.calls) >= self.max_in_flight

    def submit(self, context: CallContext, start: StartCall) -> PendingResult:
        """Call `start` now, or when a slot is free; raises what `start` raises if called now."""
        if not self.full:
            answer = start()
        else:
            context.answer = answer = PendingResult()
            self._waiting[context] = _WaitingCall(start, answer)
        if not answer.done:
            self.watch(context)
        return answer

    def watch(self, context: CallContext) -> None:
        """Count a running call, and cancel it when its time is up."""
        # This runs for every call: `_now` saves the lookup of the running loop.
        if self._timer is None:
            self._start_timer()
        context.queued_at = now = self._now()
        context.deadline = now + self._timeout
        self.calls[context] = None
        context.on_finish += (self.remove,)

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
        if self.calls:
            loop = asyncio.get_running_loop()
            latest = loop.time() + timeout
            for context in self.calls:
                context.deadline = min(context.deadline, latest)
            self.close()
            first = next(iter(self.calls))
            self._timer = loop.call_at(first.deadline, self._cancel_overdue)
        self.adjust_limit(limit_change)

    def remove(
        self, context: CallContext, result: object = None, error: BaseException | None = None
    ) -> None:
        """Forget a call that has ended, and start the next one."""
        self.calls.pop(context, None)
        if self._waiting:
            self._waiting.pop(context, None)
            self._start_waiting()

    def _start_waiting(self) -> None:
        if self._is_starting:  # a call that fails to start is removed, which leads here again
            return
        self._is_starting = True
        try:
            while self._waiting and len(self.calls) - len(self._waiting) < self.max_in_flight:
                self._start_one(*self._waiting.pop(next(iter(self._waiting))))
        finally:
            self._is_starting = False

    def _start_one(self, start: StartCall, answer: PendingResult) -> None:
        try:
            running = start()
        except Exception as error:
            answer.set_exception(error)
            return
        # From here on, cancelling the answer cancels the running call.
        answer.set_canceller(lambda answer: running.cancel(answer.cancel_reason))
        running.add_callback(answer.copy_from)

    def _cancel_overdue(self) -> None:
        """Cancel the calls whose time is up, and set the timer for the next one."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for context in list(self.calls):
            if context.deadline > now:
                break
            asked_at = self._awaiting_client_since(context.client)
            if asked_at is not None and asked_at >= context.queued_at:
                # Moved to the end: the call gets its whole timeout again from now on.
                del self.calls[context]
                self.calls[context] = None
                context.deadline = now + self._timeout
            elif context.answer is not None:
                context.answer.cancel(TimeoutError())
        # A call that does not end at once is skipped here, so that it is cancelled only once.
        next_check = next((c.deadline for c in self.calls if c.deadline > now), None)
        if next_check is not None:
            self._timer = loop.call_at(next_check, self._cancel_overdue)

    def fail_queued(self, error: BaseException) -> None:
        """Fail all waiting calls."""
        for waiting in list(self._waiting.values()):
            waiting.answer.set_exception(error)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
