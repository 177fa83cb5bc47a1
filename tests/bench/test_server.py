"""The fast server over HTTP and stdio."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec

import pytest

from bench.gateway.calls import initialize_message, message, post
from bench.gateway.contestants import SERVER
from bench.gateway.wire import open_connection
from tests.bench.servers import HOST, fast
from tests.tasks import hang_guard
from trunkline.mcp.versions import Era

CALL = {"name": "echo", "arguments": {"size": 100_000}}


async def test_several_calls_go_over_one_connection() -> None:
    async with hang_guard(), fast() as address:
        line = await open_connection(HOST, address.port)
        for id in range(3):
            body = message("tools/call", CALL, Era.SESSION, id)
            found = await line.request(post(address, body, "tools/call"))
            assert (found.status, json.loads(found.body)["id"]) == (200, id)
        body = message("notifications/initialized", {}, Era.SESSION)
        assert (await line.request(post(address, body, "notifications/initialized"))).status == 202
        line.close()


@pytest.mark.parametrize(("method", "status"), [("GET", 405), ("DELETE", 200)])
async def test_there_is_no_stream_and_no_session(method: str, status: int) -> None:
    async with hang_guard(), fast() as address:
        line = await open_connection(HOST, address.port)
        found = await line.request(f"{method} /mcp HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert found.status == status
        line.close()


async def test_a_body_in_pieces_is_put_together() -> None:
    async with hang_guard(), fast() as address:
        reader, writer = await asyncio.open_connection(HOST, address.port)
        whole = post(address, initialize_message(1), "initialize")
        for start in range(0, len(whole), 50):
            writer.write(whole[start : start + 50])
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()


@pytest.mark.parametrize("last", [b"Connection: close\r\n\r\n", b"\0\r\n\r\n"])
async def test_the_connection_closes_after_invalid_or_final_requests(last: bytes) -> None:
    async with hang_guard(), fast() as address:
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(b"DELETE /mcp HTTP/1.1\r\nhost: x\r\n" + last)
        await reader.read()
        writer.close()


async def test_it_serves_stdio_until_stdin_ends() -> None:
    command = [sys.executable, SERVER, "--stdio", "--era", "session"]
    child = await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    lines = [
        initialize_message(1),
        message("notifications/initialized", {}, Era.SESSION),
        b"",
        message("tools/call", CALL, Era.SESSION, 2),
        message("server/discover", {}, Era.STATELESS, 3),
    ]
    async with hang_guard():
        output, _ = await child.communicate(b"\n".join((*lines, b"")))
    answers = [json.loads(line) for line in output.splitlines()]
    assert [answer["id"] for answer in answers] == [1, 2, 3]
    assert len(answers[1]["result"]["content"][0]["text"]) == 100_000
    assert "error" in answers[2]
    assert child.returncode == 0
