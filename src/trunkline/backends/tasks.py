"""Tasks: calls that a server carries out as tasks only, followed until there is a result.

    handshake era   tools/call ──> task ──> tasks/result, which waits ──────────────────────> result
                                              └─ what the server asks meanwhile ──> the client
    envelope era    tools/call ──> task ──> tasks/get ──> wait ──> tasks/get … ─────────────> result
                                              └─ inputRequests ──> answer ──> tasks/update

In the handshake era `tasks/result` is asked at once, and not `tasks/get` until there is something
to fetch: it is the only way on which servers built with the Python and TypeScript SDKs ask their
questions, it answers the moment the task ends, and one message does for many. `tasks/get` says what
became of a task where that is unclear: when a server does not wait, has nothing to give, or was cut
off in between.

Refuses to make a call twice, and to keep a task that nobody waits for.

Rules upheld here:
1. The tool is called once, and its task is followed to its end or cancelled; if nobody waits any
   more before its name is known, it is cancelled as soon as it is.
2. Whoever waits for a task is not kept by its cancellation.
3. A server that ends is noticed at once, however seldom it wants to be asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from trunkline.gateway.client import Client
from trunkline.jsonrpc import INVALID_PARAMS, ConnectionLost, Due, Raw, Request, RpcError
from trunkline.mcp.questions import Question
from trunkline.mcp.rounds import MAX_ROUNDS
from trunkline.mcp.tasks import (
    Task,
    has_content,
    lost,
    outcome,
    plain_result,
    read_created,
    read_state,
    related_task,
)
from trunkline.mcp.versions import Era
from trunkline.transports.http_refused import HttpRefused

MAX_LOSSES = 3
"""How often in a row a look at a task may get lost on its way; the task does not end by that."""

PATIENCE = 10.0
"""How long, in seconds, a server may take to create a task that nobody waits for any more, and then
to cancel it."""

MAX_CANCELLING = 256
"""How many tasks of one server may be being cancelled; further ones are left to themselves."""

GRACE = 0.5
"""How long, in seconds, the end waits until tasks are cancelled."""

Ask: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Raw]]
"""Asks a server about a task; what it says meanwhile goes to the client of the call."""

Answer: TypeAlias = Callable[[Mapping[str, Question]], Awaitable[Mapping[str, Raw]]]
"""Has the client of a call answer what its task wants to know."""


async def nobody_answers(questions: Mapping[str, Question]) -> Mapping[str, Raw]:
    """Refuse: the seam for whoever will ask clients on behalf of servers of the other form."""
    methods = ", ".join(sorted({question.method for question in questions.values()}))
    text = f"the server's task wants to know more, which cannot be asked: {methods}"
    raise RpcError.internal_error(text)


class Tasks:
    """All tasks under way at one server."""

    def __init__(self, era: Era, wait_ended: Callable[[], Awaitable[None]]) -> None:
        """Begin with none; `wait_ended` waits until the server cannot be asked any more."""
        self._era = era
        self._wait_ended = wait_ended
        self._clients: dict[str, Client] = {}
        self._cancelling: set[asyncio.Task[None]] = set()

    def whose(self, request: Request) -> Client | None:
        """Return whom a question is for that says of which task it is."""
        id = related_task(request.params)
        return None if id is None else self._clients.get(id)

    async def follow(
        self, creating: Due, ask: Ask, client: Client, answer: Answer = nobody_answers
    ) -> Raw:
        """Return what comes of a call that may be answered with a task; raises as calls do."""
        try:
            await creating.wait()
        except asyncio.CancelledError:
            if not self._cancel(self._cancel_created(creating, ask)):
                creating.cancel()
            raise
        task = read_created(await creating, self._era)
        if task is None:
            return creating.result
        pursuit = _Pursuit(ask, answer, self._wait_ended)
        self._clients[task.id] = client
        try:
            if self._era is Era.HANDSHAKE:
                return await pursuit.wait(task)
            return await pursuit.poll(task)
        finally:
            self._clients.pop(task.id, None)
            if not pursuit.over:
                self._cancel(_cancel_task(task, ask))

    def _cancel(self, cancelling: Coroutine[Any, Any, None]) -> bool:
        """Cancel a task, while nobody waits for that; tell whether it is being done."""
        if len(self._cancelling) >= MAX_CANCELLING:
            cancelling.close()
            return False
        task = asyncio.create_task(cancelling)
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)
        return True

    async def _cancel_created(self, creating: Due, ask: Ask) -> None:
        """Cancel a task that is still to be created, or the call if that takes too long."""
        with suppress(RpcError, ConnectionLost, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                created = await creating
            task = read_created(created, self._era)
            if task is not None and not task.over:
                await _cancel_task(task, ask)

    async def aclose(self) -> None:
        """Leave no task behind, as far as that can be done in a moment."""
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=GRACE)
        for cancelling in self._cancelling:
            cancelling.cancel()
        await asyncio.gather(*self._cancelling, return_exceptions=True)


async def _cancel_task(task: Task, ask: Ask) -> None:
    with suppress(RpcError, ConnectionLost, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await ask("tasks/cancel", {"taskId": task.id})


class _Pursuit:
    """One task, followed to its end."""

    def __init__(self, ask: Ask, answer: Answer, wait_ended: Callable[[], Awaitable[None]]) -> None:
        self.over = False
        """Whether the server has ended it: then there is nothing to cancel."""
        self._ask = ask
        self._answer = answer
        self._wait_ended = wait_ended
        self._losses = 0

    # The handshake era

    async def wait(self, task: Task) -> Raw:
        """Return the result for which a server has us wait."""
        while True:
            result: Raw | None = None
            failure: RpcError | ConnectionLost | None = None
            try:
                result = plain_result(await self._ask("tasks/result", {"taskId": task.id}))
                if has_content(result):
                    self.over = True
                    return result
            except (RpcError, ConnectionLost) as why:
                failure = why
            task = await self._look(task, failure)
            self.over = task.over
            if self.over and not isinstance(failure, ConnectionLost):
                if failure is not None and task.status != "cancelled":
                    raise failure  # the tool's own
                return outcome(task._replace(result=result))
            await self._rest(task)

    async def _look(self, task: Task, failure: RpcError | ConnectionLost | None) -> Task:
        """Return how a task is that has given no result; raises why, if nobody can say."""
        try:
            found = await self._ask_of("tasks/get", task)
        except RpcError:
            if isinstance(failure, RpcError) and failure.code != INVALID_PARAMS:
                self.over = True  # the tool's own, of a server that says nothing beside
                raise failure from None
            raise
        return read_state(task, found, Era.HANDSHAKE)

    # The envelope era

    async def poll(self, task: Task) -> Raw:
        """Return the result of a task that is looked at as often as its server wants."""
        answered: set[str] = set()
        rounds = 0
        resting = task.status == "working"
        while True:
            if resting:
                await self._rest(task)
            resting = True
            state = await self._look_again(task)
            if state is None:
                continue
            task = state
            if task.over:
                self.over = True
                return outcome(task)
            questions = {k: asked for k, asked in task.questions.items() if k not in answered}
            if questions:
                rounds += 1
                if rounds > MAX_ROUNDS:
                    text = f"the server's task asked more than {MAX_ROUNDS} times"
                    raise RpcError.internal_error(text)
                answers = await self._answer(questions)
                answered |= answers.keys()
                await self._ask_of("tasks/update", task, inputResponses=dict(answers))

    async def _look_again(self, task: Task) -> Task | None:
        """Return how a task is now, None if what we asked got lost."""
        try:
            found = await self._ask_of("tasks/get", task)
        except ConnectionLost as why:
            self._losses += 1
            final = isinstance(why, HttpRefused) and not why.passes
            if final or self._losses > MAX_LOSSES:
                raise
            return None
        self._losses = 0
        return read_state(task, found, Era.ENVELOPE)

    # Both

    async def _ask_of(self, method: str, task: Task, **members: Any) -> Raw:
        """Ask about a task that the server has to know."""
        try:
            return await self._ask(method, {"taskId": task.id, **members})
        except RpcError as why:
            if why.code != INVALID_PARAMS:
                raise
            self.over = True
            raise lost(why) from None

    async def _rest(self, task: Task) -> None:
        """Leave a task alone for as long as its server wants; raises ConnectionLost if it ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(task.interval):
                await self._wait_ended()
                raise ConnectionLost("the server ended before its task did")
