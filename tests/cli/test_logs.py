"""How a crash is shown: to the caller, in events, and by `trunkline logs`, `ps` and `check`."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, SERVER, child, config, run
from tests.cli.test_gateways_control import serving
from tests.tasks import HANG_TIMEOUT, hang_guard
from trunkline.app.application import App
from trunkline.app.control import GatewayStatus, RunningGateway, ServerStatus, server_statuses
from trunkline.cli.gateways import no_gateway
from trunkline.config.load import load_config
from trunkline.gateway.events import BackendStateChanged, GatewayEvent, StrayOutput

SECRET = 'env = { SECRET_TOKEN = "hunter22" }'
CRASH = json.dumps("import sys; print('no\\x1b such file\\n', file=sys.stderr); sys.exit(3)")
CRASHING = f"""
[servers.crashing]
command = {json.dumps(sys.executable)}
args = ["-I", "-S", "-c", {CRASH}]
"""


def test_a_caller_learns_the_exit_code_and_an_operator_the_last_words(
    runtime: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / "a", child("small", "crash", more=SECRET), OPERATOR) as gateway:
        error = gateway.ask("tools/call", name="small__crash", arguments={})["error"]
        assert error["message"] == (
            "Upstream unavailable: small: the connection has ended (exit code 3)"
        )
        shown, as_json = run("logs", "small"), run("logs", "small", "-n", "1", "--json")
        assert run("logs", "small", "--pid", str(gateway.pid)).exit_code == 0
        unknown, builtin = run("logs", "smal"), run("logs", "me")
    lines = shown.stdout.splitlines()
    assert [line.split(" ", 2)[2] for line in lines if line.split(" ", 2)[2:]][:3] == [
        "the secret is [redacted]",
        "the key [redacted]",
        "",
    ]
    assert lines[3].endswith(" cannot open \\x1b[31mx.db")
    (last,) = map(json.loads, as_json.stdout.splitlines())
    assert set(last) == {"time", "pid", "text"}
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "no running gateway has a server 'smal'; there are: me, small" in unknown.stderr
    assert builtin.exit_code == 1
    assert "me is not a program" in builtin.stderr


def test_logs_are_followed_across_a_restart(runtime: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "a", child("small", "crash")) as gateway:
        command = [sys.executable, "-m", "trunkline", "logs", "small", "-f"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert "the secret is" in process.stdout.readline()
            gateway.ask("tools/call", name="small__crash", arguments={})
            shown = [process.stdout.readline() for _ in range(4)]
            process.send_signal(signal.SIGINT)
            assert process.wait(HANG_TIMEOUT) == 130
    assert "cannot open" in shown[2]
    assert "the secret is" in shown[3]  # of the next process


def test_logs_need_a_gateway_and_one_that_is_named(runtime: Path, tmp_path: Path) -> None:
    nothing = run("logs", "small")
    assert (nothing.exit_code, nothing.stderr) == (1, f"trunkline: {no_gateway()}\n")
    with serving(tmp_path / "a", child("small")), serving(tmp_path / "b", child("small")):
        ambiguous = run("logs", "small")
    assert ambiguous.exit_code == 2
    assert "name one with --pid" in ambiguous.stderr


async def test_the_event_of_a_crash_has_the_exit_code_and_the_last_lines(tmp_path: Path) -> None:
    app = App(load_config(Path(config(tmp_path, CRASHING)), {}))
    events: list[GatewayEvent] = []
    app.gateway.pipeline.events.add_listener(events.append)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        (status,) = server_statuses(app)
    failed = next(
        event
        for event in events
        if isinstance(event, BackendStateChanged) and event.state == "waiting"
    )
    assert failed.error is not None
    assert "(exit code 3)" in failed.error
    assert failed.stderr == status.stderr_lines == ("no\x1b such file",)


def test_check_shows_the_exit_code_and_the_last_lines(tmp_path: Path) -> None:
    file = config(tmp_path, CRASHING)
    result = run("check", "--config", file)
    assert result.exit_code == 1
    assert "crashing  failed" in result.stdout
    assert "ended (exit code 3)" in result.stdout  # before it was asked, or before it answered
    assert "crashing: stderr: no\\x1b such file\n" in result.stdout


def test_check_shows_what_a_server_prints_instead_of_answers(tmp_path: Path) -> None:
    code = "print('usage: fs hunter22'); raise SystemExit(2)"
    table = f'[servers.fs]\ncommand = {json.dumps(sys.executable)}\nargs = ["-c", "{code}"]\n'
    result = run("check", "--config", config(tmp_path, table, SECRET))
    assert result.exit_code == 1
    assert "(exit code 2)" in result.stdout
    assert "fs: stderr: stdout, not JSON-RPC: usage: fs [redacted]\n" in result.stdout


def test_ps_and_status_say_that_a_server_is_stopped_while_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = ServerStatus(
        *("fs", "idle_stopped", None, "2025-11-25", 0, 0, 1, None, None, "last words"),
        stderr_lines=("last words",),
    )
    status = GatewayStatus(1, "1", "home", None, 1.0, 0, (server,))

    async def find_gateways(*_: object) -> list[RunningGateway]:
        return [RunningGateway(1, status)]

    monkeypatch.setattr("trunkline.cli.gateways.find_gateways", find_gateways)
    for command in ("ps", "status"):
        (line,) = [each for each in run(command).stdout.splitlines() if each.startswith("fs ")]
        assert line.startswith("fs      stopped while idle  ")


async def test_a_working_server_that_prints_text_causes_one_event_with_a_masked_sample(
    tmp_path: Path,
) -> None:
    code = (
        "import runpy, sys; print('listening', 'hunter22'); print('again', flush=True); "
        f"sys.argv = [{str(SERVER)!r}, 'echo']; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    table = f"[servers.fs]\ncommand = {json.dumps(sys.executable)}\n"
    table += f"args = {json.dumps(['-c', code])}\n"
    app = App(load_config(Path(config(tmp_path, table, SECRET)), {}))
    events: list[GatewayEvent] = []
    app.gateway.pipeline.events.add_listener(events.append)
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        assert gateway.ready
    stray = [event for event in events if isinstance(event, StrayOutput)]
    assert stray == [StrayOutput("fs", "listening [redacted]", 1)]


def test_ps_shows_states_in_words_and_the_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerStatus(
        *("fs", "waiting", None, None, 2, 0, 0, "it ended (exit code 3)", 5.7, "b"),
        stderr_lines=("a", "b"),
    )
    status = GatewayStatus(1, "1", "home", None, 1.0, 0, (server,))

    async def find_gateways(*_: object) -> list[RunningGateway]:
        return [RunningGateway(1, status)]

    monkeypatch.setattr("trunkline.cli.gateways.find_gateways", find_gateways)
    lines = run("ps").stdout.splitlines()
    assert lines[2].startswith("fs      failed, retrying in 5.7 s ")
    assert lines[2].endswith("  it ended (exit code 3)")
    assert lines[3:] == ["fs: stderr: a", "fs: stderr: b"]
