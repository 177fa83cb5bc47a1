"""`trunkline tools | find | call` while a gateway of the same configuration runs."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import BROKEN, SERVER, config, run

PIPE = subprocess.PIPE
HTTP = '[http]\nlisten = "127.0.0.1:0"\n'
AUTH = '[auth]\nmode = ["api_key"]\n[auth.api_keys]\nfile = "keys.json"\n'
ROLES = """
[roles.dev]
permissions = ["tools.execute"]
denied_tools = ["small__fail"]
[roles.viewer]
permissions = []
"""


def counted(name: str, starts: Path, *tools: str, more: str = "") -> str:
    """Return the table of a server that adds its name to a file at each start."""
    words = [sys.executable, str(SERVER), *tools]
    script = f"echo {name} >> {shlex.quote(str(starts))}; exec {shlex.join(words)}"
    args = json.dumps(["-c", script])
    return f'[servers.{name}]\ncommand = "sh"\nargs = {args}\n{more}\n'


def started(starts: Path) -> list[str]:
    """Return the names of the servers that were started since the last time."""
    found = starts.read_text().split() if starts.exists() else []
    starts.write_text("")
    return sorted(found)


@contextmanager
def gateway(file: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a gateway over HTTP."""
    command = [sys.executable, "-m", "trunkline", "serve", "--config", file]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE) as process:
        try:
            assert process.stderr is not None
            while b"MCP at " not in (line := process.stderr.readline()):
                assert line, "the gateway ended"
            yield process
        finally:
            process.terminate()
            process.communicate()


def calls(file: str, *options: str) -> list[Any]:
    """Return the records of calls."""
    found = run("audit", "query", "--json", "--config", file, *options)
    return [each["record"] for each in json.loads(found.stdout or "[]")]


def test_commands_use_the_running_gateway_and_start_no_server(
    runtime: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    file = config(
        tmp_path, HTTP, counted("small", starts, "echo", "fail"), counted("other", starts, "count")
    )
    with gateway(file):
        tools = json.loads(run("tools", "--json", "--config", file).stdout)
        names = [tool["name"] for tool in tools]
        assert names == ["small__echo", "small__fail", "other__count"]
        assert tools[2]["native"] == "count"
        (tool,) = json.loads(run("tools", "other", "--json", "--config", file).stdout)
        assert tool["name"] == "other__count"
        (best,) = json.loads(run("find", "echo", "--limit", "1", "--json", "--config", file).stdout)
        assert best["name"] == "small__echo"
        result = run("call", "small__echo", "--arg", "a=1", "--config", file)
        assert (result.exit_code, result.stdout) == (0, "echo got {'a': 1}\n"), result.output
        failed = run("call", "small__fail", "--config", file)
        assert (failed.exit_code, failed.stderr) == (1, "it is broken\n")
        unknown = run("call", "echo", "--config", file)
        assert unknown.exit_code == 1
        assert "trunkline: unknown tool: echo\n" in unknown.stderr
        assert "did you mean small__echo?" in unknown.stderr
        assert started(starts) == ["other", "small"]
        (status,) = json.loads(run("status", "--json").stdout)
        assert (status["sessions"], status["in_flight"]) == (0, 0)
    found = [(each["subject"], each["name"], each["status"]) for each in calls(file)]
    assert found == [
        ("local", "small__echo", "success"),
        ("local", "small__fail", "tool_error"),
        ("local", "echo", "unknown"),
    ]


def test_list_shows_the_states_of_the_running_gateway_in_words(
    runtime: Path, tmp_path: Path
) -> None:
    gone = f"{BROKEN}max_restarts = 0\n"
    file = config(tmp_path, HTTP, counted("small", tmp_path / "starts", "echo"), gone)
    with gateway(file):
        run("tools", "--config", file)  # waits until all have been tried
        small, broken = run("list", "--config", file).stdout.splitlines()[2:]
        assert small.split()[:3] == ["small", "ready", "command"]
        assert broken.startswith("broken  failed, not retried  command")
        servers = json.loads(run("list", "--config", file, "--json").stdout)
        assert [each["state"] for each in servers] == ["ready", "failed"]


def test_a_call_through_a_running_gateway_obeys_its_kill_switches(
    runtime: Path, tmp_path: Path
) -> None:
    file = config(tmp_path, HTTP, counted("small", tmp_path / "starts", "echo"))
    with gateway(file):
        assert run("kill", "tool", "small__echo").exit_code == 0
        result = run("call", "small__echo", "--json", "--config", file)
        assert result.exit_code == 1
        assert json.loads(result.stdout)["error"]["code"] == -32005
        assert run("find", "echo", "--config", file).exit_code == 1


def test_large_arguments_and_results_pass_through_the_running_gateway(
    runtime: Path, tmp_path: Path
) -> None:
    file = config(tmp_path, HTTP, counted("small", tmp_path / "starts", "echo"))
    text = "x" * 2_000_000
    with gateway(file):
        result = run("call", "small__echo", json.dumps({"a": text}), "--config", file)
    assert result.stdout == f"echo got {{'a': '{text}'}}\n"


def add_key(file: str, name: str, role: str, subject: str) -> str:
    """Create an API key and return it."""
    result = run("key", "add", name, "--role", role, "--subject", subject, "--config", file)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.mark.parametrize("is_running", [True, False])
def test_a_call_acts_for_a_named_caller_and_the_record_names_both(
    runtime: Path, tmp_path: Path, is_running: bool
) -> None:
    table = counted("small", tmp_path / "starts", "echo", "fail")
    file = config(tmp_path, HTTP, AUTH, ROLES, table)
    add_key(file, "ci", "dev", "ann")
    if not is_running:
        check_named_callers(file)
    else:
        with gateway(file):
            check_named_callers(file)
    found = [(each["subject"], each.get("role"), each["status"]) for each in calls(file)]
    assert found[:3] == [
        ("local as ann", "dev", "success"),
        ("local as ann", "dev", "success"),
        ("local", "dev", "success"),
    ]
    assert calls(file, "--subject", "ann") == []
    assert len(calls(file, "--subject", "* as ann")) == 4


def check_named_callers(file: str) -> None:
    echo = ("call", "small__echo", "--config", file)
    for options in (["--as", "ann"], ["--as", "ci"], ["--role", "dev"]):
        result = run(*echo, *options)
        assert (result.exit_code, result.stdout) == (0, "echo got {}\n"), result.output
    hidden = run("call", "small__fail", "--as", "ann", "--config", file)
    assert hidden.exit_code == 1
    assert "trunkline: small__fail is hidden from local as ann\n" in hidden.stderr
    assert "`trunkline why small__fail --as ann --role dev` names the rule" in hidden.stderr
    # Roles that are given replace those of the key.
    viewer = run(*echo, "--as", "ann", "--role", "viewer")
    assert "small__echo is hidden from local as ann\n" in viewer.stderr
    # Lists show what the caller sees, and all tools without one.
    seen = json.loads(run("tools", "--json", "--as", "ann", "--config", file).stdout)
    assert [tool["name"] for tool in seen] == ["small__echo"]
    everything = json.loads(run("tools", "--json", "--config", file).stdout)
    assert [tool["name"] for tool in everything] == ["small__echo", "small__fail"]
    assert run("find", "fail", "--as", "ann", "--config", file).exit_code == 1
    assert run("find", "fail", "--config", file).exit_code == 0


@pytest.mark.parametrize("is_running", [True, False])
def test_the_token_of_the_environment_is_the_identity_of_a_call(
    runtime: Path, tmp_path: Path, is_running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = counted("small", tmp_path / "starts", "echo", "fail")
    file = config(tmp_path, HTTP, AUTH, ROLES, table)
    key = add_key(file, "ci", "dev", "ann")

    def check() -> None:
        nothing = run("call", "small__echo", "--config", file)
        assert (nothing.exit_code, nothing.stdout) == (1, "")
        assert "with [auth], a call needs an identity: set TRUNKLINE_TOKEN" in nothing.stderr
        assert "--as NAME or --role ROLE" in nothing.stderr
        monkeypatch.setenv("TRUNKLINE_TOKEN", key)
        result = run("call", "small__echo", "--config", file)
        assert (result.exit_code, result.stdout) == (0, "echo got {}\n"), result.output
        seen = json.loads(run("tools", "--json", "--config", file).stdout)
        assert [tool["name"] for tool in seen] == ["small__echo"]
        monkeypatch.setenv("TRUNKLINE_TOKEN", "tlk_wrong")
        for command in (["call", "small__echo"], ["tools"], ["find", "echo"]):
            wrong = run(*command, "--config", file)
            assert (wrong.exit_code, wrong.stdout) == (1, ""), wrong.output
            assert "TRUNKLINE_TOKEN: the API key is unknown" in wrong.stderr
            assert "tlk_wrong" not in wrong.stderr
        monkeypatch.delenv("TRUNKLINE_TOKEN")

    if is_running:
        with gateway(file):
            check()
    else:
        check()
    assert [(each["subject"], each["role"]) for each in calls(file)] == [("ann", "dev")]


def test_ctrl_c_cancels_the_call_upstream(runtime: Path, tmp_path: Path) -> None:
    file = config(tmp_path, HTTP, counted("small", tmp_path / "starts", "signal"))
    begun, go = tmp_path / "begun", tmp_path / "go"
    os.mkfifo(begun)
    os.mkfifo(go)
    with gateway(file):
        arguments = json.dumps({"begun": str(begun), "go": str(go)})
        command = [sys.executable, "-m", "trunkline", "call", "small__signal", arguments]
        with subprocess.Popen([*command, "--config", file], stdout=PIPE, stderr=PIPE) as process:
            assert begun.read_bytes() == b"!"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        assert (process.returncode, out) == (130, b"")
        assert b"Traceback" not in err
        while not (found := calls(file)):
            pass
        assert found[0]["status"] == "cancelled"
        go.write_bytes(b"x")


def test_without_a_gateway_only_the_servers_that_are_needed_start(
    runtime: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    file = config(
        tmp_path, counted("small", starts, "echo"), counted("other", starts, "count", "pid")
    )
    # The prefix of a name names its server.
    assert run("call", "small__echo", "--config", file).exit_code == 0
    assert started(starts) == ["small"]
    assert run("tools", "other", "--config", file).exit_code == 0
    assert started(starts) == ["other"]
    # Both are known by now.
    result = run("find", "count", "--json", "--config", file)
    assert json.loads(result.stdout)[0]["name"] == "other__count"
    unknown = run("call", "pid", "--config", file)
    assert "did you mean other__pid?" in unknown.stderr
    assert started(starts) == []
    assert run("tools", "--config", file).exit_code == 0
    assert started(starts) == ["other", "small"]


def test_a_stored_listing_leads_a_call_to_the_server_of_a_name_without_prefix(
    runtime: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    tables = (
        counted("first", starts, "echo", "count", more='prefix = ""'),
        counted("second", starts, "echo", "pid", more='prefix = ""'),
    )
    file = config(tmp_path, *tables)
    # Nothing is known: each of them could have the tool.
    assert run("call", "count", "--config", file).exit_code == 0
    assert started(starts) == ["first", "second"]
    assert run("call", "pid", "--config", file).exit_code == 0
    assert started(starts) == ["second"]
    # Of two equal names, the second has another one: `second__echo`.
    assert run("call", "second__echo", "--config", file).exit_code == 0
    assert started(starts) == ["second"]
    # A changed server is not known, and may have the tool.
    config(tmp_path, tables[0], counted("second", starts, "echo", "structure", more='prefix = ""'))
    assert run("call", "structure", "--config", file).exit_code == 0
    assert started(starts) == ["second"]


def test_a_search_tool_starts_all_servers_because_it_may_call_them(
    runtime: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    search = '[servers.search]\nbuiltin = "search"\n'
    file = config(tmp_path, counted("small", starts, "echo"), search)
    arguments = json.dumps({"name": "small__echo", "arguments": {"a": 1}})
    result = run("call", "search__call_tool", arguments, "--config", file)
    assert (result.exit_code, result.stdout) == (0, "echo got {'a': 1}\n"), result.output
    assert started(starts) == ["small"]


def test_a_listing_that_no_start_has_confirmed_for_a_day_is_not_used(
    runtime: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    file = config(tmp_path, counted("small", starts, "echo"))
    assert run("find", "echo", "--config", file).exit_code == 0
    assert run("find", "echo", "--config", file).exit_code == 0
    assert started(starts) == ["small"]
    (stored,) = (tmp_path / "state" / "trunkline" / "listings").iterdir()
    os.utime(stored, (0, 0))
    assert run("find", "echo", "--config", file).exit_code == 0
    assert started(starts) == ["small"]


def test_a_stdio_gateway_without_a_client_has_started_nothing_and_is_not_asked(
    runtime: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    file = config(tmp_path, counted("small", starts, "echo"))
    command = [sys.executable, "-m", "trunkline", "serve", "--config", file]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        while not json.loads(run("ps", "--json").stdout):
            assert process.poll() is None
        assert run("call", "small__echo", "--config", file).exit_code == 0
        assert json.loads(run("ps", "--json").stdout)[0]["servers"][0]["state"] == "not_started"
        process.communicate()
    assert started(starts) == ["small"]
