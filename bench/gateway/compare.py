"""`python -m bench.gateway`: the speed of the gateway on this machine, compared with no gateway.

It is a quick comparison within the given seconds, with nginx and the FastMCP proxy if they are
installed. `make bench-hop` measures exactly.
"""

import asyncio

import msgspec

from bench.gateway.contest import Contest, ProgressReporter, Row, Settings
from bench.gateway.contestants import (
    DIRECT,
    TRUNKLINE,
    Contestant,
    ServerTransport,
    fastmcp,
    nginx,
)
from bench.gateway.load import Plan
from bench.gateway.machine import about
from bench.gateway.table import Table, failures, tables
from trunkline.runtime import create_event_loop, tune_memory

SECONDS = 20.0

_STARTING = 1.2
"""About how many seconds a contestant needs to start and become idle."""

_SHORTEST = 0.1


class Comparison(msgspec.Struct):
    """The results, with the machine."""

    about: dict[str, str]
    settings: Settings
    rows: list[Row]

    def tables(self) -> list[Table]:
        """Return the tables."""
        return tables(self.rows, self.settings)

    def failures(self) -> list[str]:
        """Return what failed."""
        return failures(self.rows)


Entrants = list[tuple[Contestant, ServerTransport | None]]


def run(
    seconds: float = SECONDS,
    report: ProgressReporter = lambda _: None,
    entrants: Entrants | None = None,
    settings: Settings | None = None,
) -> Comparison:
    """Measure for about that many seconds; `report` gets progress messages.

    By default all contestants take part and share the seconds evenly; `settings` overrides that.
    """
    taking_part = present() if entrants is None else entrants
    chosen = settings or Settings(plan=share(seconds, len(taking_part)))
    tune_memory()
    with asyncio.Runner(loop_factory=create_event_loop) as runner:
        rows = runner.run(_run_contest(taking_part, chosen, report))
    return Comparison(about(), chosen, rows)


def present() -> Entrants:
    """Return the contestants that are installed."""
    found: Entrants = [(DIRECT, None), *((TRUNKLINE, behind) for behind in ServerTransport)]
    for contestant in (nginx(), fastmcp(shared=True)):
        try:
            contestant.version()
        except LookupError:
            continue
        found += [(contestant, behind) for behind in contestant.behind]
    return found


def share(seconds: float, entrants: int) -> Plan:
    """Divide the seconds among the contestants; a quarter of each share is for warming up."""
    kinds = len(Settings().sizes) * len(Settings().concurrencies)
    part = (seconds - _STARTING * entrants) / (kinds * entrants)
    part = max(part, _SHORTEST)
    return Plan(seconds=part * 0.75, warm_up=part * 0.25, longest=max(part, 2.0), answers=1)


async def _run_contest(
    entrants: Entrants, settings: Settings, report: ProgressReporter
) -> list[Row]:
    async with Contest(settings, report) as contest:
        for contestant, behind in entrants:
            await contest.add(contestant, behind)
        return await contest.run()
