"""Log lines become entries of journald, with fields."""

import os
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks import HANG_TIMEOUT
from trunkline.app.telemetry import open_log
from trunkline.config import LogSettings
from trunkline.gateway.events import BackendStateChanged
from trunkline.telemetry import journald as module
from trunkline.telemetry.journald import format_journald, open_journald
from trunkline.telemetry.log_lines import LogLine


def parse(entry: bytes) -> list[tuple[str, str]]:
    """Parse the native protocol of journald."""
    found: list[tuple[str, str]] = []
    while entry:
        line, _, rest = entry.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            length = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + length], rest[8 + length + 1 :]
        found.append((name.decode(), value.decode()))
        entry = rest
    return found


class FakeJournald:
    """The side of journald, and a file that stands for the stderr of a service."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "journald")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(HANG_TIMEOUT)
        self.stderr, self.writer = os.pipe()
        stat = os.fstat(self.writer)
        self.variables = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}

    def read(self) -> list[tuple[str, str]]:
        return parse(self.socket.recv(1 << 20))

    def close(self) -> None:
        self.socket.close()
        os.close(self.stderr)
        os.close(self.writer)


@pytest.fixture
def journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeJournald]:
    found = FakeJournald(tmp_path)
    monkeypatch.setattr(module, "JOURNALD_SOCKET", found.path)
    monkeypatch.setenv("JOURNAL_STREAM", found.variables["JOURNAL_STREAM"])
    yield found
    found.close()


def test_the_fields_of_a_line_become_fields_of_the_entry() -> None:
    fields = {
        "call": "c1",
        "backend": "github",
        "subject": "anna",
        "code": -32005,
        "rule": None,
        "disabled": True,
        "stderr": ["one", "two"],
    }
    entry = format_journald(LogLine("warning", "call_denied", "denied", fields))
    assert parse(entry) == [
        ("MESSAGE", "denied"),
        ("PRIORITY", "4"),
        ("SYSLOG_IDENTIFIER", "trunkline"),
        ("TRUNKLINE_EVENT", "call_denied"),
        ("TRUNKLINE_CALL", "c1"),
        ("TRUNKLINE_SERVER", "github"),
        ("TRUNKLINE_SUBJECT", "anna"),
        ("TRUNKLINE_CODE", "-32005"),
        ("TRUNKLINE_DISABLED", "true"),
        ("TRUNKLINE_STDERR", "one"),
        ("TRUNKLINE_STDERR", "two"),
    ]


def test_an_incident_has_its_location_in_the_code() -> None:
    fields = {"incident": "abc", "locations": ["gateway/router.py:12 route", "x.py:1 main"]}
    found = dict(parse(format_journald(LogLine("error", "incident", "failed", fields))))
    assert (found["PRIORITY"], found["TRUNKLINE_INCIDENT"]) == ("3", "abc")
    place = (found["CODE_FILE"], found["CODE_LINE"], found["CODE_FUNC"])
    assert place == ("gateway/router.py", "12", "route")


def test_locations_of_another_form_add_no_field() -> None:
    for locations in ([], ["somewhere"], None):
        entry = format_journald(LogLine("error", "k", "t", {"locations": locations}))
        assert not [name for name, _ in parse(entry) if name.startswith("CODE_")]


@given(st.text(), st.text(), st.text())
def test_no_text_can_add_a_field_or_an_entry(message: str, name: str, value: str) -> None:
    line = LogLine("info", "k", message, {name: value})
    found = parse(format_journald(line))
    assert len(found) == 5
    sent = [text.encode("utf-8", "replace").decode() for text in (message, value)]
    assert [found[0][1], found[4][1]] == sent
    assert found[4][0].startswith("TRUNKLINE_")
    assert found[4][0].isascii()


def test_journald_is_used_only_if_stderr_leads_to_it(tmp_path: Path) -> None:
    journald = FakeJournald(tmp_path)
    assert open_journald(journald.writer, {}, journald.path) is None
    assert open_journald(journald.writer, {"JOURNAL_STREAM": "1:2"}, journald.path) is None
    assert open_journald(journald.writer, journald.variables, str(tmp_path / "none")) is None
    send = open_journald(journald.writer, journald.variables, journald.path)
    assert send is not None
    send(format_journald(LogLine("info", "k", "hello")))
    assert journald.read()[0] == ("MESSAGE", "hello")
    journald.close()


CHANGED = BackendStateChanged("fs", "waiting", "it ended", 1.0)


def test_the_log_goes_to_journald_instead_of_stderr(journald: FakeJournald) -> None:
    log = open_log(LogSettings(), False, lambda text: text.replace("s3cret", "…"), journald.writer)
    log.log(CHANGED)
    log.announce("s3cret")
    log.queue.dropped = 2
    log.announce("last")
    log.close(HANG_TIMEOUT)
    found = dict(journald.read())
    assert (found["TRUNKLINE_SERVER"], found["TRUNKLINE_STATE"]) == ("fs", "waiting")
    texts = {dict(journald.read())["MESSAGE"] for _ in range(3)}
    assert texts >= {"…", "last"}
    assert any("2 log lines were dropped" in text for text in texts)
    os.set_blocking(journald.stderr, False)
    with pytest.raises(BlockingIOError):
        os.read(journald.stderr, 1)


@pytest.mark.parametrize("format_name", ["json", "text"])
def test_a_configured_format_stays_on_stderr(
    format_name: Literal["json", "text"], journald: FakeJournald
) -> None:
    settings = LogSettings(format=format_name)
    log = open_log(settings, False, str, journald.writer)
    log.log(CHANGED)
    log.close(HANG_TIMEOUT)
    assert b"fs" in os.read(journald.stderr, 4096)


def test_a_journald_that_has_ended_loses_lines_and_counts_them(journald: FakeJournald) -> None:
    log = open_log(LogSettings(), False, str, journald.writer)
    journald.socket.close()
    log.log(CHANGED)
    log.close(HANG_TIMEOUT)
    assert log.writer.dropped == 1
