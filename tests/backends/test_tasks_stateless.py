"""Tasks of the extension: declared on demand, polled, and invisible to the client."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.backends.test_tasks import CAPABILITIES, DONE, MCP, NO_INTERVALS, in_turn
from tests.gateway.servers import (
    HeldAnswer,
    add,
    make_gateway,
    refuse,
    running,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import (
    StatelessCaller,
    StatelessScriptedServer,
    stateless_caller,
)
from tests.tasks import LoopClock
from trunkline.backends.limits import BackendLimits
from trunkline.jsonrpc import RpcError
from trunkline.mcp.capabilities import TASKS_EXTENSION
from trunkline.mcp.server_requests import ELICIT
from trunkline.mcp.tasks import PollIntervals


class Extended(StatelessScriptedServer):
    """A server of 2026-07-28 with the extension, and one tool that requires it."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("work"), tool("plain")])
        self.limits = replace(self.limits, poll_intervals=NO_INTERVALS)
        self.capabilities |= {"extensions": {TASKS_EXTENSION: {}}}
        self.methods["tools/call"] = self.create
        self.methods["tasks/cancel"] = lambda _: {}
        self.created: Any = self.state("working")
        self.states(self.state("working"), self.state("completed", result=DONE))

    def create(self, params: Any) -> Any:
        declared = TASKS_EXTENSION in params["_meta"][CAPABILITIES].get("extensions", {})
        if params["name"] == "plain":
            return {"content": [{"type": "text", "text": f"declared: {declared}"}]}
        if not declared:
            raise RpcError(
                -32021, "no", {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
            )
        return {"resultType": "task", **self.created}

    @staticmethod
    def state(status: str, **more: Any) -> Any:
        return {"taskId": "t", "status": status, "ttlMs": None, "pollIntervalMs": 0, **more}

    def states(self, *states: Any) -> None:
        self.methods["tasks/get"] = in_turn(*states)

    def asks(self, **questions: Any) -> None:
        self.states(self.state("input_required", inputRequests=questions))


async def failure(client: StatelessCaller) -> RpcError:
    return await client.expect_error("tools/call", name="s__work")


async def test_a_server_that_requires_tasks_gets_the_extension_and_is_polled() -> None:
    server = Extended()
    async with serving(s=server) as made, session_client(made) as old:
        new = await stateless_caller(made)
        assert await new.call("s__work") == DONE | {"resultType": "complete"}
        assert server.count("tools/call") == 2  # the first was refused, and has done nothing
        assert await old.call("s__work") == DONE
        assert server.count("tools/call") == 3  # by now it is known
        assert text_of(await new.call("s__plain")) == "declared: False"
        listed = await new.ask("tools/list")
    assert all("execution" not in found for found in listed["tools"])
    assert server.count("tasks/cancel") == 0
    for method, params in server.received:
        if method == "tasks/get":
            assert params["taskId"] == "t"
            assert params["_meta"][f"{MCP}protocolVersion"] == "2026-07-28"
            assert params["_meta"][CAPABILITIES]["extensions"] == {TASKS_EXTENSION: {}}
            assert set(params) == {"taskId", "_meta"}


async def test_a_client_that_declares_tasks_gets_none_either() -> None:
    server = Extended()
    declared: Any = {CAPABILITIES: {"sampling": {}, "extensions": {TASKS_EXTENSION: {}}}}
    async with serving(s=server) as made:
        client = await stateless_caller(made)
        assert text_of(await client.call("s__plain", _meta=declared)) == "declared: False"
        answer = await client.call("s__work", _meta=declared)
        assert answer["resultType"] == "complete"
        assert text_of(answer) == "done"


async def test_an_immediate_result_needs_no_polling() -> None:
    server = Extended()
    server.created = DONE | {"resultType": "complete"}
    async with serving(s=server) as made:
        assert text_of(await (await stateless_caller(made)).call("s__work")) == "done"
    assert server.count("tasks/get") == 0


async def test_an_error_with_another_reason_is_the_answer() -> None:
    server = Extended()
    data: Any = {"requiredCapabilities": {"sampling": {}, "extensions": {TASKS_EXTENSION: {}}}}
    server.methods["tools/call"] = refuse(-32021, "no", data)
    async with serving(s=server) as made:
        error = await failure(await stateless_caller(made))
    assert (error.code, error.data, server.count("tools/call")) == (-32021, data, 1)


@pytest.mark.parametrize(
    ("states", "code", "message"),
    [
        ([Extended.state("failed", error={"code": 7, "message": "boom"})], 7, "boom"),
        ([Extended.state("failed", statusMessage="no disk")], -32603, "failed: no disk"),
        ([Extended.state("cancelled")], -32603, "the server cancelled the task"),
        ([Extended.state("completed")], 5020, "a completed task without a result"),
        (
            [Extended.state("working"), RpcError(-32602, "who?")],
            -32603,
            "no longer knows the task: who?",
        ),
        ([RpcError(-32603, "broken")], -32603, "broken"),
        ([{"status": 7}], 5020, "was malformed: in its task, expected one of"),
    ],
)
async def test_a_task_that_does_not_complete_reports_the_reason(
    states: list[Any], code: int, message: str
) -> None:
    server = Extended()
    server.states(*states)
    async with serving(s=server) as made:
        error = await failure(await stateless_caller(made))
    assert error.code == code
    assert message in error.message


async def test_a_task_that_is_complete_at_its_creation_is_fetched() -> None:
    server = Extended()
    server.created = Extended.state("completed")
    server.states(Extended.state("completed", result=DONE))
    async with serving(s=server) as made:
        assert text_of(await (await stateless_caller(made)).call("s__work")) == "done"
    assert server.count("tasks/get") == 1


async def test_a_task_with_undeclared_questions_fails_and_is_cancelled() -> None:
    server = Extended()
    server.asks(k={"method": ELICIT, "params": {"message": "?"}})
    async with serving(s=server) as made:
        error = await failure(await stateless_caller(made))
        assert (await server.wait_received("tasks/cancel"))["taskId"] == "t"
    assert error.code == -32021


async def test_a_tasks_questions_reach_clients_of_both_protocols() -> None:
    form: Any = {"mode": "form", "message": "?", "requestedSchema": {"type": "object"}}
    yes: Any = {"action": "accept", "content": {}}
    server = Extended()
    asking = server.state("input_required", inputRequests={"k": {"method": ELICIT, "params": form}})
    server.states(asking, server.state("completed", result=DONE))
    async with serving(s=server) as made, session_client(made, elicitation={}) as user:
        user.answers[ELICIT] = lambda _: yes
        await user.call("s__work")
        assert (await server.wait_received("tasks/update"))["inputResponses"] == {"k": yes}
        client = await stateless_caller(made)
        meta: Any = {CAPABILITIES: {"elicitation": {"form": {}}}}
        server.states(asking, server.state("completed", result=DONE))
        asked = await client.call("s__work", _meta=meta)
        assert asked["resultType"] == "input_required"
        retry: Any = {
            "requestState": asked["requestState"],
            "inputResponses": dict.fromkeys(asked["inputRequests"], yes),
        }
        done = await client.call("s__work", _meta=meta, **retry)
        assert done["resultType"] == "complete"
        assert (await server.wait_received("tasks/update"))["inputResponses"] == {"k": yes}


async def test_a_server_that_dies_during_a_poll_interval_is_noticed_at_once() -> None:
    server = Extended()
    server.limits = BackendLimits(poll_intervals=PollIntervals(maximum=3600.0))
    server.created = Extended.state("working", pollIntervalMs=10**6)
    async with serving(s=server) as made:
        client = await stateless_caller(made)
        calling = asyncio.create_task(failure(client))
        await server.wait_received("tools/call")
        await server.wait_received("tools/call")
        await server.crash()
        error: Any = await calling
    assert error.data["type"] == "upstream_unavailable"
    assert server.count("tasks/get") == 0


async def test_an_extension_task_that_never_ends_is_cancelled_too() -> None:
    LoopClock().skip_idle_time()
    server = Extended()
    server.states(Extended.state("working", pollIntervalMs=10))
    made = make_gateway()
    add(made, "s", server, timeout=0.05, max_timeout=0.1)
    async with running(made, server):
        error: Any = await failure(await stateless_caller(made))
        assert error.data["type"] == "upstream_timeout"
        assert (await server.wait_received("tasks/cancel"))["taskId"] == "t"


async def test_a_client_that_disconnects_cancels_its_task() -> None:
    server = Extended()
    hold = server.methods["tasks/get"] = HeldAnswer()
    async with serving(s=server) as made:
        client = await stateless_caller(made)
        calling = asyncio.create_task(client.call("s__work"))
        await hold.started.wait()
        calling.cancel()
        assert (await server.wait_received("tasks/cancel"))["taskId"] == "t"
        await asyncio.gather(calling, return_exceptions=True)


async def test_a_call_cancelled_before_its_retry_as_a_task_is_cancelled() -> None:
    server = Extended()
    hold = server.methods["tools/call"] = HeldAnswer()
    async with serving(s=server) as made:
        client = await stateless_caller(made)
        calling = asyncio.create_task(client.call("s__work"))
        await hold.started.wait()
        calling.cancel()
        await server.wait_received("notifications/cancelled")
        await asyncio.gather(calling, return_exceptions=True)
