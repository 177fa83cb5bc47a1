"""Stateless servers that need input, with clients of the session protocol."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.gateway.servers import serving, session_client, tool
from tests.gateway.stateless_callers import CAPABILITIES, StatelessScriptedServer
from trunkline.backends import stateless_server
from trunkline.jsonrpc import RpcError

FORM: dict[str, Any] = {
    "mode": "form",
    "message": "Sure?",
    "requestedSchema": {"type": "object", "properties": {}},
}
YES: dict[str, Any] = {"action": "accept", "content": {"ok": True}}


def asks(state: str | None = "ZZ", **questions: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"resultType": "input_required"}
    if questions:
        result["inputRequests"] = questions
    return result if state is None else result | {"requestState": state}


class AskingServer(StatelessScriptedServer):
    """A server that returns these results in turn, and records its calls."""

    def __init__(self, *results: Any) -> None:
        super().__init__(tools=[tool("t")])
        self.results = list(results)
        self.calls: list[Any] = []
        self.methods["tools/call"] = self.run

    def run(self, params: Any) -> Any:
        self.calls.append(params)
        found = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(found, RpcError):
            raise found
        return found


DONE: dict[str, Any] = {"resultType": "complete", "content": []}
ELICIT: dict[str, Any] = {"method": "elicitation/create", "params": FORM}


@pytest.mark.holds("T83")
async def test_a_client_gets_the_questions_and_the_call_is_repeated() -> None:
    server = AskingServer(asks(ok=ELICIT, r={"method": "roots/list"}), DONE)
    async with (
        serving(s=server) as made,
        session_client(made, elicitation={}, roots={}) as user,
    ):
        user.answers["elicitation/create"] = lambda _: YES
        user.answers["roots/list"] = lambda _: {"roots": []}
        assert await user.call("s__t", arguments={"a": 1}) == {"content": []}
        assert user.asked_requests == [("elicitation/create", FORM), ("roots/list", None)]
        first, second = server.calls
        assert second["inputResponses"] == {"ok": YES, "r": {"roots": []}}
        assert second["requestState"] == "ZZ"
        assert second["arguments"] == first["arguments"] == {"a": 1}
        assert first["_meta"][CAPABILITIES] == {"elicitation": {"form": {}}, "roots": {}}
        ids = [request.id for request in server.requests if request.method == "tools/call"]
        assert len(set(ids)) == 2


@pytest.mark.holds("T84")
async def test_a_client_that_cannot_be_asked_gets_an_error_at_once() -> None:
    refusal = RpcError(-32021, "needs it", {"requiredCapabilities": {"elicitation": {}}})
    server = AskingServer(refusal)
    async with (
        serving(s=server) as made,
        session_client(made, "2024-11-05", elicitation={}) as user,
    ):
        error: Any = await user.expect_error("tools/call", {"name": "s__t"})
        assert error.code == -32603
        assert error.data == {
            "upstreamCode": -32021,
            "requiredCapabilities": {"elicitation": {}},
        }
        assert server.calls[0]["_meta"][CAPABILITIES] == {}
        # A server that asks anyway gets an error, too.
        server.results = [asks(ok=ELICIT)]
        again: Any = await user.expect_error("tools/call", {"name": "s__t"})
        assert (again.code, again.data["upstreamCode"]) == (-32603, -32021)
        assert again.data["requiredCapabilities"] == {"elicitation": {"form": {}}}


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_no_client_gets_an_undeclared_form_of_a_request(version: str) -> None:
    elicitation = {"mode": "url", "message": "Log in", "url": "https://x.example/in"}
    server = AskingServer(asks(v={"method": "elicitation/create", "params": elicitation}))
    async with serving(s=server) as made, session_client(made, version, elicitation={}) as user:
        error = await user.expect_error("tools/call", {"name": "s__t"})
        needs: Any = {"requiredCapabilities": {"elicitation": {"url": {}}}}
        assert (error.code, error.data) == (-32603, {"upstreamCode": -32021, **needs})
        assert user.asked_requests == []
        assert user.asked_requests == []


@pytest.mark.holds("T85")
async def test_an_error_of_the_client_ends_the_call() -> None:
    def refuse(_: Any) -> Any:
        raise RpcError(-1, "User rejected sampling request")

    sampling: Any = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    server = AskingServer(asks(s=sampling))
    async with serving(s=server) as made, session_client(made, sampling={}) as user:
        user.answers["sampling/createMessage"] = refuse
        error = await user.expect_error("tools/call", {"name": "s__t"})
        assert (error.code, error.message) == (-1, "User rejected sampling request")
        assert len(server.calls) == 1


@pytest.mark.holds("T86")
async def test_a_server_that_never_stops_asking_fails() -> None:
    server = AskingServer(asks(ok=ELICIT))
    async with serving(s=server) as made, session_client(made, elicitation={}) as user:
        user.answers["elicitation/create"] = lambda _: YES
        error = await user.expect_error("tools/call", {"name": "s__t"})
        assert error.code == -32603
        assert len(server.calls) == 1 + stateless_server.MAX_INPUT_ROUNDS


async def test_a_server_that_only_wants_a_repetition_gets_it_after_a_pause() -> None:
    server = AskingServer(asks("later"), asks("later still"), DONE)
    server.limits = replace(server.limits, min_input_retry_delay=0.001)
    async with serving(s=server) as made, session_client(made) as user:
        assert await user.call("s__t") == {"content": []}
        assert [call.get("requestState") for call in server.calls] == [
            None,
            "later",
            "later still",
        ]
        assert all("inputResponses" not in call for call in server.calls)


@pytest.mark.holds("T87")
async def test_a_url_elicitation_gets_the_id_that_its_client_needs() -> None:
    elicitation = {"mode": "url", "message": "Log in", "url": "https://x.example/in"}
    server = AskingServer(asks(v={"method": "elicitation/create", "params": elicitation}), DONE)
    async with serving(s=server) as made, session_client(made, elicitation={"url": {}}) as user:
        user.answers["elicitation/create"] = lambda _: {"action": "accept"}
        await user.call("s__t")
        ((_, asked),) = user.asked_requests
        assert asked.pop("elicitationId")
        assert asked == elicitation


async def test_forms_are_sent_in_the_clients_revision() -> None:
    server = AskingServer(asks(ok=ELICIT), DONE)
    async with (
        serving(s=server) as made,
        session_client(made, "2025-06-18", elicitation={}) as user,
    ):
        user.answers["elicitation/create"] = lambda _: YES
        await user.call("s__t")
        ((_, asked),) = user.asked_requests
        assert "mode" not in asked


async def test_a_cancelled_call_stops_its_input_rounds() -> None:
    asked = asyncio.Event()
    server = AskingServer(asks(ok=ELICIT))

    async def think(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async with serving(s=server) as made, session_client(made, elicitation={}) as user:
        user.answers["elicitation/create"] = think
        calling = asyncio.create_task(user.call("s__t"))
        await asked.wait()
        (request_id,) = [each.original_id for each in made.remapper.pending()] or [1]
        await user.notify("notifications/cancelled", {"requestId": request_id or 1})
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert len(server.calls) == 1


@pytest.mark.parametrize(
    "result",
    [
        asks(None),
        asks(ok={"method": "vendor/ask"}),
        asks(ok=7),
        {"resultType": "input_required", "requestState": 7},
    ],
)
async def test_an_invalid_response_ends_the_call(result: Any) -> None:
    server = AskingServer(result)
    async with serving(s=server) as made, session_client(made, elicitation={}) as user:
        assert (await user.expect_error("tools/call", {"name": "s__t"})).code == -32603
        assert len(server.calls) == 1
