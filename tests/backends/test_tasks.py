"""Tools that require a task: called once, followed to the end, and invisible to the client."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contexts import token_of, without_token
from tests.gateway.servers import (
    HeldAnswer,
    Server,
    add,
    make_gateway,
    refuse,
    running,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import stateless_caller
from tests.tasks import LoopClock
from trunkline.jsonrpc import RpcError
from trunkline.mcp.server_requests import ELICIT
from trunkline.mcp.tasks import PollIntervals

MCP = "io.modelcontextprotocol/"
RELATED = f"{MCP}related-task"
CAPABILITIES = f"{MCP}clientCapabilities"
NO_INTERVALS = PollIntervals(minimum=0.0, default=0.0)
DONE: Any = {"content": [{"type": "text", "text": "done"}]}


def in_turn(*answers: Any) -> Any:
    """Return the answers in turn, then always the last one; errors are raised."""
    left: Iterator[Any] = iter(answers)
    last = answers[-1]

    def answer(params: Any) -> Any:
        found = next(left, last)
        if isinstance(found, Exception):
            raise found
        return found(params) if callable(found) else found

    return answer


# Session protocol


class Worker(Server):
    """A server of 2025-11-25 with one tool that requires a task, and others that do not."""

    def __init__(self) -> None:
        super().__init__(
            tools=[
                tool("work", execution={"taskSupport": "required"}),
                tool("maybe", execution={"taskSupport": "optional"}),
                tool("plain"),
            ]
        )
        self.limits = replace(self.limits, poll_intervals=NO_INTERVALS)
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
        return [without_token(params) for method, params in self.received if method == "tools/call"]


async def test_a_tool_that_requires_a_task_gets_one_and_its_client_the_result() -> None:
    server = Worker()
    async with serving(s=server) as made, session_client(made) as client:
        assert await client.call("s__work", arguments={"n": 1}) == DONE
        listed = await client.ask("tools/list")
    assert server.calls == [{"name": "work", "arguments": {"n": 1}, "task": {"ttl": 3600000}}]
    assert server.count("tasks/result") == 1
    assert server.count("tasks/get") == server.count("tasks/cancel") == 0
    assert all("execution" not in found for found in listed["tools"])


async def test_a_stateless_client_gets_the_result_in_its_own_form() -> None:
    server = Worker()
    async with serving(s=server) as made:
        answer = await (await stateless_caller(made)).call("s__work")
    assert answer == DONE | {"resultType": "complete"}


@pytest.mark.holds("T53")
@pytest.mark.parametrize("name", ["s__maybe", "s__plain"])
async def test_a_call_with_a_task_member_of_its_client_becomes_no_task(name: str) -> None:
    server = Worker()
    async with serving(s=server) as made, session_client(made) as client:
        assert text_of(await client.call(name, task={"ttl": 5})) == "no task"
        assert (
            text_of(await (await stateless_caller(made)).call(name, task={"ttl": 5})) == "no task"
        )
    assert all("task" not in params for params in server.calls)


async def test_a_clients_progress_token_is_replaced_for_the_server() -> None:
    server = Worker()
    async with serving(s=server) as made, session_client(made) as client:
        assert await client.call("s__work", task={"ttl": 5}) == DONE
    assert [params["task"] for params in server.calls] == [{"ttl": 3600000}]


async def test_a_server_without_the_tasks_capability_gets_no_tasks() -> None:
    server = Worker()
    del server.capabilities["tasks"]
    async with serving(s=server) as made, session_client(made) as client:
        assert text_of(await client.call("s__work")) == "no task"


async def test_a_result_instead_of_a_task_is_the_result() -> None:
    server = Worker()
    server.methods["tools/call"] = lambda _: {"content": [], "isError": True}
    async with serving(s=server) as made, session_client(made) as client:
        assert await client.call("s__work") == {"content": [], "isError": True}
        server.methods["tools/call"] = refuse(-32099, "busy")
        assert (await client.expect_error("tools/call", {"name": "s__work"})).message == "busy"
    assert server.count("tasks/result") == 0


async def test_an_invalid_task_is_an_error_of_the_server() -> None:
    server = Worker()
    server.methods["tools/call"] = lambda _: {"task": {"taskId": 7}}
    async with serving(s=server) as made, session_client(made) as client:
        error = await client.expect_error("tools/call", {"name": "s__work"})
    assert error.data == {"type": "upstream_failed", "server": "s"}
    assert "in its task, expected a string" in error.message


async def test_a_tasks_question_reaches_its_own_client_among_several_without_its_task() -> None:
    server = Worker()

    async def work(params: Any) -> Any:
        id = params["taskId"]
        about = {"message": id, "requestedSchema": {}, "_meta": {RELATED: {"taskId": id}}}
        answer = await server.ask(ELICIT, about)
        return {"content": [{"type": "text", "text": answer["content"]["who"]}]}

    server.methods["tasks/result"] = work
    async with (
        serving(s=server) as made,
        session_client(made, elicitation={}) as ann,
        session_client(made, elicitation={}) as bob,
    ):
        for name, client in (("ann", ann), ("bob", bob)):
            client.answers[ELICIT] = lambda _, n=name: {"action": "accept", "content": {"who": n}}
        answers = [await client.call("s__work") for client in (ann, bob)]
        assert [text_of(answer) for answer in answers] == ["ann", "bob"]
        for client in (ann, bob):
            ((_, params),) = client.asked_requests
            assert "related" not in str(params)


async def test_progress_is_reported_until_the_task_ends() -> None:
    server = Worker()

    async def work(params: Any) -> Any:
        token = token_of(dict(server.received)["tools/call"])
        await server.active_connection.notify(
            "notifications/progress", {"progressToken": token, "progress": 1}
        )
        await server.active_connection.notify("notifications/tasks/status", Worker.state("working"))
        return DONE

    server.methods["tasks/result"] = work
    async with serving(s=server) as made, session_client(made) as client:
        assert await client.call("s__work", _meta={"progressToken": "mine"}) == DONE
        progress = await client.wait_notification("notifications/progress")
        await client.ask("ping")
        assert client.take_notifications() == []  # task status is not passed on
    assert progress == {"progressToken": "mine", "progress": 1}


@pytest.mark.parametrize(
    ("result", "states", "code", "message"),
    [
        (RpcError(-32000, "boom", {"x": 1}), [Worker.state("failed")], -32000, "boom"),
        (RpcError(-32000, "boom"), [RpcError(-32601, "what?")], -32000, "boom"),
        (RpcError(-32602, "bad"), [Worker.state("failed")], -32602, "bad"),
        (
            RpcError(-32602, "who?"),
            [RpcError(-32602, "who?")],
            -32603,
            "no longer knows the task: who?",
        ),
        (RpcError(-32603, "none"), [Worker.state("cancelled")], -32603, "cancelled the task"),
        ({}, [Worker.state("failed", statusMessage="no disk")], -32603, "failed: no disk"),
        ({}, [Worker.state("cancelled", statusMessage="late")], -32603, "the task: late"),
        ({}, [RpcError(-32601, "what?")], -32601, "what?"),
        ({}, [{"status": "lost"}], -32603, "was malformed: in its task, expected one of"),
    ],
)
async def test_a_task_without_a_result_reports_the_reason(
    result: Any, states: list[Any], code: int, message: str
) -> None:
    server = Worker()
    server.methods["tasks/result"] = in_turn(result)
    server.states(*states)
    async with serving(s=server) as made, session_client(made) as client:
        error = await client.expect_error("tools/call", {"name": "s__work"})
    assert error.code == code
    assert message in error.message
    assert len(server.calls) == 1


async def test_a_result_without_content_is_malformed_also_if_the_task_was_completed() -> None:
    server = Worker()
    server.methods["tasks/result"] = lambda _: {"_meta": {"x": 1, RELATED: {}}}
    server.states(Worker.state("completed"))
    async with serving(s=server) as made, session_client(made) as client:
        error = await client.expect_error("tools/call", {"name": "s__work"})
        assert error.data == {"type": "upstream_failed", "server": "s"}
        assert "expected an array as 'content'" in error.message


async def test_a_server_that_does_not_wait_is_polled() -> None:
    server = Worker()
    early = RpcError(-32600, "not yet")
    server.methods["tasks/result"] = in_turn(early, early, {}, DONE)
    server.states(Worker.state("working"), Worker.state("input_required"))
    async with serving(s=server) as made, session_client(made) as client:
        assert await client.call("s__work") == DONE
    assert (len(server.calls), server.count("tasks/result"), server.count("tasks/get")) == (1, 4, 3)


async def test_a_server_that_dies_between_two_rounds_is_unavailable() -> None:
    server = Worker()
    hold = server.methods["tasks/result"] = HeldAnswer()
    async with serving(s=server) as made, session_client(made) as client:
        calling = asyncio.create_task(client.unavailable("s__work"))
        await hold.started.wait()
        await server.crash()
        await calling
    assert len(server.calls) == 1


async def test_a_task_that_never_ends_is_cancelled_at_the_timeout_of_the_call() -> None:
    LoopClock().skip_idle_time()
    server = Worker()
    server.methods["tasks/result"] = HeldAnswer()
    made = make_gateway()
    add(made, "s", server, timeout=0.05)
    async with running(made, server), session_client(made) as client:
        error: Any = await client.expect_error("tools/call", {"name": "s__work"})
        assert error.data["type"] == "upstream_timeout"
        assert await server.wait_received("tasks/cancel") == {"taskId": "t1"}


async def test_a_call_cancelled_by_the_client_cancels_its_task() -> None:
    server = Worker()
    hold = server.methods["tasks/result"] = HeldAnswer()
    async with serving(s=server) as made, session_client(made) as client:
        calling = asyncio.create_task(client.connection.call("tools/call", {"name": "s__work"}))
        await hold.started.wait()
        await client.notify("notifications/cancelled", {"requestId": 2})
        # What waits for the result is withdrawn, and the task itself cancelled.
        withdrawn = await server.wait_received("notifications/cancelled")
        assert withdrawn["requestId"] == server.requests[-1].id
        assert await server.wait_received("tasks/cancel") == {"taskId": "t1"}
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)


async def test_a_task_cancelled_before_its_creation_is_cancelled_once_it_exists() -> None:
    server = Worker()
    hold = server.methods["tools/call"] = HeldAnswer({"task": Worker.state("working", "late")})
    async with serving(s=server) as made, session_client(made) as client:
        calling = asyncio.create_task(client.connection.call("tools/call", {"name": "s__work"}))
        await hold.started.wait()
        await client.notify("notifications/cancelled", {"requestId": 2})
        await client.ask("ping")
        hold.released.set()
        assert await server.wait_received("tasks/cancel") == {"taskId": "late"}
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    assert server.count("tasks/result") == 0


async def test_task_methods_are_refused_even_with_one_server() -> None:
    server = Worker()
    async with serving(s=server) as made, session_client(made) as client:
        for method in ("tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update"):
            assert (await client.expect_error(method, {"taskId": "t1"})).code == -32601
        await client.notify("notifications/tasks/status", {"taskId": "t1"})
        with pytest.raises(RpcError) as refused:
            await server.ask("tasks/get", {"taskId": "x"})
        await client.ask("ping")
    assert refused.value.code == -32601
    assert not [method for method, _ in server.received if "tasks/" in method]
