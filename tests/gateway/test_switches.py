"""The kill switch: what is stopped is stopped at once, in both eras, by every way to call it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.search_gateway import searching
from tests.gateway.letters import Poster, poster
from tests.gateway.servers import Hold, Server, User, gateway, one_tool, running, tool, user
from tests.gateway.test_parking import ASKABLE, FORM, YES, Curious, retry
from trunkline.gateway import registry
from trunkline.gateway.events import CallEnded, Event, Switched
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.governance import Governance
from trunkline.gateway.passage import Passage
from trunkline.gateway.route import Check
from trunkline.gateway.switches import Switches, Switching
from trunkline.jsonrpc import RpcError
from trunkline.routing import backoff
from trunkline.routing.catalog import Entry
from trunkline.routing.switches import EVERYTHING, Switch, What
from trunkline.routing.switches import refusal as disabled

ECHO = Switch(What.TOOL, "a__echo")
A = Switch(What.SERVER, "a")
LOCAL_USER = Switch(What.SUBJECT, "local")
POSTER = Switch(What.SUBJECT, "poster")
MISSING = ("the gateway will not remember it when it starts again: there is no folder for it",)


def switched(made: Gateway, **more: Any) -> Switches:
    """Give a gateway its switches."""
    switches = Switches(made.layers, made.registry, **more)
    made.layers.governor = Governance(switches=switches)
    return switches


@asynccontextmanager
async def governed(**servers: Server) -> AsyncGenerator[tuple[Gateway, Switches]]:
    made = gateway(**servers)
    async with running(made, *servers.values()):
        yield made, switched(made)


async def refusal(client: User | Poster, name: str = "a__echo", **more: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await client.call(name, **more)
    return caught.value


def two_tools() -> Server:
    return Server(
        tools=[tool("echo"), tool("other")],
        prompts=[{"name": "p"}],
        resources=[{"uri": "r://1", "name": "r"}],
    )


# Calls and lists


@pytest.mark.holds("O0.11", "M12")
async def test_a_tool_that_is_killed_is_answered_disabled_and_not_listed_in_both_eras() -> None:
    server = two_tools()
    async with governed(a=server) as (made, switches), user(made) as old:
        new = await poster(made)
        assert await switches.kill(ECHO) == Switching(True, 0, MISSING)
        for client, code in ((old, -32005), (new, 4031)):
            found = await refusal(client)
            assert (found.code, found.message) == (code, "Tool is disabled: a__echo")
            await client.call("a__other")
        await old.until_told("notifications/tools/list_changed")
        assert await old.names() == ["a__other"]
        listed = (await new.ask("tools/list"))["tools"]
        assert [each["name"] for each in listed] == ["a__other"]
        assert server.count("tools/call") == 2
        await switches.revive(ECHO)
        await old.until_told("notifications/tools/list_changed")
        assert await old.names() == ["a__echo", "a__other"]
        await old.call("a__echo")


async def test_only_lists_that_differ_are_said_to() -> None:
    async with governed(a=two_tools()) as (made, switches), user(made) as client:
        told: set[str] = set()
        made.registry.listen(lambda kinds: told.update(kind.capability for kind in kinds))
        await switches.kill(ECHO)
        assert told == {"tools"}
        await switches.kill(A)
        assert told == {"tools", "prompts", "resources"}
        await client.until_told("notifications/resources/list_changed")


async def test_a_server_that_is_killed_has_nothing_and_says_nothing_any_more() -> None:
    server, other = two_tools(), one_tool()
    server.capabilities["resources"] = {"subscribe": True}
    server.capabilities["logging"] = {}
    async with governed(a=server, b=other) as (made, switches), user(made) as client:
        await client.ask("resources/subscribe", {"uri": "r://1"})
        await switches.kill(A)
        assert (await refusal(client)).message == "Server is disabled: a"
        for method, params in (
            ("prompts/get", {"name": "a__p"}),
            ("resources/read", {"uri": "r://1"}),
            ("resources/subscribe", {"uri": "r://1?"}),
            ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a__p"}}),
        ):
            with pytest.raises(RpcError):
                await client.ask(method, params)
        assert await client.names() == ["b__echo"]
        assert await client.names("prompts/list") == []
        assert await client.names("resources/list") == []
        await client.call("b__echo")
        client.everything()
        for _ in range(2):
            await server.line.notify("notifications/resources/updated", {"uri": "r://1"})
            await server.line.notify("notifications/message", {"level": "error", "data": "x"})
        with pytest.raises(RpcError, match="Method not found"):
            await server.ask("roots/list")
        assert client.everything() == []
        await switches.revive(A)
        await server.line.notify("notifications/resources/updated", {"uri": "r://1"})
        assert await client.until_told("notifications/resources/updated") == {"uri": "r://1"}


async def test_a_subject_that_is_killed_is_stopped_with_its_sessions_open_and_nobody_else() -> None:
    server = two_tools()
    server.capabilities["resources"] = {"subscribe": True}
    async with governed(a=server) as (made, switches), user(made) as anna:
        bert = await poster(made)
        await anna.ask("resources/subscribe", {"uri": "r://1"})
        hold = server.methods["tools/call"] = Hold()
        calls = [asyncio.create_task(client.call("a__echo")) for client in (anna, bert)]
        while server.count("tools/call") < 2:
            await asyncio.sleep(0)
        assert (await switches.kill(LOCAL_USER)).ended == 1
        with pytest.raises(RpcError, match="Subject is disabled: local"):
            await calls[0]
        assert (await refusal(anna)).code == -32005
        assert await anna.names() == []
        assert await anna.ask("ping") == {}
        hold.let_go.set()
        await calls[1]
        await bert.call("a__other")
        anna.everything()
        await server.line.notify("notifications/resources/updated", {"uri": "r://1"})
        with pytest.raises(RpcError):
            await server.ask("roots/list")
        assert anna.everything() == []
        # Another session of the same one is no way out.
        async with user(made) as again:
            assert (await refusal(again)).message == "Subject is disabled: local"


async def test_everything_is_killed_but_for_the_exempt() -> None:
    a, me = two_tools(), one_tool()
    made = gateway(a=a, me=me)
    switches = switched(made, exempt=frozenset(["me"]))
    async with running(made, a, me), user(made) as client:
        await switches.kill(EVERYTHING)
        assert (await refusal(client)).message == "Gateway is disabled"
        assert await client.names() == ["me__echo"]
        await client.call("me__echo")
        await switches.kill(Switch(What.TOOL, "me__echo"))
        assert (await refusal(client, "me__echo")).message == "Tool is disabled: me__echo"


async def test_a_pattern_is_no_way_round_by_call_tool_nor_found_nor_described() -> None:
    server = two_tools()
    async with searching(a=server) as made, user(made) as client:
        switches = switched(made)
        await switches.kill(Switch(What.TOOL, "*__ech?"))
        for wrapped in ("search__call_tool", "a__echo"):
            arguments = {"name": "a__echo"} if wrapped != "a__echo" else {}
            found = await refusal(client, wrapped, arguments=arguments)
            assert found.message == "Tool is disabled: a__echo"
        found = await client.call("search__find_tools", arguments={"query": "echo other"})
        assert "a__echo" not in str(found)
        described = await client.call("search__describe_tool", arguments={"name": "a__echo"})
        assert described["isError"]
        assert server.count("tools/call") == 0


async def test_a_batch_is_no_way_round() -> None:
    server = one_tool()
    async with governed(a=server) as (made, switches):
        engine = made.open_engine()
        made.registry.start()
        await made.registry.wait_settled()
        await switches.kill(ECHO)
        hello = (
            '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26",'
            '"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
        )
        call = '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a__echo"}}'
        await engine.handle_json(hello)
        await engine.handle_json('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        answer = await engine.handle_json(f"[{call}, {call.replace('2,', '3,', 1)}]")
        assert answer is not None
        assert answer.count('"code":-32005') == 2
        assert server.count("tools/call") == 0


async def test_what_does_not_exist_is_unknown_before_anything_is_said_to_be_stopped() -> None:
    async with governed(a=one_tool()) as (made, switches), user(made) as client:
        await switches.kill(EVERYTHING)
        found = await refusal(client, "a__none")
        assert (found.code, found.message) == (-32602, "Unknown tool: a__none")


async def test_what_only_the_server_understands_is_not_passed_on_to_one_that_is_stopped() -> None:
    server = one_tool()
    async with governed(a=server) as (made, switches), user(made) as client:
        await client.ask("vendor/x", {})
        for stop, go_on in (
            (lambda: switches.kill(A), lambda: switches.revive(A)),
            (lambda: switches.kill(LOCAL_USER), lambda: switches.revive(LOCAL_USER)),
        ):
            await stop()
            with pytest.raises(RpcError, match="Method not found"):
                await client.ask("vendor/x", {})
            await go_on()
        switches.pause()
        with pytest.raises(RpcError, match="Method not found"):
            await client.ask("vendor/x", {})
        assert server.count("vendor/x") == 1


# What is under way


async def test_calls_in_flight_are_ended_at_once_and_their_server_told() -> None:
    server, hold, other = two_tools(), Hold(), Hold()
    server.methods["tools/call"] = lambda p: (hold if p["name"] == "echo" else other)(p)
    ends: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, CallEnded):
            ends.append(event.status)

    async with governed(a=server) as (made, switches), user(made) as old:
        made.layers.events.listen(note)
        new = await poster(made)
        calls = [asyncio.create_task(client.call("a__echo")) for client in (old, new)]
        spared = asyncio.create_task(old.call("a__other"))
        while server.count("tools/call") < 3:
            await asyncio.sleep(0)
        assert (await switches.kill(ECHO)).ended == 2
        for call in calls:
            with pytest.raises(RpcError, match="Tool is disabled: a__echo"):
                await call
        for _ in calls:
            await server.until_heard("notifications/cancelled")
        other.let_go.set()
        await spared
        assert made.layers.under_way == {}
    assert ends == ["disabled", "disabled", "success"]


async def test_a_call_that_waits_for_its_turn_never_reaches_its_server() -> None:
    server = two_tools()
    hold = server.methods["tools/call"] = Hold()
    async with governed(a=server) as (made, switches), user(made) as client:
        made.registry.upstream("a").turns.at_once = 1
        first = asyncio.create_task(client.call("a__other"))
        await hold.begun.wait()
        second = asyncio.create_task(client.call("a__echo"))
        while len(made.layers.under_way) < 2:
            await asyncio.sleep(0)
        await switches.kill(ECHO)
        with pytest.raises(RpcError, match="Tool is disabled"):
            await second
        hold.let_go.set()
        await first
        assert server.count("tools/call") == 1


async def test_a_call_that_waits_for_backends_to_start_is_stopped_when_it_is_found() -> None:
    server = one_tool()
    begin = asyncio.Event()
    connect = server.connect

    async def late(*args: Any) -> Any:
        await begin.wait()
        return await connect(*args)

    server.connect = late  # pyright: ignore[reportAttributeAccessIssue]
    async with governed(a=server) as (made, switches), User(made) as client:
        await client.hello()
        call = asyncio.create_task(client.call("a__echo"))
        while not made.layers.under_way:
            await asyncio.sleep(0)
        await switches.kill(ECHO)
        begin.set()
        with pytest.raises(RpcError, match="Tool is disabled"):
            await call
        assert server.count("tools/call") == 0


@pytest.mark.parametrize("switch", [ECHO, A, POSTER, EVERYTHING])
async def test_what_is_stopped_is_said_to_be_while_its_server_starts(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "PATIENCE", 0.0)
    server = one_tool()
    server.methods["initialize"] = Hold()
    async with governed(a=server) as (made, switches):
        made.registry.start()
        client = Poster(made)
        assert (await refusal(client)).code == 5030
        await switches.kill(switch)
        assert (await refusal(client)).code == 4031
        await switches.revive(switch)
        assert (await refusal(client)).code == 5030
        switches.pause()
        assert (await refusal(client)).code == 4031


async def test_what_is_stopped_before_it_is_sent_is_not_sent() -> None:
    server = one_tool()
    async with governed(a=server) as (made, switches):
        client = await poster(made)
        made.layers.governor = Stopper(switches=switches)
        assert (await refusal(client)).message == "Tool is disabled: a__echo"
        assert server.count("tools/call") == 0
        assert made.layers.under_way == {}


class Stopper(Governance):
    """A governor that has a call stopped in the moment after it was let pass."""

    def checks(self, entry: Entry) -> tuple[Check, ...]:
        return (self._stop,)

    def _stop(self, passage: Passage, entry: Entry) -> None:
        passage.stopped = disabled(ECHO, passage.caller.version)


async def test_one_that_cannot_be_sent_has_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(failures: int, chance: float) -> float:
        return 1000.0

    monkeypatch.setattr(backoff, "delay", later)
    server, twin = (Server(resources=[{"uri": "r://1", "name": "r"}]) for _ in range(2))
    async with governed(a=server, b=twin) as (made, _), user(made) as client:
        await twin.die()
        while made.registry.upstream("b").ready:
            await asyncio.sleep(0)
        with pytest.raises(RpcError, match="Upstream unavailable: b"):
            await client.ask("resources/read", {"uri": "trunkline:b:r://1"})
        assert made.layers.under_way == {}


@asynccontextmanager
async def parked() -> AsyncGenerator[tuple[Gateway, Switches, Curious, Poster, dict[str, Any]]]:
    """Have a call parked; yields what answers what it asks as well."""
    server = Curious(("elicitation/create", FORM))
    made = gateway(s=server)
    switches = switched(made)
    async with running(made, server):
        client = await poster(made)
        asked = await client.call("s__t", _meta=ASKABLE)
        yield made, switches, server, client, retry(asked, YES, _meta=ASKABLE)


async def test_a_parked_call_is_stopped_its_server_told_and_its_retry_refused() -> None:
    async with parked() as (made, switches, server, client, again):
        killed = Switch(What.TOOL, "s__t")
        assert (await switches.kill(killed)).ended == 1
        await server.until_heard("notifications/cancelled")
        assert made.layers.under_way == {}
        assert (await refusal(client, "s__t", **again)).code == 4031
        await switches.revive(killed)
        found = await refusal(client, "s__t", **again)
        assert (found.code, found.message) == (4031, "Tool is disabled: s__t")
        assert server.runs_of_tool == 1
        assert len(made.stateless.parking) == 0


async def test_a_parked_call_of_a_subject_is_stopped_too() -> None:
    async with parked() as (_, switches, server, client, again):
        assert (await switches.kill(POSTER)).ended == 1
        await server.until_heard("notifications/cancelled")
        assert (await refusal(client, "s__t", **again)).code == 4031


# Pause


@pytest.mark.holds("M15")
async def test_a_pause_answers_calls_with_disabled_and_keeps_ping_and_lists() -> None:
    server, me = two_tools(), one_tool()
    made = gateway(a=server, me=me)
    switches = switched(made, exempt=frozenset(["me"]))
    events: list[Event] = []
    async with running(made, server, me), user(made) as client:
        made.layers.events.listen(events.append)
        hold = server.methods["tools/call"] = Hold()
        under_way = asyncio.create_task(client.call("a__echo"))
        await hold.begun.wait()
        assert switches.pause("anna").changed
        assert not switches.pause().changed
        new = await poster(made)
        for each, code in ((client, -32005), (new, 4031)):
            found = await refusal(each)
            assert (found.code, found.message) == (code, "The gateway is paused")
        assert await client.ask("ping") == {}
        assert await client.names() == ["a__echo", "a__other", "me__echo"]
        await client.call("me__echo")
        hold.let_go.set()
        await under_way
        assert switches.resume("anna").changed
        await client.call("a__echo")
    told = [event for event in events if isinstance(event, Switched)]
    assert told == [Switched("pause", "", True, "anna"), Switched("pause", "", False, "anna")]


async def test_a_parked_call_outlasts_a_pause() -> None:
    async with parked() as (_, switches, _, client, again):
        switches.pause()
        assert (await refusal(client, "s__t", **again)).message == "The gateway is paused"
        switches.resume()
        done = await client.call("s__t", **again)
        assert done["structuredContent"] == {"answers": [YES]}
