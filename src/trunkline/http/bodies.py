"""Which request bodies are read, and the budget of those that are still arriving.

    end of a head ──> BodyCheck ──> BodyReservation: the body is read     ──> release
                               └──> EarlyResponse: it is answered unread
    slices of a WebSocket message ──> BodyReservation.resize ──> 0 when the message is complete

A BodyCheck looks at the head, such as its token. It is not asked about a body that arrives together
with its head: nothing has to be kept for such a body.

Invariants:
1. The reserved bytes never exceed the budget, and those of one owner never exceed its share.
2. A reservation that was released holds nothing, and may be released again.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from trunkline.http.exchange import TEXT_PLAIN, HeaderTuple, HttpRequest

# The share of one owner in the budget, unless its longest body needs more.
_OWNER_SHARE = 0.25

SERVICE_UNAVAILABLE = 503
_TOO_MANY_BODIES = "too many request bodies are arriving; try again in 1 s"


class EarlyResponse(NamedTuple):
    """The response to a request whose body is not read."""

    status: int
    headers: HeaderTuple
    body: bytes


def text_response(status: int, reason: str, headers: HeaderTuple = ()) -> EarlyResponse:
    """Return a response in plain text."""
    return EarlyResponse(status, (TEXT_PLAIN, *headers), reason.encode() + b"\n")


def overloaded_response(headers: HeaderTuple = ()) -> EarlyResponse:
    """Return the response to a body for which there is no room."""
    return text_response(SERVICE_UNAVAILABLE, _TOO_MANY_BODIES, ((b"retry-after", b"1"), *headers))


class BodyBudget:
    """Limits the bytes that are still arriving, in total and per owner."""

    def __init__(self, max_total: int, max_body: int) -> None:
        """Create it; one owner gets a quarter of the total, or one body of `max_body` bytes."""
        self._by_owner: dict[str, int] = {}
        self.reserved = 0
        self.reconfigure(max_total, max_body)

    def reconfigure(self, max_total: int, max_body: int) -> None:
        """Use other limits for what is reserved from now on."""
        self._max_total = max_total
        self._max_per_owner = max(int(max_total * _OWNER_SHARE), max_body)

    def reserve(self, owner: str, size: int) -> "BodyReservation | None":
        """Reserve bytes for a body of `owner`; return None if there is no room."""
        reservation = BodyReservation(self, owner)
        return reservation if reservation.resize(size) else None

    def change(self, owner: str, difference: int) -> bool:
        """Change what an owner has reserved; return False, with no change, if there is no room."""
        own = self._by_owner.get(owner, 0) + difference
        total = self.reserved + difference
        if difference > 0 and (total > self._max_total or own > self._max_per_owner):
            return False
        self.reserved = total
        if own:
            self._by_owner[owner] = own
        else:
            self._by_owner.pop(owner, None)
        return True


class BodyReservation:
    """The bytes that one body or message may occupy while it arrives."""

    __slots__ = ("_budget", "_owner", "size")

    def __init__(self, budget: BodyBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self.size = 0

    def resize(self, size: int) -> bool:
        """Reserve `size` bytes in all; return False, with no change, if there is no room."""
        if size != self.size:
            if not self._budget.change(self._owner, size - self.size):
                return False
            self.size = size
        return True

    def grow_to(self, size: int) -> bool:
        """Reserve at least `size` bytes; return False, with no change, if there is no room."""
        return size <= self.size or self.resize(size)

    def release(self) -> None:
        """Give the bytes back."""
        self.resize(0)


BodyDecision: TypeAlias = BodyReservation | EarlyResponse

# Decides by the head of a request and the length of its body, None if it is not known, whether the
# body is read. It returns the decision, or returns None and later calls the last argument with it.
BodyCheck: TypeAlias = Callable[
    [HttpRequest, int | None, Callable[[BodyDecision], None]], BodyDecision | None
]


def refuse_body(*_: object) -> EarlyResponse:
    """Refuse every body; this is a BodyCheck."""
    return text_response(413, "expected a request without a body")
