"""Clients that listen: acknowledged first, told what they asked for, and gone without a trace."""

import asyncio
from typing import Any

import pytest

from tests.gateway.letters import (
    ACKNOWLEDGED,
    LISTEN,
    SUBSCRIPTION,
    EnvelopeServer,
    Paper,
    Poster,
    poster,
    put_away,
)
from tests.gateway.servers import Hold, Server, add, gateway, refuse, running, serving, tool, user
from trunkline.gateway import stateless
from trunkline.gateway.listening import Listening
from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.jsonrpc.message import SpelledInt, SpelledStr
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal

SOMEBODY = Caller(Principal("p"), "2026-07-28", {}, Raw(b"{}"))
UPDATED = "notifications/resources/updated"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"
LISTS = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}


def keeper(*uris: str, kind: Any = Server) -> Any:
    """Return a server with these resources, which says whenever one changes."""
    server = kind(resources=[{"uri": uri, "name": uri} for uri in uris])
    server.capabilities["resources"] = {"subscribe": True, "listChanged": True}
    return server


def marked(id: Any, **params: Any) -> dict[str, Any]:
    return {"_meta": {SUBSCRIPTION: id}, **params}


async def acknowledged(paper: Paper) -> Any:
    """Return what a client is told that it will hear of, first of all."""
    method, params = await paper.hear()
    assert method == ACKNOWLEDGED
    return params["notifications"]


# What may be asked for


# One who listens


@pytest.mark.parametrize(
    ("id", "written"),
    [
        (5, b"5"),
        ("5", b'"5"'),
        (SpelledInt.read(0, b"-0"), b"-0"),
        (SpelledStr.read("A", b'"\\u0041"'), b'"\\u0041"'),
    ],
)
async def test_every_word_is_marked_with_the_clients_own_id(id: Any, written: bytes) -> None:
    said: list[Any] = []

    class Line(Paper):
        async def notify(self, method: str, params: Any) -> None:
            said.append(params)
            await super().notify(method, params)

    paper = Line()
    listening = Listening(id, paper, ["tools", "resources"], SOMEBODY)
    listening.followed["p:"] = ("a", "x:")
    running = asyncio.create_task(listening.run())
    await acknowledged(paper)
    listening.changed(Kind.TOOL)
    listening.updated("a", "x:", None, to_raw({"uri": "x:", "_meta": {"k": 1}}))
    for _ in range(2):
        await paper.hear()
    listening.end()
    said.append(await running)
    assert [bytes(from_raw(to_raw(p), dict[str, Raw])["_meta"]) for p in said] == [
        b'{"%s":%s}' % (SUBSCRIPTION.encode(), written),
        b'{"%s":%s}' % (SUBSCRIPTION.encode(), written),
        b'{"k":1,"%s":%s}' % (SUBSCRIPTION.encode(), written),
        b'{"%s":%s}' % (SUBSCRIPTION.encode(), written),
    ]


async def test_the_acknowledgement_comes_first_however_slow_the_line() -> None:
    paper = Paper()
    paper.blocked = asyncio.Event()
    listening = Listening(1, paper, ["tools"], SOMEBODY)
    running = asyncio.create_task(listening.run())
    await asyncio.sleep(0)
    blocked, paper.blocked = paper.blocked, None
    listening.changed(Kind.TOOL)
    for _ in range(3):
        await asyncio.sleep(0)
    assert paper.told.empty()
    blocked.set()
    heard = [(await paper.hear())[0] for _ in range(2)]
    assert heard == [ACKNOWLEDGED, "notifications/tools/list_changed"]
    await put_away(running)


async def test_a_line_that_is_torn_ends_nothing_but_itself() -> None:
    paper = Paper()
    paper.torn = True
    listening = Listening(1, paper, ["tools"], SOMEBODY)
    running = asyncio.create_task(listening.run())
    await asyncio.sleep(0)
    listening.changed(Kind.TOOL)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not running.done()
    await put_away(running)


# Through the gateway


async def test_what_was_asked_for_and_nothing_else_is_heard() -> None:
    server = Server(tools=[tool("t")], prompts=[{"name": "p"}])
    async with serving(s=server) as made:
        client, tools, prompts = await poster(made), Paper(), Paper()
        listening = [
            client.listen(tools, 1, toolsListChanged=True),
            client.listen(prompts, 2, promptsListChanged=True, resourcesListChanged=True),
        ]
        assert await acknowledged(tools) == {"toolsListChanged": True}
        assert await acknowledged(prompts) == {"promptsListChanged": True}  # no resources here
        await server.line.notify("notifications/tools/list_changed")
        heard = await tools.hear()
        assert heard == ("notifications/tools/list_changed", marked(1))
        await server.line.notify("notifications/message", {"level": "error"})
        await server.line.notify("vendor/news", {})
        await server.line.notify("notifications/prompts/list_changed")
        assert await prompts.hear() == ("notifications/prompts/list_changed", marked(2))
        assert (tools.everything(), prompts.everything()) == ([], [])
        await put_away(*listening)


@pytest.mark.holds("T40")
async def test_two_who_listen_each_hear_under_their_own_id() -> None:
    server = keeper("x:1", "x:2")
    async with serving(s=server) as made:
        client, papers = await poster(made), [Paper(), Paper()]
        wishes: dict[str, Any] = LISTS | {"resourceSubscriptions": ["x:1"]}
        listening = [
            client.listen(paper, id, **wishes) for paper, id in zip(papers, (1, "1"), strict=True)
        ]
        for paper, id in zip(papers, (1, "1"), strict=True):
            assert await paper.hear() == (
                ACKNOWLEDGED,
                marked(
                    id,
                    notifications={
                        "resourcesListChanged": True,
                        "toolsListChanged": True,
                        "resourceSubscriptions": ["x:1"],
                    },
                ),
            )
        await server.line.notify(UPDATED, {"uri": "x:2"})
        await server.line.notify(UPDATED, {"uri": "x:1"})
        for paper, id in zip(papers, (1, "1"), strict=True):
            assert await paper.hear() == (UPDATED, marked(id, uri="x:1"))
        await put_away(*listening)


async def test_news_come_with_all_that_the_server_said_but_under_no_id_of_ours() -> None:
    for kind in (Server, EnvelopeServer):
        server = keeper("x:1", "x:1/listed", kind=kind)
        async with serving(s=server) as made, user(made) as old:
            client, paper = Poster(made), Paper()
            await old.ask(SUBSCRIBE, {"uri": "x:1"})
            listening = client.listen(paper, "s", resourceSubscriptions=["x:1"])
            await acknowledged(paper)
            for uri in ("x:1", "x:1/listed", "x:1/other"):
                news = {"uri": uri, "vendor": 1}
                stray = {SUBSCRIPTION: "upstream's", "vendor/x": 1}
                await server.line.notify(UPDATED, news | {"_meta": stray})
                _, told = await paper.hear()
                assert told == news | {"_meta": {SUBSCRIPTION: "s", "vendor/x": 1}}
                assert await old.until_told(UPDATED) == news | {"_meta": {"vendor/x": 1}}
            await put_away(listening)


async def test_news_that_make_no_sense_reach_nobody_and_stop_nothing() -> None:
    server = keeper("x:1")
    async with serving(s=server) as made, user(made) as old:
        client, paper = Poster(made), Paper()
        await old.ask(SUBSCRIBE, {"uri": "x:1"})
        listening = client.listen(paper, resourceSubscriptions=["x:1"])
        await acknowledged(paper)
        for news in ({}, {"uri": 7}, {"uri": "x:1", "_meta": 7}, ["x:1"]):
            await server.line.notify(UPDATED, news)
        await server.line.notify(UPDATED, {"uri": "x:1"})
        assert await paper.hear() == (UPDATED, marked("s", uri="x:1"))
        assert await old.until_told(UPDATED) == {"uri": "x:1"}
        await put_away(listening)


async def test_equal_uris_of_two_servers_are_told_apart() -> None:
    a, b = keeper("x:1"), keeper("x:1", "x:1/deep")
    async with serving(a=a, b=b) as made:
        client, paper = await poster(made), Paper()
        listening = client.listen(paper, resourceSubscriptions=["trunkline:b:x:1"])
        await acknowledged(paper)
        assert (a.count(SUBSCRIBE), b.heard[-1]) == (0, (SUBSCRIBE, {"uri": "x:1"}))
        await a.line.notify(UPDATED, {"uri": "x:1"})
        for native, public in (
            ("x:1", "trunkline:b:x:1"),
            ("x:1/deep", "x:1/deep"),  # as it is listed
            ("x:1/new", "trunkline:b:x:1/new"),
        ):
            await b.line.notify(UPDATED, {"uri": native})
            assert await paper.hear() == (UPDATED, marked("s", uri=public))
        await put_away(listening)
        assert paper.everything() == []


@pytest.mark.holds("T93")
async def test_a_resource_that_two_follow_is_followed_once_and_until_the_last_has_gone() -> None:
    server = keeper("x:1")
    async with serving(s=server) as made:
        client, one, two = await poster(made), Paper(), Paper()
        first = client.listen(one, 1, resourceSubscriptions=["x:1"])
        await acknowledged(one)
        second = client.listen(two, 2, resourceSubscriptions=["x:1"])
        await acknowledged(two)
        assert server.count(SUBSCRIBE) == 1
        await put_away(first)
        await server.line.notify(UPDATED, {"uri": "x:1"})
        assert (await two.hear())[0] == UPDATED
        assert server.count(UNSUBSCRIBE) == 0
        await put_away(second)
        assert await server.until_heard(UNSUBSCRIBE) == {"uri": "x:1"}
        assert one.everything() == two.everything() == []


async def test_sessions_and_those_who_listen_share_what_they_follow() -> None:
    server = keeper("x:1")
    async with serving(s=server) as made:
        client, paper = await poster(made), Paper()
        async with user(made) as old:
            await old.ask(SUBSCRIBE, {"uri": "x:1"})
            listening = client.listen(paper, resourceSubscriptions=["x:1"])
            await acknowledged(paper)
            assert server.count(SUBSCRIBE) == 1
            await put_away(listening)
            await server.line.notify(UPDATED, {"uri": "x:1"})
            await old.until_told(UPDATED)
            assert server.count(UNSUBSCRIBE) == 0
        await server.until_heard(UNSUBSCRIBE)


@pytest.mark.holds("T41")
async def test_what_cannot_be_followed_is_left_out() -> None:
    able, unable, down = keeper("x:1"), keeper("y:1"), keeper("z:1")
    unable.methods[SUBSCRIBE] = refuse(-32601)
    async with serving(a=able, b=unable, c=down) as made:
        client, paper = await poster(made), Paper()
        down.broken = OSError("gone")
        await down.die()
        while made.registry.upstream("c").ready:
            await asyncio.sleep(0)
        listening = client.listen(
            paper, resourceSubscriptions=["nobody's:", "y:1", "z:1", "x:1", "x:1"]
        )
        assert await acknowledged(paper) == {"resourceSubscriptions": ["x:1"]}
        await put_away(listening)
        assert unable.count(UNSUBSCRIBE) == 0


async def test_a_server_that_does_not_answer_delays_the_acknowledgement_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stateless, "ACK_PATIENCE", 0.01)
    able, slow = keeper("x:1", "x:2"), keeper("y:1", "y:2")
    slow.methods[SUBSCRIBE] = hold = Hold({})
    async with serving(a=able, b=slow) as made:
        client, paper = await poster(made), Paper()
        listening = client.listen(paper, resourceSubscriptions=["x:1", "y:1", "y:2", "x:2"])
        assert sorted((await acknowledged(paper))["resourceSubscriptions"]) == ["x:1", "x:2"]
        assert hold.begun.is_set()
        # Whether it follows now nobody knows, so it is told that nobody does.
        assert await slow.until_heard(UNSUBSCRIBE) == {"uri": "y:1"}
        await put_away(listening)


async def test_the_end_of_the_gateway_is_told_in_order() -> None:
    server = keeper("x:1")
    async with serving(s=server) as made:
        client, paper = await poster(made), Paper()
        listening = client.listen(paper, 7, resourceSubscriptions=["x:1"])
        await acknowledged(paper)
        made.stateless.end()
        assert await listening == {"resultType": "complete", **marked(7)}
        late = client.listen(paper, 8, toolsListChanged=True)
        assert await late == {"resultType": "complete", **marked(8)}
        assert await acknowledged(paper) == {"toolsListChanged": True}
        assert paper.everything() == []


async def test_an_end_that_comes_while_resources_are_being_followed_is_heard() -> None:
    server = keeper("x:1")
    server.methods[SUBSCRIBE] = hold = Hold({})
    async with serving(s=server) as made:
        client, paper = await poster(made), Paper()
        listening = client.listen(paper, 7, resourceSubscriptions=["x:1"])
        await hold.begun.wait()
        made.stateless.end()
        hold.let_go.set()
        assert (await listening)["resultType"] == "complete"


@pytest.mark.parametrize("early", [True, False])
async def test_one_who_goes_while_resources_are_being_followed_leaves_nothing(
    early: bool,
) -> None:
    server = keeper("x:1", "x:2")
    server.methods[SUBSCRIBE] = hold = Hold({})
    async with serving(s=server) as made:
        client, paper = await poster(made), Paper()
        listening = client.listen(paper, resourceSubscriptions=["x:1", "x:2"])
        await hold.begun.wait()
        if not early:
            hold.let_go.set()
            await acknowledged(paper)
        await put_away(listening)
        gone = {(await server.until_heard(UNSUBSCRIBE))["uri"]}
        if not early:
            gone.add((await server.until_heard(UNSUBSCRIBE))["uri"])
        assert gone == ({"x:1"} if early else {"x:1", "x:2"})
        # The next one has to ask again, and does.
        del server.methods[SUBSCRIBE]
        before = server.count(SUBSCRIBE)
        again = client.listen(paper, resourceSubscriptions=["x:1"])
        assert await acknowledged(paper) == {"resourceSubscriptions": ["x:1"]}
        assert server.count(SUBSCRIBE) == before + 1
        await put_away(again)


async def test_a_server_that_comes_back_is_followed_again_and_one_that_is_gone_need_not_know() -> (
    None
):
    server = keeper("x:1")
    made = gateway()
    add(made, "s", server, max_restarts=1)
    async with running(made, server):
        client, paper = await poster(made), Paper()
        listening = client.listen(paper, resourceSubscriptions=["x:1"])
        await acknowledged(paper)
        await server.until_heard(SUBSCRIBE)
        await server.die()
        assert await server.until_heard(SUBSCRIBE) == {"uri": "x:1"}
        await server.line.notify(UPDATED, {"uri": "x:1"})
        assert await paper.hear() == (UPDATED, marked("s", uri="x:1"))
        server.broken = OSError("gone")
        await server.die()
        while made.registry.upstream("s").state != "failed":
            await asyncio.sleep(0)
        await put_away(listening)
        assert server.count(UNSUBSCRIBE) == 0


async def test_changes_are_told_whatever_made_them() -> None:
    server, other = Server(tools=[tool("t")]), EnvelopeServer(tools=[tool("t")])
    async with serving(s=server, o=other) as made:
        client, paper = await poster(made), Paper()
        listening = client.listen(paper, **LISTS)
        await acknowledged(paper)
        told = ("notifications/tools/list_changed", marked("s"))
        await other.tell("notifications/tools/list_changed")  # although nothing differs
        assert await paper.hear() == told
        server.lists["tools"].append(tool("more"))
        await server.die()
        assert await paper.hear() == told
        await put_away(listening)


async def test_a_server_of_the_same_era_has_one_subscription_for_all() -> None:
    server = keeper("x:1", "x:2", kind=EnvelopeServer)
    async with serving(s=server) as made:
        client, papers = await poster(made), [Paper(), Paper()]
        listening = [
            client.listen(paper, resourceSubscriptions=[uri])
            for paper, uri in zip(papers, ("x:1", "x:2"), strict=True)
        ]
        for paper in papers:
            await acknowledged(paper)
        wishes = [params["notifications"] for method, params in server.heard if method == LISTEN]
        assert set(wishes[-1]["resourceSubscriptions"]) == {"x:1", "x:2"}
        await server.tell(UPDATED, uri="x:2")
        assert await papers[1].hear() == (UPDATED, marked("s", uri="x:2"))
        assert papers[0].everything() == []
        await put_away(*listening)
