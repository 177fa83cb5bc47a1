"""HTTP+SSE of 2024-11-05, as a client: a GET that brings what the server says, POSTs for the rest.

    GET ──> event: endpoint ──> where to POST        event: message ──> receive
    send ──> POST there

Refuses to be sent elsewhere: what the server names as the place for POSTs must be on the same host.
Nothing else needs this module; it can be deleted when the last such server is gone.
"""

import asyncio
from collections import deque
from urllib.parse import urljoin

from trunkline.jsonrpc import ConnectionLost, RemoteProtocolError
from trunkline.mcp.media import media_type
from trunkline.transports.exchange import Headers
from trunkline.transports.http_address import Origin, parse_origin
from trunkline.transports.http_client import HttpClient, HttpResponse
from trunkline.transports.http_refused import HttpRefused
from trunkline.transports.http_stream import MAX_EVENT
from trunkline.transports.sse import Event, SseParser

PATIENCE = 10.0
"""How long, in seconds, a server may take to say where to POST; some streams never do."""

_ACCEPT: Headers = ((b"accept", b"text/event-stream"),)
_JSON: Headers = ((b"content-type", b"application/json"),)


class Elsewhere(ConnectionLost):
    """The server speaks HTTP+SSE, but wants POSTs where we do not send them."""


class LegacyChannel:
    """A server that speaks HTTP+SSE; a Channel."""

    def __init__(self, client: HttpClient, url: str) -> None:
        self._client = client
        self._url = url
        self._target = ""
        self._parser = SseParser(MAX_EVENT)
        self._events: deque[Event | RemoteProtocolError] = deque()
        self._response: HttpResponse | None = None
        self._posting: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self) -> None:
        """Ask for the stream, and learn where to POST; raises ConnectionLost or HttpRefused."""
        try:
            async with asyncio.timeout(PATIENCE):
                self._target = await self._find_target()
        except TimeoutError:
            raise ConnectionLost(f"not told where to POST within {PATIENCE:g} s") from None
        except RemoteProtocolError as why:
            raise ConnectionLost(f"an event was malformed: {why}") from None

    async def _find_target(self) -> str:
        self._response = response = await self._client.request("GET", _ACCEPT)
        kind = media_type(response.headers.get(b"content-type"))
        if response.status != 200 or kind != "text/event-stream":
            response.close()
            raise HttpRefused(response.status)
        response.be_patient()
        while (event := await self._next()) is not None:
            if event.event == "endpoint":
                return self._same_origin(event.data.decode("utf-8", "replace"))
        raise ConnectionLost("the stream ended before it said where to POST")

    def _same_origin(self, named: str) -> str:
        """Return the target of what the server named, if that is on the same host."""
        ours = parse_origin(self._url)
        try:
            place = parse_origin(urljoin(self._url, named.strip()))
        except ValueError:
            raise Elsewhere("expected a place for POSTs, got what is no URL") from None
        if _site(place) != _site(ours):
            raise Elsewhere(f"expected a place for POSTs at {_site(ours)}, got {_site(place)}")
        return place.target

    async def receive(self) -> bytes | None:
        """Return what the server said next."""
        while (event := await self._next()) is not None:
            if event.event in ("", "message") and event.data:
                return event.data
        return None

    async def _next(self) -> Event | None:
        """Return the next event, None when the stream has ended; one that breaks ends as well."""
        while not self._events:
            try:
                piece = None if self._response is None else await self._response.receive()
            except ConnectionLost:
                return None
            if piece is None:
                return None
            self._events.extend(self._parser.feed(piece))
        event = self._events.popleft()
        if isinstance(event, RemoteProtocolError):
            raise event  # an answer too long, say; what comes next is good again
        return event

    async def send(self, payload: bytes) -> None:
        """POST; raises ConnectionLost."""
        if self._closed:
            raise ConnectionLost("the stream is closed")
        posting = asyncio.create_task(self._post(payload))
        self._posting.add(posting)
        posting.add_done_callback(self._posted)
        await asyncio.shield(posting)  # whoever is cancelled here may be sending for others

    async def _post(self, payload: bytes) -> None:
        response = await self._client.request("POST", _JSON, payload, target=self._target)
        response.close()
        if not 200 <= response.status < 300:
            raise HttpRefused(response.status)

    def _posted(self, posting: asyncio.Task[None]) -> None:
        self._posting.discard(posting)
        if not posting.cancelled():
            posting.exception()  # looked at: nobody may be waiting for it any more

    async def aclose(self) -> None:
        """Close the stream."""
        self._closed = True
        if self._response is not None:
            self._response.close()
        await self._client.aclose()
        await asyncio.gather(*self._posting, return_exceptions=True)


def _site(origin: Origin) -> str:
    """Return what must be the same of two addresses, for people."""
    return f"{'https' if origin.secure else 'http'}://{origin.name}"
