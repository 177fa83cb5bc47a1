"""`trunkline status | pause | resume | kill | revive`, against real gateways."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import OPERATOR, child, config, run
from tests.cli.test_gateways_ps import HELLO
from tests.tasks import HANG_TIMEOUT
from trunkline.app.control import socket_folders
from trunkline.cli.gateways import no_gateway

PIPE = subprocess.PIPE


class Gateway:
    """A gateway that runs over stdio in its own process."""

    def __init__(self, file: str) -> None:
        command = [sys.executable, "-m", "trunkline", "serve", "--config", file]
        self.process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        self._id = 10
        assert self.process.stdin is not None
        self.process.stdin.write(HELLO)
        self.process.stdin.flush()
        self.until(2)

    @property
    def pid(self) -> int:
        return self.process.pid

    def until(self, id: int) -> Any:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            response = json.loads(line)
            if response.get("id") == id:
                return response
        raise AssertionError("the gateway ended without a response")

    def ask(self, method: str, **params: Any) -> Any:
        self._id += 1
        request = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self.until(self._id)

    def names(self) -> list[str]:
        return [tool["name"] for tool in self.ask("tools/list")["result"]["tools"]]


@contextmanager
def serving(folder: Path, *tables: str) -> Generator[Gateway]:
    folder.mkdir(exist_ok=True)
    gateway = Gateway(config(folder, *tables))
    with gateway.process as process:
        try:
            yield gateway
        finally:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(HANG_TIMEOUT) == 0


@pytest.mark.holds("O4.5", "M15")
def test_a_killed_tool_stays_disabled_across_restarts_until_it_is_revived(
    runtime: Path, tmp_path: Path
) -> None:
    tables = (child("small", "echo", "other"), OPERATOR)
    with serving(tmp_path, *tables) as gateway:
        result = run("kill", "tool", "small__echo")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == f"{gateway.pid}  tool small__echo is disabled\n"
        error = gateway.ask("tools/call", name="small__echo", arguments={})["error"]
        assert (error["code"], error["message"]) == (-32005, "Tool is disabled: small__echo")
        assert "small__echo" not in gateway.names()
        gateway.ask("tools/call", name="small__other", arguments={})
        (shown,) = json.loads(run("status", "--json").stdout)
        assert shown["disabled"] == [{"kind": "tool", "name": "small__echo", "by": "operator"}]
    with serving(tmp_path, *tables) as gateway:
        assert "small__echo" not in gateway.names()
        assert "1 disabled (see `trunkline status`)" in run("ps").stdout
        result = run("revive", "tool", "small__echo", "--json")
        (outcome,) = json.loads(result.stdout)
        assert outcome == {
            "pid": gateway.pid,
            "changed": True,
            "message": "tool small__echo is revived",
            "calls_ended": 0,
            "notes": [],
        }
        assert "small__echo" in gateway.names()


@pytest.mark.parametrize("what", ["server small", "all"])
def test_kill_ends_the_process_of_a_server_and_revive_starts_another(
    runtime: Path, tmp_path: Path, what: str
) -> None:
    def read_pid() -> int | None:
        (shown,) = json.loads(run("ps", "--json").stdout)
        return next(each["pid"] for each in shown["servers"] if each["name"] == "small")

    with serving(tmp_path, child("small", "echo"), OPERATOR) as gateway:
        before = read_pid()
        assert before is not None
        assert run("kill", *what.split()).exit_code == 0
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        assert read_pid() is None
        assert "disabled" in run("ps").stdout
        assert "small__echo" not in gateway.names()
        assert run("revive", *what.split()).exit_code == 0
        assert read_pid() not in {None, before}
        assert "small__echo" in gateway.names()
        gateway.ask("tools/call", name="small__echo", arguments={})


@pytest.mark.holds("M11")
def test_status_shows_an_audit_log_that_cannot_be_written(runtime: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.db"
    file.mkdir()
    table = f'[audit]\nurl = "sqlite:///{file}"\n'
    with serving(tmp_path, child("small", "echo"), table) as gateway:
        gateway.ask("tools/call", name="small__echo", arguments={})
        shown = run("status")
        while (
            "the audit log" not in shown.stdout
        ):  # the gateway opens the log shortly after the start
            shown = run("status")
        _, _, audit_line, *_ = shown.stdout.splitlines()
        assert audit_line.startswith(f"the audit log cannot be written: {file}: ")
        assert audit_line.endswith(" records wait")
        (status,) = json.loads(run("status", "--json").stdout)
        assert (status["audit"]["error"] in audit_line, status["audit"]["dropped"]) == (True, 0)
        assert status["audit"]["queue"] > 0
        file.rmdir()


@pytest.mark.holds("O4.5", "M15")
def test_pause_disables_calls_until_resume(runtime: Path, tmp_path: Path) -> None:
    with serving(tmp_path, child("small", "echo"), OPERATOR) as gateway:
        assert run("pause").stdout == f"{gateway.pid}  the gateway is paused\n"
        error = gateway.ask("tools/call", name="small__echo", arguments={})["error"]
        assert error["message"] == "The gateway is paused"
        assert gateway.ask("ping")["result"] == {}
        assert "small__echo" in gateway.names()
        shown = run("status")
        assert shown.exit_code == 0
        heading, state, columns, small, me = shown.stdout.splitlines()
        assert heading.endswith(", 1 session, paused")
        assert state.endswith(", paused, 0 calls in flight")
        assert columns.split() == ["server", "state", "in", "flight", "why"]
        assert small.split() == ["small", "ready", "0"]
        assert me.split() == ["me", "ready", "0"]
        assert run("resume").stdout == f"{gateway.pid}  the gateway is resumed\n"
        assert "result" in gateway.ask("tools/call", name="small__echo", arguments={})


def test_revive_refuses_a_tool_that_the_configuration_stops_and_names_the_line(
    runtime: Path, tmp_path: Path
) -> None:
    kill = '[kill_switch]\ntools = ["me__logs"]\n'
    with serving(tmp_path, kill, OPERATOR) as gateway:
        assert gateway.names() == ["me__status"]
        result = run("revive", "tool", "me__logs")
        assert (result.exit_code, result.stdout) == (1, "")
        place = f"{tmp_path / 'some.toml'}:2"
        assert f"tool me__logs is disabled by the file {place}; change it there" in result.stderr
        shown = run("status").stdout.splitlines()
        assert shown[3].split() == ["tool", "me__logs", place]


def test_kill_reaches_all_gateways_but_revive_requires_one_or_all(
    runtime: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(serving(tmp_path / name, child(name, "echo"), OPERATOR))
            for name in ("one", "two")
        ]
        pids = sorted(gateway.pid for gateway in gateways)
        result = run("kill", "all")
        assert [int(line.split()[0]) for line in result.stdout.splitlines()] == pids
        for what in (("resume",), ("revive", "all")):
            refused = run(*what)
            assert (refused.exit_code, refused.stdout) == (2, "")
            assert (
                "2 gateways are running; name one with --pid, or all with --all" in refused.stderr
            )
            assert all(str(pid) in refused.stderr for pid in pids)
        one, two = gateways
        assert run("revive", "all", "--pid", str(one.pid)).exit_code == 0
        assert "one__echo" in one.names()
        assert two.names() == ["me__status", "me__logs"]
        # It is no failure if only one gateway has that server, or has it disabled.
        result = run("kill", "server", "one")
        assert result.exit_code == 0
        assert f"{two.pid}  there is no server 'one'; there are: two, me" in result.stderr
        assert run("revive", "all", "--all").exit_code == 0
        assert "two__echo" in two.names()
        result = run("kill", "server", "three", "--json")
        assert result.exit_code == 1
        assert [each["pid"] for each in json.loads(result.stdout)] == pids
        none = run("pause", "--pid", "1")
        assert none.exit_code == 1
        assert "no gateway of yours has the pid 1; there are:" in none.stderr


def test_an_unreadable_state_file_stops_everything_until_revive_all(
    runtime: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, OPERATOR):
        run("kill", "subject", "anna")
    (kept,) = (tmp_path / "state" / "trunkline").glob("switches-*.json")
    kept.write_text("garbage")
    with serving(tmp_path, child("small", "echo"), OPERATOR) as gateway:
        assert gateway.names() == ["me__status", "me__logs"]
        error = gateway.ask("tools/call", name="small__echo", arguments={})["error"]
        assert error["message"] == "Gateway is disabled"
        assert run("revive", "all").exit_code == 0
        assert "small__echo" in gateway.names()
        gateway.process.terminate()
        assert gateway.process.stderr is not None
        stderr = gateway.process.stderr.read().decode()
    assert f"cannot read {kept}: " in stderr
    assert "everything is disabled" in stderr
    assert kept.with_suffix(".unreadable").read_text() == "garbage"


@pytest.mark.parametrize("command", [["status"], ["pause"], ["resume"], ["kill", "all"]])
def test_control_commands_without_a_gateway_exit_with_one(
    runtime: Path, command: list[str]
) -> None:
    result = run(*command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"trunkline: {no_gateway()}\n"


def test_an_unknown_pid_is_reported(runtime: Path) -> None:
    result = run("status", "--pid", "1")
    assert result.stderr == "trunkline: no gateway of yours has the pid 1; none is running\n"


@pytest.mark.parametrize("command", ["kill", "revive"])
@pytest.mark.parametrize("rest", [["role", "x"], ["tool"], ["all", "x"], ["tool", "a b"]])
def test_invalid_targets_exit_with_two(runtime: Path, command: str, rest: list[str]) -> None:
    result = run(command, *rest)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("trunkline: expected ")


def test_a_gateway_that_does_not_answer_exits_with_one(runtime: Path) -> None:
    (folder,) = socket_folders(os.environ)
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}.sock").touch(mode=0o600)
    for command in (["status"], ["kill", "all"], ["kill", "all", "--json"]):
        result = run(*command)
        assert result.exit_code == 1
        assert result.stderr == f"trunkline: the gateway with pid {os.getpid()} does not answer\n"
