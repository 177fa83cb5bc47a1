"""Backends that come, go and change while all goes on: whoever is not concerned does not notice."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.letters import poster
from tests.gateway.servers import (
    Hold,
    Server,
    User,
    gateway,
    one_tool,
    running,
    text_of,
    tool,
    user,
)
from tests.gateway.test_parking import ASKABLE, FORM, YES, Curious, retry
from trunkline.gateway import registry
from trunkline.gateway.backend import Backend, Connect, Owner
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.parking import Limits
from trunkline.gateway.session import Identity
from trunkline.gateway.settings import Settings
from trunkline.gateway.upstream import State
from trunkline.jsonrpc import Due, RpcError
from trunkline.mcp.offer import Kind

CHANGED = "notifications/tools/list_changed"


class Table:
    """A configuration: servers by name, and what is different of each from one time to the next."""

    def __init__(self, **servers: Server) -> None:
        self.gateway = gateway()
        self.servers = list(servers.values())
        self.rows: dict[str, tuple[Settings, Connect]] = {}
        for name, server in servers.items():
            self.put(name, server)
        self.gateway.rearrange(self.rows.values())

    def put(self, name: str, server: Server, **settings: Any) -> None:
        made = self.gateway
        if server not in self.servers:
            self.servers.append(server)

        async def connect(owner: Owner) -> Backend:
            declares = made.client_capabilities if owner.declares is None else owner.declares
            return await server.connect(owner, made.remapper, declares)

        prefix = settings.pop("prefix", name)
        self.rows[name] = (Settings(name, prefix, **settings), connect)

    def apply(self, *anew: str, removed: tuple[str, ...] = ()) -> None:
        for name in removed:
            del self.rows[name]
        self.gateway.rearrange(self.rows.values(), anew, removed)


@asynccontextmanager
async def served(table: Table) -> AsyncGenerator[User]:
    async with running(table.gateway) as made:
        async with user(made) as somebody:
            await somebody.names()  # by then it was told what there is at first
            somebody.everything()
            yield somebody
        await made.aclose()
        await asyncio.gather(*(run for server in table.servers for run in server.runs))


async def until_left(made: Gateway) -> None:
    while made.registry.changing:
        await asyncio.sleep(0)


async def until_inherited(made: Gateway, name: str) -> None:
    while made.registry.configured(name) is not made.registry.upstream(name):
        await asyncio.sleep(0)


async def test_one_that_is_added_starts_beside_the_others_in_its_place() -> None:
    table = Table(a=one_tool(), c=one_tool())
    async with served(table) as somebody:
        old = table.rows.pop("c")
        table.put("b", one_tool())
        table.rows["c"] = old
        table.apply()
        assert table.gateway.ready  # nobody is kept waiting
        await somebody.until_told(CHANGED)
        assert await somebody.names() == ["a__echo", "b__echo", "c__echo"]
        assert [server.starts for server in table.servers] == [1, 1, 1]


async def test_one_that_starts_yet_is_said_to_and_keeps_nobody() -> None:
    slow = one_tool()
    slow.methods["initialize"] = hold = Hold({"protocolVersion": "2025-11-25", "capabilities": {}})
    table = Table(a=one_tool())
    async with served(table) as somebody:
        table.put("slow", slow)
        table.apply()
        await hold.begun.wait()
        assert text_of(await somebody.call("a__echo")) == "echo ran"
        assert await somebody.names() == ["a__echo"]
        await somebody.unavailable("slow__echo")
        hold.let_go.set()


async def test_one_that_is_removed_finishes_its_calls_and_takes_no_more() -> None:
    gone = one_tool()
    gone.methods["tools/call"] = hold = Hold({"content": [{"type": "text", "text": "late"}]})
    table = Table(a=one_tool(), gone=gone)
    async with served(table) as somebody:
        calling = asyncio.create_task(somebody.call("gone__echo"))
        await hold.begun.wait()
        table.apply(removed=("gone",))
        await somebody.until_told(CHANGED)
        assert await somebody.names() == ["a__echo"]
        error = await somebody.refusal("tools/call", {"name": "gone__echo"})
        assert (error.code, error.message) == (-32602, "Unknown tool: gone__echo")
        assert table.gateway.registry.busy
        hold.let_go.set()
        assert text_of(await calling) == "late"
        await until_left(table.gateway)
        assert not table.gateway.registry.busy
        await gone.runs[0]


async def test_calls_of_one_that_left_have_so_long_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "DRAIN", 0.01)
    gone = one_tool()
    gone.methods["tools/call"] = hold = Hold()
    table = Table(gone=gone)
    async with served(table) as somebody:
        calling = asyncio.create_task(somebody.refusal("tools/call", {"name": "gone__echo"}))
        await hold.begun.wait()
        table.apply(removed=("gone",))
        error = await calling
        assert error.code == -32007
        await until_left(table.gateway)


async def test_one_that_is_changed_serves_until_its_heir_is_ready() -> None:
    old, new = one_tool("old"), one_tool("new")
    new.methods["tools/list"] = hold = Hold({"tools": [tool("new")]})
    table = Table(a=one_tool(), s=old)
    async with served(table) as somebody:
        table.put("s", new)
        table.apply("s")
        await hold.begun.wait()
        assert await somebody.names() == ["a__echo", "s__old"]
        assert text_of(await somebody.call("s__old")) == "old ran"
        hold.let_go.set()
        await somebody.until_told(CHANGED)
        assert await somebody.names() == ["a__echo", "s__new"]
        assert text_of(await somebody.call("s__new")) == "new ran"
        await until_left(table.gateway)
        assert somebody.everything() == []  # told once


async def test_a_call_under_way_is_finished_by_whom_it_was_begun_with() -> None:
    old, new = one_tool(), one_tool()
    old.methods["tools/call"] = hold = Hold({"content": [{"type": "text", "text": "of old"}]})
    table = Table(s=old)
    async with served(table) as somebody:
        calling = asyncio.create_task(somebody.call("s__echo"))
        await hold.begun.wait()
        table.put("s", new)
        table.apply("s")
        await until_inherited(table.gateway, "s")
        assert text_of(await somebody.call("s__echo")) == "echo ran"
        assert (old.count("tools/call"), new.count("tools/call")) == (1, 1)
        hold.let_go.set()
        assert text_of(await calling) == "of old"


async def test_an_heir_that_cannot_start_has_the_name_all_the_same() -> None:
    old, new = one_tool(), one_tool()
    new.broken = OSError("no such program")
    table = Table(s=old)
    async with served(table) as somebody:
        table.put("s", new)
        table.apply("s")
        await until_inherited(table.gateway, "s")
        error = await somebody.unavailable("s__echo")
        assert "no such program" in error.message


async def test_one_that_is_down_has_nothing_to_wait_for() -> None:
    down = one_tool()
    down.broken = OSError("down")
    table = Table(s=down)
    async with served(table) as somebody:
        table.put("s", one_tool())
        table.apply("s")
        assert table.gateway.registry.upstream("s") is table.gateway.registry.configured("s")
        await somebody.until_told(CHANGED)
        assert await somebody.names() == ["s__echo"]


async def test_an_heir_may_be_replaced_or_removed_before_it_is_ready() -> None:
    old, first, last = one_tool("old"), one_tool("first"), one_tool("last")
    first.methods["initialize"] = Hold()
    table = Table(a=one_tool(), s=old)
    async with served(table) as somebody:
        table.put("s", first)
        table.apply("s")
        table.apply()  # nothing else: it goes on
        assert await somebody.names() == ["a__echo", "s__old"]
        table.put("s", last)
        table.apply("s")
        await somebody.until_told(CHANGED)
        assert await somebody.names() == ["a__echo", "s__last"]
        table.put("s", first)
        table.apply("s")
        table.apply(removed=("s",))
        assert await somebody.names() == ["a__echo"]
        await until_left(table.gateway)
        assert [upstream.name for upstream in table.gateway.registry] == ["a"]


async def test_other_settings_need_no_other_server() -> None:
    server = one_tool()
    table = Table(s=server, t=one_tool())
    async with served(table) as somebody:
        upstream = table.gateway.registry.upstream("s")
        table.put("s", server, prefix="p", timeout=1.0, max_in_flight=2, max_conversations=1)
        table.apply()
        assert await somebody.names() == ["p__echo", "t__echo"]
        await somebody.until_told(CHANGED)
        assert table.gateway.registry.upstream("s") is upstream
        assert (upstream.turns.at_once, server.starts) == (2, 1)
        assert text_of(await somebody.call("p__echo")) == "echo ran"
        table.rows = dict(reversed(table.rows.items()))
        table.apply()
        assert await somebody.names() == ["t__echo", "p__echo"]


async def test_one_that_was_given_up_gets_another_chance_if_its_settings_differ() -> None:
    server = one_tool()
    server.broken = OSError()
    table = Table(a=one_tool())
    table.put("s", server, max_restarts=0)
    table.apply()
    async with served(table) as somebody:
        while table.gateway.registry.upstream("s").state is not State.FAILED:
            await asyncio.sleep(0)
        server.broken = None
        table.apply()
        assert server.starts == 1
        table.put("s", server, max_restarts=1)
        table.apply()
        await somebody.until_told(CHANGED)
        assert await somebody.names() == ["a__echo", "s__echo"]


async def test_those_that_no_configuration_names_stay() -> None:
    table = Table(a=one_tool())
    async with served(table) as somebody:
        del table.rows["a"]
        table.put("b", one_tool())
        table.apply()
        await somebody.until_told(CHANGED)
        assert await somebody.names() == ["b__echo", "a__echo"]


async def test_before_the_first_client_comes_nothing_is_started() -> None:
    old, new, more = one_tool(), one_tool(), one_tool("more")
    table = Table(s=old)
    table.put("s", new)
    table.put("m", more)
    table.apply("s")
    async with served(table) as somebody:
        assert await somebody.names() == ["s__echo", "m__more"]
    assert [old.starts, new.starts, more.starts] == [0, 1, 1]


async def test_after_the_end_nothing_is_started() -> None:
    server = one_tool()
    table = Table(a=one_tool())
    async with served(table):
        pass
    table.put("s", server)
    table.apply()
    assert server.starts == 0


# Those who follow, wait, and listen


def library() -> Server:
    server = Server(resources=[{"uri": "x:1", "name": "one"}], tools=[])
    server.capabilities = {"resources": {"subscribe": True}, "logging": {}, "tools": {}}
    return server


async def test_what_clients_follow_and_want_to_read_is_told_to_the_heir() -> None:
    old, new = library(), library()
    table = Table(s=old)
    async with served(table) as somebody:
        await somebody.ask("resources/subscribe", {"uri": "x:1"})
        await somebody.ask("logging/setLevel", {"level": "debug"})
        table.put("s", new)
        table.apply("s")
        assert await new.until_heard("resources/subscribe") == {"uri": "x:1"}
        assert await new.until_heard("logging/setLevel") == {"level": "debug"}
        await new.line.notify("notifications/resources/updated", {"uri": "x:1"})
        assert await somebody.until_told("notifications/resources/updated") == {"uri": "x:1"}
        await somebody.ask("resources/unsubscribe", {"uri": "x:1"})
        await new.until_heard("resources/unsubscribe")


async def test_who_begins_to_follow_while_the_heir_takes_over_follows_it() -> None:
    old, new = library(), library()
    old.methods["resources/subscribe"] = hold = Hold({})
    table = Table(s=old)
    async with served(table) as somebody:
        following = asyncio.create_task(somebody.ask("resources/subscribe", {"uri": "x:1"}))
        await hold.begun.wait()
        table.put("s", new)
        registry, under_way, (session,) = table.gateway.registry, Due(), table.gateway.sessions
        old_turns = registry.upstream("s").turns
        old_turns.watch(under_way, session)  # so that it stays a moment
        table.apply("s")
        await until_inherited(table.gateway, "s")
        hold.let_go.set()
        await following
        await new.until_heard("resources/subscribe")
        assert registry.upstream("s").wishes.followed == {"x:1": 1}
        old_turns.leave(under_way)


async def test_what_was_followed_of_one_that_left_is_followed_no_more() -> None:
    gone = library()
    table = Table(a=one_tool(), s=gone)
    async with served(table) as somebody:
        await somebody.ask("resources/subscribe", {"uri": "x:1"})
        (session,) = table.gateway.sessions
        table.apply(removed=("s",))
        assert session.subscriptions == {}
        table.gateway.registry.unfollow([("s", "x:1")])  # who forgot to forget harms nobody
        await table.gateway.told("s", "notifications/message", None)  # nor who still talks


async def test_a_parked_call_goes_on_where_it_was_begun() -> None:
    old, new = Curious(("elicitation/create", FORM)), Curious()
    table = Table(s=old)
    async with served(table):
        client = await poster(table.gateway)
        asked = await client.call("s__t", _meta=ASKABLE)
        table.put("s", new)
        table.apply("s")
        await until_inherited(table.gateway, "s")
        done = await client.call("s__t", _meta=ASKABLE, **retry(asked, YES))
        assert done["structuredContent"] == {"answers": [YES]}
        assert (old.runs_of_tool, new.runs_of_tool) == (1, 0)


async def test_a_parked_call_of_one_that_left_is_given_up() -> None:
    server = Curious(("elicitation/create", FORM))
    table = Table(a=one_tool(), s=server)
    async with served(table):
        client = await poster(table.gateway)
        asked = await client.call("s__t", _meta=ASKABLE)
        table.apply(removed=("s",))
        assert len(table.gateway.stateless.parking) == 0
        with pytest.raises(RpcError, match="Unknown tool"):
            await client.call("s__t", _meta=ASKABLE, **retry(asked, YES))
        await until_left(table.gateway)


async def test_another_name_is_told_to_those_who_come() -> None:
    table = Table(a=one_tool())
    async with served(table) as somebody:
        client = await poster(table.gateway)
        assert "test-gateway" in str(await client.ask("server/discover"))
        early = User(table.gateway)
        async with early:
            await asyncio.sleep(0)
            table.gateway.introduce(Identity("other", "2.0", "read this"))
            welcome = await early.hello()
        assert welcome["serverInfo"] == {"name": "other", "version": "2.0"}
        assert welcome["instructions"] == "read this"
        found = str(await client.ask("server/discover"))
        assert "other" in found
        assert "read this" in found
        assert "other" in str(await client.ask("tools/list"))
        assert await somebody.names() == ["a__echo"]


async def test_lists_that_differ_for_another_reason_are_announced() -> None:
    table = Table(a=one_tool())
    async with served(table) as somebody:
        table.gateway.rearrange(table.rows.values(), announced=frozenset(("tools",)))
        await somebody.until_told(CHANGED)
        assert len(table.gateway.registry.catalog.entries(Kind.TOOL)) == 1


async def test_other_limits_hold_for_what_is_parked_and_for_what_comes() -> None:
    server = Curious(("elicitation/create", FORM))
    table = Table(s=server)
    parked = table.gateway.stateless.parking
    async with served(table):
        client = await poster(table.gateway)
        await client.call("s__t", _meta=ASKABLE)
        parked.adopt(Limits(ttl=900.0, most=1))
        assert parked.snapshot()[0].waiting < 60
        with pytest.raises(RpcError, match="too many calls wait"):
            await client.call("s__t", _meta=ASKABLE)
        parked.adopt(Limits(ttl=0.01))
        while len(parked):
            await asyncio.sleep(0)


async def test_what_waits_for_one_backend_can_be_given_up_alone() -> None:
    table = Table(s=Curious(("elicitation/create", FORM)))
    parked = table.gateway.stateless.parking
    async with served(table):
        client = await poster(table.gateway)
        await client.call("s__t", _meta=ASKABLE)
        parked.abandon("other")
        assert len(parked) == 1
        parked.abandon("s")
        assert len(parked) == 0
