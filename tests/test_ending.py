"""Shutdown: orderly at the first signal, immediate at the second, with nothing left behind."""

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

from tests.app.test_application import HELLO, READY, ask, children, message, start
from tests.cli.samples import child, config, fetch, hello
from tests.tasks import hang_guard
from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.app.build import AppLimits, ShutdownTimeouts

TOOLS = child("small", "signal", "wait", "freeze")


class Pipes:
    """Two named pipes: a tool reports its start on one and waits on the other."""

    def __init__(self, folder: Path) -> None:
        self.arguments = {name: str(folder / name) for name in ("begun", "go")}
        for name in self.arguments.values():
            os.mkfifo(name)
        # Opened at both ends, so that opening never blocks.
        flags = os.O_RDWR | os.O_NONBLOCK
        self._started, self._go = (os.open(name, flags) for name in self.arguments.values())

    async def wait_started(self) -> None:
        received, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self._started, received.set)
        try:
            async with hang_guard():
                await received.wait()
        finally:
            loop.remove_reader(self._started)

    def release(self) -> None:
        os.write(self._go, b"!")

    def close(self) -> None:
        os.close(self._started)
        os.close(self._go)


@pytest.fixture
def pipes(tmp_path: Path) -> Generator[Pipes]:
    made = Pipes(tmp_path)
    yield made
    made.close()


async def response_to(process: Process, id: Any) -> Any:
    """Return the response to a request, skipping notifications."""
    assert process.stdout is not None
    async with hang_guard():
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
    async with hang_guard():
        while not (line := (await process.stderr.readline()).decode()).startswith("MCP at "):
            assert line
    return process, line.removeprefix("MCP at ").strip()


async def begin_call(url: str, name: str, arguments: dict[str, str]) -> "asyncio.Task[Any]":
    session = (await fetch(url, hello())).header["mcp-session-id"]
    headers = {"mcp-session-id": session}
    await fetch(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
    params = {"name": f"small__{name}", "arguments": arguments}
    request = {"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params}
    headers["accept"] = "application/json, text/event-stream"
    return asyncio.create_task(fetch(url, request, headers))


async def wait_until_refused(url: str) -> None:
    """Wait until new connections are refused."""
    host, port = str(urlsplit(url).hostname), urlsplit(url).port
    async with hang_guard():
        while True:
            try:
                socket.create_connection((host, int(port or 0)), 5).close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:
                continue  # it was in the accept queue when the socket closed
            await asyncio.sleep(0)


async def wait_until_gone(pids: list[int]) -> None:
    async with hang_guard():
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            await asyncio.sleep(0)


@pytest.mark.holds("M16")
@pytest.mark.parametrize("end", ["signal", "eof"])
async def test_a_call_in_flight_is_answered_and_the_exit_code_is_0(
    end: str, tmp_path: Path, pipes: Pipes
) -> None:
    process = await start(tmp_path, "--config", config(tmp_path, TOOLS))
    await ask(process, HELLO)
    assert process.stdin is not None
    process.stdin.write(READY + call("signal", pipes.arguments))
    await pipes.wait_started()
    if end == "eof":
        process.stdin.close()
    else:
        process.send_signal(signal.SIGTERM)
    pipes.release()
    assert "signal got" in (await response_to(process, "c"))["result"]["content"][0]["text"]
    async with hang_guard():
        assert await process.wait() == 0


@pytest.mark.holds("M16")
@pytest.mark.parametrize("received", [b"", HELLO], ids=["nothing", "hello"])
async def test_a_client_that_disconnects_while_servers_start_leaves_no_process(
    received: bytes, tmp_path: Path
) -> None:
    process = await start(tmp_path, "--config", config(tmp_path, TOOLS))
    assert process.stdin is not None
    process.stdin.write(received)
    process.stdin.close()
    async with hang_guard():
        assert await process.wait() == 0


@pytest.mark.holds("M16")
async def test_a_call_over_http_is_answered_and_new_ones_are_rejected(
    tmp_path: Path, pipes: Pipes
) -> None:
    process, url = await serve_http(tmp_path)
    calling = await begin_call(url, "signal", pipes.arguments)
    await pipes.wait_started()
    process.send_signal(signal.SIGTERM)
    await wait_until_refused(url)
    pipes.release()
    async with hang_guard():
        assert b"signal got" in (await calling).body
        assert await process.wait() == 0
    assert process.stderr is not None
    assert b"Traceback" not in await process.stderr.read()


@pytest.mark.holds("M16")
async def test_a_second_signal_exits_at_once_and_leaves_no_child(
    tmp_path: Path, pipes: Pipes
) -> None:
    process, url = await serve_http(tmp_path)
    calling = await begin_call(url, "signal", pipes.arguments)
    await pipes.wait_started()
    child_pids = children(process.pid)
    assert child_pids
    process.send_signal(signal.SIGTERM)
    await wait_until_refused(url)
    assert process.returncode is None
    process.send_signal(signal.SIGINT)
    async with hang_guard():
        assert await process.wait() == -signal.SIGINT  # to a shell that is 130
    await wait_until_gone(child_pids)
    await asyncio.gather(calling, return_exceptions=True)


@pytest.mark.holds("M16")
async def test_a_frozen_server_does_not_delay_the_exit(tmp_path: Path, pipes: Pipes) -> None:
    process = await start(tmp_path, "--config", config(tmp_path, TOOLS))
    await ask(process, HELLO)
    assert process.stdin is not None
    process.stdin.write(READY + call("freeze", pipes.arguments))
    await pipes.wait_started()
    child_pids = children(process.pid)
    process.send_signal(signal.SIGTERM)
    error = (await response_to(process, "c"))["error"]
    assert "the connection closed before the call was done" in error["message"]
    async with hang_guard():
        assert await process.wait() == 0
    await wait_until_gone(child_pids)


# Killed without warning


async def recorded_calls(folder: Path) -> tuple[int, int]:
    """Return how many calls are in flight and how many have ended, by the audit log."""
    await asyncio.sleep(0)
    try:
        with closing(sqlite3.connect(f"file:{folder / 'audit.db'}?mode=ro", uri=True)) as database:
            (calls,) = database.execute(  # a batch has its calls in its body
                "SELECT coalesce(sum(CASE kind WHEN 'call' THEN 1 WHEN 'calls' THEN "
                "json_array_length(body, '$.calls') ELSE 0 END), 0) FROM record"
            ).fetchone()
            ((in_flight,),) = database.execute("SELECT in_flight FROM writer").fetchall()
    except (sqlite3.OperationalError, ValueError):
        return 0, 0  # the database is just being created
    return in_flight, calls


async def audit(file: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "trunkline", "audit", *arguments, "--config", file]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    async with hang_guard():
        out, _ = await process.communicate()
    assert process.returncode == 0, out
    return out.decode()


@pytest.mark.holds("I8.7")
@pytest.mark.parametrize("load", [0, 100])
async def test_after_sigkill_the_audit_log_is_intact_and_lists_the_calls_in_flight(
    load: int, tmp_path: Path
) -> None:
    state = '[gateway]\nstate_dir = "state"'
    file = config(tmp_path, state, child("small", "echo", "wait", more="max_in_flight = 200"))
    process = await start(tmp_path, "--config", file)
    await ask(process, HELLO)
    assert process.stdin is not None
    process.stdin.write(READY + call("echo", {}, "started"))
    await response_to(process, "started")
    process.stdin.write(b"".join(call("wait", {}, f"hangs {n}") for n in range(3)))
    process.stdin.write(call("echo", {}, "after"))
    await response_to(process, "after")  # so the server has received the calls before it
    many = b"".join(call("echo", {}, f"quick {n}") for n in range(load)) + call("echo", {}, "last")
    in_flight = ended = 0
    async with hang_guard():
        while in_flight < 3 or ended < 3 * load:
            if load:
                process.stdin.write(many)
                await response_to(process, "last")
            in_flight, ended = await recorded_calls(tmp_path / "state")
    if load:
        process.stdin.write(many)
        await process.stdin.drain()
    process.kill()
    async with hang_guard():
        await process.communicate()
        successor = await start(tmp_path, "--config", file)
        await ask(successor, HELLO)
        await successor.communicate(READY + call("echo", {}))
    assert successor.returncode == 0
    found = [each["record"] for each in json.loads(await audit(file, "query", "--json"))]
    (lost,) = [record for record in found if record["kind"] == "lost"]
    assert 3 <= lost["in_flight"] <= 3 + load + bool(load)
    oldest = lost["calls"][:3]  # the ones in flight for longest
    assert [(each["name"], each["backend"]) for each in oldest] == 3 * [("small__wait", "small")]
    assert len({each["id"] for each in oldest}) == 3
    assert lost["name"].partition("@")[0] == f"trunkline:{process.pid}"
    assert "records, intact" in await audit(file, "verify")


# Shutdown steps


async def test_shutdown_steps_run_in_order_and_once_even_if_one_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = AppLimits(shutdown=ShutdownTimeouts(close_step=0.01))
    steps: list[str] = []

    async def first() -> None:
        steps.append("first")
        raise ValueError("the disk is full")

    async def second() -> None:
        steps.append("second")
        await asyncio.Event().wait()

    async def third() -> None:
        steps.append("third")

    app = App(DEFAULT_CONFIG, limits=limits)
    app.close_steps += [first, second, third]
    async with hang_guard():
        await app.aclose()
        await app.aclose()
    assert steps == ["first", "second", "third"]
    received = [record.message for record in caplog.records]
    assert [text.rpartition("<locals>.")[2] for text in received] == [
        "first: the disk is full",
        "second: timed out after 0.01 s",
    ]


async def test_shutdown_steps_run_after_the_last_call() -> None:
    app = App(DEFAULT_CONFIG)
    states: list[str] = []

    async def record_states() -> None:
        states.extend(upstream.state for upstream in app.gateway.registry)

    app.close_steps.append(record_states)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
    assert states == ["stopped", "stopped"]
