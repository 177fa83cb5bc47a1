"""Programs under test, which are always stopped."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from bench.gateway.process import Program, cores, descendants, pinned, start
from tests.tasks import hang_guard

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")

SLEEPER = "import time; print('here', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=True)
child.wait()
"""


async def begin(script: str, log: Path) -> Program:
    program = await start([sys.executable, "-c", script], log, {"WHO": "me"}, None)
    async with hang_guard():
        while "here" not in log.read_text(encoding="utf-8"):
            await asyncio.sleep(0)
    return program


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", [SLEEPER, STUBBORN], ids=["polite", "stubborn"])
async def test_a_program_is_stopped(script: str, tmp_path: Path) -> None:
    program = await begin(script, tmp_path / "log")
    assert not program.has_ended
    async with hang_guard():
        await program.stop(timeout=0.1)
    assert program.has_ended


@LINUX
async def test_a_descendant_in_another_group_is_stopped_too(tmp_path: Path) -> None:
    program = await begin(PARENT, tmp_path / "log")
    (child,) = descendants(program.pid)
    async with hang_guard():
        await program.stop()
        while runs(child):
            await asyncio.sleep(0)


@LINUX
async def test_memory_and_time_include_descendants(tmp_path: Path) -> None:
    program = await begin(PARENT, tmp_path / "log")
    try:
        whole = program.memory()
        alone = program.memory(without=[sys.executable, "-c", SLEEPER])
        assert 0 < alone < whole
        assert program.cpu_seconds() >= 0
    finally:
        await program.stop()
    assert program.memory() == 0


async def test_the_last_output_is_available(tmp_path: Path) -> None:
    script = "import os, sys; print('x' * 5000, os.environ['WHO'], file=sys.stderr); print('here')"
    program = await begin(script, tmp_path / "log")
    await program.stop()
    assert "me" in program.last_output()
    assert len(program.last_output()) <= 2000


async def test_starting_a_missing_program_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await start(["/no/such/program"], tmp_path / "log", {}, None)


def test_taskset_pins_a_program_to_a_core() -> None:
    assert pinned(["a", "b"], None) == ["a", "b"]
    assert pinned(["a", "b"], 1) == ["taskset", "-c", "1", "a", "b"]


def test_the_two_cores_are_different() -> None:
    found = cores()
    assert found is None or found[0] != found[1]
