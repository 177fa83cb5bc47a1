"""What was stopped at run time survives; what cannot be read stops everything."""

import asyncio
import json
import logging
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import files
from trunkline.operator.switch_file import MAX_FILE, SwitchFile
from trunkline.routing.switches import EVERYTHING, Switch, What

ECHO = Switch(What.TOOL, "a__echo")
ANNA = Switch(What.SUBJECT, "anna")
CONFIG = Path("/etc/t.toml")


async def test_what_is_stopped_is_found_again_by_the_next_and_nobody_else_can_read_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "state"
    file = SwitchFile(folder, CONFIG)
    assert file.load() == frozenset()
    assert await file.keep(ECHO, True) is None
    assert await file.keep(ANNA, True) is None
    assert SwitchFile(folder, CONFIG).load() == {ECHO, ANNA}
    assert await file.keep(ECHO, False) is None
    assert SwitchFile(folder, CONFIG).load() == {ANNA}
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert json.loads(file.path.read_bytes())["config"] == "/etc/t.toml"
    assert {path.suffix for path in folder.iterdir()} == {".json", ".lock"}


async def test_each_configuration_has_its_own(tmp_path: Path) -> None:
    await SwitchFile(tmp_path, CONFIG).keep(ECHO, True)
    assert SwitchFile(tmp_path, Path("/etc/other.toml")).load() == frozenset()
    assert SwitchFile(tmp_path, None).load() == frozenset()


async def test_two_gateways_of_one_configuration_lose_nothing_of_each_other_s(
    tmp_path: Path,
) -> None:
    some = [Switch(What.TOOL, f"t{number}") for number in range(8)]
    async with asyncio.timeout(20):
        await asyncio.gather(*(SwitchFile(tmp_path, CONFIG).keep(each, True) for each in some))
    assert SwitchFile(tmp_path, CONFIG).load() == set(some)


GARBAGE = [
    b"",
    b"garbage",
    b"[]",
    b'{"stopped": [{"what": "role", "name": "x"}]}',
    b'{"stopped": [{"what": "tool", "name": ""}]}',
    b'{"stopped": [], "more": 1}',
    b'{"stopped": [{"what": "tool", "name": "a\\u0000"}]}',
    b"[" * 100_000,
    b" " * (MAX_FILE + 1),
    b"\xff",
]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
async def test_one_that_cannot_be_read_stops_everything_and_says_so(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = SwitchFile(tmp_path, CONFIG)
    file.path.write_bytes(content)
    assert file.load() == {EVERYTHING}
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"{file.path} cannot be read: " in record.message
    assert "`trunkline revive all` lets all go on" in record.message
    # What is stopped beside that does not let it go on, and nothing is lost.
    await file.keep(ECHO, True)
    assert file.load() == {EVERYTHING, ECHO}
    assert file.path.with_suffix(".unreadable").read_bytes() == content
    await file.keep(EVERYTHING, False)
    assert file.load() == {ECHO}


def test_a_folder_in_its_place_stops_everything(tmp_path: Path) -> None:
    file = SwitchFile(tmp_path, CONFIG)
    file.path.mkdir()
    assert file.load() == {EVERYTHING}


async def test_one_that_cannot_be_written_is_said_to(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    assert SwitchFile(blocked / "folder", CONFIG).load() == frozenset()
    problem = await SwitchFile(blocked / "folder", CONFIG).keep(ECHO, True)
    assert problem is not None
    assert problem.endswith("cannot be written: not a directory")


async def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SwitchFile(tmp_path, CONFIG)
    await file.keep(ECHO, True)

    def fail(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    problem = await file.keep(ANNA, True)
    assert problem == f"{file.path} cannot be written: no space left on device"
    assert file.load() == {ECHO}
    assert not list(tmp_path.glob(".*.json.*[!k]"))


async def test_another_that_never_finishes_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.02)
    file = SwitchFile(tmp_path, CONFIG)
    with files.alone(file.path):
        problem = await file.keep(ECHO, True)
    assert problem is not None
    assert problem.endswith("another is writing it")
    assert await file.keep(ECHO, True) is None


async def test_whoever_is_cancelled_has_it_written_all_the_same(tmp_path: Path) -> None:
    file = SwitchFile(tmp_path, CONFIG)
    keeping = asyncio.create_task(file.keep(ECHO, True))
    await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    async with asyncio.timeout(10):
        await file.aclose()
    assert file.load() == {ECHO}
    await file.aclose()


@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_stop_everything(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = SwitchFile(tmp_path_factory.mktemp("any"), CONFIG)
    file.path.write_bytes(content)
    assert file.load() == {EVERYTHING}
