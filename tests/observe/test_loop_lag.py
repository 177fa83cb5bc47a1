"""How late the loop is, is seen."""

import asyncio

from tests.observe.test_exposition import parsed
from trunkline.observe.exposition import Exposition
from trunkline.observe.loop_lag import NAME, LoopLag


async def test_it_looks_again_and_again_until_it_is_stopped() -> None:
    lag = LoopLag(every=0.0)
    lag.start()
    lag.start()
    async with asyncio.timeout(10):
        while sum(lag.histogram.counts) < 3:
            await asyncio.sleep(0)
    lag.stop()
    lag.stop()
    seen = sum(lag.histogram.counts)
    for _ in range(5):
        await asyncio.sleep(0)
    assert sum(lag.histogram.counts) == seen
    exposition = Exposition()
    lag.register(exposition)
    assert parsed(exposition.text())[f"{NAME}_count"] == [({}, seen)]
