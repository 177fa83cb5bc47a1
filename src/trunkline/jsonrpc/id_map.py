"""IdRemapper: gives each call to a backend an id of the gateway's, and restores the caller's id.

    caller's id 7 ─┐                                  ┌─> 41 ──> backend "fs"
    caller's id 7 ─┴─> remap ──> one counter for all ─┴─> 42 ──> backend "web"
                       restore(41) ──> (7, "fs"), once

It does not know what a call is, when it was made or how it ended.

Invariants upheld here, for any number of threads, with or without a global interpreter lock:
1. No gateway id is given out twice; the first is 1.
2. `restore` returns exactly what was remapped, type included, and only once.
3. A remapped id is pending until it is restored or forgotten; nothing else is remembered.
"""

from collections import deque
from threading import Lock
from typing import NamedTuple

from trunkline.jsonrpc.message import Id

# How many ids are made per lock acquisition.
ID_BLOCK_SIZE = 64


class RemappedCall(NamedTuple):
    """One call in flight, for operators."""

    gateway_id: int
    original_id: Id
    backend: str


class IdRemapper:
    """Maps ids of callers to ids of the gateway and back."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last_id = 0
        self._free_ids: deque[int] = deque()
        self._pending: dict[int, tuple[Id, str]] = {}

    def remap(self, original_id: Id, backend: str) -> int:
        """Return a new gateway id that stands for `original_id` towards `backend`."""
        while True:
            try:
                id = self._free_ids.popleft()  # atomic: no other thread gets the same one
            except IndexError:
                self._refill()
            else:
                self._pending[id] = original_id, backend
                return id

    def _refill(self) -> None:
        with self._lock:
            self._free_ids.extend(range(self._last_id + 1, self._last_id + 1 + ID_BLOCK_SIZE))
            self._last_id += ID_BLOCK_SIZE

    def restore(self, gateway_id: object) -> tuple[Id, str] | None:
        """Return the original id and the backend, and forget them; None if not pending."""
        # Python treats True and 1.0 as equal to 1, but only ints are given out.
        if type(gateway_id) is not int:
            return None
        return self._pending.pop(gateway_id, None)  # atomic

    def forget(self, gateway_id: int) -> bool:
        """Drop a mapping whose response no longer matters; return whether it was pending."""
        return self._pending.pop(gateway_id, None) is not None

    def pending_count(self) -> int:
        """Return the number of calls in flight."""
        return len(self._pending)

    def pending(self) -> tuple[RemappedCall, ...]:
        """Return all calls in flight, oldest first."""
        pending = self._pending.copy()  # one step: other threads change the dict meanwhile
        return tuple(RemappedCall(id, *origin) for id, origin in pending.items())
