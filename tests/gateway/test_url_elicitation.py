"""URL elicitations: the client opens the URL, and the call is repeated."""

import asyncio
from typing import Any

import pytest

from tests.contexts import without_token
from tests.gateway.servers import Server, running, tool
from tests.gateway.stateless_callers import CAPABILITIES, stateless_caller
from tests.gateway.test_suspended_calls import make_gateway, retry, suspended_calls
from trunkline.gateway import suspended_calls as module
from trunkline.gateway.suspended_calls import SuspendedCalls
from trunkline.jsonrpc import RpcError

VISITOR: dict[str, Any] = {CAPABILITIES: {"elicitation": {"url": {}}}}
URL_ELICITATION: dict[str, Any] = {
    "mode": "url",
    "message": "Log in",
    "url": "https://x.example/in",
}
ACCEPT: dict[str, Any] = {"action": "accept"}


class UrlGatedServer(Server):
    """A server that requires the user to open a URL first."""

    def __init__(self, *ids: str) -> None:
        super().__init__(tools=[tool("t")])
        self.ids = ids or ("e-1",)
        self.visited = False
        self.calls: list[Any] = []
        self.methods["tools/call"] = self.run

    def run(self, params: Any) -> Any:
        self.calls.append(without_token(params))
        if not self.visited:
            elicitations = [URL_ELICITATION | {"elicitationId": id} for id in self.ids]
            raise RpcError(-32042, "URL elicitation required", {"elicitations": elicitations})
        return {"content": []}

    async def let_in(self) -> None:
        """Confirm that the user has opened the URL."""
        self.visited = True
        for id in self.ids:
            await self.active_connection.notify(
                "notifications/elicitation/complete", {"elicitationId": id}
            )


@pytest.mark.holds("T49")
async def test_a_url_elicitation_asks_the_client_and_repeats_the_call() -> None:
    server = UrlGatedServer()
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=VISITOR, arguments={"a": 1})
        assert suspended["resultType"] == "input_required"
        assert list(suspended["inputRequests"].values()) == [
            {"method": "elicitation/create", "params": URL_ELICITATION}
        ]
        assert [p.questions for p in gateway.stateless.suspended_calls.snapshot()] == [1]
        good = retry(suspended, ACCEPT, _meta=VISITOR, arguments={"a": 1})
        calling = asyncio.create_task(client.call("s__t", **good))
        await asyncio.sleep(0)
        assert len(server.calls) == 1  # it waits until the server says that it was done
        await server.let_in()
        assert (await calling)["resultType"] == "complete"
        assert server.calls == [{"name": "t", "arguments": {"a": 1}}] * 2
        # Once, and no more.
        error = await client.expect_error("tools/call", name="s__t", **good)
        assert (error.code, len(server.calls)) == (-32602, 2)
        assert len(gateway.stateless.suspended_calls) == 0


@pytest.mark.holds("T50")
@pytest.mark.parametrize("declared", [{"elicitation": {"form": {}}}, {}])
async def test_a_client_without_url_elicitation_gets_the_required_capability(declared: Any) -> None:
    server = UrlGatedServer()
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        forms: Any = {CAPABILITIES: declared}
        error = await client.expect_error("tools/call", name="s__t", _meta=forms)
        assert error.code == -32021
        assert error.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}


async def test_a_server_that_never_confirms_the_url_is_called_all_the_same() -> None:
    server = UrlGatedServer()
    calls = suspended_calls(url_elicitation_timeout=0.001)
    async with running(make_gateway(server, calls), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=VISITOR)
        again = await client.call("s__t", _meta=VISITOR, **retry(suspended, ACCEPT))
        assert again["resultType"] == "input_required"  # it was not done at all
        server.visited = True
        done = await client.call("s__t", _meta=VISITOR, **retry(again, ACCEPT))
        assert done["resultType"] == "complete"


async def test_an_early_confirmation_counts_and_unknown_answers_are_ignored() -> None:
    server = UrlGatedServer("e-1", "e-2")
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=VISITOR)
        await server.let_in()
        answers = retry(suspended, ACCEPT)
        answers["inputResponses"]["e-9"] = {"action": "decline"}
        done = await client.call("s__t", _meta=VISITOR, **answers)
        assert done["resultType"] == "complete"


async def test_a_declined_url_does_not_repeat_the_call() -> None:
    server = UrlGatedServer()
    async with running(make_gateway(server), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=VISITOR)
        unfit = retry(suspended, {"action": "perhaps"})
        error = await client.expect_error("tools/call", name="s__t", _meta=VISITOR, **unfit)
        assert error.code == -32602  # which changes nothing
        no = retry(suspended, {"action": "decline"})
        error = await client.expect_error("tools/call", name="s__t", _meta=VISITOR, **no)
        assert (error.code, len(server.calls)) == (-32603, 1)
        assert len(gateway.stateless.suspended_calls) == 0


async def test_a_client_that_never_returns_from_a_url_is_forgotten() -> None:
    server = UrlGatedServer()
    calls: SuspendedCalls = suspended_calls(input_timeout=0.01)
    async with running(make_gateway(server, calls), server) as gateway:
        client = await stateless_caller(gateway)
        await client.call("s__t", _meta=VISITOR)
        while len(calls):
            await asyncio.sleep(0)


async def test_a_server_with_endless_url_elicitations_fails() -> None:
    server = UrlGatedServer()
    calls = suspended_calls(url_elicitation_timeout=0.0)
    async with running(make_gateway(server, calls), server) as gateway:
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=VISITOR)
        for _ in range(module.MAX_INPUT_ROUNDS - 1):
            suspended = await client.call("s__t", _meta=VISITOR, **retry(suspended, ACCEPT))
        last = retry(suspended, ACCEPT)
        error = await client.expect_error("tools/call", name="s__t", _meta=VISITOR, **last)
        assert error.code == -32603
        assert len(gateway.stateless.suspended_calls) == 0
