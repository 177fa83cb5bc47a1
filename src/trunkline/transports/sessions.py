"""Sessions: who is talking to the gateway over HTTP, by ids that nobody can guess.

Refuses to look at the clock: `now` is an argument, in seconds of a clock that only goes forward.
Refuses to drop what a session holds, too: what is over is handed back to whoever must end it.

Rules upheld here:
1. An id has 32 characters of A-Z a-z 0-9 _ - from the system's own randomness.
2. A session belongs to its principal: for anybody else it is not there.
3. One that is idle for too long, or too old, is not there any more; there are never too many.
4. One in which something goes on is not idle, whenever somebody looks.
"""

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

IDLE = 1800.0
"""After so many seconds without a message a session is gone."""

LIFE = 86400.0
"""After so many seconds a session is gone, however busy it is."""

MAX_SESSIONS = 10_000

Held = TypeVar("Held")


@dataclass(slots=True)
class Record(Generic[Held]):
    """One session: what is known of it, and what it holds."""

    session_id: str
    principal: str
    held: Held
    created_at: float
    last_activity: float
    sure_until: float = -math.inf
    """Until when it is there for certain, whatever happens; later it has to be looked for."""


class TooManySessions(Exception):
    """There is no room for another session."""


class Sessions(Generic[Held]):
    """All sessions of one gateway."""

    def __init__(
        self,
        idle: float = IDLE,
        life: float = LIFE,
        max_sessions: int = MAX_SESSIONS,
        is_busy: Callable[[Held], bool] | None = None,
    ) -> None:
        """Begin without any; `is_busy` tells whether something goes on in one, else nothing does.

        Whoever ends what goes on notes when that was, in `last_activity`.
        """
        self._idle = idle
        self._life = life
        self._max = max_sessions
        self._is_busy = is_busy
        self._records: dict[str, Record[Held]] = {}

    def adopt(self, idle: float, life: float, max_sessions: int) -> None:
        """Have other limits from now on; sessions that are too many by now are not ended."""
        self._idle, self._life, self._max = idle, life, max_sessions
        for record in self._records.values():
            record.sure_until = -math.inf

    def create(self, principal: str, held: Held, now: float) -> Record[Held]:
        """Begin a session; raises TooManySessions."""
        if len(self._records) >= self._max:
            raise TooManySessions(f"expected at most {self._max} sessions")
        record = Record(secrets.token_urlsafe(24), principal, held, now, now)
        self._records[record.session_id] = record
        return record

    def find(self, session_id: str, principal: str, now: float) -> Record[Held] | None:
        """Return a session that is there for this principal, and note that it is in use."""
        record = self._records.get(session_id)
        if record is None or record.principal != principal or self._is_over(record, now):
            return None
        record.last_activity = now
        record.sure_until = min(now + self._idle, record.created_at + self._life)
        return record

    def remove(self, session_id: str) -> Record[Held] | None:
        """End a session, and hand it back if there was one."""
        record = self._records.pop(session_id, None)
        if record is not None:
            record.sure_until = -math.inf
        return record

    def expire(self, now: float) -> list[Record[Held]]:
        """Remove the sessions that are over, and hand them back."""
        gone = [record for record in self._records.values() if self._is_over(record, now)]
        for record in gone:
            self.remove(record.session_id)
        return gone

    def _is_over(self, record: Record[Held], now: float) -> bool:
        if now - record.created_at > self._life:
            return True
        if now - record.last_activity <= self._idle:
            return False
        if self._is_busy is None or not self._is_busy(record.held):
            return True
        record.last_activity = now
        return False

    def __iter__(self) -> Iterator[Record[Held]]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)
