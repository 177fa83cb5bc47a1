"""HTTP+SSE of 2024-11-05, the client side: a GET stream for the server's messages, POSTs for ours.

    GET ──> event: endpoint ──> where to POST        event: message ──> receive
    send ──> POST there

The endpoint must be at the same origin as the stream; another one is refused. Only `connect` uses
this module: it can be deleted when the last such server is gone.
"""

import asyncio
from collections import deque
from urllib.parse import urljoin

from trunkline.backends.http_responses import UpstreamStatusError
from trunkline.backends.limits import DEFAULT_LIMITS, StreamLimits
from trunkline.http.address import HttpUrl, parse_http_url
from trunkline.http.client import HttpClient, HttpResponse
from trunkline.http.exchange import Headers
from trunkline.http.media_types import media_type
from trunkline.http.sse import SseEvent, SseParser
from trunkline.jsonrpc import ConnectionLost, RemoteProtocolError

_ACCEPT_HEADERS: Headers = ((b"accept", b"text/event-stream"),)
_JSON_HEADERS: Headers = ((b"content-type", b"application/json"),)


class CrossOriginEndpoint(ConnectionLost):
    """The server speaks HTTP+SSE, but its endpoint is at another origin."""


class LegacySseTransport:
    """The transport to a server that speaks HTTP+SSE."""

    def __init__(
        self, client: HttpClient, url: str, limits: StreamLimits = DEFAULT_LIMITS.streams
    ) -> None:
        self._client = client
        self._url = url
        self._target = ""
        self._parser = SseParser(limits.max_event_bytes)
        self._endpoint_timeout = limits.endpoint_timeout
        self._events: deque[SseEvent | RemoteProtocolError] = deque()
        self._response: HttpResponse | None = None
        self._posts: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self) -> None:
        """Open the stream and receive the endpoint; raises ConnectionLost."""
        try:
            async with asyncio.timeout(self._endpoint_timeout):
                self._target = await self._receive_endpoint()
        except TimeoutError:
            raise ConnectionLost(
                f"the server named no endpoint within {self._endpoint_timeout:g} s"
            ) from None
        except RemoteProtocolError as error:
            raise ConnectionLost(f"an event was malformed: {error}") from None

    async def _receive_endpoint(self) -> str:
        self._response = response = await self._client.request("GET", _ACCEPT_HEADERS)
        kind = media_type(response.headers.get(b"content-type"))
        if response.status != 200 or kind != "text/event-stream":
            response.close()
            raise UpstreamStatusError(response.status)
        response.disable_read_timeout()
        while (event := await self._next_event()) is not None:
            if event.event == "endpoint":
                return self._require_same_origin(event.data.decode("utf-8", "replace"))
        raise ConnectionLost("the stream ended before the server named an endpoint")

    def _require_same_origin(self, endpoint: str) -> str:
        """Return the request target of the endpoint; raises CrossOriginEndpoint."""
        own_url = parse_http_url(self._url)
        try:
            target = parse_http_url(urljoin(self._url, endpoint.strip()))
        except ValueError:
            raise CrossOriginEndpoint("expected an endpoint, got an invalid URL") from None
        if _origin_text(target) != _origin_text(own_url):
            raise CrossOriginEndpoint(
                f"expected an endpoint at {_origin_text(own_url)}, got {_origin_text(target)}"
            )
        return target.target

    async def receive(self) -> bytes | None:
        """Return the server's next message; None at the end."""
        while (event := await self._next_event()) is not None:
            if event.event in ("", "message") and event.data:
                return event.data
        return None

    async def _next_event(self) -> SseEvent | None:
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
            raise event  # for example, an event that is too long; the next one is good again
        return event

    async def send(self, payload: bytes) -> None:
        """POST a message; raises ConnectionLost."""
        if self._closed:
            raise ConnectionLost("the stream is closed")
        posting = asyncio.create_task(self._post(payload))
        self._posts.add(posting)
        posting.add_done_callback(self._on_posted)
        await asyncio.shield(posting)  # the message may carry answers of others

    async def _post(self, payload: bytes) -> None:
        response = await self._client.request("POST", _JSON_HEADERS, payload, target=self._target)
        response.close()
        if not 200 <= response.status < 300:
            raise UpstreamStatusError(response.status)

    def _on_posted(self, posting: asyncio.Task[None]) -> None:
        self._posts.discard(posting)
        if not posting.cancelled():
            posting.exception()  # retrieved, so that asyncio does not log it

    async def aclose(self) -> None:
        """Close the stream."""
        self._closed = True
        if self._response is not None:
            self._response.close()
        await self._client.aclose()
        await asyncio.gather(*self._posts, return_exceptions=True)


def _origin_text(origin: HttpUrl) -> str:
    return f"{'https' if origin.is_tls else 'http'}://{origin.name}"
