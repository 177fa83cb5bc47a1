"""The event loop of the benchmark."""

import asyncio

from trunkline.benchmark.loop import keep_memory, new_loop


def test_there_is_a_loop_that_runs() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(answer()) == 42


def test_memory_can_be_kept_more_than_once() -> None:
    keep_memory()
    keep_memory()
    assert len(bytes(4_000_000)) == 4_000_000
