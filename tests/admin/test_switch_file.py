"""Kill switches survive a restart; an unreadable file disables everything."""

import asyncio
import json
import logging
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks import HANG_TIMEOUT, hang_guard
from trunkline import files
from trunkline.admin.service import MAX_SWITCH_FILE_BYTES, SwitchFile
from trunkline.routing.kill_switch import SWITCH_ALL, KillSwitch, SwitchKind

ECHO = KillSwitch(SwitchKind.TOOL, "a__echo")
ANNA = KillSwitch(SwitchKind.SUBJECT, "anna")
CONFIG = Path("/etc/t.toml")


async def test_switches_are_stored_privately_and_loaded_again(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "state"
    file = SwitchFile(folder, CONFIG)
    assert file.load() == frozenset()
    assert await file.save(ECHO, True) is None
    assert await file.save(ANNA, True) is None
    assert SwitchFile(folder, CONFIG).load() == {ECHO, ANNA}
    assert await file.save(ECHO, False) is None
    assert SwitchFile(folder, CONFIG).load() == {ANNA}
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert json.loads(file.path.read_bytes())["config"] == "/etc/t.toml"
    assert {path.suffix for path in folder.iterdir()} == {".json", ".lock"}


async def test_each_configuration_has_its_own_file(tmp_path: Path) -> None:
    await SwitchFile(tmp_path, CONFIG).save(ECHO, True)
    assert SwitchFile(tmp_path, Path("/etc/other.toml")).load() == frozenset()
    assert SwitchFile(tmp_path, None).load() == frozenset()


async def test_two_gateways_with_one_file_keep_each_others_changes(
    tmp_path: Path,
) -> None:
    some = [KillSwitch(SwitchKind.TOOL, f"t{number}") for number in range(8)]
    gateways = [SwitchFile(tmp_path, CONFIG, lock_timeout=HANG_TIMEOUT) for _ in some]
    async with hang_guard():
        saving = (file.save(each, True) for file, each in zip(gateways, some, strict=True))
        await asyncio.gather(*saving)
    assert SwitchFile(tmp_path, CONFIG).load() == set(some)


GARBAGE = [
    b"",
    b"garbage",
    b"[]",
    b'{"disabled": [{"kind": "role", "name": "x"}]}',
    b'{"disabled": [{"kind": "tool", "name": ""}]}',
    b'{"disabled": [], "more": 1}',
    b'{"disabled": [{"kind": "tool", "name": "a\\u0000"}]}',
    b"[" * 100_000,
    b" " * (MAX_SWITCH_FILE_BYTES + 1),
    b"\xff",
]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
async def test_unreadable_file_stops_everything_and_is_logged(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = SwitchFile(tmp_path, CONFIG)
    file.path.write_bytes(content)
    assert file.load() == {SWITCH_ALL}
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"cannot read {file.path}: " in record.message
    assert "run `trunkline revive all`" in record.message
    # Setting another switch neither revives everything nor loses the unreadable file.
    await file.save(ECHO, True)
    assert file.load() == {SWITCH_ALL, ECHO}
    assert file.path.with_suffix(".unreadable").read_bytes() == content
    await file.save(SWITCH_ALL, False)
    assert file.load() == {ECHO}


def test_folder_in_place_of_the_file_stops_everything(tmp_path: Path) -> None:
    file = SwitchFile(tmp_path, CONFIG)
    file.path.mkdir()
    assert file.load() == {SWITCH_ALL}


async def test_write_failure_is_reported(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    assert SwitchFile(blocked / "folder", CONFIG).load() == frozenset()
    file = SwitchFile(blocked / "folder", CONFIG)
    problem = await file.save(ECHO, True)
    assert problem is not None
    assert problem.endswith("/folder/" + file.path.name + ": not a directory")


async def test_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SwitchFile(tmp_path, CONFIG)
    await file.save(ECHO, True)

    def fail(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    problem = await file.save(ANNA, True)
    assert problem == f"cannot write {file.path}: no space left on device"
    assert file.load() == {ECHO}
    assert not list(tmp_path.glob(".*.json.*[!k]"))


async def test_lock_of_another_process_is_not_waited_for_forever(tmp_path: Path) -> None:
    file = SwitchFile(tmp_path, CONFIG, lock_timeout=0.02)
    with files.file_lock(file.path):
        problem = await file.save(ECHO, True)
    assert problem is not None
    assert problem.endswith("another process is writing it")
    assert await file.save(ECHO, True) is None


async def test_cancelled_save_is_still_written(tmp_path: Path) -> None:
    file = SwitchFile(tmp_path, CONFIG)
    saving = asyncio.create_task(file.save(ECHO, True))
    await asyncio.sleep(0)
    saving.cancel()
    await asyncio.gather(saving, return_exceptions=True)
    async with hang_guard():
        await file.aclose()
    assert file.load() == {ECHO}
    await file.aclose()


@given(content=st.binary(max_size=200))
def test_any_bytes_are_loaded_or_stop_everything(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = SwitchFile(tmp_path_factory.mktemp("any"), CONFIG)
    file.path.write_bytes(content)
    assert file.load() == {SWITCH_ALL}
