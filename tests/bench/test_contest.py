"""A small contest with real programs, some of which fail."""

import os
import sys

import pytest

from bench.gateway.calls import BadResponse
from bench.gateway.contest import Contest, Row, Settings, describe, label
from bench.gateway.contestants import (
    DIRECT,
    Contestant,
    ContestantSite,
    ServerTransport,
    StartedContestant,
)
from bench.gateway.load import Plan
from tests.tasks import hang_guard
from trunkline.mcp.versions import Era

SETTINGS = Settings(
    plan=Plan(seconds=0.02, warm_up=0.01, longest=5.0),
    rounds=2,
    sizes=(200, 70_000),
    concurrencies=(1, 4),
    rest=0.0,
)


def version() -> str:
    return "1"


def absent() -> str:
    raise LookupError("it is not installed")


def lies(place: ContestantSite) -> StartedContestant:
    """Serve only the other protocol, so that no tools are listed."""
    return DIRECT.start(place._replace(era=Era.STATELESS))._replace(address=place.address())


def dies(place: ContestantSite) -> StartedContestant:
    return StartedContestant([sys.executable, "-c", "print('out of luck')"], place.address())


def missing(place: ContestantSite) -> StartedContestant:
    return StartedContestant(["/no/such/program"], place.address())


FAILING = [
    (Contestant("absent", dies, absent), "it is not installed"),
    (Contestant("dies", dies, version), "it ended: out of luck"),
    (Contestant("lies", lies, version, start_timeout=0.5), "no tools within 0.5 s"),
]


async def test_all_contestants_are_measured_and_failures_have_reasons() -> None:
    messages: list[str] = []
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    async with hang_guard(), Contest(SETTINGS, messages.append) as contest:
        for contestant, _ in FAILING:
            await contest.add(contestant, ServerTransport.HTTP)
        await contest.add(DIRECT, None)
        *failed, direct = await contest.run()
    for row, (_, why) in zip(failed, FAILING, strict=True):
        assert row.cells == []
        assert why in row.failures[0]
    assert (direct.name, direct.behind, direct.failures) == ("direct", None, [])
    assert direct.startup is not None
    assert [(cell.size, cell.concurrency) for cell in direct.cells] == [
        (200, 1), (200, 4), (70_000, 1), (70_000, 4),
    ]  # fmt: skip
    assert all(len(cell.rates) == 2 and cell.rate > 0 for cell in direct.cells)
    assert direct.cell(200, 4) is direct.cells[1]
    assert direct.cell(1, 1) is None
    assert messages[-1] == "round 2 of 2, 70000 B, 4 at once: direct"
    if before is not None:
        assert os.sched_getaffinity(0) == before


async def test_a_missing_program_is_a_failure() -> None:
    async with hang_guard(), Contest(SETTINGS, lambda _: None) as contest:
        await contest.add(
            Contestant("missing", missing, version, start_timeout=5), ServerTransport.HTTP
        )
        (row,) = await contest.run()
    assert "/no/such/program" in row.failures[0]


async def test_a_contestant_reconnects_after_an_incorrect_response() -> None:
    admitted: list[bool] = []

    async def admit() -> None:
        admitted.append(True)
        if len(admitted) == 1:
            raise BadResponse("not yet")

    def start(place: ContestantSite) -> StartedContestant:
        return DIRECT.start(place)._replace(admit=admit)

    settings = Settings(
        plan=Plan(seconds=0.01, warm_up=0.01, longest=5.0),
        rounds=2,
        sizes=(99_999_999, 200),
        concurrencies=(1,),
        rest=0.0,
    )
    async with hang_guard(), Contest(settings, lambda _: None) as contest:
        await contest.add(Contestant("direct", start, version), None)
        (row,) = await contest.run()
    assert len(admitted) == 2
    assert [cell.size for cell in row.cells] == [200]
    (failure,) = row.failures
    assert "expected a size of 0 to" in failure


@pytest.mark.parametrize(
    ("size", "text"), [(200, "200 B"), (65536, "64 KiB"), (1 << 20, "1 MiB"), (1500, "1500 B")]
)
def test_sizes_are_formatted_for_people(size: int, text: str) -> None:
    assert describe(size) == text


def test_a_row_is_named_after_its_server() -> None:
    assert label(Row("direct", None)) == "direct"
    assert label(Row("nginx", ServerTransport.HTTP)) == "nginx → http"
