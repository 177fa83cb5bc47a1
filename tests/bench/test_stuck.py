"""The stuck server: it responds until the first tool call, and then reads nothing more."""

import json
import signal
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec

from bench.gateway.calls import initialize_message, message
from bench.gateway.contestants import SERVER
from tests.tasks import hang_guard
from trunkline.mcp.versions import Era


async def test_the_stuck_server_responds_until_the_first_call_and_then_hangs() -> None:
    call = message("tools/call", {"name": "echo"}, Era.SESSION, 2)
    async with hang_guard():
        stuck = await create_subprocess_exec(
            *(sys.executable, SERVER, "--stuck"), stdin=PIPE, stdout=PIPE
        )
        assert stuck.stdin is not None
        assert stuck.stdout is not None
        stuck.stdin.write(initialize_message(1) + b"\n")
        assert json.loads(await stuck.stdout.readline())["id"] == 1
        stuck.stdin.write(call + b"\n" + message("ping", {}, Era.SESSION, 3) + b"\n")
        # More than it can have read ahead and than a pipe holds: only a reader could take it all.
        stuck.stdin.write(b"\n" * 2**20)
        stuck.stdin.close()
        stuck.terminate()
        assert await stuck.stdout.read() == b""
        assert await stuck.wait() == -signal.SIGTERM
