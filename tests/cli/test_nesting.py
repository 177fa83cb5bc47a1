"""A gateway that is its own server, with real processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import child, config, hello, run
from trunkline.app.nesting import NESTING_VARIABLE, nesting_variables

# A wrapper that hides what it starts: the arguments do not name the program.
WRAPPER = (
    "import os, sys; os.execv(sys.executable, [sys.executable, '-m', *sys.argv[1].split(',')])"
)


def wrapped(file: Path) -> dict[str, Any]:
    words = f"trunkline,serve,--stdio,--config,{file}"
    return {"command": sys.executable, "args": ["-c", WRAPPER, words]}


def test_a_gateway_behind_a_wrapper_is_recognised_and_not_started_again(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    file.write_text(json.dumps({"mcpServers": {"me": wrapped(file)}}))
    result = run("check", "--config", str(file), "--json")
    assert result.exit_code == 1
    (server,) = json.loads(result.stdout)["servers"]
    assert server["state"] == "failed"  # not "waiting": another start would be refused as well
    assert "this gateway has started itself again, with the same config" in server["error"]


def test_a_gateway_with_another_configuration_may_be_a_server(tmp_path: Path) -> None:
    inner = Path(config(tmp_path, child("small", "echo")))
    outer = tmp_path / "outer.toml"
    words = f"trunkline,serve,--stdio,--config,{inner}"
    args = json.dumps(["-c", WRAPPER, words])
    outer.write_text(f"[servers.in]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n")
    result = run("check", "--config", str(outer), "--json")
    assert result.exit_code == 0, result.output
    (server,) = json.loads(result.stdout)["servers"]
    assert (server["state"], server["tools"]) == ("ready", 1)


@pytest.mark.parametrize("stdio", [True, False])
def test_serve_refuses_to_run_below_itself(stdio: bool, tmp_path: Path) -> None:
    file = Path(config(tmp_path, '[http]\nlisten = "127.0.0.1:0"'))
    command = [sys.executable, "-m", "trunkline", "serve", "--config", str(file)]
    command += ["--stdio"] if stdio else []
    done = subprocess.run(
        command,
        input=json.dumps(hello()).encode() + b"\n",
        env=nesting_variables({}, file),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert b"this gateway has started itself again" in done.stderr
    if stdio:
        assert json.loads(done.stdout)["error"]["data"] == {"type": "nested_gateway"}


def test_commands_that_start_servers_refuse_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = config(tmp_path, child("small"))
    monkeypatch.setenv(NESTING_VARIABLE, nesting_variables({}, Path(file))[NESTING_VARIABLE])
    for command in ("check", "tools"):
        result = run(command, "--config", file)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "this gateway has started itself again" in result.stderr
