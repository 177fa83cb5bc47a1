"""Calls that a server runs only as tasks, from creation to result.

    session protocol   tools/call ──> task ──> tasks/result, which waits ─────────────────> result
                                       └─ the server's requests ──> the client
    stateless          tools/call ──> task ──> tasks/get ──> wait ──> tasks/get … ────────> result
                                       └─ inputRequests ──> answers ──> tasks/update

In the session protocol, `tasks/result` is sent at once, instead of polling `tasks/get`. Servers
built with the Python and TypeScript SDKs send their requests only during `tasks/result`. It answers
when the task ends, and one message replaces many. `tasks/get` follows where the state is unclear:
the server did not wait, returned nothing, or the connection was lost.

Invariants:
1. The tool is called once, and its task is followed to its end or cancelled. If the caller leaves
   before the task id is known, the task is cancelled as soon as it is.
2. A caller never waits for the cancellation of its task.
3. The end of the server is noticed at once, however long its polling interval is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from trunkline.backends.http_responses import UpstreamStatusError
from trunkline.backends.limits import DEFAULT_LIMITS
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient
from trunkline.jsonrpc import INVALID_PARAMS, ConnectionLost, PendingResult, Raw, Request, RpcError
from trunkline.mcp.input_required import MAX_INPUT_ROUNDS
from trunkline.mcp.server_requests import ServerRequest
from trunkline.mcp.tasks import (
    PollIntervals,
    TaskState,
    has_content,
    lost_task_error,
    read_created_task,
    read_task_state,
    related_task_id,
    strip_related_task,
    task_result,
)
from trunkline.mcp.versions import Era

MAX_LOSSES = 3  # how many `tasks/get` in a row may fail before the task is given up


class CancelLimits(NamedTuple):
    """How much effort goes into cancelling abandoned tasks."""

    # How long, in seconds, a task may take to be created, and then to be cancelled
    timeout: float = 10.0
    # How many tasks of one server may be in cancellation; further ones are left running
    max_running: int = 256
    close_timeout: float = 0.5  # how long, in seconds, closing waits for the cancellations


DEFAULT_CANCEL_LIMITS = CancelLimits()

# Sends a request about a task; messages meanwhile go to the client of the call
SendAboutTask: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Raw]]
# Gets the answers of the call's client to the questions of its task
AnswerQuestions: TypeAlias = Callable[[Mapping[str, ServerRequest]], Awaitable[Mapping[str, Raw]]]


async def refuse_questions(questions: Mapping[str, ServerRequest]) -> Mapping[str, Raw]:
    """Refuse all questions: used where a task cannot reach its client."""
    methods = ", ".join(sorted({question.method for question in questions.values()}))
    text = f"the server's task needs input that the client cannot give: {methods}"
    raise RpcError.internal_error(text)


class TaskTracker:
    """All tasks in progress at one server."""

    def __init__(
        self,
        era: Era,
        wait_ended: Callable[[], Awaitable[object]],
        limits: CancelLimits = DEFAULT_CANCEL_LIMITS,
        intervals: PollIntervals = DEFAULT_LIMITS.poll_intervals,
    ) -> None:
        """Start empty; `wait_ended` waits until the server cannot be reached any more."""
        self._era = era
        self._wait_ended = wait_ended
        self._limits = limits
        self._intervals = intervals
        self._clients: dict[str, DownstreamClient] = {}
        self._cancelling: set[asyncio.Task[None]] = set()

    def client_of(self, request: Request) -> DownstreamClient | None:
        """Return the client of the task that a request names, or None."""
        id = related_task_id(request.params)
        return None if id is None else self._clients.get(id)

    async def run(
        self,
        creating: PendingResult,
        send: SendAboutTask,
        context: CallContext,
        answer_questions: AnswerQuestions = refuse_questions,
    ) -> Raw:
        """Return the result of a call that may be answered with a task; raises as calls do.

        Each time the server says that it works on the task, the timeout of the call restarts.
        """
        try:
            await creating.wait()
        except asyncio.CancelledError:
            # The task has no id yet: wait for the id in the background, then cancel the task.
            if not self._cancel(self._cancel_created(creating, send)):
                creating.cancel()
            raise
        task = read_created_task(await creating, self._era, self._intervals)
        if task is None:
            return creating.result
        on_working = context.restart_timeout
        poller = _TaskPoller(send, answer_questions, self._wait_ended, self._intervals, on_working)
        self._clients[task.id] = context.client
        try:
            if self._era is Era.SESSION:
                return await poller.wait_result(task)
            return await poller.poll(task)
        finally:
            self._clients.pop(task.id, None)
            if not poller.finished:
                self._cancel(self._cancel_task(task, send))

    def _cancel(self, cancelling: Coroutine[Any, Any, None]) -> bool:
        if len(self._cancelling) >= self._limits.max_running:
            cancelling.close()
            return False
        task = asyncio.create_task(cancelling)
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)
        return True

    async def _cancel_created(self, creating: PendingResult, send: SendAboutTask) -> None:
        """Cancel a task once it is created, or the call if that takes too long."""
        with suppress(RpcError, ConnectionLost, TimeoutError):
            async with asyncio.timeout(self._limits.timeout):
                created = await creating
            task = read_created_task(created, self._era, self._intervals)
            if task is not None and not task.is_finished:
                await self._cancel_task(task, send)

    async def _cancel_task(self, task: TaskState, send: SendAboutTask) -> None:
        with suppress(RpcError, ConnectionLost, TimeoutError):
            async with asyncio.timeout(self._limits.timeout):
                await send("tasks/cancel", {"taskId": task.id})

    async def aclose(self) -> None:
        """Wait briefly for the cancellations, then stop them."""
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=self._limits.close_timeout)
        for cancelling in self._cancelling:
            cancelling.cancel()
        await asyncio.gather(*self._cancelling, return_exceptions=True)


class _TaskPoller:
    def __init__(
        self,
        send: SendAboutTask,
        answer_questions: AnswerQuestions,
        wait_ended: Callable[[], Awaitable[object]],
        intervals: PollIntervals,
        on_working: Callable[[], None],
    ) -> None:
        # Whether the server has ended the task: then there is nothing to cancel
        self.finished = False
        self._send = send
        self._answer_questions = answer_questions
        self._wait_ended = wait_ended
        self._intervals = intervals
        self._on_working = on_working
        self._losses = 0

    # Session protocol

    async def wait_result(self, task: TaskState) -> Raw:
        """Return the result in the session protocol, where the server makes us wait for it."""
        while True:
            result: Raw | None = None
            failure: RpcError | ConnectionLost | None = None
            try:
                result = strip_related_task(await self._send("tasks/result", {"taskId": task.id}))
                if has_content(result):
                    self.finished = True
                    return result
            except (RpcError, ConnectionLost) as error:
                failure = error
            task = await self._get_state(task, failure)
            self.finished = task.is_finished
            if self.finished and not isinstance(failure, ConnectionLost):
                if failure is not None and task.status != "cancelled":
                    raise failure  # the tool's own error
                return task_result(task._replace(result=result))
            self._on_working()
            await self._wait_interval(task)

    async def _get_state(
        self, task: TaskState, failure: RpcError | ConnectionLost | None
    ) -> TaskState:
        """Return the state of a task without a result; raises the failure if it is unknown."""
        try:
            found = await self._send_about("tasks/get", task)
        except RpcError:
            if isinstance(failure, RpcError) and failure.code != INVALID_PARAMS:
                self.finished = True  # the tool's own error, from a server without tasks/get
                raise failure from None
            raise
        return read_task_state(task, found, Era.SESSION, self._intervals)

    # Stateless protocol

    async def poll(self, task: TaskState) -> Raw:
        """Return the result in the stateless protocol, by polling at the server's interval."""
        answered: set[str] = set()
        rounds = 0
        wait_first = task.status == "working"
        while True:
            if wait_first:
                await self._wait_interval(task)
            wait_first = True
            state = await self._poll_state(task)
            if state is None:
                continue
            task = state
            if task.is_finished:
                self.finished = True
                return task_result(task)
            self._on_working()
            questions = {
                k: question for k, question in task.input_requests.items() if k not in answered
            }
            if questions:
                rounds += 1
                if rounds > MAX_INPUT_ROUNDS:
                    text = f"the server's task asked more than {MAX_INPUT_ROUNDS} times"
                    raise RpcError.internal_error(text)
                answers = await self._answer_questions(questions)
                answered |= answers.keys()
                await self._send_about("tasks/update", task, inputResponses=dict(answers))

    async def _poll_state(self, task: TaskState) -> TaskState | None:
        try:
            found = await self._send_about("tasks/get", task)
        except ConnectionLost as error:
            self._losses += 1
            final = isinstance(error, UpstreamStatusError) and not error.is_temporary
            if final or self._losses > MAX_LOSSES:
                raise
            return None
        self._losses = 0
        return read_task_state(task, found, Era.STATELESS, self._intervals)

    # Both protocols

    async def _send_about(self, method: str, task: TaskState, **members: Any) -> Raw:
        """Send a request about a task; a server that does not know the task has lost it."""
        try:
            return await self._send(method, {"taskId": task.id, **members})
        except RpcError as error:
            if error.code != INVALID_PARAMS:
                raise
            self.finished = True
            raise lost_task_error(error) from None

    async def _wait_interval(self, task: TaskState) -> None:
        """Wait for the server's polling interval; raises ConnectionLost if the server ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(task.poll_interval):
                await self._wait_ended()
                raise ConnectionLost("the server ended before its task did")
