"""Due: an answer that is due, and what is to be done when it comes.

    whoever asks ──> Due ──then──> bookkeeping ──then──> the caller's shape ──then──> the reply
                      ^
                   settle, fail, cancel: once

A task for each call would cost more than all else that is done to it. So a call that needs no
waiting of its own on its way is handed from one to the other as a Due: each adds what it will do
in the end, and all of that is done in the moment the answer arrives. Whoever does not mind a task
awaits it.

Rules upheld here:
1. It is settled once; whatever comes later is dropped.
2. What was added first is done first, and once; what is added too late is done at once. While it
   is held nothing is done, though it be settled.
3. Whoever fails in the course of that changes the outcome into its failure, and the rest is done.
   Whoever raises Instead has the rest wait for something else, as if it had never been settled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

_DONE: Any = None
"""Takes in nothing: who adds something too late fails to, and so need not look before."""


class Instead(Exception):
    """Raised by whoever has something else done, whose outcome is to count."""

    def __init__(self, doing: "Due") -> None:
        super().__init__("something else is done instead")
        self.doing = doing


class _Aside:
    """What few of them need."""

    __slots__ = ("holds", "ripe", "task", "why")

    def __init__(self) -> None:
        self.task: asyncio.Future[Any] | None = None
        self.why: BaseException | None = None
        self.holds = 0
        self.ripe = False

    def keeps_back(self, due: "Due", result: Any) -> bool:
        """Tell whether it is settled already, or from now on, but held."""
        if not self.ripe:
            if self.holds:
                self.ripe, due.result = True, result
            else:
                # Let go of: a cancelled task keeps its frames, and Python 3.11 finds no such cycle.
                self.task = None
        return self.ripe


class Due:
    """An answer that is due."""

    __slots__ = ("_aside", "_stop", "_then", "about", "done", "error", "result")

    about: Any
    """What whoever made it has to know to stop it; not set by anybody else."""

    result: Any
    """The answer, if it is one; whoever adds something may put another in its place. Not before."""

    error: BaseException | None
    """Why there is none."""

    _then: "list[Callable[[Due], None]]"
    """What is to be done; _DONE once that is over, or is being done."""

    def __init__(self, stop: "Callable[[Due], None] | None" = None) -> None:
        """Begin to wait; `stop` is called if nobody wants to know any more, and has to settle it.

        Without it, to cancel is to settle.
        """
        self.done = False
        self.error = None
        self._stop = stop
        self._then = []
        self._aside: _Aside | None = None

    @classmethod
    def of(cls, doing: Awaitable[Any]) -> "Due":
        """Do something that has to wait on its way, in a task of its own."""
        task = asyncio.ensure_future(doing)
        due = cls(partial(_cancel_soon, task))
        due._beside().task = task
        task.add_done_callback(due._take)
        return due

    @classmethod
    def settled(cls, result: Any) -> "Due":
        """Return an answer that is there already."""
        due = cls()
        due.settle(result)
        return due

    @property
    def task(self) -> "asyncio.Future[Any] | None":
        """Who works on it, if that is a task."""
        return None if self._aside is None else self._aside.task

    @property
    def why(self) -> BaseException | None:
        """What was said when it was cancelled."""
        return None if self._aside is None else self._aside.why

    def then(self, step: "Callable[[Due], None]") -> None:
        """Have something done when it is settled, after all that was added before."""
        try:
            self._then.append(step)
        except AttributeError:  # too late
            self._do([step])

    def settle(self, result: Any) -> None:
        """Answer."""
        if self.done or (self._aside is not None and self._aside.keeps_back(self, result)):
            return
        self.result = result
        self.done = True
        self._stop = None
        steps = iter(self._then)
        self._then = _DONE
        try:
            for step in steps:
                step(self)
        except Instead as another:
            self._be_due_again(another.doing, [*steps])
        except Exception as failure:
            self.result, self.error = None, failure
            self._do([*(self._then or ()), *steps])

    def fail(self, error: BaseException) -> None:
        """Say why there is no answer."""
        if not self.done and (self._aside is None or not self._aside.ripe):
            cancelled = isinstance(error, asyncio.CancelledError)
            self.error = self.why if cancelled and self.why is not None else error
            self.settle(None)

    def follow(self, other: "Due") -> None:
        """Be settled as another one is."""
        if other.error is not None:
            self.fail(other.error)
        else:
            self.settle(other.result)

    def wait_for(self, doing: "Due") -> None:
        """Be settled as something else is, which is what to cancel from now on."""
        self.stop_by(lambda _: doing.cancel())
        doing.then(self.follow)

    def cancel(self, why: BaseException | None = None) -> None:
        """Let nobody work on it any more; it fails with `why`, or as cancelled."""
        if self.done or (self._aside is not None and self._aside.ripe):
            return
        if why is not None and self.why is None:
            self._beside().why = why
        if self._stop is None:
            self.fail(asyncio.CancelledError())
        else:
            self._stop(self)

    def hold(self) -> None:
        """Let nothing be done before `release`: something has to be told first."""
        self._beside().holds += 1

    def release(self) -> None:
        """Go on, if that was the last who held it."""
        aside = self._beside()
        aside.holds -= 1
        if aside.ripe and not aside.holds:
            aside.ripe = False
            self.settle(self.result)

    def stop_by(self, stop: "Callable[[Due], None]") -> None:
        """Have `stop` called from now on to cancel it; that has to settle it."""
        self._stop = stop

    def _beside(self) -> _Aside:
        if self._aside is None:
            self._aside = _Aside()
        return self._aside

    def _do(self, steps: "list[Callable[[Due], None]]") -> None:
        """Have that done as well, although it is settled."""
        self.done = False
        self._then = steps
        self.settle(self.result)

    def _be_due_again(self, doing: "Due", steps: "list[Callable[[Due], None]]") -> None:
        """Be due again, as something else is, with all that was not done yet."""
        self.done = False
        self.result = self.error = None
        self._then = steps
        self.wait_for(doing)

    def _take(self, task: "asyncio.Future[Any]") -> None:
        if task.cancelled():
            self.fail(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.fail(error)
        else:
            self.settle(task.result())

    async def wait(self) -> None:
        """Wait until it is settled, in whichever way; who gives up leaves it as it is."""
        if not self.done:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(partial(_wake, settled))
            await settled

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            try:
                yield from self.wait().__await__()
            except asyncio.CancelledError:
                self.cancel()
                yield from self.wait().__await__()  # as if it were a coroutine: nothing is left
                raise
        if self.error is not None:
            raise self.error
        return self.result


def _wake(waiting: "asyncio.Future[None]", _: Due) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _cancel_soon(task: "asyncio.Future[Any]", _: Due) -> None:
    """Cancel a task once it has begun: one that never begins would not clean up, either."""
    task.get_loop().call_soon(task.cancel)


def due(outcome: Any) -> Any:
    """Return what to wait for in the same form, whatever form it has; what is there stays as it is.

    A Due stays one, all else that can be awaited becomes one.
    """
    if isinstance(outcome, Due) or not hasattr(outcome, "__await__"):
        return outcome
    return Due.of(outcome)
