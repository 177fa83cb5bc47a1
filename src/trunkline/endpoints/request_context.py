"""What the endpoints share: the request context, the in-flight limit, and response encoding.

This module does not know the two protocols: the endpoints choose the HTTP status of an error.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from trunkline.gateway.client import PrincipalWatcher, RequestStream, SessionStream
from trunkline.gateway.stores import ClientRecord
from trunkline.http.bodies import EarlyResponse
from trunkline.http.exchange import TEXT_PLAIN, BodyParts, HeaderTuple, HttpExchange
from trunkline.jsonrpc import (
    INVALID_REQUEST,
    ErrorResponse,
    Id,
    Notification,
    PendingResult,
    Request,
    RpcError,
    Transport,
)
from trunkline.jsonrpc.errors import IncidentReporter, to_rpc_error
from trunkline.jsonrpc.message import encode_response_pieces
from trunkline.mcp.http_headers import HeaderCheck
from trunkline.mcp.identity import Principal
from trunkline.mcp.params import Params
from trunkline.mcp.versions import Revision

if TYPE_CHECKING:
    from trunkline.endpoints.session_state import SessionState

JSON_CONTENT_TYPE = (b"content-type", b"application/json")
RETRY_AFTER_1_S = (b"retry-after", b"1")

# Results of at least this size are sent without copying them.
MIN_UNCOPIED_BYTES = 64 * 1024

TOO_MANY_REQUESTS = 429
SERVICE_UNAVAILABLE = 503


class McpSession(Protocol):
    """The gateway's side of one session of the session protocol."""

    @property
    def revision(self) -> Revision | None:
        """The negotiated revision, None before initialization."""
        ...

    on_changed: Callable[[], None]
    """Called when the client has changed what `client_record` says."""

    @property
    def client_record(self) -> ClientRecord:
        """What was negotiated, and what the client has asked for since; after initialization."""
        ...

    def update_principal(self, principal: Principal) -> None:
        """Replace the principal, whose roles may have changed."""
        ...

    def answer(self, request: Request, stream: RequestStream, params: Params | None = None) -> Any:
        """Answer a request: return the result or an awaitable; raises RpcError.

        `stream` takes messages about this request; `params` are its params if parsed already.
        """
        ...

    def notified(self, notification: Notification) -> None:
        """Handle a notification of the client."""
        ...


class McpService(Protocol):
    """The gateway, as the endpoints use it."""

    def readiness(self, detailed: bool = False) -> dict[str, Any]:
        """Return the readiness report; its `status` is "ready" or "not_ready".

        Only with `detailed` it names servers.
        """
        ...

    def open_session(self, stream: SessionStream, principal: Principal) -> McpSession:
        """Open a session; `stream` takes messages that concern no request."""
        ...

    async def close_session(self, session: Any) -> None:
        """Close a session."""
        ...

    def handle_stateless(
        self,
        request: Request,
        params: Params,
        principal: Principal,
        stream: RequestStream,
        header_check: HeaderCheck,
    ) -> Any:
        """Answer a request of the stateless protocol: return the result or an awaitable."""
        ...

    def record_refusal(
        self, request: Request, principal: Principal, stream: RequestStream, error: RpcError
    ) -> None:
        """Record a request of the stateless protocol whose params are malformed."""
        ...

    async def serve(
        self,
        transport: Transport,
        principal: Principal,
        watch_principal: PrincipalWatcher | None = None,
    ) -> None:
        """Serve a client over a transport until it is closed.

        `watch_principal` is given for transports whose messages each have a token of their own.
        """
        ...


class RequestClass(Struct, eq=False):
    """What the head of a request says; cached, since most requests of a client have equal heads."""

    headers: HeaderTuple
    """Headers of every response."""
    settings_version: object = None
    """Identifies the settings it was made with; they may have changed since."""
    rejection: tuple[int, str] | None = None
    is_mcp_post: bool = False
    """Whether it is a POST of an MCP message."""
    is_stateless: bool = False
    """Whether its protocol version header names a stateless or unknown revision."""
    session: "SessionState | None" = None
    """The session that the head names, as of the last lookup."""
    header_check: HeaderCheck | None = None
    """Its parsed headers, once a stateless request has used them."""
    json_headers: HeaderTuple = ()
    """The headers of a JSON response."""

    def __post_init__(self) -> None:
        self.json_headers = (JSON_CONTENT_TYPE, *self.headers)


class RequestContext(Struct, frozen=True, gc=False):
    """An accepted exchange, its principal, and the class of its request."""

    exchange: HttpExchange
    principal: Principal
    request_class: RequestClass

    @property
    def headers(self) -> HeaderTuple:
        """Headers of every response."""
        return self.request_class.headers

    def respond_text(self, status: int, reason: str, *headers: tuple[bytes, bytes]) -> None:
        """Respond with plain text."""
        self.exchange.respond(
            status, (TEXT_PLAIN, *headers, *self.headers), reason.encode() + b"\n"
        )

    def respond_error(
        self, status: int, error: RpcError, id: Id = None, *headers: tuple[bytes, bytes]
    ) -> None:
        """Respond with a JSON-RPC error."""
        self.exchange.respond(*error_response(status, error, (*headers, *self.headers), id))

    def respond_invalid(self, status: int, message: str) -> None:
        """Respond with the JSON-RPC error "invalid request"."""
        self.respond_error(status, RpcError(INVALID_REQUEST, message))

    def respond_overloaded(self, status: int, message: str, id: Id = None) -> None:
        """Respond with an internal error and a Retry-After header."""
        self.respond_error(status, RpcError.internal_error(message), id, RETRY_AFTER_1_S)

    def respond_json(self, status: int, payload: bytes, rest: BodyParts = ()) -> None:
        """Respond with a JSON payload, which may come in several parts."""
        self.exchange.respond(status, self.request_class.json_headers, payload, rest)

    def respond_accepted(self) -> None:
        """Respond with status 202 and no body."""
        self.exchange.respond(202, self.headers)


class InFlightLimiter:
    """Limits the requests in flight, in total and per principal.

    Requests are counted per principal only once the total reaches the lower of the two limits.
    """

    def __init__(self, max_total: int, max_per_owner: int) -> None:
        # The principal id of each request in flight.
        self._owners: dict[object, str] = {}
        # The number of requests per principal, None while they are not counted.
        self._per_owner: Counter[str] | None = None
        # Below this total `acquire` needs no check; 0 while requests are counted per principal.
        self._unchecked_below = 0
        self.reconfigure(max_total, max_per_owner)

    def reconfigure(self, max_total: int, max_per_owner: int) -> None:
        """Use other limits from now on; requests in flight stay."""
        self._max_total, self._max_per_owner = max_total, max_per_owner
        self._lower_limit = min(max_total, max_per_owner)
        if self._per_owner is None:
            self._unchecked_below = self._lower_limit

    def rejection_status(self, owner: str) -> int | None:
        """Return the status for a request above the limits, None below them."""
        count = len(self._owners)
        if count >= self._max_total:
            return SERVICE_UNAVAILABLE
        if count < self._max_per_owner:
            return None
        if self._per_owner is None:
            self._per_owner = Counter(self._owners.values())
            self._unchecked_below = 0
        return TOO_MANY_REQUESTS if self._per_owner[owner] >= self._max_per_owner else None

    def acquire(self, owner: str, call: object) -> int | None:
        """Count a request; return the status to reject it with if it exceeds the limits."""
        owners = self._owners
        # Below the lower limit nothing can be exceeded: the hot path only adds to a dict.
        if len(owners) >= self._unchecked_below:
            status = self.rejection_status(owner)
            if status is not None:
                return status
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


def error_response(
    status: int, error: RpcError, headers: HeaderTuple = (), id: Id = None
) -> EarlyResponse:
    """Return a response with a JSON-RPC error."""
    payload = ErrorResponse(id, error).encode()
    return EarlyResponse(status, (JSON_CONTENT_TYPE, *headers), payload)


def retry_after_header(error: RpcError) -> tuple[tuple[bytes, bytes], ...]:
    """Return a Retry-After header if the error data has `retryAfter`, else no header."""
    data = error.data
    seconds = cast("dict[str, object]", data).get("retryAfter") if isinstance(data, dict) else None
    if not isinstance(seconds, int | float):
        return ()
    return ((b"retry-after", b"%d" % max(1, math.ceil(seconds))),)


def encode_response_parts(
    request: Request, outcome: Any, report: IncidentReporter
) -> tuple[bytes, BodyParts]:
    """Encode a response; a large result is returned in `rest` without copying it.

    Copying it would take longer than everything else. A result that is not JSON is an incident.
    """
    try:
        return encode_response_pieces(request.id, outcome, MIN_UNCOPIED_BYTES)
    except Exception as exc:
        return ErrorResponse(request.id, to_rpc_error(exc, request.method, report)).encode(), ()


def encode_response(request: Request, outcome: Any, report: IncidentReporter) -> bytes:
    """Encode a response as one payload."""
    payload, rest = encode_response_parts(request, outcome, report)
    return b"".join((payload, *rest)) if rest else payload


async def wait_or_cancel(
    calls: Collection[PendingResult], tasks: Collection[asyncio.Task[Any]], timeout: float
) -> None:
    """Wait for calls, then for tasks, for `timeout` seconds each; then cancel them.

    `tasks` is read after the calls have ended, since they may add tasks.
    """
    if calls:
        ending = asyncio.gather(*(call.wait() for call in calls))
        await asyncio.wait({ending}, timeout=timeout)
        ending.cancel()
        for call in list(calls):
            call.cancel()
        await asyncio.gather(ending, return_exceptions=True)
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
