"""Children as Channels: what they say and hear, how they end, and that nothing of them remains."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import pytest
import uvloop

from tests.jsonrpc.test_channel import is_stuck, settle, stop
from trunkline.jsonrpc import Connection, ConnectionLost, Peer, RemoteProtocolError, from_raw
from trunkline.transports import stdio
from trunkline.transports.stdio import Child

P = ParamSpec("P")
Test = Callable[P, Coroutine[Any, Any, None]]

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
TALK = "import os\nfor n in range(400): os.write(1, b'x' * 99_999 + b'\\n')\n"
SIGN = """
import os, signal, sys
def sign(name):
    global roll  # held open from now on, to the end of this process
    roll = os.open(os.environ["ROLL"], os.O_WRONLY)
    os.write(roll, f"{name} {os.getpid()}\\n".encode())
def stay():
    while True: signal.pause()
def deaf(): signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


def python(code: str) -> list[str]:
    """Return the command that runs `code`, without what makes an interpreter slow to start."""
    return [sys.executable, "-I", "-S", "-c", code]


def script(code: str) -> list[str]:
    return python(SIGN + code)


class Roll:
    """Who is alive: all who sign it hold it open, and it ends when the last of them is gone."""

    def __init__(self, path: Path, reader: asyncio.StreamReader) -> None:
        self.env = {"ROLL": str(path)}
        self._reader = reader

    async def signed(self, count: int = 1) -> dict[str, int]:
        """Wait for so many to sign; return their names and process numbers."""
        lines = [(await self._reader.readline()).split() for _ in range(count)]
        return {name.decode(): int(pid) for name, pid in lines}

    async def ended(self) -> None:
        """Wait until all are gone."""
        assert await self._reader.read() == b""


@asynccontextmanager
async def rolling(path: Path) -> AsyncGenerator[Roll]:
    os.mkfifo(path / "roll")
    reader = asyncio.StreamReader()
    file = os.fdopen(os.open(path / "roll", os.O_RDONLY | os.O_NONBLOCK), "rb", 0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield Roll(path / "roll", reader)
    finally:
        transport.close()


def descriptors() -> set[str]:
    with os.scandir("/proc/self/fd") as entries:
        return {entry.name for entry in entries if Path(entry.path).exists()}


def offspring() -> set[str]:
    """Return all processes that this one has started and not reaped."""
    found: set[str] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            if stat.read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                found.add(stat.parent.name)
    return found


def spotless(test: Test[P]) -> Test[P]:
    """Let a test leave no task, no process, not even a zombie, and no open file behind."""

    @wraps(test)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        before = asyncio.all_tasks(), offspring(), descriptors()
        async with asyncio.timeout(40):
            await test(*args, **kwargs)
        await settle()
        assert (asyncio.all_tasks(), offspring(), descriptors()) == before

    return run


# Payloads


@spotless
async def test_lines_go_to_a_child_and_come_back() -> None:
    child = await Child.start(python(ECHO))
    await child.send(b'{"a":1}')
    await child.send(b"2\r")
    assert [await child.receive(), await child.receive()] == [b'{"a":1}', b"2"]
    assert child.returncode is None
    await child.aclose()
    assert (child.returncode, await child.wait()) == (0, 0)


@spotless
async def test_a_line_of_five_mebibytes_goes_both_ways() -> None:
    child = await Child.start(["cat"])
    line = os.urandom(5 * 2**19).hex().encode()
    sending = asyncio.create_task(child.send(line))
    assert await child.receive() == line
    await sending
    await child.aclose()


@spotless
async def test_a_line_too_long_is_reported_and_the_next_one_received() -> None:
    child = await Child.start(python("print('x' * (16 * 2**20 + 1)); print(1)"))
    with pytest.raises(RemoteProtocolError, match="16777216"):
        await child.receive()
    assert await child.receive() == b"1"
    await child.aclose()


@spotless
async def test_a_call_is_answered_though_the_child_prints_garbage() -> None:
    answer = '{"jsonrpc":"2.0","id":%d,"result":5}'
    code = f"""
import json
print("Welcome!\\n\\n\\x00\\xff{{")
print({answer!r} % json.loads(input())["id"])
print("Bye", end="")
"""
    child = await Child.start([sys.executable, "-I", "-c", code])
    async with Connection(child, peer=Peer(answer_violations=False)) as connection:
        assert from_raw(await connection.call("m"), int) == 5
        await connection.wait_ended()
    assert await child.wait() == 0


@spotless
async def test_send_waits_while_the_child_does_not_read_and_loses_nothing() -> None:
    code = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
for line in sys.stdin: print(len(line), flush=True)
"""
    child = await Child.start(script(code))
    assert await child.receive() == b"ready"
    sent: list[int] = []

    async def flood() -> None:
        while True:
            sent.append(50_000 + len(sent))
            await child.send(b"x" * (sent[-1] - 1))

    flooding = asyncio.create_task(flood())
    assert await is_stuck(flooding)
    await stop(flooding)  # the waiting, not the payload
    assert len(sent) < 10
    os.kill(child.pid, signal.SIGUSR1)
    for size in sent:
        assert await child.receive() == b"%d" % size
    await child.send(b"12")
    assert await child.receive() == b"3"
    await child.aclose()


async def written_until_stuck(child: Child) -> int:
    """Wait until a child sleeps because nobody reads; return how much it has written."""
    process = Path(f"/proc/{child.pid}")
    state, written = "", 0
    while state != "S" or written < 100_000:
        await asyncio.sleep(0)
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        written = int((process / "io").read_text().split()[3])
    return written


@spotless
async def test_a_child_that_nobody_receives_from_has_to_wait() -> None:
    child = await Child.start(python(TALK))
    assert await written_until_stuck(child) < 2_000_000
    for _ in range(400):
        assert len(await child.receive() or b"") == 99_999
    assert await child.receive() is None
    await child.aclose()


@spotless
async def test_ten_mebibytes_on_stderr_block_nothing_and_the_last_lines_are_kept() -> None:
    code = """
import sys
for n in range(10 * 2**20 // 64): print(f"{n:063}", file=sys.stderr)
print("x" * 9999 + "\\r\\n\\xe9\\r\\nlast", end="", file=sys.stderr, flush=True)
input()
print(1, flush=True)
"""
    child = await Child.start([sys.executable, "-I", "-X", "utf8", "-c", code])
    await child.send(b"")
    await child.send(b"")
    assert await child.receive() == b"1"
    await child.wait()
    tail = child.stderr_tail()
    assert tail[-3:] == ("x" * stdio.STDERR_LINE + "…", "é", "last")
    assert tail[-4] == f"{10 * 2**20 // 64 - 1:063}"
    assert 100 < len(tail) <= stdio.STDERR_LINES + 1
    await child.aclose()
    assert child.stderr_tail() == tail


@spotless
async def test_of_stderr_so_many_lines_and_bytes_are_kept_as_were_asked_for() -> None:
    code = "import sys\nfor n in range(99): print(str(n) * 2000, file=sys.stderr)"
    for lines, kept in ((0, []), (2, [97, 98]), (1000, list(range(83, 99)))):
        child = await Child.start(python(code), stderr_lines=lines)
        await child.wait()
        assert child.stderr_tail() == tuple(str(n) * 2000 for n in kept)
        await child.aclose()


# Starting and ending


@pytest.mark.parametrize("steps", range(8))
@spotless
async def test_a_start_that_is_cancelled_leaves_nothing(steps: int, tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll:
        code = "deaf(); os.fork() or os.setsid(); sign('a'); stay()"
        starting = asyncio.create_task(Child.start(script(code), env=roll.env, grace=0.02))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            await (await starting).aclose()


@spotless
async def test_a_child_that_ends_by_itself_is_heard_to_the_end() -> None:
    code = "import sys; print('1\\n' * 100_000 + '2', end=''); sys.exit('oh no')"
    child = await Child.start(python(code))
    for _ in range(100_000):
        assert await child.receive() == b"1"
    assert await child.receive() == b"2"
    assert [await child.receive(), await child.receive()] == [None, None]
    assert (await child.wait(), child.returncode) == (1, 1)
    assert child.stderr_tail() == ("oh no",)
    with pytest.raises(ConnectionLost, match=r"python.* has ended with exit code 1"):
        await child.send(b"3")
    await child.aclose()


@spotless
async def test_a_child_that_ends_before_anybody_listens_is_heard_too() -> None:
    child = await Child.start(python("print('1\\n' * 9000, end='')"))
    assert await child.wait() == 0
    for _ in range(9000):
        assert await child.receive() == b"1"
    assert await child.receive() is None
    await child.aclose()


@spotless
async def test_a_call_is_lost_when_the_child_dies() -> None:
    child = await Child.start(python("input(); import os; os.abort()"))
    async with Connection(child) as connection:
        with pytest.raises(ConnectionLost):
            await connection.call("m")
    assert await child.wait() == -signal.SIGABRT


@pytest.mark.parametrize("end", ["it dies", "it closes its input", "it is closed"])
@spotless
async def test_whoever_waits_for_room_is_told_of_the_end(end: str) -> None:
    code = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); print(1, flush=True); "
    code += "signal.sigwait([signal.SIGUSR1]); os.close(0); stay()"
    child = await Child.start(script(code), grace=0.02)
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
        ConnectionLost, match="is closed" if end == "it is closed" else "no more|-9"
    ):
        await child.send(b"2")
    await child.aclose()


@spotless
async def test_those_whom_a_child_leaves_behind_are_ended(tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll:
        child = await Child.start(script("os.fork() or (sign('a'), stay())"), env=roll.env)
        assert await child.receive() is None
        assert await child.wait() == 0
        await roll.signed()
        await roll.ended()
        await child.aclose()


@spotless
async def test_closing_lets_a_child_finish_what_it_was_sent() -> None:
    # It ends with its input, once it has got rid of an output that nobody wants any more.
    code = TALK + "import sys; sys.exit(len(sys.stdin.read()) // 1000)"
    child = await Child.start(python(code), grace=10)
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


@spotless
async def test_all_are_told_once_to_end_and_have_time_to_do_so(tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll:
        # Its parent dies of the same signal at once; it must have its time nevertheless.
        code = """
if os.fork(): stay()
signal.signal(signal.SIGTERM, lambda *_: sign('told'))
sign('began')
stay()
"""
        child = await Child.start(script(code), env=roll.env, grace=0.1)
        await roll.signed()
        await child.aclose()
        assert list(await roll.signed()) == ["told"]
        await roll.ended()
    assert child.returncode == -signal.SIGTERM


@spotless
async def test_a_child_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll:
        child = await Child.start(script("deaf(); sign('a'); stay()"), env=roll.env, grace=0.02)
        await roll.signed()
        await child.aclose()
        await roll.ended()
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("steps", [0, 2, 20])
@spotless
async def test_closing_that_is_cancelled_kills_at_once(steps: int, tmp_path: Path) -> None:
    async with rolling(tmp_path) as roll:
        code = "deaf(); os.fork() or os.setsid(); sign('a'); stay()"
        child = await Child.start(script(code), env=roll.env, grace=60)
        await roll.signed(2)
        closing = asyncio.create_task(child.aclose())
        await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        await stop(closing)
        await roll.ended()
        assert await child.wait() == -signal.SIGKILL
        await child.aclose()


@spotless
async def test_a_hundred_children_come_and_go() -> None:
    for _ in range(100):
        child = await Child.start(["cat"])
        await child.send(b"1")
        assert await child.receive() == b"1"
        await child.aclose()
        assert child.returncode == 0


@spotless
async def test_many_children_live_and_end_at_the_same_time() -> None:
    children = await asyncio.gather(*(Child.start(["cat"]) for _ in range(20)))
    for number, child in enumerate(children):
        await child.send(b"%d" % number)
    assert [await child.receive() for child in children] == [b"%d" % n for n in range(20)]
    await asyncio.gather(*(child.aclose() for child in children))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_start_that_is_cancelled_is_cancelled_at_whatever_step(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def cancel_after(steps: int) -> None:
        starting = asyncio.create_task(Child.start(["cat"]))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        await starting

    with asyncio.Runner(loop_factory=new_loop) as runner:
        for steps in range(4):
            with pytest.raises(asyncio.CancelledError):
                runner.run(cancel_after(steps))
