"""Desk: where an operator learns how the gateway is, and tells it what to stop.

    MCP tools (operator/tools) ──┐
    trunkline kill … (control) ──┴──> Desk ──> Switches, Recent, Registry, Parking

Refuses to ask whether somebody may: whoever leads people here has seen to that.
"""

import time
from collections.abc import Callable

from msgspec import Struct

from trunkline.gateway.gateway import Gateway
from trunkline.gateway.switches import NotSwitched, Switches, Switching
from trunkline.operator.recent import MOST, Recent
from trunkline.routing.switches import Switch, read_switch

LINES = 20
"""How many lines are shown unless somebody wants more."""


class StoppedThing(Struct, frozen=True):
    """Something that is stopped; `by` is the file and line that stop it, or `operator`."""

    what: str
    name: str
    by: str


class ServerState(Struct, frozen=True):
    """One server; `error` says why it is not ready, `retry_in` when it is tried again."""

    name: str
    state: str
    version: str | None
    restarts: int
    in_flight: int
    offers: int
    error: str | None
    retry_in: float | None
    conversations: int
    stopped: bool


class Status(Struct, frozen=True):
    """How the gateway is; `uptime` in seconds."""

    name: str
    version: str
    uptime: float
    paused: bool
    stopped: tuple[StoppedThing, ...]
    sessions: int
    in_flight: int
    parked: int
    servers: tuple[ServerState, ...]


class Done(Struct, frozen=True):
    """What came of it: whether anything is other than it was, and what one should know."""

    changed: bool
    message: str
    calls_ended: int = 0
    notes: tuple[str, ...] = ()


class Logs(Struct, frozen=True):
    """The last lines, oldest first, and how many there are."""

    lines: tuple[str, ...]
    total_available: int


class Desk:
    """Answers an operator."""

    def __init__(
        self,
        gateway: Gateway,
        switches: Switches,
        recent: Recent | None = None,
        hide: Callable[[str], str] = str,
    ) -> None:
        """Begin; `hide` takes secrets out of what servers say."""
        self.gateway = gateway
        self.switches = switches
        self._recent = Recent(hide) if recent is None else recent
        self._hide = hide
        self._listening = False
        self._began = time.monotonic()

    def listen(self) -> None:
        """Take note of what happens from now on: `logs` tells of it."""
        if not self._listening:
            self._listening = True
            self.gateway.layers.events.listen(self._recent.note)

    def status(self) -> Status:
        """Return how the gateway is."""
        gateway, switches = self.gateway, self.switches
        return Status(
            gateway.identity.name,
            gateway.identity.version,
            round(time.monotonic() - self._began, 1),
            switches.paused,
            self.stopped(),
            len(gateway.sessions),
            len(gateway.layers.under_way),
            len(gateway.stateless.parking),
            tuple(self._servers()),
        )

    def stopped(self) -> tuple[StoppedThing, ...]:
        """Return what is stopped, and by whom."""
        return tuple(StoppedThing(*each) for each in self.switches.stopped())

    def _servers(self) -> list[ServerState]:
        return [
            ServerState(
                now.name,
                now.state.value,
                now.version,
                now.restarts,
                now.in_flight,
                now.offers,
                None if now.error is None else self._hide(now.error),
                now.retry_in,
                now.conversations,
                not self.switches.hears(None, now.name),
            )
            for now in self.gateway.registry.snapshot()
        ]

    def logs(self, lines: int = LINES) -> Logs:
        """Return what has happened last; `lines` of them, within reason."""
        wanted = min(max(lines, 1), MOST)
        self.gateway.layers.events.tell_now()
        return Logs(tuple(self._recent.last(wanted)), len(self._recent))

    async def kill(self, what: str, name: str = "", by: str = "operator") -> Done:
        """Stop something; raises NotSwitched."""
        switch = _read(what, name)
        came = await self.switches.kill(switch, by)
        said = f"{switch} is stopped" if came.changed else f"{switch} was stopped already"
        if came.ended:
            said += f"; {came.ended} {'call was' if came.ended == 1 else 'calls were'} ended"
        return _done(said, came)

    async def revive(self, what: str, name: str = "", by: str = "operator") -> Done:
        """Let something go on; raises NotSwitched."""
        switch = _read(what, name)
        return _done(f"{switch} is revived", await self.switches.revive(switch, by))

    def pause(self, by: str = "operator") -> Done:
        """Answer calls with `disabled`."""
        came = self.switches.pause(by)
        return _done("the gateway is paused" if came.changed else "it was paused already", came)

    def resume(self, by: str = "operator") -> Done:
        """Answer calls again."""
        came = self.switches.resume(by)
        return _done("the gateway goes on" if came.changed else "it was not paused", came)


def _read(what: str, name: str) -> Switch:
    try:
        return read_switch(what, name)
    except ValueError as wrong:
        raise NotSwitched(str(wrong)) from None


def _done(said: str, came: Switching) -> Done:
    return Done(came.changed, said, came.ended, came.notes)
