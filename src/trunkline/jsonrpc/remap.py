"""IdRemapper: knows whose call an answer is for.

    caller's id 7 ─┐                                  ┌─> 41 ──> backend "fs"
    caller's id 7 ─┴─> remap ──> one counter for all ─┴─> 42 ──> backend "web"
                       restore(41) ──> (7, "fs"), once

Refuses to know what a call is, when it was made or what became of it.

Rules upheld here, from any number of threads, with or without a global interpreter lock:
1. A gateway id is given out once, ever; the first is 1.
2. `restore` gives back exactly what went in, type included, and only the first time.
3. What was remapped and neither restored nor forgotten is pending; nothing else is remembered.
"""

from collections import deque
from threading import Lock
from typing import NamedTuple

from trunkline.jsonrpc.message import Id

BLOCK = 64
"""How many ids are made at once."""


class Pending(NamedTuple):
    """One call in flight, for those who operate the gateway."""

    gateway_id: int
    original_id: Id
    backend: str


class IdRemapper:
    """Gives every call an id of the gateway's own, and gives the caller's back with the answer."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last = 0
        self._ready: deque[int] = deque()
        self._pending: dict[int, tuple[Id, str]] = {}

    def remap(self, original_id: Id, backend: str) -> int:
        """Return a new gateway id that stands for `original_id` towards `backend`."""
        while True:
            try:
                id = self._ready.popleft()  # which no other thread can get as well
            except IndexError:
                self._make_ready()
            else:
                self._pending[id] = original_id, backend
                return id

    def _make_ready(self) -> None:
        with self._lock:
            self._ready.extend(range(self._last + 1, self._last + 1 + BLOCK))
            self._last += BLOCK

    def restore(self, gateway_id: object) -> tuple[Id, str] | None:
        """Return the original id and the backend, and forget them; None if nothing is pending."""
        # Python takes True and 1.0 for 1: what is not an int was never given out.
        if type(gateway_id) is not int:
            return None
        return self._pending.pop(gateway_id, None)  # which no other thread can get in between

    def forget(self, gateway_id: int) -> bool:
        """Drop a mapping whose answer no longer matters; tell whether there was one."""
        return self._pending.pop(gateway_id, None) is not None

    def pending_count(self) -> int:
        """Return how many calls are in flight."""
        return len(self._pending)

    def pending(self) -> tuple[Pending, ...]:
        """Return all calls in flight, oldest first."""
        pending = self._pending.copy()  # at once: others go on meanwhile
        return tuple(Pending(id, *origin) for id, origin in pending.items())
