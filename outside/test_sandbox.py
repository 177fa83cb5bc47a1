"""Sandboxes by a real bubblewrap: what a server cannot do, and that nothing is left behind."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

import pytest

from outside.program import HERE
from tests.sandboxes import (
    expect_limited_memory,
    expect_no_gateway_environment,
    expect_no_network,
    expect_only_listed_files,
    sandboxed,
)
from trunkline.stdio import sandbox
from trunkline.stdio.child import ChildProcess
from trunkline.stdio.sandbox import SandboxSettings

UNPACKED = HERE / "bubblewrap" / "usr" / "bin"
"""Where `make test-outside` unpacks it."""

BY = "bubblewrap"


@pytest.fixture(autouse=True)
def bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{UNPACKED}")
    assert sandbox.find_bubblewrap(), "there is no bubblewrap; `make test-outside` unpacks one"


async def test_a_server_reads_and_writes_only_what_is_listed(tmp_path: Path) -> None:
    await expect_only_listed_files(tmp_path, BY)


async def test_a_server_without_network_reaches_no_address() -> None:
    await expect_no_network(SandboxSettings(network=False), BY)
    await expect_no_network(SandboxSettings(network=False, read_only=()), BY)


async def test_a_server_sees_no_process_but_its_own() -> None:
    for settings in (SandboxSettings(read_only=()), SandboxSettings(network=False)):
        await expect_no_gateway_environment(settings)
        async with sandboxed(settings) as program:
            pids = "sorted(int(name) for name in os.listdir('/proc') if name.isdigit())"
            assert await program.evaluate(pids) == "[1, 2]"


async def test_a_server_has_its_own_small_temporary_folder(tmp_path: Path) -> None:
    async with sandboxed(SandboxSettings(read_only=(), memory_mib=64)) as program:
        assert await program.fails(f"os.listdir('{tmp_path}')")
        assert await program.evaluate("open('/tmp/x', 'w').write('mine')") == "4"
        write = "subprocess.run(['dd', 'if=/dev/zero', 'of={}/x', 'bs=1M', 'count=80'], stderr=-3)"
        for folder in ("/tmp", "/dev/shm"):
            assert "returncode=1" in await program.evaluate(write.format(folder))
        for folder in ("/", "/dev", "/etc", "/usr"):
            assert await program.fails(f"open('{folder}/x', 'w')"), folder


async def test_an_inner_path_has_its_own_access(tmp_path: Path) -> None:
    for each in ("work/.git", "data/out"):
        (tmp_path / each).mkdir(parents=True)
    settings = SandboxSettings(
        read_only=(f"{tmp_path}/work/.git", f"{tmp_path}/data"),
        writable=(f"{tmp_path}/work", f"{tmp_path}/data/out"),
    )
    async with sandboxed(settings) as program:
        for folder, is_writable in (
            ("work", True),
            ("work/.git", False),
            ("data", False),
            ("data/out", True),
        ):
            failed = await program.fails(f"open('{tmp_path}/{folder}/x', 'w').close()")
            assert failed is not is_writable, folder


async def test_the_whole_file_system_may_be_listed_but_the_temporary_folder_stays_private(
    tmp_path: Path,
) -> None:
    async with sandboxed(SandboxSettings(read_only=("/",)), cwd="/var") as program:
        assert await program.evaluate(f"os.path.exists({__file__!r})") == str(
            not __file__.startswith("/tmp/")
        )
        assert "lib" in await program.evaluate("os.listdir('/var')")
        assert await program.fails("open('/var/x', 'w')")
        assert await program.fails(f"os.listdir('{tmp_path}')")
    both = SandboxSettings(read_only=("/",), writable=(str(tmp_path),))
    async with sandboxed(both, cwd=tmp_path) as program:
        assert await program.evaluate("open('x', 'w').write('mine')") == "4"


async def test_limits_hold_in_bubblewrap_too() -> None:
    await expect_limited_memory(SandboxSettings(memory_mib=64, read_only=()))


async def test_a_server_has_few_processes_and_as_root_runs_as_another_user() -> None:
    # The kernel does not limit the processes of root.
    user = "64997" if os.geteuid() == 0 else None
    shell = "id -u; for i in 1 2 3 4 5 6 7 8; do sleep 30 & done; echo all"
    settings = SandboxSettings(user=user, processes=4, read_only=(), network=False)
    child = await ChildProcess.start(["sh", "-c", shell], cwd="/", sandbox=settings)
    assert BY in (child.sandbox or "")
    assert await child.receive() == (user or str(os.getuid())).encode()
    assert await child.receive() is None
    assert "fork" in " ".join(child.stderr_tail()).lower()
    await child.aclose()


def processes_with(text: bytes) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


SLEEP = b"sleep\x004711\x00"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  there is no event
        await asyncio.sleep(0.02)


async def test_no_process_is_left_behind_that_hides_from_the_gateway() -> None:
    """A process that left its session and cleared its environment ends with the sandbox."""
    hidden = "setsid env -i sh -c 'trap \"\" TERM; sleep 4711' & echo ready; cat"
    settings = SandboxSettings(read_only=())
    child = await ChildProcess.start(["sh", "-c", hidden], cwd="/", sandbox=settings)
    assert await child.receive() == b"ready"
    async with asyncio.timeout(20):
        await until(lambda: bool(processes_with(SLEEP)))
        await child.aclose()
        await until(lambda: not processes_with(SLEEP))


GATEWAY = """
import asyncio
from trunkline.stdio.child import ChildProcess
from trunkline.stdio.sandbox import SandboxSettings
async def main():
    command = ["sh", "-c", "trap '' TERM; setsid env -i sleep 4711 & echo ready; cat; sleep 4711"]
    child = await ChildProcess.start(command, cwd="/", sandbox=SandboxSettings(read_only=()))
    print(await child.receive(), child.sandbox, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_sandbox_ends_when_the_gateway_is_killed() -> None:
    gateway = await asyncio.create_subprocess_exec(sys.executable, "-c", GATEWAY, stdout=PIPE)
    assert gateway.stdout
    assert b"bubblewrap" in await gateway.stdout.readline()
    async with asyncio.timeout(20):
        await until(lambda: bool(processes_with(SLEEP)))
        gateway.kill()
        await gateway.wait()
        await until(lambda: not processes_with(SLEEP))
