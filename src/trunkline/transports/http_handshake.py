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
from trunkline.transports.sessions import Sessions, TooManySessions

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
            rules.session_idle, rules.session_life, rules.max_sessions
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
        session = self._find(visit)
        if session is None:
            return
        if isinstance(message, Batch):
            self._batch(visit, session, message)
        else:
            self._take_note(session, message)
            visit.accept()

    def _initialize(self, visit: Visit, request: Request) -> None:
        """Begin a session, if the client says what it must; else nothing is kept."""
        session = HttpSession()
        conversation = self._host.open(session, visit.principal)
        try:
            result = conversation.answer(request, session)
            session.conversation, session.version = conversation, conversation.version or ""
            session.principal = visit.principal
            self._sessions.create(visit.principal.id, session, self.now())
        except TooManySessions as why:
            self._close(conversation)
            visit.fail(503, RpcError.internal_error(str(why)), request.id, LATER)
        except Exception as why:
            self._close(conversation)
            visit.fail(200, answer_for(why, request.method, self.report), request.id)
        else:
            named = (JSON, (_ID, session.session_id.encode()), *visit.headers)
            visit.exchange.respond(200, named, Response(request.id, result).encode())

    def _find(self, visit: Visit) -> HttpSession | None:
        """Return the session that an exchange names, or answer that there is none."""
        asked = visit.exchange.request
        id = asked.headers.get(_ID)
        if id is None:
            error = "Missing Mcp-Session-Id: call initialize first, and send the id that it answers"
            visit.fail(400, RpcError(INVALID_REQUEST, error))
            return None
        owner = visit.principal.id
        session = self._sessions.find(id.decode("latin-1"), owner, self.now())
        if session is None or _ID in asked.repeated:
            visit.verdict.session = None
            visit.fail(404, RpcError(INVALID_REQUEST, "Session not found: call initialize again"))
            return None
        session.conversation.recognise(visit.principal)
        session.principal = visit.principal
        visit.verdict.session = session
        return session

    def call(self, visit: Visit, request: Request, params: Params | None = None) -> None:
        """Answer a request, whose params may have been read already."""
        if request.method == "initialize":
            self._initialize(visit, request)
            return
        session, now = visit.verdict.session, self.now()
        # The last that had this head may have found all that is to be known.
        if session is None or now > session.sure_until or session.principal is not visit.principal:
            session = self._find(visit)
            if session is None:
                return
        session.last_activity = now
        id, in_progress = request.id, session.in_progress
        if id in in_progress:
            visit.fail(400, _in_use(request))
            return
        call = _Call(session, visit, door=self, request=request)
        refused = self.load.enter(session.owner, call)
        if refused is not None:
            visit.fail(refused, RpcError.internal_error("too many requests"), id, LATER)
            return
        try:
            outcome = session.conversation.answer(request, call, params)
        except Exception as why:
            self._refuse(call, why)
            return
        if type(outcome) is not Due:
            outcome = due(outcome)
            if type(outcome) is not Due:
                self.load.leave(call)
                visit.respond(200, payload_of(request, outcome, self.report))
                return
        in_progress[id] = outcome, call
        outcome.then(call.end)

    def _refuse(self, call: "_Call", why: Exception) -> None:
        """Answer what was refused at once; not where `why` was caught, which would keep it."""
        self.load.leave(call)
        error = answer_for(why, call.request.method, self.report)
        call.visit.fail(200, error, call.request.id, *later(error))

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

    def _batch(self, visit: Visit, session: HttpSession, batch: Batch) -> None:
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
                answers.append(self._entry(entry, reply))
            elif not isinstance(entry, RemoteProtocolError):
                self._take_note(session, entry)
            elif entry.answer is not None:
                answers.append(entry.answer)
        if answers:
            whole = self._lasting[reply] = Due.of(self._whole(answers))
            whole.then(partial(self._finish_batch, reply))
        else:
            visit.accept()

    def _entry(self, request: Request, reply: SessionReply) -> "bytes | tuple[_Entry, Due]":
        session = reply.session
        call = _Entry(session, reply.visit, door=self, request=request)
        try:
            if request.method == "initialize":
                raise RpcError(INVALID_REQUEST, "initialize must not be part of a batch")
            if request.id in session.in_progress:
                return ErrorResponse(None, _in_use(request)).encode()
            if _stands_alone(request):
                raise RpcError(INVALID_REQUEST, "a request with an envelope stands alone")
            if self.load.enter(session.owner, call) is not None:
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
            return call, outcome
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
        session = self._find(visit)
        if session is None:
            return None
        found = session.find_flow(asked.headers.get(b"last-event-id"))
        if found is None:
            visit.fail(400, RpcError(INVALID_REQUEST, "This stream is not kept any more"))
            return None
        flow, after = found
        if flow.carried and after is None:
            visit.fail(409, RpcError(INVALID_REQUEST, "This stream is open already"))
            return None
        flow.carry(visit.exchange, visit.headers, after, primed=session.primes)
        visit.exchange.when_gone(partial(self._touch, session))
        self._spawn(flow.catch_up())
        return flow

    def delete(self, visit: Visit) -> None:
        """End a session."""
        session = self._find(visit)
        if session is not None:
            self._end(session)
            self._sessions.remove(session.session_id)
            visit.exchange.respond(204, visit.headers)

    # Keeping house

    def expire(self) -> None:
        """End the sessions that are over."""
        for session in self._sessions.expire(self.now()):
            self._end(session)
        self._leaving = [session for session in self._leaving if session.in_progress]

    @property
    def streams(self) -> list[SessionReply | Flow]:
        """All that somebody is waiting on."""
        sessions = [*self._sessions, *self._leaving]
        calls = (call for session in sessions for call in session.in_progress.values())
        replies = dict.fromkeys((*(reply for _, reply in calls), *self._lasting))
        flows = (session.standalone for session in sessions)
        return [*replies, *(flow for flow in flows if flow.carried)]

    def _touch(self, session: HttpSession) -> None:
        """Note that something went on in a session until now."""
        session.last_activity = self.now()

    def _end(self, session: HttpSession) -> None:
        session.close()
        if session.in_progress:
            self._leaving.append(session)
        self._close(session.conversation)

    def _close(self, conversation: Any) -> None:
        self._spawn(self._host.close(conversation))

    def _spawn(self, doing: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(doing)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def aclose(self) -> None:
        """End all sessions."""
        for session in list(self._sessions):
            self._sessions.remove(session.session_id)
            self._end(session)
        calls = [call for session in self._leaving for call, _ in session.in_progress.values()]
        await end_all([*calls, *self._lasting.values()], self._errands)


class _Call(SessionReply, kw_only=True):
    """A request of a session that is not answered yet, and the answer to it."""

    door: HandshakeDoor
    request: Request

    def end(self, outcome: Due) -> None:
        """Answer: its exchange, in its stream if it has one; or its batch."""
        door, session, request = self.door, self.session, self.request
        in_progress = session.in_progress
        del in_progress[request.id]
        if not in_progress:  # until then it was busy, whenever somebody looked
            session.last_activity = door.now()
        door.load.leave(self)
        if outcome.error is None:
            payload, rest = pieces_of(request, outcome.result, door.report)
        else:
            payload, rest = door.excuse(request, outcome.error), ()
        if not self.finish(payload, rest):
            door.see_off(self, outcome)


class _Entry(_Call):
    """A request of a batch; its answer waits for those to the others."""

    payload: bytes = b""

    def finish(self, payload: bytes, rest: Pieces = ()) -> bool:
        """Answer; tell that this was all."""
        self.payload = b"".join((payload, *rest))
        return True


def _stands_alone(request: Request) -> bool:
    """Tell whether a request is of the other era, which has headers for each and no batches."""
    try:
        return has_envelope(Params(request.params))
    except RpcError:
        return False  # whoever needs its params refuses them


def _in_use(request: Request) -> RpcError:
    """Refuse a second request of an id; not under it, or that were the answer to the first."""
    return RpcError.invalid_request(f"id {request.id!r} is in use already")
