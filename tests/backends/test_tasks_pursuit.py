"""One task, followed to its end whatever its server says, and whoever answers what it asks."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backends.test_tasks import DONE, in_turn, no_intervals
from tests.jsonrpc.test_channel import settle
from trunkline.backends import tasks
from trunkline.backends.tasks import Tasks, nobody_answers
from trunkline.jsonrpc import ConnectionLost, Due, Raw, RpcError, from_raw, to_raw
from trunkline.mcp import tasks as forms
from trunkline.mcp.questions import LIST_ROOTS, Question
from trunkline.mcp.versions import Era
from trunkline.transports.http_refused import HttpRefused

__all__ = ["no_intervals"]


def polled(status: str, **more: Any) -> Any:
    return {"taskId": "t", "status": status, "ttlMs": None, "pollIntervalMs": 0, **more}


class Script:
    """A server as Tasks sees it: what it is asked, and what it answers in turn."""

    def __init__(self, era: Era = Era.ENVELOPE, **answers: list[Any]) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers = {f"tasks/{method}": in_turn(*said) for method, said in answers.items()}
        self.ended = asyncio.Event()
        self.tasks = Tasks(era, self._wait_ended)

    async def _wait_ended(self) -> None:
        await self.ended.wait()

    async def ask(self, method: str, params: Any) -> Raw:
        self.asked.append((method, from_raw(to_raw(params))))
        return to_raw(self.answers[method](params))

    async def run(self, answer: Any = nobody_answers) -> Any:
        creating = Due()
        task = polled("working")
        creating.settle(to_raw({"resultType": "task", **task, "task": task}))
        client: Any = object()
        async with asyncio.timeout(5):
            found = await self.tasks.follow(creating, self.ask, client, answer)
        return from_raw(found)


SAID: list[Any] = [
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


async def test_what_a_task_asks_is_answered_once_and_what_was_left_out_is_asked_again() -> None:
    seen: list[set[str]] = []

    async def answer(questions: Mapping[str, Question]) -> Mapping[str, Raw]:
        seen.append(set(questions))
        return {key: Raw(b'{"roots":[]}') for key in sorted(questions)[:1]}

    states = [asking("a", "b"), asking("a", "b"), asking("a", "b"), done()]
    script = Script(get=states, update=[{}])
    assert await script.run(answer) == DONE
    assert seen == [{"a", "b"}, {"b"}]
    updates = [params["inputResponses"] for method, params in script.asked if "update" in method]
    assert updates == [{"a": {"roots": []}}, {"b": {"roots": []}}]


async def test_a_task_that_asks_without_end_is_given_up() -> None:
    async def answer(questions: Mapping[str, Question]) -> Mapping[str, Raw]:
        return {}

    script = Script(get=[asking("a")], update=[{}], cancel=[{}])
    with pytest.raises(RpcError, match="more than 10 times"):
        await script.run(answer)
    await script.tasks.aclose()
    assert script.asked[-1] == ("tasks/cancel", {"taskId": "t"})


async def test_an_answer_that_the_server_does_not_know_its_task_for_is_a_lost_one() -> None:
    async def answer(questions: Mapping[str, Question]) -> Mapping[str, Raw]:
        return {"a": Raw(b"{}")}

    script = Script(get=[asking("a")], update=[RpcError(-32602, "who?")])
    with pytest.raises(RpcError, match="lost the task"):
        await script.run(answer)
    await script.tasks.aclose()
    assert script.asked[-1][0] == "tasks/update"


async def test_a_look_that_got_lost_is_repeated_but_not_for_ever() -> None:
    gone = ConnectionLost("gone")
    script = Script(get=[gone, gone, gone, polled("working"), gone, gone, gone, done()])
    assert await script.run() == DONE
    script = Script(get=[gone], cancel=[{}])
    with pytest.raises(ConnectionLost):
        await script.run()
    assert len(script.asked) == tasks.MAX_LOSSES + 1
    await script.tasks.aclose()


async def test_a_look_that_is_refused_for_good_is_not_repeated() -> None:
    script = Script(get=[HttpRefused(503), HttpRefused(401)], cancel=[gone := HttpRefused(401)])
    with pytest.raises(HttpRefused) as refused:
        await script.run()
    assert refused.value.status == gone.status == 401
    assert len(script.asked) == 2
    await script.tasks.aclose()


async def test_a_stream_that_is_cut_off_does_not_end_the_task() -> None:
    states = [{"status": "working"}, {"status": "completed"}]
    gone = ConnectionLost("cut off")
    script = Script(Era.HANDSHAKE, result=[gone, gone, DONE], get=states)
    assert await script.run() == DONE
    assert [method for method, _ in script.asked].count("tasks/result") == 3


@given(st.sampled_from(Era), st.lists(st.sampled_from(SAID), max_size=6))
def test_whatever_a_server_says_a_task_ends_and_is_cancelled_if_its_server_did_not_end_it(
    era: Era, said: list[Any]
) -> None:
    async def run() -> None:
        script = Script(era, result=[*said, DONE], get=[*said, done()], cancel=[{}], update=[{}])
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

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "MIN_INTERVAL", 0.0)
        patch.setattr(forms, "INTERVAL", 0.0)
        asyncio.run(run())


async def test_the_end_waits_a_moment_for_tasks_to_be_cancelled_and_then_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "GRACE", 0.01)
    script = Script(get=[RpcError(-32603, "broken")], cancel=[{}])
    never = asyncio.Event()

    async def ask(method: str, params: Any) -> Raw:
        if method == "tasks/cancel":
            await never.wait()
        return await Script.ask(script, method, params)

    script.ask = ask  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RpcError):
        await script.run()
    async with asyncio.timeout(5):
        await script.tasks.aclose()


async def test_a_call_that_no_more_can_be_cancelled_for_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "MAX_CANCELLING", 0)
    script, creating = Script(), Due()
    client: Any = object()
    following = asyncio.create_task(script.tasks.follow(creating, script.ask, client))
    await settle()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert isinstance(creating.error, asyncio.CancelledError)


async def test_a_task_that_is_not_created_in_time_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "PATIENCE", 0.01)
    script, creating = Script(), Due()
    client: Any = object()
    following = asyncio.create_task(script.tasks.follow(creating, script.ask, client))
    await settle()
    following.cancel()
    async with asyncio.timeout(5):
        await creating.wait()
        await script.tasks.aclose()
    assert isinstance(creating.error, asyncio.CancelledError)
    assert script.asked == []


@pytest.mark.parametrize("result", [DONE, {"resultType": "task", **polled("completed")}])
async def test_what_is_over_before_it_can_be_cancelled_needs_not_be(result: Any) -> None:
    script, creating = Script(), Due()
    client: Any = object()
    following = asyncio.create_task(script.tasks.follow(creating, script.ask, client))
    await settle()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    creating.settle(to_raw(result))
    await script.tasks.aclose()
    assert script.asked == []
