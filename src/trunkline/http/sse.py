r"""Server-sent events: parse a byte stream into events, and encode events.

    b"id: 7\ndata: {}\n" ──> feed ──> []          b"\n" ──> feed ──> [SseEvent(b"{}", id="7")]

The parser does not reconnect or wait; it only keeps the last event id and the retry time for its
caller. It does not decode the data.

Invariants:
1. Events are parsed as the WHATWG specification says, however the stream is cut into pieces. An
   event that the stream does not finish is ignored.
2. Beyond the specification, an event without data is returned if it has an id or a retry time. MCP
   servers send such priming events, so that a client can resume a stream that breaks early.
3. An event above the size limit is dropped and reported once. It takes no more memory than the
   limit, and the events after it are parsed normally.
"""

from typing import NamedTuple

from trunkline.jsonrpc import LocalProtocolError, RemoteProtocolError, RpcError

# A comment, which clients ignore; it keeps proxies from closing an idle stream.
PING_COMMENT = b": ping\n\n"

# The headers of a response that is an event stream; the last one turns off buffering in nginx.
EVENT_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)

_BOM = b"\xef\xbb\xbf"

# The most digits of a retry time that are accepted; longer numbers are slow to convert.
_MAX_RETRY_DIGITS = 15


class SseEvent(NamedTuple):
    """One event; `id` and `retry` are None if the event does not set them."""

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class SseParser:
    """Parses one byte stream into events."""

    def __init__(self, max_event_bytes: int) -> None:
        """Begin; `max_event` limits the lines of an event, field names and all, in bytes."""
        # The id for Last-Event-ID when resuming: that of the last event with an id, or "".
        self.last_event_id = ""
        # The reconnection delay that the server asked for, in milliseconds.
        self.retry: int | None = None
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        self._bom_prefix: bytes | None = b""  # None once the byte order mark was handled
        self._after_cr = False
        self._discarding = False
        self._builder = _EventBuilder()

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes buffered for an unfinished event."""
        return len(self._line) + self._builder.size

    def feed(self, data: bytes) -> list[SseEvent | RemoteProtocolError]:
        """Parse `data`; return the finished events, and an error for each oversized event."""
        events: list[SseEvent | RemoteProtocolError] = []
        *ended, rest = self._split_lines(data)
        for part in ended:
            line = part
            if self._line:
                self._line += part
                line = bytes(self._line)
                self._line.clear()
            self._check_size(len(line), events)
            if line:
                self._add_line(line)
            else:
                self._end_event(events)
        self._line += rest
        self._check_size(len(self._line), events)
        if self._discarding:
            del self._line[1:]  # only whether the line is empty matters
        return events

    def _split_lines(self, data: bytes) -> list[bytes]:
        r"""Split at "\n", "\r\n" and "\r"; the last element is an unfinished line."""
        if self._bom_prefix is not None:
            self._bom_prefix += data
            if len(self._bom_prefix) < len(_BOM) and _BOM.startswith(self._bom_prefix):
                return [b""]
            data = self._bom_prefix.removeprefix(_BOM)
            self._bom_prefix = None
        start = 1 if self._after_cr and data.startswith(b"\n") else 0
        if data:
            self._after_cr = data.endswith(b"\r")
        lines: list[bytes] = []
        lf, cr = data.find(b"\n", start), data.find(b"\r", start)
        while lf >= 0 or cr >= 0:
            end = min(lf, cr) if lf >= 0 and cr >= 0 else max(lf, cr)
            lines.append(data[start:end])
            start = end + (2 if end == cr == lf - 1 else 1)
            # Search no bytes twice for either separator, or many lines take quadratic time.
            if 0 <= lf < start:
                lf = data.find(b"\n", start)
            if 0 <= cr < start:
                cr = data.find(b"\r", start)
        lines.append(data[start:])
        return lines

    def _check_size(self, length: int, events: list[SseEvent | RemoteProtocolError]) -> None:
        """Drop the current event if a line of `length` bytes makes it too long."""
        if not self._discarding and self._builder.size + length > self._max_event_bytes:
            self._discarding = True
            self._builder.discard_data()
            detail = f"expected an event of at most {self._max_event_bytes} bytes, got more"
            events.append(RemoteProtocolError(RpcError.parse_error(detail)))

    def _add_line(self, line: bytes) -> None:
        colon = line.find(b":")
        if self._discarding or colon == 0:
            return
        name, value = line, b""
        if colon > 0:
            name = line[:colon]
            value = line[colon + 1 + line.startswith(b" ", colon + 1) :]
        builder = self._builder
        if name == b"data":
            builder.add(value)
        elif name == b"event":
            builder.event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                builder.id = value.decode(errors="replace")
        elif name == b"retry":
            if value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                builder.retry = self.retry = int(value)
            return
        else:
            return
        builder.size += len(line)

    def _end_event(self, events: list[SseEvent | RemoteProtocolError]) -> None:
        builder, self._builder = self._builder, _EventBuilder()
        if builder.id is not None:
            # Also for an oversized event: otherwise the server would send it again on resumption.
            self.last_event_id = builder.id
        if self._discarding:
            self._discarding = False
        elif (builder.data, builder.id, builder.retry) != (None, None, None):
            data = bytes(builder.data or b"")
            events.append(SseEvent(data, builder.event or "message", builder.id, builder.retry))


class _EventBuilder:
    """Collects the fields of the event that is being parsed."""

    def __init__(self) -> None:
        self.data: bytes | bytearray | None = None
        self.event = ""
        self.id: str | None = None
        self.retry: int | None = None
        self.size = 0

    def add(self, line: bytes) -> None:
        """Add a line of data; the first and often only line is not copied."""
        if self.data is None:
            self.data = line
        else:
            self.data = self.data if isinstance(self.data, bytearray) else bytearray(self.data)
            self.data += b"\n"
            self.data += line

    def discard_data(self) -> None:
        """Drop everything that takes memory, but keep the id."""
        self.data, self.event, self.size = None, "", 0


def encode_event(
    data: bytes, id: bytes | None = None, event: bytes | None = None, retry: int | None = None
) -> bytes:
    """Encode an event; each line of `data` becomes a data field."""
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
