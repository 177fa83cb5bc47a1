"""Usage: how often each caller called the tools that its searches returned.

    searches and calls, in the order of the audit log ──> UsageHistory ──snapshot──> UsageSnapshot
    UsageSnapshot.shares(searcher) ──> 0 to 1 for each tool that was used ──> ToolIndex.find

A call counts if a search of the same caller returned the tool at most SEARCH_WINDOW earlier. A
search counts once for each tool, however often the tool was then called.

Rules upheld here:
1. Shares depend only on what the same caller did.
2. Shares are a function of the records: no clock is read. The time of the last record counts as the
   present.
3. All tables are bounded, in total and per principal.
"""

from collections.abc import Iterable, Mapping
from math import log2
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")

# How long after a search a call counts, in seconds.
SEARCH_WINDOW = 900.0

# The time in which a use loses half of its weight, in seconds.
HALF_LIFE = 14 * 86400.0

# Principals that are remembered; the one that has not searched for longest is forgotten.
MAX_PRINCIPALS = 500

# Surfaces of one principal that are remembered.
MAX_SURFACES = 2

# Tools of one surface that are remembered; the one with the least weight is forgotten.
MAX_TOOLS = 32

# Tools that a caller's latest searches returned.
MAX_RETURNED = 100

_MAX_EXPONENT = 60.0


class Searcher(NamedTuple):
    """Who searches: a principal, and what identifies the set of tools that it sees."""

    principal: str
    surface: str


class UsageSnapshot(NamedTuple):
    """The uses up to a moment; immutable."""

    now: float = 0.0
    used: Mapping[Searcher, Mapping[str, float]] = {}

    def shares(self, searcher: Searcher) -> dict[str, float]:
        """Return the tools that a caller used: one recent use is 0.5, many approach 1."""
        used = self.used.get(searcher, {})
        return {tool: _share((moment - self.now) / HALF_LIFE) for tool, moment in used.items()}


class _SurfaceUsage:
    """What one principal did on one surface."""

    __slots__ = ("returned", "used")

    def __init__(self) -> None:
        # When a search last returned each tool. A call removes its tool.
        self.returned: dict[str, float] = {}
        # The uses of each tool, as one number: the time of a single use that has the same weight.
        # All weights decay at the same rate, so this number does not change while time passes.
        # A new dict replaces this one when it changes, because snapshots refer to it.
        self.used: dict[str, float] = {}


class UsageHistory:
    """Counts uses from the records of searches and calls, which are added in their order."""

    def __init__(self) -> None:
        self._principals: dict[str, dict[str, _SurfaceUsage]] = {}
        self._now = 0.0

    def add_search(self, searcher: Searcher, tools: Iterable[str], at: float) -> None:
        """Add a search and the tools that it returned."""
        self._now = at
        # Inserted again: the first key belongs to the principal that has not searched for longest.
        surfaces = self._principals.pop(searcher.principal, {})
        self._principals[searcher.principal] = surfaces
        usage = surfaces.pop(searcher.surface, None) or _SurfaceUsage()
        surfaces[searcher.surface] = usage
        _drop_first(self._principals, MAX_PRINCIPALS)
        _drop_first(surfaces, MAX_SURFACES)
        returned = _recent(usage.returned, at)
        for tool in tools:
            returned.pop(tool, None)
            returned[tool] = at
        _drop_first(returned, MAX_RETURNED)
        usage.returned = returned

    def add_call(self, principal: str, tool: str, at: float) -> None:
        """Add a successful call."""
        self._now = at
        for usage in self._principals.get(principal, {}).values():
            returned_at = usage.returned.pop(tool, None)
            if returned_at is not None and _is_recent(returned_at, at):
                usage.used = _with_use(usage.used, tool, at)

    def snapshot(self) -> UsageSnapshot:
        """Return the uses so far. Searches that no call can follow any more are dropped."""
        for surfaces in self._principals.values():
            for usage in surfaces.values():
                usage.returned = _recent(usage.returned, self._now)
        used = {
            Searcher(principal, surface): usage.used
            for principal, surfaces in self._principals.items()
            for surface, usage in surfaces.items()
            if usage.used
        }
        return UsageSnapshot(self._now, used)


def _recent(returned: Mapping[str, float], now: float) -> dict[str, float]:
    return {tool: time for tool, time in returned.items() if _is_recent(time, now)}


def _is_recent(search: float, now: float) -> bool:
    # Clocks of replicas differ a little, so a call may seem to precede its search.
    return abs(now - search) <= SEARCH_WINDOW


def _with_use(used: Mapping[str, float], tool: str, at: float) -> dict[str, float]:
    found = {**used, tool: _combine(used[tool], at) if tool in used else at}
    if len(found) > MAX_TOOLS:
        del found[min(found, key=lambda each: (found[each], each))]
    return found


def _combine(first: float, second: float) -> float:
    """Return the time of one use that has the weight of both together."""
    age = abs(first - second) / HALF_LIFE
    return max(first, second) + HALF_LIFE * log2(1 + 2.0**-age)


def _share(exponent: float) -> float:
    # The exponent is limited, because a record may have any time.
    weight = 2.0 ** min(exponent, _MAX_EXPONENT)
    return weight / (1 + weight)


def _drop_first(table: dict[str, _T], limit: int) -> None:
    while len(table) > limit:
        del table[next(iter(table))]
