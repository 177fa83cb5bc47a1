"""Kill switches: the disabled targets, and for which callers, as an immutable value.

    KillSwitch(tool, "fs__delete_*"), KillSwitch(server, "fs"), KillSwitch(subject, "anna"),
    KillSwitch(all) ──> KillSwitchSet ──find(principal, entry)──> KillSwitch, or None

Rules upheld here:
1. A tool is disabled by its public name and by the name with its server's own prefix, so neither a
   different prefix nor a collision of names enables it again.
2. A subject is disabled by the name in the records, and by its id.
3. `all` does not affect exempt backends, which can switch it off again. A switch that names one
   does.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from trunkline.jsonrpc import RpcError
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.features import TOOL
from trunkline.mcp.identity import Principal
from trunkline.mcp.versions import Revision
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.naming import matches_any_pattern, matches_pattern, public_name

# The longest name of a server or a subject, in characters.
MAX_SWITCH_NAME_LENGTH = 256

MAX_SWITCH_PATTERN_LENGTH = 128

_PATTERN_CHARACTERS = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-*?"
)


class SwitchKind(StrEnum):
    """The kinds of targets of a kill switch."""

    TOOL = "tool"
    SERVER = "server"
    SUBJECT = "subject"
    ALL = "all"


class KillSwitch(NamedTuple):
    """A kill switch. A tool is given by its name or by a pattern."""

    kind: SwitchKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else str(self.kind)


SWITCH_ALL = KillSwitch(SwitchKind.ALL)


class KillSwitchSet:
    """All kill switches that are on."""

    def __init__(
        self, switches: Iterable[KillSwitch] = (), exempt: frozenset[str] = frozenset()
    ) -> None:
        """Take the switches; `all` does not affect the `exempt` backends."""
        self.switches = frozenset(switches)
        self.exempt = exempt
        self._servers = self._names_of_kind(SwitchKind.SERVER)
        self._subjects = self._names_of_kind(SwitchKind.SUBJECT)
        tools = self._names_of_kind(SwitchKind.TOOL)
        self._patterns = tuple(sorted(name for name in tools if "*" in name or "?" in name))
        self._tools = tools.difference(self._patterns)
        self._all = SWITCH_ALL in self.switches

    def _names_of_kind(self, kind: SwitchKind) -> frozenset[str]:
        return frozenset(switch.name for switch in self.switches if switch.kind is kind)

    def __bool__(self) -> bool:
        return bool(self.switches)

    def find(self, principal: Principal, entry: CatalogEntry) -> KillSwitch | None:
        """Return the switch that disables a feature for a principal, with the name it knows."""
        found = self.find_backend(principal, entry.backend)
        if found is None and entry.kind is TOOL and self._disables_tool(entry):
            return KillSwitch(SwitchKind.TOOL, entry.public_name)
        return found

    def find_backend(self, principal: Principal, backend: str) -> KillSwitch | None:
        """Return the switch that disables a whole backend for a principal."""
        if self._subjects and not self._subjects.isdisjoint((principal.subject, principal.id)):
            return KillSwitch(SwitchKind.SUBJECT, principal.subject)
        if backend in self._servers:
            return KillSwitch(SwitchKind.SERVER, backend)
        return SWITCH_ALL if self._all and backend not in self.exempt else None

    def disables_backend(self, backend: str) -> bool:
        """Return whether a backend is disabled for all callers."""
        return backend in self._servers or (self._all and backend not in self.exempt)

    def _disables_tool(self, entry: CatalogEntry) -> bool:
        if not self._tools and not self._patterns:
            return False
        names = (entry.public_name, public_name(entry.backend, entry.native_name))
        return any(
            name in self._tools or matches_any_pattern(self._patterns, name) for name in names
        )

    def broader_switches(self, switch: KillSwitch) -> tuple[KillSwitch, ...]:
        """Return the other switches that disable everything this one does: patterns, and `all`."""
        found = {SWITCH_ALL} & self.switches
        if switch.kind is SwitchKind.TOOL:
            found |= {
                KillSwitch(SwitchKind.TOOL, p)
                for p in self._patterns
                if matches_pattern(p, switch.name)
            }
        return tuple(sorted(found - {switch}))


def parse_switch(kind: str, name: str = "") -> KillSwitch:
    """Parse a switch; raises ValueError with the reason."""
    kinds = [each.value for each in SwitchKind]
    if kind not in kinds:
        raise ValueError(
            f"expected one of {', '.join(kinds)}, got {kind[:MAX_SWITCH_NAME_LENGTH]!r}"
        )
    if kind == SwitchKind.ALL:
        if name:
            raise ValueError(f"expected no name for 'all', got {name[:MAX_SWITCH_NAME_LENGTH]!r}")
        return SWITCH_ALL
    max_length = MAX_SWITCH_PATTERN_LENGTH if kind == SwitchKind.TOOL else MAX_SWITCH_NAME_LENGTH
    if not 0 < len(name) <= max_length:
        raise ValueError(f"expected the name of a {kind}, of 1 to {max_length} characters")
    if not name.isprintable():
        raise ValueError(f"expected a name without control characters, got {name!r}")
    if kind == SwitchKind.TOOL and not _PATTERN_CHARACTERS.issuperset(name):
        raise ValueError(f"expected a name of letters, digits, _, -, * or ?, got {name!r}")
    return KillSwitch(SwitchKind(kind), name)


def disabled_error(switch: KillSwitch, revision: Revision | None = None) -> RpcError:
    """Return the error for a call that a switch disables."""
    name = f": {switch.name}" if switch.name else ""
    noun = "Gateway" if switch.kind is SwitchKind.ALL else switch.kind.capitalize()
    return gateway_error(
        ErrorKind.DISABLED, f"{noun} is disabled{name}", revision, what=switch.kind.value
    )


def paused_error(revision: Revision | None = None) -> RpcError:
    """Return the error for a call while the gateway is paused."""
    return gateway_error(ErrorKind.DISABLED, "The gateway is paused", revision, what="pause")
