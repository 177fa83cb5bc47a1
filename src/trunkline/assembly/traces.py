"""Traces as the `[traces]` settings have them: what is recorded, and which collector takes it.

Tracer ──> Span ──> Exporter ──> POST of OTLP/HTTP, in protobuf ──> the collector
"""

import asyncio
import random
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from trunkline import __version__
from trunkline.config import Config, ServerSettings, TracesSettings
from trunkline.jsonrpc import ConnectionLost
from trunkline.jsonrpc.incident import Report, answer_for
from trunkline.observe.exporter import Delivery, Exporter
from trunkline.observe.exposition import Exposition
from trunkline.observe.otlp import Attributes, Value, encode, envelope
from trunkline.observe.tracing import Make, Tracer
from trunkline.transports.http_client import ClientLimits, HttpClient

PATH = "/v1/traces"
"""Where collectors take traces, unless the endpoint says where."""

TIMEOUT = 10.0
"""How many seconds a collector has to take a batch."""

TURN = 64
"""How many spans are written before others get their turn."""

_LIMITS = ClientLimits(max_connections=2, max_body=64 * 1024)
_HEADERS = ((b"content-type", b"application/x-protobuf"),)
_LATER = frozenset((429, 502, 503, 504))
"""What a collector answers that wants to be asked again (OTLP, "Retryable Response Codes")."""

_SCOPE = ("trunkline", __version__)


class Traces:
    """What is recorded of a gateway's calls, and sent to a collector."""

    def __init__(self, config: Config, tell: Callable[[str | None], None], report: Report) -> None:
        """Begin; `tell` hears whether they can be delivered."""
        settings = config.traces
        headers = [(name.encode(), value.encode()) for name, value in settings.headers.items()]
        self._client = HttpClient(endpoint_of(settings), headers, _LIMITS)
        self._resource: Attributes = {
            "service.name": settings.service_name,
            "service.version": __version__,
            "service.instance.id": str(uuid4()),
        }
        self._report = report
        self.exporter: Exporter[Make] = Exporter(self.deliver, tell, random.random)
        places = {server.name: place_of(server) for server in config.servers}
        self.tracer = Tracer(self.exporter.take, settings.sample, places, report)

    def register(self, exposition: Exposition) -> None:
        """Show how many spans went which way."""
        spans = self.exporter
        exposition.gauge("trunkline_spans_waiting", "Spans to be delivered.", lambda: len(spans))
        exposition.counter("trunkline_spans_sent_total", "Spans delivered.", lambda: spans.sent)
        exposition.counter("trunkline_spans_dropped_total", "Spans lost.", lambda: spans.dropped)

    async def deliver(self, batch: list[Make]) -> Delivery:
        """Offer a batch to the collector; return what came of it."""
        body = envelope(await self._written(batch), self._resource, _SCOPE)
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await self._client.request("POST", _HEADERS, body)
                await answer.read()
        except ConnectionLost as why:
            return Delivery(str(why), again=True)
        except TimeoutError:
            return Delivery(f"no answer within {TIMEOUT:g} s", again=True)
        if 200 <= answer.status < 300:
            return Delivery()
        after = answer.headers.get(b"retry-after", b"")
        seconds = float(after) if after.isdigit() and len(after) < 9 else None
        return Delivery(f"it answered {answer.status}", answer.status in _LATER, seconds)

    async def _written(self, batch: list[Make]) -> list[bytes]:
        """Make and write many spans at once, and let others have their turn between them.

        One alone, after each call that has one, takes four times as long: nothing of it is at hand.
        """
        found: list[bytes] = []
        for count, make in enumerate(batch, 1):
            try:
                found.append(encode(make()))
            except Exception as why:
                answer_for(why, "span", self._report)
            if count % TURN == 0:
                await asyncio.sleep(0)
        return found

    async def aclose(self) -> None:
        """Deliver what is left, if that is quick."""
        await self.exporter.aclose()
        await self._client.aclose()


def endpoint_of(settings: TracesSettings) -> str:
    """Return where to post."""
    parts = urlsplit(str(settings.endpoint))
    return urlunsplit(parts._replace(path=PATH)) if parts.path in ("", "/") else urlunsplit(parts)


def place_of(server: ServerSettings) -> dict[str, Value]:
    """Return how a backend is reached, as OpenTelemetry says it."""
    if server.kind == "child":
        return {"network.transport": "pipe"}
    if server.kind == "builtin":
        return {}
    parts = urlsplit(str(server.url))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "server.address": parts.hostname or "",
        "server.port": port,
    }
