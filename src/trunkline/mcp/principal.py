"""Principal: who is asking, as far as somebody has made sure of it.

Refuses to say what anybody may do: that is the policy's, which reads roles and subject.

Two that have the same `id` are the same one, with other roles perhaps: sessions, streams, parked
calls and quotas belong to an id. Roles may change from one request to the next.
"""

from msgspec import Struct
from msgspec.structs import force_setattr


class Principal(Struct, frozen=True, gc=False):
    """One who asks."""

    id: str
    """Who it is, across all ways of making sure; what belongs to one belongs to an id."""
    subject: str = ""
    """How rules, limits and records name it; the id unless set."""
    roles: tuple[str, ...] = ()
    """What it may be taken for, in order; the first is the one that records name."""
    scopes: frozenset[str] = frozenset()
    """What its token was issued for, if it says so."""

    def __post_init__(self) -> None:
        if not self.subject:
            force_setattr(self, "subject", self.id)


LOCAL = Principal("local")
"""Whoever started this process, or reaches a gateway that asks nobody who they are."""
