"""Connection: a Peer run over a Transport, with tasks, cancellation, timeouts and an orderly end.

    transport.receive ──> peer ──> Called   ──> handler.called, in a task if it awaits
                               ──> Notified ──> handler.notified, in order
                               ──> Returned, Failed ──> the PendingResult of that call
    call, notify, responses ──> peer ──> transport.send, one payload after the other

It decides nothing: the Peer knows which responses are outstanding, the Handler what to respond.

Invariants upheld here:
1. A slow call delays nothing but its own response.
2. A call ends with its response, ConnectionLost, or the cancellation or timeout of its caller.
   Other traffic that waits to be sent does not delay that.
3. The send queue is bounded: beyond the limit nothing more is read, and callers wait.
4. A peer that does not read within the send timeout is disconnected.
5. After `aclose` the transport is closed and no task of the connection runs. The exceptions are a
   task that called `aclose` itself and a handler that ignores its cancellation.
6. While the transport lasts, no queued payload is lost, even if a task is cancelled.
7. Messages are handled in the order of arrival, except for responses that the handler of a
   notification waits for. A bounded number of messages waits for such a handler.
8. `run` returns within bounded time after the other side has ended, whatever handlers do.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self, TypeVar, cast, overload

import msgspec
from msgspec import Struct

from trunkline.jsonrpc.errors import (
    OVERLOADED,
    ConnectionLost,
    IncidentReporter,
    InvalidResult,
    RemoteProtocolError,
    RpcError,
    SharedConnectionLost,
    print_incident,
    to_rpc_error,
)
from trunkline.jsonrpc.message import Id, Notification, Request
from trunkline.jsonrpc.peer import Called, Event, Failed, Lost, Notified, Peer, Returned, Violated
from trunkline.jsonrpc.pending import PendingResult, as_pending
from trunkline.jsonrpc.raw_json import UNSET, Raw
from trunkline.jsonrpc.transport import Transport, read_end_reason

T = TypeVar("T")

# How many seconds requests in progress may go on after the connection starts to close.
CLOSE_TIMEOUT = 5.0

# How many messages may wait for the handler of a notification before nothing more is read.
MAX_WAITING_EVENTS = 64

# After how many seconds of such a handler the connection looks whether the other side has ended.
# Nearly all handlers are faster, and reading takes a task for each message then.
READ_AHEAD_DELAY = 0.1

# The least time, in seconds, that a cancelled request has to clean up.
CANCEL_TIMEOUT = 0.1

_CONNECTION_ENDED = "the connection has ended"

# What handler code may raise, including a CancelledError that is not about this connection's task.
_HANDLER_ERRORS = (Exception, asyncio.CancelledError)


class SendLimits(Struct, frozen=True):
    """Limits of the payloads that wait to be sent."""

    timeout: float = 30.0
    """How many seconds the other side may take to read a payload."""
    max_backlog: int = 256
    """How many payloads may wait before nothing more is read and callers wait."""


_DEFAULT_SEND_LIMITS = SendLimits()


class Handler(Protocol):
    """Responds to the requests of the other side.

    A handler may have one more method: `connected(connection)` returns the Handler to use for that
    connection. A Connection calls it once, when it is created.
    """

    def called(self, request: Request) -> Any:
        """Return the result of `request`, or an awaitable of it; raise RpcError to fail it."""
        ...

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Handle a notification.

        A returned awaitable finishes before later messages are handled. It must pass `overtake` to
        `Connection.call`, or it waits for a response that waits for it.
        """
        ...

    def violated(self, violation: RemoteProtocolError) -> None:
        """Handle a protocol violation; the other side has been told where that is allowed."""
        ...


class NullHandler:
    """A Handler for pure clients: it has no methods and ignores the rest."""

    def called(self, request: Request) -> Any:
        """Reject the request."""
        raise RpcError.method_not_found(request.method)

    def notified(self, notification: Notification) -> None:
        """Ignore it."""

    def violated(self, violation: RemoteProtocolError) -> None:
        """Ignore it."""


class Connection:
    """Runs a Peer over a Transport: `await run()`, or `async with` to run in the background."""

    def __init__(
        self,
        transport: Transport,
        handler: Handler | None = None,
        peer: Peer | None = None,
        *,
        send_limits: SendLimits = _DEFAULT_SEND_LIMITS,
        close_timeout: float = CLOSE_TIMEOUT,
        cancellation: Callable[[int], Notification] | None = None,
        report: IncidentReporter = print_incident,
    ) -> None:
        """Prepare a connection; nothing happens before `run`.

        `close_timeout` limits how long requests in progress may go on when the connection closes.
        `cancellation` builds the notification that withdraws a call from the other side.
        """
        self._transport = transport
        self._handler = self._connect_handler(handler or NullHandler())
        self._peer = peer or Peer()
        self._close_timeout = close_timeout
        self._cancellation = cancellation
        self._report = report
        self._sender = PayloadSender(self._peer, transport, send_limits, self._abort, self._spawn)
        self._in_flight: dict[Called, PendingResult] = {}
        self._notification_tasks: list[asyncio.Task[None]] = []
        self._not_awaited: set[asyncio.Future[None] | PendingResult] = set()
        self._progress = asyncio.Event()
        # Received, and handled next; see `_read_ahead`.
        self._waiting_events: deque[Event] = deque()
        self._receiving: asyncio.Task[bytes | None] | None = None
        self._read_ahead_at = 0.0
        self._read_ahead_timer: asyncio.TimerHandle | None = None
        self._input_over = False
        self._out_of_time = False
        self._overtaking_calls: set[int] = set()
        self._background: set[asyncio.Task[None]] = set()
        # Whether all input has been handled and `run` waits for the next payload.
        self._awaits_payload = False
        self._closing = False
        self._ending = False
        self._ended = asyncio.Event()
        self._runner: asyncio.Task[None]

    def _connect_handler(self, handler: Handler) -> Handler:
        connect: Callable[[Connection], Handler] | None = getattr(handler, "connected", None)
        return handler if connect is None else connect(self)

    @property
    def peer(self) -> Peer:
        """The state of the conversation."""
        return self._peer

    async def __aenter__(self) -> Self:
        self._runner = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.aclose()
        finally:
            await self._runner

    # Input

    async def run(self) -> None:
        """Read until the other side ends or the connection is closed, then end in order.

        Handlers that still run then have `close_timeout` seconds, and are cancelled after that.
        """
        set_receiver: Callable[[Callable[[bytes], bool]], None] | None
        if (set_receiver := getattr(self._transport, "set_receiver", None)) is not None:
            set_receiver(self._dispatch_inline)
        try:
            waiting = self._waiting_events
            while not self._input_over:
                receiving, self._receiving = self._receiving, None
                self._awaits_payload = receiving is None or not receiving.done()
                try:
                    payload = await (receiving or self._transport.receive())
                except RemoteProtocolError as violation:
                    events = self._peer.report_violation(violation)
                except (ConnectionLost, OSError):
                    break
                else:
                    if payload is None:
                        break
                    events = self._peer.receive(payload)
                finally:
                    self._awaits_payload = False
                waiting.extend(events)
                while waiting:
                    if (notified := self._handle_event(waiting.popleft())) is not None:
                        await self._await_notification(notified)
                if self._peer.send_queue:
                    await self._sender.flush()
        finally:
            await self._end_run()

    async def _end_run(self) -> None:
        try:
            await self._end()
        finally:
            if self._receiving is not None:
                self._receiving.cancel()

    def _dispatch_inline(self, payload: bytes) -> bool:
        """Handle a payload in the callback of the transport; return False to leave it to `run`.

        Waking the task of `run` costs a lone call more than all other work here. Work that
        may need an await is left to `run`.
        """
        peer = self._peer
        if not self._awaits_payload or peer.send_queue:
            return False
        found = peer.receive_result(payload)
        if found is None:
            return self._dispatch_events_inline(payload)
        pending, result = found
        if pending is not None:  # None: a call that was made on the peer directly
            pending.set_result(result)
        return True

    def _dispatch_events_inline(self, payload: bytes) -> bool:
        events = self._peer.try_receive(payload)
        if events is None:
            return False
        for event in events:
            self._handle_event(event)
        if self._peer.send_queue:
            self._sender.try_flush()
        return True

    def _handle_event(self, event: Event) -> Coroutine[Any, Any, None] | None:
        if isinstance(event, Called):
            self._start_request(event)
        elif isinstance(event, Notified):
            return self._notify_handler(event.notification)
        elif isinstance(event, Violated):
            self._notify_handler(event.violation)
        else:
            self._complete_call(event)
        return None

    def _notify_handler(
        self, event: Notification | RemoteProtocolError
    ) -> Coroutine[Any, Any, None] | None:
        # Pass an event to the handler; an exception in it does not end the connection.
        try:
            if isinstance(event, RemoteProtocolError):
                self._handler.violated(event)
            elif (notified := self._handler.notified(event)) is not None:
                return self._run_notification(notified, event.method)
        except _HANDLER_ERRORS as error:
            to_rpc_error(error, getattr(event, "method", ""), self._report)
        return None

    async def _run_notification(self, notified: Awaitable[None], method: str) -> None:
        try:
            await notified
        except Exception as error:
            to_rpc_error(error, method, self._report)
        finally:
            self._progress.set()

    async def _await_notification(self, notified: Coroutine[Any, Any, None]) -> None:
        """Wait for the handler of a notification, unless closing no longer waits for it.

        If it outlasts the end of input by the close timeout, what waits for it is dropped.
        """
        # A task of its own: closing can cancel it, but not the task of `run`.
        task = asyncio.create_task(notified)
        self._notification_tasks = [task]
        loop = asyncio.get_running_loop()
        self._read_ahead_at = loop.time() + READ_AHEAD_DELAY
        if self._read_ahead_timer is None:
            self._read_ahead_timer = loop.call_at(self._read_ahead_at, self._check_read_ahead)
        while not task.done() and task not in self._not_awaited:
            if self._out_of_time:
                self._cancel_soon([task])
                self._drop_waiting_events()
                return
            self._progress.clear()
            if self._overtaking_calls or loop.time() >= self._read_ahead_at:
                self._read_ahead()
            await self._progress.wait()

    def _check_read_ahead(self) -> None:
        # One timer for all notifications: a timer each would cost more than most handlers.
        self._read_ahead_timer = None
        if all(task.done() for task in self._notification_tasks):
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._read_ahead_at:
            self._progress.set()
        else:
            self._read_ahead_timer = loop.call_at(self._read_ahead_at, self._check_read_ahead)

    def _drop_waiting_events(self) -> None:
        events = [*self._waiting_events]
        self._waiting_events.clear()
        for event in events:
            if isinstance(event, Returned | Failed):  # without it, the call would never end
                self._complete_call(event)

    def _read_ahead(self) -> None:
        """Receive while the handler of a notification runs, which must not outlive the other side.

        Only responses that the handler itself waits for are handled at once.
        """
        if self._receiving is not None and self._receiving.done():
            receiving, self._receiving = self._receiving, None
            events: list[Event] = []
            try:
                payload = receiving.result()
            except RemoteProtocolError as violation:
                events = self._peer.report_violation(violation)
            except (ConnectionLost, OSError):
                self._end_input_ahead()
            else:
                if payload is None:
                    self._end_input_ahead()
                else:
                    events = self._peer.receive(payload)
            for event in events:
                if isinstance(event, Returned | Failed) and event.id in self._overtaking_calls:
                    self._complete_call(event)
                else:
                    self._waiting_events.append(event)
        if (
            self._receiving is None
            and not self._input_over
            and len(self._waiting_events) < MAX_WAITING_EVENTS
        ):
            self._receiving = asyncio.create_task(self._receive_ahead())
            self._receiving.add_done_callback(lambda _: self._progress.set())

    async def _receive_ahead(self) -> bytes | None:
        if self._peer.send_queue:
            await self._sender.flush()
        try:
            return await self._transport.receive()
        finally:
            self._awaits_payload = False  # as soon as there is one: none may overtake it

    def _end_input_ahead(self) -> None:
        self._input_over = True
        self._fail_lost_calls(self._peer.end_input(), self._end_text())
        self._spawn(self._limit_time())

    async def _limit_time(self) -> None:
        await asyncio.sleep(self._close_timeout)
        self._out_of_time = True
        self._progress.set()

    # Calls of this side

    @overload
    async def call(
        self,
        method: str,
        params: Any = UNSET,
        *,
        timeout: float | None = None,
        original_id: Id = None,
        overtake: bool = False,
    ) -> Raw: ...
    @overload
    async def call(
        self,
        method: str,
        params: Any = UNSET,
        *,
        result: type[T],
        timeout: float | None = None,
        original_id: Id = None,
        overtake: bool = False,
    ) -> T: ...
    @overload
    async def call(
        self,
        method: str,
        params: Any = UNSET,
        *,
        result: Any,
        timeout: float | None = None,
        original_id: Id = None,
        overtake: bool = False,
    ) -> Any: ...
    async def call(
        self,
        method: str,
        params: Any = UNSET,
        *,
        result: Any = UNSET,
        timeout: float | None = None,
        original_id: Id = None,
        overtake: bool = False,
    ) -> Any:
        """Send a request and return its result: raw, or as the type `result`.

        With `overtake`, its response is handled before earlier messages that wait for the handler
        of a notification. That handler needs it for its own calls.

        Raises RpcError, ConnectionLost, TimeoutError, or InvalidResult.
        """
        # First: a type that msgspec cannot read must not be found out after the call.
        decoder = None if result is UNSET else msgspec.json.Decoder(result)
        async with asyncio.timeout(timeout):
            pending = self.send_request(method, params, original_id=original_id, flush=False)
            if overtake:
                self._overtaking_calls.add(pending.request_id)
                pending.add_callback(self._forget_overtaking)
                self._progress.set()
            try:
                await self._sender.flush()
            except asyncio.CancelledError:
                pending.cancel()
                raise
            raw = await pending
        if decoder is None:
            return raw
        try:
            return decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise InvalidResult(method, str(exc), raw) from None

    def _forget_overtaking(self, pending: PendingResult) -> None:
        self._overtaking_calls.discard(pending.request_id)

    def send_request(
        self, method: str, params: Any = UNSET, *, original_id: Id = None, flush: bool = True
    ) -> PendingResult:
        """Send a request without waiting, for callers that limit the calls in flight themselves.

        Without `flush` it is sent together with the next payload.
        """
        peer = self._peer
        if peer.input_ended:
            raise SharedConnectionLost(self._end_text())
        pending = PendingResult(self._cancel_call)
        pending.request_id = peer.call(method, params, original_id, pending)
        if flush:
            self._sender.try_flush(len(peer.pending_calls) - 1)
        return pending

    def _cancel_call(self, pending: PendingResult) -> None:
        """Cancel a call, and notify the other side if the protocol has a message for that."""
        id: int = pending.request_id
        if self._peer.forget(id) and self._cancellation is not None:
            notification = self._cancellation(id)
            self._peer.notify(notification.method, notification.params)
            self._sender.try_flush()
        pending.set_exception(asyncio.CancelledError())

    def _end_text(self) -> str:
        reason = read_end_reason(self._transport)
        return _CONNECTION_ENDED if reason is None else f"{_CONNECTION_ENDED} ({reason})"

    def _complete_call(
        self, event: Returned | Failed | Lost, reason: str = _CONNECTION_ENDED
    ) -> None:
        pending: PendingResult | None = event.token
        if pending is None:
            return
        if isinstance(event, Returned):
            pending.set_result(event.result)
        elif isinstance(event, Failed):
            pending.set_exception(event.error)
        else:
            pending.set_exception(SharedConnectionLost(reason))

    async def notify(self, method: str, params: Any = UNSET) -> None:
        """Send a notification; raises ConnectionLost."""
        if self._peer.closed:
            raise ConnectionLost(_CONNECTION_ENDED)
        self._peer.notify(method, params)
        await self._sender.flush()

    # Requests of the other side

    def cancel_request(self, request_id: object, error: RpcError | None = None) -> bool:
        """Cancel the request with the id `request_id`; return whether there was one.

        It is answered with `error`, or not at all: protocols differ in what they expect.
        """
        if isinstance(request_id, bool | float):
            return False  # not ids, although Python treats True and 1.0 as equal to 1
        for called, pending in self._in_flight.items():
            if called.request.id == request_id and self._peer.is_pending(called):
                if error is None:
                    self._peer.drop_request(called)
                else:
                    self._peer.respond_error(called, error)
                # Sends the error, or the rest of the batch that waited for this request.
                self._spawn(self._sender.flush())
                self._cancel_soon([pending])
                return True
        return False

    def _start_request(self, called: Called) -> None:
        if self._closing:
            self._peer.respond_error(called, RpcError(OVERLOADED, "The connection is closing"))
            return
        try:
            outcome = self._handler.called(called.request)
        except _HANDLER_ERRORS as error:
            self._send_error(called, error)
            return
        outcome = as_pending(outcome)
        if isinstance(outcome, PendingResult):
            self._in_flight[called] = outcome
            outcome.add_callback(partial(self._finish_request, called))
        else:
            self._send_result(called, outcome)

    def _finish_request(self, called: Called, outcome: PendingResult) -> None:
        del self._in_flight[called]
        self._progress.set()
        error = outcome.error
        if error is None:
            self._send_result(called, outcome.result)
        elif isinstance(error, asyncio.CancelledError) and self._closing:
            self._send_error(
                called, RpcError.internal_error("the connection closed before the call was done")
            )
        else:
            self._send_error(called, error)
        self._sender.try_flush()

    def _send_result(self, called: Called, result: Any) -> None:
        if not self._peer.is_pending(called):
            return
        try:
            self._peer.respond(called, result)
        except Exception as bug:  # a result that cannot be written as JSON
            self._send_error(called, bug)

    def _send_error(self, called: Called, error: BaseException) -> None:
        if not self._peer.is_pending(called):
            return
        rpc_error = to_rpc_error(error, called.request.method, self._report)
        try:
            self._peer.respond_error(called, rpc_error)
        except Exception as bug:  # an RpcError whose data cannot be written as JSON
            rpc_error = to_rpc_error(bug, called.request.method, self._report)
            self._peer.respond_error(called, rpc_error)

    # The end

    async def aclose(self) -> None:
        """Reject new requests, let those in progress finish within `close_timeout`, then close.

        Cancelling it closes at once.
        """
        self._closing = True
        current = cast("asyncio.Task[None]", asyncio.current_task())
        self._stop_awaiting({current})
        try:
            if not self._ending:
                await self._drain_requests()
        except asyncio.CancelledError:
            self._close_timeout = 0.0
            raise
        finally:
            await self._end()
            self._not_awaited.discard(current)

    async def wait_ended(self) -> None:
        """Wait until the connection has ended, on either side."""
        await self._ended.wait()

    async def _end(self) -> None:
        if self._ending:
            await self._ended.wait()
            return
        self._ending = self._closing = True
        try:
            self._fail_lost_calls(self._peer.end_input(), self._end_text())
            await self._drain_requests()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._close_timeout):
                    await self._sender.drain()
        finally:
            await self._release()

    async def _release(self) -> None:
        """Stop everything at once; always wake the tasks that wait for the end."""
        if self._read_ahead_timer is not None:
            self._read_ahead_timer.cancel()
        self._drop_waiting_events()
        self._peer.close()
        self._sender.close()
        for task in self._background:
            task.cancel()
        self._cancel_soon(self._unfinished_work())
        try:
            await self._transport.aclose()
            if self._background:
                await asyncio.wait(self._background)
        finally:
            self._ended.set()

    async def _drain_requests(self) -> None:
        await self._wait_until_idle(self._close_timeout)
        self._cancel_soon(self._unfinished_work())
        await self._wait_until_idle(max(self._close_timeout, CANCEL_TIMEOUT))
        self._stop_awaiting(self._unfinished_work())  # these ignore their cancellation

    async def _wait_until_idle(self, timeout: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._unfinished_work():
                    self._progress.clear()
                    await self._progress.wait()

    def _unfinished_work(self) -> set[asyncio.Future[None] | PendingResult]:
        """Return the work of the handler that closing must wait for."""
        found: set[asyncio.Future[None] | PendingResult] = {
            task for task in self._notification_tasks if not task.done()
        }
        found.update(
            pending for pending in self._in_flight.values() if pending.task not in self._not_awaited
        )
        return found - self._not_awaited

    def _stop_awaiting(self, tasks: set[asyncio.Future[None] | PendingResult]) -> None:
        # Close without waiting for `tasks`, such as a handler that itself waits for the end.
        self._not_awaited |= tasks
        self._progress.set()

    def _cancel_soon(self, tasks: Iterable[asyncio.Future[None] | PendingResult]) -> None:
        # Cancel tasks after their first step: a task that never starts runs no clean-up.
        for task in tasks:
            asyncio.get_running_loop().call_soon(task.cancel)

    def _abort(self, reason: str) -> None:
        # Treat the connection as lost; closing the transport then ends `run`.
        if not self._peer.closed:
            self._fail_lost_calls(self._peer.close(), reason)
            self._spawn(self._transport.aclose())

    def _fail_lost_calls(self, lost: list[Lost], reason: str) -> None:
        for event in lost:
            self._complete_call(event, reason)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class PayloadSender:
    """Sends the payloads of a peer, one at a time, from the task that flushes first.

    There is no writer task: a flush sends everything queued by then, so a response usually leaves
    from the task that made it, without a task switch. Payloads that are queued during a flush, or
    left by a cancelled one, get a task: no caller has to send for others before its own response.
    """

    def __init__(
        self,
        peer: Peer,
        transport: Transport,
        limits: SendLimits,
        abort: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._peer = peer
        self._transport = transport
        self._timeout = limits.timeout
        self._max_backlog = limits.max_backlog
        self._abort = abort
        self._spawn = spawn
        self._has_room = asyncio.Event()
        self._sending = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._send_started = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue = peer.send_queue
        self._try_send: Callable[[bytes, int], bool] = getattr(transport, "try_send", _never_ready)

    def try_flush(self, in_flight: int = 1) -> None:
        """Send what the transport takes without waiting; a task sends the rest.

        `in_flight` is the number of other calls in flight. The more there are, the sooner another
        payload may follow.
        """
        if self._sending:
            return
        queue = self._queue
        while queue:
            payload = queue.popleft()
            if not self._try_send(payload, in_flight):
                self._peer.requeue(payload)
                self._spawn(self.flush())
                return

    async def flush(self) -> None:
        """Send all queued payloads, or leave them to the flush in progress.

        Waits while the queue is too long.
        """
        if self._sending:
            if len(self._queue) >= self._max_backlog:
                self._has_room.clear()
                await self._has_room.wait()
            return
        remaining = len(self._queue)
        if not remaining:
            return
        self._sending = True
        self._idle.clear()
        try:
            while remaining and (payload := self._peer.next_payload()) is not None:
                remaining -= 1
                self._start_timeout()
                await self._transport.send(payload)
                if len(self._queue) < self._max_backlog:
                    self._has_room.set()
        except (ConnectionLost, OSError) as exc:
            self._abort(str(exc))
        finally:
            self._sending = False
            self._idle.set()
            if self._queue:
                self._spawn(self.flush())
            else:
                self._has_room.set()

    async def drain(self) -> None:
        """Wait until nothing is left to send."""
        while self._queue or self._sending:
            await self.flush()
            await self._idle.wait()

    def close(self) -> None:
        """Stop the timer and wake the tasks that wait for room: nothing more will be sent."""
        if self._timer is not None:
            self._timer.cancel()
        self._has_room.set()

    def _start_timeout(self) -> None:
        # One timer for all payloads: most are sent at once, and a timer each would cost more.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        self._send_started = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._check_timeout)

    def _check_timeout(self) -> None:
        self._timer = None
        if not self._sending:
            return
        loop = asyncio.get_running_loop()
        left = self._send_started + self._timeout - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._check_timeout)
        else:
            self._abort(f"the other side has not read for {self._timeout:g} s")


def _never_ready(_payload: bytes, _in_flight: int) -> bool:
    return False
