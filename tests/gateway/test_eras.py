"""What passes between clients and servers of different eras, beside questions and shapes."""

from typing import Any

import pytest

from tests.gateway.letters import (
    CAPABILITIES,
    LISTEN,
    SUBSCRIPTION,
    EnvelopeServer,
    Paper,
    Poster,
    poster,
    put_away,
)
from tests.gateway.servers import Server, one_tool, serving, tool, user
from trunkline.jsonrpc import RpcError

UPDATED = "notifications/resources/updated"
VENDOR: dict[str, Any] = {"traceparent": "00-1-2-01", "vendor.example/x": [1, {"y": None}]}


def own(meta: Any) -> dict[str, Any]:
    """Return what is in `_meta` beside what MCP puts there."""
    return {key: meta[key] for key in meta if not key.startswith("io.modelcontextprotocol/")}


@pytest.mark.holds("T99", "T100")
async def test_what_is_not_ours_crosses_the_eras_both_ways() -> None:
    old, new = one_tool("t"), EnvelopeServer(tools=[tool("t")])
    for server in (old, new):
        server.methods["tools/call"] = lambda _: {"content": [], "_meta": VENDOR}
    async with serving(old=old, new=new) as made, user(made) as somebody:
        client = await poster(made)
        assert (await client.call("old__t", _meta=VENDOR))["_meta"] == VENDOR
        assert (await somebody.call("new__t", _meta=VENDOR))["_meta"] == VENDOR
        for server in (old, new):
            ((_, params),) = [heard for heard in server.heard if heard[0] == "tools/call"]
            assert own(params["_meta"]) == VENDOR


@pytest.mark.holds("T37")
async def test_within_the_envelope_era_a_state_passes_to_the_byte_under_another_id() -> None:
    state = 'a/b+c= "é" ' + "x" * 2**20
    server = EnvelopeServer(tools=[tool("t")])
    server.methods["tools/call"] = lambda params: (
        {"resultType": "complete", "content": []}
        if "requestState" in params
        else {"resultType": "input_required", "requestState": state}
    )
    async with serving(s=server) as made:
        client = await poster(made)
        asked = await client.ask("tools/call", id=7, name="s__t")
        assert (asked["resultType"], asked["requestState"]) == ("input_required", state)
        await client.ask("tools/call", id=8, name="s__t", requestState=state)
        first, second = [r for r in server.requests if r.method == "tools/call"]
        assert first.id != second.id
        assert server.heard[-1][1]["requestState"] == state


@pytest.mark.holds("T31")
@pytest.mark.parametrize(
    ("can", "params", "missing"),
    [
        ({"sampling": {}}, {"message": "?", "requestedSchema": {}}, "form"),
        ({"elicitation": {}}, {"mode": "url", "message": "?", "url": "https://x.example"}, "url"),
    ],
)
async def test_nor_does_a_server_of_its_own_era_ask_a_client_what_it_did_not_declare(
    can: Any, params: Any, missing: str
) -> None:
    asks: Any = {"k": {"method": "elicitation/create", "params": params}}
    server = EnvelopeServer(tools=[tool("t")])
    server.methods["tools/call"] = lambda _: {
        "resultType": "input_required",
        "inputRequests": asks,
    }
    async with serving(s=server) as made:
        client = await poster(made)
        error = await client.refusal("tools/call", name="s__t", _meta={CAPABILITIES: can})
        needs: Any = {"requiredCapabilities": {"elicitation": {missing: {}}}}
        assert (error.code, error.data) == (-32021, needs)
        able: Any = {"elicitation": {"form": {}, "url": {}}}
        asked = await client.call("s__t", _meta={CAPABILITIES: able})
        assert asked == {"resultType": "input_required", "inputRequests": asks}


async def test_a_task_that_nobody_was_offered_is_an_error() -> None:
    server = EnvelopeServer(tools=[tool("t")])
    server.methods["tools/call"] = lambda _: {"resultType": "task", "taskId": "1"}
    async with serving(s=server) as made, user(made) as somebody:
        client = await poster(made)
        for error in (
            await client.refusal("tools/call", name="s__t"),
            await somebody.refusal("tools/call", {"name": "s__t"}),
        ):
            assert error.code == -32603
            assert "the server answers with a task" in error.message


@pytest.mark.holds("T30")
async def test_only_servers_of_the_envelope_era_ask_with_a_result() -> None:
    server = Server(tools=[tool("t")], resources=[{"uri": "x:1", "name": "x"}])
    said = {"resultType": "input_required", "ttlMs": 9, "cacheScope": "public"}
    server.methods["tools/call"] = lambda _: {"content": [], "resultType": "input_required"}
    server.methods["resources/read"] = lambda _: {"contents": [], **said}
    async with serving(s=server) as made:
        client = await poster(made)
        assert await client.call("s__t") == {"content": [], "resultType": "complete"}
        assert await client.ask("resources/read", uri="x:1") == {
            "contents": [],
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        }


@pytest.mark.holds("T92")
async def test_what_a_server_asks_outside_of_any_call_is_answered_at_once() -> None:
    server = one_tool("t")
    async with serving(s=server) as made:
        made.client_capabilities = {"roots": {}, "elicitation": {}}
        client = await poster(made)
        assert await server.ask("ping") == {}
        for method in ("roots/list", "elicitation/create"):
            with pytest.raises(RpcError) as refused:
                await server.ask(method, {})
            assert refused.value.code == -32601
        assert (await client.call("s__t"))["resultType"] == "complete"


@pytest.mark.holds("T94")
async def test_a_client_of_the_handshake_follows_what_an_envelope_server_has() -> None:
    uri = "file:///a"
    server = EnvelopeServer(resources=[{"uri": uri, "name": "a"}])
    server.capabilities["resources"] = {"subscribe": True, "listChanged": True}
    async with serving(s=server) as made, user(made) as somebody:
        assert await somebody.ask("resources/subscribe", {"uri": uri}) == {}
        wishes = [params["notifications"] for method, params in server.heard if method == LISTEN]
        assert wishes[-1] == {"resourcesListChanged": True, "resourceSubscriptions": [uri]}
        await server.tell(UPDATED, uri=uri)
        told = await somebody.until_told(UPDATED)
        assert told == {"uri": uri}


@pytest.mark.holds("T93")
async def test_envelope_clients_follow_what_a_handshake_server_has_once_for_all() -> None:
    uri = "file:///a"
    server = Server(resources=[{"uri": uri, "name": "a"}])
    server.capabilities["resources"] = {"subscribe": True}
    async with serving(s=server) as made:
        client, papers = await poster(made), (Paper(), Paper())
        listening = [
            client.listen(paper, id, resourceSubscriptions=[uri])
            for paper, id in zip(papers, (1, "1"), strict=True)
        ]
        for paper in papers:
            await paper.hear()
        await server.line.notify(UPDATED, {"uri": uri})
        for paper, id in zip(papers, (1, "1"), strict=True):
            assert await paper.hear() == (UPDATED, {"uri": uri, "_meta": {SUBSCRIPTION: id}})
        assert server.count("resources/subscribe") == 1
        await put_away(listening[0])
        assert server.count("resources/unsubscribe") == 0
        await put_away(listening[1])
        assert await server.until_heard("resources/unsubscribe") == {"uri": uri}


@pytest.mark.holds("T101")
async def test_the_same_id_and_token_of_two_eras_are_two() -> None:
    server = one_tool("t")

    async def run(params: Any) -> Any:
        token, who = params["_meta"]["progressToken"], params["arguments"]["who"]
        news = {"progressToken": token, "progress": 1, "message": who}
        await server.line.notify("notifications/progress", news)
        return {"content": [{"type": "text", "text": who}]}

    server.methods["tools/call"] = run
    async with serving(s=server) as made, user(made) as somebody:
        client, paper = Poster(made), Paper()
        meta = {"progressToken": 1}
        new = await client.call("s__t", paper, _meta=meta, arguments={"who": "new"})
        old = await somebody.call("s__t", _meta=meta, arguments={"who": "old"})
        assert [found["content"][0]["text"] for found in (new, old)] == ["new", "old"]
        assert [(p["progressToken"], p["message"]) for _, p in paper.everything()] == [(1, "new")]
        told = await somebody.until_told("notifications/progress")
        assert (told["progressToken"], told["message"]) == (1, "old")
        assert "notifications/progress" not in dict(somebody.everything())


async def test_a_question_is_its_callers_whatever_others_want_to_have_completed() -> None:
    server = Server(tools=[tool("t")], prompts=[{"name": "p"}])
    server.capabilities["completions"] = {}

    async def complete(_: Any) -> Any:
        # In the course of another client's completion the tool asks its own client.
        server.methods["tools/call"] = ask
        assert await one.call("s__t") == {"content": []}
        return {"completion": {"values": []}}

    async def ask(_: Any) -> Any:
        assert await server.ask("roots/list") == {"roots": []}
        return {"content": []}

    server.methods["completion/complete"] = complete
    able: dict[str, Any] = {"roots": {}}
    async with serving(s=server) as made, user(made, **able) as one, user(made, **able) as two:
        one.answers["roots/list"] = lambda _: {"roots": []}
        params = {"ref": {"type": "ref/prompt", "name": "s__p"}, "argument": {}}
        await two.ask("completion/complete", params)
        assert ([m for m, _ in one.asked], two.asked) == (["roots/list"], [])


async def test_who_can_be_asked_nothing_shares_and_asks_nobody_elses_questions() -> None:
    """A server asks although it was told that it may not: nobody is asked."""
    server = one_tool("t")

    async def ask(_: Any) -> Any:
        try:
            await server.ask("roots/list")
        except RpcError as error:
            return {"content": [], "structuredContent": {"code": error.code}}

    server.methods["tools/call"] = ask
    async with serving(s=server) as made:
        client = await poster(made)
        done = await client.call("s__t", _meta={CAPABILITIES: {}})
        assert done["structuredContent"] == {"code": -32601}
