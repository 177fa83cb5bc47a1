"""Tests of the helpers in `tests/tasks.py`."""

import asyncio
import time

from tests.tasks import LoopClock


def test_a_loop_closes_in_real_time_after_a_test_that_skipped_idle_time() -> None:
    async def leave_a_thread() -> None:
        LoopClock().skip_idle_time()
        await asyncio.sleep(1000.0)  # skipped
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.1)

    asyncio.run(
        leave_a_thread()
    )  # warns if it did not wait for the thread, and warnings are errors
