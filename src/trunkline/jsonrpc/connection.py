"""Connection: a Peer run over a Channel, with tasks, cancellation, timeouts and an orderly end.

    channel.receive ──> peer ──> Called   ──> handler.called, in a task of its own if it awaits
                             ──> Notified ──> handler.notified, in order
                             ──> Returned, Failed ──> whoever awaits that call
    call, notify, answers ──> peer ──> channel.send, one payload after the other

Refuses to decide: what is owed is the Peer's knowledge, what to answer is the Handler's.

Rules upheld here:
1. A slow call holds up nothing but its own answer.
2. Whoever awaits a call gets its answer, ConnectionLost, or the cancellation or timeout asked for,
   and is not kept from it by what others have to send.
3. What waits to be sent is bounded: past the limit nothing more is read, and callers wait.
4. A side that stops reading for `send_timeout` seconds is given up.
5. After `aclose` its channel is closed, and no task of this connection runs but one that asked for
   the end itself, or one whose handler ignores its cancellation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self, cast

from trunkline.jsonrpc.channel import Channel
from trunkline.jsonrpc.due import Due, due
from trunkline.jsonrpc.errors import (
    OVERLOADED,
    ConnectionLost,
    LineEnded,
    RemoteProtocolError,
    RpcError,
)
from trunkline.jsonrpc.incident import Report, answer_for, print_incident
from trunkline.jsonrpc.message import Id, Notification, Request
from trunkline.jsonrpc.peer import Called, Event, Failed, Lost, Notified, Peer, Returned, Violated
from trunkline.jsonrpc.raw import UNSET, Raw
from trunkline.jsonrpc.sender import Sender

SEND_TIMEOUT = 30.0
GRACE = 5.0

OBEDIENCE = 0.1
"""How long, in seconds, a call that was cancelled has at least to end."""

_ENDED = "the connection has ended"

_RAISED = (Exception, asyncio.CancelledError)
"""What a handler may raise at once: a cancellation that is not ours, since nothing was awaited."""


class Handler(Protocol):
    """Answers what the other side asks."""

    def called(self, request: Request) -> Any:
        """Return the result of `request`, or an awaitable of it; raise RpcError to refuse."""
        ...

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Take note; nothing further is read until a returned awaitable is done."""
        ...

    def violated(self, violation: RemoteProtocolError) -> None:
        """Learn that the other side broke the rules; it has been told where that is allowed."""
        ...


class Deaf:
    """A Handler for those who only ask: it knows no method, and ignores the rest."""

    def called(self, request: Request) -> Any:
        """Refuse."""
        raise RpcError.method_not_found(request.method)

    def notified(self, notification: Notification) -> None:
        """Ignore."""

    def violated(self, violation: RemoteProtocolError) -> None:
        """Ignore."""


class Connection:
    """Runs a Peer over a Channel: `await run()`, or `async with` to run it in the background."""

    def __init__(
        self,
        channel: Channel,
        handler: Handler | None = None,
        peer: Peer | None = None,
        *,
        send_timeout: float = SEND_TIMEOUT,
        grace: float = GRACE,
        withdrawal: Callable[[int], Notification] | None = None,
        report: Report = print_incident,
    ) -> None:
        """Join the parts; nothing happens before `run`.

        `grace` is how long calls in progress may go on when the connection ends. `withdrawal` makes
        the notification that tells the other side of a call that nobody waits for any more.
        """
        self._channel = channel
        self._handler = handler or Deaf()
        self._peer = peer or Peer()
        self._grace = grace
        self._withdrawal = withdrawal
        self._report = report
        self._sender = Sender(self._peer, channel, send_timeout, self._give_up, self._spawn)
        self._serving: dict[Called, Due] = {}
        self._telling: list[asyncio.Task[None]] = []
        self._excused: set[asyncio.Future[None] | Due] = set()
        self._progress = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._reading = False
        """Whether all that came has been dealt with, and the next payload is waited for."""
        self._closing = False
        self._ending = False
        self._over = asyncio.Event()
        self._runner: asyncio.Task[None]

    @property
    def peer(self) -> Peer:
        """The book of who owes whom an answer."""
        return self._peer

    # Running

    async def run(self) -> None:
        """Read until the other side ends or the connection is closed; then end in order."""
        deliver: Callable[[Callable[[bytes], bool]], None] | None
        if (deliver := getattr(self._channel, "deliver", None)) is not None:
            deliver(self._take)
        try:
            while True:
                try:
                    self._reading = True
                    payload = await self._channel.receive()
                except RemoteProtocolError as violation:
                    events = self._peer.accuse(violation)
                except (ConnectionLost, OSError):
                    break
                else:
                    if payload is None:
                        break
                    events = self._peer.receive(payload)
                finally:
                    self._reading = False
                for event in events:
                    if (noted := self._on(event)) is not None:
                        await self._finish_telling(noted)
                if self._peer.queue:
                    await self._sender.flush()
        finally:
            await self._end()

    def _take(self, payload: bytes) -> bool:
        """Deal with a payload where it arrives, if nobody is kept waiting by that.

        To wake whoever reads would cost a call that comes alone more than all else that is done to
        it here. What may have to be waited for is read in its turn.
        """
        peer = self._peer
        if not self._reading or peer.queue:
            return False
        answered = peer.take_result(payload)
        if answered is None:
            return self._take_other(payload)
        asked, result = answered
        if asked is not None:  # else the peer was used by others as well
            asked.settle(result)
        return True

    def _take_other(self, payload: bytes) -> bool:
        events = self._peer.take(payload)
        if events is None:
            return False
        for event in events:
            self._on(event)
        if self._peer.queue:
            self._sender.push()
        return True

    async def __aenter__(self) -> Self:
        self._runner = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.aclose()
        finally:
            await self._runner

    async def aclose(self) -> None:
        """Refuse new requests, let those in progress finish within the grace, then close.

        Whoever cancels it has no patience: then it closes at once.
        """
        self._closing = True
        current = cast("asyncio.Task[None]", asyncio.current_task())
        self._excuse({current})
        try:
            if not self._ending:
                await self._finish_serving()
        except asyncio.CancelledError:
            self._grace = 0.0
            raise
        finally:
            await self._end()
            self._excused.discard(current)

    async def wait_ended(self) -> None:
        """Wait until the connection has ended, whoever ended it."""
        await self._over.wait()

    async def _end(self) -> None:
        if self._ending:
            await self._over.wait()
            return
        self._ending = self._closing = True
        try:
            self._lose(self._peer.end_input(), _ENDED)
            await self._finish_serving()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace):
                    await self._sender.finish()
        finally:
            await self._release()

    async def _release(self) -> None:
        """Let go of everything at once; others who wait for the end are woken in any case."""
        self._peer.close()
        self._sender.close()
        for task in self._background:
            task.cancel()
        self._stop(self._in_progress())
        try:
            await self._channel.aclose()
            if self._background:
                await asyncio.wait(self._background)
        finally:
            self._over.set()

    async def _finish_serving(self) -> None:
        """Wait for calls in progress, but no longer than the grace; then cancel them."""
        await self._wait_for_progress(self._grace)
        self._stop(self._in_progress())
        await self._wait_for_progress(max(self._grace, OBEDIENCE))
        self._excuse(self._in_progress())  # they ignore it; nobody else shall wait for them

    async def _wait_for_progress(self, patience: float) -> None:
        """Wait until nothing is in progress, but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._in_progress():
                    self._progress.clear()
                    await self._progress.wait()

    def _in_progress(self) -> set[asyncio.Future[None] | Due]:
        """Return the handler's tasks, without those for whom the end must not wait."""
        found: set[asyncio.Future[None] | Due] = {t for t in self._telling if not t.done()}
        found.update(due for due in self._serving.values() if due.task not in self._excused)
        return found - self._excused

    def _excuse(self, tasks: set[asyncio.Future[None] | Due]) -> None:
        """Let the end not wait for `tasks`: above all not for a handler that waits for the end."""
        self._excused |= tasks
        self._progress.set()

    def _stop(self, tasks: Iterable[asyncio.Future[None] | Due]) -> None:
        """Cancel tasks once they have begun: one that never begins would not clean up, either."""
        for task in tasks:
            asyncio.get_running_loop().call_soon(task.cancel)

    def _give_up(self, reason: str) -> None:
        """Treat the connection as lost; the end of the channel then ends `run`."""
        if not self._peer.closed:
            self._lose(self._peer.close(), reason)
            self._spawn(self._channel.aclose())

    def _lose(self, lost: list[Lost], reason: str) -> None:
        for event in lost:
            self._settle(event, reason)

    # Asking

    async def call(
        self,
        method: str,
        params: Any = UNSET,
        *,
        timeout: float | None = None,
        original_id: Id = None,
    ) -> Raw:
        """Ask; returns the result, or raises RpcError, ConnectionLost, TimeoutError."""
        async with asyncio.timeout(timeout):
            asked = self.ask(method, params, original_id=original_id, push=False)
            try:
                await self._sender.flush()
            except asyncio.CancelledError:
                asked.cancel()
                raise
            return await asked

    def ask(
        self, method: str, params: Any = UNSET, *, original_id: Id = None, push: bool = True
    ) -> Due:
        """Ask, and wait for nothing: for those who see to it themselves that it is not too much.

        Without `push` it leaves with what is sent next.
        """
        peer = self._peer
        if peer.input_ended:
            raise LineEnded(_ENDED)
        asked = Due(self._forget)
        asked.about = peer.call(method, params, original_id, asked)
        if push:
            self._sender.push(len(peer.calls) - 1)
        return asked

    def _forget(self, asked: Due) -> None:
        """Stop waiting for a call; tell the other side, if it wants to know."""
        id: int = asked.about
        if self._peer.forget(id) and self._withdrawal is not None:
            notification = self._withdrawal(id)
            self._peer.notify(notification.method, notification.params)
            self._sender.push()
        asked.fail(asyncio.CancelledError())

    def _settle(self, event: Returned | Failed | Lost, reason: str = _ENDED) -> None:
        """Give an answer to whoever waits for it."""
        asked: Due | None = event.token
        if asked is None:
            return
        if isinstance(event, Returned):
            asked.settle(event.result)
        elif isinstance(event, Failed):
            asked.fail(event.error)
        else:
            asked.fail(LineEnded(reason))

    async def notify(self, method: str, params: Any = UNSET) -> None:
        """Tell; raises ConnectionLost if that is no longer possible."""
        if self._peer.closed:
            raise ConnectionLost(_ENDED)
        self._peer.notify(method, params)
        await self._sender.flush()

    # Answering

    def cancel(self, request_id: object, error: RpcError | None = None) -> bool:
        """Stop the call that the other side knows as `request_id`; tell whether there was one.

        It is answered with `error`, or not at all: protocols differ in what they expect.
        """
        if isinstance(request_id, bool | float):
            return False  # no ids, although Python takes True and 1.0 for 1
        for called, task in self._serving.items():
            if called.request.id == request_id and self._peer.owes(called):
                if error is None:
                    self._peer.abandon(called)
                else:
                    self._peer.fail(called, error)
                self._spawn(self._sender.flush())  # if not that answer, the rest of its batch
                self._stop([task])
                return True
        return False

    def _on(self, event: Event) -> Coroutine[Any, Any, None] | None:
        if isinstance(event, Called):
            self._start(event)
        elif isinstance(event, Notified):
            return self._tell(event.notification)
        elif isinstance(event, Violated):
            self._tell(event.violation)
        else:
            self._settle(event)
        return None

    def _tell(self, news: Notification | RemoteProtocolError) -> Coroutine[Any, Any, None] | None:
        """Let the handler know; its failure to cope must not end the connection."""
        try:
            if isinstance(news, RemoteProtocolError):
                self._handler.violated(news)
            elif (noted := self._handler.notified(news)) is not None:
                return self._take_note(noted, news.method)
        except _RAISED as error:
            answer_for(error, getattr(news, "method", ""), self._report)
        return None

    async def _take_note(self, noted: Awaitable[None], method: str) -> None:
        try:
            await noted
        except Exception as error:
            answer_for(error, method, self._report)
        finally:
            self._progress.set()

    async def _finish_telling(self, noted: Coroutine[Any, Any, None]) -> None:
        """Wait for the handler to take note, unless the end does not wait for it either."""
        # A task of its own: it can be cancelled when the connection closes, and this one cannot.
        task = asyncio.create_task(noted)
        self._telling = [task]
        while not task.done() and task not in self._excused:
            self._progress.clear()
            await self._progress.wait()

    def _start(self, called: Called) -> None:
        if self._closing:
            self._peer.fail(called, RpcError(OVERLOADED, "The connection is closing"))
            return
        try:
            outcome = self._handler.called(called.request)
        except _RAISED as error:
            self._fail(called, error)
            return
        outcome = due(outcome)
        if isinstance(outcome, Due):
            self._serving[called] = outcome
            outcome.then(partial(self._served, called))
        else:
            self._answer(called, outcome)

    def _served(self, called: Called, outcome: Due) -> None:
        """Answer what has been worked on."""
        del self._serving[called]
        self._progress.set()
        why = outcome.error
        if why is None:
            self._answer(called, outcome.result)
        elif isinstance(why, asyncio.CancelledError) and self._closing:
            self._fail(
                called, RpcError.internal_error("the connection closed before the call was done")
            )
        else:
            self._fail(called, why)
        self._sender.push()

    def _answer(self, called: Called, result: Any) -> None:
        if not self._peer.owes(called):
            return
        try:
            self._peer.answer(called, result)
        except Exception as bug:  # a result that is not JSON, in whichever way that shows
            self._fail(called, bug)

    def _fail(self, called: Called, error: BaseException) -> None:
        if not self._peer.owes(called):
            return
        answer = answer_for(error, called.request.method, self._report)
        try:
            self._peer.fail(called, answer)
        except Exception as bug:  # an RpcError whose data is not JSON
            self._peer.fail(called, answer_for(bug, called.request.method, self._report))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
