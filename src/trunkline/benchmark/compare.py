"""`trunkline bench`: how fast the gateway is on this machine, beside no gateway at all.

Refuses to take long: it is a look, in the seconds that it is given. nginx and the FastMCP proxy are
beside it where they are installed. `make bench-hop` is for those who want to know exactly.
"""

import asyncio

import msgspec

from trunkline.benchmark.contest import Contest, Row, Settings, Tell
from trunkline.benchmark.contestants import (
    DIRECT,
    TRUNKLINE,
    Behind,
    Contestant,
    fastmcp,
    nginx,
)
from trunkline.benchmark.load import Plan
from trunkline.benchmark.machine import about
from trunkline.benchmark.table import Table, failures, tables
from trunkline.loop import keep_memory, new_loop

SECONDS = 20.0

_STARTING = 1.2
"""How many seconds it takes to start somebody and let it come to rest, more or less."""

_SHORTEST = 0.1


class Comparison(msgspec.Struct):
    """What was found, on which machine."""

    about: dict[str, str]
    settings: Settings
    rows: list[Row]

    def tables(self) -> list[Table]:
        """Lay it out."""
        return tables(self.rows, self.settings)

    def failures(self) -> list[str]:
        """Say what did not work."""
        return failures(self.rows)


Entrants = list[tuple[Contestant, Behind | None]]


def run(
    seconds: float = SECONDS,
    tell: Tell = lambda _: None,
    entrants: Entrants | None = None,
    settings: Settings | None = None,
) -> Comparison:
    """Measure for about that many seconds; `tell` hears what is going on.

    Whoever is not named takes part as in `trunkline bench`, and the seconds are shared out evenly;
    `settings` overrides that.
    """
    taking_part = present() if entrants is None else entrants
    chosen = settings or Settings(plan=share(seconds, len(taking_part)))
    keep_memory()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        rows = runner.run(_hold(taking_part, chosen, tell))
    return Comparison(about(), chosen, rows)


def present() -> Entrants:
    """Return who can take part here."""
    found: Entrants = [(DIRECT, None), *((TRUNKLINE, behind) for behind in Behind)]
    for contestant in (nginx(), fastmcp(shared=True)):
        try:
            contestant.version()
        except LookupError:
            continue
        found += [(contestant, behind) for behind in contestant.behind]
    return found


def share(seconds: float, entrants: int) -> Plan:
    """Share the seconds out: a quarter of each part is for warming up."""
    kinds = len(Settings().sizes) * len(Settings().concurrencies)
    part = (seconds - _STARTING * entrants) / (kinds * entrants)
    part = max(part, _SHORTEST)
    return Plan(seconds=part * 0.75, warm_up=part * 0.25, longest=max(part, 2.0), answers=1)


async def _hold(entrants: Entrants, settings: Settings, tell: Tell) -> list[Row]:
    async with Contest(settings, tell) as contest:
        for contestant, behind in entrants:
            await contest.enter(contestant, behind)
        return await contest.run()
