"""Files: replaced atomically, locked between processes, watched for changes."""

import os
import stat
import threading
from pathlib import Path

import pytest

from trunkline.files import (
    WatchedFile,
    create_file,
    file_lock,
    file_stamp,
    read_file,
    replace_file,
)


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_may_keep_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"x", 0o644)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_concurrent_changes_under_the_lock_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "count"
    replace_file(path, b"0")

    def add() -> None:
        for _ in range(20):
            with file_lock(path, timeout=30.0):
                replace_file(path, str(int(path.read_text()) + 1).encode())

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "80"


def test_waiting_for_the_lock_times_out(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with (
        file_lock(path),
        pytest.raises(OSError, match="another process is writing it"),
        file_lock(path, timeout=0.01),
    ):
        raise AssertionError("expected the lock to be taken")
    with file_lock(path, timeout=0.0):
        pass


async def test_creation_change_and_removal_are_noticed_once_each(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = WatchedFile(path)
    assert not await file.has_changed()
    for content in (b"old", b"other", None):
        if content is None:
            path.unlink()
        else:
            replace_file(path, content)
        assert await file.has_changed()
        assert not await file.has_changed()


def test_missing_files_and_invalid_names_have_no_stamp(tmp_path: Path) -> None:
    assert file_stamp(tmp_path) is not None
    assert file_stamp(tmp_path / "none") is None
    assert file_stamp(Path("a\0b")) is None


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"four")
    assert read_file(path, 4) == b"four"
    with pytest.raises(ValueError, match="expected at most 3 bytes"):
        read_file(path, 3)
    with pytest.raises(ValueError, match="expected at most 1000 bytes"):
        read_file(Path("/dev/zero"), 1000)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", 3)


def test_creating_a_file_never_overwrites_one(tmp_path: Path) -> None:
    create_file(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", b"second")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a", b"first")]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
