r"""Server-sent events: a byte stream to events, and back.

    b"id: 7\ndata: {}\n" ──> feed ──> []          b"\n" ──> feed ──> [Event(b"{}", id="7")]

Refuses to reconnect and to wait: it only remembers what whoever reconnects has to know. Refuses to
parse, too: data stays the bytes it was.

Rules upheld here:
1. An event is what the WHATWG specification says, however the stream is cut; one that the stream
   does not end is none.
2. Beyond the specification, an event without data is told if it has an id or a retry: MCP servers
   send such events first, so that a client can come back to a stream that breaks early.
3. An event longer than the limit is dropped, reported once, and costs no more memory than the
   limit; the next is read as if nothing had happened.
"""

from typing import NamedTuple

from trunkline.jsonrpc import LocalProtocolError, RemoteProtocolError, RpcError

COMMENT = b": ping\n\n"
"""Says nothing, so that everybody in between sees a stream that is alive."""

_BOM = b"\xef\xbb\xbf"

_MAX_RETRY = 15
"""The longest retry that is read, in digits: beyond any use, short of what is slow to convert."""


class Event(NamedTuple):
    """One event; `id` and `retry` are None where it has none of its own."""

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class SseParser:
    """Cuts one byte stream into events."""

    def __init__(self, max_event: int) -> None:
        """Begin; `max_event` limits the lines of an event, field names and all, in bytes."""
        self.last_event_id = ""
        """What to ask for after a break: the id of the last event that had one; "" if none did."""
        self.retry: int | None = None
        """How many milliseconds the server wants a client to wait before it comes back."""
        self._max_event = max_event
        self._line = bytearray()
        self._head: bytes | None = b""  # None once there can be no more of a byte order mark
        self._after_cr = False
        self._dropping = False
        self._event = _Draft()

    @property
    def held(self) -> int:
        """Tell how many bytes of an unfinished event are kept."""
        return len(self._line) + self._event.size

    def feed(self, data: bytes) -> list[Event | RemoteProtocolError]:
        """Take what arrived; return the events it ended, and an accusation per event too long."""
        found: list[Event | RemoteProtocolError] = []
        *ended, rest = self._split(data)
        for part in ended:
            line = part
            if self._line:
                self._line += part
                line = bytes(self._line)
                self._line.clear()
            self._check(len(line), found)
            if line:
                self._take(line)
            else:
                self._end(found)
        self._line += rest
        self._check(len(self._line), found)
        if self._dropping:
            del self._line[1:]  # that there was something is all that matters
        return found

    def _split(self, data: bytes) -> list[bytes]:
        r"""Cut at "\n", "\r\n" and "\r"; what comes last has not ended."""
        if self._head is not None:
            self._head += data
            if len(self._head) < len(_BOM) and _BOM.startswith(self._head):
                return [b""]
            data = self._head.removeprefix(_BOM)
            self._head = None
        start = 1 if self._after_cr and data.startswith(b"\n") else 0
        if data:
            self._after_cr = data.endswith(b"\r")
        lines: list[bytes] = []
        lf, cr = data.find(b"\n", start), data.find(b"\r", start)
        while lf >= 0 or cr >= 0:
            end = min(lf, cr) if lf >= 0 and cr >= 0 else max(lf, cr)
            lines.append(data[start:end])
            start = end + (2 if end == cr == lf - 1 else 1)
            # Neither is looked for twice in the same bytes, or many lines would take for ever.
            if 0 <= lf < start:
                lf = data.find(b"\n", start)
            if 0 <= cr < start:
                cr = data.find(b"\r", start)
        lines.append(data[start:])
        return lines

    def _check(self, length: int, found: list[Event | RemoteProtocolError]) -> None:
        """Drop the event at hand if a line of `length` makes it too long."""
        if not self._dropping and self._event.size + length > self._max_event:
            self._dropping = True
            self._event.shed()
            detail = f"expected an event of at most {self._max_event} bytes, got more"
            found.append(RemoteProtocolError(RpcError.parse_error(detail)))

    def _take(self, line: bytes) -> None:
        colon = line.find(b":")
        if self._dropping or colon == 0:
            return
        name, value = line, b""
        if colon > 0:
            name = line[:colon]
            value = line[colon + 1 + line.startswith(b" ", colon + 1) :]
        draft = self._event
        if name == b"data":
            draft.add(value)
        elif name == b"event":
            draft.event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                draft.id = value.decode(errors="replace")
        elif name == b"retry":
            if value.isdigit() and len(value) <= _MAX_RETRY:
                draft.retry = self.retry = int(value)
            return
        else:
            return
        draft.size += len(line)

    def _end(self, found: list[Event | RemoteProtocolError]) -> None:
        draft, self._event = self._event, _Draft()
        if draft.id is not None:
            # Also of an event too long: whoever comes back must not be sent it once more.
            self.last_event_id = draft.id
        if self._dropping:
            self._dropping = False
        elif (draft.data, draft.id, draft.retry) != (None, None, None):
            data = bytes(draft.data or b"")
            found.append(Event(data, draft.event or "message", draft.id, draft.retry))


class _Draft:
    """The event that is being read."""

    def __init__(self) -> None:
        self.data: bytes | bytearray | None = None
        self.event = ""
        self.id: str | None = None
        self.retry: int | None = None
        self.size = 0

    def add(self, line: bytes) -> None:
        """Add a line of data; the first, and often the only one, is not copied."""
        if self.data is None:
            self.data = line
        else:
            self.data = self.data if isinstance(self.data, bytearray) else bytearray(self.data)
            self.data += b"\n"
            self.data += line

    def shed(self) -> None:
        """Let go of all that takes room, but not of the id."""
        self.data, self.event, self.size = None, "", 0


def encode_event(
    data: bytes, id: bytes | None = None, event: bytes | None = None, retry: int | None = None
) -> bytes:
    """Return the event that carries `data`; each of its lines in a line of its own."""
    lines: list[bytes] = []
    for name, value in ((b"id", id), (b"event", event)):
        if value is not None:
            if b"\n" in value or b"\r" in value or b"\0" in value:
                raise LocalProtocolError(f"expected {name.decode()} on one line, got {value!r}")
            lines.append(b"%b: %b\n" % (name, value))
    if retry is not None:
        lines.append(b"retry: %d\n" % retry)
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
    return b"%bdata: %b\n\n" % (b"".join(lines), data)
