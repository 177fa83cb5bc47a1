"""What the endpoints share: the request context, and response encoding.

This module does not know the two protocols: the endpoints choose the HTTP status of an error.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec import Struct

from trunkline.endpoints.principal_limits import LimitRefusal
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
        """The negotiated values, subscriptions and log level; after initialization."""
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

    def refuse_unreadable(
        self, request: Request, principal: Principal, stream: RequestStream, error: RpcError
    ) -> RpcError:
        """Count and record a stateless-protocol request whose params are malformed.

        Return the error for its client.
        """
        ...

    def record_limit(
        self, principal: Principal, limit: str, *, session_ended: bool = False
    ) -> None:
        """Record that a principal has reached a limit, by its key in the configuration.

        With `session_ended`, it has lost its longest idle session, else its request is refused.
        """
        ...

    async def serve(
        self,
        transport: Transport,
        principal: Principal,
        watch_principal: PrincipalWatcher | None = None,
        address: str = "",
    ) -> None:
        """Serve a client at an IP address over a transport until it is closed.

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

    def respond_refused(self, refusal: LimitRefusal, id: Id = None) -> None:
        """Respond that the principal does not get more, with a Retry-After header."""
        error = RpcError.internal_error(refusal.reason, {"limit": refusal.limit})
        self.respond_error(refusal.status, error, id, RETRY_AFTER_1_S)

    def respond_json(self, status: int, payload: bytes, rest: BodyParts = ()) -> None:
        """Respond with a JSON payload, which may come in several parts."""
        self.exchange.respond(status, self.request_class.json_headers, payload, rest)

    def respond_accepted(self) -> None:
        """Respond with status 202 and no body."""
        self.exchange.respond(202, self.headers)


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
