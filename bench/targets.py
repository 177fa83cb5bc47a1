"""The performance targets, and whether this run reached them."""

from collections.abc import Mapping
from typing import NamedTuple

from bench.contestants import BARE_MSGSPEC, JSONRPCSERVER, MCP_TYPES, OURS
from bench.dispatchers import Dispatcher
from bench.engine import Table
from bench.memory import Memory
from bench.timing import Timing

NAMED = ("tinyrpc", "ajsonrpc", "jsonrpcserver", "pygls", "pygls, plain dicts")
"""The JSON-RPC libraries that the target refers to."""


class Target(NamedTuple):
    """A measured ratio and its bound; `by_median` is the ratio of medians."""

    name: str
    measured: float
    by_median: float | None
    bound: float
    at_most: bool

    @property
    def outcome(self) -> str:
        """Whether the ratio is within the bound."""
        kept = self.measured <= self.bound if self.at_most else self.measured >= self.bound
        return "reached" if kept else "missed"


def compare(
    decoded: tuple[Table, Table],
    relayed: tuple[Table, Table],
    dispatched: Mapping[str, Timing],
    dispatchers: list[Dispatcher],
) -> list[Target]:
    """Compare the times with the targets."""
    small = decoded[0]["small"]
    found = [
        _ratio("decode small request: ours / bare msgspec", small, OURS, BARE_MSGSPEC, 2.2, True),
        _ratio("decode small request: mcp-types / ours", small, MCP_TYPES, OURS, 6),
        _ratio("decode small request: jsonrpcserver / ours", small, JSONRPCSERVER, OURS, 40),
    ]
    for kind, table in zip(("request", "response"), relayed, strict=True):
        for size, bound in (("small", 6), ("64 KiB", 20)):
            name = f"relay {size} {kind}: mcp-types / ours"
            found.append(_ratio(name, table[size], MCP_TYPES, OURS, bound))
    return found + [
        _ratio(f"dispatch: {name} / ours", dispatched, name, OURS, 5)
        for name in fastest_others(dispatched, dispatchers)
    ]


def compare_memory(
    measured: Mapping[str, Mapping[str, Memory]], by_spelling: Mapping[str, Memory]
) -> list[Target]:
    """Compare the memory peaks with the target, including that of the worst notation."""
    peaks = {sample: by_name[OURS].peak for sample, by_name in measured.items()}
    worst = max(by_spelling, key=lambda name: by_spelling[name].peak)
    peaks[f"1 MiB, worst spelling ({worst})"] = by_spelling[worst].peak
    return [
        Target(f"memory, peak while decoding {name}: ours / payload", peak, None, 2.2, True)
        for name, peak in peaks.items()
    ]


def fastest_others(dispatched: Mapping[str, Timing], dispatchers: list[Dispatcher]) -> list[str]:
    """Return the names of other JSON-RPC libraries, down to the fastest of the target.

    Two libraries that the target does not name are faster; they are shown too.
    """
    others = [one.name for one in dispatchers if one.is_library and one.name != OURS]
    by_speed = sorted(others, key=lambda name: dispatched[name].best)
    first = next(n for n, name in enumerate(by_speed) if name in NAMED)
    return by_speed[: first + 1]


def _ratio(
    name: str,
    timings: Mapping[str, Timing],
    above: str,
    below: str,
    bound: float,
    at_most: bool = False,
) -> Target:
    a, b = timings[above], timings[below]
    return Target(name, a.best / b.best, a.median / b.median, bound, at_most)
