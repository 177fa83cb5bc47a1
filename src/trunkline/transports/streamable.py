"""Streamable HTTP, as a client: every message is a POST, and its answer a body or a stream.

    call ──> POST ──> application/json ──────────────────────────> result
                  ──> text/event-stream ──> the call's handler … ──> result
                        └─ cut short ──> GET with Last-Event-ID, where the revision has that

Refuses to follow redirects, to pass on what a server says about authorization, and to send anything
twice: whoever lost a session decides whether to ask again.

Rules upheld here:
1. What a server says in the course of a call goes to that call's handler, and nobody else's.
2. A call that nobody awaits any more is withdrawn: by a notification in the handshake era, by the
   end of its stream in the other.
3. Bodies and events are bounded, and so is the patience with a stream that keeps breaking.
4. A server that was replaced by another, of another era or without our session, is given up.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from trunkline.jsonrpc import (
    METHOD_NOT_FOUND,
    ConnectionLost,
    Due,
    ErrorResponse,
    Handler,
    Id,
    IdRemapper,
    Message,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
    decode,
)
from trunkline.jsonrpc.incident import Report, answer_for, print_incident
from trunkline.jsonrpc.raw import write
from trunkline.mcp.headers import HEADER_MISMATCH, UNSUPPORTED_VERSION
from trunkline.mcp.media import media_type
from trunkline.transports.exchange import Headers
from trunkline.transports.http_asked import INITIALIZE, LISTEN, Anew, Asked
from trunkline.transports.http_client import HttpClient, HttpResponse, Unreachable
from trunkline.transports.http_refused import HttpRefused, SessionLost
from trunkline.transports.http_results import is_answer, result_in, result_of, seconds_of
from trunkline.transports.http_stream import MAX_RETRY, RETRY, MessageStream

MAX_RESUMES = 5
"""How often one call's stream is taken up again without anything new."""

MAX_SAYING = 256
MAX_ASKED = 16_384
"""How much we may be saying at once, and how much others may be asked before we can say anything;
while it is more, nothing is read that we would answer."""

GRACE, GOODBYE = 0.5, 2.0
"""How long, in seconds, what we are saying may take at the end, and then the end of a session."""

_CONTENT = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
)

_SAID = frozenset((400, 404, 422, 500))
UNAUTHORIZED = 401
_PROBES = frozenset((INITIALIZE, "server/discover"))
_APART = frozenset((INITIALIZE, LISTEN))
_CERTAIN = frozenset(("prompts/get", "resources/read", "tools/call"))
"""What is only asked of servers that said they know it."""


class Streamable:
    """Speaks to one server; a Link."""

    has_streams = True

    def __init__(
        self,
        client: HttpClient,
        name: str,
        remapper: IdRemapper,
        withdrawal: Callable[[int], Notification] | None,
        report: Report = print_incident,
    ) -> None:
        """Prepare; `withdrawal` is what tells the server of a call that nobody awaits any more."""
        self._client = client
        self._name = name
        self.remapper = remapper
        self._withdrawal = withdrawal
        self._report = report
        self._session: Headers = ()
        self._version: Headers = ()
        self._usual: Headers = _CONTENT
        """What is said with every message: the two above, and what it is."""
        self._resumable = False
        self._expected: set[Asked] = set()
        """Calls under way, but those that were posted and have heard nothing, which wires know."""
        self._saying: set[asyncio.Task[None]] = set()
        self._away = 0
        self._room = asyncio.Event()
        self._asked: dict[Id, asyncio.Task[None] | None] = {}
        self._ear: asyncio.Task[None] | None = None
        self._closed = False
        self._ended = asyncio.Event()

    def opened(self, version: str, handler: Handler) -> None:
        """Learn which revision was agreed on; listen for what comes outside of calls."""
        if self._withdrawal is None or self._closed:
            return
        self._version = ((b"mcp-protocol-version", version.encode()),)
        self._usual = (*_CONTENT, *self._session, *self._version)
        self._resumable = version >= "2025-03-26"
        if self._ear is not None:
            self._ear.cancel()
        self._ear = asyncio.create_task(self._hear(handler))

    # Asking and telling

    def call(
        self,
        method: str,
        params: Raw,
        *,
        original_id: Id = None,
        handler: Handler | None = None,
        headers: Headers = (),
        anew: Anew | None = None,
    ) -> Due:
        """Ask; raises RpcError, HttpRefused or ConnectionLost."""
        id = self.remapper.remap(original_id, self._name)
        said = (*self._usual, *headers) if headers else self._usual
        asked = Asked(self, id, method, handler, said, anew)
        asked.answer = Due(asked.stop)
        try:
            payload = write(Request(id, method, params))
            if method in _APART:
                self._ask_apart(asked, headers, payload)
            elif not self._client.post_now(said, payload, asked):
                self._do(asked, self._post_patiently(asked, payload))
        except BaseException:
            self._client.give_up(asked)
            self._retire(asked)
            raise
        return asked.answer

    def _ask_apart(self, asked: Asked, headers: Headers, payload: bytes) -> None:
        """Ask what has no usual answer, or is not asked as usual."""
        if asked.begins:
            asked.headers = (*_CONTENT, *headers)
        self._do(asked, self._post_patiently(asked, payload))

    def _do(self, asked: Asked, doing: Coroutine[Any, Any, Raw]) -> None:
        """Wait in a task for what is due."""
        self.expect(asked)
        task = Due.of(doing)
        asked.answer.stop_by(lambda _: task.cancel())
        task.then(partial(self._follow_up, asked))

    def _follow_up(self, asked: Asked, doing: Due) -> None:
        self._retire(asked)
        if asked.anew is not None and isinstance(doing.error, SessionLost):
            asked.answer.wait_for(Due.of(asked.anew(doing.error)))
        else:
            asked.answer.follow(doing)

    def expect(self, asked: Asked) -> None:
        """Note that there will be more of a call, or why there will not."""
        if asked.counts:
            self._expected.add(asked)

    def _retire(self, asked: Asked) -> None:
        """Note that a call is over, before anybody hears of it."""
        self._expected.discard(asked)
        self.remapper.restore(asked.id)

    # What comes of a call that was posted at once

    def begun(self, asked: Asked, response: HttpResponse) -> None:
        """Wait in a task for what a response says that is no result, or not all there."""
        if not response.status:
            self._retire(asked)
            asked.answer.fail(response.failed())
        elif asked.shown is None or response.status != UNAUTHORIZED:
            self._do(asked, self._finish(asked, response))
        else:  # once more, with other credentials
            response.shown = asked.shown
            self._do(asked, self._post_patiently(asked, asked.payload, response))

    def drop(self, asked: Asked) -> None:
        """End a call that nobody awaits any more."""
        self._retire(asked)
        asked.answer.fail(asyncio.CancelledError())
        self._client.give_up(asked)
        self._withdraw(asked)

    async def _post_patiently(
        self, asked: Asked, payload: bytes, refused: HttpResponse | None = None
    ) -> Raw:
        try:
            response = await self._client.request("POST", asked.headers, payload, refused=refused)
        except Unreachable:
            self._give_up(asked.counts)
            raise
        except asyncio.CancelledError:
            self._withdraw(asked)
            raise
        return await self._finish(asked, response)

    async def _finish(self, asked: Asked, response: HttpResponse) -> Raw:
        """Return the answer of a response that has begun."""
        try:
            if asked.begins and response.status == 200:
                self._adopt(response)
            return await self._answer(response, asked.id, asked.handler)
        except HttpRefused as why:
            raise self._meaning(why, asked) from None
        except asyncio.CancelledError:
            self._withdraw(asked)
            raise

    def _withdraw(self, asked: Asked) -> None:
        if self._withdrawal is not None and not asked.begins:
            self._say(self._post_quietly(self._withdrawal(asked.id).encode()))

    async def notify(self, method: str, params: Any) -> None:
        """Tell; raises ConnectionLost."""
        response = await self._post(Notification(method, params).encode())
        try:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
        finally:
            response.close()

    async def _post(self, body: bytes) -> HttpResponse:
        return await self._client.request("POST", self._usual, body)

    def _give_up(self, calls: int) -> None:
        """Take the server for lost, unless it may be answering more than the `calls` that know."""
        if len(self._expected) + self._client.posted(Asked) <= calls:
            self._ended.set()

    async def _post_quietly(self, body: bytes) -> None:
        with suppress(ConnectionLost):
            (await self._post(body)).close()

    def _adopt(self, response: HttpResponse) -> None:
        """Take the session that the answer to `initialize` begins."""
        session = response.headers.get(b"mcp-session-id")
        self._session = () if session is None else ((b"mcp-session-id", session),)
        self._usual = (*_CONTENT, *self._session, *self._version)

    # Answers

    async def _answer(self, response: HttpResponse, id: int, handler: Handler | None) -> Raw:
        kind = media_type(response.headers.get(b"content-type"))
        if response.status == 200 and kind == "text/event-stream":
            return await self._follow(MessageStream(response), id, handler)
        try:
            if response.status != 200:
                raise await self._refusal(response, id)
            if kind == "application/json":
                return result_in(await response.read(), id)
            raise ConnectionLost(f"expected JSON or an event stream, got {kind!r}")
        finally:
            response.close()

    async def _refusal(self, response: HttpResponse, id: Id = None) -> HttpRefused:
        """Return what a status other than success says."""
        error, astray = None, False
        if media_type(response.headers.get(b"content-type")) == "application/json":
            with suppress(RemoteProtocolError, ConnectionLost):
                message = decode(await response.read())
                if isinstance(message, ErrorResponse):
                    error, astray = message.error, message.id != id
        retry_after = seconds_of(response.headers.get(b"retry-after"))
        return HttpRefused(response.status, error, retry_after, astray)

    def _meaning(self, why: HttpRefused, asked: Asked) -> Exception:
        """Return what a refusal means for the call that it answers."""
        error = why.error
        unknown = error is not None and error.code == METHOD_NOT_FOUND
        if asked.in_session and why.status == 404 and not unknown:
            return SessionLost(why, heard=False)
        if asked.method in _PROBES or error is None:
            return why
        if asked.method in _CERTAIN and why.status in (400, 404):
            if self._is_another(why, error):
                if self._withdrawal is not None:
                    return SessionLost(why, heard=True)
                self._give_up(1)
            elif unknown and asked.handler is not None:
                # It may be another by now, or have one tool less: whoever hears it finds out.
                asked.handler.violated(RemoteProtocolError(error))
        # What the server says of a call is for its caller, but not whether we may come in.
        return error if why.status in _SAID else why

    def _is_another(self, why: HttpRefused, error: RpcError) -> bool:
        """Tell whether this cannot be the server that welcomed us: it would not say such things."""
        mismatch = self._withdrawal is not None and error.code == HEADER_MISMATCH
        return why.astray or mismatch or error.code == UNSUPPORTED_VERSION

    async def _follow(self, stream: MessageStream, id: int, handler: Handler | None) -> Raw:
        """Read a stream to its answer; take it up again where it was cut short, if that can be."""
        attempts, answered = 0, False
        try:
            while True:
                message = await stream.next()
                if message is None:
                    attempts += 1
                    await self._take_up(stream, attempts)
                    continue
                if is_answer(message, id):
                    answered = True
                    return result_of(message, id)
                if not isinstance(message, RemoteProtocolError):
                    attempts = 0
                    await self._hand_on(message, handler)
        finally:
            if answered:
                self._say(stream.let_end())
            else:
                stream.close()

    async def _take_up(self, stream: MessageStream, attempts: int) -> None:
        """Go on with a stream that ended too early; raises ConnectionLost where that cannot be."""
        lost = "the stream ended before the answer"
        if not self._resumable or stream.last_id is None or attempts > MAX_RESUMES:
            raise ConnectionLost(lost)
        await self._rest(stream.delay)
        if self._ended.is_set():
            raise ConnectionLost(lost)
        try:
            stream.go_on(await self._listen(stream.last_id))
        except HttpRefused as why:
            # Whatever it says: the call was heard, and must not be made again.
            if not why.passes:
                raise ConnectionLost(f"{lost}, and to take it up again {why}") from None
        except ConnectionLost:
            return  # one attempt less

    async def _listen(self, last_id: str | None) -> HttpResponse:
        headers = [(b"accept", b"text/event-stream"), *self._session, *self._version]
        if last_id is not None:
            headers.append((b"last-event-id", last_id.encode()))
        response = await self._client.request("GET", headers)
        kind = media_type(response.headers.get(b"content-type"))
        if response.status != 200 or kind != "text/event-stream":
            try:
                raise await self._refusal(response)
            finally:
                response.close()
        return response

    async def _hear(self, handler: Handler) -> None:
        """Listen for what the server says outside of calls, for as long as there is a link."""
        loop = asyncio.get_running_loop()
        last_id, failures = None, 0
        while not self._ended.is_set():
            delay, began = RETRY, loop.time()
            try:
                stream = MessageStream(await self._listen(last_id))
                try:
                    while (message := await stream.next()) is not None:
                        if not isinstance(message, RemoteProtocolError):
                            failures = 0
                            await self._hand_on(message, handler)
                finally:
                    stream.close()
                    last_id, delay = stream.last_id or last_id, stream.delay
            except ConnectionLost as why:
                if isinstance(why, HttpRefused) and not why.passes:
                    if last_id is None:
                        return  # most do not offer it
                    last_id = None  # what came after that is not kept any more
                if isinstance(why, Unreachable):
                    self._give_up(0)
            if loop.time() - began > MAX_RETRY:
                failures = 0  # streams that nobody uses are cut off now and then
            await self._rest(min(delay * 2**failures, MAX_RETRY))
            failures = min(failures + 1, 8)

    async def _rest(self, seconds: float) -> None:
        """Wait, but not for longer than there is a link."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    # What the server says meanwhile

    async def _hand_on(self, message: Message, handler: Handler | None) -> None:
        if handler is None:
            return
        if isinstance(message, Request) and self._withdrawal is None:
            handler.violated(RemoteProtocolError(RpcError.invalid_request("a server asks nobody")))
        elif isinstance(message, Request):
            while len(self._saying) - self._away >= MAX_SAYING or self._away >= MAX_ASKED:
                self._room.clear()
                await self._room.wait()
            self._asked[message.id] = self._say(self._reply(message, handler))
        elif isinstance(message, Notification):
            try:
                noted = handler.notified(message)
                if noted is not None:
                    await noted
            except Exception as error:
                answer_for(error, message.method, self._report)

    async def _reply(self, request: Request, handler: Handler) -> None:
        try:
            result = await self._think(handler.called(request))
            payload = Response(request.id, result).encode()
        except Exception as error:
            failure = answer_for(error, request.method, self._report)
            payload = ErrorResponse(request.id, failure).encode()
        finally:
            self._asked.pop(request.id, None)
        await self._post_quietly(payload)

    async def _think(self, outcome: Any) -> Any:
        """Wait for an answer, which may be a person's: those who wait keep nobody from asking."""
        if not hasattr(outcome, "__await__"):
            return outcome
        self._away += 1
        self._room.set()
        try:
            return await outcome
        finally:
            self._away -= 1

    def cancel(self, request_id: object) -> None:
        """Stop answering what the server asked, since it does not want to know any more."""
        if isinstance(request_id, int | str) and not isinstance(request_id, bool):
            task = self._asked.pop(request_id, None)
            if task is not None:
                task.cancel()

    def _say(self, saying: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Say something that nobody waits for."""
        if self._closed:
            saying.close()
            return None
        task = asyncio.create_task(saying)
        self._saying.add(task)
        task.add_done_callback(self._said)
        return task

    def _said(self, task: asyncio.Task[None]) -> None:
        self._saying.discard(task)
        self._room.set()

    # The end

    async def wait_ended(self) -> None:
        """Wait until the server cannot be reached any more."""
        await self._ended.wait()

    async def aclose(self) -> None:
        """End the session, if there is one, and everything that goes on."""
        self._closed = True
        self._ended.set()
        session, self._session = self._session, ()
        self._usual = (*_CONTENT, *self._version)
        try:
            if self._ear is not None:
                self._ear.cancel()
                await asyncio.gather(self._ear, return_exceptions=True)
            if self._saying:
                await asyncio.wait(self._saying, timeout=GRACE)
            with suppress(ConnectionLost, TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    if session:
                        goodbye = await self._client.request("DELETE", (*session, *self._version))
                        goodbye.close()
        finally:
            for task in self._saying:
                task.cancel()
            await self._client.aclose()
            await asyncio.gather(*self._saying, return_exceptions=True)
