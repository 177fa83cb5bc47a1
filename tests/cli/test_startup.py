"""Waiting for backends: until all are settled, enough is there, or time is up."""

import asyncio

import pytest

from tests.gateway.servers import Server, gateway, tool
from trunkline.cli.startup import Startup
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
