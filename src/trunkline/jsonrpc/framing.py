r"""Byte stream to payloads and back: one payload a line.

    b'{"a":1}\n{"b"' ──> feed ──> [b'{"a":1}']          b':2}\r\n\n' ──> feed ──> [b'{"b":2}']

Refuses to parse: what is in a line is the codec's business.

Rules upheld here:
1. How the stream is cut into chunks changes nothing.
2. A line longer than the limit is dropped, reported once, and costs no more memory than the limit;
   the next line is read as if nothing had happened. Of an answer it is told whose it was.
3. Blank lines are nothing; "\r\n" ends a line as "\n" does; the last line needs no end.
"""

from io import BytesIO

from trunkline.jsonrpc.errors import LocalProtocolError, RemoteProtocolError, RpcError
from trunkline.jsonrpc.message import ErrorResponse
from trunkline.jsonrpc.remains import ENOUGH, answered_id

MAX_LINE = 16 * 1024 * 1024
"""The default limit of one line, in bytes, its end not counted."""

SMALL = 64 * 1024
"""How many bytes may be copied twice, if that saves steps."""

# Single bytes are compared as the numbers that they are: with `in`, Python takes bytes for a number
# first, and raises an error that nobody sees before it looks for them.
_LF = ord("\n")
_CR = ord("\r")


class Framer:
    """Cuts one byte stream into payloads."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._small = min(max_line, SMALL)
        # A list of pieces, not one growing string: a long line is copied once, not at each chunk.
        self._pieces: list[bytes] = []
        self._length = 0
        self._dropping = False

    @property
    def held(self) -> int:
        """Tell how many bytes of an unfinished line are kept."""
        return sum(map(len, self._pieces))

    def feed(self, chunk: bytes) -> list[bytes | RemoteProtocolError]:
        """Take what arrived; return the payloads it completed, and an accusation per line too long.

        An accusation stands where its line stood.
        """
        # Not by `split`: that looks at each byte on its own, and these at thirty-two at a time.
        small = len(chunk) <= self._small and not self._length
        if small and chunk.endswith(b"\n") and _CR not in chunk:
            # The usual case: whole lines, none of them too long.
            return [line[:-1] for line in BytesIO(chunk) if not line.isspace()]
        found: list[bytes | RemoteProtocolError] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._keep(chunk[start:end])
            start = end + 1
            if ended := self._end_line():
                found.append(ended)
        if start < len(chunk):
            self._keep(chunk[start:])
        if self._length > self._max_line + 1 and not self._dropping:
            # One byte of grace: it may be the "\r" of a line that is just short enough.
            self._pieces = [_first(self._pieces), _last(self._pieces)]
            self._dropping = True
        return found

    def close(self) -> list[bytes | RemoteProtocolError]:
        """Take the end of the stream; return the last payload if its line was not ended."""
        return self.feed(b"\n")

    def _keep(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._dropping:
            self._pieces[1] = (self._pieces[1] + piece[-ENOUGH:])[-ENOUGH:]
        elif piece:
            self._pieces.append(piece)

    def _end_line(self) -> bytes | RemoteProtocolError:
        """Return the line that ends here, b"" if it is blank."""
        pieces, length, dropped = self._pieces, self._length, self._dropping
        self._pieces, self._length, self._dropping = [], 0, False
        if dropped:
            return self._accuse(length, *pieces)
        line = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if line[-1:] == b"\r":
            line = line[:-1]
        if len(line) > self._max_line:
            return self._accuse(length, line, line[-ENOUGH:])
        return b"" if line.isspace() else line

    def _accuse(self, length: int, beginning: bytes, end: bytes) -> RemoteProtocolError:
        error = RpcError.parse_error(
            f"expected a line of at most {self._max_line} bytes, got {length}"
        )
        answer = ErrorResponse(None, error).encode()
        return RemoteProtocolError(error, answer, answered_id(beginning, end))


def _first(pieces: list[bytes]) -> bytes:
    """Return the first bytes of what comes in pieces."""
    found = b""
    for piece in pieces:
        found += piece[: ENOUGH - len(found)]
        if len(found) == ENOUGH:
            break
    return found


def _last(pieces: list[bytes]) -> bytes:
    """Return the last bytes of what comes in pieces."""
    found = b""
    for piece in reversed(pieces):
        found = piece[-(ENOUGH - len(found)) :] + found
        if len(found) == ENOUGH:
            break
    return found


def frame(payload: bytes) -> bytes:
    """Return the line that carries `payload`."""
    if _LF in payload:
        raise LocalProtocolError("expected a payload on one line, got a line break in it")
    return payload + b"\n"
