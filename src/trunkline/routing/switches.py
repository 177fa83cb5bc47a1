"""Stops: what is switched off, as a value, and whom that concerns.

    Switch(tool, "fs__delete_*"), Switch(server, "fs"), Switch(subject, "anna"), Switch(all)
    ──> Stops ──find(principal, offer)──> the Switch that stops it, or None

Refuses to change: who switches something makes other Stops.

Rules upheld here:
1. A tool is stopped by the name it is offered under and by the one that tells whose it is, so that
   neither another prefix nor two equal names bring it back.
2. A subject is stopped by how records name it, and by its id.
3. `all` leaves the exempt, which are there to switch it on again; what names them stops them, too.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from trunkline.jsonrpc import RpcError
from trunkline.mcp.offer import TOOL
from trunkline.mcp.principal import Principal
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.routing.catalog import Entry
from trunkline.routing.naming import public_name
from trunkline.routing.pattern import fits, fits_any

MAX_NAME = 256
"""How long the name of what is stopped may be."""

MAX_PATTERN = 128

MAX_KNOWN = 65536
"""How many tools are remembered to be stopped, or not, before they are looked at again."""

_IN_PATTERN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-*?")


class What(StrEnum):
    """What can be stopped."""

    TOOL = "tool"
    SERVER = "server"
    SUBJECT = "subject"
    ALL = "all"


class Switch(NamedTuple):
    """One thing that is stopped; a tool by its name, or by a pattern."""

    what: What
    name: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.name}" if self.name else str(self.what)


EVERYTHING = Switch(What.ALL)


class Stops:
    """All that is stopped."""

    def __init__(
        self, switches: Iterable[Switch] = (), exempt: frozenset[str] = frozenset()
    ) -> None:
        """Take down what is stopped; `exempt` are backends that `all` leaves alone."""
        self.switches = frozenset(switches)
        self.exempt = exempt
        self._servers = self._names(What.SERVER)
        self._subjects = self._names(What.SUBJECT)
        tools = self._names(What.TOOL)
        self._patterns = tuple(sorted(name for name in tools if "*" in name or "?" in name))
        self._tools = tools.difference(self._patterns)
        self._all = EVERYTHING in self.switches
        self._wide = bool(self._servers or self._subjects or self._all)
        """Whether more than tools is stopped; mostly it is not, and every call asks."""
        self._known: dict[tuple[str, str, str], bool] = {}
        """Tools that were looked at: every call asks, and the answer never changes."""

    def _names(self, what: What) -> frozenset[str]:
        return frozenset(switch.name for switch in self.switches if switch.what is what)

    def __bool__(self) -> bool:
        return bool(self.switches)

    def find(self, principal: Principal, entry: Entry) -> Switch | None:
        """Return what stops an offer for somebody, with the name that they know it by."""
        found = self.find_backend(principal, entry.backend) if self._wide else None
        if found is None and entry.kind is TOOL and self._stops_tool(entry):
            return Switch(What.TOOL, entry.public)
        return found

    def find_backend(self, principal: Principal, backend: str) -> Switch | None:
        """Return what stops all of a backend for somebody."""
        if self._subjects and not self._subjects.isdisjoint((principal.subject, principal.id)):
            return Switch(What.SUBJECT, principal.subject)
        if backend in self._servers:
            return Switch(What.SERVER, backend)
        return EVERYTHING if self._all and backend not in self.exempt else None

    def silences(self, backend: str) -> bool:
        """Tell whether a backend is stopped for everybody."""
        return backend in self._servers or (self._all and backend not in self.exempt)

    def _stops_tool(self, entry: Entry) -> bool:
        if not self._tools and not self._patterns:
            return False
        key = (entry.public, entry.backend, entry.native)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            names = (entry.public, public_name(entry.backend, entry.native))
            found = any(name in self._tools or fits_any(self._patterns, name) for name in names)
            self._known[key] = found
        return found

    def wider(self, switch: Switch) -> tuple[Switch, ...]:
        """Return what stops all that a switch does, beside that switch: patterns, and `all`."""
        found = {EVERYTHING} & self.switches
        if switch.what is What.TOOL:
            found |= {Switch(What.TOOL, p) for p in self._patterns if fits(p, switch.name)}
        return tuple(sorted(found - {switch}))


def read_switch(what: str, name: str = "") -> Switch:
    """Return the switch that somebody means; raises ValueError, which says what is wrong."""
    known = [each.value for each in What]
    if what not in known:
        raise ValueError(f"expected one of {', '.join(known)}, got {what[:MAX_NAME]!r}")
    if what == What.ALL:
        if name:
            raise ValueError(f"expected no name for 'all', got {name[:MAX_NAME]!r}")
        return EVERYTHING
    longest = MAX_PATTERN if what == What.TOOL else MAX_NAME
    if not 0 < len(name) <= longest:
        raise ValueError(f"expected the name of a {what}, of 1 to {longest} characters")
    if not name.isprintable():
        raise ValueError(f"expected a name without control characters, got {name!r}")
    if what == What.TOOL and not _IN_PATTERN.issuperset(name):
        raise ValueError(f"expected a name of letters, digits, _, -, * or ?, got {name!r}")
    return Switch(What(what), name)


def refusal(switch: Switch, version: str | None = None) -> RpcError:
    """Return what a call is answered with that a switch stops."""
    name = f": {switch.name}" if switch.name else ""
    noun = "Gateway" if switch.what is What.ALL else switch.what.capitalize()
    return refuse(Refusal.DISABLED, f"{noun} is disabled{name}", version, what=switch.what.value)


def paused(version: str | None = None) -> RpcError:
    """Return what a call is answered with while the gateway is paused."""
    return refuse(Refusal.DISABLED, "The gateway is paused", version, what="pause")
