"""Limits: which of them a call comes under.

    (who, what) ──demands──> (subject, tool) · tool · (subject, server) · server · subject · roles

Of each table one entry counts: the one that names exactly what is called, or else the first whose
pattern does. All that is found holds at once. `rpm` and `concurrent` are for each subject alone,
`total_rpm` and `total_concurrent` for all of them together.

Refuses to count: that is the quota's.

Rules upheld here:
1. What is counted goes by what the catalogue offers and by principals: nothing that a client makes
   up on the way, such as the URI of a resource, gets a count of its own.
2. Whoever looks up nothing new looks up once.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from trunkline.mcp.offer import TOOL, Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.catalog import Entry
from trunkline.routing.pattern import fits
from trunkline.routing.quota import Demand

MAX_KNOWN = 10_000
"""How many answers are kept; when there are more, all are forgotten."""


class Limit(NamedTuple):
    """How much is allowed, of each subject and of all together."""

    rpm: int | None = None
    concurrent: int | None = None
    total_rpm: int | None = None
    total_concurrent: int | None = None


_NO_LIMIT = Limit()
_NONE: Mapping[str, Limit] = {}


class Limits(Struct, frozen=True):
    """All limits; the keys of tables are names and patterns, but for roles, which are names."""

    default_rpm: int | None = None
    """Calls a minute of each subject and tool that no entry says anything about."""
    max_concurrent: int | None = None
    """Calls under way of each subject that no entry says anything about."""
    tools: Mapping[str, Limit] = _NONE
    servers: Mapping[str, Limit] = _NONE
    subjects: Mapping[str, Limit] = _NONE
    roles: Mapping[str, Limit] = _NONE


class Demands(NamedTuple):
    """The limits that a call comes under, and those among them that it holds until it ends."""

    all: tuple[Demand, ...]
    held: tuple[Demand, ...]


class Ledger:
    """Looks up, for one set of limits, what a call comes under."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: dict[tuple[str, tuple[str, ...], str, str], Demands] = {}

    def demands(self, principal: Principal, entry: Entry) -> Demands:
        """Return the limits that a call of `entry` comes under."""
        name = entry.public if entry.kind is TOOL else _name(entry)
        key = (principal.id, principal.roles, name, entry.backend)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            found = self._known[key] = self._look_up(principal, entry, name)
        return found

    def _look_up(self, principal: Principal, entry: Entry, name: str) -> Demands:
        limits, who = self._limits, principal.id
        is_tool = entry.kind is Kind.TOOL
        tool = _entry_for(limits.tools, name) if is_tool else _NO_LIMIT
        server = _entry_for(limits.servers, entry.backend)
        subject = _entry_for(limits.subjects, principal.subject)
        rpm = limits.default_rpm if tool.rpm is None else tool.rpm
        most = limits.max_concurrent if subject.concurrent is None else subject.concurrent
        found = [
            Demand(("tool", who, name), rpm, tool.concurrent),
            Demand(("tool_total", name), tool.total_rpm, tool.total_concurrent),
            Demand(("server", who, entry.backend), server.rpm, server.concurrent),
            Demand(("server_total", entry.backend), server.total_rpm, server.total_concurrent),
            Demand(("subject", who), subject.rpm, most),
        ]
        for role in dict.fromkeys(principal.roles):
            limit = limits.roles.get(role, _NO_LIMIT)
            found.append(Demand(("role", who, role), limit.rpm, limit.concurrent))
            found.append(Demand(("role_total", role), limit.total_rpm, limit.total_concurrent))
        held = tuple(each for each in found if each.concurrent is not None)
        return Demands(tuple(each for each in found if each in held or each.rpm is not None), held)


def _name(entry: Entry) -> str:
    """Return under which name what is no tool is counted; resources of a server are one."""
    # No tool is called anything with a space in it.
    return f"prompt {entry.public}" if entry.kind is Kind.PROMPT else "resources " + entry.backend


def _entry_for(table: Mapping[str, Limit], name: str) -> Limit:
    exact = table.get(name)
    if exact is not None:
        return exact
    return next((limit for pattern, limit in table.items() if fits(pattern, name)), _NO_LIMIT)
