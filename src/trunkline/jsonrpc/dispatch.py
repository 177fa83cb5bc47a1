"""Dispatcher: a table of methods for library users; payload in, payload out.

    dispatcher = Dispatcher()

    @dispatcher.method("sum")
    def add(a: int, b: int) -> int: ...

    await dispatcher.handle(b'{"jsonrpc":"2.0","id":1,"method":"sum","params":[1,2]}')

A Dispatcher is a Handler too: give it to a Connection, and calls run side by side.

Refuses to know of connections, sessions or time; `handle` takes the entries of a batch in turn.

Rules upheld here:
1. A request is answered; a notification never is, and neither is an answer.
2. A function runs only for what it was registered for: requests, notifications, or both.
3. What a handler raises reaches the caller as the RpcError it is, or as an incident id: no
   traceback, no message, no params. A cancellation is no different, unless it is that of whoever
   awaits `handle`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from trunkline.jsonrpc.codec import MAX_BATCH, MAX_PAYLOAD, decode
from trunkline.jsonrpc.errors import LocalProtocolError, RemoteProtocolError, RpcError
from trunkline.jsonrpc.incident import Report, answer_for, print_incident
from trunkline.jsonrpc.message import (
    Batch,
    ErrorResponse,
    Message,
    Notification,
    Request,
    Response,
    join,
)
from trunkline.jsonrpc.params import Invoke, invoker
from trunkline.jsonrpc.peer import BatchPolicy

Function = TypeVar("Function", bound=Callable[..., Any])

_RAISED = (Exception, asyncio.CancelledError)
"""What a handler may let slip: also the cancellation of something that it awaits."""


class Dispatcher:
    """Methods by name, and the way from a payload to one of them and back."""

    def __init__(
        self,
        batch: BatchPolicy = "reject",
        *,
        max_payload: int = MAX_PAYLOAD,
        max_batch: int = MAX_BATCH,
        report: Report = print_incident,
    ) -> None:
        """Begin with no methods; `report` learns of every exception that a handler let slip."""
        self._max_payload = max_payload
        self._max_batch = max_batch if batch == "allow" else 0
        self._report = report
        self._methods: dict[str, Invoke] = {}
        self._notifications: dict[str, Invoke] = {}

    def method(self, name: str) -> Callable[[Function], Function]:
        """Register the decorated function, sync or async, for requests."""
        return _registration(self._methods, name)

    def notification(self, name: str) -> Callable[[Function], Function]:
        """Register the decorated function, sync or async, for notifications."""
        return _registration(self._notifications, name)

    @property
    def methods(self) -> tuple[str, ...]:
        """Name what can be called, in the order of registration."""
        return tuple(self._methods)

    async def handle(self, payload: bytes | str) -> bytes | None:
        """Return the answer to `payload`, or None where none is due."""
        try:
            message = decode(payload, self._max_payload, self._max_batch)
        except RemoteProtocolError as violation:
            return violation.answer
        if isinstance(message, Batch):
            return await self._handle_batch(message)
        answer = self._answer(message)
        return answer if answer is None or isinstance(answer, bytes) else await answer

    async def _handle_batch(self, batch: Batch) -> bytes | None:
        answers: list[bytes] = []
        for entry in batch.entries:
            answer = self._answer(entry)
            if answer is not None and not isinstance(answer, bytes):
                answer = await answer
            if answer is not None:
                answers.append(answer)
        return join(answers) if answers else None

    def _answer(
        self, entry: Message | RemoteProtocolError
    ) -> bytes | Awaitable[bytes | None] | None:
        """Answer at once if the method does: most need no coroutine of ours, and get none."""
        if isinstance(entry, Request):
            try:
                outcome = self.called(entry)
                if hasattr(outcome, "__await__"):
                    return self._answer_later(entry, outcome)
                return Response(entry.id, outcome).encode()
            except _RAISED as error:
                return self._failure(entry, error)
        if isinstance(entry, Notification):
            return self.notified(entry)
        return entry.answer if isinstance(entry, RemoteProtocolError) else None

    async def _answer_later(self, request: Request, outcome: Awaitable[Any]) -> bytes:
        try:
            return Response(request.id, await outcome).encode()
        except _RAISED as error:
            if _is_ending(error):
                raise
            return self._failure(request, error)

    def called(self, request: Request) -> Any:
        """Call the method of `request`; return its result, or what to await for it."""
        invoke = self._methods.get(request.method)
        if invoke is None:
            raise RpcError.method_not_found(request.method)
        return invoke(request.params)

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Run what is registered for `notification`; its failures are reported, never answered."""
        invoke = self._notifications.get(notification.method)
        if invoke is None:
            return None
        try:
            outcome = invoke(notification.params)
        except _RAISED as error:
            answer_for(error, notification.method, self._report)
            return None
        return self._finish(notification, outcome) if hasattr(outcome, "__await__") else None

    async def _finish(self, notification: Notification, outcome: Awaitable[Any]) -> None:
        try:
            await outcome
        except _RAISED as error:
            if _is_ending(error):
                raise
            answer_for(error, notification.method, self._report)

    def violated(self, violation: RemoteProtocolError) -> None:
        """Do nothing: the other side has been told."""

    def _failure(self, request: Request, error: BaseException) -> bytes:
        answer = answer_for(error, request.method, self._report)
        try:
            return ErrorResponse(request.id, answer).encode()
        except LocalProtocolError as bug:  # an RpcError whose data is not JSON
            return ErrorResponse(request.id, answer_for(bug, request.method, self._report)).encode()


def _is_ending(error: BaseException) -> bool:
    """Tell whether an error is this task's own cancellation, and not one that a handler met."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _registration(table: dict[str, Invoke], name: str) -> Callable[[Function], Function]:
    if name in table:
        raise LocalProtocolError(f"expected a new name, got {name!r} again")
    if name.startswith("rpc."):
        raise LocalProtocolError(f"names that begin with 'rpc.' are reserved, got {name!r}")

    def register(function: Function) -> Function:
        table[name] = invoker(function)
        return function

    return register
