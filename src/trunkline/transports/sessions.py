"""Sessions: who is talking to the gateway over HTTP, by ids that nobody can guess.

Refuses to look at the clock: `now` is an argument, in seconds of a clock that only goes forward.
Refuses to end what goes on in a session, too: what is over is handed back to whoever must.

Rules upheld here:
1. An id has 32 characters of A-Z a-z 0-9 _ - from the system's own randomness.
2. A session belongs to its principal: for anybody else it is not there.
3. One that is idle for too long, or too old, is not there any more; there are never too many.
4. One in which something goes on is not idle, whenever somebody looks.
"""

import math
import secrets
from collections.abc import Iterator
from typing import Generic, TypeVar

IDLE = 1800.0
"""After so many seconds without a message a session is gone."""

LIFE = 86400.0
"""After so many seconds a session is gone, however busy it is."""

MAX_SESSIONS = 10_000


class Record:
    """One session: what is known of it here, beside all that whoever keeps it adds to that."""

    __slots__ = ("created_at", "last_activity", "owner", "session_id", "sure_until")

    def __init__(self) -> None:
        self.session_id = ""
        self.owner = ""
        """Whose it is, by the principal's id."""
        self.created_at = self.last_activity = 0.0
        self.sure_until = -math.inf
        """Until when it is there for certain, whatever happens; later it has to be looked for."""

    @property
    def busy(self) -> bool:
        """Tell whether something goes on in it; whoever ends that notes it in `last_activity`."""
        return False


Kept = TypeVar("Kept", bound=Record)


class TooManySessions(Exception):
    """There is no room for another session."""


class Sessions(Generic[Kept]):
    """All sessions of one gateway."""

    def __init__(
        self,
        idle: float = IDLE,
        life: float = LIFE,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        """Begin without any."""
        self._idle = idle
        self._life = life
        self._max = max_sessions
        self._records: dict[str, Kept] = {}

    def adopt(self, idle: float, life: float, max_sessions: int) -> None:
        """Have other limits from now on; sessions that are too many by now are not ended."""
        self._idle, self._life, self._max = idle, life, max_sessions
        for record in self._records.values():
            record.sure_until = -math.inf

    def create(self, owner: str, record: Kept, now: float) -> Kept:
        """Have a session begin; raises TooManySessions."""
        if len(self._records) >= self._max:
            raise TooManySessions(f"expected at most {self._max} sessions")
        record.session_id, record.owner = secrets.token_urlsafe(24), owner
        record.created_at = record.last_activity = now
        self._records[record.session_id] = record
        return record

    def find(self, session_id: str, owner: str, now: float) -> Kept | None:
        """Return a session that is there for its owner, and note that it is in use."""
        record = self._records.get(session_id)
        if record is None or record.owner != owner or self._is_over(record, now):
            return None
        record.last_activity = now
        record.sure_until = min(now + self._idle, record.created_at + self._life)
        return record

    def remove(self, session_id: str) -> Kept | None:
        """End a session, and hand it back if there was one."""
        record = self._records.pop(session_id, None)
        if record is not None:
            record.sure_until = -math.inf
        return record

    def expire(self, now: float) -> list[Kept]:
        """Remove the sessions that are over, and hand them back."""
        gone = [record for record in self._records.values() if self._is_over(record, now)]
        for record in gone:
            self.remove(record.session_id)
        return gone

    def _is_over(self, record: Kept, now: float) -> bool:
        if now - record.created_at > self._life:
            return True
        if now - record.last_activity <= self._idle:
            return False
        if not record.busy:
            return True
        record.last_activity = now
        return False

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)
