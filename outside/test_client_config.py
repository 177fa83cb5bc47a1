"""A client that we did not write takes the settings that `client-config --write` makes for it."""

import json
import sys
from pathlib import Path

import pytest

from outside.gateway import BIN
from outside.program import free_port, run, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRUNKLINE = (sys.executable, "-m", "trunkline")
GATEWAY = """\
[gateway]
state_dir = ""
[audit]
url = ""
[auth]
mode = "api_key"
[servers.me]
builtin = "operator"
[servers.old]
command = "old-server"
disabled = false
[http]
"""
COMMENT = "// chosen by hand"


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_gemini_cli_connects_with_the_settings_that_were_written(
    over: str, tmp_path: Path
) -> None:
    home, config = tmp_path / "home", tmp_path / "trunkline.toml"
    place = f"127.0.0.1:{free_port()}"
    config.write_text(f'{GATEWAY}listen = "{place}"\n')
    settings = home / ".gemini" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f'{{\n  {COMMENT}\n  "mcpServers": {{"old": {{"command": "old-server"}}}}\n}}\n'
    )
    env = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    config_option = ("--config", str(config))
    _, key, _ = await run(
        *TRUNKLINE, "key", "add", "me", "--role", "admin", *config_option, env=env
    )
    options = ("--stdio",) if over == "stdio" else ()
    code, out, err = await run(
        *(*TRUNKLINE, "client-config", "gemini-cli", "--write", *options, *config_option), env=env
    )
    assert (code, "removed old: servers.old of the gateway" in out) == (0, True), err
    text = settings.read_text()
    assert COMMENT in text
    entries = json.loads(text.replace(COMMENT, ""))["mcpServers"]
    assert list(entries) == ["trunkline"]
    async with running(*TRUNKLINE, "serve", "--http", place, *config_option, env=env) as gateway:
        await gateway.says("MCP at ")
        for token, state in ((key.strip(), "Connected"), ("tlk_wrong", "Disconnected")):
            with_token = env | {"TRUNKLINE_TOKEN": token}
            _, out, err = await run(BIN / "gemini", "mcp", "list", env=with_token)
            assert f"({over}) - {state}" in out + err
