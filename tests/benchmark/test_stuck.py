"""The server that hangs: it answers until it is called, and then it reads nothing more."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec

from trunkline.benchmark.calls import greeting, message
from trunkline.mcp.versions import Era


async def test_it_answers_until_it_is_called_and_then_reads_nothing_more() -> None:
    call = message("tools/call", {"name": "echo"}, Era.HANDSHAKE, 2)
    async with asyncio.timeout(20):
        stuck = await create_subprocess_exec(
            *(sys.executable, "-m", "trunkline.benchmark.stuck"), stdin=PIPE, stdout=PIPE
        )
        assert stuck.stdin is not None
        assert stuck.stdout is not None
        stuck.stdin.write(greeting(1) + b"\n")
        assert json.loads(await stuck.stdout.readline())["id"] == 1
        stuck.stdin.write(call + b"\n" + message("ping", {}, Era.HANDSHAKE, 3) + b"\n")
        # More than it can have read ahead and than a pipe holds: somebody who reads takes it all.
        stuck.stdin.write(b"\n" * 2**20)
        stuck.stdin.close()
        stuck.terminate()
        assert await stuck.stdout.read() == b""
        assert await stuck.wait() == -signal.SIGTERM
