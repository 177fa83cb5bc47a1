"""`trunkline ps`, against a real gateway."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from msgspec import structs

from tests.cli.samples import BROKEN, OPERATOR, child, config, run
from tests.tasks import HANG_TIMEOUT
from trunkline.app import control
from trunkline.app.control import GatewayStatus, RunningGateway, SuspendedCallStatus, socket_folders
from trunkline.audit.log import AuditStatus
from trunkline.cli.gateways import audit_warnings, format_duration, headline, no_gateway

HELLO = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n'
)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.delenv("TMPDIR", raising=False)
        monkeypatch.setattr(control, "FALLBACK_FOLDER", Path(folder))
        monkeypatch.setattr(control, "SERVICE_FOLDERS", ())
        yield Path(folder)


def test_ps_without_a_gateway_prints_a_notice_and_exits_with_zero(runtime: Path) -> None:
    result = run("ps")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"{no_gateway()}\n"
    assert "start one with `trunkline serve`" in result.stderr
    assert json.loads(run("ps", "--json").stdout) == []


def test_ps_shows_a_gateway_and_its_servers_without_secrets(runtime: Path, tmp_path: Path) -> None:
    secret = 'env = { SECRET_TOKEN = "hunter22" }'
    file = config(tmp_path, child("small", more=secret), BROKEN, OPERATOR)
    command = [sys.executable, "-m", "trunkline", "serve", "--config", file]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(HELLO)
        process.stdin.flush()
        while b'"id":2' not in process.stdout.readline():
            assert process.poll() is None
        shown, as_json = run("ps"), run("ps", "--json")
        _, err = process.communicate(timeout=HANG_TIMEOUT)
    assert process.returncode == 0
    _, *warnings = err.decode().splitlines()
    assert all("server broken failed, retrying in " in line for line in warnings)
    assert b"hunter22" not in err
    assert (shown.exit_code, as_json.exit_code) == (0, 0)
    heading, columns, small, broken, me = shown.stdout.splitlines()
    assert heading.startswith(f"{process.pid}  {file}  up ")
    assert heading.endswith(", 1 session")
    assert columns.split()[:5] == ["server", "state", "pid", "revision", "restarts"]
    columns_of_small = small.split()
    assert columns_of_small[:2] == ["small", "ready"]
    assert columns_of_small[3:7] == ["2025-11-25", "0", "0", "0"]
    assert small.endswith("the secret is [redacted]")
    assert "failed, retrying in " in broken
    assert "cannot start '/nonexistent/program'" in broken
    assert me.split()[:2] == ["me", "ready"]
    (gateway,) = json.loads(as_json.stdout)
    assert (gateway["pid"], gateway["config"]) == (process.pid, file)
    assert str(gateway["servers"][0]["pid"]) == columns_of_small[2]
    assert "hunter22" not in shown.output + as_json.output


def test_ps_shows_the_address_of_an_http_gateway() -> None:
    status = GatewayStatus(1, "1", "home", None, 61.0, 3, (), ("http://127.0.0.1:80/mcp",), 2)
    assert headline(status) == (
        "1  embedded default  up 1 m 1 s, 3 sessions (2 by Streamable HTTP), "
        "at http://127.0.0.1:80/mcp"
    )


def test_ps_counts_the_calls_that_wait_for_their_clients() -> None:
    status = GatewayStatus(1, "1", "home", None, 1.0, 0, ())
    one = SuspendedCallStatus("s", "local", "tools/call", 1, 1, 3.0)
    for suspended_calls, text in (
        ((one,), "1 call waits for its client (up to 3 s)"),
        (
            (one, structs.replace(one, waiting=61.0)),
            "2 calls wait for their clients (up to 1 m 1 s)",
        ),
    ):
        assert headline(structs.replace(status, suspended=suspended_calls)).endswith(
            f", 0 sessions, {text}"
        )


def test_ps_warns_about_an_audit_log_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audit = AuditStatus("j.db", 7, 10, 0, 2, "the disk is full")
    status = GatewayStatus(1, "1", "home", None, 1.0, 0, (), audit=audit)

    async def find_gateways(*_: object) -> list[RunningGateway]:
        return [RunningGateway(1, status)]

    monkeypatch.setattr("trunkline.cli.gateways.find_gateways", find_gateways)
    result = run("ps")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "the audit log cannot be written: the disk is full; 7 records wait",
        "the audit log dropped 2 records",
    ]


def test_a_gateway_that_does_not_answer_exits_with_one(runtime: Path) -> None:
    (folder,) = socket_folders(os.environ)
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}.sock").touch(mode=0o600)
    result = run("ps", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == [{"pid": os.getpid()}]
    assert result.stderr == f"trunkline: the gateway with pid {os.getpid()} does not answer\n"


def test_an_unsafe_socket_folder_exits_with_one(runtime: Path) -> None:
    socket_folders(os.environ)[0].mkdir(mode=0o755)
    result = run("ps")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "trunkline: skipped an unsafe socket folder: " in result.stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 m 0 s"), (3725, "1 h 2 m"), (200000, "2 d 7 h")],
)
def test_durations_are_formatted_with_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_audit_warnings_list_only_actual_problems() -> None:
    assert audit_warnings(None) == audit_warnings(AuditStatus("j.db", 3, 100, 9, 0, None)) == []
    assert audit_warnings(AuditStatus("j.db", 143, 100, 9, 1, "j.db: disk is full")) == [
        "the audit log cannot be written: j.db: disk is full; 143 records wait",
        "the audit log dropped 1 record",
    ]
    assert audit_warnings(AuditStatus("j.db", 1, 100, 9, 20, "no")) == [
        "the audit log cannot be written: no; 1 record waits",
        "the audit log dropped 20 records",
    ]
