"""POSTs of the envelope era: each stands alone, and is judged in the order that clients rely on.

    repeated headers ──> the envelope's members ──> headers against body ──> the gateway ──> Reply

Refuses sessions: an id of one, or of an event, means nothing here.

Rules upheld here:
1. An answer is a body, or a stream if something is said before it; the status is chosen last.
2. The client that closes its exchange has cancelled its call.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from trunkline.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ConnectionLost,
    Due,
    ErrorResponse,
    Notification,
    Raw,
    Request,
    RpcError,
    due,
)
from trunkline.jsonrpc.incident import Report, answer_for
from trunkline.mcp.envelope import expect_envelope
from trunkline.mcp.headers import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    check_mirrors,
    refuse_repeated,
)
from trunkline.mcp.meta import Params
from trunkline.mcp.mirrors import Mirrors
from trunkline.transports.exchange import HttpRequest, Pieces
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
from trunkline.transports.http_flow import EVENT_STREAM
from trunkline.transports.sse import COMMENT, encode_event

_STATUS = {
    METHOD_NOT_FOUND: 404,
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
}
"""The status of an error that is the whole answer; all others are 200."""


class EnvelopeDoor:
    """Answers POSTs that stand alone."""

    def __init__(self, host: Host, load: Load, report: Report) -> None:
        self._host = host
        self._load = load
        self._report = report
        self._calls: dict[Reply, Due] = {}
        self._seeing_off: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def post(self, visit: Visit, request: Request, params: Params) -> Due | None:
        """Answer one request; return what is waited for, if the answer comes later."""
        reply = Reply(visit)
        refused = self._load.enter(visit.principal.id, reply)
        if refused is not None:
            visit.fail(refused, RpcError.internal_error("too many requests"), request.id, LATER)
            return None
        try:
            outcome = due(self._answer(visit, request, params, reply))
        except Exception as why:
            self._refuse(reply, visit, request, why)
            return None
        if isinstance(outcome, Due):
            self._calls[reply] = outcome
            outcome.then(partial(self._finish, request, reply))
            visit.exchange.when_gone(outcome.cancel)
            return outcome
        self._load.leave(reply)
        visit.respond(200, payload_of(request, outcome, self._report))
        return None

    def _refuse(self, reply: "Reply", visit: Visit, request: Request, why: Exception) -> None:
        """Answer what was refused at once; not where `why` was caught, which would keep it."""
        self._load.leave(reply)
        error = answer_for(why, request.method, self._report)
        visit.fail(_STATUS.get(error.code, 200), error, request.id, *later(error))

    def _answer(self, visit: Visit, request: Request, params: Params, reply: "Reply") -> Any:
        asked = visit.exchange.request
        if asked.repeated:
            refuse_repeated(asked.repeated)
        expect_envelope(params)
        check_mirrors(asked.headers, asked.repeated, request.method, params)
        mirrors = Mirrors(asked.headers, asked.repeated)
        return self._host.answer(request, params, visit.principal, reply, mirrors)

    def _finish(self, request: Request, reply: "Reply", outcome: Due) -> None:
        self._load.leave(reply)
        status, (payload, rest) = self._outcome(request, outcome)
        if reply.finish(status, payload, rest):
            del self._calls[reply]
        else:
            self._seeing_off.add(task := self._loop.create_task(reply.catch_up()))
            task.add_done_callback(partial(self._seen_off, reply))

    def _seen_off(self, reply: "Reply", task: asyncio.Task[None]) -> None:
        del self._calls[reply]
        self._seeing_off.discard(task)

    def _outcome(self, request: Request, outcome: Due) -> tuple[int, tuple[bytes, Pieces]]:
        why = outcome.error
        if why is None:
            return 200, pieces_of(request, outcome.result, self._report)
        if isinstance(why, asyncio.CancelledError):  # the client has gone, or the gateway goes
            error = RpcError.internal_error("the call was cancelled")
        else:
            error = answer_for(why, request.method, self._report)
        return _STATUS.get(error.code, 200), (ErrorResponse(request.id, error).encode(), ())

    @property
    def streams(self) -> "list[Reply]":
        """All that somebody is waiting on."""
        return list(self._calls)

    async def aclose(self) -> None:
        """End all that goes on."""
        for call in list(self._calls.values()):
            call.cancel()
        await end_all(self._calls.values(), self._seeing_off)


class Reply:
    """The answer to one POST; the line of its call."""

    __slots__ = ("_done", "_last_word", "_streaming", "_visit", "quiet")

    def __init__(self, visit: Visit) -> None:
        self.quiet = False
        """Whether nothing was said since somebody looked."""
        self._visit = visit
        self._streaming = False
        self._done = False
        self._last_word = b""

    @property
    def arrival(self) -> HttpRequest:
        """What it answers."""
        return self._visit.exchange.request

    async def call(self, method: str, params: Any) -> Raw:
        """Refuse: in this era nobody asks a client anything on the way."""
        raise RpcError.method_not_found(method)

    async def notify(self, method: str, params: Any) -> None:
        """Tell the client, before its answer; what comes later is dropped."""
        if not self._done:
            await self._send(encode_event(Notification(method, params).encode()))

    async def keep_alive(self) -> None:
        """Say nothing, so that nobody in between takes the exchange for dead."""
        if not self._done:
            await self._send(COMMENT)

    def finish(self, status: int, payload: bytes, rest: Pieces = ()) -> bool:
        """Answer; tell whether that was all, else the client has to catch up."""
        self._done = True
        if not self._streaming:
            self._visit.respond(status, payload, rest)
            return True
        self._last_word = b"".join((payload, *rest))
        return False

    async def catch_up(self) -> None:
        """Send the answer in the stream, after all that was said before."""
        await self._send(encode_event(self._last_word))
        self._visit.exchange.finish()

    async def _send(self, event: bytes) -> None:
        self.quiet = False
        if not self._streaming:
            self._streaming = True
            self._visit.exchange.begin(200, (*EVENT_STREAM, *self._visit.headers))
        with suppress(ConnectionLost):  # whoever waits for the exchange has been told
            await self._visit.exchange.send(event)
