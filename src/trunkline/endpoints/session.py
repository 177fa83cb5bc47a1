"""SessionEndpoint: Streamable HTTP of the session protocol (revisions to 2025-11-25).

    POST `initialize` ──> a session, its id in the response    DELETE ──> ends it
    POST ──> 200 with a response, or 202                       GET ──> a stream, new or resumed

A session id is no proof of identity: a session exists only for the principal that opened it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.request_context import (
    JSON_CONTENT_TYPE,
    InFlightLimiter,
    McpService,
    RequestContext,
    encode_response,
    encode_response_parts,
    retry_after_header,
    wait_or_cancel,
)
from trunkline.endpoints.session_state import (
    ResumableEventStream,
    SessionResponseWriter,
    SessionState,
    SessionStore,
    TooManySessions,
)
from trunkline.http.exchange import BodyParts
from trunkline.http.media_types import accepts
from trunkline.jsonrpc import (
    INVALID_REQUEST,
    Batch,
    ErrorResponse,
    Message,
    Notification,
    PendingResult,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
    as_pending,
)
from trunkline.jsonrpc.errors import IncidentReporter, to_rpc_error
from trunkline.jsonrpc.message import join_batch
from trunkline.mcp.negotiation import has_envelope
from trunkline.mcp.params import Params

# The error code for a request that the client cancelled; over HTTP it still gets a response.
REQUEST_CANCELLED = -32800

_SESSION_ID_HEADER = b"mcp-session-id"


class SessionEndpoint:
    """Handles the exchanges of the session protocol."""

    def __init__(
        self,
        service: McpService,
        settings: EndpointSettings,
        limiter: InFlightLimiter,
        report: IncidentReporter,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Create the endpoint; `clock` defaults to the time of the running loop."""
        self._service = service
        self.limiter = limiter
        self.report = report
        self._sessions: SessionStore[SessionState] = SessionStore(
            settings.session_idle, settings.session_max_age, settings.max_sessions
        )
        # Batches, and streams with unsent events. Other requests are in `session.in_progress`.
        self._unfinished: dict[SessionResponseWriter, PendingResult] = {}
        # Sessions that were ended while requests were running.
        self._ending_sessions: list[SessionState] = []
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._close_timeout = settings.close_timeout
        self._loop = asyncio.get_running_loop()
        self.now = clock or self._loop.time

    def __len__(self) -> int:
        return len(self._sessions)

    def reconfigure(self, settings: EndpointSettings) -> None:
        """Use other settings from now on; sessions stay, within the new limits."""
        self._sessions.reconfigure(
            settings.session_idle, settings.session_max_age, settings.max_sessions
        )

    # POST

    def handle_post(self, context: RequestContext, message: Message | Batch) -> None:
        """Handle a POSTed message or batch."""
        if isinstance(message, Request):
            self.handle_request(context, message)
            return
        session = self._find_session(context)
        if session is None:
            return
        if isinstance(message, Batch):
            self._handle_batch(context, session, message)
        else:
            self._handle_message(session, message)
            context.respond_accepted()

    def _initialize(self, context: RequestContext, request: Request) -> None:
        """Open a session if the initialize request is valid."""
        session = SessionState()
        mcp_session = self._service.open_session(session, context.principal)
        try:
            result = mcp_session.answer(request, session)
            session.mcp_session, session.revision = mcp_session, mcp_session.revision
            session.principal = context.principal
            self._sessions.create(context.principal.id, session, self.now())
        except TooManySessions as exc:
            self._close_mcp_session(mcp_session)
            context.respond_overloaded(503, str(exc), request.id)
        except Exception as exc:
            self._close_mcp_session(mcp_session)
            context.respond_error(200, to_rpc_error(exc, request.method, self.report), request.id)
        else:
            session_id = (_SESSION_ID_HEADER, session.session_id.encode())
            headers = (JSON_CONTENT_TYPE, session_id, *context.headers)
            context.exchange.respond(200, headers, Response(request.id, result).encode())

    def _find_session(self, context: RequestContext) -> SessionState | None:
        """Return the session that the request names, or respond with an error."""
        http_request = context.exchange.request
        id = http_request.headers.get(_SESSION_ID_HEADER)
        if id is None:
            message = "Missing Mcp-Session-Id: call initialize, and send the id that it returns"
            context.respond_invalid(400, message)
            return None
        owner = context.principal.id
        session = self._sessions.find(id.decode("latin-1"), owner, self.now())
        if session is None or _SESSION_ID_HEADER in http_request.repeated:
            context.request_class.session = None
            context.respond_invalid(404, "Session not found: call initialize again")
            return None
        session.mcp_session.update_principal(context.principal)
        session.principal = context.principal
        context.request_class.session = session
        return session

    def handle_request(
        self, context: RequestContext, request: Request, params: Params | None = None
    ) -> None:
        """Handle a request; `params` are given if they were parsed already."""
        if request.method == "initialize":
            self._initialize(context, request)
            return
        session, now = context.request_class.session, self.now()
        # The previous request with an equal head has cached the session: skip the lookup.
        if (
            session is None
            or now > session.valid_until
            or session.principal is not context.principal
        ):
            session = self._find_session(context)
            if session is None:
                return
        session.last_activity = now
        id, in_progress = request.id, session.in_progress
        if id in in_progress:
            context.respond_error(400, _duplicate_id_error(request))
            return
        call = _SessionCall(session, context, endpoint=self, request=request)
        status = self.limiter.acquire(session.owner, call)
        if status is not None:
            context.respond_overloaded(status, "too many requests", id)
            return
        try:
            outcome = session.mcp_session.answer(request, call, params)
        except Exception as exc:
            self._reject(call, exc)
            return
        # `is`, not isinstance: nearly all outcomes are PendingResults, and this is the hot path.
        if type(outcome) is not PendingResult:
            outcome = as_pending(outcome)
            if type(outcome) is not PendingResult:
                self.limiter.release(call)
                context.respond_json(200, encode_response(request, outcome, self.report))
                return
        in_progress[id] = outcome, call
        outcome.add_callback(call.complete)

    def _reject(self, call: "_SessionCall", exc: Exception) -> None:
        """Respond to a request that failed at once.

        Not in the `except` block: the frame there keeps the exception and its traceback alive.
        """
        self.limiter.release(call)
        error = to_rpc_error(exc, call.request.method, self.report)
        call.context.respond_error(200, error, call.request.id, *retry_after_header(error))

    def drain(self, writer: SessionResponseWriter, outcome: PendingResult) -> None:
        """Send the rest of a stream in a task."""
        self._unfinished[writer] = outcome
        self._spawn(self._drain(writer))

    async def _drain(self, writer: SessionResponseWriter) -> None:
        try:
            await writer.flush()
        finally:
            del self._unfinished[writer]

    def error_response(self, request: Request, exc: BaseException) -> bytes:
        """Encode the error response; a cancelled request gets one, too, since HTTP needs it."""
        if isinstance(exc, asyncio.CancelledError):
            error = RpcError(REQUEST_CANCELLED, "Request cancelled")
        else:
            error = to_rpc_error(exc, request.method, self.report)
        return ErrorResponse(request.id, error).encode()

    def _handle_message(self, session: SessionState, message: Message) -> None:
        if isinstance(message, Notification):
            try:
                session.mcp_session.notified(message)
            except Exception as exc:  # notifications get no response, not even an error
                to_rpc_error(exc, message.method, self.report)
        elif isinstance(message, Response | ErrorResponse):
            session.handle_response(message)

    # Batches (revision 2025-03-26 only)

    def _handle_batch(self, context: RequestContext, session: SessionState, batch: Batch) -> None:
        if session.revision is None or not session.revision.allows_batches:
            context.respond_invalid(400, "Batch requests not supported")
            return
        status = self.limiter.rejection_status(context.principal.id)
        if status is not None:
            context.respond_overloaded(status, "too many requests")
            return
        writer = SessionResponseWriter(session, context)
        responses: list[bytes | tuple[_BatchCall, PendingResult]] = []
        for entry in batch.entries:
            if isinstance(entry, Request):
                responses.append(self._start_batch_entry(entry, writer))
            elif not isinstance(entry, RemoteProtocolError):
                self._handle_message(session, entry)
            elif entry.error_payload is not None:
                responses.append(entry.error_payload)
        if responses:
            joined = PendingResult.from_awaitable(self._join_batch(responses))
            self._unfinished[writer] = joined
            joined.add_callback(partial(self._finish_batch, writer))
        else:
            context.respond_accepted()

    def _start_batch_entry(
        self, request: Request, writer: SessionResponseWriter
    ) -> "bytes | tuple[_BatchCall, PendingResult]":
        session = writer.session
        call = _BatchCall(session, writer.context, endpoint=self, request=request)
        try:
            if request.method == "initialize":
                raise RpcError(INVALID_REQUEST, "initialize must not be part of a batch")
            if request.id in session.in_progress:
                return ErrorResponse(None, _duplicate_id_error(request)).encode()
            if _has_envelope(request):
                raise RpcError(
                    INVALID_REQUEST,
                    "a request with a stateless envelope must not be part of a batch",
                )
            if self.limiter.acquire(session.owner, call) is not None:
                raise RpcError.internal_error("too many requests")
        except RpcError as error:
            return ErrorResponse(request.id, error).encode()
        try:
            outcome = as_pending(session.mcp_session.answer(request, writer))
        except Exception as exc:
            self.limiter.release(call)
            return self.error_response(request, exc)
        if isinstance(outcome, PendingResult):
            session.in_progress[request.id] = outcome, writer
            outcome.add_callback(call.complete)
            return call, outcome
        self.limiter.release(call)
        return encode_response(request, outcome, self.report)

    async def _join_batch(
        self, responses: "list[bytes | tuple[_BatchCall, PendingResult]]"
    ) -> bytes:
        """Wait for all responses of a batch and join them."""
        payloads: list[bytes] = []
        for part in responses:
            if isinstance(part, bytes):
                payloads.append(part)
            else:
                await part[1].wait()
                payloads.append(part[0].payload)
        return join_batch(payloads)

    def _finish_batch(self, writer: SessionResponseWriter, joined: PendingResult) -> None:
        if joined.error is not None or writer.finish(joined.result):
            del self._unfinished[writer]
        else:
            self.drain(writer, joined)

    # GET and DELETE

    def handle_get(self, context: RequestContext) -> ResumableEventStream | None:
        """Open the standalone stream, or resume a stream; return it, or None after an error."""
        http_request = context.exchange.request
        accept = http_request.headers.get(b"accept")
        if accept is None or not accepts(accept, "text/event-stream"):
            context.respond_text(406, "expected an Accept header with text/event-stream")
            return None
        session = self._find_session(context)
        if session is None:
            return None
        found = session.find_stream(http_request.headers.get(b"last-event-id"))
        if found is None:
            context.respond_invalid(400, "This stream is no longer available")
            return None
        stream, after = found
        if stream.is_attached and after is None:
            context.respond_invalid(409, "This stream is open already")
            return None
        stream.attach(context.exchange, context.headers, after, primed=session.sends_priming_event)
        context.exchange.on_disconnect(partial(self._touch, session))
        self._spawn(stream.flush())
        return stream

    def handle_delete(self, context: RequestContext) -> None:
        """End the session that the request names."""
        session = self._find_session(context)
        if session is not None:
            self._end_session(session)
            self._sessions.remove(session.session_id)
            context.exchange.respond(204, context.headers)

    # Housekeeping

    def expire_sessions(self) -> None:
        """End expired sessions."""
        for session in self._sessions.expire(self.now()):
            self._end_session(session)
        self._ending_sessions = [
            session for session in self._ending_sessions if session.in_progress
        ]

    @property
    def streams(self) -> list[SessionResponseWriter | ResumableEventStream]:
        """The open responses and streams, for pings."""
        sessions = [*self._sessions, *self._ending_sessions]
        calls = (call for session in sessions for call in session.in_progress.values())
        writers = dict.fromkeys((*(writer for _, writer in calls), *self._unfinished))
        session_streams = (session.standalone for session in sessions)
        return [*writers, *(stream for stream in session_streams if stream.is_attached)]

    def _touch(self, session: SessionState) -> None:
        """Mark the session as active until now."""
        session.last_activity = self.now()

    def _end_session(self, session: SessionState) -> None:
        session.close()
        if session.in_progress:
            self._ending_sessions.append(session)
        self._close_mcp_session(session.mcp_session)

    def _close_mcp_session(self, mcp_session: Any) -> None:
        self._spawn(self._service.close_session(mcp_session))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def aclose(self) -> None:
        """End all sessions."""
        for session in list(self._sessions):
            self._sessions.remove(session.session_id)
            self._end_session(session)
        calls = [
            call for session in self._ending_sessions for call, _ in session.in_progress.values()
        ]
        calls += self._unfinished.values()
        await wait_or_cancel(calls, self._background_tasks, self._close_timeout)


class _SessionCall(SessionResponseWriter, kw_only=True):
    """A running request of a session, and the writer of its response."""

    endpoint: SessionEndpoint
    request: Request

    def complete(self, outcome: PendingResult) -> None:
        """Write the response; called when the outcome is known."""
        endpoint, session, request = self.endpoint, self.session, self.request
        in_progress = session.in_progress
        del in_progress[request.id]
        if not in_progress:  # it counted as busy until now
            session.last_activity = endpoint.now()
        endpoint.limiter.release(self)
        if outcome.error is None:
            payload, rest = encode_response_parts(request, outcome.result, endpoint.report)
        else:
            payload, rest = endpoint.error_response(request, outcome.error), ()
        if not self.finish(payload, rest):
            endpoint.drain(self, outcome)


class _BatchCall(_SessionCall):
    """A request of a batch; its response waits for those of the other requests."""

    payload: bytes = b""

    def finish(self, payload: bytes, rest: BodyParts = ()) -> bool:
        """Keep the payload for the batch."""
        self.payload = b"".join((payload, *rest))
        return True


def _has_envelope(request: Request) -> bool:
    """Return whether a request belongs to the stateless protocol, which has no batches."""
    try:
        return has_envelope(Params(request.params))
    except RpcError:
        return False  # the method's handler rejects malformed params


def _duplicate_id_error(request: Request) -> RpcError:
    """Reject a duplicate id; not under that id, or it would answer the first request."""
    return RpcError.invalid_request(f"id {request.id!r} is in use already")
