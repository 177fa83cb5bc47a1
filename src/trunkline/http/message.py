r"""HTTP/1.1 messages: read requests within limits, cache their heads, and render response heads.

    feed(bytes) ──> llhttp ──> on_… ──> parsed: ParsedRequest, ParsedRequest, … RequestRejected
    b"POST /mcp …content-length: 97\r\n…{…}" ──> HeadCache.find ──> the parsed head, b"{…}"

Pure: no sockets, no clock, no waiting. A reader holds at most one unfinished request, plus the
requests in the bytes that it was fed at once; `feed_size` says how many bytes that should be.

llhttp in strict mode rejects Content-Length together with Transfer-Encoding, repeated or malformed
lengths, folded lines, bare CR and LF, white space before a colon, and control bytes. The invariants
that this module alone upholds:
1. A request is returned complete or not at all. Oversized requests are rejected early.
2. A body ends where its head says, or the request is rejected: its bytes have one interpretation.
3. There is exactly one Host header. An absolute target must name the same host, because access
   checks look at the header.
4. After a rejection, an upgrade, or a request with `connection: close`, nothing more is read.
5. A request that offers an upgrade keeps its body: it is read as usual, and the offer is ignored.
   (Java's HTTP client offers h2c with every POST.)
6. A response header cannot contain another header.
7. A cached head differs from the bytes it was stored for only in the digits of Content-Length, and
   is used only if exactly that many bytes follow. Everything else goes to the parser.
8. Only a few heads are cached, and no long ones.
"""

from collections import deque
from collections.abc import Collection, Mapping
from functools import lru_cache
from http import HTTPStatus
from types import SimpleNamespace
from typing import Generic, NoReturn, TypeVar

import httptools
from msgspec import Struct

from trunkline.http.address import FORWARDING_HEADERS, NO_PROXIES, TrustedProxies
from trunkline.http.bodies import EarlyResponse
from trunkline.http.exchange import HeaderTuple, HttpRequest, RequestHead
from trunkline.http.states import ReaderPhase

KIB = 1024

# How many bytes to feed at once if they may hold many pipelined requests.
PARSE_SLICE_BYTES = 4 * KIB

# Up to this size, copying a body is cheaper than a second write.
COPY_THRESHOLD_BYTES = 16 * KIB

# On Python 3.11, an attribute of an enum class takes 44 ns and a global 2 ns.
_IDLE, _HEAD, _BODY, _CLOSED = ReaderPhase

CONNECTION_CLOSE = b"connection: close\r\n"
TEXT_HEADERS = ((b"content-type", b"text/plain"),)

_SLASH = ord("/")
_NO_NAMES: frozenset[bytes] = frozenset()
_CONNECTION_HEADERS = frozenset((b"expect", b"upgrade"))
# Headers whose values differ with every request, so that caching the head is useless.
_TRACE_HEADERS = frozenset(
    b"traceparent b3 x-b3-traceid sentry-trace x-datadog-trace-id x-amzn-trace-id "
    b"x-cloud-trace-context x-request-id x-correlation-id cf-ray".split()
)

_UNCACHEABLE_HEADERS = _CONNECTION_HEADERS | _TRACE_HEADERS
_STOPPED_PARSER = httptools.HttpRequestParser(object())
_STATUS_LINES = {int(s): b"HTTP/1.1 %d %b\r\n" % (s, s.phrase.encode()) for s in HTTPStatus}

# How many heads of a connection are cached, and the size limit of each.
MAX_CACHED_HEADS, MAX_CACHED_HEAD_BYTES = 8, 2048

_HEAD_END = b"\r\n\r\n"
_LENGTH_HEADER = b"\r\ncontent-length:"

HeadT = TypeVar("HeadT")


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Limits of the HTTP server; sizes in bytes, times in seconds."""

    head_timeout: float = 10.0
    """From connecting to the first byte of a request; from there to the end of its head."""
    body_timeout: float = 30.0
    """From the end of the head to the end of the body."""
    min_rate: float = 1024.0
    """Minimum average rate in bytes per second at which a client must send and read."""
    min_rate_delay: float = 5.0
    """How long a body may be slower than `min_rate` before the rate is enforced."""
    idle_timeout: float = 75.0
    """Between two requests. It starts with the first deadline check after the response."""
    write_timeout: float = 30.0
    """How long a client may read slower than `min_rate` while the write buffer is full."""
    half_closed_timeout: float = 1.0
    """How long to wait for each response after the client's EOF; most such clients have gone."""
    linger_timeout: float = 2.0
    """How long a rejected client may go on sending, so that it can read the reason."""
    first_request_grace: float = 0.2
    """How long clients that have just connected may still send a request when the server closes."""

    max_target: int = 8 * KIB
    max_head: int = 32 * KIB
    max_headers: int = 100
    max_body: int = 4 * KIB * KIB
    high_water_bytes: int = 256 * KIB
    """The size of the write buffer above which senders have to wait."""

    max_connections: int = 16384
    max_connections_per_address: int = 8192

    @property
    def sweep_interval(self) -> float:
        """How often to check deadlines, so that each is at most 50 % late."""
        times = (
            self.head_timeout,
            self.body_timeout,
            self.min_rate_delay,
            self.idle_timeout,
            self.write_timeout,
            self.half_closed_timeout,
            self.linger_timeout,
        )
        return min(1.0, max(0.01, min(times) / 2))


class RequestRejected(Exception):
    """The request is answered with an error status, and the connection is closed after that."""

    def __init__(self, status: int, reason: str, response: EarlyResponse | None = None) -> None:
        """Create it; without `response`, the client gets the reason as text."""
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.response = response


def check_head_size(target: bytes, headers: Mapping[bytes, bytes], limits: HttpLimits) -> None:
    """Raise RequestRejected if the head is too long."""
    size = len(target) + sum(len(name) + len(value) + 4 for name, value in headers.items())
    if size > limits.max_head:
        raise RequestRejected(431, f"expected a head of at most {limits.max_head} bytes")


def check_host(
    headers: Mapping[bytes, bytes], repeated: Collection[bytes], is_http11: bool
) -> None:
    """Raise RequestRejected unless there is exactly one Host header (RFC 9112, section 3.2)."""
    if b"host" in repeated:
        raise RequestRejected(400, "expected one host header, got several")
    if is_http11 and b"host" not in headers:
        raise RequestRejected(400, "expected a host header")


def body_length(headers: Mapping[bytes, bytes], is_http11: bool, limits: HttpLimits) -> int | None:
    """Return the length of the body, or None if it is chunked."""
    length = headers.get(b"content-length")
    if b"transfer-encoding" not in headers:
        size = int(length) if length else 0  # llhttp accepts only digits
        if size > limits.max_body:
            raise body_too_long(limits)
        return size
    encoding = headers[b"transfer-encoding"]
    if not is_http11 or length is not None:
        raise RequestRejected(
            400, "expected either a content-length or, in 1.1, a transfer-encoding"
        )
    if encoding.lower() != b"chunked":  # compressed transfer codings are not supported
        raise RequestRejected(501, f"expected transfer-encoding 'chunked', got {encoding[:40]!r}")
    return None


def body_too_long(limits: HttpLimits) -> RequestRejected:
    """Return the error for a body that exceeds `max_body`."""
    return RequestRejected(
        413, f"expected a body of at most {limits.max_body} bytes (http.max_body)"
    )


@lru_cache(256)
def split_target(target: bytes) -> tuple[str, str]:
    """Split a request target into path and query."""
    if b"#" in target:
        raise RequestRejected(400, "expected a target without a fragment")
    path, _, query = target.decode("ascii").partition("?")
    return path, query


def strip_origin(target: bytes, host: bytes) -> bytes:
    """Return the path of an absolute target, whose authority must equal the Host header."""
    scheme, found, rest = target.partition(b"://")
    if not found or scheme.lower() not in {b"http", b"https"}:
        raise RequestRejected(400, f"expected a path as target, got {target[:40]!r}")
    size = next((at for at, byte in enumerate(rest) if byte in b"/?#"), len(rest))
    if rest[:size].lower() != host.lower():
        raise RequestRejected(400, "expected the target to name the same host as the host header")
    path = rest[size:]
    return path if path.startswith(b"/") else b"/" + path


class ConnectionFlags(Struct, frozen=True, gc=False):
    """The parts of a request head that concern the connection and the form of the response."""

    is_http11: bool
    """Whether the client speaks HTTP/1.1, so that it understands chunks and interim responses."""
    keep_alive: bool
    """Whether another request may follow."""
    can_upgrade: bool
    """Whether the client offers an upgrade; bytes after the request are not HTTP if we accept."""
    has_no_body: bool = False
    """Whether the response has no body, even if its headers announce one, as for HEAD."""


DEFAULT_FLAGS = ConnectionFlags(is_http11=True, keep_alive=True, can_upgrade=False)


class ParsedRequest(Struct, frozen=True, gc=False):
    """A complete request and its connection flags."""

    request: HttpRequest
    flags: ConnectionFlags


class HeadCache(Generic[HeadT]):
    """Caches parsed heads by their bytes, except for the digits of Content-Length."""

    def __init__(self, max_body: int) -> None:
        """Create an empty cache; heads whose length could exceed `max_body` are never stored."""
        self._max_body = max_body
        # (head with `%d` for the length, its size with the digits, the cached value)
        self._entries: list[tuple[bytes, int, HeadT]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, piece: bytes) -> tuple[HeadT, bytes] | None:
        """Return the cached head and the body if `piece` is exactly one such request, or None."""
        for pattern, size, head in self._entries:
            body = piece[size:]
            if piece[:size] == pattern % len(body):
                return head, body
        return None

    def store(self, piece: bytes, head: HeadT) -> None:
        """Store the parsed head of `piece`, which consists of that head and its complete body."""
        size = piece.find(_HEAD_END) + len(_HEAD_END)
        start = piece[:size].lower().find(_LENGTH_HEADER) + len(_LENGTH_HEADER)
        if not len(_LENGTH_HEADER) <= start < size <= MAX_CACHED_HEAD_BYTES:
            return
        start += len(piece[start:size]) - len(piece[start:size].lstrip(b" \t"))
        end = piece.find(b"\r", start)
        digits = piece[start:end]
        # No length with this many digits may exceed the limit, so `find` need not check it.
        if digits != b"%d" % (len(piece) - size) or 10 ** len(digits) > self._max_body + 1:
            return
        pattern = b"%d".join(part.replace(b"%", b"%%") for part in (piece[:start], piece[end:size]))
        for cached_pattern, _, cached in self._entries:
            if cached_pattern == pattern:  # the same head with another number of digits
                head = cached
        # Newest first. A client sends its one-off heads before the head that it repeats.
        self._entries.insert(0, (pattern, size, head))
        del self._entries[MAX_CACHED_HEADS:]

    def clear(self) -> None:
        """Remove all heads."""
        self._entries.clear()


class RequestReader:
    """Reads the requests of one connection; the `on_…` methods are callbacks of the parser."""

    __slots__ = (
        "_address",
        "_body",
        "_draining",
        "_duplicate_count",
        "_fed_bytes",
        "_head",
        "_headers",
        "_is_http11",
        "_keep_alive",
        "_length",
        "_limits",
        "_parser",
        "_proxies",
        "_rejection",
        "_repeated",
        "_target",
        "_upgrade_offered",
        "expects_continue",
        "head_cache",
        "parsed",
        "phase",
        "received",
        "trailing_data",
    )

    def __init__(
        self, address: str, limits: HttpLimits, proxies: TrustedProxies = NO_PROXIES
    ) -> None:
        self._address = address
        self._limits = limits
        self._proxies = proxies
        self._parser = httptools.HttpRequestParser(self)
        self._rejection: RequestRejected | None = None
        # Whether the connection closes after the request that is being read.
        self._draining = False
        # Heads that need no parsing. Use it only between requests; they have DEFAULT_FLAGS.
        self.head_cache = HeadCache[RequestHead](limits.max_body)
        self.parsed: deque[ParsedRequest | RequestRejected] = deque()
        self.phase = _IDLE
        # How many bytes of the current body have arrived.
        self.received = 0
        # Whether the client waits for 100 Continue before it sends the current body.
        self.expects_continue = False
        # The bytes that followed a request with an upgrade offer.
        self.trailing_data = b""
        self.on_message_begin()
        self.phase = _IDLE

    @property
    def feed_size(self) -> int:
        """How many bytes to feed at once: a slice, or the rest of the current body."""
        return (
            max(PARSE_SLICE_BYTES, (self._length or 0) - self.received)
            if self.phase is _BODY
            else PARSE_SLICE_BYTES
        )

    @property
    def unread_request(self) -> tuple[HttpRequest, int | None]:
        """The request whose body is being read, without the body, and its length if known."""
        return HttpRequest(self._head, b""), self._length

    def feed(self, piece: bytes | bytearray) -> None:
        """Parse `piece`; completed requests are appended to `parsed`."""
        if self.phase is _CLOSED:
            return
        whole = piece if type(piece) is bytes and self.phase is _IDLE else None
        try:
            self._parser.feed_data(piece)
            if whole is not None and self.phase is _IDLE and len(self.parsed) == 1:
                self._cache_head(whole)
            if self.phase is not _IDLE:
                self._fed_bytes += len(piece)
                self._check_unfinished()
        except httptools.HttpParserUpgrade as offer:
            self._handle_upgrade(bytes(piece[offer.args[0] :]))
        except (RequestRejected, httptools.HttpParserError) as error:
            # httptools wraps the exceptions of callbacks; `_rejection` is the original.
            self.reject(self._rejection or RequestRejected(400, str(error)))

    def _cache_head(self, piece: bytes) -> None:
        """Cache the head if the client is likely to repeat it.

        The parser is between two requests now, as it will be when the cached head is used.
        """
        head = self._head
        repeatable = self._length is not None and head.method != "HEAD"
        if repeatable and head.headers.keys().isdisjoint(_UNCACHEABLE_HEADERS):
            self.head_cache.store(piece, head)

    def take_default(self) -> tuple[RequestHead, bytes] | None:
        """Return head and body if exactly one request with DEFAULT_FLAGS was parsed.

        The result has the form of `head_cache.find`.
        """
        parsed = self.parsed
        if len(parsed) == 1 and self.phase is _IDLE:
            first = parsed[0]
            if isinstance(first, ParsedRequest) and first.flags == DEFAULT_FLAGS:
                parsed.clear()
                return first.request.head, first.request.body
        return None

    def reject(self, rejection: RequestRejected) -> None:
        """Stop reading; the rejection is answered after the requests before it."""
        if self.phase is not _CLOSED:
            self.phase = _CLOSED
            self._body = b""
            self.parsed.append(rejection)

    def drain(self) -> None:
        """Read the current request, and nothing after it."""
        self._draining = True

    def stop(self) -> None:
        """Stop reading and drop unanswered requests."""
        self.phase = _CLOSED
        self.parsed.clear()
        self.head_cache.clear()
        self._body = b""
        self._parser = _STOPPED_PARSER  # the real one refers to this object: break the cycle

    def on_message_begin(self) -> None:
        """Reset the state of the previous request."""
        if self.phase is _CLOSED:
            self._abort(RequestRejected(400, "expected no request after connection: close"))
        self.phase = _HEAD
        self._fed_bytes = 0
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeated = _NO_NAMES
        self._duplicate_count = 0
        self._body: bytes | bytearray = b""
        self.received = 0
        self._upgrade_offered = False

    def on_url(self, part: bytes) -> None:
        """Append a part of the request target."""
        self._target += part
        max_target = self._limits.max_target
        if len(self._target) > max_target:
            self._abort(RequestRejected(414, f"expected a target of at most {max_target} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; also called for trailers, which are ignored."""
        name, headers = name.lower(), self._headers
        if name in headers:
            self._repeated |= {name}
            self._duplicate_count += 1
            if name in FORWARDING_HEADERS:
                headers[name] += b"," + value
            self._check_count()
        else:
            headers[name] = value.rstrip(b" \t")

    def on_headers_complete(self) -> None:
        """Check the head."""
        try:
            self._check_head()
        except RequestRejected as rejection:
            self._abort(rejection)

    def on_body(self, part: bytes) -> None:
        """Append a part of the body."""
        if not self.received:
            self._body = part  # most bodies arrive in one part and need no copy
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += part
        self.received += len(part)
        if self.received > self._limits.max_body:
            self._abort(body_too_long(self._limits))

    def on_message_complete(self) -> None:
        """Emit the request."""
        if not self._upgrade_offered:
            self._emit_request(can_upgrade=False)
            self.phase = _IDLE if self._keep_alive else _CLOSED

    def _check_head(self) -> None:
        headers, limits, parser = self._headers, self._limits, self._parser
        if len(headers) + self._duplicate_count > limits.max_headers:
            self._check_count()
        if self._fed_bytes + PARSE_SLICE_BYTES > limits.max_head:
            check_head_size(self._target, headers, limits)
        self._keep_alive = parser.should_keep_alive()
        # Only 1.1 keeps a connection alive without a header. That saves get_http_version(), which
        # formats a string and costs more than the other checks together.
        if not self._keep_alive or b"connection" in headers:
            version = parser.get_http_version()
            if version not in {"1.0", "1.1"}:
                raise RequestRejected(505, f"expected HTTP/1.1, got {version!r}")
            self._is_http11 = version == "1.1"
            self._keep_alive = self._keep_alive and self._is_http11
        else:
            self._is_http11 = True
        if self._repeated or b"host" not in headers:
            check_host(headers, self._repeated, self._is_http11)
        self._length = body_length(headers, self._is_http11, limits)
        headers.pop(b"content-length", None)  # the body is delivered complete
        if b"upgrade" in headers:
            self._upgrade_offered = parser.should_upgrade()
        if b"expect" in headers:
            self._check_expectation(headers[b"expect"])
        method = parser.get_method().decode("ascii")
        if method == "CONNECT":
            raise RequestRejected(400, "expected a request for a resource, got CONNECT")
        target = self._target
        if target[0] != _SLASH:  # absolute form (RFC 9112, section 3.2.2)
            target = strip_origin(target, headers.get(b"host", b""))
        address = self._address
        if self._proxies is not NO_PROXIES:
            address = self._proxies.client_address(address, headers)
        self._head = RequestHead(method, *split_target(target), headers, self._repeated, address)
        self._headers = {}  # trailers go into a dict of their own, which is ignored
        self.phase = _BODY

    def _emit_request(self, *, can_upgrade: bool) -> None:
        request = HttpRequest(self._head, bytes(self._body))
        has_no_body = self._head.method == "HEAD"
        self._keep_alive = self._keep_alive and not self._draining
        flags = ConnectionFlags(self._is_http11, self._keep_alive, can_upgrade, has_no_body)
        self.parsed.append(ParsedRequest(request, flags))
        self.expects_continue = False

    def _abort(self, rejection: RequestRejected) -> NoReturn:
        """Stop the parser; it loses the cause if it runs while another exception is handled."""
        self._rejection = rejection
        raise rejection

    def _check_count(self) -> None:
        count = len(self._headers) + self._duplicate_count
        if count > self._limits.max_headers:
            self._abort(
                RequestRejected(431, f"expected at most {self._limits.max_headers} headers")
            )

    def _check_unfinished(self) -> None:
        """Bound the bytes around the body: the parser buffers unfinished headers and trailers."""
        self._check_count()
        fed, limits = self._fed_bytes, self._limits
        if self.phase is _HEAD and fed > limits.max_head + PARSE_SLICE_BYTES:
            self._abort(RequestRejected(431, f"expected a head of at most {limits.max_head} bytes"))
        # One-byte chunks take 6 bytes per byte of the body (RFC 9112, section 7.1); 8 leaves room.
        # The rest is for the head and the trailers.
        if (
            self.phase is _BODY
            and self._length is None
            and fed > 2 * (limits.max_head + PARSE_SLICE_BYTES) + 8 * self.received
        ):
            self._abort(RequestRejected(400, "expected less overhead around the body"))

    def _check_expectation(self, value: bytes) -> None:
        if value.lower() != b"100-continue":
            raise RequestRejected(417, f"expected '100-continue', got {value[:40]!r}")
        self.expects_continue = self._is_http11

    def _handle_upgrade(self, trailing_data: bytes) -> None:
        self._keep_alive = False
        if self._length == 0:
            self._emit_request(can_upgrade=self._is_http11)
            self.phase = _CLOSED
            self.trailing_data = trailing_data
            return
        # llhttp treats this head as the end of HTTP, so a second parser reads the body.
        self._upgrade_offered = False
        self._parser = httptools.HttpRequestParser(
            SimpleNamespace(on_body=self.on_body, on_message_complete=self.on_message_complete)
        )
        length = self._length
        framing = (
            b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        )
        self._parser.feed_data(b"POST / HTTP/1.1\r\nconnection: close\r\n" + framing + b"\r\n\r\n")
        self.feed(trailing_data)


@lru_cache(1024)
def response_head(status: int, headers: HeaderTuple) -> bytes:
    """Render the status line and headers of a response, without the final empty line."""
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    lines += [_header_line(name, value) for name, value in headers]
    return b"".join(lines)


def _header_line(name: bytes, value: bytes) -> bytes:
    line = b"%b: %b\r\n" % (name, value)
    if line.count(b"\n") != 1 or line.count(b"\r") != 1:
        raise ValueError(f"expected a header in one line, got {line!r}")
    return line


def text_response(status: int, reason: str, headers: HeaderTuple = ()) -> bytes:
    """Render a plain-text response that closes the connection."""
    return closing_response(status, (*TEXT_HEADERS, *headers), f"{reason}\n".encode())


def closing_response(status: int, headers: HeaderTuple, body: bytes) -> bytes:
    """Render a response that closes the connection."""
    ending = b"%bcontent-length: %d\r\n\r\n%b" % (CONNECTION_CLOSE, len(body), body)
    return response_head(status, headers) + ending


def encode_chunk(piece: bytes) -> tuple[bytes, ...]:
    """Return the parts of a chunk; a large piece is not copied."""
    if len(piece) <= COPY_THRESHOLD_BYTES:
        return (b"%x\r\n%b\r\n" % (len(piece), piece),)
    return b"%x\r\n" % len(piece), piece, b"\r\n"
