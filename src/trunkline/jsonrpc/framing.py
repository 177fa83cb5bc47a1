r"""Byte stream to payloads and back: one payload per line.

    b'{"a":1}\n{"b"' ──> feed ──> [b'{"a":1}']          b':2}\r\n\n' ──> feed ──> [b'{"b":2}']

It does not parse; the codec reads the lines.

Invariants upheld here:
1. The payloads do not depend on how the stream is cut into chunks.
2. A line longer than the limit is dropped and reported once. Of such a line, only two short pieces
   are kept. The next line is read normally. If the line was a response, the report names its id.
3. Blank lines are ignored; "\r\n" ends a line as "\n" does; the last line needs no end.
"""

from io import BytesIO

from trunkline.jsonrpc.codec import ID_SCAN_BYTES, find_response_id
from trunkline.jsonrpc.errors import LocalProtocolError, RemoteProtocolError, RpcError
from trunkline.jsonrpc.message import ErrorResponse

# The default limit of one line, without its end.
MAX_LINE_BYTES = 16 * 1024 * 1024

# Chunks up to this size are copied once more if that saves steps.
FAST_PATH_BYTES = 64 * 1024

# `in` is faster with a number than with b"\n": for bytes, Python first tries to convert the operand
# to a number, which raises and discards an exception.
_LF = ord("\n")
_CR = ord("\r")


class Framer:
    """Cuts one byte stream into payloads."""

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        self._max_line = max_line
        self._fast_path_bytes = min(max_line, FAST_PATH_BYTES)
        # Pieces instead of one growing string: a long line is copied once, not with each chunk.
        self._pieces: list[bytes] = []
        self._length = 0
        self._dropping = False

    @property
    def buffered(self) -> int:
        """The number of bytes that are kept of an unfinished line."""
        return sum(map(len, self._pieces))

    def feed(self, chunk: bytes) -> list[bytes | RemoteProtocolError]:
        """Return the payloads that `chunk` completes.

        A RemoteProtocolError stands in the place of a line that was too long.
        """
        # BytesIO finds line ends with memchr, 32 bytes at a time; `split` looks at single bytes.
        is_small = len(chunk) <= self._fast_path_bytes and not self._length
        if is_small and chunk.endswith(b"\n") and _CR not in chunk:
            # The usual case: whole lines, none of them too long.
            return [line[:-1] for line in BytesIO(chunk) if not line.isspace()]
        payloads: list[bytes | RemoteProtocolError] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._append(chunk[start:end])
            start = end + 1
            if payload := self._finish_line():
                payloads.append(payload)
        if start < len(chunk):
            self._append(chunk[start:])
        if self._length > self._max_line + 1 and not self._dropping:
            # One byte more than the limit may be the "\r" of a line that is just short enough.
            first = b"".join(piece[:ID_SCAN_BYTES] for piece in self._pieces)
            last = b"".join(piece[-ID_SCAN_BYTES:] for piece in self._pieces)
            self._pieces = [first[:ID_SCAN_BYTES], last[-ID_SCAN_BYTES:]]
            self._dropping = True
        return payloads

    def close(self) -> list[bytes | RemoteProtocolError]:
        """End the stream; return the last payload if its line had no end."""
        return self.feed(b"\n")

    def _append(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._dropping:
            self._pieces[1] = (self._pieces[1] + piece[-ID_SCAN_BYTES:])[-ID_SCAN_BYTES:]
        elif piece:
            self._pieces.append(piece)

    def _finish_line(self) -> bytes | RemoteProtocolError:
        """Return the line that ends here, b"" if it is blank."""
        pieces, length, dropped = self._pieces, self._length, self._dropping
        self._pieces, self._length, self._dropping = [], 0, False
        if dropped:
            return self._line_too_long(length, *pieces)
        line = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if line[-1:] == b"\r":
            line = line[:-1]
        if len(line) > self._max_line:
            return self._line_too_long(length, line, line[-ID_SCAN_BYTES:])
        return b"" if line.isspace() else line

    def _line_too_long(self, length: int, beginning: bytes, end: bytes) -> RemoteProtocolError:
        error = RpcError.parse_error(
            f"expected a line of at most {self._max_line} bytes, got {length}"
        )
        error_payload = ErrorResponse(None, error).encode()
        return RemoteProtocolError(error, error_payload, find_response_id(beginning, end))


def frame(payload: bytes) -> bytes:
    """Return the line that carries `payload`."""
    if _LF in payload:
        raise LocalProtocolError("expected a payload on one line, got a line break in it")
    return payload + b"\n"
