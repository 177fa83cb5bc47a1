"""Descendants and orphans are ended, whether their parent, the gateway or the reaper dies."""

import asyncio
import json
import os
import secrets
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace

import pytest

from tests.stdio.test_child import SIGN, LifeSigns, leaves_nothing_behind, open_life_signs, script
from trunkline.jsonrpc import ConnectionLost
from trunkline.stdio import orphan_reaper
from trunkline.stdio.child import ChildProcess, ChildStartError
from trunkline.stdio.orphan_reaper import (
    OrphanReaper,
    apply_line,
    find_descendants,
    match_descendant,
    read_registrations,
    terminate_all,
)

GATEWAY = """
import asyncio, json, os, signal, sys
from trunkline.stdio.child import ChildProcess
from trunkline.stdio.orphan_reaper import OrphanReaper

async def main(children):
    env = {"ROLL": os.environ["ROLL"]}
    started = [await ChildProcess.start(argv, env=env) for argv in children]
    if sys.argv[2] == "end":
        await started[0].receive()
        await started[0].receive()
    pid = OrphanReaper.for_loop(asyncio.get_running_loop()).pid
    while sys.argv[2] == "stay":
        print(pid, flush=True)
        before = pid
        while pid in (before, None):
            await asyncio.sleep(0.001)
            pid = OrphanReaper.for_loop(asyncio.get_running_loop()).pid

asyncio.run(main(json.loads(sys.argv[1])))
"""

FAMILY = {
    "plain": "sign('plain'); stay()",
    "grandchild": "os.fork() or (sign('grandchild'), stay()); stay()",
    "orphan": "os.fork() or (os.setsid(), sign('orphan'), stay()); stay()",
    "own group": "os.fork() or (os.setpgid(0, 0), sign('group'), stay()); stay()",
}
TOKEN = secrets.token_hex()
"""Random: every process on the machine that carries it is killed."""

IGNORES_SIGTERM = "os.fork() or os.setsid(); deaf(); sign('deaf'); stay()"


def launch(*argv: str, **env: str) -> "Popen[bytes]":
    return Popen(argv, env=env, stdin=PIPE, start_new_session=True)


async def until(condition: Callable[[], bool]) -> None:
    """Poll a condition that has no event."""
    while not condition():
        await asyncio.sleep(0)


@asynccontextmanager
async def gateway(signs: LifeSigns, *codes: str, then: str = "stay") -> AsyncGenerator[Process]:
    """Run a process with children, like a gateway; kill it at the end."""
    children = json.dumps([script(code) for code in codes])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", GATEWAY, children, then),
        env={**os.environ, **signs.env},
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def reaper_pid(process: Process) -> int:
    """Return the process id of a gateway's current reaper."""
    assert process.stdout is not None
    return int(await process.stdout.readline())


async def gone(pid: int) -> None:
    """Wait until any process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(handle, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(handle)
    os.close(handle)


# When a child has ended


SHELL = ["sh", "-c", '"$0" -I -S -c "$1" & wait', sys.executable]


@pytest.mark.parametrize(
    "code",
    [
        "sign('a'); stay()",
        "deaf(); sign('a'); stay()",
        "os.setpgid(0, 0); sign('a'); stay()",
        "os.setsid(); sign('a'); stay()",
        "os.setsid(); deaf(); sign('a'); stay()",
        "os.setsid(); os.fork(); os.fork(); sign('a'); stay()",
    ],
)
@leaves_nothing_behind
async def test_grandchildren_are_ended_in_any_process_group(code: str, tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs:
        child = await ChildProcess.start([*SHELL, SIGN + code], env=signs.env, exit_timeout=0.02)
        await signs.signed(4 if "fork" in code else 1)
        await child.aclose()
        await signs.ended()


@pytest.mark.parametrize("move", ["", "os.setpgid(0, 0), "])
@leaves_nothing_behind
async def test_a_process_without_its_token_is_ended_by_its_session(
    move: str, tmp_path: Path
) -> None:
    async with open_life_signs(tmp_path) as signs:
        code = f"os.execve(sys.executable, {script('deaf(); sign(1); stay()')}, {signs.env})"
        child = await ChildProcess.start(
            script(f"os.fork() or ({move}{code}); stay()"), exit_timeout=0.02
        )
        await signs.signed()
        await child.aclose()
        await signs.ended()


@leaves_nothing_behind
async def test_an_escaped_process_cannot_keep_a_transport_open(tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs:
        # It has left the group and cleared its environment, and holds all three pipes.
        code = f"os.setsid(), os.execve(sys.executable, {script('sign(1); stay()')}, {signs.env})"
        argv = script(f"os.fork() or ({code}); print(input())")
        child = await ChildProcess.start(argv, stderr_close_timeout=0.05)
        escaped = await signs.signed()
        await child.send(b"2")
        sending = asyncio.create_task(child.send(b"x" * 1_000_000))
        assert [await child.receive(), await child.receive()] == [b"2", None]
        with pytest.raises(ConnectionLost):
            await sending
        assert await child.wait() == 0
        await child.aclose()
        os.kill(escaped["1"], signal.SIGKILL)
        await signs.ended()


@pytest.mark.parametrize("missing", ["os.pidfd_open", "trunkline.stdio.child.list_processes"])
@leaves_nothing_behind
async def test_children_are_ended_without_pidfd_and_proc(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown(_: int) -> int:
        raise OSError("no such system call")

    def no_processes() -> list[int]:
        return []

    monkeypatch.setattr(missing, unknown if "pidfd" in missing else no_processes)
    async with open_life_signs(tmp_path) as signs:
        code = "os.fork() or (deaf(), sign('a'), stay()); input(); sys.exit(7)"
        child = await ChildProcess.start(script(code), env=signs.env)
        await signs.signed()
        await child.send(b"")
        assert await child.wait() == 7
        await signs.ended()
        await child.aclose()


# When the gateway has ended


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@leaves_nothing_behind
async def test_no_child_survives_a_killed_gateway(number: int, tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs, gateway(signs, *FAMILY.values()) as process:
        reaper = await reaper_pid(process)
        await signs.signed(len(FAMILY))
        os.killpg(process.pid, number)  # as Ctrl-C does
        await process.wait()
        await signs.ended()
        await gone(reaper)


@leaves_nothing_behind
async def test_children_that_ignore_sigterm_do_not_survive_either(tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs, gateway(signs, IGNORES_SIGTERM) as process:
        reaper = await reaper_pid(process)
        await signs.signed(2)
        process.kill()
        await signs.ended()
        await gone(reaper)


@leaves_nothing_behind
async def test_no_child_survives_an_event_loop_that_ends_without_closing(tmp_path: Path) -> None:
    code = "os.fork() or os.setsid(); deaf(); sign('a'); print(1, flush=True); stay()"
    async with open_life_signs(tmp_path) as signs, gateway(signs, code, then="end") as process:
        await signs.signed(2)
        await signs.ended()
        assert await process.wait() == 0


@leaves_nothing_behind
async def test_a_child_is_signalled_when_its_parent_dies_without_the_reaper(
    tmp_path: Path,
) -> None:
    async with open_life_signs(tmp_path) as signs, gateway(signs, FAMILY["plain"]) as process:
        reaper = await reaper_pid(process)
        await signs.signed()
        os.kill(reaper, signal.SIGSTOP)
        process.kill()
        await signs.ended()
        os.kill(reaper, signal.SIGCONT)
        await gone(reaper)


@leaves_nothing_behind
async def test_a_dead_reaper_is_replaced_with_all_registrations(tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs, gateway(signs, *FAMILY.values()) as process:
        await signs.signed(len(FAMILY))
        reaper = await reaper_pid(process)
        for _ in range(3):
            os.kill(reaper, signal.SIGKILL)
            reaper = await reaper_pid(process)
        process.kill()
        await signs.ended()
        await gone(reaper)


@leaves_nothing_behind
async def test_a_nested_gateway_ends_with_all_its_children(tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs:
        children = json.dumps([script(code) for code in FAMILY.values()])
        argv = [sys.executable, "-c", GATEWAY, children, "stay"]
        env = {**signs.env, "PYTHONPATH": str(Path(orphan_reaper.__file__).parents[2])}
        child = await ChildProcess.start(argv, env=env, exit_timeout=0.02)
        reaper = int(await child.receive() or b"")
        await signs.signed(len(FAMILY))
        await child.aclose()  # must not end the other gateway's reaper
        await signs.ended()
        await gone(reaper)


# The reaper process


def test_registrations_map_tokens_to_groups() -> None:
    book: dict[bytes, int] = {}
    for line in (b"+0 a", b"+12 a", b"+13 b", b"-12", b"+14 c", b"-99", b"+0 d", b"-0"):
        apply_line(book, line)
    for line in (b"", b"+", b"-", b"+x y", b"+15", b"-x", b"16 e", b"+-1 f", b"+1\xb2 g"):
        apply_line(book, line)
    assert book == {b"b": 13, b"c": 14}


def test_registrations_are_read_in_pieces_of_any_size() -> None:
    reading, writing = os.pipe()
    for part in (b"+1", b"2 a\n+13", b" b\n-12\n+14 unfini"):
        os.write(writing, part)
    os.close(writing)
    assert read_registrations(reading) == {b"b": 13}
    os.close(reading)


@asynccontextmanager
async def group(
    token: str, signs: LifeSigns, code: str = "deaf(); sign('a'); stay()"
) -> AsyncGenerator["Popen[bytes]"]:
    """Start a process in its own group."""
    argv = script(code)
    with launch(*argv, **signs.env, **{orphan_reaper.TOKEN_VARIABLE: token}) as process:
        try:
            await signs.signed()
            yield process
        finally:
            process.kill()


@leaves_nothing_behind
async def test_only_registered_processes_are_ended(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    async with (
        open_life_signs(tmp_path / "a") as first,
        open_life_signs(tmp_path / "b") as second,
        open_life_signs(tmp_path / "c") as third,
        group("", first, "sign('a'); stay()") as by_group,
        group(TOKEN, second, "sign('a'); stay()") as by_token,
        group(TOKEN + "0", third) as spared,  # tokens match as a whole
    ):
        reaper = launch(sys.executable, "-I", "-S", "-E", orphan_reaper.__file__)
        lines = f"+{by_group.pid} x{TOKEN}\n+0 {TOKEN}\n+{spared.pid} {TOKEN}0\n-{spared.pid}\n"
        reaper.communicate(lines.encode())
        assert reaper.returncode == 0
        await first.ended()
        await second.ended()
        assert (by_group.wait(), by_token.wait(), spared.poll()) == (-15, -15, None)


def test_our_own_group_and_all_processes_are_never_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killpg(group: int, number: int) -> None:
        raise AssertionError(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    terminate_all({f"a{TOKEN}".encode(): 0, f"b{TOKEN}".encode(): 1})


@leaves_nothing_behind
async def test_a_group_once_seen_empty_is_not_signalled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signals: list[tuple[int, int]] = []

    def killpg(group: int, number: int) -> None:
        signals.append((group, number))

    monkeypatch.setattr(os, "killpg", killpg)
    async with open_life_signs(tmp_path) as signs, group("", signs) as living:
        dead = launch("true")
        dead.communicate()
        terminate_all(
            {b"x" + TOKEN.encode(): living.pid, TOKEN.encode(): dead.pid},
            sigterm_timeout=0.05,
            sigkill_timeout=0.1,
        )
        assert (dead.pid, signal.SIGTERM) in signals
        assert (dead.pid, signal.SIGKILL) not in signals
        assert (living.pid, signal.SIGKILL) in signals


@leaves_nothing_behind
async def test_a_reaper_that_was_paused_for_long_still_kills(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = 0.0

    def pause(_: float) -> None:
        nonlocal now
        now += 3600.0

    clock = SimpleNamespace(monotonic=lambda: now, sleep=pause)
    async with open_life_signs(tmp_path) as signs, group(TOKEN, signs) as process:
        monkeypatch.setattr(orphan_reaper, "time", clock)
        terminate_all({TOKEN.encode(): process.pid})
        assert process.wait() == -signal.SIGKILL
        await signs.ended()


@leaves_nothing_behind
async def test_groups_are_ended_without_proc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_processes() -> list[int]:
        return []

    monkeypatch.setattr(orphan_reaper, "list_processes", no_processes)
    async with open_life_signs(tmp_path) as signs, group("", signs) as process:
        # A zombie still seems alive.
        terminate_all({TOKEN.encode(): process.pid}, sigterm_timeout=0.02, sigkill_timeout=0.1)
        assert process.wait() == -signal.SIGKILL
        await signs.ended()


def test_dead_and_unrelated_processes_are_not_descendants() -> None:
    zombie = launch("true")
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert match_descendant(zombie.pid, {zombie.pid}, []) is None
    zombie.communicate()
    assert match_descendant(zombie.pid, {zombie.pid}, []) is None
    assert match_descendant(os.getpid(), {zombie.pid}, [b"no such token"]) is None
    assert match_descendant(os.getpid(), {os.getsid(0)}, []) == (os.getsid(0), os.getpgid(0))
    assert os.getpid() in find_descendants({os.getsid(0)}, [])


# The gateway's side


def here() -> OrphanReaper:
    return OrphanReaper.for_loop(asyncio.get_running_loop())


@leaves_nothing_behind
async def test_one_reaper_runs_exactly_while_there_are_children() -> None:
    assert here().pid is None
    first, second = await ChildProcess.start(["cat"]), await ChildProcess.start(["cat"])
    reaper = here().pid or 0
    assert os.getsid(reaper) == reaper
    await first.aclose()
    assert here().pid == reaper
    await second.aclose()
    assert here().pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(reaper, 0)
    with pytest.raises(ChildStartError):
        await ChildProcess.start(["no-such-command"])
    assert here().pid is None


@leaves_nothing_behind
async def test_a_reaper_holds_only_its_pipe_and_ignores_signals() -> None:
    file = os.dup(0)
    os.set_inheritable(file, True)
    child = await ChildProcess.start(["cat"])
    reaper = here().pid or 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        os.kill(reaper, number)
    process = Path(f"/proc/{reaper}")
    await until(lambda: {path.name for path in (process / "fd").iterdir()} == {"0", "1", "2"})
    assert [(process / "fd" / name).readlink() for name in "12"] == [Path(os.devnull)] * 2
    assert (process / "environ").read_bytes().count(b"=") == ("LD_LIBRARY_PATH" in os.environ)
    assert here().pid == reaper
    os.close(file)
    await child.aclose()


@leaves_nothing_behind
async def test_a_reaper_gets_every_registration_and_unregistration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[bytes] = []
    write = os.write

    def record(pipe: int, line: bytes) -> int:
        lines.append(line)
        return write(pipe, line)

    monkeypatch.setattr(os, "write", record)
    first, second = await ChildProcess.start(["cat"]), await ChildProcess.start(["cat"])
    await first.aclose()
    with pytest.raises(ChildStartError):
        await ChildProcess.start(["no-such-command"])
    await second.aclose()
    lines = [line.split()[0] for line in lines]
    groups = [b"+%d" % first.pid, b"+0", b"+%d" % second.pid, b"-%d" % first.pid]
    assert lines == [b"+0", *groups, b"+0", b"-0"]


@leaves_nothing_behind
async def test_a_reaper_that_does_not_read_is_replaced() -> None:
    child = await ChildProcess.start(["cat"])
    stuck = here().pid or 0
    os.kill(stuck, signal.SIGSTOP)
    while here().pid == stuck:
        here().register("token")
        here().unregister("token")
    await until(lambda: here().pid is not None)
    await child.aclose()


@leaves_nothing_behind
async def test_no_child_is_started_without_a_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(
        ChildStartError, match=r"orphan reaper cannot be started .*can '/no/such/python' be run\?"
    ):
        await ChildProcess.start(["cat"])


@leaves_nothing_behind
async def test_a_failed_reaper_restart_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = await ChildProcess.start(["cat"])
    first, attempts = here().pid or 0, 0

    def spawn(*args: object, **options: object) -> int:
        nonlocal attempts
        attempts += 1
        raise OSError("too many processes")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_spawn", spawn)
        os.kill(first, signal.SIGKILL)
        await until(lambda: attempts == 2)
        here().register("token", child.pid)  # it runs already: no error is raised
    here().unregister("token")
    await until(lambda: here().pid is not None)
    await child.aclose()
