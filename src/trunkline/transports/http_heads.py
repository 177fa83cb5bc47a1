r"""Heads: those of one connection that were read before, alike but for the length of what follows.

    b"POST /mcp …content-length: 152\r\n…" ──keep──> the same with %d for the digits ──> Kept
    b"POST /mcp …content-length: 97\r\n…{…}" ──find──> Kept, b"{…}"

Refuses to read a head: whoever keeps one has had it read by a parser, and found nothing unusual.

Rules upheld here:
1. What is found differs from what was kept in nothing but the digits of its length, and has exactly
   as many bytes behind it as these say: all else is left to the parser. So is the first that has
   fewer digits, or more; then it is kept as well.
2. Few heads are kept, and no long ones.
"""

from typing import Generic, TypeVar

MOST, LONGEST = 8, 2048
"""How many heads are kept, and how long they may be, in bytes."""

_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"

Kept = TypeVar("Kept")


class Heads(Generic[Kept]):
    """What is known of heads, by all but their lengths."""

    def __init__(self, max_body: int) -> None:
        """Begin with none; what might announce more than `max_body` bytes is never found."""
        self._max_body = max_body
        self._kept: list[tuple[bytes, int, Kept]] = []
        """The head with `%d` for the digits, how long it is with them, and what is known of it."""

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, piece: bytes) -> tuple[Kept, bytes] | None:
        """Return what was kept of such a head, and the body.

        None unless the piece is such a head and just that body.
        """
        for pattern, size, kept in self._kept:
            body = piece[size:]
            if piece[:size] == pattern % len(body):
                return kept, body
        return None

    def keep(self, piece: bytes, kept: Kept) -> None:
        """Keep what a head says that is read, and begins a piece; all of its body follows there."""
        size = piece.find(_END) + len(_END)
        start = piece[:size].lower().find(_LENGTH) + len(_LENGTH)
        if not len(_LENGTH) <= start < size <= LONGEST:
            return
        start += len(piece[start:size]) - len(piece[start:size].lstrip(b" \t"))
        end = piece.find(b"\r", start)
        digits = piece[start:end]
        # Of all lengths with so many digits none is too much: nobody has to look again.
        if digits != b"%d" % (len(piece) - size) or 10 ** len(digits) > self._max_body + 1:
            return
        pattern = b"%d".join(part.replace(b"%", b"%%") for part in (piece[:start], piece[end:size]))
        for known, _, said in self._kept:
            if known == pattern:  # with other digits: it says the same
                kept = said
        # The newest first: what a client says once comes before what it says again and again.
        self._kept.insert(0, (pattern, size, kept))
        del self._kept[MOST:]

    def clear(self) -> None:
        """Forget all of them."""
        self._kept.clear()
