"""The end of the chain, in a second place: whoever cuts records off a store has to find this too.

One line: the name of the chain, the number of the last record, and its hash. Refuses to be needed:
where it cannot be read or written, the store's own note of its end has to do.
"""

import os
from pathlib import Path

from trunkline.journal.chain import SIZE, Head

_LONGEST = 1024


class HeadFile:
    """A small file, for its owner alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Head | None:
        """Return what was noted last; None if nothing was, or it makes no sense."""
        try:
            with self.path.open("rb") as opened:
                chain, seq, digest = opened.read(_LONGEST).decode("ascii").split()
            head = Head(chain, int(seq), bytes.fromhex(digest))
        except (OSError, ValueError):
            return None
        return head if len(head.hash) == SIZE else None

    def write(self, head: Head) -> None:
        """Note where the chain ends; raises OSError."""
        # In place, and in one piece: it is written ten times a second, and never longer than that.
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = f"{head.chain} {head.seq:020} {head.hash.hex()}\n".encode("ascii")
        number = os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            os.write(number, line)
            os.ftruncate(number, len(line))
        finally:
            os.close(number)
