"""SessionEndpoint: Streamable HTTP of the session protocol (revisions to 2025-11-25).

    POST `initialize` ──> a session, its id in the response    DELETE ──> ends it
    POST ──> 200 with a response, or 202                       GET ──> a stream, new or resumed

The SessionStore has a record of each session. Its live part, a SessionState, is in this process and
is found by the id. The store is asked when a request names a session with a head that was not used
before, or after the deadline of the record. The deadline is moved only when it is near, so that few
requests write.

Invariants:
1. A session id has 32 characters of A-Z a-z 0-9 _ - from the system's random source. It is no proof
   of identity: a session exists only for the principal that opened it.
2. A session that is idle for too long or too old does not exist any more. A session with a running
   request or an open standalone stream is not idle.
3. The number of sessions is limited, in total and per principal. At its limit, a new session of a
   principal replaces the principal's longest idle session, never a session of another principal.
"""

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.principal_limits import (
    BufferBudget,
    InFlightLimiter,
    LimitRefusal,
    refuse_principal,
    refuse_total,
)
from trunkline.endpoints.request_context import (
    JSON_CONTENT_TYPE,
    RETRY_AFTER_1_S,
    McpService,
    McpSession,
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
)
from trunkline.gateway.stores import (
    ClientRecord,
    MemorySessionStore,
    SessionLimit,
    SessionRecord,
    SessionStore,
    resolve,
)
from trunkline.http.exchange import BodyParts
from trunkline.http.media_types import accepts
from trunkline.jsonrpc import (
    INVALID_REQUEST,
    Batch,
    ErrorResponse,
    Id,
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
from trunkline.mcp.identity import Principal
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
        *,
        store: SessionStore | None = None,
        budget: BufferBudget | None = None,
    ) -> None:
        """Create the endpoint; `clock` defaults to the time of the running loop.

        The events that the sessions keep count against `budget`.
        """
        self._budget = budget
        self._service = service
        self.limiter = limiter
        self.report = report
        self._store = MemorySessionStore() if store is None else store
        # The sessions of this process, by id.
        self._sessions: dict[str, SessionState] = {}
        # The same sessions by principal.
        self._sessions_of: dict[str, dict[SessionState, None]] = {}
        self._settings = settings
        self._is_closed = False
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
        self._settings, now = settings, self.now()
        for session in self._sessions.values():
            session.valid_until = -math.inf
            self._save_deadline(session, now)

    # POST

    def handle_post(self, context: RequestContext, message: Message | Batch) -> None:
        """Handle a POSTed message or batch."""
        if isinstance(message, Request):
            self.handle_request(context, message)
            return
        self._use_session(context, partial(self._handle_in_session, context, message))

    def _handle_in_session(
        self, context: RequestContext, message: Message | Batch, session: SessionState
    ) -> None:
        if isinstance(message, Batch):
            self._handle_batch(context, session, message)
        else:
            self._handle_message(session, message)
            context.respond_accepted()

    def _initialize(self, context: RequestContext, request: Request) -> None:
        """Open a session if the initialize request is valid."""
        session, now = SessionState(context.principal.id, self._budget), self.now()
        mcp_session = session.mcp_session = self._service.open_session(session, context.principal)
        try:
            result = mcp_session.answer(request, session)
            session.record = self._new_record(context.principal, mcp_session.client_record, now)
            exceeded = self._store.create(session.record, self._settings.session_limits, now)
            while isinstance(exceeded, SessionLimit) and self._end_longest_idle(context, exceeded):
                exceeded = self._store.create(session.record, self._settings.session_limits, now)
        except Exception as exc:
            self._close_mcp_session(mcp_session)
            context.respond_error(200, to_rpc_error(exc, request.method, self.report), request.id)
            return
        pending = _PendingInitialize(session, context, request, result)
        is_late = hasattr(result, "__await__")
        if (exceeded is None or isinstance(exceeded, SessionLimit)) and not is_late:
            self._finish_initialize(pending, exceeded)
        else:
            self._spawn(self._initialize_later(pending, exceeded))

    def _new_record(self, principal: Principal, client: ClientRecord, now: float) -> SessionRecord:
        settings = self._settings
        return SessionRecord(
            id=secrets.token_urlsafe(24),
            owner=principal.id,
            created_at=now,
            expires_at=now + min(settings.session_idle, settings.session_max_age),
            client=client,
        )

    async def _initialize_later(
        self,
        pending: "_PendingInitialize",
        answer: SessionLimit | Awaitable[SessionLimit | None] | None,
    ) -> None:
        """Finish `initialize` when a shared store has answered, and the result is known."""
        record = pending.session.record
        try:
            pending = pending._replace(result=await resolve(pending.result))
            exceeded = await resolve(answer)
            while exceeded is not None and self._end_longest_idle(pending.context, exceeded):
                limits = self._settings.session_limits
                exceeded = await resolve(self._store.create(record, limits, self.now()))
        except BaseException as exc:
            self._store.remove(record.id, record.epoch)  # it may have been stored anyway
            await self._service.close_session(pending.session.mcp_session)
            if not isinstance(exc, Exception):
                raise
            error = to_rpc_error(exc, pending.request.method, self.report)
            pending.context.respond_error(200, error, pending.request.id)
        else:
            self._finish_initialize(pending, exceeded)

    def _finish_initialize(
        self, pending: "_PendingInitialize", exceeded: SessionLimit | None
    ) -> None:
        """Answer `initialize`, once the store has the session, or it would exceed a limit."""
        session, context, request, result = pending
        record, mcp_session = session.record, session.mcp_session
        if exceeded is not None or self._is_closed:
            session.close()
            self._close_mcp_session(mcp_session)
            if exceeded is not None:
                self._refuse(context, self._session_refusal(exceeded), request.id)
                return
            self._store.remove(record.id, record.epoch)
            error = RpcError.internal_error("the gateway is stopping")
            context.respond_error(503, error, request.id, RETRY_AFTER_1_S)
            return
        session.revision = mcp_session.revision
        session.principal, session.last_activity = context.principal, record.created_at
        self._sessions[record.id] = session
        self._sessions_of.setdefault(record.owner, {})[session] = None
        mcp_session.on_changed = partial(self._save_client, session)
        session_id = (_SESSION_ID_HEADER, record.id.encode())
        headers = (JSON_CONTENT_TYPE, session_id, *context.headers)
        context.exchange.respond(200, headers, Response(request.id, result).encode())

    def _session_refusal(self, exceeded: SessionLimit) -> LimitRefusal:
        limits = self._settings.session_limits
        if exceeded is SessionLimit.TOTAL:
            return refuse_total(exceeded, limits.max_sessions, "sessions")
        count, things = limits.max_sessions_per_principal, "sessions, all of them in use"
        return refuse_principal(exceeded, count, things, "end one with DELETE")

    def _end_longest_idle(self, context: RequestContext, exceeded: SessionLimit) -> bool:
        """End the principal's longest idle session; return False if all of them are in use."""
        principal = context.principal
        own = self._sessions_of.get(principal.id, ())
        idle = min(
            (session for session in own if not session.is_busy),
            key=lambda session: session.last_activity,
            default=None,
        )
        if idle is None:
            return False
        self._end_session(idle)
        self._service.record_limit(principal, exceeded, session_ended=True)
        return True

    def _use_session(self, context: RequestContext, use: Callable[[SessionState], None]) -> None:
        """Call `use` with the session that the request names, or respond with an error."""
        id = context.exchange.request.headers.get(_SESSION_ID_HEADER)
        if id is None:
            message = "Missing Mcp-Session-Id: call initialize, and send the id that it returns"
            context.respond_invalid(400, message)
            return
        session_id, now = id.decode("latin-1"), self.now()
        session = self._sessions.get(session_id)
        if session is not None:
            self._renew(session, now)
        found = self._store.find(session_id, context.principal.id, now)
        if found is None or isinstance(found, SessionRecord):
            self._use_found(context, use, found)
        else:
            self._spawn(self._use_later(context, use, found))

    async def _use_later(
        self,
        context: RequestContext,
        use: Callable[[SessionState], None],
        found: Awaitable[SessionRecord | None],
    ) -> None:
        """Go on with a request when a shared store has answered."""
        try:
            record = await found
        except Exception as exc:
            context.respond_error(500, to_rpc_error(exc, "", self.report))
        else:
            self._use_found(context, use, record)

    def _use_found(
        self,
        context: RequestContext,
        use: Callable[[SessionState], None],
        record: SessionRecord | None,
    ) -> None:
        """Call `use` with the session of a record, or respond that there is none."""
        session = None if record is None else self._sessions.get(record.id)
        if (
            record is None
            or session is None
            or session.record.epoch != record.epoch
            or _SESSION_ID_HEADER in context.exchange.request.repeated
        ):
            context.request_class.session = None
            context.respond_invalid(404, "Session not found: call initialize again")
            return
        session.mcp_session.update_principal(context.principal)
        session.principal = context.principal
        session.last_activity, session.valid_until = self.now(), record.expires_at
        context.request_class.session = session
        use(session)

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
            self._use_session(context, partial(self._handle_again, context, request, params))
            return
        session.last_activity = now
        id, in_progress = request.id, session.in_progress
        if id in in_progress:
            context.respond_error(400, _duplicate_id_error(request))
            return
        call = _SessionCall(session, context, endpoint=self, request=request)
        refusal = self.limiter.acquire(session.owner, call)
        if refusal is not None:
            self._refuse(context, refusal, id)
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

    def _refuse(self, context: RequestContext, refusal: LimitRefusal, id: Id = None) -> None:
        self._service.record_limit(context.principal, refusal.limit)
        context.respond_refused(refusal, id)

    def _handle_again(
        self, context: RequestContext, request: Request, params: Params | None, _: SessionState
    ) -> None:
        """Handle a request whose session is in the cache now.

        Not a lambda in `handle_request`: the variables it uses would make every call slower.
        """
        self.handle_request(context, request, params)

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

    def error_for(self, request: Request, exc: BaseException) -> RpcError:
        """Return the error of a request; a cancelled one gets one, too, since HTTP needs it."""
        if isinstance(exc, asyncio.CancelledError):
            return RpcError(REQUEST_CANCELLED, "Request cancelled")
        return to_rpc_error(exc, request.method, self.report)

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
        refusal = self.limiter.refusal(context.principal.id)
        if refusal is not None:
            self._refuse(context, refusal)
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
            if (refusal := self.limiter.acquire(session.owner, call)) is not None:
                raise RpcError.internal_error(refusal.reason)
        except RpcError as error:
            return ErrorResponse(request.id, error).encode()
        try:
            outcome = as_pending(session.mcp_session.answer(request, writer))
        except Exception as exc:
            self.limiter.release(call)
            return ErrorResponse(request.id, self.error_for(request, exc)).encode()
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

    def handle_get(
        self, context: RequestContext, on_opened: Callable[[ResumableEventStream], None]
    ) -> None:
        """Open the standalone stream, or resume a stream; call `on_opened` with it."""
        accept = context.exchange.request.headers.get(b"accept")
        if accept is None or not accepts(accept, "text/event-stream"):
            context.respond_text(406, "expected an Accept header with text/event-stream")
            return
        self._use_session(context, partial(self._open_stream, context, on_opened))

    def _open_stream(
        self,
        context: RequestContext,
        on_opened: Callable[[ResumableEventStream], None],
        session: SessionState,
    ) -> None:
        found = session.find_stream(context.exchange.request.headers.get(b"last-event-id"))
        if found is None:
            context.respond_invalid(400, "This stream is no longer available")
            return
        stream, after = found
        if stream.is_attached and after is None:
            context.respond_invalid(409, "This stream is open already")
            return
        stream.attach(context.exchange, context.headers, after, primed=session.sends_priming_event)
        context.exchange.on_disconnect(partial(self._touch, session))
        self._spawn(stream.flush())
        on_opened(stream)

    def handle_delete(self, context: RequestContext) -> None:
        """End the session that the request names."""
        self._use_session(context, partial(self._delete_session, context))

    def _delete_session(self, context: RequestContext, session: SessionState) -> None:
        self._end_session(session)
        context.exchange.respond(204, context.headers)

    # Housekeeping

    def expire_sessions(self) -> None:
        """End expired sessions."""
        now = self.now()
        for session in list(self._sessions.values()):
            self._renew(session, now)
            if session.record.expires_at < now:
                self._end_session(session)
        self._ending_sessions = [
            session for session in self._ending_sessions if session.in_progress
        ]

    @property
    def streams(self) -> list[SessionResponseWriter | ResumableEventStream]:
        """The open responses and streams, for pings."""
        sessions = [*self._sessions.values(), *self._ending_sessions]
        calls = (call for session in sessions for call in session.in_progress.values())
        writers = dict.fromkeys((*(writer for _, writer in calls), *self._unfinished))
        session_streams = (session.standalone for session in sessions)
        return [*writers, *(stream for stream in session_streams if stream.is_attached)]

    def _touch(self, session: SessionState) -> None:
        """Mark the session as active until now."""
        session.last_activity = self.now()

    def _renew(self, session: SessionState, now: float) -> None:
        """Move the deadline of the record, if it is near, by the activity since it was stored."""
        if session.is_busy:
            session.last_activity = now  # it counts as active whenever it is checked
        if session.record.expires_at - now < self._settings.session_idle / 2:
            self._save_deadline(session, now)

    def _save_deadline(self, session: SessionState, now: float) -> None:
        settings, record = self._settings, session.record
        expires_at = min(
            session.last_activity + settings.session_idle,
            record.created_at + settings.session_max_age,
        )
        if expires_at != record.expires_at:
            session.record = replace(record, expires_at=expires_at)
            self._store.save(session.record, now)

    def _save_client(self, session: SessionState) -> None:
        """Save what the client has changed in its session."""
        if session.record.id in self._sessions:
            session.record = replace(session.record, client=session.mcp_session.client_record)
            self._store.save(session.record, self.now())

    def _end_session(self, session: SessionState) -> None:
        """End a session and remove its record."""
        record = session.record
        del self._sessions[record.id]
        del self._sessions_of[record.owner][session]
        if not self._sessions_of[record.owner]:
            del self._sessions_of[record.owner]
        self._store.remove(record.id, record.epoch)
        session.valid_until = -math.inf
        session.close()
        if session.in_progress:
            self._ending_sessions.append(session)
        self._close_mcp_session(session.mcp_session)

    def _close_mcp_session(self, mcp_session: McpSession) -> None:
        self._spawn(self._service.close_session(mcp_session))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def aclose(self) -> None:
        """End all sessions."""
        self._is_closed = True
        for session in list(self._sessions.values()):
            self._end_session(session)
        calls = [
            call for session in self._ending_sessions for call, _ in session.in_progress.values()
        ]
        calls += self._unfinished.values()
        await wait_or_cancel(calls, self._background_tasks, self._close_timeout)


class _PendingInitialize(NamedTuple):
    """An `initialize` request whose session, or whose result, is not complete yet."""

    session: SessionState
    context: RequestContext
    request: Request
    result: Any


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
            if self.finish(payload, rest):
                return
        elif self.fail(request.id, endpoint.error_for(request, outcome.error)):
            return
        endpoint.drain(self, outcome)


class _BatchCall(_SessionCall):
    """A request of a batch; its response waits for those of the other requests."""

    payload: bytes = b""

    def finish(self, payload: bytes, rest: BodyParts = ()) -> bool:
        """Keep the payload for the batch."""
        self.payload = b"".join((payload, *rest))
        return True

    def fail(self, id: Id, error: RpcError) -> bool:
        """Keep the error for the batch."""
        return self.finish(ErrorResponse(id, error).encode())


def _has_envelope(request: Request) -> bool:
    """Return whether a request belongs to the stateless protocol, which has no batches."""
    try:
        return has_envelope(Params(request.params))
    except RpcError:
        return False  # the method's handler rejects malformed params


def _duplicate_id_error(request: Request) -> RpcError:
    """Reject a duplicate id; not under that id, or it would answer the first request."""
    return RpcError.invalid_request(f"id {request.id!r} is in use already")
