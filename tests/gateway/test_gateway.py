"""The gateway as a whole: who is told what, engines of texts, and an end that leaves nothing."""

import asyncio
from typing import Any

import pytest

from tests.gateway.letters import Poster
from tests.gateway.servers import Hold, Server, User, hello, one_tool, serving, text_of, tool, user
from tests.gateway.test_session_lifecycle import news, opened, say, text
from trunkline.gateway.events import LeftOut
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import Identity
from trunkline.jsonrpc import Incident

LOG = "notifications/message"


async def test_servers_start_with_the_first_client_and_hear_what_it_can() -> None:
    server = one_tool()
    async with serving(s=server) as made:
        await asyncio.sleep(0)
        assert server.starts == 0
        async with user(made, sampling={"context": {}}, experimental={"x": 1}):
            (said,) = [params for method, params in server.heard if method == "initialize"]
            assert said["capabilities"] == {"sampling": {"context": {}}}
            assert said["protocolVersion"] == "2025-11-25"


async def test_what_nobody_can_use_of_a_list_is_told_once_and_when_it_is_something_else() -> None:
    server = Server(tools=[tool("a"), tool("")])
    heard: list[LeftOut] = []
    async with serving(s=server) as made:
        made.layers.events.listen(lambda e: heard.append(e) if isinstance(e, LeftOut) else None)
        async with user(made) as client:
            await made.registry.wait_settled()
            for listed in (tool("b"), tool("b"), tool("a")):
                server.lists["tools"].append(listed)
                await server.line.notify("notifications/tools/list_changed")
                await client.until_told("notifications/tools/list_changed")
    unnamed = "tools[1]: expected a string as 'name', and not an empty one"
    again = [f"tools: {name!r} again: the first counts" for name in "ab"]
    assert [event.why for event in heard] == [
        (unnamed,),
        (unnamed, again[1]),
        (unnamed, *again),
    ]
    assert {event.backend for event in heard} == {"s"}


async def test_news_go_to_all_who_have_said_that_they_are_ready() -> None:
    server = one_tool()
    async with (
        serving(s=server) as made,
        user(made) as one,
        user(made) as two,
        User(made) as early,
    ):
        await early.ask("initialize", hello())
        await server.line.notify("vendor/news", {"data": {"v": 1}, "_meta": {"k": 2}})
        for somebody in (one, two):
            told = await somebody.until_told("vendor/news")
            assert told == {"data": {"v": 1}, "_meta": {"k": 2}}
        await early.ask("ping")
        assert early.told.empty()


async def test_a_log_message_is_for_the_one_whose_calls_are_under_way() -> None:
    server = one_tool()
    hold = server.methods["tools/call"] = Hold()
    async with serving(s=server) as made, user(made) as one, user(made) as two:
        await server.line.notify(LOG, {"level": "info", "data": "nobody's"})
        calling = asyncio.create_task(one.call("s__echo"))
        await hold.begun.wait()
        await server.line.notify(LOG, {"level": "info", "data": "one's", "_meta": {"k": 2}})
        told = await one.until_told(LOG)
        assert told == {"level": "info", "data": "one's", "_meta": {"k": 2}}
        hold.let_go.set()
        await calling
        await two.ask("ping")
        assert LOG not in [method for method, _ in two.everything()]


async def test_a_log_message_of_somebody_else_is_not_for_the_only_session() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made, user(made) as bystander:
        calls = [asyncio.create_task(Poster(made, name).call("s__echo")) for name in "ab"]
        for _ in calls:
            await server.until_heard("tools/call")
        await server.line.notify(LOG, {"level": "error", "data": "a's or b's"})
        await server.line.notify("vendor/news", {})
        heard = ""
        while heard != "vendor/news":
            heard, _ = await bystander.told.get()
            assert heard != LOG
        hold.let_go.set()
        await asyncio.gather(*calls)
        await server.line.notify(LOG, {"level": "error", "data": "everybody's"})
        assert await bystander.until_told(LOG) == {"level": "error", "data": "everybody's"}


async def test_a_log_message_of_no_call_is_for_the_only_one_who_set_a_level() -> None:
    server = one_tool()
    server.capabilities["logging"] = {}
    async with serving(s=server) as made, user(made) as one, user(made) as two:
        await one.ask("logging/setLevel", {"level": "info"})
        await server.line.notify(LOG, {"level": "info", "data": 1})
        assert await one.until_told(LOG) == {"level": "info", "data": 1}
        await two.ask("ping")
        assert LOG not in [method for method, _ in two.everything()]


async def test_the_only_client_hears_all_log_messages() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made) as one:
        await server.line.notify(LOG, {"level": "info", "data": 1})
        assert await one.until_told(LOG) == {"level": "info", "data": 1}


async def test_a_client_hears_what_is_as_grave_as_it_wants() -> None:
    server = one_tool()
    server.capabilities["logging"] = {}
    async with serving(s=server) as made, user(made) as one:
        assert await one.ask("logging/setLevel", {"level": "warning"}) == {}
        for level in ("debug", "info", "warning", "error", "strange"):
            await server.line.notify(LOG, {"level": level})
        told = [await one.until_told(LOG) for _ in range(3)]
        assert [params["level"] for params in told] == ["warning", "error", "strange"]


async def test_each_of_several_clients_hears_what_is_as_grave_as_it_wants() -> None:
    server = one_tool()
    server.capabilities["logging"] = {}

    async def log(_: Any) -> Any:
        for level in ("debug", "warning", "error"):
            await server.line.notify(LOG, {"level": level})
        return {"content": []}

    server.methods["tools/call"] = log
    async with serving(s=server) as made, user(made) as one, user(made) as two, user(made) as three:
        await one.ask("logging/setLevel", {"level": "error"})
        await two.ask("logging/setLevel", {"level": "debug"})
        for somebody, heard in (
            (one, ["error"]),
            (two, ["debug", "warning", "error"]),
            (three, ["debug", "warning", "error"]),
        ):
            await somebody.call("s__echo")
            told = [params["level"] for method, params in somebody.everything() if method == LOG]
            assert told == heard


async def test_nobody_hears_what_their_revision_does_not_have() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made, "2025-06-18") as old, user(made) as new:
        await server.line.notify("notifications/elicitation/complete", {"elicitationId": "e"})
        await server.line.notify("vendor/news", {"a": 1})
        assert await new.until_told("notifications/elicitation/complete")
        assert await new.until_told("vendor/news") == {"a": 1}
        heard = ""
        while heard != "vendor/news":
            heard, _ = await old.told.get()
            assert heard != "notifications/elicitation/complete"


async def test_an_engine_calls_tools() -> None:
    async with serving(s=one_tool()) as made:
        engine = await opened(made=made)
        await made.registry.wait_settled()
        answer = await say(engine, text("tools/call", {"name": "s__echo"}, id="x"))
        assert (answer["id"], text_of(answer["result"])) == ("x", "echo ran")


async def test_texts_that_are_handled_at_once_get_their_own_answers() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made:
        engine = await opened("2025-03-26", made)
        await made.registry.wait_settled()
        slow = asyncio.create_task(say(engine, text("tools/call", {"name": "s__echo"}, id=1)))
        await hold.begun.wait()
        batch = f"[{text('ping', id=2)},{news('vendor/news')}]"
        answers = await asyncio.gather(say(engine, batch), say(engine, text("ping", id=3)))
        assert [answers[0][0]["id"], answers[1]["id"]] == [2, 3]
        hold.let_go.set()
        assert (await slow)["id"] == 1


async def test_a_text_that_nobody_waits_for_any_more_frees_its_id() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made:
        engine = await opened(made=made)
        await made.registry.wait_settled()
        slow = asyncio.create_task(say(engine, text("tools/call", {"name": "s__echo"}, id=1)))
        await hold.begun.wait()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        assert made.remapper.pending_count() == 0
        assert (await say(engine, text("ping", id=1)))["result"] == {}


async def test_what_nobody_foresaw_is_reported_and_told_by_its_id_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    incidents: list[Incident] = []
    made = Gateway(Identity("g", "1"), chance=lambda: 0.0, report=incidents.append)
    engine = await opened(made=made)

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(engine.session, "called", fail)
    monkeypatch.setattr(engine.session, "notified", fail)
    error = (await say(engine, text("ping")))["error"]
    assert await say(engine, news("vendor/news")) is None
    assert (error["code"], error["data"]) == (-32603, {"incident": incidents[0].id})
    assert "secret" not in str(error)
    assert len(incidents) == 2


async def test_an_end_in_the_midst_of_everything_leaves_nothing() -> None:
    slow, dead, calling = one_tool(), one_tool(), one_tool()
    slow.methods["initialize"] = Hold()
    dead.broken = OSError("never there")
    calling.methods["tools/call"] = hold = Hold()
    async with serving(slow=slow, dead=dead, c=calling) as made, User(made) as somebody:
        await somebody.hello()
        while not made.registry.upstream("c").ready:
            await asyncio.sleep(0)
        call = asyncio.create_task(somebody.call("c__echo"))
        await hold.begun.wait()
        await made.aclose()
        await asyncio.gather(call, return_exceptions=True)
        assert {snapshot.state for snapshot in made.registry.snapshot()} == {"stopped"}
        await made.aclose()  # twice is once
