"""PendingResult: the result of a call in flight, with callbacks that run the moment it arrives.

    caller ──> PendingResult ──add_callback──> record the call ──> adapt the result ──> reply
                     ^
                set_result, set_exception or cancel: the first one counts

One asyncio task per call would cost more than all other work on that call. A layer that does not
need to await therefore adds a callback and passes the PendingResult on. A caller that is a task
anyway awaits it.

Invariants upheld here:
1. It completes once; later results and exceptions are dropped.
2. Callbacks run once each, in the order they were added. A callback added after completion runs
   immediately. While it is held, all callbacks wait, even if the result is there.
3. A callback that raises replaces the outcome by its exception, and the remaining callbacks
   run in any case. A callback that raises Superseded makes the remaining callbacks wait
   for another PendingResult.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

# The callback list of a completed result. None has no `append`, so adding a callback too late
# raises AttributeError, and add_callback() needs no check in the usual case.
_NO_CALLBACKS: Any = None


class Superseded(Exception):
    """Raised by a callback to make the outcome of `replacement` count instead."""

    def __init__(self, replacement: "PendingResult") -> None:
        super().__init__("another result takes the place of this one")
        self.replacement = replacement


class _RareState:
    # Fields that few results need; one slot for all of them keeps the others small.

    __slots__ = ("cancel_reason", "holds", "result_held", "task")

    def __init__(self) -> None:
        self.task: asyncio.Future[Any] | None = None
        self.cancel_reason: BaseException | None = None
        self.holds = 0
        self.result_held = False

    def hold_outcome(self, pending: "PendingResult", result: Any) -> bool:
        """Return whether the outcome is held; store `result` if it is the first."""
        if not self.result_held:
            if self.holds:
                self.result_held, pending.result = True, result
            else:
                # A cancelled task keeps its frames, and Python 3.11 cannot collect that cycle.
                self.task = None
        return self.result_held


class PendingResult:
    """The result of a call in flight."""

    __slots__ = ("_callbacks", "_canceller", "_rare", "done", "error", "request_id", "result")

    request_id: Any
    """The id by which the maker can cancel the call; set and read by the maker only."""

    result: Any
    """The result, once `done`. A callback may replace it."""

    error: BaseException | None
    """The exception, if the call failed. A callback may replace it."""

    _callbacks: "list[Callable[[PendingResult], None]]"

    def __init__(self, canceller: "Callable[[PendingResult], None] | None" = None) -> None:
        """Create a result that is not there yet.

        cancel() calls `canceller`, which must complete the result. Without one, cancel()
        completes it.
        """
        self.done = False
        self.error = None
        self._canceller = canceller
        self._callbacks = []
        self._rare: _RareState | None = None

    @classmethod
    def from_awaitable(cls, awaitable: Awaitable[Any]) -> "PendingResult":
        """Run an awaitable in a task of its own and return its result."""
        task = asyncio.ensure_future(awaitable)
        pending = cls(partial(_cancel_soon, task))
        pending._rare_state().task = task
        task.add_done_callback(pending._copy_task)
        return pending

    @classmethod
    def from_result(cls, result: Any) -> "PendingResult":
        """Return a completed result."""
        pending = cls()
        pending.set_result(result)
        return pending

    @property
    def task(self) -> "asyncio.Future[Any] | None":
        """The task that computes the result, if there is one."""
        return None if self._rare is None else self._rare.task

    @property
    def cancel_reason(self) -> BaseException | None:
        """The exception that was passed to cancel()."""
        return None if self._rare is None else self._rare.cancel_reason

    def add_callback(self, callback: "Callable[[PendingResult], None]") -> None:
        """Call `callback` on completion, after all callbacks added before."""
        try:
            self._callbacks.append(callback)
        except AttributeError:  # it has completed
            self._run_callbacks([callback])

    def set_result(self, result: Any) -> None:
        """Complete with a result."""
        if self.done or (self._rare is not None and self._rare.hold_outcome(self, result)):
            return
        self.result = result
        self.done = True
        self._canceller = None
        callbacks = iter(self._callbacks)
        self._callbacks = _NO_CALLBACKS
        try:
            for callback in callbacks:
                callback(self)
        except Superseded as superseded:
            self._reopen(superseded.replacement, [*callbacks])
        except BaseException as exc:
            self.result, self.error = None, exc
            self._run_callbacks([*(self._callbacks or ()), *callbacks])
            if not isinstance(exc, (Exception, asyncio.CancelledError)):
                raise  # KeyboardInterrupt or SystemExit: the process ends, once all have run

    def set_exception(self, error: BaseException) -> None:
        """Complete with an exception; a cancellation becomes the reason given to cancel()."""
        if not self.done and (self._rare is None or not self._rare.result_held):
            reason = self.cancel_reason if isinstance(error, asyncio.CancelledError) else None
            self.error = error if reason is None else reason
            self.set_result(None)

    def copy_from(self, source: "PendingResult") -> None:
        """Complete with the outcome of another result."""
        if source.error is not None:
            self.set_exception(source.error)
        else:
            self.set_result(source.result)

    def chain(self, source: "PendingResult") -> None:
        """Complete when `source` does; cancel `source` when this one is cancelled."""
        self.set_canceller(lambda _: source.cancel())
        source.add_callback(self.copy_from)

    def cancel(self, reason: BaseException | None = None) -> None:
        """Stop the call; it fails with `reason`, or with CancelledError."""
        if self.done or (self._rare is not None and self._rare.result_held):
            return
        if reason is not None and self.cancel_reason is None:
            self._rare_state().cancel_reason = reason
        if self._canceller is None:
            self.set_exception(asyncio.CancelledError())
        else:
            self._canceller(self)

    def hold(self) -> None:
        """Delay completion until release(), because something must be sent first."""
        self._rare_state().holds += 1

    def release(self) -> None:
        """End one hold(); the last one completes the result if its outcome is there."""
        rare = self._rare_state()
        rare.holds -= 1
        if rare.result_held and not rare.holds:
            rare.result_held = False
            self.set_result(self.result)

    def set_canceller(self, canceller: "Callable[[PendingResult], None]") -> None:
        """Replace the function that cancel() calls; it must complete the result."""
        self._canceller = canceller

    async def wait(self) -> None:
        """Wait for completion; cancelling the wait does not cancel the call."""
        if not self.done:
            completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_callback(partial(_wake, completed))
            await completed

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            try:
                yield from self.wait().__await__()
            except asyncio.CancelledError:
                self.cancel()
                yield from self.wait().__await__()  # like a coroutine, leave nothing running
                raise
        if self.error is not None:
            raise self.error
        return self.result

    def _rare_state(self) -> _RareState:
        if self._rare is None:
            self._rare = _RareState()
        return self._rare

    def _run_callbacks(self, callbacks: "list[Callable[[PendingResult], None]]") -> None:
        """Run more callbacks with the outcome that is there."""
        self.done = False
        self._callbacks = callbacks
        self.set_result(self.result)

    def _reopen(
        self, replacement: "PendingResult", callbacks: "list[Callable[[PendingResult], None]]"
    ) -> None:
        """Become pending again, with the callbacks that have not run, and wait for another."""
        self.done = False
        self.result = self.error = None
        self._callbacks = callbacks
        self.chain(replacement)

    def _copy_task(self, task: "asyncio.Future[Any]") -> None:
        if task.cancelled():
            self.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())


def as_pending(outcome: Any) -> Any:
    """Return a PendingResult for anything that can be awaited, and other values unchanged."""
    if isinstance(outcome, PendingResult) or not hasattr(outcome, "__await__"):
        return outcome
    return PendingResult.from_awaitable(outcome)


def _wake(waiter: "asyncio.Future[None]", _: PendingResult) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _cancel_soon(task: "asyncio.Future[Any]", _: PendingResult) -> None:
    # Cancel a task after its first step: a task that never starts runs no clean-up.
    task.get_loop().call_soon(task.cancel)
