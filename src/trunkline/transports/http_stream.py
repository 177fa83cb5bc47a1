"""MessageStream: the messages that come as events, however often their stream is taken up again.

    HttpResponse ──> SseParser ──> decode ──> next … None

Refuses to know who wants them, and to take up a stream by itself.
"""

import asyncio
from collections import deque
from contextlib import suppress

from trunkline.jsonrpc import Batch, ConnectionLost, Message, RemoteProtocolError, decode
from trunkline.transports.http_client import HttpResponse
from trunkline.transports.sse import Event, SseParser

MAX_EVENT = 16 * 1024 * 1024
"""The longest event that is read, in bytes."""

RETRY = 1.0
"""How long to wait before a stream is taken up, in seconds, unless the server says otherwise."""

MIN_RETRY, MAX_RETRY = 0.05, 30.0
"""What of that is believed."""

LAST_WORDS = 1.0
"""How long, in seconds, a stream may take to end after its answer, to be of use once more."""


class MessageStream:
    """The messages of one stream, however often it has to be taken up again."""

    def __init__(self, response: HttpResponse) -> None:
        self.last_id: str | None = None
        self.delay = RETRY
        self._found: deque[Message | RemoteProtocolError | ConnectionLost] = deque()
        self._response = response
        self._parser = SseParser(MAX_EVENT)
        response.be_patient()  # whoever waits has a deadline of its own

    def go_on(self, response: HttpResponse) -> None:
        """Go on with another response."""
        self.close()
        self._response = response
        self._parser = SseParser(MAX_EVENT)
        response.be_patient()

    async def next(self) -> Message | RemoteProtocolError | None:
        """Return the next message, or what is wrong with it, None when the stream ends.

        One that breaks ends as well.
        """
        while not self._found:
            try:
                piece = await self._response.receive()
            except ConnectionLost:
                return None
            if piece is None:
                return None
            for event in self._parser.feed(piece):
                self._take(event)
            self.last_id = self._parser.last_event_id or self.last_id
        found = self._found.popleft()
        if isinstance(found, ConnectionLost):
            raise found
        return found

    def _take(self, event: Event | RemoteProtocolError) -> None:
        if isinstance(event, RemoteProtocolError):
            self._found.append(ConnectionLost(f"an event was malformed: {event}"))
            return
        if event.retry is not None:
            self.delay = min(max(event.retry / 1000, MIN_RETRY), MAX_RETRY)
        if event.data and event.event in ("", "message"):
            try:
                message = decode(event.data)
            except RemoteProtocolError as why:
                self._found.append(why)
            else:
                self._found.extend(message.entries if isinstance(message, Batch) else (message,))

    async def let_end(self) -> None:
        """Read on to the end, so that the connection can be used again."""
        try:
            with suppress(ConnectionLost, TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    while await self._response.receive() is not None:
                        pass
        finally:
            self.close()

    def close(self) -> None:
        """Drop what has not been read."""
        self._response.close()
