"""StatelessEndpoint: POSTs of the stateless protocol (revision 2026-07-28).

    repeated headers ──> envelope members ──> headers match body ──> the gateway ──> response

Clients rely on this order of checks. Session ids and event ids have no meaning here.

Invariants:
1. A response is a JSON body, or a stream if messages precede it. The status is chosen last.
2. A client that closes its exchange cancels its request.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct

from trunkline.endpoints.principal_limits import InFlightLimiter
from trunkline.endpoints.request_context import (
    McpService,
    RequestContext,
    encode_response,
    encode_response_parts,
    retry_after_header,
    wait_or_cancel,
)
from trunkline.http.exchange import HttpRequest
from trunkline.http.sse import EVENT_STREAM_HEADERS, PING_COMMENT, encode_event
from trunkline.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ConnectionLost,
    ErrorResponse,
    Notification,
    PendingResult,
    Raw,
    Request,
    RpcError,
    as_pending,
)
from trunkline.jsonrpc.errors import IncidentReporter, to_rpc_error
from trunkline.mcp.errors import HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION
from trunkline.mcp.http_headers import HeaderCheck
from trunkline.mcp.params import Params

# The HTTP status of an error response by its code; 200 for all other codes.
_ERROR_STATUSES = {
    METHOD_NOT_FOUND: 404,
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
}


class StatelessEndpoint:
    """Handles POSTs of the stateless protocol."""

    def __init__(
        self,
        service: McpService,
        limiter: InFlightLimiter,
        report: IncidentReporter,
        close_timeout: float = 1.0,
    ) -> None:
        self._service = service
        self.limiter = limiter
        self.report = report
        self._close_timeout = close_timeout
        # Requests that are running, or whose stream has unsent events.
        self.calls: dict[StatelessResponseWriter, PendingResult] = {}
        self._drain_tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def handle_request(
        self, context: RequestContext, request: Request, params: Params
    ) -> PendingResult | None:
        """Handle one request; return its pending result if the response comes later."""
        writer = StatelessResponseWriter(self, context, request)
        refusal = self.limiter.acquire(context.principal.id, writer)
        if refusal is not None:
            self._service.record_limit(context.principal, refusal.limit)
            context.respond_refused(refusal, request.id)
            return None
        try:
            header_check = context.request_class.header_check or _header_check_of(context)
            header_check.check_body(request.method, params)
            outcome = self._service.handle_stateless(
                request, params, context.principal, writer, header_check
            )
        except Exception as exc:
            self._reject(writer, exc)
            return None
        if type(outcome) is not PendingResult:
            outcome = as_pending(outcome)
            if type(outcome) is not PendingResult:
                self.limiter.release(writer)
                context.respond_json(200, encode_response(request, outcome, self.report))
                return None
        self.calls[writer] = outcome
        outcome.add_callback(writer.complete)
        context.exchange.on_disconnect(outcome.cancel)
        return outcome

    def reject_unreadable(self, context: RequestContext, request: Request, error: RpcError) -> None:
        """Respond to a request whose params cannot be read."""
        writer = StatelessResponseWriter(self, context, request)
        refusal = self._service.refuse_unreadable(request, context.principal, writer, error)
        status = 400 if refusal is error else error_status(refusal)
        context.respond_error(status, refusal, request.id, *retry_after_header(refusal))

    def _reject(self, writer: "StatelessResponseWriter", exc: Exception) -> None:
        """Respond to a request that failed at once.

        Not in the `except` block: the frame there keeps the exception and its traceback alive.
        """
        self.limiter.release(writer)
        error = to_rpc_error(exc, writer.request.method, self.report)
        writer.context.respond_error(
            error_status(error), error, writer.request.id, *retry_after_header(error)
        )

    def drain(self, writer: "StatelessResponseWriter") -> None:
        """Send the rest of a stream in a task."""
        self._drain_tasks.add(task := self._loop.create_task(writer.flush()))
        task.add_done_callback(partial(self._on_drained, writer))

    def _on_drained(self, writer: "StatelessResponseWriter", task: asyncio.Task[None]) -> None:
        del self.calls[writer]
        self._drain_tasks.discard(task)

    def error_for(self, request: Request, exc: BaseException) -> RpcError:
        """Return the RpcError for the exception of a request."""
        if isinstance(exc, asyncio.CancelledError):  # the client disconnected, or the gateway stops
            return RpcError.internal_error("the call was cancelled")
        return to_rpc_error(exc, request.method, self.report)

    @property
    def streams(self) -> "list[StatelessResponseWriter]":
        """The open responses, for pings."""
        return list(self.calls)

    async def aclose(self) -> None:
        """Cancel all requests."""
        for call in list(self.calls.values()):
            call.cancel()
        await wait_or_cancel(self.calls.values(), self._drain_tasks, self._close_timeout)


def _header_check_of(context: RequestContext) -> HeaderCheck:
    """Return the header check of a request head, and cache it for requests with an equal head."""
    head = context.exchange.request.head
    header_check = context.request_class.header_check = HeaderCheck(head.headers, head.repeated)
    return header_check


def error_status(error: RpcError) -> int:
    """Return the HTTP status of an error response."""
    return _ERROR_STATUSES.get(error.code, 200)


class StatelessResponseWriter(Struct, eq=False):
    """Writes the response to one POST; takes the messages that precede it."""

    endpoint: StatelessEndpoint
    context: RequestContext
    request: Request
    is_streaming: bool = False
    is_done: bool = False
    is_idle: bool = False
    """Whether nothing was sent since the last ping check."""
    final_payload: bytes = b""

    @property
    def http_request(self) -> HttpRequest:
        """The HTTP request."""
        return self.context.exchange.request

    async def call(self, method: str, params: Any) -> Raw:
        """Raise RpcError: the stateless protocol has no requests to clients."""
        raise RpcError.method_not_found(method)

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification before the response; later ones are dropped."""
        if not self.is_done:
            await self._send_event(encode_event(Notification(method, params).encode()))

    async def send_ping(self) -> None:
        """Send a comment, which keeps proxies from closing the stream."""
        if not self.is_done:
            await self._send_event(PING_COMMENT)

    def complete(self, outcome: PendingResult) -> None:
        """Write the response; called when the outcome is known."""
        endpoint, request = self.endpoint, self.request
        endpoint.limiter.release(self)
        self.is_done = True
        if outcome.error is not None:
            self._fail(endpoint.error_for(request, outcome.error))
            return
        payload, rest = encode_response_parts(request, outcome.result, endpoint.report)
        if self.is_streaming:
            self.final_payload = b"".join((payload, *rest))
            endpoint.drain(self)
        else:
            self.context.respond_json(200, payload, rest)
            del endpoint.calls[self]

    def _fail(self, error: RpcError) -> None:
        """Write the error response."""
        endpoint, id = self.endpoint, self.request.id
        if self.is_streaming:
            self.final_payload = ErrorResponse(id, error).encode()
            endpoint.drain(self)
        else:
            headers = retry_after_header(error)
            self.context.respond_error(error_status(error), error, id, *headers)
            del endpoint.calls[self]

    async def flush(self) -> None:
        """Send the response as the last event of the stream."""
        await self._send_event(encode_event(self.final_payload))
        self.context.exchange.finish()

    async def _send_event(self, event: bytes) -> None:
        self.is_idle = False
        if not self.is_streaming:
            self.is_streaming = True
            self.context.exchange.begin(200, (*EVENT_STREAM_HEADERS, *self.context.headers))
        with suppress(ConnectionLost):  # the disconnect callback has cancelled the request
            await self.context.exchange.send(event)
