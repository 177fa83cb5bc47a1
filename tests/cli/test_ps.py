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
from trunkline import control
from trunkline.cli.ps import duration, headline, journal_lines
from trunkline.control import GatewayStatus, ParkedStatus, Sighting, socket_folders
from trunkline.journal.journal import JournalStatus

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
        monkeypatch.setattr(control, "FALLBACK", Path(folder))
        yield Path(folder)


def test_no_gateway_is_no_error(runtime: Path) -> None:
    done = run("ps")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "no gateway of yours is running\n"
    assert json.loads(run("ps", "--json").stdout) == []


def test_a_gateway_and_its_servers_are_shown(runtime: Path, tmp_path: Path) -> None:
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
        shown, told = run("ps"), run("ps", "--json")
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    _, *warnings = err.decode().splitlines()
    assert all("server broken is waiting: cannot start" in line for line in warnings)
    assert b"hunter22" not in err
    assert (shown.exit_code, told.exit_code) == (0, 0)
    heading, columns, small, broken, me = shown.stdout.splitlines()
    assert heading.startswith(f"{process.pid}  {file}  up ")
    assert heading.endswith(", 1 session")
    assert columns.split()[:5] == ["server", "state", "pid", "revision", "restarts"]
    words = small.split()
    assert words[:2] == ["small", "ready"]
    assert words[3:7] == ["2025-11-25", "0", "0", "0"]
    assert small.endswith("the secret is …")
    assert "waiting" in broken
    assert "cannot start '/nonexistent/program'" in broken
    assert "(again in " in broken
    assert me.split()[:2] == ["me", "ready"]
    (gateway,) = json.loads(told.stdout)
    assert (gateway["pid"], gateway["config"]) == (process.pid, file)
    assert str(gateway["servers"][0]["pid"]) == words[2]
    assert "hunter22" not in shown.output + told.output


def test_a_gateway_over_http_is_shown_with_its_address() -> None:
    status = GatewayStatus(1, "1", "home", None, 61.0, 3, (), ("http://127.0.0.1:80/mcp",), 2)
    assert headline(status) == (
        "1  embedded default  up 1 m 1 s, 3 sessions (2 by Streamable HTTP), "
        "at http://127.0.0.1:80/mcp"
    )


def test_calls_that_wait_for_their_clients_are_counted() -> None:
    status = GatewayStatus(1, "1", "home", None, 1.0, 0, ())
    one = ParkedStatus("s", "local", "tools/call", 1, 1, 3.0)
    for parked, said in (
        ((one,), "1 call waits for its client (up to 3 s)"),
        (
            (one, structs.replace(one, waiting=61.0)),
            "2 calls wait for their clients (up to 1 m 1 s)",
        ),
    ):
        assert headline(structs.replace(status, parked=parked)).endswith(f", 0 sessions, {said}")


def test_what_is_wrong_with_a_journal_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = JournalStatus("j.db", 7, 10, 0, 2, "the disk is full")
    status = GatewayStatus(1, "1", "home", None, 1.0, 0, (), journal=journal)

    async def found(*_: object) -> list[Sighting]:
        return [Sighting(1, status)]

    monkeypatch.setattr("trunkline.cli.ps.sightings", found)
    done = run("ps")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "the journal cannot be written: the disk is full; 7 records wait",
        "the journal had no room for 2 records",
    ]


def test_one_that_does_not_answer_ends_with_one(runtime: Path) -> None:
    (folder,) = socket_folders(os.environ)
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}.sock").touch(mode=0o600)
    done = run("ps", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == [{"pid": os.getpid()}]
    assert done.stderr == f"trunkline: the gateway with pid {os.getpid()} does not answer\n"


def test_a_folder_that_is_not_safe_ends_with_one(runtime: Path) -> None:
    socket_folders(os.environ)[0].mkdir(mode=0o755)
    done = run("ps")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "trunkline: did not look for gateways there: " in done.stderr


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 m 0 s"), (3725, "1 h 2 m"), (200000, "2 d 7 h")],
)
def test_times_are_written_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_is_wrong_with_a_journal_is_said_and_nothing_if_nothing_is() -> None:
    assert journal_lines(None) == journal_lines(JournalStatus("j.db", 3, 100, 9, 0, None)) == []
    assert journal_lines(JournalStatus("j.db", 143, 100, 9, 1, "j.db: disk is full")) == [
        "the journal cannot be written: j.db: disk is full; 143 records wait",
        "the journal had no room for 1 record",
    ]
    assert journal_lines(JournalStatus("j.db", 1, 100, 9, 20, "no")) == [
        "the journal cannot be written: no; 1 record waits",
        "the journal had no room for 20 records",
    ]
