"""Tools that insist on a task: called once, followed to the end, and nothing of it is seen."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.gateway.letters import poster
from tests.gateway.servers import (
    Hold,
    Server,
    add,
    gateway,
    refuse,
    running,
    serving,
    text_of,
    tool,
    user,
)
from tests.jsonrpc.test_channel import settle
from trunkline.backends import tasks
from trunkline.backends.tasks import Tasks, nobody_answers
from trunkline.jsonrpc import ConnectionLost, Due, Raw, RpcError, from_raw, to_raw
from trunkline.mcp import tasks as forms
from trunkline.mcp.questions import ELICIT, LIST_ROOTS, Question
from trunkline.mcp.versions import Era
from trunkline.transports.http_refused import HttpRefused

MCP = "io.modelcontextprotocol/"
RELATED = f"{MCP}related-task"
CAPABILITIES = f"{MCP}clientCapabilities"
DONE: Any = {"content": [{"type": "text", "text": "done"}]}


@pytest.fixture(autouse=True)
def no_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "MIN_INTERVAL", 0.0)
    monkeypatch.setattr(forms, "INTERVAL", 0.0)


def in_turn(*answers: Any) -> Any:
    """Answer with one after the other, and then with the last; errors are raised."""
    left: Iterator[Any] = iter(answers)
    last = answers[-1]

    def answer(params: Any) -> Any:
        found = next(left, last)
        if isinstance(found, Exception):
            raise found
        return found(params) if callable(found) else found

    return answer


# The handshake era


class Worker(Server):
    """A server of 2025-11-25 with one tool that insists on a task, and others that do not."""

    def __init__(self) -> None:
        super().__init__(
            tools=[
                tool("work", execution={"taskSupport": "required"}),
                tool("maybe", execution={"taskSupport": "optional"}),
                tool("plain"),
            ]
        )
        self.capabilities |= {"tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
        self.methods["tools/call"] = self.create
        self.methods["tasks/result"] = lambda _: DONE | {"_meta": {RELATED: {"taskId": "t1"}}}
        self.methods["tasks/cancel"] = lambda params: self.state("cancelled")
        self.created = 0

    def create(self, params: Any) -> Any:
        if "task" not in params:
            return {"content": [{"type": "text", "text": "no task"}]}
        self.created += 1
        return {"task": self.state("working", f"t{self.created}")}

    @staticmethod
    def state(status: str, id: str = "t1", **more: Any) -> Any:
        return {"taskId": id, "status": status, "ttl": None, "pollInterval": 0, **more}

    def states(self, *states: Any) -> None:
        self.methods["tasks/get"] = in_turn(*states)

    @property
    def calls(self) -> list[Any]:
        return [params for method, params in self.heard if method == "tools/call"]


async def test_a_tool_that_insists_on_a_task_gets_one_and_its_client_the_result() -> None:
    server = Worker()
    async with serving(s=server) as made, user(made) as client:
        assert await client.call("s__work", arguments={"n": 1}) == DONE
        listed = await client.ask("tools/list")
    assert server.calls == [{"name": "work", "arguments": {"n": 1}, "task": {"ttl": 3600000}}]
    assert server.count("tasks/result") == 1
    assert server.count("tasks/get") == server.count("tasks/cancel") == 0
    assert all("execution" not in found for found in listed["tools"])


async def test_a_client_of_the_envelope_era_gets_it_in_its_own_shape() -> None:
    server = Worker()
    async with serving(s=server) as made:
        answer = await (await poster(made)).call("s__work")
    assert answer == DONE | {"resultType": "complete"}


@pytest.mark.holds("T53")
@pytest.mark.parametrize("name", ["s__maybe", "s__plain"])
async def test_nobody_elses_call_becomes_a_task_though_its_client_wishes_for_one(name: str) -> None:
    server = Worker()
    async with serving(s=server) as made, user(made) as client:
        assert text_of(await client.call(name, task={"ttl": 5})) == "no task"
        assert text_of(await (await poster(made)).call(name, task={"ttl": 5})) == "no task"
    assert all("task" not in params for params in server.calls)


async def test_a_clients_wish_is_not_the_wish_that_the_server_sees() -> None:
    server = Worker()
    async with serving(s=server) as made, user(made) as client:
        assert await client.call("s__work", task={"ttl": 5}) == DONE
    assert [params["task"] for params in server.calls] == [{"ttl": 3600000}]


async def test_a_server_that_did_not_declare_tasks_gets_none() -> None:
    server = Worker()
    del server.capabilities["tasks"]
    async with serving(s=server) as made, user(made) as client:
        assert text_of(await client.call("s__work")) == "no task"


async def test_an_answer_in_place_of_a_task_is_the_answer() -> None:
    server = Worker()
    server.methods["tools/call"] = lambda _: {"content": [], "isError": True}
    async with serving(s=server) as made, user(made) as client:
        assert await client.call("s__work") == {"content": [], "isError": True}
        server.methods["tools/call"] = refuse(-32099, "busy")
        assert (await client.refusal("tools/call", {"name": "s__work"})).message == "busy"
    assert server.count("tasks/result") == 0


async def test_a_task_that_cannot_be_read_is_an_error_of_the_server() -> None:
    server = Worker()
    server.methods["tools/call"] = lambda _: {"task": {"taskId": 7}}
    async with serving(s=server) as made, user(made) as client:
        error = await client.refusal("tools/call", {"name": "s__work"})
    assert (error.code, "cannot be read" in error.message) == (-32603, True)


async def test_what_a_task_asks_goes_to_its_own_client_among_several_and_says_nothing_of_it() -> (
    None
):
    server = Worker()

    async def work(params: Any) -> Any:
        id = params["taskId"]
        about = {"message": id, "requestedSchema": {}, "_meta": {RELATED: {"taskId": id}}}
        answer = await server.ask(ELICIT, about)
        return {"content": [{"type": "text", "text": answer["content"]["who"]}]}

    server.methods["tasks/result"] = work
    async with (
        serving(s=server) as made,
        user(made, elicitation={}) as ann,
        user(made, elicitation={}) as bob,
    ):
        for name, client in (("ann", ann), ("bob", bob)):
            client.answers[ELICIT] = lambda _, n=name: {"action": "accept", "content": {"who": n}}
        answers = await asyncio.gather(ann.call("s__work"), bob.call("s__work"))
        assert [text_of(answer) for answer in answers] == ["ann", "bob"]
        for client in (ann, bob):
            ((_, params),) = client.asked
            assert "related" not in str(params)


async def test_progress_is_told_until_the_task_ends() -> None:
    server = Worker()

    async def work(params: Any) -> Any:
        token = server.calls[-1]["_meta"]["progressToken"]
        await server.line.notify("notifications/progress", {"progressToken": token, "progress": 1})
        await server.line.notify("notifications/tasks/status", Worker.state("working"))
        return DONE

    server.methods["tasks/result"] = work
    async with serving(s=server) as made, user(made) as client:
        assert await client.call("s__work", _meta={"progressToken": "mine"}) == DONE
        told = await client.until_told("notifications/progress")
        await client.ask("ping")
        assert client.everything() == []  # of the status nobody hears
    assert told == {"progressToken": "mine", "progress": 1}


@pytest.mark.parametrize(
    ("result", "states", "code", "message"),
    [
        (RpcError(-32000, "boom", {"x": 1}), [Worker.state("failed")], -32000, "boom"),
        (RpcError(-32000, "boom"), [RpcError(-32601, "what?")], -32000, "boom"),
        (RpcError(-32602, "bad"), [Worker.state("failed")], -32602, "bad"),
        (RpcError(-32602, "who?"), [RpcError(-32602, "who?")], -32603, "lost the task: who?"),
        (RpcError(-32603, "none"), [Worker.state("cancelled")], -32603, "cancelled the task"),
        ({}, [Worker.state("failed", statusMessage="no disk")], -32603, "failed: no disk"),
        ({}, [Worker.state("cancelled", statusMessage="late")], -32603, "the task: late"),
        ({}, [RpcError(-32601, "what?")], -32601, "what?"),
        ({}, [{"status": "lost"}], -32603, "cannot be read"),
    ],
)
async def test_a_task_without_a_result_says_why(
    result: Any, states: list[Any], code: int, message: str
) -> None:
    server = Worker()
    server.methods["tasks/result"] = in_turn(result)
    server.states(*states)
    async with serving(s=server) as made, user(made) as client:
        error = await client.refusal("tools/call", {"name": "s__work"})
    assert error.code == code
    assert message in error.message
    assert len(server.calls) == 1


async def test_a_result_without_content_is_one_if_the_task_was_completed() -> None:
    server = Worker()
    server.methods["tasks/result"] = lambda _: {"_meta": {"x": 1, RELATED: {}}}
    server.states(Worker.state("completed"))
    async with serving(s=server) as made, user(made) as client:
        assert await client.call("s__work") == {"_meta": {"x": 1}}


async def test_a_server_that_does_not_have_us_wait_is_asked_again() -> None:
    server = Worker()
    early = RpcError(-32600, "not yet")
    server.methods["tasks/result"] = in_turn(early, early, {}, DONE)
    server.states(Worker.state("working"), Worker.state("input_required"))
    async with serving(s=server) as made, user(made) as client:
        assert await client.call("s__work") == DONE
    assert (len(server.calls), server.count("tasks/result"), server.count("tasks/get")) == (1, 4, 3)


async def test_a_server_that_dies_in_between_is_unavailable() -> None:
    server = Worker()
    hold = server.methods["tasks/result"] = Hold()
    async with serving(s=server) as made, user(made) as client:
        calling = asyncio.create_task(client.unavailable("s__work"))
        await hold.begun.wait()
        await server.die()
        await calling
    assert len(server.calls) == 1


async def test_a_task_that_never_ends_is_cancelled_when_the_call_has_taken_too_long() -> None:
    server = Worker()
    server.methods["tasks/result"] = Hold()
    made = gateway()
    add(made, "s", server, timeout=0.05)
    async with running(made, server), user(made) as client:
        error: Any = await client.refusal("tools/call", {"name": "s__work"})
        assert error.data["type"] == "upstream_timeout"
        assert await server.until_heard("tasks/cancel") == {"taskId": "t1"}


async def test_what_a_client_cancels_is_cancelled_as_a_task() -> None:
    server = Worker()
    hold = server.methods["tasks/result"] = Hold()
    async with serving(s=server) as made, user(made) as client:
        calling = asyncio.create_task(client.connection.call("tools/call", {"name": "s__work"}))
        await hold.begun.wait()
        await client.tell("notifications/cancelled", {"requestId": 2})
        # What waits for the result is withdrawn, and the task itself cancelled.
        withdrawn = await server.until_heard("notifications/cancelled")
        assert withdrawn["requestId"] == server.requests[-1].id
        assert await server.until_heard("tasks/cancel") == {"taskId": "t1"}
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)


async def test_what_is_cancelled_before_it_is_created_is_cancelled_once_it_is() -> None:
    server = Worker()
    hold = server.methods["tools/call"] = Hold({"task": Worker.state("working", "late")})
    async with serving(s=server) as made, user(made) as client:
        calling = asyncio.create_task(client.connection.call("tools/call", {"name": "s__work"}))
        await hold.begun.wait()
        await client.tell("notifications/cancelled", {"requestId": 2})
        await client.ask("ping")
        hold.let_go.set()
        assert await server.until_heard("tasks/cancel") == {"taskId": "late"}
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    assert server.count("tasks/result") == 0


@pytest.mark.holds("T54")
async def test_tasks_are_nobodys_to_ask_for_although_there_is_one_server_only() -> None:
    server = Worker()
    async with serving(s=server) as made, user(made) as client:
        for method in ("tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update"):
            assert (await client.refusal(method, {"taskId": "t1"})).code == -32601
        await client.tell("notifications/tasks/status", {"taskId": "t1"})
        with pytest.raises(RpcError) as refused:
            await server.ask("tasks/get", {"taskId": "x"})
        await client.ask("ping")
    assert refused.value.code == -32601
    assert not [method for method, _ in server.heard if "tasks/" in method]


# One task, and whoever answers what it asks


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
        creating.settle(to_raw({"resultType": "task", **polled("working")}))
        client: Any = object()
        async with asyncio.timeout(5):
            found = await self.tasks.follow(creating, self.ask, client, answer)
        return from_raw(found)


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
    creating = Due()
    creating.settle(to_raw({"task": Worker.state("working")}))
    client: Any = object()
    assert from_raw(await script.tasks.follow(creating, script.ask, client)) == DONE
    assert [method for method, _ in script.asked].count("tasks/result") == 3


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
