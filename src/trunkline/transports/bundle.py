"""Bundle: what is sent in one turn of the loop leaves in one write.

A system call costs more than all else that is done to a line here, and calls come in bursts.
"""

import asyncio
from collections.abc import Callable

MAX_HELD = 64 * 1024
"""How many bytes may wait for the end of the turn: whoever never ends it is held up in time."""


class Bundle:
    """Collects pieces, and writes them together."""

    def __init__(self, write: Callable[[bytes], None], loop: asyncio.AbstractEventLoop) -> None:
        self._write = write
        self._loop = loop
        self._pieces: list[bytes] = []
        self._held = 0

    def add(self, piece: bytes, alone: bool = False) -> None:
        """Have a piece written with the others of this turn, or now if it is to stay alone."""
        if alone and not self._pieces:
            self._write(piece)
            return
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held >= MAX_HELD:
            self.flush()
        elif len(self._pieces) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what there is, now."""
        if self._pieces:
            pieces, self._pieces, self._held = self._pieces, [], 0
            self._write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
