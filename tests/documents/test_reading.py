"""Files to text, within a limit."""

from pathlib import Path

import pytest

from trunkline.documents.errors import ConfigErrors
from trunkline.documents.reading import read_text


def test_a_file_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"\xef\xbb\xbfhello")
    assert read_text(file, 8) == "hello"


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a", b"123456789", "a: longer than 8 bytes; is it the right file?"),
        ("a", b"1\n2\xff", "a:2: not UTF-8; save it as UTF-8"),
        ("a", None, "a: there is no such file; make one"),
        (".", None, ": cannot be read: is a directory; check its name and its permissions"),
        ("\0", None, "\0: cannot be read: not a file name; check its name and its permissions"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, name: str, data: bytes | None, expected: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigErrors) as caught:
        read_text(tmp_path / name, 8, "make one")
    assert str(caught.value).endswith(expected)
