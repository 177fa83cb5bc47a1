"""The queue of one upstream: how many calls run at a time, and for how long each may take.

    submit ──> started at once ──────────────────────────────> ended
           ──> waiting ──> started when another one has ended ──>
                  ├──────────── overdue ──> cancelled with TimeoutError
                  └── displaced in a full queue ──> refused

The owner passes a function that starts the call. `watch` adds a call that runs or waits. A finish
hook removes the call when it ends.

One timer serves all calls, because a timer per call would cost more than the rest of the queue. All
calls have the same timeout, so the call that started or was restarted first expires first. Progress
and answers of the client restart the timeout of a call, up to `max_timeout` in total.

Calls are counted per principal only once so many run that one principal could have its share.

Invariants:
1. A call waits only if no slot is free, or if its principal holds its share of the slots.
2. Principals with waiting calls take turns. The calls of one principal start in their order.
3. In a full queue, a new call displaces the newest call of the principal with the most waiting
   calls, unless the new call's principal would then have as many.
4. `calls` is ordered by deadline.
"""

import asyncio
import math
import sys
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient
from trunkline.jsonrpc import ConnectionLost, PendingResult

StartCall: TypeAlias = Callable[[], PendingResult]

QUEUE_FULL_RETRY_AFTER = 1.0
"""The `retryAfter`, in seconds, of calls that are refused because the queue is full."""

QUEUE_FULL_REASON = "too many calls wait for it"


def fair_share(slots: int) -> int:
    """Return how many of `slots` one principal may hold: three quarters, but at least one."""
    return max(1, slots * 3 // 4)


class QueueFull(ConnectionLost):
    """The call was not made: too many calls wait for the upstream."""

    peer_not_at_fault = True
    retry_after = QUEUE_FULL_RETRY_AFTER


class _WaitingCall(NamedTuple):
    start: StartCall
    answer: PendingResult


class UpstreamQueue:
    """The running and waiting calls of one upstream."""

    now: Callable[[], float]  # the clock of the running loop; set when the first call is watched

    def __init__(
        self,
        max_in_flight: int,
        timeout: float,
        awaiting_client_since: Callable[[DownstreamClient], float | None],
        max_per_principal: int | None = None,
        max_timeout: float = math.inf,
    ) -> None:
        """Create an empty queue.

        A call without a sign of life ends after `timeout` seconds, every other call after
        `max_timeout`. If that is shorter than `timeout`, nothing extends a call.

        `awaiting_client_since` returns when the backend sent the request that a client has not
        answered yet. The time of a call that waits for its client does not count against the
        backend. `max_per_principal` limits the slots of one principal; None for no limit.
        """
        self.max_in_flight = max_in_flight
        self._max_per_principal = max_per_principal or sys.maxsize
        self._awaiting_client_since = awaiting_client_since
        self._timeout = timeout
        self._max_timeout = max(timeout, max_timeout)
        self.progress_at = -math.inf
        """When the server last reported progress of a call, or a client answered its request."""
        self.failed_at = -math.inf
        """When a call last ended with an error, or was cancelled."""
        # All running and waiting calls; the call that expires first comes first.
        self.calls: dict[CallContext, None] = {}
        # The waiting calls by principal; the principal whose turn comes next is first.
        self._waiting: dict[str, dict[CallContext, _WaitingCall]] = {}
        self.waiting_count = 0
        self.refused_count = 0
        """How many calls were refused because the queue was full."""
        # The number of calls of each principal; None while no principal can reach its share.
        self._counts: Counter[str] | None = None
        # How many calls of each principal gave up their slots while they wait for the client.
        self._suspended: Counter[str] = Counter()
        self._is_starting = False
        self._timer: asyncio.TimerHandle | None = None
        self.unchecked_below = 0
        """With fewer calls than this, no new call has to wait."""
        self._set_unchecked_below()

    def __len__(self) -> int:
        return len(self.calls)

    def _set_unchecked_below(self) -> None:
        share = self._max_per_principal + self._suspended.total()
        self.unchecked_below = min(self.max_in_flight, share)

    def must_wait(self, principal: str) -> bool:
        """Return whether one more call of a principal would have to wait."""
        if self._counts is None:
            self._counts = Counter(context.caller.principal.id for context in self.calls)
        is_full = len(self.calls) - self.waiting_count >= self.max_in_flight
        return is_full or self._slots_of(principal) >= self._max_per_principal

    def _slots_of(self, principal: str) -> int:
        """Return how many slots a principal holds; only while calls are counted."""
        calls = 0 if self._counts is None else self._counts[principal]
        return calls - len(self._waiting.get(principal, ())) - self._suspended[principal]

    def submit(self, context: CallContext, start: StartCall) -> PendingResult:
        """Call `start` now, or when a slot is free.

        Raises what `start` raises if called now.
        """
        principal = context.caller.principal.id
        if len(self.calls) < self.unchecked_below or not self.must_wait(principal):
            answer = start()
        else:
            context.answer = answer = PendingResult()
            self._waiting.setdefault(principal, {})[context] = _WaitingCall(start, answer)
            self.waiting_count += 1
        if not answer.done:
            self.watch(context)
        return answer

    def make_room(self, principal: str, max_waiting: int) -> bool:
        """Make room for one more waiting call of a principal; return False if there is none.

        In a full queue, the principal with the most waiting calls loses its newest one, unless
        the new call's principal would then have as many.
        """
        if self.waiting_count < max_waiting:
            return True
        self.refused_count += 1
        own = len(self._waiting.get(principal, ()))
        most = max(self._waiting.values(), key=len, default=None)
        if most is None or len(most) <= own + 1:
            return False
        newest = next(reversed(most))
        most[newest].answer.set_exception(QueueFull(f"{QUEUE_FULL_REASON}, most of them yours"))
        return True

    def watch(self, context: CallContext) -> None:
        """Count a call that runs or waits, and cancel it when its time is up."""
        # This runs for every call: `now` saves the lookup of the running loop.
        if self._timer is None:
            self._start_timer()
        context.queued_at = now = self.now()
        context.deadline = now + self._timeout
        context.timer = self
        self.calls[context] = None
        context.on_finish += (self.remove,)
        if self._counts is not None:
            self._counts[context.caller.principal.id] += 1

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self._timer = loop.call_at(loop.time() + self._timeout, self._cancel_overdue)

    # CallTimer

    def restart(self, context: CallContext) -> None:
        """Give a call its whole timeout again, up to `max_timeout` in total."""
        if context in self.calls:
            self.progress_at = now = self.now()
            self._extend(context, now)

    def _extend(self, context: CallContext, now: float) -> bool:
        """Restart the timeout of a call; return False if `max_timeout` does not allow it."""
        latest = context.queued_at + self._max_timeout
        if context.deadline >= latest or latest <= now:
            return False
        context.deadline = now + self._timeout
        del self.calls[context]
        self.calls[context] = None  # at the end: no other call has a later deadline
        if context.deadline > latest:
            # Once for each call, since a call at its latest deadline is not extended again.
            context.deadline = latest
            self._sort()
        return True

    def _sort(self) -> None:
        self.calls = dict.fromkeys(sorted(self.calls, key=lambda context: context.deadline))

    def adjust_limit(self, change: int, principal: str) -> None:
        """Free the slots of calls that wait for their client (1), or take them back (-1)."""
        self._suspended[principal] += change
        if not self._suspended[principal]:
            del self._suspended[principal]
        self._change_limit(change)

    def _change_limit(self, change: int) -> None:
        self.max_in_flight += change
        self._set_unchecked_below()
        self._start_waiting()

    def reconfigure(
        self,
        limit_change: int,
        timeout: float,
        max_per_principal: int | None = None,
        max_timeout: float = math.inf,
    ) -> None:
        """Change the number of slots, the timeouts, and how many slots one principal may hold.

        With shorter timeouts, calls in flight have no more time left than a call that starts now.
        """
        self._max_per_principal = max_per_principal or sys.maxsize
        self._timeout, self._max_timeout = timeout, max(timeout, max_timeout)
        if self.calls:
            loop = asyncio.get_running_loop()
            now = loop.time()
            for context in self.calls:
                latest = max(now, context.queued_at + self._max_timeout)
                context.deadline = min(context.deadline, now + timeout, latest)
            self._sort()
            self.close()
            first = next(iter(self.calls))
            self._timer = loop.call_at(first.deadline, self._cancel_overdue)
        self._change_limit(limit_change)

    def remove(
        self, context: CallContext, result: object = None, error: BaseException | None = None
    ) -> None:
        """Forget a call that has ended, and start the next one."""
        self.calls.pop(context, None)
        if error is not None:
            self.failed_at = self.now()
        if self._counts is not None:
            self._remove_counted(self._counts, context)

    def _remove_counted(self, counts: Counter[str], context: CallContext) -> None:
        principal = context.caller.principal.id
        counts[principal] -= 1
        if not counts[principal]:
            del counts[principal]
        own = self._waiting.get(principal)
        if own is not None and own.pop(context, None) is not None:
            self.waiting_count -= 1
            if not own:
                del self._waiting[principal]
        self._start_waiting()
        if not self.waiting_count and len(self.calls) * 2 < self.unchecked_below:
            self._counts = None  # at half of the number at which counting began, so it is rare

    def _start_waiting(self) -> None:
        if self._is_starting:  # a call that fails to start is removed, which leads here again
            return
        self._is_starting = True
        try:
            while self._waiting and len(self.calls) - self.waiting_count < self.max_in_flight:
                share = self._max_per_principal
                below_share = (p for p in self._waiting if self._slots_of(p) < share)
                principal = next(below_share, None)
                if principal is None:
                    return
                self._start_next_of(principal)
        finally:
            self._is_starting = False

    def _start_next_of(self, principal: str) -> None:
        own = self._waiting.pop(principal)
        waiting = own.pop(next(iter(own)))
        self.waiting_count -= 1
        if own:
            self._waiting[principal] = own  # at the end: all others have their turns first
        self._start_one(*waiting)

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
            is_asked = asked_at is not None and asked_at >= context.queued_at
            if is_asked and self._extend(context, now):
                continue
            if context.answer is not None:
                context.answer.cancel(self._timeout_error(context))
        # A call that does not end at once is skipped here, so that it is cancelled only once.
        next_check = next((c.deadline for c in self.calls if c.deadline > now), None)
        if next_check is not None:
            self._timer = loop.call_at(next_check, self._cancel_overdue)

    def _timeout_error(self, context: CallContext) -> TimeoutError:
        if context.deadline < context.queued_at + self._max_timeout or (
            self._max_timeout == self._timeout
        ):
            return TimeoutError()
        return TimeoutError(f"did not end within {self._max_timeout:g} s (`max_timeout`)")

    def fail_queued(self, error: BaseException) -> None:
        """Fail all waiting calls."""
        for waiting in [each for own in self._waiting.values() for each in own.values()]:
            waiting.answer.set_exception(error)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
