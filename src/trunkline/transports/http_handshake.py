"""Streamable HTTP of the handshake era: sessions, and what may be done with the id of one.

    POST `initialize` ──> a session, its id in the answer      DELETE ──> its end
    POST ──> 200 with an answer, or 202                        GET ──> a stream, or the rest of one

Refuses to take an id for an identity: a session is there for its principal, and for nobody else.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from msgspec import Struct

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
from trunkline.transports.exchange import Pieces
from trunkline.transports.http_answers import (
    JSON,
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
        self.load = load
        self.report = report
        self._sessions: Sessions[HttpSession] = Sessions(
            rules.session_idle, rules.session_life, rules.max_sessions, _is_busy
        )
        self._lasting: dict[SessionReply, Due] = {}
        """What lasts longer than its call: batches, and streams that clients have to catch up on.
        All others are in progress in their sessions."""
        self._leaving: list[HttpSession] = []
        """Sessions that were ended while something was in progress there."""
        self._errands: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.now = clock or self._loop.time

    def __len__(self) -> int:
        return len(self._sessions)

    def adopt(self, rules: HttpRules) -> None:
        """Have other rules from now on; sessions stay, as long as they may by these."""
        self._sessions.adopt(rules.session_idle, rules.session_life, rules.max_sessions)

    # POST

    def post(self, visit: Visit, message: Message | Batch) -> None:
        """Take in what was posted, and answer."""
        if isinstance(message, Request):
            self.call(visit, message)
            return
        record = self._find(visit)
        if record is None:
            return
        if isinstance(message, Batch):
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
            session.principal = visit.principal
            record = self._sessions.create(visit.principal.id, session, self.now())
        except TooManySessions as why:
            self._close(conversation)
            visit.fail(503, RpcError.internal_error(str(why)), request.id, LATER)
        except Exception as why:
            self._close(conversation)
            visit.fail(200, answer_for(why, request.method, self.report), request.id)
        else:
            named = (JSON, (_ID, record.session_id.encode()), *visit.headers)
            visit.exchange.respond(200, named, Response(request.id, result).encode())

    def _find(self, visit: Visit) -> Record[HttpSession] | None:
        """Return the session that an exchange names, or answer that there is none."""
        asked = visit.exchange.request
        id = asked.headers.get(_ID)
        if id is None:
            error = "Missing Mcp-Session-Id: call initialize first, and send the id that it answers"
            visit.fail(400, RpcError(INVALID_REQUEST, error))
            return None
        owner = visit.principal.id
        record = self._sessions.find(id.decode("latin-1"), owner, self.now())
        if record is None or _ID in asked.repeated:
            visit.verdict.session = None
            visit.fail(404, RpcError(INVALID_REQUEST, "Session not found: call initialize again"))
            return None
        record.held.conversation.recognise(visit.principal)
        record.held.principal = visit.principal
        visit.verdict.session = record
        return record

    def call(self, visit: Visit, request: Request, params: Params | None = None) -> None:
        """Answer a request, whose params may have been read already."""
        if request.method == "initialize":
            self._initialize(visit, request)
            return
        record: Record[HttpSession] | None = visit.verdict.session
        now = self.now()
        # The last that had this head may have found all that is to be known.
        if (
            record is None
            or now > record.sure_until
            or record.held.principal is not visit.principal
        ):
            record = self._find(visit)
            if record is None:
                return
        record.last_activity = now
        session, id = record.held, request.id
        in_progress = session.in_progress
        if id in in_progress:
            visit.fail(400, _in_use(request))
            return
        reply = SessionReply(session, visit)
        call = _Call(self, record, request, reply)
        refused = self.load.enter(record.principal, call)
        if refused is not None:
            visit.fail(refused, RpcError.internal_error("too many requests"), id, LATER)
            return
        try:
            outcome = session.conversation.answer(request, reply, params)
        except Exception as why:
            self._refuse(call, visit, why)
            return
        if type(outcome) is not Due:
            outcome = due(outcome)
            if type(outcome) is not Due:
                self.load.leave(call)
                visit.respond(200, payload_of(request, outcome, self.report))
                return
        in_progress[id] = outcome, reply
        outcome.then(call.end)

    def _refuse(self, call: "_Call", visit: Visit, why: Exception) -> None:
        """Answer what was refused at once; not where `why` was caught, which would keep it."""
        self.load.leave(call)
        error = answer_for(why, call.request.method, self.report)
        visit.fail(200, error, call.request.id, *later(error))

    def see_off(self, reply: SessionReply, outcome: Due) -> None:
        """Have a client read the rest of its stream."""
        self._lasting[reply] = outcome
        self._spawn(self._catch_up(reply))

    async def _catch_up(self, reply: SessionReply) -> None:
        try:
            await reply.catch_up()
        finally:
            del self._lasting[reply]

    def excuse(self, request: Request, why: BaseException) -> bytes:
        """Return an error; to be cancelled is one, too, for HTTP has to say something."""
        if isinstance(why, asyncio.CancelledError):
            return ErrorResponse(request.id, RpcError(CANCELLED, "Request cancelled")).encode()
        return ErrorResponse(request.id, answer_for(why, request.method, self.report)).encode()

    def _take_note(self, session: HttpSession, message: Message) -> None:
        if isinstance(message, Notification):
            try:
                session.conversation.notified(message)
            except Exception as why:  # a notification is never answered, not even with an error
                answer_for(why, message.method, self.report)
        elif isinstance(message, Response | ErrorResponse):
            session.settle(message)

    # A batch, which one revision has

    def _batch(self, visit: Visit, record: Record[HttpSession], batch: Batch) -> None:
        session = record.held
        if not allows_batches(session.version):
            visit.fail(400, RpcError(INVALID_REQUEST, "Batch requests not supported"))
            return
        refused = self.load.refuses(visit.principal.id)
        if refused is not None:
            visit.fail(refused, RpcError.internal_error("too many requests"), None, LATER)
            return
        reply = SessionReply(session, visit)
        answers: list[bytes | tuple[_Entry, Due]] = []
        for entry in batch.entries:
            if isinstance(entry, Request):
                answers.append(self._entry(record, entry, reply))
            elif not isinstance(entry, RemoteProtocolError):
                self._take_note(session, entry)
            elif entry.answer is not None:
                answers.append(entry.answer)
        if answers:
            whole = self._lasting[reply] = Due.of(self._whole(answers))
            whole.then(partial(self._finish_batch, reply))
        else:
            visit.accept()

    def _entry(
        self, record: Record[HttpSession], request: Request, reply: SessionReply
    ) -> "bytes | tuple[_Entry, Due]":
        session, answered = record.held, _Entry()
        call = _Call(self, record, request, answered)
        try:
            if request.method == "initialize":
                raise RpcError(INVALID_REQUEST, "initialize must not be part of a batch")
            if request.id in session.in_progress:
                return ErrorResponse(None, _in_use(request)).encode()
            if _stands_alone(request):
                raise RpcError(INVALID_REQUEST, "a request with an envelope stands alone")
            if self.load.enter(record.principal, call) is not None:
                raise RpcError.internal_error("too many requests")
        except RpcError as error:
            return ErrorResponse(request.id, error).encode()
        try:
            outcome = due(session.conversation.answer(request, reply))
        except Exception as why:
            self.load.leave(call)
            return ErrorResponse(request.id, answer_for(why, request.method, self.report)).encode()
        if isinstance(outcome, Due):
            session.in_progress[request.id] = outcome, reply
            outcome.then(call.end)
            return answered, outcome
        self.load.leave(call)
        return payload_of(request, outcome, self.report)

    async def _whole(self, answers: "list[bytes | tuple[_Entry, Due]]") -> bytes:
        """Wait for all answers to a batch, and put them together."""
        payloads: list[bytes] = []
        for part in answers:
            if isinstance(part, bytes):
                payloads.append(part)
            else:
                await part[1].wait()
                payloads.append(part[0].payload)
        return join(payloads)

    def _finish_batch(self, reply: SessionReply, whole: Due) -> None:
        if whole.error is not None or reply.finish(whole.result):
            del self._lasting[reply]
        else:
            self.see_off(reply, whole)

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
        for record in self._sessions.expire(self.now()):
            self._end(record)
        self._leaving = [session for session in self._leaving if session.in_progress]

    @property
    def streams(self) -> list[SessionReply | Flow]:
        """All that somebody is waiting on."""
        sessions = [*(record.held for record in self._sessions), *self._leaving]
        calls = (call for session in sessions for call in session.in_progress.values())
        replies = dict.fromkeys((*(reply for _, reply in calls), *self._lasting))
        flows = (session.standalone for session in sessions)
        return [*replies, *(flow for flow in flows if flow.carried)]

    def _touch(self, record: Record[HttpSession]) -> None:
        """Note that something went on in a session until now."""
        record.last_activity = self.now()

    def _end(self, record: Record[HttpSession]) -> None:
        record.held.close()
        if record.held.in_progress:
            self._leaving.append(record.held)
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
        calls = [call for session in self._leaving for call, _ in session.in_progress.values()]
        await end_all([*calls, *self._lasting.values()], self._errands)


class _Entry(Struct, eq=False):
    """The answer to one request of a batch."""

    payload: bytes = b""

    def finish(self, payload: bytes, rest: Pieces = ()) -> bool:
        """Answer; tell that this was all."""
        self.payload = b"".join((payload, *rest))
        return True


class _Call(Struct, eq=False):
    """A request of a session that is not answered yet."""

    door: HandshakeDoor
    record: Record[HttpSession]
    request: Request
    reply: SessionReply | _Entry

    def end(self, outcome: Due) -> None:
        """Answer: its exchange, in its stream if it has one; or its batch."""
        door, record, request = self.door, self.record, self.request
        in_progress = record.held.in_progress
        del in_progress[request.id]
        if not in_progress:  # until then it was busy, whenever somebody looked
            record.last_activity = door.now()
        door.load.leave(self)
        if outcome.error is None:
            payload, rest = pieces_of(request, outcome.result, door.report)
        else:
            payload, rest = door.excuse(request, outcome.error), ()
        if not self.reply.finish(payload, rest) and isinstance(self.reply, SessionReply):
            door.see_off(self.reply, outcome)


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
