"""Servers that ask with their answer, before clients that are asked on their way."""

import asyncio
from typing import Any

import pytest

from tests.gateway.letters import CAPABILITIES, EnvelopeServer
from tests.gateway.servers import serving, tool, user
from trunkline.backends import round_trips
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


class Curious(EnvelopeServer):
    """A server that gives these results in turn, and remembers what it was called with."""

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
async def test_a_client_is_asked_on_its_way_and_the_server_called_again() -> None:
    server = Curious(asks(ok=ELICIT, r={"method": "roots/list"}), DONE)
    async with serving(s=server) as made, user(made, elicitation={}, roots={}) as somebody:
        somebody.answers["elicitation/create"] = lambda _: YES
        somebody.answers["roots/list"] = lambda _: {"roots": []}
        assert await somebody.call("s__t", arguments={"a": 1}) == {"content": []}
        assert somebody.asked == [("elicitation/create", FORM), ("roots/list", None)]
        first, second = server.calls
        assert second["inputResponses"] == {"ok": YES, "r": {"roots": []}}
        assert second["requestState"] == "ZZ"
        assert second["arguments"] == first["arguments"] == {"a": 1}
        assert first["_meta"][CAPABILITIES] == {"elicitation": {"form": {}}, "roots": {}}
        ids = [request.id for request in server.requests if request.method == "tools/call"]
        assert len(set(ids)) == 2


@pytest.mark.holds("T84")
async def test_who_cannot_be_asked_is_told_so_and_does_not_wait() -> None:
    refusal = RpcError(-32021, "needs it", {"requiredCapabilities": {"elicitation": {}}})
    server = Curious(refusal)
    async with serving(s=server) as made, user(made, "2024-11-05", elicitation={}) as somebody:
        error: Any = await somebody.refusal("tools/call", {"name": "s__t"})
        assert error.code == -32603
        assert error.data == {
            "upstreamCode": -32021,
            "requiredCapabilities": {"elicitation": {}},
        }
        assert server.calls[0]["_meta"][CAPABILITIES] == {}
        # One that asks all the same gets nowhere, either.
        server.results = [asks(ok=ELICIT)]
        again: Any = await somebody.refusal("tools/call", {"name": "s__t"})
        assert (again.code, again.data["upstreamCode"]) == (-32603, -32021)
        assert again.data["requiredCapabilities"] == {"elicitation": {"form": {}}}


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_nor_is_anybody_asked_in_a_way_that_it_did_not_declare(version: str) -> None:
    visit = {"mode": "url", "message": "Log in", "url": "https://x.example/in"}
    server = Curious(asks(v={"method": "elicitation/create", "params": visit}))
    async with serving(s=server) as made, user(made, version, elicitation={}) as somebody:
        error = await somebody.refusal("tools/call", {"name": "s__t"})
        needs: Any = {"requiredCapabilities": {"elicitation": {"url": {}}}}
        assert (error.code, error.data) == (-32603, {"upstreamCode": -32021, **needs})
        assert somebody.asked == []
        assert somebody.asked == []


@pytest.mark.holds("T85")
async def test_a_client_that_answers_with_an_error_has_ended_the_call() -> None:
    def refuse(_: Any) -> Any:
        raise RpcError(-1, "User rejected sampling request")

    sampling: Any = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
    server = Curious(asks(s=sampling))
    async with serving(s=server) as made, user(made, sampling={}) as somebody:
        somebody.answers["sampling/createMessage"] = refuse
        error = await somebody.refusal("tools/call", {"name": "s__t"})
        assert (error.code, error.message) == (-1, "User rejected sampling request")
        assert len(server.calls) == 1


@pytest.mark.holds("T86")
async def test_a_server_that_never_has_enough_is_given_up() -> None:
    server = Curious(asks(ok=ELICIT))
    async with serving(s=server) as made, user(made, elicitation={}) as somebody:
        somebody.answers["elicitation/create"] = lambda _: YES
        error = await somebody.refusal("tools/call", {"name": "s__t"})
        assert error.code == -32603
        assert len(server.calls) == 1 + round_trips.MAX_ROUNDS


async def test_one_that_only_wants_to_be_called_again_is_left_alone_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(round_trips, "FIRST_PAUSE", 0.001)
    server = Curious(asks("later"), asks("later still"), DONE)
    async with serving(s=server) as made, user(made) as somebody:
        assert await somebody.call("s__t") == {"content": []}
        assert [call.get("requestState") for call in server.calls] == [
            None,
            "later",
            "later still",
        ]
        assert all("inputResponses" not in call for call in server.calls)


@pytest.mark.holds("T87")
async def test_an_address_to_visit_gets_the_id_that_its_client_must_have() -> None:
    visit = {"mode": "url", "message": "Log in", "url": "https://x.example/in"}
    server = Curious(asks(v={"method": "elicitation/create", "params": visit}), DONE)
    async with serving(s=server) as made, user(made, elicitation={"url": {}}) as somebody:
        somebody.answers["elicitation/create"] = lambda _: {"action": "accept"}
        await somebody.call("s__t")
        ((_, asked),) = somebody.asked
        assert asked.pop("elicitationId")
        assert asked == visit


async def test_forms_are_asked_as_the_clients_revision_has_them() -> None:
    server = Curious(asks(ok=ELICIT), DONE)
    async with serving(s=server) as made, user(made, "2025-06-18", elicitation={}) as somebody:
        somebody.answers["elicitation/create"] = lambda _: YES
        await somebody.call("s__t")
        ((_, asked),) = somebody.asked
        assert "mode" not in asked


async def test_who_gives_up_meanwhile_has_stopped_it_all() -> None:
    asked = asyncio.Event()
    server = Curious(asks(ok=ELICIT))

    async def think(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async with serving(s=server) as made, user(made, elicitation={}) as somebody:
        somebody.answers["elicitation/create"] = think
        calling = asyncio.create_task(somebody.call("s__t"))
        await asked.wait()
        (request_id,) = [each.original_id for each in made.remapper.pending()] or [1]
        await somebody.tell("notifications/cancelled", {"requestId": request_id or 1})
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
async def test_what_makes_no_sense_ends_the_call(result: Any) -> None:
    server = Curious(result)
    async with serving(s=server) as made, user(made, elicitation={}) as somebody:
        assert (await somebody.refusal("tools/call", {"name": "s__t"})).code == -32603
        assert len(server.calls) == 1
