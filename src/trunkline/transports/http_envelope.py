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

from msgspec import Struct

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
from trunkline.mcp.headers import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
)
from trunkline.mcp.meta import Params
from trunkline.mcp.mirrors import Mirrors
from trunkline.transports.exchange import HttpRequest
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
        self.load = load
        self.report = report
        self.calls: dict[Reply, Due] = {}
        """What is not answered yet, or not read to the end."""
        self._seeing_off: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def post(self, visit: Visit, request: Request, params: Params) -> Due | None:
        """Answer one request; return what is waited for, if the answer comes later."""
        reply = Reply(self, visit, request)
        refused = self.load.enter(visit.principal.id, reply)
        if refused is not None:
            visit.fail(refused, RpcError.internal_error("too many requests"), request.id, LATER)
            return None
        try:
            mirrors = visit.verdict.mirrors or _mirrors_of(visit)
            mirrors.check_body(request.method, params)
            outcome = self._host.answer(request, params, visit.principal, reply, mirrors)
        except Exception as why:
            self._refuse(reply, why)
            return None
        if type(outcome) is not Due:
            outcome = due(outcome)
            if type(outcome) is not Due:
                self.load.leave(reply)
                visit.respond(200, payload_of(request, outcome, self.report))
                return None
        self.calls[reply] = outcome
        outcome.then(reply.end)
        visit.exchange.when_gone(outcome.cancel)
        return outcome

    def _refuse(self, reply: "Reply", why: Exception) -> None:
        """Answer what was refused at once; not where `why` was caught, which would keep it."""
        self.load.leave(reply)
        error = answer_for(why, reply.request.method, self.report)
        reply.visit.fail(status_of(error), error, reply.request.id, *later(error))

    def see_off(self, reply: "Reply") -> None:
        """Have a client read the rest of its stream."""
        self._seeing_off.add(task := self._loop.create_task(reply.catch_up()))
        task.add_done_callback(partial(self._seen_off, reply))

    def _seen_off(self, reply: "Reply", task: asyncio.Task[None]) -> None:
        del self.calls[reply]
        self._seeing_off.discard(task)

    def excuse(self, request: Request, why: BaseException) -> RpcError:
        """Return the error that a failure makes."""
        if isinstance(why, asyncio.CancelledError):  # the client has gone, or the gateway goes
            return RpcError.internal_error("the call was cancelled")
        return answer_for(why, request.method, self.report)

    @property
    def streams(self) -> "list[Reply]":
        """All that somebody is waiting on."""
        return list(self.calls)

    async def aclose(self) -> None:
        """End all that goes on."""
        for call in list(self.calls.values()):
            call.cancel()
        await end_all(self.calls.values(), self._seeing_off)


def _mirrors_of(visit: Visit) -> Mirrors:
    """Note the headers of the first that has this head, for all who have the same."""
    head = visit.exchange.request.head
    mirrors = visit.verdict.mirrors = Mirrors(head.headers, head.repeated)
    return mirrors


def status_of(error: RpcError) -> int:
    """Return the status of an error that is the whole answer."""
    return _STATUS.get(error.code, 200)


class Reply(Struct, eq=False):
    """The answer to one POST; the line of its call."""

    door: EnvelopeDoor
    visit: Visit
    request: Request
    streaming: bool = False
    done: bool = False
    quiet: bool = False
    """Whether nothing was said since somebody looked."""
    last_word: bytes = b""

    @property
    def arrival(self) -> HttpRequest:
        """What it answers."""
        return self.visit.exchange.request

    async def call(self, method: str, params: Any) -> Raw:
        """Refuse: in this era nobody asks a client anything on the way."""
        raise RpcError.method_not_found(method)

    async def notify(self, method: str, params: Any) -> None:
        """Tell the client, before its answer; what comes later is dropped."""
        if not self.done:
            await self._send(encode_event(Notification(method, params).encode()))

    async def keep_alive(self) -> None:
        """Say nothing, so that nobody in between takes the exchange for dead."""
        if not self.done:
            await self._send(COMMENT)

    def end(self, outcome: Due) -> None:
        """Answer, in its stream if it has one; the client has to catch up there."""
        door, request, status = self.door, self.request, 200
        door.load.leave(self)
        if outcome.error is None:
            payload, rest = pieces_of(request, outcome.result, door.report)
        else:
            error = door.excuse(request, outcome.error)
            status, payload, rest = status_of(error), ErrorResponse(request.id, error).encode(), ()
        self.done = True
        if self.streaming:
            self.last_word = b"".join((payload, *rest))
            door.see_off(self)
        else:
            self.visit.respond(status, payload, rest)
            del door.calls[self]

    async def catch_up(self) -> None:
        """Send the answer in the stream, after all that was said before."""
        await self._send(encode_event(self.last_word))
        self.visit.exchange.finish()

    async def _send(self, event: bytes) -> None:
        self.quiet = False
        if not self.streaming:
            self.streaming = True
            self.visit.exchange.begin(200, (*EVENT_STREAM, *self.visit.headers))
        with suppress(ConnectionLost):  # whoever waits for the exchange has been told
            await self.visit.exchange.send(event)
