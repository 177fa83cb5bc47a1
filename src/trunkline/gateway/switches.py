"""Switches: stops what the operator wants stopped, at once, and lets it go on again.

    the file's [kill_switch] ─┐
    kill, revive ─────────────┼──> Stops ──> check (calls), stops (lists), hears (news)
    pause, resume ────────────┘         └──> calls under way are ended, clients told to list again

Refuses to write anything down: a Keeper does, if there is one; and to read any file.

Rules upheld here:
1. What is stopped is stopped before `kill` waits for anything: no call that comes later passes, and
   none that is under way goes on.
2. What the file stops, nobody else revives: they are told where it stands.
3. What could not be written down is stopped all the same, and whoever stopped it is told.
4. A pause ends with the gateway, and stops nothing that is under way.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from trunkline.gateway.events import Switched
from trunkline.gateway.layers import Layers
from trunkline.gateway.passage import Passage
from trunkline.gateway.registry import Registry
from trunkline.jsonrpc import RpcError
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.catalog import Entry
from trunkline.routing.switches import EVERYTHING, Stops, Switch, What, paused, refusal

MAX_SWITCHES = 1000
"""How much may be stopped at run time, at a time."""

PAUSE = "pause"
"""What a Switched names when the whole gateway is paused, or resumed."""


class Keeper(Protocol):
    """Whoever remembers what is stopped when the gateway has ended."""

    async def keep(self, switch: Switch, off: bool) -> str | None:
        """Write down that something is stopped, or is not; return why that cannot be."""
        ...


class NotSwitched(Exception):
    """Something cannot be stopped, or revived; it says why, and what to do."""


class Switching(NamedTuple):
    """What came of it."""

    changed: bool
    """Whether anything is other than it was."""
    ended: int = 0
    """How many calls were under way, and were ended."""
    notes: tuple[str, ...] = ()
    """What whoever did it should know."""


class Stopped(NamedTuple):
    """Something that is stopped, and by whom, for those who operate the gateway."""

    what: str
    name: str
    by: str
    """The file and the line that stop it, or `operator`."""


OPERATOR = "operator"


class Switches:
    """All that is stopped, and the ways to change that."""

    def __init__(
        self,
        layers: Layers,
        registry: Registry,
        file: Mapping[Switch, str] | None = None,
        kept: Iterable[Switch] = (),
        keeper: Keeper | None = None,
        *,
        exempt: frozenset[str] = frozenset(),
    ) -> None:
        """Begin with what the file stops, each with its place there, and what was kept.

        `exempt` are backends that neither `all` nor a pause stops.
        """
        self._layers = layers
        self._registry = registry
        self._file = dict(file or {})
        self._ordered = set(kept)
        self._keeper = keeper
        self._exempt = exempt
        self.paused = False
        self.active = False
        """Whether anything is stopped or paused: the one thing that a call looks at if not."""
        self._stops = Stops()
        self._put_in_force()

    # Asking

    def check(self, caller: Caller, entry: Entry) -> None:
        """Refuse what is stopped; raises `disabled`."""
        if not self.active:
            return
        found = self._stops.find(caller.principal, entry)
        if found is not None:
            raise refusal(found, caller.version)
        if self.paused and entry.backend not in self._exempt:
            raise paused(caller.version)

    def stops(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether an offer is stopped for a caller, and so on none of its lists.

        What is paused is listed.
        """
        return self.active and self._stops.find(caller.principal, entry) is not None

    def hears(self, caller: Caller | None, backend: str) -> bool:
        """Tell whether what a backend says by itself reaches a caller, or with None anybody."""
        if not self.active:
            return True
        if caller is None:
            return not self._stops.silences(backend)
        return self._stops.find_backend(caller.principal, backend) is None

    def passes_unknown(self, caller: Caller, backend: str) -> bool:
        """Tell whether a request of which nothing is known may go to a backend."""
        paused = self.paused and backend not in self._exempt
        return not paused and self.hears(caller, backend)

    def stopped(self) -> tuple[Stopped, ...]:
        """Return all that is stopped, and by whom."""
        by_file = [(switch, place) for switch, place in self._file.items()]
        by_order = [(switch, OPERATOR) for switch in self._ordered]
        return tuple(Stopped(s.what.value, s.name, by) for s, by in sorted(by_file + by_order))

    # Switching

    async def kill(self, switch: Switch, by: str = OPERATOR) -> Switching:
        """Stop something, at once and until it is revived; raises NotSwitched."""
        changed = switch not in self._ordered
        if changed and len(self._ordered) >= MAX_SWITCHES:
            raise NotSwitched(f"expected at most {MAX_SWITCHES} to be stopped; use a pattern")
        if changed and switch.what is What.SERVER:
            self._expect_server(switch.name)
        self._ordered.add(switch)
        ended = self._put_in_force(switch)
        if changed:
            self._layers.events.tell(Switched(switch.what.value, switch.name, True, by))
        notes = [*self._doubts(switch), *await self._keep(switch, True)]
        return Switching(changed, ended, tuple(notes))

    async def revive(self, switch: Switch, by: str = OPERATOR) -> Switching:
        """Let something go on that was killed; raises NotSwitched if it was not, or by the file."""
        if switch not in self._ordered:
            raise NotSwitched(self._why_not(switch))
        self._ordered.discard(switch)
        self._put_in_force(switch)
        self._layers.events.tell(Switched(switch.what.value, switch.name, False, by))
        still = [f"it is still stopped: {why}" for why in self._others(switch)]
        return Switching(True, 0, (*still, *await self._keep(switch, False)))

    def pause(self, by: str = OPERATOR) -> Switching:
        """Answer calls with `disabled` from now on; those under way go on."""
        return self._set_paused(True, by)

    def resume(self, by: str = OPERATOR) -> Switching:
        """Answer calls again."""
        return self._set_paused(False, by)

    def _set_paused(self, wanted: bool, by: str) -> Switching:
        changed, self.paused = wanted is not self.paused, wanted
        self._activate()
        if changed:
            self._layers.events.tell(Switched(PAUSE, "", wanted, by))
        return Switching(changed)

    def follow(self, file: Mapping[Switch, str], exempt: frozenset[str]) -> None:
        """Stop what the file stops by now, and no longer what only it did; `exempt` as ever."""
        before, self._file = self._file, dict(file)
        changed = before.keys() ^ self._file.keys()
        if changed or exempt != self._exempt:
            self._exempt = exempt
            self._put_in_force(*changed)
        for switch in sorted(changed):
            off = switch in self._file
            by = self._file[switch] if off else before[switch]
            self._layers.events.tell(Switched(switch.what.value, switch.name, off, by))

    def _put_in_force(self, *changed: Switch) -> int:
        """Have what is stopped stopped; return how many calls that ended."""
        self._stops = Stops((*self._file, *self._ordered), self._exempt)
        self._activate()
        self._registry.view.stops = self.stops if self._stops else None
        ended = self._layers.stop(self._concerns, self._why)
        tools = all(switch.what is What.TOOL for switch in changed)
        kinds = (Kind.TOOL,) if tools else tuple(Kind)
        found = {k.capability for k in kinds if self._registry.catalog.entries(k)}
        if found and changed:
            self._registry.publish(frozenset(found))
        return ended

    def _activate(self) -> None:
        """Have calls ask whether they are stopped, if anything is."""
        self.active = bool(self._stops) or self.paused
        self._registry.routes.forget()

    def _find(self, passage: Passage) -> Switch | None:
        """Return what stops a call; one that is not found yet is looked at when it is."""
        entry, principal = passage.entry, passage.caller.principal
        return None if entry is None else self._stops.find(principal, entry)

    def _concerns(self, passage: Passage) -> bool:
        return self._find(passage) is not None

    def _why(self, passage: Passage) -> RpcError:
        return refusal(self._find(passage) or EVERYTHING, passage.caller.version)

    async def _keep(self, switch: Switch, off: bool) -> list[str]:
        if self._keeper is None:
            problem: str | None = "there is no folder for it"
        else:
            problem = await self._keeper.keep(switch, off)
        if problem is None:
            return []
        return [f"the gateway will not remember it when it starts again: {problem}"]

    # What to say

    def _expect_server(self, name: str) -> None:
        known = [upstream.name for upstream in self._registry]
        if name not in known:
            there = ", ".join(known) or "none"
            raise NotSwitched(f"there is no server {name!r}; there are: {there}")

    def _doubts(self, switch: Switch) -> list[str]:
        """Return what makes it look as if something else was meant."""
        if switch.what is What.TOOL:
            stops, nobody = Stops([switch]), Principal("")
            tools = self._registry.catalog.entries(Kind.TOOL)
            if not any(stops.find(nobody, entry) for entry in tools):
                return ["no tool of this name is offered now; it is stopped when one is"]
        return []

    def _others(self, switch: Switch) -> list[str]:
        """Say what else stops all that a switch stops."""
        found: list[str] = []
        for other in (switch, *self._stops.wider(switch)):
            if other in self._file:
                found.append(f"{other} is stopped by the file {self._file[other]}; change it there")
            elif other in self._ordered:
                found.append(f"{other} is stopped; revive that")
        return found

    def _why_not(self, switch: Switch) -> str:
        others = self._others(switch)
        if others:
            return "; ".join(others)
        stopped = ", ".join(map(str, sorted(self._ordered))) or "nothing"
        return f"{switch} is not stopped; stopped is: {stopped}"
