"""Waiting for backends: until all are settled, enough is there, or time is up."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.samples import BROKEN, OPERATOR, config
from tests.gateway.servers import Server, add, gateway, tool
from trunkline.cli.startup import Started, Startup, is_found, started, unready
from trunkline.config import load
from trunkline.gateway.gateway import Gateway

pytestmark = pytest.mark.filterwarnings("error")


async def hang(*_: object) -> object:
    return await asyncio.Event().wait()


def one_that_hangs() -> tuple[Gateway, Server]:
    slow = Server(tools=[])
    slow.methods["initialize"] = hang
    return gateway(quick=Server(tools=[tool("a")]), slow=slow), slow


async def test_it_waits_until_all_have_been_ready_or_have_failed() -> None:
    broken = Server(tools=[])
    broken.broken = OSError("broken")
    made = gateway(a=Server(tools=[tool("a")]), broken=broken)
    shown: list[str] = []
    made.registry.start()
    async with asyncio.timeout(5):
        startup = Startup(made.registry, shown.append)
        await startup.wait()
    assert startup.seconds.keys() == {"a", "broken"}
    assert shown[0].startswith("starting a, broken")
    await made.aclose()


async def test_it_waits_no_longer_than_told() -> None:
    made, _ = one_that_hangs()
    made.registry.start()
    async with asyncio.timeout(5):
        startup = Startup(made.registry, lambda _: None)
        await startup.wait(timeout=0.05)
    assert "slow" not in startup.seconds
    await made.aclose()


async def test_it_waits_no_longer_than_there_is_reason_to() -> None:
    made, _ = one_that_hangs()
    made.registry.start()
    async with asyncio.timeout(5):
        await Startup(made.registry, lambda _: None).wait(
            enough=lambda: "quick" in {u.name for u in made.registry if u.settled}
        )
    assert not made.registry.settled
    await made.aclose()


async def test_a_name_is_found_only_when_no_earlier_server_can_still_claim_it() -> None:
    made = gateway()
    for name, prefix in (("first", ""), ("other", "other"), ("last", "last")):
        add(made, name, Server(tools=[tool("x")]), prefix=prefix)
    first, other, last = made.registry
    assert not is_found(made.registry, "last__x")
    made.registry.start()
    await made.registry.wait_settled(5)
    assert is_found(made.registry, "last__x")
    other.state = type(other.state).STARTING
    assert is_found(made.registry, "last__x")
    first.state = type(first.state).STARTING
    assert not is_found(made.registry, "last__x")
    assert is_found(made.registry, "x")
    assert last.settled
    await made.aclose()


async def test_a_question_is_asked_while_everything_runs_and_then_nothing_does(
    tmp_path: Path,
) -> None:
    loaded = load(Path(config(tmp_path, BROKEN, OPERATOR)), {})
    async with asyncio.timeout(20):
        async with started(loaded) as there:
            assert there.gateway.registry.settled
            (line,) = unready(there.statuses())
            (noted,) = unready(there.statuses(), ", alas")
        states = {status.state for status in there.statuses()}
    assert line.startswith("broken is waiting: ")
    assert noted.startswith("broken is waiting, alas: ")
    assert states == {"stopped"}


async def test_a_question_that_has_no_answer_ends_what_was_started_as_well(tmp_path: Path) -> None:
    loaded = load(Path(config(tmp_path, OPERATOR)), {})
    kept: list[Started] = []

    async def ask() -> None:
        async with asyncio.timeout(20), started(loaded) as there:
            kept.append(there)
            raise KeyError

    with pytest.raises(KeyError):
        await ask()
    assert {status.state for status in kept[0].statuses()} == {"stopped"}
