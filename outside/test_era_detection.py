"""The protocol of real servers: detected by probing, and cached."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from outside.gateway import EVERYTHING
from outside.program import BIN, HERE, PYTHON_1, run

SERVERS: dict[str, tuple[dict[str, Any], str]] = {
    "everything": (EVERYTHING, "session"),
    "memory": ({"command": "node", "args": [str(BIN / "mcp-server-memory")]}, "session"),
    "sdk1": (
        {"command": PYTHON_1, "args": [str(HERE / "sdk1_server.py"), "stdio", "0"]},
        "session",
    ),
    "sdk2": ({"command": sys.executable, "args": [str(HERE / "sdk_server.py")]}, "stateless"),
}


async def eras(config: Path) -> dict[str, str]:
    command = [sys.executable, "-m", "trunkline", "check", "--json", "--config", str(config)]
    code, out, err = await run(*command)
    assert code == 0, out + err
    return {server["name"]: server["era"] for server in json.loads(out)["servers"]}


@pytest.mark.parametrize("wanted", ["auto", "session"])
async def test_the_protocol_of_real_servers_is_detected_and_cached(
    wanted: str, tmp_path: Path
) -> None:
    lines = ["[gateway]", 'state_dir = "state"']
    for name, (settings, _) in SERVERS.items():
        lines += [f"[servers.{name}]", f'protocol = "{wanted}"']
        lines += [f"{key} = {json.dumps(value, default=str)}" for key, value in settings.items()]
    config = tmp_path / "five.toml"  # not a default path of the gateway
    config.write_text("\n".join(lines))
    found = {name: era if wanted == "auto" else wanted for name, (_, era) in SERVERS.items()}
    file = tmp_path / "state" / "eras.json"

    assert await eras(config) == found
    if wanted != "auto":
        assert not file.exists()
        return
    known = json.loads(file.read_text())["servers"].values()
    assert sorted(each["era"] for each in known) == sorted(found.values())
    assert "outside" in {each["name"] for each in known}
    assert str(HERE) not in file.read_text()  # no commands or arguments are stored
    before = file.stat()
    assert await eras(config) == found
    assert file.stat() == before  # nothing changed
