"""The program as its users run it: real processes, stdio and a local port."""

import asyncio
import json
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import pytest

from trunkline import __version__
from trunkline.jsonrpc import Connection, from_raw
from trunkline.transports.stream import open_tcp


async def start(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trunkline", "serve", *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def converse(lines: bytes) -> tuple[int, list[Any]]:
    """Send lines over stdio, then the end; return the exit code and all answers."""
    child = await start("--stdio")
    async with asyncio.timeout(20):
        out, err = await child.communicate(lines)
    assert err == b""
    return child.returncode or 0, [json.loads(line) for line in out.splitlines()]


@pytest.mark.holds("S4.14", "S4.6")
async def test_every_line_on_stdin_is_answered_on_stdout_and_the_end_ends_it() -> None:
    code, answers = await converse(
        b'{"jsonrpc":"2.0","id":1,"method":"describe"}\n'
        b"\n"
        b"garbage\r\n"
        b'{"jsonrpc":"2.0","method":"nobody/home"}\n'
        b'[{"jsonrpc":"2.0","id":"a","method":"sum","params":[1,2]},{"jsonrpc":"2.0","method":"x"}]\n'
        b'{"jsonrpc":"2.0","id":2,"method":"ping"}'
    )
    assert code == 0
    assert answers[0]["result"]["version"] == __version__
    assert [a["error"]["code"] for a in answers if "error" in a] == [-32700]
    assert [{"jsonrpc": "2.0", "id": "a", "result": 3}] in answers
    assert answers[-1] == {"jsonrpc": "2.0", "id": 2, "result": {}}
    assert len(answers) == 4


@pytest.mark.holds("S2.24")
async def test_the_same_message_gets_the_same_answer_on_every_transport() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[{"a":[1.5,"\xc3\xa9"]}]}\n'
    _, answers = await converse(line)
    server, port = await serve_tcp()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(20):
        writer.write(line)
        assert json.loads(await reader.readline()) == answers[0]
    writer.close()
    await stop(server)


async def serve_tcp() -> tuple[Process, int]:
    server = await start("--tcp", "127.0.0.1:0")
    assert server.stderr is not None
    async with asyncio.timeout(20):
        greeting = (await server.stderr.readline()).decode()
    assert greeting.startswith(f"trunkline {__version__}: JSON-RPC 2.0 on 127.0.0.1:")
    return server, int(greeting.split(":")[2].split(",")[0])


async def stop(server: Process, number: int = signal.SIGTERM) -> None:
    server.send_signal(number)
    async with asyncio.timeout(20):
        assert await server.wait() == 0
    assert server.stderr is not None
    assert b"Traceback" not in await server.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order_whoever_is_connected(number: int) -> None:
    server, port = await serve_tcp()
    async with asyncio.timeout(20):
        async with Connection(await open_tcp("127.0.0.1", port)) as connection:
            slow = asyncio.create_task(connection.call("wait", [0.05]))
            assert from_raw(await connection.call("sum", [1, 2]), int) == 3
            await stop(server, number)
            assert from_raw(await slow, float) == 0.05  # it was in progress, and is finished
            await connection.wait_ended()


async def test_a_signal_ends_stdio_too() -> None:
    child = await start("--stdio")
    assert child.stdin is not None
    assert child.stdout is not None
    async with asyncio.timeout(20):
        child.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        assert json.loads(await child.stdout.readline())["result"] == {}
        await stop(child)


def test_a_file_for_stdin_is_refused_plainly() -> None:
    with Path(__file__).open("rb") as file:
        command = [sys.executable, "-m", "trunkline", "serve", "--stdio"]
        done = subprocess.run(command, stdin=file, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"trunkline: cannot serve: ")
    assert b"Traceback" not in done.stderr


async def test_a_port_that_is_taken_is_refused_plainly() -> None:
    server, port = await serve_tcp()
    other = await start("--tcp", f"127.0.0.1:{port}")
    async with asyncio.timeout(20):
        _, err = await other.communicate()
    assert other.returncode == 1
    assert err.startswith(b"trunkline: cannot serve: ")
    await stop(server)


async def test_more_connections_than_allowed_are_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trunkline import app

    monkeypatch.setattr(app, "MAX_CONNECTIONS", 1)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(app.serve_tcp("127.0.0.1", 0, listening.set_result))
    async with asyncio.timeout(20):
        port = await listening
        async with Connection(await open_tcp("127.0.0.1", port)) as first:
            assert from_raw(await first.call("ping"), object) == {}
            second = await open_tcp("127.0.0.1", port)
            assert await second.receive() is None
            await second.aclose()
        signal.raise_signal(signal.SIGTERM)
        await serving
