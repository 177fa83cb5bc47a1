"""jayson, from npm, calls a server on our engine over TCP."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from pathlib import Path

HERE = Path(__file__).parent


async def test_jayson_calls_the_engine() -> None:
    server = await create_subprocess_exec(sys.executable, HERE / "tcp_server.py", stdout=PIPE)
    async with asyncio.timeout(60):
        port = (await server.stdout.readline()).decode().strip()
        client = await create_subprocess_exec("node", HERE / "jayson_client.js", port, stdout=PIPE)
        out, _ = await client.communicate()
        server.terminate()
        assert await server.wait() == 0
    assert client.returncode == 0
    total, echo, unknown, wrong, batch = json.loads(out)
    assert total["result"] == 6.5
    assert echo["result"] == [None, True, "x"]
    assert unknown["error"]["code"] == -32601
    assert wrong["error"]["code"] == -32602
    assert [answer.get("result") for answer in batch] == [3, {"text": "é😀"}, None]
    assert batch[2]["error"]["message"] == "Method not found: nobody"
