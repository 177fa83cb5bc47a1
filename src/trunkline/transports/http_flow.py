"""Flow: one stream of events of a session, which may be taken up again where it was cut off.

    put ──> stored, with an id ──> catch_up ──> the exchange that carries the stream now, if any
                   └──> replayed to the one that takes it up: GET with Last-Event-ID

Refuses to keep everything: what was stored longest ago goes first, and a client that comes back too
late misses it.

Rules upheld here:
1. Ids are unique in a session, and say which stream they belong to: nothing of another is replayed.
2. A message goes out on one stream only, in order, and once unless its client asks for it again.
3. Whoever takes a stream up has it: a connection that was cut off may look alive for long.
"""

from collections import deque

from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.exchange import Exchange, Fields
from trunkline.transports.sse import COMMENT, encode_event

MAX_EVENTS = 256
MAX_BYTES = 1024 * 1024
"""How much of one stream is stored, in events and in bytes."""

RETRY = 1000
"""After how many milliseconds a client whose stream broke should come back."""

EVENT_STREAM: Fields = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class Flow:
    """One stream, from its first event to its last, over one exchange or several."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.done = False
        self.size = 0
        self.quiet = False
        """Whether nothing was said since somebody looked."""
        self._stored: deque[bytes] = deque()
        self._last = 0
        self._next = 1
        """The event that is sent next."""
        self._priming = False
        """Whether its reader is first given the id of the event before that, and no data."""
        self._exchange: Exchange | None = None

    @property
    def carried(self) -> bool:
        """Tell whether somebody is reading it."""
        return self._exchange is not None

    def carry(
        self,
        exchange: Exchange,
        headers: Fields,
        after: int | None = None,
        primed: bool = False,
    ) -> None:
        """Let an exchange carry it from now on; `catch_up` sends what came after event `after`.

        With `primed`, a client that names no event has an id before there is anything to say: by
        that it can take the stream up again, whenever it is cut off.
        """
        if self._exchange is not None:
            self._exchange.finish()
        self._exchange = exchange
        exchange.when_gone(lambda: self._let_go(exchange))
        exchange.begin(200, (*EVENT_STREAM, *headers))
        self._priming = primed and after is None
        if after is not None:
            self._next = min(after, self._last) + 1

    def put(self, payload: bytes) -> None:
        """Store what is to be said; without a reader it is kept for the one who comes."""
        self._last += 1
        self._stored.append(payload)
        self.size += len(payload)
        while len(self._stored) > MAX_EVENTS or (self.size > MAX_BYTES and len(self._stored) > 1):
            self.size -= len(self._stored.popleft())

    async def catch_up(self) -> None:
        """Send all that was not sent yet; several may do so at once, and the order stays."""
        if self._exchange is not None and self._priming:
            self._priming = False
            await self._pass(encode_event(b"", id=self._id(self._next - 1), retry=RETRY))
        while self._exchange is not None and self._next <= self._last:
            oldest = self._last - len(self._stored) + 1
            number = max(self._next, oldest)
            self._next = number + 1
            event = encode_event(self._stored[number - oldest], id=self._id(number))
            await self._pass(event)
        if self.done:
            self.finish()

    async def send(self, payload: bytes) -> None:
        """Say something on it, and wait while its reader is behind."""
        self.put(payload)
        await self.catch_up()

    async def keep_alive(self) -> None:
        """Say nothing, so that nobody in between takes the stream for dead."""
        await self.catch_up()
        await self._pass(COMMENT)

    def finish(self) -> None:
        """End it, once all is said: now, or when whoever catches up has done so."""
        self.done = True
        if self._exchange is not None and self._next > self._last:
            exchange, self._exchange = self._exchange, None
            exchange.finish()

    def is_carried_by(self, exchange: Exchange) -> bool:
        """Tell whether it is this one by which it is read."""
        return self._exchange is exchange

    def drop(self) -> None:
        """Let its reader go; what is not said yet waits for the next."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish()

    async def _pass(self, event: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        self.quiet = False
        try:
            await exchange.send(event)
        except ConnectionLost:
            self._let_go(exchange)

    def _let_go(self, exchange: Exchange) -> None:
        if self._exchange is exchange:
            self._exchange = None

    def _id(self, number: int) -> bytes:
        return b"%d-%d" % (self.number, number)


def read_event_id(raw: bytes) -> tuple[int, int] | None:
    """Return the stream and the event that an id names, None if it is none of ours."""
    stream, _, event = raw.partition(b"-")
    if stream.isdigit() and event.isdigit() and len(raw) < 40:
        return int(stream), int(event)
    return None
