"""HTTP/1.1 messages: requests are read, within limits, and the heads of answers are written.

    feed(bytes) ──> llhttp ──> on_… ──> arrivals: Arrival, Arrival, … HttpRefusal

Pure: knows neither sockets nor clocks, and waits for nothing. Refuses to hoard: a reader keeps one
unfinished request within the limits, and of arrivals as many as fit into what it was fed at once,
which is why `appetite` says how much that should be.

llhttp, in its strict mode, refuses Content-Length with Transfer-Encoding, repeated or malformed
lengths, folded lines, bare CR and LF, white space before a colon, and control bytes. The rules that
this module alone upholds:
1. A request is whole, or it is not there; what is too much is refused as soon as that is known.
2. A body ends where its head says, or the request is refused: nothing can be read in two ways.
3. One Host; a target that names another is refused, since whoever judges hosts sees the header.
4. After a refusal, an upgrade, or a request that is the last by its own word, nothing is read.
5. A body does not vanish because its head offers an upgrade (Java's client offers h2c with every
   POST): it is read as usual, and the offer is passed over.
6. No header of an answer can hold another.
"""

from collections import deque
from collections.abc import Collection, Mapping
from functools import lru_cache
from http import HTTPStatus
from types import SimpleNamespace
from typing import NoReturn

import httptools
from msgspec import Struct

from trunkline.transports.exchange import Fields, Head, HttpRequest
from trunkline.transports.http_heads import Heads

KIB = 1024

SLICE = 4 * KIB
"""How much to feed at once when it may hold many requests."""

SMALL = 16 * KIB
"""Up to how many bytes it is cheaper to copy than to write twice."""

IDLE, HEAD, BODY, OVER = range(4)
"""Between requests; within one; and when no further one will be read."""

LAST = b"connection: close\r\n"
TEXT = ((b"content-type", b"text/plain"),)

_SLASH = ord("/")
_NONE: frozenset[bytes] = frozenset()
_WISHES = frozenset((b"expect", b"upgrade"))
_TRACES = frozenset(
    b"traceparent b3 x-b3-traceid sentry-trace x-datadog-trace-id x-amzn-trace-id "
    b"x-cloud-trace-context x-request-id x-correlation-id cf-ray".split()
)
"""Headers that say something else with every request."""

_UNUSUAL = _WISHES | _TRACES
_NO_PARSER = httptools.HttpRequestParser(object())
_STATUS_LINES = {int(s): b"HTTP/1.1 %d %b\r\n" % (s, s.phrase.encode()) for s in HTTPStatus}


class HttpLimits(Struct, frozen=True, kw_only=True):
    """How much, and how long; sizes in bytes, times in seconds."""

    head_timeout: float = 10.0
    """From the first byte of a request to the end of its head; from the connection to that byte."""
    body_timeout: float = 30.0
    """From the end of the head to the end of the body."""
    min_rate: float = 1024.0
    """How many bytes a second a client sends, or takes, on average; slower ones are given up."""
    rate_after: float = 5.0
    """How long a body may be slower than that."""
    idle_timeout: float = 75.0
    """Between two requests; that the first has ended is noted when deadlines are looked at."""
    write_timeout: float = 30.0
    """How long a client that is behind may go without taking anything worth mentioning."""
    half_closed: float = 1.0
    """How long one that sends no more is waited on: most of those have gone."""
    linger: float = 2.0
    """How long a client that was refused may go on sending, so that it can read why."""

    max_target: int = 8 * KIB
    max_head: int = 32 * KIB
    max_headers: int = 100
    max_body: int = 4 * KIB * KIB
    high_water: int = 256 * KIB
    """How many bytes may wait for a client before whoever sends them waits, too."""

    max_connections: int = 16384
    max_connections_per_address: int = 8192

    @property
    def sweep_every(self) -> float:
        """How often deadlines have to be looked at, so that they are held to half of themselves."""
        times = (
            self.head_timeout,
            self.body_timeout,
            self.rate_after,
            self.idle_timeout,
            self.write_timeout,
            self.half_closed,
            self.linger,
        )
        return min(1.0, max(0.01, min(times) / 2))


class HttpRefusal(Exception):
    """A request that is answered by a status and a reason, and is the last of its connection."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def check_size(target: bytes, headers: Mapping[bytes, bytes], limits: HttpLimits) -> None:
    """Refuse a head that is too long."""
    size = len(target) + sum(len(name) + len(value) + 4 for name, value in headers.items())
    if size > limits.max_head:
        raise HttpRefusal(431, f"expected a head of at most {limits.max_head} bytes")


def check_host(headers: Mapping[bytes, bytes], repeated: Collection[bytes], modern: bool) -> None:
    """Refuse a request that does not say which host it is for, or says so twice."""
    if b"host" in repeated:
        raise HttpRefusal(400, "expected one host header, got several")
    if modern and b"host" not in headers:
        raise HttpRefusal(400, "expected a host header")


def body_length(headers: Mapping[bytes, bytes], modern: bool, limits: HttpLimits) -> int | None:
    """Return how long the body will be, or None if only its last chunk will tell."""
    length = headers.get(b"content-length")
    if b"transfer-encoding" not in headers:
        size = int(length) if length else 0  # digits only: the parser saw to that
        if size > limits.max_body:
            raise too_long(limits)
        return size
    encoding = headers[b"transfer-encoding"]
    if not modern or length is not None:
        raise HttpRefusal(400, "expected either a content-length or, in 1.1, a transfer-encoding")
    if encoding.lower() != b"chunked":
        raise HttpRefusal(501, f"expected transfer-encoding 'chunked', got {encoding[:40]!r}")
    return None


def too_long(limits: HttpLimits) -> HttpRefusal:
    """Return the refusal of a body."""
    return HttpRefusal(413, f"expected a body of at most {limits.max_body} bytes")


@lru_cache(256)
def split_target(target: bytes) -> tuple[str, str]:
    """Return the path and the query of a target."""
    if b"#" in target:
        raise HttpRefusal(400, "expected a target without a fragment")
    path, _, query = target.decode("ascii").partition("?")
    return path, query


def without_host(target: bytes, host: bytes) -> bytes:
    """Return a target of the form `http://host/path` without its host, which must be `host`."""
    scheme, found, rest = target.partition(b"://")
    if not found or scheme.lower() not in {b"http", b"https"}:
        raise HttpRefusal(400, f"expected a path as target, got {target[:40]!r}")
    size = next((at for at, byte in enumerate(rest) if byte in b"/?#"), len(rest))
    if rest[:size].lower() != host.lower():
        raise HttpRefusal(400, "expected the target to name the same host as the host header")
    path = rest[size:]
    return path if path.startswith(b"/") else b"/" + path


class Manner(Struct, frozen=True, gc=False):
    """What a head says about the connection, and the answer."""

    modern: bool
    """Whether it is of HTTP/1.1, so that chunks and interim answers are understood."""
    persistent: bool
    """Whether another request may follow."""
    upgradable: bool
    """Whether the client offers to leave HTTP; then what comes next is not HTTP, if we do."""
    bodiless: bool = False
    """Whether the answer has no body, whatever its head says."""


USUAL = Manner(modern=True, persistent=True, upgradable=False)


class Arrival(Struct, frozen=True, gc=False):
    """A whole request, and how it came."""

    request: HttpRequest
    manner: Manner


class RequestReader:
    """Reads the requests of one connection; `on_…` is what the parser calls back."""

    __slots__ = (
        "_address",
        "_body",
        "_extra",
        "_fed",
        "_head",
        "_headers",
        "_length",
        "_limits",
        "_modern",
        "_offered",
        "_parser",
        "_persistent",
        "_refusal",
        "_repeated",
        "_target",
        "arrivals",
        "expects_continue",
        "known",
        "phase",
        "received",
        "rest",
    )

    def __init__(self, address: str, limits: HttpLimits) -> None:
        self._address = address
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._refusal: HttpRefusal | None = None
        self.known = Heads[Head](limits.max_body)
        """The heads that need not be read again, for whoever knows that nothing came before which
        is not answered; they come in the usual manner."""
        self.arrivals: deque[Arrival | HttpRefusal] = deque()
        self.phase: int = IDLE
        self.received = 0
        """How many bytes of the present body are there."""
        self.expects_continue = False
        """Whether the client waits for 100 Continue before it sends the present body."""
        self.rest = b""
        """What came after a head that offers an upgrade."""
        self.on_message_begin()
        self.phase = IDLE

    @property
    def appetite(self) -> int:
        """How many bytes to feed at once: few, unless they are known to be of one body."""
        return max(SLICE, (self._length or 0) - self.received) if self.phase == BODY else SLICE

    def feed(self, piece: bytes | bytearray) -> None:
        """Read on; what was completed is in `arrivals`."""
        if self.phase == OVER:
            return
        whole = piece if type(piece) is bytes and self.phase == IDLE else None
        try:
            self._parser.feed_data(piece)
            if whole is not None and self.phase == IDLE and len(self.arrivals) == 1:
                self._remember(whole)
            if self.phase != IDLE:
                self._fed += len(piece)
                self._check_unfinished()
        except httptools.HttpParserUpgrade as offer:
            self._pass_over_offer(bytes(piece[offer.args[0] :]))
        except (HttpRefusal, httptools.HttpParserError) as error:
            # The parser raises an error of its own when one of our callbacks does.
            self.refuse(self._refusal or HttpRefusal(400, str(error)))

    def _remember(self, piece: bytes) -> None:
        """Keep what a head says, if all is ordinary: most clients say the same again and again.

        What nobody says twice would only be in their way. The parser is between two requests now,
        and will be when the head is recalled.
        """
        head = self._head
        ordinary = self._length is not None and head.method != "HEAD"
        if ordinary and head.headers.keys().isdisjoint(_UNUSUAL):
            self.known.keep(piece, head)

    def usual(self) -> tuple[Head, bytes] | None:
        """Return what has arrived if it is one request, in the usual manner, and no more.

        As `known` does for those whose heads were read before.
        """
        arrivals = self.arrivals
        if len(arrivals) == 1 and self.phase == IDLE:
            arrival = arrivals[0]
            if isinstance(arrival, Arrival) and arrival.manner == USUAL:
                arrivals.clear()
                return arrival.request.head, arrival.request.body
        return None

    def refuse(self, refusal: HttpRefusal) -> None:
        """Read no more, for a reason that the client will be given in its turn."""
        if self.phase != OVER:
            self.phase = OVER
            self._body = b""
            self.arrivals.append(refusal)

    def stop(self) -> None:
        """Read no more, and forget what was not answered."""
        self.phase = OVER
        self.arrivals.clear()
        self.known.clear()
        self._body = b""
        self._parser = _NO_PARSER  # ours refers to us

    def on_message_begin(self) -> None:
        """Forget the request before."""
        if self.phase == OVER:
            self._fail(HttpRefusal(400, "expected no request after the last one"))
        self.phase = HEAD
        self._fed = 0
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeated = _NONE
        self._extra = 0
        self._body: bytes | bytearray = b""
        self.received = 0
        self._offered = False

    def on_url(self, part: bytes) -> None:
        """Take a part of the target."""
        self._target += part
        most = self._limits.max_target
        if len(self._target) > most:
            self._fail(HttpRefusal(414, f"expected a target of at most {most} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        name, headers = name.lower(), self._headers
        if name in headers:
            self._repeated |= {name}
            self._extra += 1
            self._check_count()
        else:
            headers[name] = value.rstrip(b" \t")

    def on_headers_complete(self) -> None:
        """Judge the head."""
        try:
            self._judge_head()
        except HttpRefusal as refusal:
            self._fail(refusal)

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        if not self.received:
            self._body = part
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += part
        self.received += len(part)
        if self.received > self._limits.max_body:
            self._fail(too_long(self._limits))

    def on_message_complete(self) -> None:
        """Let the request arrive."""
        if not self._offered:
            self._arrive(upgradable=False)
            self.phase = IDLE if self._persistent else OVER

    def _judge_head(self) -> None:
        headers, limits, parser = self._headers, self._limits, self._parser
        if len(headers) + self._extra > limits.max_headers:
            self._check_count()
        if self._fed + SLICE > limits.max_head:
            check_size(self._target, headers, limits)
        self._persistent = parser.should_keep_alive()
        # Only 1.1 persists without being asked to; formatting the version costs more than the rest.
        if not self._persistent or b"connection" in headers:
            version = parser.get_http_version()
            if version not in {"1.0", "1.1"}:
                raise HttpRefusal(505, f"expected HTTP/1.1, got {version!r}")
            self._modern = version == "1.1"
            self._persistent = self._persistent and self._modern
        else:
            self._modern = True
        if self._repeated or b"host" not in headers:
            check_host(headers, self._repeated, self._modern)
        self._length = body_length(headers, self._modern, limits)
        headers.pop(b"content-length", None)  # all of the body will be there
        if b"upgrade" in headers:
            self._offered = parser.should_upgrade()
        if b"expect" in headers:
            self._check_expectation(headers[b"expect"])
        method = parser.get_method().decode("ascii")
        if method == "CONNECT":
            raise HttpRefusal(400, "expected a request for a resource, got CONNECT")
        target = self._target
        if target[0] != _SLASH:
            target = without_host(target, headers.get(b"host", b""))
        self._head = Head(method, *split_target(target), headers, self._repeated, self._address)
        self._headers = {}  # for the trailers, which nobody reads
        self.phase = BODY

    def _arrive(self, *, upgradable: bool) -> None:
        request = HttpRequest(self._head, bytes(self._body))
        bodiless = self._head.method == "HEAD"
        manner = Manner(self._modern, self._persistent, upgradable, bodiless)
        self.arrivals.append(Arrival(request, manner))
        self.expects_continue = False

    def _fail(self, refusal: HttpRefusal) -> NoReturn:
        """Stop the parser, which forgets why when it runs while some exception is handled."""
        self._refusal = refusal
        raise refusal

    def _check_count(self) -> None:
        count = len(self._headers) + self._extra
        if count > self._limits.max_headers:
            self._fail(HttpRefusal(431, f"expected at most {self._limits.max_headers} headers"))

    def _check_unfinished(self) -> None:
        """Refuse what grows around the body: the parser keeps unfinished headers and trailers."""
        self._check_count()
        fed, limits = self._fed, self._limits
        if self.phase == HEAD and fed > limits.max_head + SLICE:
            self._fail(HttpRefusal(431, f"expected a head of at most {limits.max_head} bytes"))
        if (
            self.phase == BODY
            and self._length is None
            and fed > 2 * (limits.max_head + SLICE) + 8 * self.received
        ):
            self._fail(HttpRefusal(400, "expected more body and less around it"))

    def _check_expectation(self, value: bytes) -> None:
        if value.lower() != b"100-continue":
            raise HttpRefusal(417, f"expected '100-continue', got {value[:40]!r}")
        self.expects_continue = self._modern

    def _pass_over_offer(self, rest: bytes) -> None:
        self._persistent = False
        if self._length == 0:
            self._arrive(upgradable=self._modern)
            self.phase = OVER
            self.rest = rest
            return
        # The parser takes the head for the end of HTTP; another one reads the body.
        self._offered = False
        self._parser = httptools.HttpRequestParser(
            SimpleNamespace(on_body=self.on_body, on_message_complete=self.on_message_complete)
        )
        length = self._length
        framing = (
            b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        )
        self._parser.feed_data(b"POST / HTTP/1.1\r\nconnection: close\r\n" + framing + b"\r\n\r\n")
        self.feed(rest)


@lru_cache(1024)
def beginning(status: int, headers: Fields) -> bytes:
    """Return the first of a head: the same for many answers."""
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    lines += [_line(name, value) for name, value in headers]
    return b"".join(lines)


def _line(name: bytes, value: bytes) -> bytes:
    line = b"%b: %b\r\n" % (name, value)
    if line.count(b"\n") != 1 or line.count(b"\r") != 1:
        raise ValueError(f"expected a header in one line, got {line!r}")
    return line


def plain_answer(status: int, reason: str, headers: Fields = ()) -> bytes:
    """Return the whole of an answer that is the last one."""
    body = f"{reason}\n".encode()
    ending = b"%bcontent-length: %d\r\n\r\n%b" % (LAST, len(body), body)
    return beginning(status, (*TEXT, *headers)) + ending


def chunk(piece: bytes) -> tuple[bytes, ...]:
    """Return the parts of a chunk."""
    if len(piece) <= SMALL:
        return (b"%x\r\n%b\r\n" % (len(piece), piece),)
    return b"%x\r\n" % len(piece), piece, b"\r\n"
