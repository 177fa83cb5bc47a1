"""Known callers: what has been found out of each, for as long as it is the same Caller.

    known.get(id(caller)) ──> (what was found out, the caller) ── None: find it out, and keep it

A Caller never changes, but what it says of itself cannot be hashed: it is known by its address, and
kept, so that the address is nobody else's.

Refuses to know when something else has changed: whoever has one forgets it then.
"""

from typing import TypeVar

from trunkline.mcp.caller import Caller

MOST = 64
"""How many are known at a time; when there are more, all are forgotten."""

LONGEST = 4096
"""Callers that say more bytes of themselves are not kept in mind."""

T = TypeVar("T")


class KnownCallers(dict[int, tuple[T, Caller]]):
    """What has been found out, by the addresses of callers."""

    __slots__ = ()

    def keep(self, caller: Caller, found: T) -> tuple[T, Caller]:
        """Keep what was found out of a caller, if there is room; return it."""
        if len(self) >= MOST:
            self.clear()
        known = (found, caller)
        if len(caller.envelope) <= LONGEST:
            self[id(caller)] = known
        return known
