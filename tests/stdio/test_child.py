"""Child processes as transports: input, output, how they end, and that nothing is left behind."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import pytest
import uvloop

from tests.tasks import LoopClock, hang_guard, is_stuck, settle, stop
from trunkline.jsonrpc import Connection, ConnectionLost, Peer, RemoteProtocolError, from_raw
from trunkline.stdio import child as child_module
from trunkline.stdio.child import ChildProcess
from trunkline.stdio.stderr_log import StderrLog

P = ParamSpec("P")
Test = Callable[P, Coroutine[Any, Any, None]]

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
WRITE_MUCH = "import os\nfor n in range(400): os.write(1, b'x' * 99_999 + b'\\n')\n"
SIGN = """
import os, signal, sys
def sign(name):
    global signs  # held open until this process ends
    signs = os.open(os.environ["ROLL"], os.O_WRONLY)
    os.write(signs, f"{name} {os.getpid()}\\n".encode())
def stay():
    while True: signal.pause()
def deaf(): signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""

FAMILY = """
if os.fork(): stay()
signal.signal(signal.SIGTERM, lambda *_: sign('told'))
sign('began')
stay()
"""
"""A parent that dies of SIGTERM, and its child that signs when it gets the signal, and stays."""


def python(code: str) -> list[str]:
    """Return the command that runs `code` with a fast interpreter start."""
    return [sys.executable, "-I", "-S", "-c", code]


def script(code: str) -> list[str]:
    return python(SIGN + code)


class LifeSigns:
    """A named pipe that processes sign and hold open; it ends with the last of them."""

    def __init__(self, path: Path, reader: asyncio.StreamReader) -> None:
        self.env = {"ROLL": str(path)}
        self._reader = reader

    async def signed(self, count: int = 1) -> dict[str, int]:
        """Wait for `count` processes to sign; return their names and ids."""
        lines = [(await self._reader.readline()).split() for _ in range(count)]
        return {name.decode(): int(pid) for name, pid in lines}

    async def ended(self) -> None:
        """Wait until all have ended."""
        assert await self._reader.read() == b""


@asynccontextmanager
async def open_life_signs(path: Path) -> AsyncGenerator[LifeSigns]:
    os.mkfifo(path / "signs")
    reader = asyncio.StreamReader()
    file = os.fdopen(os.open(path / "signs", os.O_RDONLY | os.O_NONBLOCK), "rb", 0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield LifeSigns(path / "signs", reader)
    finally:
        transport.close()


def descriptors() -> set[str]:
    with os.scandir("/proc/self/fd") as entries:
        return {entry.name for entry in entries if Path(entry.path).exists()}


def child_pids() -> set[str]:
    """Return all child processes, reaped ones excluded."""
    found: set[str] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            if stat.read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                found.add(stat.parent.name)
    return found


def leaves_nothing_behind(test: Test[P]) -> Test[P]:
    """Check that a test leaves no task, no process, no zombie and no open file behind."""

    @wraps(test)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        before = asyncio.all_tasks(), child_pids(), descriptors()
        async with hang_guard():
            await test(*args, **kwargs)
        await settle()
        assert (asyncio.all_tasks(), child_pids(), descriptors()) == before

    return run


# Payloads


@leaves_nothing_behind
async def test_lines_are_sent_to_a_child_and_received_from_it() -> None:
    child = await ChildProcess.start(python(ECHO))
    await child.send(b'{"a":1}')
    await child.send(b"2\r")
    assert [await child.receive(), await child.receive()] == [b'{"a":1}', b"2"]
    assert child.returncode is None
    await child.aclose()
    assert (child.returncode, await child.wait()) == (0, 0)


@leaves_nothing_behind
async def test_a_line_of_5_mib_is_sent_both_ways() -> None:
    child = await ChildProcess.start(["cat"])
    line = os.urandom(5 * 2**19).hex().encode()
    sending = asyncio.create_task(child.send(line))
    assert await child.receive() == line
    await sending
    await child.aclose()


@leaves_nothing_behind
async def test_a_line_too_long_is_reported_and_the_next_one_received() -> None:
    child = await ChildProcess.start(python("print('x' * (16 * 2**20 + 1)); print(1)"))
    with pytest.raises(RemoteProtocolError, match="16777216"):
        await child.receive()
    assert await child.receive() == b"1"
    await child.aclose()


@pytest.mark.holds("O0.17")
@leaves_nothing_behind
async def test_a_call_is_answered_though_the_child_prints_garbage() -> None:
    answer = '{"jsonrpc":"2.0","id":%d,"result":5}'
    code = f"""
import json
print("Welcome!\\n\\n\\x00\\xff{{")
print({answer!r} % json.loads(input())["id"])
print("Bye", end="")
"""
    child = await ChildProcess.start([sys.executable, "-I", "-c", code])
    async with Connection(child, peer=Peer(reply_to_violations=False)) as connection:
        assert from_raw(await connection.call("m"), int) == 5
        await connection.wait_ended()
    assert await child.wait() == 0


@leaves_nothing_behind
async def test_send_waits_while_the_child_does_not_read_and_loses_nothing() -> None:
    code = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
for line in sys.stdin: print(len(line), flush=True)
"""
    child = await ChildProcess.start(script(code))
    assert await child.receive() == b"ready"
    sent: list[int] = []

    async def flood() -> None:
        while True:
            sent.append(50_000 + len(sent))
            await child.send(b"x" * (sent[-1] - 1))

    flooding = asyncio.create_task(flood())
    assert await is_stuck(flooding)
    await stop(flooding)  # cancels the wait, not the write
    assert len(sent) < 10
    os.kill(child.pid, signal.SIGUSR1)
    for size in sent:
        assert await child.receive() == b"%d" % size
    await child.send(b"12")
    assert await child.receive() == b"3"
    await child.aclose()


async def written_until_stuck(child: ChildProcess) -> int:
    """Wait until a child blocks on a full pipe; return how much it has written."""
    process = Path(f"/proc/{child.pid}")
    state, written = "", 0
    while state != "S" or written < 100_000:
        await asyncio.sleep(0)
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        written = int((process / "io").read_text().split()[3])
    return written


@leaves_nothing_behind
async def test_a_child_blocks_while_its_output_is_not_received() -> None:
    child = await ChildProcess.start(python(WRITE_MUCH))
    assert await written_until_stuck(child) < 2_000_000
    for _ in range(400):
        assert len(await child.receive() or b"") == 99_999
    assert await child.receive() is None
    await child.aclose()


@pytest.mark.holds("M6")
@leaves_nothing_behind
async def test_ten_mebibytes_on_stderr_block_nothing_and_the_last_lines_are_kept() -> None:
    code = """
import sys
for n in range(10 * 2**20 // 64): print(f"{n:063}", file=sys.stderr)
print("x" * 9999 + "\\r\\n\\xe9\\r\\nlast", end="", file=sys.stderr, flush=True)
input()
print(1, flush=True)
"""
    child = await ChildProcess.start([sys.executable, "-I", "-X", "utf8", "-c", code])
    await child.send(b"")
    await child.send(b"")
    assert await child.receive() == b"1"
    await child.wait()
    tail = child.stderr_tail()
    assert tail[-3:] == ("x" * child_module.MAX_STDERR_LINE_BYTES + "…", "é", "last")
    assert tail[-4] == f"{10 * 2**20 // 64 - 1:063}"
    assert 100 < len(tail) <= child_module.MAX_STDERR_LINES + 1
    await child.aclose()
    assert child.stderr_tail() == tail


@leaves_nothing_behind
async def test_the_kept_lines_and_bytes_of_stderr_are_configurable() -> None:
    code = "import sys\nfor n in range(99): print(str(n) * 2000, file=sys.stderr)"
    for lines, kept in ((0, []), (2, [97, 98]), (1000, list(range(83, 99)))):
        child = await ChildProcess.start(python(code), max_stderr_lines=lines)
        await child.wait()
        assert child.stderr_tail() == tuple(str(n) * 2000 for n in kept)
        await child.aclose()


# Starting and ending


@pytest.mark.parametrize("steps", range(8))
@leaves_nothing_behind
async def test_a_cancelled_start_leaves_nothing_behind(steps: int, tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs:
        code = "deaf(); os.fork() or os.setsid(); sign('a'); stay()"
        starting = asyncio.create_task(
            ChildProcess.start(script(code), env=signs.env, exit_timeout=0.02)
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            await (await starting).aclose()


@leaves_nothing_behind
async def test_all_output_of_a_child_that_exits_is_received() -> None:
    code = "import sys; print('1\\n' * 100_000 + '2', end=''); sys.exit('oh no')"
    child = await ChildProcess.start(python(code))
    for _ in range(100_000):
        assert await child.receive() == b"1"
    assert await child.receive() == b"2"
    assert [await child.receive(), await child.receive()] == [None, None]
    assert (await child.wait(), child.returncode) == (1, 1)
    assert child.stderr_tail() == ("oh no",)
    with pytest.raises(ConnectionLost, match=r"python.* has ended \(exit code 1\)"):
        await child.send(b"3")
    await child.aclose()


@leaves_nothing_behind
async def test_output_written_before_the_first_receive_is_received() -> None:
    child = await ChildProcess.start(python("print('1\\n' * 9000, end='')"))
    assert await child.wait() == 0
    for _ in range(9000):
        assert await child.receive() == b"1"
    assert await child.receive() is None
    await child.aclose()


@pytest.mark.holds("O0.17")
@leaves_nothing_behind
async def test_a_call_is_lost_when_the_child_dies() -> None:
    child = await ChildProcess.start(python("input(); import os; os.abort()"))
    async with Connection(child) as connection:
        with pytest.raises(ConnectionLost):
            await connection.call("m")
    assert await child.wait() == -signal.SIGABRT


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
        ("import os, signal; os.close(1); signal.pause()", "it closed its stdout"),
    ],
)
@leaves_nothing_behind
async def test_calls_that_are_lost_say_how_the_child_has_ended(code: str, reason: str) -> None:
    if reason != "it closed its stdout":
        LoopClock()  # the gateway waits for the exit, however slow the machine is
    child = await ChildProcess.start(python(f"input(); {code}"), exit_timeout=0.02)
    assert child.end_reason() is None
    async with Connection(child) as connection:
        with pytest.raises(ConnectionLost, match=re.escape(f"has ended ({reason})")):
            await connection.call("m")
        with pytest.raises(ConnectionLost, match=re.escape(f"has ended ({reason})")):
            await connection.call("m")
    assert child.end_reason() == reason


@leaves_nothing_behind
async def test_a_send_that_fails_says_how_the_child_has_ended() -> None:
    LoopClock()  # the gateway waits for the exit, however slow the machine is
    code = "import os, signal; os.close(0); print(1, flush=True); signal.pause()"
    child = await ChildProcess.start(python(code))
    assert await child.receive() == b"1"
    sending = asyncio.create_task(child.send(b"x" * 1_000_000))
    await settle()
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ConnectionLost, match="killed by SIGKILL"):
        await sending
    await child.aclose()


@leaves_nothing_behind
async def test_a_child_that_is_closed_did_not_end_by_itself() -> None:
    child = await ChildProcess.start(python("input()"))
    await child.aclose()
    assert await child.wait() == 1
    assert child.end_reason() is None


@leaves_nothing_behind
async def test_text_on_stdout_is_kept_with_the_lines_of_stderr() -> None:
    message = '{"jsonrpc":"2.0","method":"x"}'
    code = f"print('[INFO] Hello\\n' * 29 + '{{\"level\": 1}}'); print('''{message}''')"
    stray: list[str] = []
    child = await ChildProcess.start(
        python(code), stderr_log=StderrLog(), on_stray_output=stray.append
    )
    while await child.receive() is not None:
        pass
    await child.wait()
    assert child.stderr_tail() == ("stdout, not JSON-RPC: [INFO] Hello",) * 20
    assert stray == [*["[INFO] Hello"] * 29, '{"level": 1}']


@pytest.mark.parametrize("end", ["pass", "sys.stdin.read()"])
@leaves_nothing_behind
async def test_text_on_stdout_that_was_not_received_is_kept_when_the_child_is_closed(
    end: str,
) -> None:
    log, stray = StderrLog(), list[str]()
    code = f"import sys; print('usage: fs DIR', flush=True); {end}; "
    code += """print('{"jsonrpc":1}\\nbye', end='')"""
    child = await ChildProcess.start(python(code), stderr_log=log, on_stray_output=stray.append)
    if end == "pass":
        await child.wait()
    await child.aclose()
    assert child.stderr_tail() == (
        "stdout, not JSON-RPC: usage: fs DIR",
        "stdout, not JSON-RPC: bye",
    )
    assert stray == []
    await child.aclose()


@leaves_nothing_behind
async def test_the_lines_of_stderr_also_go_to_a_log() -> None:
    log = StderrLog()
    code = "import sys; print('a\\nb', end='', file=sys.stderr)"
    for _ in range(2):
        child = await ChildProcess.start(python(code), stderr_log=log)
        await child.wait()
        await child.aclose()
    assert [line.text for line in log.read()] == ["a", "b"] * 2
    assert len({line.pid for line in log.read()}) == 2


@pytest.mark.parametrize("end", ["it dies", "it closes its input", "it is closed"])
@leaves_nothing_behind
async def test_a_blocked_send_fails_when_the_child_ends(end: str) -> None:
    code = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); print(1, flush=True); "
    code += "signal.sigwait([signal.SIGUSR1]); os.close(0); stay()"
    child = await ChildProcess.start(script(code), exit_timeout=0.02)
    assert await child.receive() == b"1"
    sending = asyncio.create_task(child.send(b"x" * 1_000_000))
    assert await is_stuck(sending)
    if end == "it is closed":
        await child.aclose()
    else:
        os.kill(child.pid, signal.SIGKILL if end == "it dies" else signal.SIGUSR1)
    with pytest.raises(ConnectionLost, match=r"child .*python"):
        await sending
    with pytest.raises(
        ConnectionLost, match="is closed" if end == "it is closed" else "not read its input|SIGKILL"
    ):
        await child.send(b"2")
    await child.aclose()


@pytest.mark.holds("O0.17")
@leaves_nothing_behind
async def test_descendants_of_an_ended_child_are_ended(tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs:
        # The child ends when its own child has signed.
        code = "r, w = os.pipe()\nos.fork() and os._exit(len(os.read(r, 1)) - 1)\n"
        code += "sign('a'); os.write(w, b'x'); stay()"
        child = await ChildProcess.start(script(code), env=signs.env)
        assert await child.receive() is None
        assert await child.wait() == 0
        await signs.signed()
        await signs.ended()
        await child.aclose()


@leaves_nothing_behind
async def test_closing_lets_a_child_process_what_it_was_sent() -> None:
    # It ends with its input, after writing output that is no longer read.
    code = WRITE_MUCH + "import sys; sys.exit(len(sys.stdin.read()) // 1000)"
    child = await ChildProcess.start(python(code), exit_timeout=10)
    await written_until_stuck(child)
    sending = asyncio.create_task(child.send(b"x" * 199_999))
    assert await is_stuck(sending)
    await asyncio.gather(child.aclose(), child.aclose())
    assert child.returncode == 200
    await asyncio.wait([sending])
    await child.aclose()
    assert await child.receive() is None
    with pytest.raises(ConnectionLost, match="is closed"):
        await child.send(b"1")


@pytest.mark.holds("O0.17")
@leaves_nothing_behind
async def test_all_processes_get_sigterm_once_and_time_to_exit(tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs:
        # Its parent dies of the same signal at once; the child must still get its time.
        clock = LoopClock(runs=True)
        child = await ChildProcess.start(script(FAMILY), env=signs.env, exit_timeout=600.0)
        await signs.signed()
        closing = asyncio.create_task(child.aclose())
        await clock.advance(600.0)
        assert list(await signs.signed()) == ["told"]
        await clock.advance(600.0)
        await closing
        await signs.ended()
    assert child.returncode == -signal.SIGTERM


@pytest.mark.holds("O0.17")
@leaves_nothing_behind
async def test_descendants_are_killed_after_a_long_pause_of_this_process(tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs:
        clock = LoopClock(runs=True)
        child = await ChildProcess.start(script(FAMILY), env=signs.env, exit_timeout=600.0)
        await signs.signed()
        os.kill(child.pid, signal.SIGKILL)
        assert list(await signs.signed()) == ["told"]
        await clock.advance(3600.0)
        await signs.ended()
        await child.aclose()


@leaves_nothing_behind
async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs:
        child = await ChildProcess.start(
            script("deaf(); sign('a'); stay()"), env=signs.env, exit_timeout=0.02
        )
        await signs.signed()
        await child.aclose()
        await signs.ended()
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("steps", [0, 2, 20])
@leaves_nothing_behind
async def test_cancelling_close_kills_at_once(steps: int, tmp_path: Path) -> None:
    async with open_life_signs(tmp_path) as signs:
        code = "deaf(); os.fork() or os.setsid(); sign('a'); stay()"
        child = await ChildProcess.start(script(code), env=signs.env, exit_timeout=60)
        await signs.signed(2)
        closing = asyncio.create_task(child.aclose())
        await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        await stop(closing)
        await signs.ended()
        assert await child.wait() == -signal.SIGKILL
        await child.aclose()


@leaves_nothing_behind
async def test_a_hundred_children_start_and_end_one_after_another() -> None:
    for _ in range(100):
        child = await ChildProcess.start(["cat"])
        await child.send(b"1")
        assert await child.receive() == b"1"
        await child.aclose()
        assert child.returncode == 0


@leaves_nothing_behind
async def test_many_children_run_and_end_concurrently() -> None:
    children = await asyncio.gather(*(ChildProcess.start(["cat"]) for _ in range(20)))
    for number, child in enumerate(children):
        await child.send(b"%d" % number)
    assert [await child.receive() for child in children] == [b"%d" % n for n in range(20)]
    await asyncio.gather(*(child.aclose() for child in children))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_start_can_be_cancelled_at_every_step(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def cancel_after(steps: int) -> None:
        starting = asyncio.create_task(ChildProcess.start(["cat"]))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        await starting

    with asyncio.Runner(loop_factory=new_loop) as runner:
        for steps in range(4):
            with pytest.raises(asyncio.CancelledError):
                runner.run(cancel_after(steps))
