"""No descriptor of a child's pipes is closed twice: another file may have its number by then."""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import IO, Any

import pytest
import uvloop

from tests.tasks import hang_guard
from trunkline.stdio import child as child_module
from trunkline.stdio.child import ChildProcess

NewLoop = Callable[[], asyncio.AbstractEventLoop]

on_both_loops = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


def open_canary() -> int:
    """Open a file; it gets the lowest number that is free."""
    return os.open(os.devnull, os.O_RDONLY)


def close_canaries(canaries: list[int], count: int) -> None:
    """Check that there are `count` canaries and that all are still open, then close them."""
    assert len(set(canaries)) == count
    for canary in canaries:
        os.close(canary)  # raises EBADF if something else has closed it


class ProbedFile:
    """A file object which opens a canary when it is closed, as another thread could."""

    def __init__(self, file: IO[bytes], canaries: list[int]) -> None:
        self._file = file
        self._canaries = canaries
        self.fileno = file.fileno

    def close(self) -> None:
        self._canaries.append(open_canary())
        self._file.close()


Connect = Callable[[object, object], Awaitable[tuple[asyncio.BaseTransport, object]]]


async def connect_probed(
    connect: Connect, canaries: list[int], factory: object, pipe: IO[bytes]
) -> tuple[asyncio.BaseTransport, object]:
    return await connect(factory, ProbedFile(pipe, canaries))


def run(new_loop: NewLoop, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def guarded() -> None:
        async with hang_guard():
            await test()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(guarded())


@on_both_loops
def test_closing_a_pipe_closes_no_file_that_another_thread_opens_meanwhile(
    new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries: list[int] = []

    async def start_and_close() -> None:
        loop = asyncio.get_running_loop()
        for name in ("connect_read_pipe", "connect_write_pipe"):
            monkeypatch.setattr(loop, name, partial(connect_probed, getattr(loop, name), canaries))
        child = await ChildProcess.start(["cat"])
        await child.aclose()

    run(new_loop, start_and_close)
    close_canaries(canaries, 3)


@on_both_loops
def test_a_child_that_exits_at_once_never_closes_another_file(
    new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = child_module.spawn

    def spawn_and_wait(*args: Any) -> object:
        process = spawn(*args)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return process

    monkeypatch.setattr(child_module, "spawn", spawn_and_wait)
    canaries: list[int] = []

    async def start_and_forget() -> None:
        child = await ChildProcess.start(["false"])
        await child.wait()
        await child.aclose()
        canaries.extend(open_canary() for _ in range(8))

    run(new_loop, start_and_forget)
    gc.collect()  # a forgotten file object closes its descriptor
    close_canaries(canaries, 8)


@on_both_loops
def test_a_pipe_that_cannot_be_connected_is_closed_once(
    new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries: list[int] = []

    async def refuse(_: object, __: object) -> None:
        raise OSError("refused")

    async def fail_to_start() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "connect_read_pipe", refuse)
        with pytest.raises(OSError, match="refused"):
            await ChildProcess.start(["cat"])
        canaries.extend(open_canary() for _ in range(8))

    run(new_loop, fail_to_start)
    gc.collect()
    close_canaries(canaries, 8)
