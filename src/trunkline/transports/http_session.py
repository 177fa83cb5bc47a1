"""HttpSession: one conversation of the handshake era over Streamable HTTP.

    POST of a request ──> SessionReply ──> a body, or a Flow if something is said before the answer
    GET ──> the Flow for all that belongs to no call
    POST of a response ──> whoever asked the client

Refuses to take the end of an exchange for the end of a call: in this era it is none.
"""

import asyncio
from contextlib import suppress
from typing import Any

from msgspec import Struct

from trunkline.jsonrpc import (
    ConnectionLost,
    Due,
    ErrorResponse,
    Id,
    Notification,
    Raw,
    Request,
    Response,
)
from trunkline.mcp.principal import Principal
from trunkline.transports.exchange import HttpRequest, Pieces
from trunkline.transports.http_answers import Visit
from trunkline.transports.http_flow import Flow, read_event_id
from trunkline.transports.sessions import Record

MAX_FLOWS = 64
"""How many streams of one session can be taken up again."""

MAX_STORED = 1024 * 1024
"""How many bytes of streams that have ended are kept for those who come back."""

MAX_QUESTIONS = 256
"""How many questions one client may have left unanswered."""

PRIMED_SINCE = "2025-11-25"
"""Older clients take the event without data, which begins a stream, for a broken one."""


class HttpSession(Record):
    """What all exchanges of one session have in common; its trunk."""

    __slots__ = (
        "_flows",
        "_last_flow",
        "_last_question",
        "_questions",
        "conversation",
        "in_progress",
        "principal",
        "standalone",
        "version",
    )

    def __init__(self) -> None:
        super().__init__()
        self.version = ""
        self.conversation: Any = None
        self.principal: Principal | None = None
        """Whom the conversation takes its client for."""
        self._flows: dict[int, Flow] = {}
        self._last_flow = 0
        self.standalone = self.new_flow()
        """The stream for all that belongs to no call."""
        self.in_progress: dict[Id, tuple[Due, SessionReply]] = {}
        """The calls that can be stopped, by the ids that the client gave them, until their end, and
        by what they are answered."""
        self._questions: dict[int, asyncio.Future[Raw]] = {}
        self._last_question = 0

    @property
    def busy(self) -> bool:
        """Tell whether somebody waits for an answer, or listens."""
        return bool(self.in_progress) or self.standalone.carried

    # Calls in progress

    def cancel(self, request_id: object) -> bool:
        """Stop the call that the client knows as `request_id`; tell whether there was one."""
        if isinstance(request_id, bool | float) or not isinstance(request_id, int | str):
            return False  # no ids, although Python takes True and 1.0 for 1
        call = self.in_progress.get(request_id)
        if call is not None:
            call[0].cancel()
        return call is not None

    # The trunk: what belongs to no call

    async def call(self, method: str, params: Any) -> Raw:
        """Ask the client something, outside of any call."""
        return await self.ask(self.standalone, method, params)

    async def notify(self, method: str, params: Any) -> None:
        """Tell the client something, outside of any call."""
        await self.standalone.send(Notification(method, params).encode())

    async def ask(self, flow: Flow, method: str, params: Any) -> Raw:
        """Ask the client something on one of its streams; raises RpcError or ConnectionLost."""
        if self.standalone.done:
            raise ConnectionLost("the session has ended")
        if len(self._questions) >= MAX_QUESTIONS:
            raise ConnectionLost("the client leaves too many questions unanswered")
        self._last_question += 1
        id = self._last_question
        waiting = self._questions[id] = asyncio.get_running_loop().create_future()
        try:
            await flow.send(Request(id, method, params).encode())
            return await waiting
        except asyncio.CancelledError:
            params = {"requestId": id}
            with suppress(ConnectionLost):
                await flow.send(Notification("notifications/cancelled", params).encode())
            raise
        finally:
            del self._questions[id]

    def settle(self, answer: Response | ErrorResponse) -> None:
        """Give an answer of the client's to whoever asked; what nobody asked for is dropped."""
        waiting = self._questions.get(answer.id) if type(answer.id) is int else None
        if waiting is None or waiting.done():
            return
        if isinstance(answer, Response):
            waiting.set_result(answer.result)
        else:
            waiting.set_exception(answer.error)

    # Streams

    @property
    def primes(self) -> bool:
        """Tell whether streams begin with an event without data."""
        return self.version >= PRIMED_SINCE

    def new_flow(self) -> Flow:
        """Begin a stream."""
        self._last_flow += 1
        flow = self._flows[self._last_flow] = Flow(self._last_flow)
        self.trim()
        return flow

    def trim(self) -> None:
        """Forget the oldest streams of those that have ended, as far as there are too many."""
        finished = [flow for flow in self._flows.values() if flow.done]
        size = sum(flow.size for flow in finished)
        while finished and (len(self._flows) > MAX_FLOWS or size > MAX_STORED):
            oldest = finished.pop(0)
            size -= oldest.size
            del self._flows[oldest.number]

    def find_flow(self, last_event_id: bytes | None) -> tuple[Flow, int | None] | None:
        """Return the stream that a GET wants, and after which event; None if that is forgotten."""
        found = None if last_event_id is None else read_event_id(last_event_id)
        if found is None or not 0 < found[0] <= self._last_flow:
            return self.standalone, None
        flow = self._flows.get(found[0])
        return None if flow is None else (flow, found[1])

    def close(self) -> None:
        """Stop all that is in progress: calls say so themselves, on their own streams."""
        for call, _ in list(self.in_progress.values()):
            call.cancel()
        for waiting in self._questions.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost("the session has ended"))
        self.standalone.finish()


class SessionReply(Struct, eq=False):
    """The answer to one POST of a session: a body, or a stream if something comes before it."""

    session: HttpSession
    visit: Visit
    flow: Flow | None = None
    """The stream, if there is one."""
    done: bool = False
    quiet: bool = False
    """Whether nothing was said since somebody looked."""

    @property
    def arrival(self) -> HttpRequest:
        """What it answers."""
        return self.visit.exchange.request

    async def call(self, method: str, params: Any) -> Raw:
        """Ask the client, in the course of its call."""
        return await self.session.ask(self._stream(), method, params)

    async def notify(self, method: str, params: Any) -> None:
        """Tell the client, in the course of its call."""
        await self._stream().send(Notification(method, params).encode())

    async def keep_alive(self) -> None:
        """Keep a call that takes long from looking dead."""
        if not self.done:
            await self._stream().keep_alive()

    def finish(self, payload: bytes, rest: Pieces = ()) -> bool:
        """Answer; tell whether that was all, else the client has to catch up."""
        self.done = True
        if self.flow is None:
            visit = self.visit
            visit.exchange.respond(200, visit.verdict.json, payload, rest)
            return True
        self.flow.put(b"".join((payload, *rest)))
        self.flow.finish()
        self.session.trim()
        return False

    async def catch_up(self) -> None:
        """Send what is left of the stream."""
        if self.flow is not None:
            await self.flow.catch_up()

    def _stream(self) -> Flow:
        """Return the stream of the call; what comes too late for that belongs to no call."""
        self.quiet = False
        if self.done:
            return self.session.standalone
        if self.flow is None:
            self.flow = self.session.new_flow()
            self.flow.carry(self.visit.exchange, self.visit.headers, primed=self.session.primes)
        return self.flow
