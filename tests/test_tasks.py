"""Tests of the helpers in `tests/tasks.py`."""

import asyncio
import threading

from tests.tasks import LoopClock


def test_a_loop_closes_in_real_time_after_a_test_that_skipped_idle_time() -> None:
    async def leave_a_thread() -> None:
        LoopClock().skip_idle_time()
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, 0.1)

    # Warnings are errors: the loop warns if it did not wait for the thread.
    asyncio.run(leave_a_thread())
