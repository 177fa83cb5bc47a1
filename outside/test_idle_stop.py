"""`idle_stop` with real servers: what clients see, and that no process is left."""

from pathlib import Path
from typing import Any

import pytest

from outside.clients import text
from outside.gateway import gateway
from outside.program import BIN
from outside.test_client_sessions import editor, folder_with

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_after_an_idle_stop_the_next_call_may_use_the_roots_of_its_client(
    tmp_path: Path, mode: str
) -> None:
    config, own = folder_with(tmp_path, "config"), folder_with(tmp_path, "own")
    one = folder_with(tmp_path, "one")
    command: dict[str, Any] = {
        "command": "node",
        "args": [str(BIN / "mcp-server-filesystem"), str(own)],
        "idle_stop": "10s",
    }
    async with gateway(config, {"fs": command}) as site, editor(site.mcp, one, mode) as made:
        assert "one.txt" in await text(made, "fs__list_directory", path=str(one))
        tools = {tool.name for tool in (await made.list_tools()).tools}
        await site.program.says("server fs stopped while idle")
        assert {tool.name for tool in (await made.list_tools()).tools} == tools
        assert "one.txt" in await text(made, "fs__list_directory", path=str(one))
