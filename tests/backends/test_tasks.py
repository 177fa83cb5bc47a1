"""Tools that insist on a task: called once, followed to the end, and nothing of it is seen."""

import asyncio
from collections.abc import Iterator
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
from trunkline.jsonrpc import RpcError
from trunkline.mcp import tasks as forms
from trunkline.mcp.questions import ELICIT

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
        answers = [await client.call("s__work") for client in (ann, bob)]
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
