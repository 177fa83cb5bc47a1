"""HTTP responses of upstreams: error statuses, results in JSON bodies, messages in event streams.

    JSON body ──> parse_result ──> the result of the request, or its error
    HttpResponse ──> SseParser ──> decode ──> MessageStream.next … None

This module does not decide what follows from an error, and does not resume streams: its callers do.
"""

import asyncio
from collections import deque
from contextlib import suppress

from trunkline.backends.limits import DEFAULT_LIMITS, StreamLimits
from trunkline.http.client import HttpResponse
from trunkline.http.sse import SseEvent, SseParser
from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    Batch,
    ConnectionLost,
    ErrorResponse,
    MalformedResponse,
    Message,
    Raw,
    RemoteProtocolError,
    Response,
    RpcError,
    UnreadableAnswer,
    decode,
)


class UpstreamStatusError(ConnectionLost):
    """The server answered with an error status."""

    def __init__(
        self,
        status: int,
        error: RpcError | None = None,
        retry_after: float | None = None,
        is_misaddressed: bool = False,
    ) -> None:
        detail = f": {error.message}" if error is not None else ""
        super().__init__(f"the server answered HTTP {status}{detail}")
        self.status = status
        self.error = error
        self.retry_after = retry_after
        self.is_misaddressed = is_misaddressed  # the error has no id, or that of another request
        self.peer_not_at_fault = status < 500

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 409, 425, 429) or self.status >= 500


class SessionLost(UpstreamStatusError):
    """The server no longer knows our session, or is not the server that opened it."""

    def __init__(self, cause: UpstreamStatusError, maybe_processed: bool) -> None:
        super().__init__(cause.status, cause.error)
        self.maybe_processed = maybe_processed  # whether the server may have handled the request


def is_response_to(message: Message | RemoteProtocolError, id: int) -> bool:
    """Return whether a message is the response to request `id`, even a malformed one."""
    if isinstance(message, ErrorResponse):
        return message.id in (id, None)  # an error without an id can only mean this request
    if isinstance(message, RemoteProtocolError):
        return message.response_id == id
    return isinstance(message, Response) and message.id == id


def parse_result(body: bytes, id: int) -> Raw:
    """Return the result in a body; raises its error, or UnreadableAnswer without a response."""
    try:
        message = decode(body)
    except RemoteProtocolError as error:
        if not is_response_to(error, id):
            raise UnreadableAnswer(f"the response was malformed: {error}") from None
        return extract_result(error, id)
    return extract_result(message, id)


def extract_result(message: Message | Batch | RemoteProtocolError, id: int) -> Raw:
    """Return the result in a message; raises its error, or UnreadableAnswer without one."""
    for entry in message.entries if isinstance(message, Batch) else (message,):
        if is_response_to(entry, id):
            if isinstance(entry, Response):
                return entry.result
            if isinstance(entry, ErrorResponse):
                raise entry.error
            raise MalformedResponse(INTERNAL_ERROR, f"the response was malformed: {entry}")
    raise UnreadableAnswer("the response does not belong to the request")


def parse_retry_after(retry_after: bytes | None) -> float | None:
    """Parse a Retry-After header in seconds; return None for dates and malformed values."""
    if retry_after is None or not retry_after.isdigit() or len(retry_after) > 6:
        return None
    return float(retry_after)


class MessageStream:
    """The messages of one stream, across any number of resumptions."""

    def __init__(
        self, response: HttpResponse, limits: StreamLimits = DEFAULT_LIMITS.streams
    ) -> None:
        self.last_id: str | None = None
        self.is_broken = False  # whether the connection ended before the stream did
        self.reconnect_delay = limits.reconnect_delay
        self._limits = limits
        self._messages: deque[Message | RemoteProtocolError | UnreadableAnswer] = deque()
        self._response = response
        self._parser = SseParser(limits.max_event_bytes)
        response.disable_read_timeout()  # the caller has its own timeout

    def resume(self, response: HttpResponse) -> None:
        """Continue with another response."""
        self.close()
        self.is_broken = False
        self._response = response
        self._parser = SseParser(self._limits.max_event_bytes)
        response.disable_read_timeout()

    async def next(self) -> Message | RemoteProtocolError | None:
        """Return the next message, or the error for a malformed one; None at the end.

        A broken connection counts as the end. Raises UnreadableAnswer for a malformed event.
        """
        while not self._messages:
            try:
                piece = await self._response.receive()
            except ConnectionLost:
                self.is_broken = True
                return None
            if piece is None:
                return None
            for event in self._parser.feed(piece):
                self._add_event(event)
            self.last_id = self._parser.last_event_id or self.last_id
        found = self._messages.popleft()
        if isinstance(found, UnreadableAnswer):
            raise found
        return found

    def _add_event(self, event: SseEvent | RemoteProtocolError) -> None:
        if isinstance(event, RemoteProtocolError):
            self._messages.append(UnreadableAnswer(f"an event was malformed: {event}"))
            return
        if event.retry is not None:
            delay = max(event.retry / 1000, self._limits.min_reconnect_delay)
            self.reconnect_delay = min(delay, self._limits.max_reconnect_delay)
        if event.data and event.event in ("", "message"):
            try:
                message = decode(event.data)
            except RemoteProtocolError as error:
                self._messages.append(error)
            else:
                self._messages.extend(message.entries if isinstance(message, Batch) else (message,))

    async def drain(self) -> None:
        """Read to the end, so that the connection can be reused."""
        try:
            with suppress(ConnectionLost, TimeoutError):
                async with asyncio.timeout(self._limits.stream_drain_timeout):
                    while await self._response.receive() is not None:
                        pass
        finally:
            self.close()

    def close(self) -> None:
        """Drop the unread rest of the stream."""
        self._response.close()
