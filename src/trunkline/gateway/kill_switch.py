"""Disables tools, servers, subjects or everything at run time, and enables them again.

    [kill_switch] of the configuration ─┐
    kill, revive ───────────────────────┼──> KillSwitchSet ──> calls, lists, notifications
    pause, resume ──────────────────────┘         └──> cancels calls in flight, lists change

Persistence is left to a SwitchStore, reading files to the configuration.

Invariants:
1. `kill` is in force before it awaits anything: no later call passes, and calls in flight that it
   affects are cancelled.
2. What the configuration disables cannot be revived by an operator, who is told the file and line.
3. A switch that cannot be saved takes effect anyway, and the operator is told.
4. A pause ends with the process, and does not cancel calls in flight.
5. A server that is disabled for everyone has no process; `kill` waits until it has ended.
"""

from collections.abc import Mapping
from typing import NamedTuple

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.events import PAUSE, KillSwitchChanged
from trunkline.gateway.pipeline import Pipeline
from trunkline.gateway.registry import Registry
from trunkline.gateway.settings import KillSwitchLimits
from trunkline.gateway.stores import MemorySwitchStore, SwitchStore
from trunkline.jsonrpc import RpcError
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.kill_switch import (
    SWITCH_ALL,
    KillSwitch,
    KillSwitchSet,
    SwitchKind,
    disabled_error,
    paused_error,
)


class SwitchError(Exception):
    """A switch cannot be set or released; the message says why, and what to do."""


class SwitchResult(NamedTuple):
    """What changing a switch did."""

    changed: bool
    cancelled_calls: int = 0
    notes: tuple[str, ...] = ()
    """Warnings for the operator."""


class ActiveSwitch(NamedTuple):
    """A kill switch in force."""

    kind: str
    name: str
    by: str
    """The file and line that set it, or `operator`."""


OPERATOR = "operator"


class KillSwitchControl:
    """The kill switches in force, and the ways to change them."""

    def __init__(
        self,
        pipeline: Pipeline,
        registry: Registry,
        configured: Mapping[KillSwitch, str] | None = None,
        store: SwitchStore | None = None,
        *,
        exempt: frozenset[str] = frozenset(),
        limits: KillSwitchLimits | None = None,
    ) -> None:
        """Begin with the configured switches, each with its file and line, and those of the store.

        `exempt` names backends that neither `all` nor a pause disables.
        """
        self._pipeline = pipeline
        self._registry = registry
        self._from_config = dict(configured or {})
        self._store = MemorySwitchStore() if store is None else store
        self._from_operator = set(self._store.load())
        self._exempt = exempt
        self._limits = limits or KillSwitchLimits()
        self.paused = False
        self.active = False
        """Whether anything is disabled or paused; if not, calls check nothing else."""
        self._switches = KillSwitchSet()
        self._apply()

    # Queries

    def check(self, caller: Caller, entry: CatalogEntry) -> None:
        """Refuse an entry that is disabled for a caller; raises `disabled`."""
        if not self.active:
            return
        found = self._switches.find(caller.principal, entry)
        if found is not None:
            raise disabled_error(found, caller.revision)
        if self.paused and entry.backend not in self._exempt:
            raise paused_error(caller.revision)

    def disables(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Return whether `check` refuses an entry for a caller."""
        paused = self.paused and entry.backend not in self._exempt
        return self.active and (paused or self.is_disabled_for(caller, entry))

    def is_disabled_for(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Return whether lists omit an entry for a caller; paused entries stay listed."""
        return self.active and self._switches.find(caller.principal, entry) is not None

    def may_receive(self, caller: Caller | None, backend: str) -> bool:
        """Return whether a backend's notifications may reach a caller (None: any caller)."""
        if not self.active:
            return True
        if caller is None:
            return not self._switches.disables_backend(backend)
        return self._switches.find_backend(caller.principal, backend) is None

    def may_send(self, caller: Caller, backend: str) -> bool:
        """Return whether requests and notifications that name no feature may reach a backend."""
        paused = self.paused and backend not in self._exempt
        return not paused and self.may_receive(caller, backend)

    def list_active(self) -> tuple[ActiveSwitch, ...]:
        """Return all switches in force, and who set them."""
        by_file = [(switch, place) for switch, place in self._from_config.items()]
        by_order = [(switch, OPERATOR) for switch in self._from_operator]
        return tuple(ActiveSwitch(s.kind.value, s.name, by) for s, by in sorted(by_file + by_order))

    # Changes

    async def kill(self, switch: KillSwitch, by: str = OPERATOR) -> SwitchResult:
        """Disable something until it is revived; raises SwitchError."""
        changed = switch not in self._from_operator
        most = self._limits.max_switches
        if changed and len(self._from_operator) >= most:
            raise SwitchError(f"expected at most {most} kill switches; use a pattern")
        if changed and switch.kind is SwitchKind.SERVER:
            self._check_server_exists(switch.name)
        self._from_operator.add(switch)
        cancelled = self._apply(switch)
        if changed:
            self._pipeline.events.emit(KillSwitchChanged(switch.kind.value, switch.name, True, by))
        notes = [*self._warnings(switch), *await self._save(switch, True)]
        late = await self._registry.wait_disabled(self._limits.end_timeout)
        notes += [f"the server {name} has not ended yet" for name in late]
        return SwitchResult(changed, cancelled, tuple(notes))

    async def revive(self, switch: KillSwitch, by: str = OPERATOR) -> SwitchResult:
        """Release a switch that an operator set; raises SwitchError."""
        if switch not in self._from_operator:
            raise SwitchError(self._not_disabled_reason(switch))
        self._from_operator.discard(switch)
        stopped = self._stopped_servers()
        self._apply(switch)
        self._pipeline.events.emit(KillSwitchChanged(switch.kind.value, switch.name, False, by))
        still = [f"it is still disabled: {reason}" for reason in self._other_reasons(switch)]
        notes = [*still, *await self._save(switch, False)]
        late = await self._registry.wait_tried(stopped, self._limits.start_timeout)
        notes += [f"the server {name} is still starting" for name in late]
        return SwitchResult(True, 0, tuple(notes))

    def pause(self, by: str = OPERATOR) -> SwitchResult:
        """Refuse all calls from now on; those in flight go on."""
        return self._set_paused(True, by)

    def resume(self, by: str = OPERATOR) -> SwitchResult:
        """Allow calls again."""
        return self._set_paused(False, by)

    def _set_paused(self, wanted: bool, by: str) -> SwitchResult:
        changed, self.paused = wanted is not self.paused, wanted
        self._update_active()
        if changed:
            self._pipeline.events.emit(KillSwitchChanged(PAUSE, "", wanted, by))
        return SwitchResult(changed)

    def apply_config(self, file: Mapping[KillSwitch, str], exempt: frozenset[str]) -> None:
        """Take over the switches of a changed configuration; emit an event for each change."""
        before, self._from_config = self._from_config, dict(file)
        changed = before.keys() ^ self._from_config.keys()
        if changed or exempt != self._exempt:
            self._exempt = exempt
            self._apply(*changed)
        for switch in sorted(changed):
            is_disabled = switch in self._from_config
            by = self._from_config[switch] if is_disabled else before[switch]
            event = KillSwitchChanged(switch.kind.value, switch.name, is_disabled, by)
            self._pipeline.events.emit(event)

    def _apply(self, *changed: KillSwitch) -> int:
        """Put the switches into force; return how many calls that cancelled."""
        self._switches = KillSwitchSet((*self._from_config, *self._from_operator), self._exempt)
        self._update_active()
        self._registry.visibility.disabled_check = self.is_disabled_for if self._switches else None
        cancelled = self._pipeline.cancel_matching(self._applies_to, self._error_for)
        self._registry.set_disabled(self._switches.disables_backend)
        tools = all(switch.kind is SwitchKind.TOOL for switch in changed)
        kinds = (FeatureKind.TOOL,) if tools else tuple(FeatureKind)
        found = {k.capability for k in kinds if self._registry.catalog.entries(k)}
        if found and changed:
            self._registry.publish(frozenset(found))
        return cancelled

    def _stopped_servers(self) -> frozenset[str]:
        names = (upstream.name for upstream in self._registry)
        return frozenset(name for name in names if self._switches.disables_backend(name))

    def _update_active(self) -> None:
        self.active = bool(self._switches) or self.paused
        self._registry.decisions.invalidate()
        self._registry.update_log_levels()

    def _find_switch(self, context: CallContext) -> KillSwitch | None:
        """Return the switch that disables a call; None before the call is routed."""
        entry, principal = context.entry, context.caller.principal
        if context.backend is not None:
            return self._switches.find_backend(principal, context.backend)
        for each in (entry, context.wrapper):
            found = None if each is None else self._switches.find(principal, each)
            if found is not None:
                return found
        return None

    def _applies_to(self, context: CallContext) -> bool:
        return self._find_switch(context) is not None

    def _error_for(self, context: CallContext) -> RpcError:
        return disabled_error(self._find_switch(context) or SWITCH_ALL, context.caller.revision)

    async def _save(self, switch: KillSwitch, is_disabled: bool) -> list[str]:
        problem = await self._store.save(switch, is_disabled)
        if problem is None:
            return []
        return [f"this change is lost when the gateway restarts: {problem}"]

    # Messages for the operator

    def _check_server_exists(self, name: str) -> None:
        known = [upstream.name for upstream in self._registry]
        if name not in known:
            names = ", ".join(known) or "none"
            raise SwitchError(f"there is no server {name!r}; there are: {names}")

    def _warnings(self, switch: KillSwitch) -> list[str]:
        """Return a warning if a tool pattern matches no tool."""
        if switch.kind is SwitchKind.TOOL:
            switches, any_principal = KillSwitchSet([switch]), Principal("")
            tools = self._registry.catalog.entries(FeatureKind.TOOL)
            if not any(switches.find(any_principal, entry) for entry in tools):
                return ["no server offers such a tool now; if it appears later, it is disabled"]
        return []

    def _other_reasons(self, switch: KillSwitch) -> list[str]:
        """Return the other switches and file lines that disable the same target."""
        found: list[str] = []
        for other in (switch, *self._switches.broader_switches(switch)):
            if other in self._from_config:
                found.append(
                    f"{other} is disabled by the file {self._from_config[other]}; change it there"
                )
            elif other in self._from_operator:
                found.append(f"{other} is disabled; revive that")
        return found

    def _not_disabled_reason(self, switch: KillSwitch) -> str:
        others = self._other_reasons(switch)
        if others:
            return "; ".join(others)
        disabled = ", ".join(map(str, sorted(self._from_operator))) or "nothing"
        return f"{switch} is not disabled; operators disabled: {disabled}"
