"""Limits of HTTP requests, streams and buffered events: of one principal, and of all together.

    InFlightLimiter   requests that are running       refuses further ones, with 503 or 429
    StreamLimiter     HTTP+SSE streams, WebSockets    refuses further ones, with 503 or 429
    BufferBudget      bytes of events that are kept   drops the oldest events

The number of sessions is limited by the SessionStore, because replicas share it.

Invariants:
1. With several principals, a principal may have only as many requests in flight as there are free
   slots. So a principal without requests always gets one through, unless all slots are taken.
2. A principal above its limit loses only its own requests, streams and events.
"""

import sys
from collections import Counter
from typing import NamedTuple, Protocol

TOO_MANY_REQUESTS = 429
SERVICE_UNAVAILABLE = 503


class LimitRefusal(NamedTuple):
    """Why a principal does not get more: the HTTP status, the key of the limit, and the reason."""

    status: int
    limit: str
    reason: str


def refuse_total(key: str, limit: int, things: str) -> LimitRefusal:
    """Return the refusal where all principals together have too much."""
    reason = f"the gateway has {limit} {things} ({key}); try again later"
    return LimitRefusal(SERVICE_UNAVAILABLE, key, reason)


def refuse_principal(key: str, limit: int, things: str, remedy: str) -> LimitRefusal:
    """Return the refusal where one principal has too much."""
    reason = f"you have {limit} {things} ({key}); {remedy}"
    return LimitRefusal(TOO_MANY_REQUESTS, key, reason)


class InFlightLimiter:
    """Limits the requests in flight, in total and per principal.

    Requests are counted per principal only once the total reaches the lowest of the limits.
    """

    def __init__(self, max_total: int, max_per_owner: int, *, is_shared: bool = False) -> None:
        """Create it; `is_shared` says that several principals use the gateway."""
        # The principal id of each request in flight.
        self._owners: dict[object, str] = {}
        # The number of requests per principal, None while they are not counted.
        self._per_owner: Counter[str] | None = None
        # Below this total `acquire` needs no check; 0 while requests are counted per principal.
        self._unchecked_below = 0
        self.reconfigure(max_total, max_per_owner, is_shared=is_shared)

    def reconfigure(self, max_total: int, max_per_owner: int, *, is_shared: bool = False) -> None:
        """Use other limits from now on; requests in flight stay."""
        self._max_total, self._max_per_owner = max_total, max_per_owner
        self._is_shared = is_shared
        half = (max_total + 1) // 2 if is_shared else max_total
        self._lower_limit = min(half, max_per_owner)
        if self._per_owner is None:
            self._unchecked_below = self._lower_limit

    def refusal(self, owner: str) -> LimitRefusal | None:
        """Return why a request above the limits is refused, None below them."""
        count = len(self._owners)
        if count >= self._max_total:
            return refuse_total("http.max_in_flight", self._max_total, "requests in flight")
        if count < self._lower_limit:
            return None
        if self._per_owner is None:
            self._per_owner = Counter(self._owners.values())
            self._unchecked_below = 0
        own, free = self._per_owner[owner], self._max_total - count
        # With several principals, none may have more slots than are still free.
        has_share = self._is_shared and own >= max(free, 1)
        if own < self._max_per_owner and not has_share:
            return None
        key = "http.max_in_flight"
        if own >= self._max_per_owner:
            key = "http.max_in_flight_per_principal"
        remedy = "wait for some of their responses"
        return refuse_principal(key, own, "requests in flight", remedy)

    def acquire(self, owner: str, call: object) -> LimitRefusal | None:
        """Count a request; return why it is refused if it exceeds the limits."""
        owners = self._owners
        # Below the lower limit nothing can be exceeded: the hot path only adds to a dict.
        if len(owners) >= self._unchecked_below:
            refusal = self.refusal(owner)
            if refusal is not None:
                return refusal
            if self._per_owner is not None:
                self._per_owner[owner] += 1
        owners[call] = owner
        return None

    def release(self, call: object) -> None:
        """Stop counting a request."""
        owner = self._owners.pop(call)
        if self._per_owner is not None:
            self._per_owner[owner] -= 1
            if not self._per_owner[owner]:
                del self._per_owner[owner]
            if len(self._owners) < self._lower_limit // 2:  # with hysteresis
                self._per_owner, self._unchecked_below = None, self._lower_limit


class StreamLimiter:
    """Limits the HTTP+SSE streams and WebSockets that are open, in total and per principal."""

    def __init__(self, max_total: int, max_per_principal: int | None = None) -> None:
        self.counts: Counter[str] = Counter()
        """The number of open streams of each principal that has any."""
        self._total = 0
        self.reconfigure(max_total, max_per_principal)

    def reconfigure(self, max_total: int, max_per_principal: int | None) -> None:
        """Use other limits from now on; open streams stay."""
        self._max_total = max_total
        self._max_per_principal = max_per_principal or sys.maxsize

    def acquire(self, principal: str) -> LimitRefusal | None:
        """Count a stream; return why it is refused if it exceeds the limits."""
        own = self.counts[principal]
        if own >= self._max_per_principal:
            remedy = "close one of them first"
            return refuse_principal("http.max_streams_per_principal", own, "open streams", remedy)
        if self._total >= self._max_total:
            return refuse_total("http.max_streams", self._max_total, "open streams")
        self._total += 1
        self.counts[principal] += 1
        return None

    def release(self, principal: str) -> None:
        """Stop counting a stream."""
        self._total -= 1
        self.counts[principal] -= 1
        if not self.counts[principal]:
            del self.counts[principal]


class BufferedStream(Protocol):
    """A stream that keeps events, so that a client can read them later or again."""

    principal: str
    """The id of the principal that it belongs to."""

    @property
    def size(self) -> int:
        """The bytes of its events."""
        ...

    def drop_events(self) -> None:
        """Drop all events but those that are being sent."""
        ...


class BufferBudget:
    """Limits the bytes of events that streams keep, in total and per principal.

    Above the limit of a principal, its own streams lose events. Above the limit in total, the
    streams of the principal with the most bytes do. The stream whose last event is oldest comes
    first.
    """

    def __init__(self, max_total: int, max_per_principal: int | None = None) -> None:
        # The streams with events by principal; the stream whose last event is oldest comes first.
        self._streams: dict[str, dict[BufferedStream, int]] = {}
        self.bytes: Counter[str] = Counter()
        """The bytes of each principal that has any."""
        self.total = 0
        self.dropped_count = 0
        """How many times the events of a stream were dropped."""
        self.reconfigure(max_total, max_per_principal)

    def reconfigure(self, max_total: int, max_per_principal: int | None) -> None:
        """Use other limits from the next event on."""
        self._max_total = max_total
        self._max_per_principal = max_per_principal or sys.maxsize

    def update(self, stream: BufferedStream) -> None:
        """Count a stream that has got an event; drop events of other streams if needed."""
        self._count(stream)
        principal = stream.principal
        if self.bytes[principal] > self._max_per_principal:
            self._drop_from(principal, self._max_per_principal)
        while self.total > self._max_total:
            largest = max(self._streams, key=self.bytes.__getitem__)
            before = self.total
            self._drop_from(largest, self.bytes[largest] - (self.total - self._max_total))
            if self.total == before:
                return  # all events are being sent, which back-pressure bounds

    def _count(self, stream: BufferedStream) -> None:
        """Count the current size of a stream, as the one that got an event last."""
        streams = self._streams.setdefault(stream.principal, {})
        change = stream.size - streams.pop(stream, 0)
        streams[stream] = stream.size
        self._add(stream.principal, change)

    def _add(self, principal: str, change: int) -> None:
        self.total += change
        self.bytes[principal] += change

    def _drop_from(self, principal: str, allowed: int) -> None:
        """Drop events of a principal's streams until it has `allowed` bytes."""
        streams = self._streams[principal]
        for stream in list(streams):
            if self.bytes[principal] <= allowed:
                break
            before = stream.size
            stream.drop_events()
            self._add(principal, stream.size - before)
            self.dropped_count += stream.size < before
            if stream.size:
                streams[stream] = stream.size
            else:
                del streams[stream]
        self._discard_if_empty(principal)

    def forget(self, stream: BufferedStream) -> None:
        """Stop counting a stream that is dropped."""
        principal = stream.principal
        streams = self._streams.get(principal)
        if streams is None or (size := streams.pop(stream, None)) is None:
            return
        self._add(principal, -size)
        self._discard_if_empty(principal)

    def _discard_if_empty(self, principal: str) -> None:
        if not self._streams[principal]:
            del self._streams[principal], self.bytes[principal]
