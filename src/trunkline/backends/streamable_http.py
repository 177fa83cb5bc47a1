"""MCP over Streamable HTTP, the client side: each message is a POST, its answer a body or a stream.

    call ──> POST ──> application/json ──────────────────────────> result
                  ──> text/event-stream ──> the call's handler … ──> result
                        └─ cut short ──> GET with Last-Event-ID, where the revision has that

It does not follow redirects, and does not act on what a server says about authorization. It sends
nothing twice: if a session was lost, the caller decides whether to repeat the call.

A call usually ends in `PendingCall.handle_response`, without a task: most answers are one JSON
body.

Invariants:
1. What a server sends on the stream of a call goes only to that call's handler.
2. A cancelled call is cancelled at the server: by a notification in the session protocol, by
   closing the stream in the stateless protocol.
3. Bodies, events and the attempts to resume a broken stream are limited.
4. The connection ends if another server has taken the server's place: with another protocol, or
   without our session.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from msgspec import Struct

from trunkline.backends.http_responses import (
    MessageStream,
    SessionLost,
    UpstreamStatusError,
    extract_result,
    is_response_to,
    parse_result,
    parse_retry_after,
)
from trunkline.backends.limits import DEFAULT_LIMITS, StreamLimits
from trunkline.http.client import HttpClient, ServerUnreachable
from trunkline.http.client_connection import HttpResponse, ResponseHead
from trunkline.http.exchange import Headers
from trunkline.http.media_types import media_type
from trunkline.jsonrpc import (
    METHOD_NOT_FOUND,
    ConnectionLost,
    ErrorResponse,
    Handler,
    Id,
    IdRemapper,
    Message,
    Notification,
    PendingResult,
    Raw,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
    UnreadableAnswer,
    decode,
)
from trunkline.jsonrpc.codec import decode_result
from trunkline.jsonrpc.errors import IncidentReporter, print_incident, to_rpc_error
from trunkline.jsonrpc.raw_json import encode_json
from trunkline.mcp.errors import HEADER_MISMATCH, UNSUPPORTED_VERSION
from trunkline.mcp.methods import CLIENT_REQUESTS, Method, undefined_method
from trunkline.mcp.versions import Revision

if TYPE_CHECKING:
    from trunkline.http.client_connection import ClientConnection

# Repeats a call in a new session, since the server has lost the old one
RetryInNewSession: TypeAlias = Callable[[SessionLost], Coroutine[Any, Any, Raw]]

MAX_RESUMES = 5  # how often a call's stream is resumed without a new message
_CONTENT_HEADERS = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
)

_FORWARDABLE_STATUSES = frozenset((400, 404, 422, 500))
UNAUTHORIZED_STATUS = 401
_OTHER_METHOD = undefined_method("")


class PendingCall(Struct, eq=False):
    """A call that was sent, and where its answer goes."""

    client: "StreamableHttpClient"
    id: int
    method: Method
    handler: Handler | None
    headers: Headers  # the headers of its request
    retry_in_new_session: RetryInNewSession | None
    # The pending result; set right after creation, since the two refer to each other
    result: PendingResult = cast("PendingResult", None)
    credentials: object = None  # the credentials it was sent with, if others can be fetched
    payload: bytes = b""  # the body, which may be sent again with other credentials

    @property
    def in_session(self) -> bool:
        """Whether it was sent in a session."""
        return any(name == b"mcp-session-id" for name, _ in self.headers)

    def record_credentials(self, credentials: object, body: bytes) -> None:
        """Note the credentials it was sent with."""
        self.credentials, self.payload = credentials, body

    def cancel(self, _: PendingResult) -> None:
        """Cancel a call that has got no answer yet."""
        self.client.drop(self)

    def handle_response(
        self, connection: "ClientConnection", head: ResponseHead, body: bytes
    ) -> None:
        """Take a complete response."""
        if head.is_json:
            self.client.remapper.forget(self.id)
            # `decode_result` reads only the plain form of a result; `parse_result` reads any.
            parsed = decode_result(body)
            if parsed is not None and parsed.id == self.id:
                self.result.set_result(parsed.result)
            else:
                self._handle_other_json(body)
        else:
            self.open_response(connection).handle_response(connection, head, body)

    def _handle_other_json(self, body: bytes) -> None:
        try:
            result = parse_result(body, self.id)
        except (RpcError, ConnectionLost) as error:
            self.result.set_exception(error)
        else:
            self.result.set_result(result)

    def open_response(self, connection: "ClientConnection") -> HttpResponse:
        """Start a response that is not a complete JSON body."""
        response = HttpResponse(connection)
        response.on_head(partial(self.client.on_response_head, self, response))
        self.client.track(self)
        self.result.set_canceller(partial(self._cancel_response, response))
        return response

    def _cancel_response(self, response: HttpResponse, _: PendingResult) -> None:
        response.on_head(None)
        response.close()
        self.client.drop(self)


class StreamableHttpClient:
    """The connection to one server."""

    has_streams = True

    def __init__(
        self,
        client: HttpClient,
        name: str,
        remapper: IdRemapper,
        make_cancellation: Callable[[int], Notification] | None,
        report: IncidentReporter = print_incident,
        *,
        limits: StreamLimits = DEFAULT_LIMITS.streams,
    ) -> None:
        """Prepare; `make_cancellation` returns the notification that cancels a call."""
        self._client = client
        self._name = name
        self.remapper = remapper
        self._make_cancellation = make_cancellation
        self._report = report
        self._limits = limits
        self._session_headers: Headers = ()
        self._version_headers: Headers = ()
        # The headers of every message: content types, session and revision
        self._common_headers: Headers = _CONTENT_HEADERS
        self._resumable = False
        # The calls in flight that are handled by tasks; the HTTP connections know the others
        self._running_calls: set[PendingCall] = set()
        self._outgoing_tasks: set[asyncio.Task[None]] = set()
        self._pending_requests = 0
        self._capacity_changed = asyncio.Event()
        self._reply_tasks: dict[Id, asyncio.Task[None] | None] = {}
        self._listen_task: asyncio.Task[None] | None = None
        self._closed = False
        self._ended = asyncio.Event()

    def on_session_opened(self, revision: Revision, handler: Handler) -> None:
        """Note the agreed revision, and open the stream for messages outside of calls."""
        if self._make_cancellation is None or self._closed:
            return
        self._version_headers = ((b"mcp-protocol-version", revision.date.encode()),)
        self._common_headers = (*_CONTENT_HEADERS, *self._session_headers, *self._version_headers)
        self._resumable = revision.has_resumable_streams
        if self._listen_task is not None:
            self._listen_task.cancel()
        self._listen_task = asyncio.create_task(self._listen_loop(handler))

    # Calls and notifications

    def call(
        self,
        method: str,
        params: Raw,
        *,
        original_id: Id = None,
        handler: Handler | None = None,
        headers: Headers = (),
        retry_in_new_session: RetryInNewSession | None = None,
    ) -> PendingResult:
        """Send a request; raises RpcError, UpstreamStatusError or ConnectionLost."""
        id = self.remapper.remap(original_id, self._name)
        all_headers = (*self._common_headers, *headers) if headers else self._common_headers
        row = CLIENT_REQUESTS.get(method, _OTHER_METHOD)
        call = PendingCall(self, id, row, handler, all_headers, retry_in_new_session)
        call.result = PendingResult(call.cancel)
        try:
            payload = encode_json(Request(id, method, params))
            if row.starts_session or row.opens_stream:
                self._call_slow(call, headers, payload)
            # The fast path: an idle connection writes the request at once, and the answer needs no
            # task. It is what `bench.hop` measures for HTTP servers.
            elif not self._client.try_post(all_headers, payload, call):
                self._run_call(call, self._post_call(call, payload))
        except BaseException:
            self._client.abandon(call)
            self._retire(call)
            raise
        return call.result

    def _call_slow(self, call: PendingCall, headers: Headers, payload: bytes) -> None:
        """Send a call that has other headers or needs another kind of answer."""
        if call.method.starts_session:
            call.headers = (*_CONTENT_HEADERS, *headers)
        self._run_call(call, self._post_call(call, payload))

    def _run_call(self, call: PendingCall, work: Coroutine[Any, Any, Raw]) -> None:
        self.track(call)
        task = PendingResult.from_awaitable(work)
        call.result.set_canceller(lambda _: task.cancel())
        task.add_callback(partial(self._on_call_done, call))

    def _on_call_done(self, call: PendingCall, answer: PendingResult) -> None:
        self._retire(call)
        if call.retry_in_new_session is not None and isinstance(answer.error, SessionLost):
            call.result.chain(PendingResult.from_awaitable(call.retry_in_new_session(answer.error)))
        else:
            call.result.copy_from(answer)

    def track(self, call: PendingCall) -> None:
        """Track a call that is now handled by a task."""
        if not call.method.opens_stream:  # a subscription never ends
            self._running_calls.add(call)

    def _retire(self, call: PendingCall) -> None:
        self._running_calls.discard(call)
        self.remapper.restore(call.id)

    # Calls that were posted without a task

    def on_response_head(self, call: PendingCall, response: HttpResponse) -> None:
        """Handle a response that is not a complete result."""
        if not response.status:
            self._retire(call)
            call.result.set_exception(response.failure())
        elif call.credentials is None or response.status != UNAUTHORIZED_STATUS:
            self._run_call(call, self._finish(call, response))
        else:
            # A 401 proves that the call was not processed: it is sent again with a new token.
            response.credentials = call.credentials
            self._run_call(call, self._post_call(call, call.payload, response))

    def drop(self, call: PendingCall) -> None:
        """Cancel a call whose answer is not awaited any more."""
        self._retire(call)
        call.result.set_exception(asyncio.CancelledError())
        self._client.abandon(call)
        self._send_cancellation(call)

    async def _post_call(
        self, call: PendingCall, payload: bytes, refused: HttpResponse | None = None
    ) -> Raw:
        try:
            response = await self._client.request("POST", call.headers, payload, rejected=refused)
        except ServerUnreachable:
            self._end_if_unreachable(not call.method.opens_stream)
            raise
        except asyncio.CancelledError:
            self._send_cancellation(call)
            raise
        return await self._finish(call, response)

    async def _finish(self, call: PendingCall, response: HttpResponse) -> Raw:
        try:
            if call.method.starts_session and response.status == 200:
                self._start_session(response)
            return await self._read_answer(response, call.id, call.handler)
        except UpstreamStatusError as error:
            raise self._call_error(error, call) from None
        except asyncio.CancelledError:
            self._send_cancellation(call)
            raise

    def _send_cancellation(self, call: PendingCall) -> None:
        if self._make_cancellation is not None and not call.method.starts_session:
            self._start_outgoing(self._post_quietly(self._make_cancellation(call.id).encode()))

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification; raises ConnectionLost."""
        response = await self._post(Notification(method, params).encode())
        try:
            if not 200 <= response.status < 300:
                raise await self._status_error(response)
        finally:
            response.close()

    async def _post(self, body: bytes) -> HttpResponse:
        return await self._client.request("POST", self._common_headers, body)

    def _end_if_unreachable(self, calls: int) -> None:
        """End the connection, unless more than `calls` calls are still in flight."""
        if len(self._running_calls) + self._client.count_pending(PendingCall) <= calls:
            self._ended.set()

    async def _post_quietly(self, body: bytes) -> None:
        with suppress(ConnectionLost):
            (await self._post(body)).close()

    def _start_session(self, response: HttpResponse) -> None:
        session = response.headers.get(b"mcp-session-id")
        self._session_headers = () if session is None else ((b"mcp-session-id", session),)
        self._common_headers = (*_CONTENT_HEADERS, *self._session_headers, *self._version_headers)

    # Answers

    async def _read_answer(self, response: HttpResponse, id: int, handler: Handler | None) -> Raw:
        kind = media_type(response.headers.get(b"content-type"))
        if response.status == 200 and kind == "text/event-stream":
            return await self._read_stream(MessageStream(response, self._limits), id, handler)
        try:
            if 200 < response.status < 300:
                raise UnreadableAnswer(f"the server answered HTTP {response.status}")
            if response.status != 200:
                raise await self._status_error(response, id)
            if kind == "application/json":
                return parse_result(await response.read(), id)
            raise UnreadableAnswer(f"expected JSON or an event stream, got {kind!r}")
        finally:
            response.close()

    async def _status_error(self, response: HttpResponse, id: Id = None) -> UpstreamStatusError:
        error, misaddressed = None, False
        if media_type(response.headers.get(b"content-type")) == "application/json":
            with suppress(RemoteProtocolError, ConnectionLost):
                message = decode(await response.read())
                if isinstance(message, ErrorResponse):
                    error, misaddressed = message.error, message.id != id
        retry_after = parse_retry_after(response.headers.get(b"retry-after"))
        return UpstreamStatusError(response.status, error, retry_after, misaddressed)

    def _call_error(self, refusal: UpstreamStatusError, call: PendingCall) -> Exception:
        error = refusal.error
        unknown = error is not None and error.code == METHOD_NOT_FOUND
        if call.in_session and refusal.status == 404 and not unknown:
            return SessionLost(refusal, maybe_processed=False)
        if call.method.is_probe or error is None:
            return refusal
        names_feature = call.method.is_call and call.method.kind is not None
        if names_feature and refusal.status in (400, 404):
            if self._is_other_server(refusal, error):
                if self._make_cancellation is not None:
                    return SessionLost(refusal, maybe_processed=True)
                self._end_if_unreachable(1)
            elif unknown and call.handler is not None:
                # A tool was removed, or another server took its place: the handler checks.
                call.handler.violated(RemoteProtocolError(error))
        # Errors about the call go to its caller; errors about the gateway's access do not.
        return error if refusal.status in _FORWARDABLE_STATUSES else refusal

    def _is_other_server(self, refusal: UpstreamStatusError, error: RpcError) -> bool:
        """Return whether the server that we initialized would never answer this."""
        mismatch = self._make_cancellation is not None and error.code == HEADER_MISMATCH
        return refusal.is_misaddressed or mismatch or error.code == UNSUPPORTED_VERSION

    async def _read_stream(self, stream: MessageStream, id: int, handler: Handler | None) -> Raw:
        """Read a stream up to the answer; resumes it where it was cut short, if possible."""
        attempts, answered = 0, False
        try:
            while True:
                message = await stream.next()
                if message is None:
                    attempts += 1
                    await self._resume_stream(stream, attempts)
                    continue
                if is_response_to(message, id):
                    answered = True
                    return extract_result(message, id)
                if not isinstance(message, RemoteProtocolError):
                    attempts = 0
                    await self._dispatch(message, handler)
        finally:
            if answered:
                self._start_outgoing(stream.drain())
            else:
                stream.close()

    async def _resume_stream(self, stream: MessageStream, attempts: int) -> None:
        """Resume a stream that ended too early; raises ConnectionLost if that is impossible."""
        lost = "the stream ended before the answer"
        if not self._resumable or stream.last_id is None or attempts > MAX_RESUMES:
            raise ConnectionLost(lost) if stream.is_broken else UnreadableAnswer(lost)
        await self._sleep(stream.reconnect_delay)
        if self._ended.is_set():
            raise ConnectionLost(lost)
        try:
            stream.resume(await self._open_stream(stream.last_id))
        except UpstreamStatusError as error:
            # Never repeat the call, with any status: the server has received it.
            if not error.is_temporary:
                raise ConnectionLost(f"{lost}, and resuming it failed: {error}") from None
        except ConnectionLost:
            return  # counts as an attempt

    async def _open_stream(self, last_id: str | None) -> HttpResponse:
        accept = (b"accept", b"text/event-stream")
        headers = [accept, *self._session_headers, *self._version_headers]
        if last_id is not None:
            headers.append((b"last-event-id", last_id.encode()))
        response = await self._client.request("GET", headers)
        kind = media_type(response.headers.get(b"content-type"))
        if response.status != 200 or kind != "text/event-stream":
            try:
                raise await self._status_error(response)
            finally:
                response.close()
        return response

    async def _listen_loop(self, handler: Handler) -> None:
        loop, limits = asyncio.get_running_loop(), self._limits
        last_id, failures = None, 0
        while not self._ended.is_set():
            delay, started_at = limits.reconnect_delay, loop.time()
            try:
                stream = MessageStream(await self._open_stream(last_id), limits)
                try:
                    while (message := await stream.next()) is not None:
                        if not isinstance(message, RemoteProtocolError):
                            failures = 0
                            await self._dispatch(message, handler)
                finally:
                    stream.close()
                    last_id, delay = stream.last_id or last_id, stream.reconnect_delay
            except ConnectionLost as error:
                if isinstance(error, UpstreamStatusError) and not error.is_temporary:
                    if last_id is None:
                        return  # most servers have no such stream
                    last_id = None  # the server no longer has the messages since then
                if isinstance(error, ServerUnreachable):
                    self._end_if_unreachable(0)
            if loop.time() - started_at > limits.max_reconnect_delay:
                failures = 0  # proxies cut off idle streams now and then
            await self._sleep(min(delay * 2**failures, limits.max_reconnect_delay))
            failures = min(failures + 1, 8)

    async def _sleep(self, seconds: float) -> None:
        """Wait, but at most until the connection ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    # Messages of the server

    async def _dispatch(self, message: Message, handler: Handler | None) -> None:
        if handler is None:
            return
        if isinstance(message, Request) and self._make_cancellation is None:
            handler.violated(
                RemoteProtocolError(RpcError.invalid_request("servers send no requests"))
            )
        elif isinstance(message, Request):
            # Stop reading: back-pressure on a server that sends requests faster than we can answer.
            while self._is_saturated():
                self._capacity_changed.clear()
                await self._capacity_changed.wait()
            self._reply_tasks[message.id] = self._start_outgoing(self._reply(message, handler))
        elif isinstance(message, Notification):
            try:
                notified = handler.notified(message)
                if notified is not None:
                    await notified
            except Exception as error:
                to_rpc_error(error, message.method, self._report)

    def _is_saturated(self) -> bool:
        pending, limits = self._pending_requests, self._limits
        too_many_replies = len(self._outgoing_tasks) - pending >= limits.max_outgoing_tasks
        return too_many_replies or pending >= limits.max_pending_server_requests

    async def _reply(self, request: Request, handler: Handler) -> None:
        try:
            result = await self._await_answer(handler.called(request))
            payload = Response(request.id, result).encode()
        except Exception as error:
            failure = to_rpc_error(error, request.method, self._report)
            payload = ErrorResponse(request.id, failure).encode()
        finally:
            self._reply_tasks.pop(request.id, None)
        await self._post_quietly(payload)

    async def _await_answer(self, outcome: Any) -> Any:
        """Await an answer, maybe of a person; meanwhile further requests are accepted."""
        if not hasattr(outcome, "__await__"):
            return outcome
        self._pending_requests += 1
        self._capacity_changed.set()
        try:
            return await outcome
        finally:
            self._pending_requests -= 1

    def cancel(self, request_id: object) -> None:
        """Stop answering a request that the server has cancelled."""
        if isinstance(request_id, int | str) and not isinstance(request_id, bool):
            task = self._reply_tasks.pop(request_id, None)
            if task is not None:
                task.cancel()

    def _start_outgoing(self, sending: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        if self._closed:
            sending.close()
            return None
        task = asyncio.create_task(sending)
        self._outgoing_tasks.add(task)
        task.add_done_callback(self._on_outgoing_done)
        return task

    def _on_outgoing_done(self, task: asyncio.Task[None]) -> None:
        self._outgoing_tasks.discard(task)
        self._capacity_changed.set()

    # The end

    async def wait_ended(self) -> None:
        """Wait until the server cannot be reached any more."""
        await self._ended.wait()

    async def aclose(self) -> None:
        """End the session, if there is one, and all tasks."""
        self._closed = True
        self._ended.set()
        session, self._session_headers = self._session_headers, ()
        self._common_headers = (*_CONTENT_HEADERS, *self._version_headers)
        try:
            if self._listen_task is not None:
                self._listen_task.cancel()
                await asyncio.gather(self._listen_task, return_exceptions=True)
            if self._outgoing_tasks:
                await asyncio.wait(self._outgoing_tasks, timeout=self._limits.close_drain_timeout)
            with suppress(ConnectionLost, TimeoutError):
                async with asyncio.timeout(self._limits.session_delete_timeout):
                    if session:
                        headers = (*session, *self._version_headers)
                        (await self._client.request("DELETE", headers)).close()
        finally:
            for task in self._outgoing_tasks:
                task.cancel()
            await self._client.aclose()
            await asyncio.gather(*self._outgoing_tasks, return_exceptions=True)
