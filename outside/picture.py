"""Records the picture of a terminal in docs/ with the real server: `make picture`."""

import tempfile
from pathlib import Path

from outside.program import HERE
from outside.real_reader import real_reader
from tests.guides.picture import draw, record

PICTURE = HERE.parent / "docs" / "terminal.svg"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, real_reader(Path(folder)) as reader:
        PICTURE.write_text(draw(record(reader)), encoding="utf-8")


if __name__ == "__main__":
    main()
