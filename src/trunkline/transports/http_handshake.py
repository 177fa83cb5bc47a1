"""Streamable HTTP of the handshake era: sessions, and what may be done with the id of one.

    POST `initialize` ──> a session, its id in the answer      DELETE ──> its end
    POST ──> 200 with an answer, or 202                        GET ──> a stream, or the rest of one

Refuses to take an id for an identity: a session is there for its principal, and for nobody else.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from trunkline.jsonrpc import (
    INVALID_REQUEST,
    Batch,
    Due,
    ErrorResponse,
    Message,
    Notification,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
    due,
)
from trunkline.jsonrpc.incident import Report, answer_for
from trunkline.jsonrpc.message import join
from trunkline.mcp.envelope import has_envelope
from trunkline.mcp.media import accepts
from trunkline.mcp.meta import Params
from trunkline.mcp.versions import allows_batches
from trunkline.transports.http_answers import (
    LATER,
    Host,
    Load,
    Visit,
    end_all,
    later,
    payload_of,
    pieces_of,
)
from trunkline.transports.http_flow import Flow
from trunkline.transports.http_rules import HttpRules
from trunkline.transports.http_session import HttpSession, SessionReply
from trunkline.transports.sessions import Record, Sessions, TooManySessions

CANCELLED = -32800
"""The code of an answer that its client said it did not want; the transport demands one."""

_ID = b"mcp-session-id"


class HandshakeDoor:
    """Answers all that belongs to a session."""

    def __init__(
        self,
        host: Host,
        rules: HttpRules,
        load: Load,
        report: Report,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Open the door; the clock is the running loop's, unless another is given."""
        self._host = host
        self._load = load
        self._report = report
        self._sessions: Sessions[HttpSession] = Sessions(
            rules.session_idle, rules.session_life, rules.max_sessions, _is_busy
        )
        self._calls: dict[SessionReply, Due] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._now = clock or self._loop.time

    def __len__(self) -> int:
        return len(self._sessions)

    def adopt(self, rules: HttpRules) -> None:
        """Have other rules from now on; sessions stay, as long as they may by these."""
        self._sessions.adopt(rules.session_idle, rules.session_life, rules.max_sessions)

    # POST

    def post(self, visit: Visit, message: Message | Batch) -> None:
        """Take in what was posted, and answer."""
        asks = type(message) is Request
        if asks and message.method == "initialize":
            self._initialize(visit, message)
            return
        record = self._find(visit)
        if record is None:
            return
        if asks:
            self._call(visit, record, message)
        elif isinstance(message, Batch):
            self._batch(visit, record, message)
        else:
            self._take_note(record.held, message)
            visit.accept()

    def _initialize(self, visit: Visit, request: Request) -> None:
        """Begin a session, if the client says what it must; else nothing is kept."""
        session = HttpSession()
        conversation = self._host.open(session, visit.principal)
        try:
            result = conversation.answer(request, session)
            session.conversation, session.version = conversation, conversation.version or ""
            record = self._sessions.create(visit.principal.id, session, self._now())
        except TooManySessions as why:
            self._close(conversation)
            visit.fail(503, RpcError.internal_error(str(why)), request.id, LATER)
        except Exception as why:
            self._close(conversation)
            visit.fail(200, answer_for(why, request.method, self._report), request.id)
        else:
            named = Visit(
                visit.exchange,
                visit.principal,
                ((_ID, record.session_id.encode()), *visit.headers),
            )
            named.respond(200, Response(request.id, result).encode())

    def _find(self, visit: Visit) -> Record[HttpSession] | None:
        """Return the session that an exchange names, or answer that there is none."""
        asked = visit.exchange.request
        id = asked.headers.get(_ID)
        if id is None:
            error = "Missing Mcp-Session-Id: call initialize first, and send the id that it answers"
            visit.fail(400, RpcError(INVALID_REQUEST, error))
            return None
        owner = visit.principal.id
        record = self._sessions.find(id.decode("latin-1"), owner, self._now())
        if record is None or _ID in asked.repeated:
            visit.fail(404, RpcError(INVALID_REQUEST, "Session not found: call initialize again"))
            return None
        record.held.conversation.recognise(visit.principal)
        return record

    def _call(self, visit: Visit, record: Record[HttpSession], request: Request) -> None:
        session, owner = record.held, visit.principal.id
        if request.id in session.in_progress:
            visit.fail(400, _in_use(request))
            return
        refused = self._load.enter(owner)
        if refused is not None:
            visit.fail(refused, RpcError.internal_error("too many requests"), request.id, LATER)
            return
        reply = SessionReply(session, visit.exchange, visit.headers)
        try:
            outcome = session.conversation.answer(request, reply)
            if type(outcome) is not Due:
                outcome = due(outcome)
        except Exception as why:
            self._refuse(visit, request, why)
            return
        if type(outcome) is Due:
            self._calls[reply] = outcome
            session.in_progress[request.id] = outcome
            outcome.then(partial(self._finish, owner, record, request, reply))
        else:
            self._load.leave(owner)
            visit.respond(200, payload_of(request, outcome, self._report))

    def _refuse(self, visit: Visit, request: Request, why: Exception) -> None:
        """Answer what was refused at once; not where `why` was caught, which would keep it."""
        self._load.leave(visit.principal.id)
        error = answer_for(why, request.method, self._report)
        visit.fail(200, error, request.id, *later(error))

    def _finish(
        self,
        owner: str,
        record: Record[HttpSession],
        request: Request,
        reply: SessionReply,
        outcome: Due,
    ) -> None:
        """Answer the exchange of a call, in its stream if it has one."""
        self._ended(owner, record, request, outcome)
        if outcome.error is None:
            payload, *rest = pieces_of(request, outcome.result, self._report)
        else:
            payload, rest = self._payload(request, outcome), ()
        if reply.finish(payload, *rest):
            del self._calls[reply]
        else:
            self._spawn(self._see_off(reply))

    def _ended(self, owner: str, record: Record[HttpSession], request: Request, _: Due) -> None:
        del record.held.in_progress[request.id]
        record.last_activity = self._now()
        self._load.leave(owner)

    async def _see_off(self, reply: SessionReply) -> None:
        try:
            await reply.catch_up()
        finally:
            del self._calls[reply]

    def _payload(self, request: Request, outcome: Due) -> bytes:
        """Return an answer; to be cancelled is one, too, for HTTP has to say something."""
        why = outcome.error
        if why is None:
            return payload_of(request, outcome.result, self._report)
        if isinstance(why, asyncio.CancelledError):
            return ErrorResponse(request.id, RpcError(CANCELLED, "Request cancelled")).encode()
        return ErrorResponse(request.id, answer_for(why, request.method, self._report)).encode()

    def _take_note(self, session: HttpSession, message: Message) -> None:
        if isinstance(message, Notification):
            try:
                session.conversation.notified(message)
            except Exception as why:  # a notification is never answered, not even with an error
                answer_for(why, message.method, self._report)
        elif isinstance(message, Response | ErrorResponse):
            session.settle(message)

    # A batch, which one revision has

    def _batch(self, visit: Visit, record: Record[HttpSession], batch: Batch) -> None:
        session = record.held
        if not allows_batches(session.version):
            visit.fail(400, RpcError(INVALID_REQUEST, "Batch requests not supported"))
            return
        refused = self._load.refuses(visit.principal.id)
        if refused is not None:
            visit.fail(refused, RpcError.internal_error("too many requests"), None, LATER)
            return
        reply = SessionReply(session, visit.exchange, visit.headers)
        answers: list[bytes | tuple[Request, Due]] = []
        for entry in batch.entries:
            if isinstance(entry, Request):
                answers.append(self._entry(visit.principal.id, record, entry, reply))
            elif not isinstance(entry, RemoteProtocolError):
                self._take_note(session, entry)
            elif entry.answer is not None:
                answers.append(entry.answer)
        if answers:
            whole = self._calls[reply] = Due.of(self._whole(answers))
            whole.then(partial(self._finish_batch, reply))
        else:
            visit.accept()

    def _entry(
        self, owner: str, record: Record[HttpSession], request: Request, reply: SessionReply
    ) -> bytes | tuple[Request, Due]:
        session = record.held
        try:
            if request.method == "initialize":
                raise RpcError(INVALID_REQUEST, "initialize must not be part of a batch")
            if request.id in session.in_progress:
                return ErrorResponse(None, _in_use(request)).encode()
            if _stands_alone(request):
                raise RpcError(INVALID_REQUEST, "a request with an envelope stands alone")
            if self._load.enter(owner) is not None:
                raise RpcError.internal_error("too many requests")
        except RpcError as error:
            return ErrorResponse(request.id, error).encode()
        try:
            outcome = due(session.conversation.answer(request, reply))
        except Exception as why:
            self._load.leave(owner)
            return ErrorResponse(request.id, answer_for(why, request.method, self._report)).encode()
        if isinstance(outcome, Due):
            session.in_progress[request.id] = outcome
            outcome.then(partial(self._ended, owner, record, request))
            return request, outcome
        self._load.leave(owner)
        return payload_of(request, outcome, self._report)

    async def _whole(self, answers: list[bytes | tuple[Request, Due]]) -> bytes:
        """Wait for all answers to a batch, and put them together."""
        payloads: list[bytes] = []
        for part in answers:
            if isinstance(part, tuple):
                await part[1].wait()
                part = self._payload(*part)  # noqa: PLW2901
            payloads.append(part)
        return join(payloads)

    def _finish_batch(self, reply: SessionReply, whole: Due) -> None:
        if whole.error is not None or reply.finish(whole.result):
            del self._calls[reply]
        else:
            self._spawn(self._see_off(reply))

    # GET and DELETE

    def get(self, visit: Visit) -> Flow | None:
        """Open the stream of a session, or take up one that was cut off; return it if it is."""
        asked = visit.exchange.request
        if b"accept" not in asked.headers or not accepts(
            asked.headers[b"accept"], "text/event-stream"
        ):
            visit.say(406, "expected an Accept header with text/event-stream")
            return None
        record = self._find(visit)
        if record is None:
            return None
        found = record.held.find_flow(asked.headers.get(b"last-event-id"))
        if found is None:
            visit.fail(400, RpcError(INVALID_REQUEST, "This stream is not kept any more"))
            return None
        flow, after = found
        if flow.carried and after is None:
            visit.fail(409, RpcError(INVALID_REQUEST, "This stream is open already"))
            return None
        flow.carry(visit.exchange, visit.headers, after, primed=record.held.primes)
        visit.exchange.when_gone(partial(self._touch, record))
        self._spawn(flow.catch_up())
        return flow

    def delete(self, visit: Visit) -> None:
        """End a session."""
        record = self._find(visit)
        if record is not None:
            self._end(record)
            self._sessions.remove(record.session_id)
            visit.exchange.respond(204, visit.headers)

    # Keeping house

    def expire(self) -> None:
        """End the sessions that are over."""
        for record in self._sessions.expire(self._now()):
            self._end(record)

    @property
    def streams(self) -> list[SessionReply | Flow]:
        """All that somebody is waiting on."""
        flows = (record.held.standalone for record in self._sessions)
        return [*self._calls, *(flow for flow in flows if flow.carried)]

    def _touch(self, record: Record[HttpSession]) -> None:
        """Note that something went on in a session until now."""
        record.last_activity = self._now()

    def _end(self, record: Record[HttpSession]) -> None:
        record.held.close()
        self._close(record.held.conversation)

    def _close(self, conversation: Any) -> None:
        self._spawn(self._host.close(conversation))

    def _spawn(self, doing: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(doing)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def aclose(self) -> None:
        """End all sessions."""
        for record in list(self._sessions):
            self._sessions.remove(record.session_id)
            self._end(record)
        await end_all(self._calls.values(), self._errands)


def _is_busy(session: HttpSession) -> bool:
    return session.busy


def _stands_alone(request: Request) -> bool:
    """Tell whether a request is of the other era, which has headers for each and no batches."""
    try:
        return has_envelope(Params(request.params))
    except RpcError:
        return False  # whoever needs its params refuses them


def _in_use(request: Request) -> RpcError:
    """Refuse a second request of an id; not under it, or that were the answer to the first."""
    return RpcError.invalid_request(f"id {request.id!r} is in use already")
