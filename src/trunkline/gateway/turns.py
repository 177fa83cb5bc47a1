"""Turns: so many calls of one backend at a time, and none for longer than its patience.

    take ──> begun at once ──────────────────────────────> settled
         ──> in the queue ──> begun when one has ended ──>
                 └─────────────── too long ──> cancelled, TimeoutError

Refuses to know what a call is, and when it ends: whoever begins one says so by `watch`, and when it
has ended by `leave`.

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

    _now: Callable[[], float]
    """The clock of the loop; known once something was watched over."""

    def __init__(
        self, at_once: int, seconds: float, waits_since: Callable[[T], float | None]
    ) -> None:
        """Begin; `waits_since` tells when the backend asked a patron what that has not answered.

        That is in the course of a call that had begun by then, and its time is not the backend's.
        """
        self.at_once = at_once
        self._waits_since = waits_since
        self._seconds = seconds
        self.terms: dict[Due, tuple[float, float, T]] = {}
        """All who are worked on, or wait for that: since when, how long they may, and for whom.

        Who loses patience first comes first. Nobody waits unless as many as may have begun.
        """
        self._queue: dict[Due, Begin] = {}
        """Those of them who wait."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self.terms)

    @property
    def full(self) -> bool:
        """Tell whether one more would have to wait."""
        return len(self.terms) >= self.at_once

    def take(self, begin: Begin, patron: T) -> Due:
        """Have `begin` called, now or when it is its turn; raises what it raises, if now."""
        if self.full:
            turn = Due()
            turn.then(self._left)
            self._queue[turn] = begin
        else:
            turn = begin()
        if not turn.done:
            self.watch(turn, patron)
        return turn

    def watch(self, turn: Due, patron: T) -> None:
        """Count something in, and let it take no longer than it may."""
        if self._timer is None:
            self._begin_to_watch()
        self.terms[turn] = (self._now(), self._seconds, patron)

    def _begin_to_watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._timer = loop.call_at(loop.time() + self._seconds, self._check)

    def lend(self, places: int) -> None:
        """Let so many more begin at a time, or less: who waits for its client needs no place."""
        self.at_once += places
        self._begin_more()

    def adopt(self, more: int, seconds: float) -> None:
        """Let so many more begin at a time, or less, and have another patience from now on.

        With less of it, those who are under way have no more left than those who come now.
        """
        self._seconds = seconds
        if self.terms:
            loop = asyncio.get_running_loop()
            latest = loop.time() + seconds
            for turn, (began, patience, patron) in self.terms.items():
                self.terms[turn] = (began, min(patience, latest - began), patron)
            self.close()
            began, patience, _ = next(iter(self.terms.values()))
            self._timer = loop.call_at(began + patience, self._check)
        self.lend(more)

    def leave(self, turn: Due) -> None:
        """Count out what has ended, and let the next begin."""
        self.terms.pop(turn, None)
        if self._queue:
            self._begin_more()

    def _begin_more(self) -> None:
        while self._queue and len(self.terms) - len(self._queue) < self.at_once:
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
        doing.then(lambda _: self.leave(turn))
        doing.then(turn.follow)

    def _left(self, turn: Due) -> None:
        self._queue.pop(turn, None)
        self.terms.pop(turn, None)

    def _check(self) -> None:
        """Stop those who have taken too long."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for turn, (began, patience, patron) in list(self.terms.items()):
            if began + patience > now:
                break
            asked = self._waits_since(patron)
            if asked is not None and asked >= began:
                del self.terms[turn]  # to the end: it has all its time again
                self.terms[turn] = (began, now + self._seconds - began, patron)
            else:
                turn.cancel(TimeoutError())
        # Those who do not stop at once are not told again and again.
        ends = (began + patience for began, patience, _ in self.terms.values())
        if (until := next((end for end in ends if end > now), None)) is not None:
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
