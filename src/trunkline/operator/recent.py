"""Recent: what has happened last, a line each, for an operator who asks.

    Events ──> Recent, so many lines ──last──> "2026-07-28T12:00:00Z anna called fs__read: success"

Refuses to keep what was asked or answered: of a call it keeps who, what and how it ended. It is no
journal: what is older is forgotten, and so is everything when the gateway ends.
"""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from trunkline.gateway.events import (
    BackendMoved,
    CallEnded,
    Event,
    Reloaded,
    Switched,
    TurnedAway,
    Unchecked,
)
from trunkline.gateway.switches import PAUSE
from trunkline.jsonrpc import Incident

MOST = 1000
"""How many lines are kept."""

LONGEST = 300
"""How long a line may be, in characters; what clients and servers say may be of any length."""

_NAME = 100


class _Call(NamedTuple):
    """What is kept of a call: not the event, which has all that was asked."""

    subject: str
    method: str
    name: str
    status: str
    code: int | None
    seconds: float


class Recent:
    """The last of what has happened."""

    def __init__(
        self,
        hide: Callable[[str], str] = str,
        today: Callable[[], float] = time.time,
        most: int = MOST,
    ) -> None:
        """Begin with nothing; `hide` takes secrets out of what is said."""
        self._hide = hide
        self._today = today
        self._kept: deque[tuple[float, _Call | str]] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._kept)

    def note(self, event: Event) -> None:
        """Take note of what has happened; calls are put into words when somebody asks."""
        if isinstance(event, CallEnded):
            name, subject = event.name[:_NAME], event.principal.subject[:_NAME]
            call = _Call(subject, event.method, name, event.status, event.code, event.total)
            self._kept.append((event.at, call))
        else:
            self._kept.append((self._today(), words(event)))

    def last(self, lines: int) -> list[str]:
        """Return the last lines, oldest first."""
        kept = list(self._kept)
        return [self._line(at, event) for at, event in kept[max(0, len(kept) - lines) :]]

    def _line(self, at: float, event: _Call | str) -> str:
        when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = self._hide(event if isinstance(event, str) else call_words(event))
        shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in said[:LONGEST])
        return f"{when} {shown}"


def call_words(call: _Call) -> str:
    """Say how a call ended."""
    did = "called" if call.method == "tools/call" else f"asked {call.method} of"
    why = "" if call.code is None else f" ({call.code})"
    end = f"{call.status}{why} in {call.seconds * 1000:.0f} ms"
    return f"{call.subject} {did} {call.name or '?'}: {end}"


def words(event: Event) -> str:
    """Say what has happened; of what nobody foresaw, no more than a client is told."""
    match event:
        case BackendMoved(name, state, error, retry):
            why = f": {error}" if error else ""
            again = "" if retry is None else f" (again in {retry:g} s)"
            return f"server {name} is {state}{why}{again}"
        case Switched(what, name, off, by):
            if what == PAUSE:
                return f"the gateway is {'paused' if off else 'resumed'} by {by}"
            thing = f"{what} {name}" if name else what
            return f"{thing} is {'stopped' if off else 'revived'} by {by}"
        case Reloaded(None, changed):
            return f"the configuration was read again: {', '.join(changed) or 'nothing'} changed"
        case Reloaded(problem):
            return f"the configuration was not taken: {problem}"
        case TurnedAway(address, why):
            return f"{address} was turned away: {why}"
        case Unchecked(name, _, why):
            return f"the arguments of {name} are not checked: {why}"
        case Incident(id, method):
            return f"incident {id} in {method}"
        case _:
            return type(event).__name__
