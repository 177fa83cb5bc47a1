"""Whoever a call is for: a backend cannot tell whether it is a session or a single request."""

import pytest

from tests.gateway.letters import Paper, Poster, poster
from tests.gateway.servers import gateway, hello, running, user
from trunkline.backends.functions import Functions
from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.client import Client
from trunkline.gateway.settings import Settings
from trunkline.jsonrpc import Due, Raw, Request, RpcError, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.principal import Principal
from trunkline.routing.call import Call


class Curious(Functions):
    """A backend that remembers for whom it was called, and asks and tells them something."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[Client] = []

        @self.tool("t")
        def t() -> str:
            return "done"

    def call(self, call: Call, client: Client) -> Due:
        return Due.of(self._call(call, client))

    async def _call(self, call: Call, client: Client) -> Raw:
        self.clients.append(client)
        await client.tell("notifications/message", {"level": "error", "data": "told"})
        with pytest.raises(RpcError):
            await client.ask("sampling/createMessage", {})
        assert client.caller == call.caller
        return await super().call(call, client)


async def test_a_conversation_is_one_party_and_a_request_that_stands_alone_is_another() -> None:
    backend = Curious()

    async def connect(listener: Listener) -> Backend:
        return backend

    made = gateway()
    made.add(Settings("s", "s"), connect)
    async with running(made), user(made) as old:
        client: Poster = await poster(made)
        (session,) = made.sessions
        for _ in range(2):
            await old.call("s__t")
            await client.call("s__t")
        outcome = session.answer(Request(9, "tools/call", to_raw({"name": "s__t"})), Paper())
        await outcome
        first, one, second, two, on_line = backend.clients
        assert first.party is second.party is on_line.party
        assert len({first.party, one.party, two.party}) == 3
        assert [c.caller.version for c in (first, one)] == ["2025-11-25", "2026-07-28"]
        assert [c.caller.principal.id for c in (first, one)] == ["local", "poster"]


async def test_what_concerns_one_call_goes_on_its_own_line() -> None:
    backend = Curious()

    async def connect(listener: Listener) -> Backend:
        return backend

    made = gateway()
    made.add(Settings("s", "s"), connect)
    trunk, line = TrunkOfPaper(), Paper()
    async with running(made):
        session = made.open(trunk)
        session.answer(Request(1, "initialize", to_raw(hello())), line)
        await made.registry.wait_settled()
        session.operational = True
        await session.answer(Request(2, "tools/call", to_raw({"name": "s__t"})), line)
        assert [method for method, _ in line.everything()] == ["notifications/message"]
        assert trunk.everything() == []
        (client,) = backend.clients
        client.post("notifications/message", {"level": "error"})
        assert (await line.hear())[0] == "notifications/message"
        await made.close(session)
        assert trunk.everything() == []


class TrunkOfPaper(Paper):
    def cancel(self, request_id: object) -> bool:
        return False


def test_a_caller_wants_no_messages_unless_it_says_so() -> None:
    assert Caller(Principal("p"), "2026-07-28", {}, Raw(b"{}")).log_level is None
