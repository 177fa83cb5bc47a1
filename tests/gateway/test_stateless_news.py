"""What is said while a request that stands alone is carried out: what it asked for, and no more."""

import asyncio
from typing import Any

import pytest

from tests.gateway.letters import (
    CAPABILITIES,
    LOG_LEVEL,
    EnvelopeServer,
    Paper,
    letter,
    poster,
    put_away,
)
from tests.gateway.servers import Hold, Server, one_tool, serving, tool
from trunkline.gateway.stateless import Correspondent
from trunkline.jsonrpc import Due, Notification, Raw, Request, Response, RpcError, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.principal import Principal

PROGRESS = "notifications/progress"
LOG = "notifications/message"


async def test_progress_comes_under_the_clients_own_token_and_nothing_else_comes() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made:
        client, papers = await poster(made), [Paper(), Paper(), Paper()]
        calls = [
            asyncio.create_task(client.call("s__echo", paper, _meta=meta))
            for paper, meta in zip(
                papers, ({"progressToken": 7}, {"progressToken": "7"}, {}), strict=True
            )
        ]
        tokens = [
            (await server.until_heard("tools/call")).get("_meta", {}).get("progressToken")
            for _ in calls
        ]
        assert tokens[2] is None
        for token in tokens[:2]:
            await server.line.notify(PROGRESS, {"progressToken": token, "progress": token})
        for token in (7, "7", 99, None):
            await server.line.notify(PROGRESS, {"progressToken": token, "progress": 1})
        for method in ("vendor/news", "notifications/resources/updated", "notifications/cancelled"):
            await server.line.notify(method, {"uri": "x:"})
        await server.line.notify("notifications/tools/list_changed")
        hold.let_go.set()
        await asyncio.gather(*calls)
        assert [paper.everything() for paper in papers] == [
            [(PROGRESS, {"progressToken": 7, "progress": tokens[0]})],
            [(PROGRESS, {"progressToken": "7", "progress": tokens[1]})],
            [],
        ]


@pytest.mark.parametrize("kind", [Server, EnvelopeServer])
async def test_news_that_are_read_together_with_the_answer_come_before_it(kind: Any) -> None:
    server = kind(tools=[tool("t")])
    server.methods["tools/call"] = Hold()
    order: list[str] = []

    class Diary(Paper):
        async def notify(self, method: str, params: Any) -> None:
            order.append(method)

    async with serving(s=server) as made:
        await poster(made)
        params = Params(to_raw(letter({"progressToken": 1}, name="s__t")))
        call: Due = made.stateless.answer(Request(1, "tools/call"), params, Principal("p"), Diary())
        call.then(lambda _: order.append("the answer"))
        token = (await server.until_heard("tools/call"))["_meta"]["progressToken"]
        news = Notification(PROGRESS, {"progressToken": token, "progress": 1})
        answer = Response(server.requests[-1].id, {"resultType": "complete", "content": []})
        await server.channel.send(news.encode())  # nobody reads before both are there
        await server.channel.send(answer.encode())
        await call
        assert order == [PROGRESS, "the answer"]


@pytest.mark.holds("T44", "T45")
@pytest.mark.parametrize("kind", [Server, EnvelopeServer])
@pytest.mark.parametrize(
    ("meta", "heard"),
    [({}, []), ({LOG_LEVEL: None}, []), ({LOG_LEVEL: "warning"}, ["warning", "alert"])],
)
async def test_messages_come_only_if_asked_for_and_only_as_grave(
    meta: dict[str, Any], heard: list[str], kind: Any
) -> None:
    server = kind(tools=[tool("t")])

    async def log(_: Any) -> Any:
        for level in ("debug", "notice", "warning", "alert"):
            await server.line.notify(LOG, {"level": level, "data": 1})
        return {"content": []}

    server.methods["tools/call"] = log
    async with serving(s=server) as made:
        client, paper, other = await poster(made), Paper(), Paper()
        await client.call("s__t", paper, _meta=meta)
        await client.ask("tools/list", other, _meta=meta)
        assert [(LOG, {"level": level, "data": 1}) for level in heard] == paper.everything()
        assert other.everything() == []


@pytest.mark.holds("T47")
@pytest.mark.parametrize("kind", [Server, EnvelopeServer])
async def test_who_declared_nothing_is_asked_nothing(kind: Any) -> None:
    server = kind(tools=[tool("t")])

    async def ask(_: Any) -> Any:
        codes: list[int] = []
        for method in ("sampling/createMessage", "elicitation/create", "roots/list", "vendor/ask"):
            try:
                await server.ask(method, {})
            except RpcError as error:
                codes.append(error.code)
        return {"content": [], "structuredContent": {"codes": codes}}

    server.methods["tools/call"] = ask
    async with serving(s=server) as made:
        client, paper = await poster(made), Paper()
        result = await client.call("s__t", paper, _meta={CAPABILITIES: {}})
        assert result["structuredContent"] == {"codes": [-32601] * 4}
        assert (paper.asked, paper.everything()) == ([], [])


async def test_a_client_that_is_gone_keeps_its_server_from_nothing() -> None:
    server = one_tool()

    async def tell(params: Any) -> Any:
        for _ in range(3):
            await server.line.notify(LOG, {"level": "error"})
        return {"content": []}

    server.methods["tools/call"] = tell
    async with serving(s=server) as made:
        client, paper = await poster(made), Paper()
        paper.torn = True
        await client.call("s__echo", paper, _meta={LOG_LEVEL: "debug"})
        await client.call("s__echo")
        assert server.count("tools/call") == 2


async def test_a_call_that_nobody_waits_for_is_cancelled_at_its_server() -> None:
    server = one_tool()
    server.methods["tools/call"] = Hold()
    async with serving(s=server) as made:
        client = await poster(made)
        call = asyncio.create_task(client.call("s__echo"))
        await server.until_heard("tools/call")
        await put_away(call)
        await server.until_heard("notifications/cancelled")


@pytest.mark.parametrize("torn", [True, False])
async def test_what_is_told_is_waited_for_and_what_is_posted_is_not(torn: bool) -> None:
    paper = Paper()
    paper.torn, paper.blocked = torn, asyncio.Event()
    client = Correspondent(Caller(Principal("p"), "2026-07-28", {}, Raw(b"{}"), "error"), paper)
    client.post(LOG, {"level": "alert"})
    client.post(LOG, {"level": "info"})
    client.post("notifications/tools/list_changed", {})
    telling = asyncio.create_task(client.tell(PROGRESS, {"progressToken": 1}))
    await client.tell(LOG, {"level": "info"})
    await asyncio.sleep(0)
    assert not telling.done()
    paper.blocked.set()
    await telling
    heard = [method for method, _ in paper.everything()]
    assert heard == ([] if torn else [LOG, PROGRESS])
