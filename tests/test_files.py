"""Files of ours: whole or not at all, and by one at a time."""

import os
import stat
import threading
from pathlib import Path

import pytest

from trunkline.files import (
    Watched,
    alone,
    create_file,
    read_file,
    replace_file,
    stamp_of,
)


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_one_may_keep_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"x", 0o644)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_what_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")

    def fail(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_who_change_a_file_lose_nothing_of_each_others(tmp_path: Path) -> None:
    path = tmp_path / "count"
    replace_file(path, b"0")

    def add() -> None:
        for _ in range(20):
            with alone(path, patience=30.0):
                replace_file(path, str(int(path.read_text()) + 1).encode())

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "80"


def test_another_that_never_finishes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with (
        alone(path),
        pytest.raises(OSError, match="another is writing it"),
        alone(path, patience=0.01),
    ):
        raise AssertionError("expected to be alone")
    with alone(path, patience=0.0):
        pass


async def test_a_file_that_comes_changes_or_goes_has_changed_once(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = Watched(path)
    assert not await file.has_changed()
    for content in (b"old", b"other", None):
        if content is None:
            path.unlink()
        else:
            replace_file(path, content)
        assert await file.has_changed()
        assert not await file.has_changed()


def test_what_is_not_there_and_what_cannot_be_have_no_stamp(tmp_path: Path) -> None:
    assert stamp_of(tmp_path) is not None
    assert stamp_of(tmp_path / "none") is None
    assert stamp_of(Path("a\0b")) is None


def test_no_more_of_a_file_is_read_than_it_may_have(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"four")
    assert read_file(path, 4) == b"four"
    with pytest.raises(ValueError, match="expected at most 3 bytes"):
        read_file(path, 3)
    with pytest.raises(ValueError, match="expected at most 1000 bytes"):
        read_file(Path("/dev/zero"), 1000)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", 3)


def test_a_new_file_never_takes_the_place_of_one_that_is_there(tmp_path: Path) -> None:
    create_file(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", b"second")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a", b"first")]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
