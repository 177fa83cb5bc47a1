"""The targets of Trunkline on one core, and whether they were reached."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bench.gateway.contest import MIB, Row, describe
from bench.gateway.contestants import ServerTransport
from bench.gateway.table import Table, added

SMALL = 200
OURS, NGINX, DIRECT, FASTMCP = "trunkline", "nginx", "direct", "FastMCP"


class Target(NamedTuple):
    """A target and its measurement."""

    name: str
    bound: float
    measured: float | None
    """None without a figure to compare with."""
    at_most: bool = False

    @property
    def outcome(self) -> str:
        if self.measured is None:
            return "not measured"
        reached = self.measured <= self.bound if self.at_most else self.measured >= self.bound
        return "reached" if reached else "MISSED"


Who = Callable[[Row], bool]


def is_nginx(row: Row) -> bool:
    return row.name == NGINX


def is_fastmcp(behind: ServerTransport) -> Who:
    return lambda row: row.name.startswith(FASTMCP) and row.behind is behind


def is_peer(behind: ServerTransport) -> Who:
    """Return whether a row is another gateway in front of the same kind of server."""
    return lambda row: row.behind is behind and row.name not in (OURS, NGINX, DIRECT)


WANTED: dict[ServerTransport, tuple[tuple[float, str, Who], ...]] = {
    ServerTransport.STDIO: (
        (0.5, "nginx", is_nginx),
        (5, "the fastest peer", is_peer(ServerTransport.STDIO)),
        (40, "FastMCP", is_fastmcp(ServerTransport.STDIO)),
    ),
    ServerTransport.HTTP: (
        (0.4, "nginx", is_nginx),
        (60, "FastMCP", is_fastmcp(ServerTransport.HTTP)),
    ),
}


def compare(rows: Sequence[Row]) -> list[Target]:
    """Compare with the targets; other gateways count with their best configuration."""
    found: list[Target] = []
    for behind, against in WANTED.items():
        for concurrency in (16, 64):
            for bound, name, who in against:
                what = f"{behind}, {SMALL} B, {concurrency} at once: multiple of {name}"
                found.append(Target(what, bound, multiple(rows, behind, SMALL, concurrency, who)))
        own = next((row for row in rows if row.name == OURS and row.behind is behind), None)
        more = None if own is None else added(own, rows, SMALL)
        found.append(Target(f"{behind}, one at a time: added ms", 0.25, more, at_most=True))
        for concurrency in (1, 16, 64):
            what = f"{behind}, {describe(MIB)}, {concurrency} at once: multiple of nginx"
            found.append(Target(what, 0.5, multiple(rows, behind, MIB, concurrency, is_nginx)))
    return found


def multiple(
    rows: Iterable[Row], behind: ServerTransport, size: int, concurrency: int, who: Who
) -> float | None:
    """Return our rate as a multiple of their best."""
    ours, theirs = 0.0, 0.0
    for row in rows:
        cell = row.cell(size, concurrency)
        if cell is None:
            continue
        if row.name == OURS and row.behind is behind:
            ours = cell.rate
        elif who(row):
            theirs = max(theirs, cell.rate)
    return ours / theirs if ours and theirs else None


def table(found: Iterable[Target]) -> Table:
    """Return the targets as a table."""
    rows = [
        (
            target.name,
            "–" if target.measured is None else f"{target.measured:.2f}",
            f"{'<=' if target.at_most else '>='} {target.bound:g}",
            target.outcome,
        )
        for target in found
    ]
    return Table("targets", ("", "measured", "wanted", "outcome"), rows)
