"""Servers that send the user to some address first: the client is asked to, and calls again."""

import asyncio
from typing import Any

import pytest

from tests.gateway.letters import CAPABILITIES, poster
from tests.gateway.servers import Server, running, tool
from tests.gateway.test_parking import gateway, parking, retry
from trunkline.gateway import parking as module
from trunkline.gateway.parking import Parking
from trunkline.jsonrpc import RpcError

VISITOR: dict[str, Any] = {CAPABILITIES: {"elicitation": {"url": {}}}}
VISIT: dict[str, Any] = {"mode": "url", "message": "Log in", "url": "https://x.example/in"}
ACCEPT: dict[str, Any] = {"action": "accept"}


class Doorkeeper(Server):
    """A server that lets nobody call who has not been somewhere."""

    def __init__(self, *ids: str) -> None:
        super().__init__(tools=[tool("t")])
        self.ids = ids or ("e-1",)
        self.visited = False
        self.calls: list[Any] = []
        self.methods["tools/call"] = self.run

    def run(self, params: Any) -> Any:
        self.calls.append(params)
        if not self.visited:
            visits = [VISIT | {"elicitationId": id} for id in self.ids]
            raise RpcError(-32042, "URL elicitation required", {"elicitations": visits})
        return {"content": []}

    async def let_in(self) -> None:
        """Say that the user was there."""
        self.visited = True
        for id in self.ids:
            await self.line.notify("notifications/elicitation/complete", {"elicitationId": id})


@pytest.mark.holds("T49")
async def test_who_must_visit_some_address_is_asked_to_and_the_call_is_made_again() -> None:
    server = Doorkeeper()
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=VISITOR, arguments={"a": 1})
        assert asked["resultType"] == "input_required"
        assert list(asked["inputRequests"].values()) == [
            {"method": "elicitation/create", "params": VISIT}
        ]
        assert [p.questions for p in made.stateless.parking.snapshot()] == [1]
        good = retry(asked, ACCEPT, _meta=VISITOR, arguments={"a": 1})
        calling = asyncio.create_task(client.call("s__t", **good))
        await asyncio.sleep(0)
        assert len(server.calls) == 1  # it waits until the server says that it was done
        await server.let_in()
        assert (await calling)["resultType"] == "complete"
        assert server.calls == [{"name": "t", "arguments": {"a": 1}}] * 2
        # Once, and no more.
        error = await client.refusal("tools/call", name="s__t", **good)
        assert (error.code, len(server.calls)) == (-32602, 2)
        assert len(made.stateless.parking) == 0


@pytest.mark.holds("T50")
@pytest.mark.parametrize("declared", [{"elicitation": {"form": {}}}, {}])
async def test_who_cannot_visit_anything_is_told_that_it_would_have_to(declared: Any) -> None:
    server = Doorkeeper()
    async with running(gateway(server), server) as made:
        client = await poster(made)
        forms: Any = {CAPABILITIES: declared}
        error = await client.refusal("tools/call", name="s__t", _meta=forms)
        assert error.code == -32021
        assert error.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}


async def test_a_server_that_never_says_that_it_was_done_is_called_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "VISIT", 0.001)
    server = Doorkeeper()
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=VISITOR)
        again = await client.call("s__t", _meta=VISITOR, **retry(asked, ACCEPT))
        assert again["resultType"] == "input_required"  # it was not done at all
        server.visited = True
        done = await client.call("s__t", _meta=VISITOR, **retry(again, ACCEPT))
        assert done["resultType"] == "complete"


async def test_what_was_done_meanwhile_is_not_waited_for_and_extra_answers_are_ignored() -> None:
    server = Doorkeeper("e-1", "e-2")
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=VISITOR)
        await server.let_in()
        answers = retry(asked, ACCEPT)
        answers["inputResponses"]["e-9"] = {"action": "decline"}
        done = await client.call("s__t", _meta=VISITOR, **answers)
        assert done["resultType"] == "complete"


async def test_who_does_not_want_to_is_not_called_for_again() -> None:
    server = Doorkeeper()
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=VISITOR)
        unfit = retry(asked, {"action": "perhaps"})
        error = await client.refusal("tools/call", name="s__t", _meta=VISITOR, **unfit)
        assert error.code == -32602  # which changes nothing
        no = retry(asked, {"action": "decline"})
        error = await client.refusal("tools/call", name="s__t", _meta=VISITOR, **no)
        assert (error.code, len(server.calls)) == (-32603, 1)
        assert len(made.stateless.parking) == 0


async def test_who_never_comes_back_from_there_is_forgotten() -> None:
    server = Doorkeeper()
    parked: Parking = parking(ttl=0.01)
    async with running(gateway(server, parked), server) as made:
        client = await poster(made)
        await client.call("s__t", _meta=VISITOR)
        while len(parked):
            await asyncio.sleep(0)


async def test_a_server_that_sends_its_users_on_and_on_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "VISIT", 0.0)
    server = Doorkeeper()
    async with running(gateway(server), server) as made:
        client = await poster(made)
        asked = await client.call("s__t", _meta=VISITOR)
        for _ in range(module.MAX_ROUNDS - 1):
            asked = await client.call("s__t", _meta=VISITOR, **retry(asked, ACCEPT))
        last = retry(asked, ACCEPT)
        error = await client.refusal("tools/call", name="s__t", _meta=VISITOR, **last)
        assert error.code == -32603
        assert len(made.stateless.parking) == 0
