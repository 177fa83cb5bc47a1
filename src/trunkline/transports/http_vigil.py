"""Vigil: whether those who hold a line open may still, long after they were let in.

    a WebSocket, a stream ──hold──> looked at now and then ──> in doubt: asked again ──> ended

Refuses to end a call: whoever was let in when they asked gets their answer. What is held here goes
on by itself, and would outlive any token.
"""

from collections.abc import Callable

from msgspec import Struct

from trunkline.mcp.principal import Principal
from trunkline.transports.exchange import HttpRequest
from trunkline.transports.http_guard import Challenge, Guard

UNAVAILABLE = 503
"""The status of a guard that cannot tell right now: that is nobody's fault who is here."""


class Held(Struct):
    """A line that goes on until somebody ends it."""

    request: HttpRequest
    """What it was opened with."""
    principal: Principal
    is_over: Callable[[], bool]
    end: Callable[[], None]
    asking: bool = False


class Vigil:
    """Looks after lines that are held open."""

    def __init__(self) -> None:
        self._held: list[Held] = []

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, held: Held) -> None:
        """Look after a line until it is over."""
        self._held.append(held)

    def doubtful(self, guard: Guard) -> list[Held]:
        """Return the lines whose owner is not recognised any more; forget those that are over."""
        self._held = [held for held in self._held if not held.is_over()]
        return [
            held
            for held in self._held
            if not held.asking and guard.recognise(held.request) != held.principal
        ]

    async def ask(self, held: Held, guard: Guard) -> None:
        """Find out who holds a line, and end it unless that is who opened it, roles and all."""
        held.asking = True
        try:
            who = await guard.identify(held.request)
        finally:
            held.asking = False
        is_unknown = isinstance(who, Challenge) and who.status == UNAVAILABLE
        if who != held.principal and not is_unknown and not held.is_over():
            held.end()
