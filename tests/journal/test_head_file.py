"""The end of the chain, in a second place."""

import stat
from pathlib import Path

import pytest

from trunkline.journal.chain import Head
from trunkline.journal.head_file import HeadFile

HEAD = Head("abc", 12, bytes(range(32)))


def test_what_was_noted_is_read_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = HeadFile(tmp_path / "new" / "journal.head")
    assert file.read() is None
    file.write(Head("a-longer-name-of-a-chain", 10**18, bytes(32)))
    file.write(HEAD)
    assert file.read() == HEAD
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"a 1 zz", b"a x " + b"00" * 32, b"a 1 00", b"\xff"]
)
def test_what_makes_no_sense_is_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "head").write_bytes(content)
    assert HeadFile(tmp_path / "head").read() is None


def test_what_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    HeadFile(tmp_path / "file").write(HEAD)
    with pytest.raises(OSError, match="file"):
        HeadFile(tmp_path / "file" / "journal.head").write(HEAD)
