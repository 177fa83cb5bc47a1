"""Following one task to its end, with any answers of its server."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backends.test_tasks import DONE, NO_INTERVALS, in_turn
from tests.contexts import call_of
from tests.tasks import hang_guard, settle
from trunkline.backends import tasks
from trunkline.backends.http_responses import UpstreamStatusError
from trunkline.backends.tasks import CancelLimits, TaskTracker, refuse_questions
from trunkline.gateway.call_context import CallContext
from trunkline.jsonrpc import ConnectionLost, PendingResult, Raw, RpcError, from_raw, to_raw
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.server_requests import LIST_ROOTS, ServerRequest
from trunkline.mcp.versions import V2025_11_25, Era


def polled(status: str, **more: Any) -> Any:
    return {"taskId": "t", "status": status, "ttlMs": None, "pollIntervalMs": 0, **more}


CALLER = Caller(Principal("local"), V2025_11_25, {}, Raw(b"{}"))


class Script:
    """A server as a TaskTracker sees it, with scripted answers."""

    def __init__(
        self,
        era: Era = Era.STATELESS,
        limits: CancelLimits | None = None,
        **answers: list[Any],
    ) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers = {
            f"tasks/{method}": in_turn(*answers_in_turn)
            for method, answers_in_turn in answers.items()
        }
        self.context = call_of(object(), Raw(b"{}"), caller=CALLER)
        self.context.timer = self
        self.restarts = 0
        self.ended = asyncio.Event()
        self.tasks = TaskTracker(era, self._wait_ended, limits or CancelLimits(), NO_INTERVALS)

    async def _wait_ended(self) -> None:
        await self.ended.wait()

    def restart(self, context: CallContext) -> None:
        assert context is self.context
        self.restarts += 1

    async def ask(self, method: str, params: Any) -> Raw:
        self.asked.append((method, from_raw(to_raw(params))))
        return to_raw(self.answers[method](params))

    async def run(self, answer: Any = refuse_questions) -> Any:
        creating = PendingResult()
        task = polled("working")
        creating.set_result(to_raw({"resultType": "task", **task, "task": task}))
        async with hang_guard():
            found = await self.tasks.run(creating, self.ask, self.context, answer)
        return from_raw(found)


ANSWERS: list[Any] = [
    {},
    polled("working"),
    polled("input_required"),
    polled("failed", error={"code": 7}),
    polled("cancelled"),
    {"status": "lost"},
    RpcError(-32602, "who?"),
    RpcError(-32603, "broken"),
    ConnectionLost("gone"),
]


def asking(*keys: str) -> Any:
    requests = {key: {"method": LIST_ROOTS} for key in keys}
    return polled("input_required", inputRequests=requests)


def done() -> Any:
    return polled("completed", result=DONE)


async def test_a_tasks_question_is_answered_once_and_missing_ones_are_asked_again() -> None:
    seen: list[set[str]] = []

    async def answer(questions: Mapping[str, ServerRequest]) -> Mapping[str, Raw]:
        seen.append(set(questions))
        return {key: Raw(b'{"roots":[]}') for key in sorted(questions)[:1]}

    states = [asking("a", "b"), asking("a", "b"), asking("a", "b"), done()]
    script = Script(get=states, update=[{}])
    assert await script.run(answer) == DONE
    assert seen == [{"a", "b"}, {"b"}]
    updates = [params["inputResponses"] for method, params in script.asked if "update" in method]
    assert updates == [{"a": {"roots": []}}, {"b": {"roots": []}}]


@pytest.mark.parametrize("era", list(Era))
async def test_a_task_that_is_worked_on_restarts_the_timeout_of_its_call(era: Era) -> None:
    states = [polled("working"), polled("working"), done()]
    script = Script(era, get=states, result=[{}, {}, {}, DONE])
    await script.run()
    assert script.restarts == 2


async def test_a_task_that_asks_forever_fails() -> None:
    async def answer(questions: Mapping[str, ServerRequest]) -> Mapping[str, Raw]:
        return {}

    script = Script(get=[asking("a")], update=[{}], cancel=[{}])
    with pytest.raises(RpcError, match="more than 10 times"):
        await script.run(answer)
    await script.tasks.aclose()
    assert script.asked[-1] == ("tasks/cancel", {"taskId": "t"})


async def test_an_unknown_task_error_counts_as_a_lost_task() -> None:
    async def answer(questions: Mapping[str, ServerRequest]) -> Mapping[str, Raw]:
        return {"a": Raw(b"{}")}

    script = Script(get=[asking("a")], update=[RpcError(-32602, "who?")])
    with pytest.raises(RpcError, match="no longer knows the task"):
        await script.run(answer)
    await script.tasks.aclose()
    assert script.asked[-1][0] == "tasks/update"


@pytest.mark.holds("C31")
async def test_a_lost_status_request_is_repeated_up_to_a_limit() -> None:
    gone = ConnectionLost("gone")
    script = Script(get=[gone, gone, gone, polled("working"), gone, gone, gone, done()])
    assert await script.run() == DONE
    script = Script(get=[gone], cancel=[{}])
    with pytest.raises(ConnectionLost):
        await script.run()
    assert len(script.asked) == tasks.MAX_LOSSES + 1
    await script.tasks.aclose()


async def test_a_finally_refused_status_request_is_not_repeated() -> None:
    script = Script(
        get=[UpstreamStatusError(503), UpstreamStatusError(401)],
        cancel=[gone := UpstreamStatusError(401)],
    )
    with pytest.raises(UpstreamStatusError) as refused:
        await script.run()
    assert refused.value.status == gone.status == 401
    assert len(script.asked) == 2
    await script.tasks.aclose()


async def test_a_lost_connection_does_not_end_the_task() -> None:
    states = [{"status": "working"}, {"status": "completed"}]
    gone = ConnectionLost("cut off")
    script = Script(Era.SESSION, result=[gone, gone, DONE], get=states)
    assert await script.run() == DONE
    assert [method for method, _ in script.asked].count("tasks/result") == 3


@given(st.sampled_from(Era), st.lists(st.sampled_from(ANSWERS), max_size=6))
def test_a_task_ends_with_any_answers_and_is_cancelled_unless_the_server_ended_it(
    era: Era, answers_in_turn: list[Any]
) -> None:
    async def run() -> None:
        script = Script(
            era,
            result=[*answers_in_turn, DONE],
            get=[*answers_in_turn, done()],
            cancel=[{}],
            update=[{}],
        )
        (outcome,) = await asyncio.gather(script.run(), return_exceptions=True)
        await script.tasks.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        asked = [method for method, _ in script.asked]
        assert asked.count("tasks/cancel") <= 1
        assert "tasks/cancel" not in asked[:-1]
        if outcome == DONE:
            assert "tasks/cancel" not in asked
        else:
            assert isinstance(outcome, RpcError | ConnectionLost)

    asyncio.run(run())


async def test_closing_waits_for_cancellations_no_longer_than_its_timeout() -> None:
    limits = CancelLimits(close_timeout=0.01)
    script = Script(limits=limits, get=[RpcError(-32603, "broken")], cancel=[{}])
    never = asyncio.Event()

    async def ask(method: str, params: Any) -> Raw:
        if method == "tasks/cancel":
            await never.wait()
        return await Script.ask(script, method, params)

    script.ask = ask  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RpcError):
        await script.run()
    async with hang_guard():
        await script.tasks.aclose()


async def test_with_too_many_cancellations_the_call_itself_is_cancelled() -> None:
    script, creating = Script(limits=CancelLimits(max_running=0)), PendingResult()
    client: Any = object()
    following = asyncio.create_task(script.tasks.run(creating, script.ask, client))
    await settle()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert isinstance(creating.error, asyncio.CancelledError)


async def test_a_task_that_is_not_created_in_time_is_cancelled_with_its_call() -> None:
    script, creating = Script(limits=CancelLimits(timeout=0.01)), PendingResult()
    client: Any = object()
    following = asyncio.create_task(script.tasks.run(creating, script.ask, client))
    await settle()
    following.cancel()
    async with hang_guard():
        await creating.wait()
        await script.tasks.aclose()
    assert isinstance(creating.error, asyncio.CancelledError)
    assert script.asked == []


@pytest.mark.parametrize("result", [DONE, {"resultType": "task", **polled("completed")}])
async def test_a_finished_task_needs_no_cancellation(result: Any) -> None:
    script, creating = Script(), PendingResult()
    client: Any = object()
    following = asyncio.create_task(script.tasks.run(creating, script.ask, client))
    await settle()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    creating.set_result(to_raw(result))
    await script.tasks.aclose()
    assert script.asked == []
