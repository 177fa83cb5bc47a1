"""What becomes of those who are left behind: by their parent, by the gateway, by the warden."""

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

import pytest

from tests.transports.test_stdio import SIGN, Roll, rolling, script, spotless
from trunkline.jsonrpc import ConnectionLost
from trunkline.transports import warden
from trunkline.transports.launch import ChildFailed
from trunkline.transports.stdio import Child
from trunkline.transports.warden import Warden, end_all, find, kinship, note, read_book

GATEWAY = """
import asyncio, json, os, signal, sys
from trunkline.transports.stdio import Child
from trunkline.transports.warden import Warden

# Whoever runs the tests in the background of a shell has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main(children):
    env = {"ROLL": os.environ["ROLL"]}
    started = [await Child.start(argv, env=env) for argv in children]
    if sys.argv[2] == "end":
        await started[0].receive()
        await started[0].receive()
    pid = Warden.of(asyncio.get_running_loop()).pid
    while sys.argv[2] == "stay":
        print(pid, flush=True)
        before = pid
        while pid in (before, None):
            await asyncio.sleep(0.001)
            pid = Warden.of(asyncio.get_running_loop()).pid

asyncio.run(main(json.loads(sys.argv[1])))
"""

FAMILY = {
    "plain": "sign('plain'); stay()",
    "grandchild": "os.fork() or (sign('grandchild'), stay()); stay()",
    "orphan": "os.fork() or (os.setsid(), sign('orphan'), stay()); stay()",
    "own group": "os.fork() or (os.setpgid(0, 0), sign('group'), stay()); stay()",
}
TOKEN = secrets.token_hex()
"""Known to nobody else: who carries it is killed, whoever may be running these tests, too."""

DEAF = "os.fork() or os.setsid(); deaf(); sign('deaf'); stay()"


def launch(*argv: str, **env: str) -> "Popen[bytes]":
    return Popen(argv, env=env, stdin=PIPE, start_new_session=True)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what makes no event."""
    while not condition():
        await asyncio.sleep(0)


@asynccontextmanager
async def gateway(roll: Roll, *codes: str, then: str = "stay") -> AsyncGenerator[Process]:
    """Run a process with children, as the gateway is one; it is killed if it is still there."""
    children = json.dumps([script(code) for code in codes])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", GATEWAY, children, then),
        env={**os.environ, **roll.env},
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


async def warden_of(process: Process) -> int:
    """Return the number of the warden that a gateway has, or has now."""
    assert process.stdout is not None
    return int(await process.stdout.readline())


async def gone(pid: int) -> None:
    """Wait until a process, whoever's child it is, has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(handle, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(handle)
    os.close(handle)


# When a child is over


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
@spotless
async def test_grandchildren_are_ended_wherever_they_went(code: str, tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll:
        child = await Child.start([*SHELL, SIGN + code], env=roll.env, grace=0.02)
        await roll.signed(4 if "fork" in code else 1)
        await child.aclose()
        await roll.ended()


@pytest.mark.parametrize("move", ["", "os.setpgid(0, 0), "])
@spotless
async def test_a_session_is_ended_though_it_has_forgotten_its_token(
    move: str, tmp_path: Path
) -> None:
    async with rolling(tmp_path) as roll:
        code = f"os.execve(sys.executable, {script('deaf(); sign(1); stay()')}, {roll.env})"
        child = await Child.start(script(f"os.fork() or ({move}{code}); stay()"), grace=0.02)
        await roll.signed()
        await child.aclose()
        await roll.ended()


@spotless
async def test_one_who_escaped_cannot_keep_a_channel_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.transports.stdio._LAST_WORDS", 0.05)
    async with rolling(tmp_path) as roll:
        # Neither its group nor its environment shows whose it is. It holds all three pipes.
        code = f"os.setsid(), os.execve(sys.executable, {script('sign(1); stay()')}, {roll.env})"
        child = await Child.start(script(f"os.fork() or ({code}); print(input())"))
        escaped = await roll.signed()
        await child.send(b"2")
        sending = asyncio.create_task(child.send(b"x" * 1_000_000))
        assert [await child.receive(), await child.receive()] == [b"2", None]
        with pytest.raises(ConnectionLost):
            await sending
        assert await child.wait() == 0
        await child.aclose()
        os.kill(escaped["1"], signal.SIGKILL)
        await roll.ended()


@pytest.mark.parametrize("missing", ["os.pidfd_open", "trunkline.transports.stdio.processes"])
@spotless
async def test_children_are_ended_with_less_help_from_the_system_too(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown(_: int) -> int:
        raise OSError("no such system call")

    def nobody() -> list[int]:
        return []

    monkeypatch.setattr(missing, unknown if "pidfd" in missing else nobody)
    async with rolling(tmp_path) as roll:
        code = "os.fork() or (deaf(), sign('a'), stay()); input(); sys.exit(7)"
        child = await Child.start(script(code), env=roll.env)
        await roll.signed()
        await child.send(b"")
        assert await child.wait() == 7
        await roll.ended()
        await child.aclose()


# When the gateway is over


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@spotless
async def test_nobody_survives_a_gateway_that_is_killed(number: int, tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll, gateway(roll, *FAMILY.values()) as process:
        guard = await warden_of(process)
        await roll.signed(len(FAMILY))
        os.killpg(process.pid, number)  # as Ctrl-C does
        await process.wait()
        await roll.ended()
        await gone(guard)


@spotless
async def test_those_who_do_not_want_to_end_do_not_survive_it_either(tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll, gateway(roll, DEAF) as process:
        guard = await warden_of(process)
        await roll.signed(2)
        process.kill()
        await roll.ended()
        await gone(guard)


@spotless
async def test_nobody_survives_an_event_loop_that_ends_without_closing(tmp_path: Path) -> None:
    code = "os.fork() or os.setsid(); deaf(); sign('a'); print(1, flush=True); stay()"
    async with rolling(tmp_path) as roll, gateway(roll, code, then="end") as process:
        await roll.signed(2)
        await roll.ended()
        assert await process.wait() == 0


@spotless
async def test_a_child_learns_of_the_death_of_its_parent_without_the_warden(
    tmp_path: Path,
) -> None:
    async with rolling(tmp_path) as roll, gateway(roll, FAMILY["plain"]) as process:
        guard = await warden_of(process)
        await roll.signed()
        os.kill(guard, signal.SIGSTOP)
        process.kill()
        await roll.ended()
        os.kill(guard, signal.SIGCONT)
        await gone(guard)


@spotless
async def test_a_warden_that_dies_is_replaced_by_one_that_knows_as_much(tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll, gateway(roll, *FAMILY.values()) as process:
        await roll.signed(len(FAMILY))
        guard = await warden_of(process)
        for _ in range(3):
            os.kill(guard, signal.SIGKILL)
            guard = await warden_of(process)
        process.kill()
        await roll.ended()
        await gone(guard)


@spotless
async def test_a_gateway_in_a_gateway_ends_with_all_its_children(tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll:
        children = json.dumps([script(code) for code in FAMILY.values()])
        argv = [sys.executable, "-c", GATEWAY, children, "stay"]
        env = {**roll.env, "PYTHONPATH": str(Path(warden.__file__).parents[2])}
        child = await Child.start(argv, env=env, grace=0.02)
        guard = int(await child.receive() or b"")
        await roll.signed(len(FAMILY))
        await child.aclose()  # which must not take the other gateway's warden for a stray
        await roll.ended()
        await gone(guard)


# The process


def test_a_book_tells_the_group_of_each_token() -> None:
    book: dict[bytes, int] = {}
    for line in (b"+0 a", b"+12 a", b"+13 b", b"-12", b"+14 c", b"-99", b"+0 d", b"-0"):
        note(book, line)
    for line in (b"", b"+", b"-", b"+x y", b"+15", b"-x", b"16 e", b"+-1 f", b"+1\xb2 g"):
        note(book, line)
    assert book == {b"b": 13, b"c": 14}


def test_a_book_is_read_to_the_end_however_it_is_cut() -> None:
    reading, writing = os.pipe()
    for part in (b"+1", b"2 a\n+13", b" b\n-12\n+14 unfini"):
        os.write(writing, part)
    os.close(writing)
    assert read_book(reading) == {b"b": 13}
    os.close(reading)


@asynccontextmanager
async def group(
    token: str, roll: Roll, code: str = "deaf(); sign('a'); stay()"
) -> AsyncGenerator["Popen[bytes]"]:
    """Start a process in a group of its own."""
    argv = script(code)
    with launch(*argv, **roll.env, **{warden.VARIABLE: token}) as process:
        try:
            await roll.signed()
            yield process
        finally:
            process.kill()


@spotless
async def test_the_registered_are_ended_and_nobody_else(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    async with (
        rolling(tmp_path / "a") as first,
        rolling(tmp_path / "b") as second,
        rolling(tmp_path / "c") as third,
        group("", first, "sign('a'); stay()") as by_group,
        group(TOKEN, second, "sign('a'); stay()") as by_token,
        group(TOKEN + "0", third) as spared,  # a token is a whole token
    ):
        guard = launch(sys.executable, "-I", "-S", "-E", warden.__file__)
        lines = f"+{by_group.pid} x{TOKEN}\n+0 {TOKEN}\n+{spared.pid} {TOKEN}0\n-{spared.pid}\n"
        guard.communicate(lines.encode())
        assert guard.returncode == 0
        await first.ended()
        await second.ended()
        assert (by_group.wait(), by_token.wait(), spared.poll()) == (-15, -15, None)


def test_our_own_group_and_everybody_are_never_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    def killpg(group: int, number: int) -> None:
        raise AssertionError(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    end_all({f"a{TOKEN}".encode(): 0, f"b{TOKEN}".encode(): 1})


@spotless
async def test_a_group_that_was_seen_empty_is_not_signalled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signals: list[tuple[int, int]] = []

    def killpg(group: int, number: int) -> None:
        signals.append((group, number))

    monkeypatch.setattr(os, "killpg", killpg)
    monkeypatch.setattr(warden, "GIVE_UP", 0.1)
    async with rolling(tmp_path) as roll, group("", roll) as living:
        dead = launch("true")
        dead.communicate()
        end_all({b"x" + TOKEN.encode(): living.pid, TOKEN.encode(): dead.pid}, grace=0.05)
        assert (dead.pid, signal.SIGTERM) in signals
        assert (dead.pid, signal.SIGKILL) not in signals
        assert (living.pid, signal.SIGKILL) in signals


@spotless
async def test_groups_are_ended_where_processes_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nobody() -> list[int]:
        return []

    monkeypatch.setattr(warden, "processes", nobody)
    monkeypatch.setattr(warden, "GIVE_UP", 0.1)  # until it is reaped, it seems to be there
    async with rolling(tmp_path) as roll, group("", roll) as process:
        end_all({TOKEN.encode(): process.pid}, grace=0.02)
        assert process.wait() == -signal.SIGKILL
        await roll.ended()


def test_the_dead_and_strangers_are_no_kin() -> None:
    zombie = launch("true")
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert kinship(zombie.pid, {zombie.pid}, []) is None
    zombie.communicate()
    assert kinship(zombie.pid, {zombie.pid}, []) is None
    assert kinship(os.getpid(), {zombie.pid}, [b"no such token"]) is None
    assert kinship(os.getpid(), {os.getsid(0)}, []) == (os.getsid(0), os.getpgid(0))
    assert os.getpid() in find({os.getsid(0)}, [])


# The gateway's side


def here() -> Warden:
    return Warden.of(asyncio.get_running_loop())


@spotless
async def test_there_is_one_warden_while_there_are_children_and_none_otherwise() -> None:
    assert here().pid is None
    first, second = await Child.start(["cat"]), await Child.start(["cat"])
    guard = here().pid or 0
    assert os.getsid(guard) == guard
    await first.aclose()
    assert here().pid == guard
    await second.aclose()
    assert here().pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(guard, 0)
    with pytest.raises(ChildFailed):
        await Child.start(["no-such-command"])
    assert here().pid is None


@spotless
async def test_a_warden_holds_nothing_but_its_pipe_and_heeds_no_signal() -> None:
    file = os.dup(0)
    os.set_inheritable(file, True)
    child = await Child.start(["cat"])
    guard = here().pid or 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        os.kill(guard, number)
    process = Path(f"/proc/{guard}")
    await until(lambda: {path.name for path in (process / "fd").iterdir()} == {"0", "1", "2"})
    assert [(process / "fd" / name).readlink() for name in "12"] == [Path(os.devnull)] * 2
    assert (process / "environ").read_bytes().count(b"=") == ("LD_LIBRARY_PATH" in os.environ)
    assert here().pid == guard
    os.close(file)
    await child.aclose()


@spotless
async def test_a_warden_is_told_who_comes_and_who_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bytes] = []
    write = os.write

    def listen(pipe: int, line: bytes) -> int:
        said.append(line)
        return write(pipe, line)

    monkeypatch.setattr(os, "write", listen)
    first, second = await Child.start(["cat"]), await Child.start(["cat"])
    await first.aclose()
    with pytest.raises(ChildFailed):
        await Child.start(["no-such-command"])
    await second.aclose()
    said = [line.split()[0] for line in said]
    groups = [b"+%d" % first.pid, b"+0", b"+%d" % second.pid, b"-%d" % first.pid]
    assert said == [b"+0", *groups, b"+0", b"-0"]


@spotless
async def test_a_warden_that_does_not_read_is_replaced() -> None:
    child = await Child.start(["cat"])
    stuck = here().pid or 0
    os.kill(stuck, signal.SIGSTOP)
    while here().pid == stuck:
        here().register("token")
        here().unregister("token")
    await until(lambda: here().pid is not None)
    await child.aclose()


@spotless
async def test_no_child_is_started_without_a_warden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ChildFailed, match=r"watch over it .*can '/no/such/python' be run\?"):
        await Child.start(["cat"])


@spotless
async def test_a_warden_that_cannot_be_replaced_now_is_replaced_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = await Child.start(["cat"])
    first, attempts = here().pid or 0, 0

    def spawn(*args: object, **options: object) -> int:
        nonlocal attempts
        attempts += 1
        raise OSError("too many processes")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_spawn", spawn)
        os.kill(first, signal.SIGKILL)
        await until(lambda: attempts == 2)
        here().register("token", child.pid)  # it runs: there is nobody to complain to
    here().unregister("token")
    await until(lambda: here().pid is not None)
    await child.aclose()
