"""Tasks of the extension: declared where a server insists, polled, and nothing of it is seen."""

import asyncio
from typing import Any

import pytest

from tests.backends.test_tasks import CAPABILITIES, DONE, MCP, in_turn, no_intervals
from tests.gateway.letters import EnvelopeServer, Poster, poster
from tests.gateway.servers import (
    Hold,
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
from trunkline.mcp.capabilities import TASKS
from trunkline.mcp.questions import ELICIT

__all__ = ["no_intervals"]


class Extended(EnvelopeServer):
    """A server of 2026-07-28 with the extension, one of whose tools insists on it."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("work"), tool("plain")])
        self.capabilities |= {"extensions": {TASKS: {}}}
        self.methods["tools/call"] = self.create
        self.methods["tasks/cancel"] = lambda _: {}
        self.created: Any = self.state("working")
        self.states(self.state("working"), self.state("completed", result=DONE))

    def create(self, params: Any) -> Any:
        declared = TASKS in params["_meta"][CAPABILITIES].get("extensions", {})
        if params["name"] == "plain":
            return {"content": [{"type": "text", "text": f"declared: {declared}"}]}
        if not declared:
            raise RpcError(-32021, "no", {"requiredCapabilities": {"extensions": {TASKS: {}}}})
        return {"resultType": "task", **self.created}

    @staticmethod
    def state(status: str, **more: Any) -> Any:
        return {"taskId": "t", "status": status, "ttlMs": None, "pollIntervalMs": 0, **more}

    def states(self, *states: Any) -> None:
        self.methods["tasks/get"] = in_turn(*states)

    def asks(self, **questions: Any) -> None:
        self.states(self.state("input_required", inputRequests=questions))


async def failure(client: Poster) -> RpcError:
    return await client.refusal("tools/call", name="s__work")


async def test_a_server_that_insists_is_told_that_we_know_tasks_and_its_task_is_polled() -> None:
    server = Extended()
    async with serving(s=server) as made, user(made) as old:
        new = await poster(made)
        assert await new.call("s__work") == DONE | {"resultType": "complete"}
        assert server.count("tools/call") == 2  # the first was refused, and has done nothing
        assert await old.call("s__work") == DONE
        assert server.count("tools/call") == 3  # by now it is known
        assert text_of(await new.call("s__plain")) == "declared: False"
        listed = await new.ask("tools/list")
    assert all("execution" not in found for found in listed["tools"])
    assert server.count("tasks/cancel") == 0
    for method, params in server.heard:
        if method == "tasks/get":
            assert params["taskId"] == "t"
            assert params["_meta"][f"{MCP}protocolVersion"] == "2026-07-28"
            assert params["_meta"][CAPABILITIES]["extensions"] == {TASKS: {}}
            assert set(params) == {"taskId", "_meta"}


async def test_a_client_that_declares_tasks_gets_none_of_them_either() -> None:
    server = Extended()
    said: Any = {CAPABILITIES: {"sampling": {}, "extensions": {TASKS: {}}}}
    async with serving(s=server) as made:
        client = await poster(made)
        assert text_of(await client.call("s__plain", _meta=said)) == "declared: False"
        answer = await client.call("s__work", _meta=said)
        assert answer["resultType"] == "complete"
        assert text_of(answer) == "done"


async def test_a_server_that_answers_at_once_after_all_is_believed() -> None:
    server = Extended()
    server.created = DONE | {"resultType": "complete"}
    async with serving(s=server) as made:
        assert text_of(await (await poster(made)).call("s__work")) == "done"
    assert server.count("tasks/get") == 0


async def test_a_refusal_for_another_reason_is_the_answer() -> None:
    server = Extended()
    data: Any = {"requiredCapabilities": {"sampling": {}, "extensions": {TASKS: {}}}}
    server.methods["tools/call"] = refuse(-32021, "no", data)
    async with serving(s=server) as made:
        error = await failure(await poster(made))
    assert (error.code, error.data, server.count("tools/call")) == (-32021, data, 1)


@pytest.mark.parametrize(
    ("states", "code", "message"),
    [
        ([Extended.state("failed", error={"code": 7, "message": "boom"})], 7, "boom"),
        ([Extended.state("failed", statusMessage="no disk")], -32603, "failed: no disk"),
        ([Extended.state("cancelled")], -32603, "the server cancelled the task"),
        ([Extended.state("completed")], -32603, "no result"),
        ([Extended.state("working"), RpcError(-32602, "who?")], -32603, "lost the task: who?"),
        ([RpcError(-32603, "broken")], -32603, "broken"),
        ([{"status": 7}], -32603, "cannot be read"),
    ],
)
async def test_a_task_that_does_not_complete_says_why(
    states: list[Any], code: int, message: str
) -> None:
    server = Extended()
    server.states(*states)
    async with serving(s=server) as made:
        error = await failure(await poster(made))
    assert error.code == code
    assert message in error.message


async def test_a_task_that_is_over_when_it_is_created_is_fetched() -> None:
    server = Extended()
    server.created = Extended.state("completed")
    server.states(Extended.state("completed", result=DONE))
    async with serving(s=server) as made:
        assert text_of(await (await poster(made)).call("s__work")) == "done"
    assert server.count("tasks/get") == 1


async def test_a_task_that_asks_what_its_client_did_not_declare_fails_and_is_cancelled() -> None:
    server = Extended()
    server.asks(k={"method": ELICIT, "params": {"message": "?"}})
    async with serving(s=server) as made:
        error = await failure(await poster(made))
        assert (await server.until_heard("tasks/cancel"))["taskId"] == "t"
    assert error.code == -32021


async def test_what_a_task_asks_a_client_of_either_era_is_asked_in_its_own_way() -> None:
    form: Any = {"mode": "form", "message": "?", "requestedSchema": {"type": "object"}}
    yes: Any = {"action": "accept", "content": {}}
    server = Extended()
    asking = server.state("input_required", inputRequests={"k": {"method": ELICIT, "params": form}})
    server.states(asking, server.state("completed", result=DONE))
    async with serving(s=server) as made, user(made, elicitation={}) as somebody:
        somebody.answers[ELICIT] = lambda _: yes
        await somebody.call("s__work")
        assert (await server.until_heard("tasks/update"))["inputResponses"] == {"k": yes}
        client = await poster(made)
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
        assert (await server.until_heard("tasks/update"))["inputResponses"] == {"k": yes}


async def test_a_server_that_dies_while_its_task_rests_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "MAX_INTERVAL", 3600.0)
    server = Extended()
    server.created = Extended.state("working", pollIntervalMs=10**6)
    async with serving(s=server) as made:
        client = await poster(made)
        calling = asyncio.create_task(failure(client))
        await server.until_heard("tools/call")
        await server.until_heard("tools/call")
        await server.die()
        error: Any = await calling
    assert error.data["type"] == "upstream_unavailable"
    assert server.count("tasks/get") == 0


async def test_a_task_of_the_extension_that_never_ends_is_cancelled_too() -> None:
    server = Extended()
    server.states(Extended.state("working", pollIntervalMs=10))
    made = gateway()
    add(made, "s", server, timeout=0.05)
    async with running(made, server):
        error: Any = await failure(await poster(made))
        assert error.data["type"] == "upstream_timeout"
        assert (await server.until_heard("tasks/cancel"))["taskId"] == "t"


async def test_a_client_that_goes_away_cancels_its_task() -> None:
    server = Extended()
    hold = server.methods["tasks/get"] = Hold()
    async with serving(s=server) as made:
        client = await poster(made)
        calling = asyncio.create_task(client.call("s__work"))
        await hold.begun.wait()
        calling.cancel()
        assert (await server.until_heard("tasks/cancel"))["taskId"] == "t"
        await asyncio.gather(calling, return_exceptions=True)


async def test_what_is_cancelled_while_it_is_still_without_a_word_of_tasks_is_withdrawn() -> None:
    server = Extended()
    hold = server.methods["tools/call"] = Hold()
    async with serving(s=server) as made:
        client = await poster(made)
        calling = asyncio.create_task(client.call("s__work"))
        await hold.begun.wait()
        calling.cancel()
        await server.until_heard("notifications/cancelled")
        await asyncio.gather(calling, return_exceptions=True)
