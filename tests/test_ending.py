"""How it ends: in order at the first signal, at once at the second, and nothing is left."""

import asyncio
import json
import os
import signal
import socket
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.samples import child, config, fetch, hello
from tests.test_app import HELLO, READY, ask, children, message, start
from trunkline import app as module
from trunkline.app import DEFAULT, App

TOOLS = child("small", "signal", "wait", "freeze")


class Pipes:
    """Two named pipes by which a tool says that it has begun, and is told to go on."""

    def __init__(self, folder: Path) -> None:
        self.arguments = {name: str(folder / name) for name in ("begun", "go")}
        for name in self.arguments.values():
            os.mkfifo(name)
        # Both ends: nobody who opens one has to wait for another.
        flags = os.O_RDWR | os.O_NONBLOCK
        self._begun, self._go = (os.open(name, flags) for name in self.arguments.values())

    async def begun(self) -> None:
        said, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self._begun, said.set)
        try:
            async with asyncio.timeout(20):
                await said.wait()
        finally:
            loop.remove_reader(self._begun)

    def go_on(self) -> None:
        os.write(self._go, b"!")

    def close(self) -> None:
        os.close(self._begun)
        os.close(self._go)


@pytest.fixture
def pipes(tmp_path: Path) -> Generator[Pipes]:
    made = Pipes(tmp_path)
    yield made
    made.close()


async def answer_to(process: Process, id: Any) -> Any:
    """Return the answer to a request, whatever is told before."""
    assert process.stdout is not None
    async with asyncio.timeout(20):
        while True:
            found = json.loads(await process.stdout.readline())
            if found.get("id") == id:
                return found


def call(name: str, arguments: dict[str, str], id: str = "c") -> bytes:
    return message("tools/call", {"name": f"small__{name}", "arguments": arguments}, id=id)


async def serve_http(folder: Path) -> tuple[Process, str]:
    file = config(folder, TOOLS)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    command = [sys.executable, "-m", "trunkline", "serve", "--config", file]
    process = await asyncio.create_subprocess_exec(
        *command, "--http", "127.0.0.1:0", stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ
    )
    assert process.stderr is not None
    async with asyncio.timeout(20):
        while not (line := (await process.stderr.readline()).decode()).startswith("MCP at "):
            assert line
    return process, line.removeprefix("MCP at ").strip()


async def begin_call(url: str, name: str, arguments: dict[str, str]) -> "asyncio.Task[Any]":
    session = (await fetch(url, hello())).header["mcp-session-id"]
    headers = {"mcp-session-id": session}
    await fetch(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
    params = {"name": f"small__{name}", "arguments": arguments}
    asked = {"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params}
    headers["accept"] = "application/json, text/event-stream"
    return asyncio.create_task(fetch(url, asked, headers))


async def until_refused(url: str) -> None:
    """Wait until nobody is let in any more."""
    host, port = str(urlsplit(url).hostname), urlsplit(url).port
    async with asyncio.timeout(20):
        while True:
            try:
                socket.create_connection((host, int(port or 0)), 5).close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                continue  # it was in the queue when that was closed
            await asyncio.sleep(0)


async def until_gone(pids: list[int]) -> None:
    async with asyncio.timeout(20):
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            await asyncio.sleep(0)


@pytest.mark.holds("M16")
@pytest.mark.parametrize("end", ["signal", "eof"])
async def test_a_call_in_the_middle_is_answered_and_the_code_is_zero(
    end: str, tmp_path: Path, pipes: Pipes
) -> None:
    process = await start(tmp_path, "--config", config(tmp_path, TOOLS))
    await ask(process, HELLO)
    assert process.stdin is not None
    process.stdin.write(READY + call("signal", pipes.arguments))
    await pipes.begun()
    if end == "eof":
        process.stdin.close()
    else:
        process.send_signal(signal.SIGTERM)
    pipes.go_on()
    assert "signal got" in (await answer_to(process, "c"))["result"]["content"][0]["text"]
    async with asyncio.timeout(20):
        assert await process.wait() == 0


@pytest.mark.holds("M16")
@pytest.mark.parametrize("said", [b"", HELLO], ids=["nothing", "hello"])
async def test_a_client_that_goes_while_servers_start_leaves_nothing_running(
    said: bytes, tmp_path: Path
) -> None:
    process = await start(tmp_path, "--config", config(tmp_path, TOOLS))
    assert process.stdin is not None
    process.stdin.write(said)
    process.stdin.close()
    async with asyncio.timeout(20):
        assert await process.wait() == 0


@pytest.mark.holds("M16")
async def test_a_call_over_http_is_answered_and_nobody_else_let_in(
    tmp_path: Path, pipes: Pipes
) -> None:
    process, url = await serve_http(tmp_path)
    calling = await begin_call(url, "signal", pipes.arguments)
    await pipes.begun()
    process.send_signal(signal.SIGTERM)
    await until_refused(url)
    pipes.go_on()
    async with asyncio.timeout(20):
        assert b"signal got" in (await calling).body
        assert await process.wait() == 0
    assert process.stderr is not None
    assert b"Traceback" not in await process.stderr.read()


@pytest.mark.holds("M16")
async def test_a_second_signal_ends_it_at_once_and_no_child_is_left(
    tmp_path: Path, pipes: Pipes
) -> None:
    process, url = await serve_http(tmp_path)
    calling = await begin_call(url, "signal", pipes.arguments)
    await pipes.begun()
    left = children(process.pid)
    assert left
    process.send_signal(signal.SIGTERM)
    await until_refused(url)
    assert process.returncode is None
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(20):
        assert await process.wait() == -signal.SIGINT  # to a shell that is 130
    await until_gone(left)
    await asyncio.gather(calling, return_exceptions=True)


@pytest.mark.holds("M16")
async def test_a_server_that_hears_nothing_does_not_hold_up_the_end(
    tmp_path: Path, pipes: Pipes
) -> None:
    process = await start(tmp_path, "--config", config(tmp_path, TOOLS))
    await ask(process, HELLO)
    assert process.stdin is not None
    process.stdin.write(READY + call("freeze", pipes.arguments))
    await pipes.begun()
    left = children(process.pid)
    process.send_signal(signal.SIGTERM)
    error = (await answer_to(process, "c"))["error"]
    assert "the connection closed before the call was done" in error["message"]
    async with asyncio.timeout(20):
        assert await process.wait() == 0
    await until_gone(left)


# Without a word


async def noted(folder: Path) -> tuple[int, int]:
    """Return how many calls are in flight, to go by the journal, and how many it has the end of."""
    await asyncio.sleep(0)
    try:
        with closing(
            sqlite3.connect(f"file:{folder / 'journal.db'}?mode=ro", uri=True)
        ) as database:
            (calls,) = database.execute(  # those of a sheet are lines of its body
                "SELECT coalesce(sum(CASE kind WHEN 'call' THEN 1 WHEN 'calls' THEN "
                "json_array_length(body, '$.calls') ELSE 0 END), 0) FROM record"
            ).fetchone()
            ((in_flight,),) = database.execute("SELECT in_flight FROM presence").fetchall()
    except (sqlite3.OperationalError, ValueError):
        return 0, 0  # it is just being made
    return in_flight, calls


async def audit(file: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "trunkline", "audit", *arguments, "--config", file]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    async with asyncio.timeout(20):
        out, _ = await process.communicate()
    assert process.returncode == 0, out
    return out.decode()


@pytest.mark.holds("I8.7")
@pytest.mark.parametrize("load", [0, 100])
async def test_after_sigkill_the_journal_is_whole_and_says_which_calls_were_in_flight(
    load: int, tmp_path: Path
) -> None:
    kept = '[gateway]\nstate = "state"'
    file = config(tmp_path, kept, child("small", "echo", "wait", more="max_in_flight = 200"))
    process = await start(tmp_path, "--config", file)
    await ask(process, HELLO)
    assert process.stdin is not None
    process.stdin.write(READY + call("echo", {}, "started"))
    await answer_to(process, "started")
    process.stdin.write(b"".join(call("wait", {}, f"hangs {n}") for n in range(3)))
    process.stdin.write(call("echo", {}, "after"))
    await answer_to(process, "after")  # so that the server has taken on those before it
    many = b"".join(call("echo", {}, f"quick {n}") for n in range(load)) + call("echo", {}, "last")
    in_flight = ended = 0
    async with asyncio.timeout(30):
        while in_flight < 3 or ended < 3 * load:
            if load:
                process.stdin.write(many)
                await answer_to(process, "last")
            in_flight, ended = await noted(tmp_path / "state")
    if load:
        process.stdin.write(many)
        await process.stdin.drain()
    process.kill()
    async with asyncio.timeout(20):
        await process.communicate()
        heir = await start(tmp_path, "--config", file)
        await ask(heir, HELLO)
        await heir.communicate(READY + call("echo", {}))
    assert heir.returncode == 0
    found = [each["record"] for each in json.loads(await audit(file, "query", "--json"))]
    (lost,) = [record for record in found if record["kind"] == "lost"]
    assert 3 <= lost["in_flight"] <= 3 + load + bool(load)
    oldest = lost["calls"][:3]  # of many, those that have been under way for longest
    assert [(each["name"], each["backend"]) for each in oldest] == 3 * [("small__wait", "small")]
    assert len({each["id"] for each in oldest}) == 3
    assert lost["name"].partition("@")[0] == f"trunkline:{process.pid}"
    assert "records, whole" in await audit(file, "verify")


# The last steps


async def test_the_last_steps_are_taken_in_order_once_whatever_becomes_of_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLOSING", 0.01)
    taken: list[str] = []

    async def first() -> None:
        taken.append("first")
        raise ValueError("the disk is full")

    async def second() -> None:
        taken.append("second")
        await asyncio.Event().wait()

    async def third() -> None:
        taken.append("third")

    app = App(DEFAULT)
    app.closing += [first, second, third]
    async with asyncio.timeout(10):
        await app.aclose()
        await app.aclose()
    assert taken == ["first", "second", "third"]
    said = [record.message for record in caplog.records]
    assert [text.rpartition("<locals>.")[2] for text in said] == [
        "first: the disk is full",
        "second: not done within 0.01 s",
    ]


async def test_the_last_steps_come_after_the_last_call() -> None:
    app = App(DEFAULT)
    states: list[str] = []

    async def look() -> None:
        states.extend(upstream.state for upstream in app.gateway.registry)

    app.closing.append(look)
    async with asyncio.timeout(10):
        async with app.running() as gateway:
            await gateway.registry.wait_settled()
    assert states == ["stopped", "stopped"]
