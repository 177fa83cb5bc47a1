"""Fuse: the breaker of one backend at work: what came of its calls is judged, and others refused.

    enter ──> passed ──> the call ──> judge: an answer, a failure, or neither
          ──> CircuitOpen, at once

Refuses to call anything.

What is a failure: no answer in time, a connection that is lost, an answer that is none, HTTP 5xx.
What is an answer: a result, whatever it says, and any error that the server itself gave, since it
was there to give it. What is neither: what the client, or the gateway, gave up.

Rules upheld here:
1. A line that ends under many calls is one failure.
2. A ping that is answered makes up for pings that were not, but never for calls.
"""

import asyncio
from collections.abc import Callable

from trunkline.jsonrpc import ConnectionLost, Due, LineEnded, MalformedAnswer, RpcError
from trunkline.routing.breaker import Breaker


class CircuitOpen(ConnectionLost):
    """Nobody was asked: it has failed too often."""

    excused = True

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.retry_after = round(retry_after, 1)


class Fuse:
    """Whether one backend is asked at all."""

    def __init__(self, breaker: Breaker, moved: Callable[[], None]) -> None:
        """Begin closed; `moved` is called whenever the circuit is another."""
        self.breaker = breaker
        self.error: str | None = None
        """The last failure."""
        self.heard = False
        """Whether a call was answered since somebody looked."""
        self.calm = False
        """Whether one was, and none has failed since: another that is answered is no news."""
        self._moved = moved
        self._now = _time
        self._line: object = None
        self._missed = 0
        """How many of the failures in a row were pings."""

    def enter(self) -> int:
        """Let a call pass, of a backend that has failed; raises CircuitOpen.

        Without failures all pass, and nobody need ask.
        """
        breaker = self.breaker
        passed = breaker.admit(self._now())
        if passed is None:
            raise self.refusal()
        if not breaker.closed:
            self._moved()
        return passed

    def refusal(self) -> CircuitOpen:
        """Return why nobody passes."""
        reason = f"circuit open: {self.error}" if self.error else "circuit open"
        return CircuitOpen(reason, self.breaker.retry_in(self._now()))

    def look_away(self) -> None:
        """Hear anew whether calls are answered."""
        self.heard = self.calm = False

    def judge(self, passed: int, line: object, doing: Due) -> None:
        """Take note of what came of a call; `line` is what it was asked over."""
        why = doing.error
        if why is None:
            self.heard = True
            self._succeed(passed)
        elif why is doing.why and not isinstance(why, TimeoutError):
            self.give_up(passed)  # somebody stopped it
        else:
            self.judge_error(passed, why, line)

    def judge_error(self, passed: int, why: BaseException, line: object) -> None:
        """Take note that a call was not answered with a result."""
        if is_failure(why):
            if isinstance(why, LineEnded) and line is self._line:
                self.give_up(passed)
                return
            self._line = line if isinstance(why, LineEnded) else None
            self._fail(passed, why)
        elif isinstance(why, RpcError):
            self.heard = True
            self._succeed(passed)
        else:
            self.give_up(passed)

    def has_lost(self, line: object) -> bool:
        """Tell whether the last failure was that a line ended, and this one."""
        return line is self._line

    def give_up(self, passed: int) -> None:
        """Take note that nothing came of a call."""
        self.breaker.release(passed, self._now())

    def _succeed(self, passed: int) -> None:
        moved = self.breaker.succeed(passed)
        self.calm = self.heard and not self.breaker.failures
        if moved:
            self._moved()

    def _fail(self, passed: int, why: BaseException, pings: int = 0) -> None:
        self._missed = pings + (self._missed if self.breaker.failures else 0)
        self.error = str(why) or "it did not answer in time"
        self.calm = False
        if self.breaker.fail(passed, self._now()):
            self._moved()

    def renewed(self) -> None:
        """Take note that it was started anew: the next call may find out."""
        self._now = asyncio.get_running_loop().time  # what is lost in the end is lost outside of it
        self.breaker.hasten(self._now())

    # Pings

    def begin_ping(self) -> int | None:
        """Let a ping pass; None if it is not wanted: calls have failed, and calls will find out."""
        breaker = self.breaker
        if breaker.closed:
            return breaker.passing
        passed = breaker.admit(self._now()) if breaker.failures == self._missed else None
        if passed is not None:
            self._moved()
        return passed

    def end_ping(self, passed: int, why: BaseException | None) -> None:
        """Take note of what came of a ping."""
        breaker = self.breaker
        if why is None or (isinstance(why, RpcError) and not is_failure(why)):
            if breaker.failures and breaker.failures == self._missed:
                self._succeed(passed)
        elif is_failure(why):
            self._fail(passed, why, pings=1)
        else:
            self.give_up(passed)


def is_failure(why: BaseException) -> bool:
    """Tell whether an error says that a backend is not well."""
    if isinstance(why, ConnectionLost):
        return not why.excused
    return isinstance(why, TimeoutError | MalformedAnswer)


def _time() -> float:
    return asyncio.get_running_loop().time()
