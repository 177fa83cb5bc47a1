"""The fast server's two doors."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec

import pytest

from tests.benchmark.servers import HOST, fast
from trunkline.benchmark.calls import greeting, message, post
from trunkline.benchmark.wire import talk
from trunkline.mcp.versions import Era

CALL = {"name": "echo", "arguments": {"size": 100_000}}


async def test_several_calls_go_over_one_connection() -> None:
    async with asyncio.timeout(5), fast() as address:
        line = await talk(HOST, address.port)
        for id in range(3):
            body = message("tools/call", CALL, Era.HANDSHAKE, id)
            found = await line.ask(post(address, body, "tools/call"))
            assert (found.status, json.loads(found.body)["id"]) == (200, id)
        body = message("notifications/initialized", {}, Era.HANDSHAKE)
        assert (await line.ask(post(address, body, "notifications/initialized"))).status == 202
        line.close()


@pytest.mark.parametrize(("method", "status"), [("GET", 405), ("DELETE", 200)])
async def test_there_is_no_stream_and_no_session(method: str, status: int) -> None:
    async with asyncio.timeout(5), fast() as address:
        line = await talk(HOST, address.port)
        found = await line.ask(f"{method} /mcp HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert found.status == status
        line.close()


async def test_a_body_in_pieces_is_put_together() -> None:
    async with asyncio.timeout(5), fast() as address:
        reader, writer = await asyncio.open_connection(HOST, address.port)
        whole = post(address, greeting(1), "initialize")
        for start in range(0, len(whole), 50):
            writer.write(whole[start : start + 50])
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()


@pytest.mark.parametrize("last", [b"Connection: close\r\n\r\n", b"\0\r\n\r\n"])
async def test_a_connection_ends_when_it_must(last: bytes) -> None:
    async with asyncio.timeout(5), fast() as address:
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(b"DELETE /mcp HTTP/1.1\r\nhost: x\r\n" + last)
        await reader.read()
        writer.close()


async def test_it_serves_stdio_until_stdin_ends() -> None:
    command = [sys.executable, "-m", "trunkline.benchmark.server", "--stdio", "--era", "handshake"]
    child = await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    lines = [
        greeting(1),
        message("notifications/initialized", {}, Era.HANDSHAKE),
        b"",
        message("tools/call", CALL, Era.HANDSHAKE, 2),
        message("server/discover", {}, Era.ENVELOPE, 3),
    ]
    async with asyncio.timeout(20):
        said, _ = await child.communicate(b"\n".join((*lines, b"")))
    answers = [json.loads(line) for line in said.splitlines()]
    assert [answer["id"] for answer in answers] == [1, 2, 3]
    assert len(answers[1]["result"]["content"][0]["text"]) == 100_000
    assert "error" in answers[2]
    assert child.returncode == 0
