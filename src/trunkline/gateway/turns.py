"""Turns: so many calls of one backend at a time, and none for longer than its patience.

    take ──> begun at once ──────────────────────────────> settled
         ──> in the queue ──> begun when one has ended ──>
                 └─────────────── too long ──> cancelled, TimeoutError

Refuses to know what a call is, and when it ends: whoever begins one counts it in by `working`, and
says when it has ended by `leave`.

One timer watches over all of them: one for each would cost more than the rest of its way through
here. All have the same patience, so the oldest is the first to lose it.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from trunkline.jsonrpc import Due

Begin: TypeAlias = Callable[[], Due]


T = TypeVar("T")


class Turns(Generic[T]):
    """Those who wait for one backend, and those it works on."""

    def __init__(
        self, at_once: int, seconds: float, waits_since: Callable[[T], float | None]
    ) -> None:
        """Begin; `waits_since` tells when the backend asked a patron what that has not answered.

        That is in the course of a call that had begun by then, and its time is not the backend's.
        """
        self.at_once = at_once
        self._waits_since = waits_since
        self._seconds = seconds
        self.working = 0
        """How many have begun and not ended."""
        self._terms: dict[Due, tuple[float, float, T]] = {}
        """Since and until when each may take, for whom; who loses patience first comes first."""
        self._queue: dict[Due, Begin] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._terms)

    @property
    def full(self) -> bool:
        """Tell whether one more would have to wait."""
        return self.working >= self.at_once

    def take(self, begin: Begin, patron: T) -> Due:
        """Have `begin` called, now or when it is its turn; raises what it raises, if now."""
        if self.working < self.at_once:
            turn = begin()
        else:
            turn = Due()
            turn.then(self._left)
            self._queue[turn] = begin
        self.watch(turn, patron)
        return turn

    def watch(self, turn: Due, patron: T) -> None:
        """Let something take no longer than it may; also what was begun at once."""
        if turn.done:
            return
        loop = self._loop
        if loop is None:
            # Kept: to find it out costs a system call, up to Python 3.11.
            loop = self._loop = asyncio.get_running_loop()
        began = loop.time()
        self._terms[turn] = (began, began + self._seconds, patron)
        if self._timer is None:
            self._timer = loop.call_at(began + self._seconds, self._check)

    def lend(self, places: int) -> None:
        """Let so many more begin at a time, or less: who waits for its client needs no place."""
        self.at_once += places
        self._begin_more()

    def adopt(self, more: int, seconds: float) -> None:
        """Let so many more begin at a time, or less, and have another patience from now on.

        With less of it, those who are under way have no more left than those who come now.
        """
        self._seconds = seconds
        if self._terms and self._loop is not None:
            latest = self._loop.time() + seconds
            for turn, (began, until, patron) in self._terms.items():
                self._terms[turn] = (began, min(until, latest), patron)
            self.close()
            _, first, _ = next(iter(self._terms.values()))
            self._timer = self._loop.call_at(first, self._check)
        self.lend(more)

    def leave(self, doing: Due) -> None:
        """Count out what has ended, and let the next begin."""
        self.working -= 1
        self._terms.pop(doing, None)
        if self._queue:
            self._begin_more()

    def _begin_more(self) -> None:
        while self._queue and self.working < self.at_once:
            self._begin_queued(next(iter(self._queue)))

    def _begin_queued(self, turn: Due) -> None:
        """Begin what has waited; from now on to stop it is to stop what is being done."""
        begin = self._queue.pop(turn)
        try:
            doing = begin()
        except Exception as why:
            turn.fail(why)
            return
        turn.stop_by(lambda turn: doing.cancel(turn.why))
        doing.then(turn.follow)

    def _left(self, turn: Due) -> None:
        self._queue.pop(turn, None)
        self._terms.pop(turn, None)

    def _check(self) -> None:
        """Stop those who have taken too long."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for turn, (began, until, patron) in list(self._terms.items()):
            if until > now:
                break
            asked = self._waits_since(patron)
            if asked is not None and asked >= began:
                del self._terms[turn]  # to the end: it has all its time again
                self._terms[turn] = (began, now + self._seconds, patron)
            else:
                turn.cancel(TimeoutError())
        # Those who do not stop at once are not told again and again.
        left = (until for _, until, _ in self._terms.values() if until > now)
        if (until := next(left, None)) is not None:
            self._timer = loop.call_at(until, self._check)

    def dismiss(self, why: BaseException) -> None:
        """Let nobody wait any longer."""
        for turn in list(self._queue):
            turn.fail(why)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
