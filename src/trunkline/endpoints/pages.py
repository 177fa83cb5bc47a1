"""Pages: complete responses to GET requests outside MCP, such as health, metrics and metadata.

    request ──> a function of HttpPages ──> HttpPage, sent at once
                                        └─> coroutine ──a task──> HttpPage, sent when it is done

The page, or the server that looks it up, decides who may read it.

Invariants:
1. A request for a page gets one response, also when its coroutine fails (status 500, with the id of
   the incident) or is cancelled because the server closes (status 503).
2. A closed PageResponder has no task.
3. Without the token of the metrics, a page shows no names, addresses and errors of servers.
"""

import asyncio
import hmac
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from trunkline.endpoints.principal_limits import SERVICE_UNAVAILABLE
from trunkline.endpoints.request_context import (
    JSON_CONTENT_TYPE,
    RETRY_AFTER_1_S,
)
from trunkline.http.exchange import TEXT_PLAIN, HeaderTuple, HttpExchange, HttpRequest
from trunkline.jsonrpc.errors import IncidentReporter, print_incident, report_incident


class HttpPage(Struct, frozen=True):
    """A complete response to a GET of a path that is not an MCP path."""

    status: int
    headers: HeaderTuple
    body: bytes


# A page, or a coroutine that returns one and may be cancelled.
PendingPage: TypeAlias = HttpPage | Coroutine[Any, Any, HttpPage]

# Unauthenticated pages by path, such as the OAuth resource metadata.
HttpPages: TypeAlias = dict[str, Callable[[HttpRequest], PendingPage]]

LIVENESS_PATHS = frozenset(("/healthz", "/health"))
HEALTH_PATHS = LIVENESS_PATHS | {"/readyz", "/ready"}

_ALIVE_PAGE = HttpPage(200, (JSON_CONTENT_TYPE,), b'{"status":"ok"}')
_DRAINING_BODY = {"status": "not_ready", "reasons": ["the gateway is shutting down"]}
_CLOSING_PAGE = HttpPage(
    SERVICE_UNAVAILABLE, (TEXT_PLAIN, RETRY_AFTER_1_S), b"the gateway is shutting down\n"
)


def bears_token(request: HttpRequest, token: str) -> bool:
    """Return whether a request has a bearer token; the comparison takes constant time."""
    given = request.headers.get(b"authorization", b"")
    return hmac.compare_digest(given, b"Bearer " + token.encode())


class HealthPages:
    """The pages for liveness and readiness checks."""

    def __init__(
        self, readiness: Callable[[bool], dict[str, Any]], token: str | None = None
    ) -> None:
        """Show `readiness(True)`, which has details, to requests with `token`, if there is one."""
        # Whether the gateway is shutting down.
        self.is_draining = False
        self._readiness = readiness
        self._token = token

    def page(self, request: HttpRequest) -> HttpPage:
        """Return the page for a request to one of HEALTH_PATHS."""
        if request.path in LIVENESS_PATHS:
            return _ALIVE_PAGE
        detailed = self._token is not None and bears_token(request, self._token)
        body = _DRAINING_BODY if self.is_draining else self._readiness(detailed)
        status = 200 if body["status"] == "ready" else 503
        return HttpPage(status, (JSON_CONTENT_TYPE,), msgspec.json.encode(body))


class PageResponder:
    """Responds to exchanges with pages; runs the coroutines of those that take time."""

    def __init__(self, report: IncidentReporter = print_incident) -> None:
        self._report = report
        self._tasks: set[asyncio.Task[HttpPage]] = set()

    def respond(self, exchange: HttpExchange, page: PendingPage, headers: HeaderTuple = ()) -> None:
        """Respond with a page and additional headers, now or when its coroutine has ended."""
        if isinstance(page, HttpPage):
            exchange.respond(page.status, (*page.headers, *headers), page.body)
            return
        task = asyncio.create_task(page)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_task_done, exchange, headers))

    def _on_task_done(
        self, exchange: HttpExchange, headers: HeaderTuple, task: asyncio.Task[HttpPage]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            page = _CLOSING_PAGE
        elif (error := task.exception()) is not None:
            request = exchange.request
            incident = report_incident(error, f"{request.method} {request.path}", self._report)
            text = f"internal error, incident {incident.id}\n"
            page = HttpPage(500, (TEXT_PLAIN,), text.encode())
        else:
            page = task.result()
        self.respond(exchange, page, headers)

    async def aclose(self) -> None:
        """Cancel all pages that are not ready, and respond that the gateway shuts down."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
