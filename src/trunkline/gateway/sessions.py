"""Sessions: who is talking to the gateway, by ids that nobody can guess.

Refuses to look at the clock: `now` is an argument, in seconds of a clock that only goes forward.

Rules upheld here:
1. An id has 32 characters of A-Z a-z 0-9 _ - from the system's own randomness.
2. A session belongs to its principal: for anybody else it is not there.
3. One that is idle for too long is gone; so is one that was removed. There are never too many.
"""

import secrets
from dataclasses import dataclass
from typing import Generic, TypeVar

IDLE = 1800.0
"""After so many seconds without a message a session is gone."""

MAX_SESSIONS = 1000

Held = TypeVar("Held")


@dataclass
class Record(Generic[Held]):
    """One session: what is known of it, and what it holds."""

    session_id: str
    principal: str
    held: Held
    created_at: float
    last_activity: float
    initialized: bool = False


class TooManySessions(Exception):
    """There is no room for another session."""


class Sessions(Generic[Held]):
    """All sessions of one gateway."""

    def __init__(self, idle: float = IDLE, max_sessions: int = MAX_SESSIONS) -> None:
        self._idle = idle
        self._max = max_sessions
        self._records: dict[str, Record[Held]] = {}

    def create(self, principal: str, held: Held, now: float) -> Record[Held]:
        """Begin a session; raises TooManySessions."""
        self.expire(now)
        if len(self._records) >= self._max:
            raise TooManySessions(f"expected at most {self._max} sessions")
        record = Record(secrets.token_urlsafe(24), principal, held, now, now)
        self._records[record.session_id] = record
        return record

    def find(self, session_id: str, principal: str, now: float) -> Record[Held] | None:
        """Return a session that is there for this principal, and note that it is in use."""
        record = self._records.get(session_id)
        if record is None or record.principal != principal:
            return None
        if now - record.last_activity > self._idle:
            self.remove(session_id)
            return None
        record.last_activity = now
        return record

    def mark_initialized(self, session_id: str) -> bool:
        """Note that the client is ready; tell whether there is such a session."""
        record = self._records.get(session_id)
        if record is not None:
            record.initialized = True
        return record is not None

    def remove(self, session_id: str) -> bool:
        """End a session; tell whether there was one."""
        return self._records.pop(session_id, None) is not None

    def expire(self, now: float) -> list[Record[Held]]:
        """Remove the sessions that have been idle for too long, and return them."""
        gone = [r for r in self._records.values() if now - r.last_activity > self._idle]
        for record in gone:
            del self._records[record.session_id]
        return gone

    def __len__(self) -> int:
        return len(self._records)
