"""The gateway's stores: what they keep, for whom, and how much; and what is written to them."""

import msgspec
import pytest
from msgspec.structs import replace

from tests.gateway.servers import (
    Server,
    SessionClient,
    one_tool,
    serving,
    session_client,
    tool,
)
from trunkline.app.build import build_stores
from trunkline.config import Config
from trunkline.gateway.request_state import StateBinding
from trunkline.gateway.settings import SuspendedCallLimits
from trunkline.gateway.stores import (
    ClientRecord,
    MemoryListingStore,
    MemorySessionStore,
    MemorySuspendedCallStore,
    MemorySwitchStore,
    SessionLimits,
    SessionRecord,
    StoredListing,
    SuspendedCallRecord,
    resolve,
)
from trunkline.jsonrpc import Raw, from_raw
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.routing.kill_switch import SWITCH_ALL, KillSwitch, SwitchKind

CLIENT = ClientRecord("2025-11-25", Raw(b"{}"), Raw(b'{"name":"c"}'))


def session(id: str = "s", owner: str = "anna", epoch: int = 1) -> SessionRecord:
    return SessionRecord(id, owner, 1.0, 10.0, CLIENT, epoch)


def call(
    id: str = "c", principal: str = "anna", round: int = 1, size: int = 1
) -> SuspendedCallRecord:
    binding = StateBinding(principal, "fs", b"\x00digest")
    return SuspendedCallRecord(id, binding, "tools/call", round, 1, size, 1.0, 601.0)


# Sessions


async def test_a_session_is_found_by_its_owner_until_it_expires() -> None:
    store = MemorySessionStore()
    assert await resolve(store.create(session(), SessionLimits(9, 9), 1.0)) is None
    assert await resolve(store.find("s", "anna", 10.0)) == session()
    assert await resolve(store.find("s", "anna", 10.1)) is None
    assert await resolve(store.find("s", "bert", 1.0)) is None
    assert await resolve(store.find("x", "anna", 1.0)) is None


async def test_sessions_are_created_up_to_the_limit() -> None:
    store = MemorySessionStore()
    limits = SessionLimits(2, 2)
    exceeded = [await resolve(store.create(session(id, id), limits, 1.0)) for id in "abc"]
    assert exceeded == [None, None, "http.max_sessions"]
    store.remove("a", 1)
    store.remove("a", 1)
    assert await resolve(store.create(session("c"), limits, 1.0)) is None


async def test_a_removed_session_is_not_stored_again() -> None:
    store = MemorySessionStore()
    await resolve(store.create(session(), SessionLimits(1, 1), 1.0))
    store.remove("s", 1)
    store.save(session(), 2.0)
    assert await resolve(store.find("s", "anna", 2.0)) is None


async def test_sessions_are_created_up_to_the_limit_of_each_principal() -> None:
    store, limits = MemorySessionStore(), SessionLimits(9, 2)
    exceeded = [await resolve(store.create(session(id), limits, 1.0)) for id in "abc"]
    assert exceeded == [None, None, "http.max_sessions_per_principal"]
    assert await resolve(store.create(session("d", "bert"), limits, 1.0)) is None
    store.remove("a", 1)
    assert await resolve(store.create(session("c"), limits, 1.0)) is None


async def test_only_the_last_epoch_of_a_session_can_be_changed_and_removed() -> None:
    store = MemorySessionStore()
    await resolve(store.create(session(), SessionLimits(9, 9), 1.0))
    store.save(replace(session(), expires_at=20.0), 2.0)
    assert await resolve(store.find("s", "anna", 20.0)) == replace(session(), expires_at=20.0)
    later = session(epoch=2)
    store.save(later, 3.0)
    store.save(session(), 4.0)
    store.remove("s", 1)
    assert await resolve(store.find("s", "anna", 4.0)) == later
    store.remove("s", 2)
    assert await resolve(store.find("s", "anna", 4.0)) is None


# Suspended calls


async def test_a_suspended_call_is_taken_once_in_its_round() -> None:
    store, limits = MemorySuspendedCallStore(), SuspendedCallLimits()
    assert await resolve(store.add(call(round=2), limits, 1.0))
    assert await resolve(store.take("c", 1)) is None
    assert await resolve(store.take("c", 2)) == call(round=2)
    assert await resolve(store.take("c", 2)) is None
    await resolve(store.add(call(round=3), limits, 1.0))
    store.remove("c")
    store.remove("c")
    assert await resolve(store.take("c", 3)) is None


@pytest.mark.parametrize(
    ("limits", "added"),
    [
        (SuspendedCallLimits(max_calls=2), [True, True, False]),
        (SuspendedCallLimits(max_calls_per_principal=1), [True, False, True]),
        (SuspendedCallLimits(max_bytes=2), [True, True, False]),
        (SuspendedCallLimits(max_bytes_per_principal=1), [True, False, True]),
    ],
)
async def test_suspended_calls_are_limited(limits: SuspendedCallLimits, added: list[bool]) -> None:
    store = MemorySuspendedCallStore()
    calls = [call("a"), call("b"), call("c", "bert")]
    for _ in range(2):  # what ends makes room
        assert [await resolve(store.add(each, limits, 1.0)) for each in calls] == added
        for each in calls:
            store.remove(each.id)


# Kill switches and listings


async def test_switches_in_memory_are_kept_but_not_for_long() -> None:
    echo = KillSwitch(SwitchKind.TOOL, "a__echo")
    store = MemorySwitchStore([echo])
    assert store.load() == {echo}
    assert await store.save(SWITCH_ALL, True) == "it has no state directory"
    await store.save(echo, False)
    assert store.load() == {SWITCH_ALL}


async def test_a_listing_is_replaced_and_removed() -> None:
    store = MemoryListingStore(max_servers=2)
    feature = Feature(FeatureKind.TOOL, "read", Raw(b'{"name":"read"}'))
    for features in ((), (feature,)):
        listing = StoredListing(features, CacheHints(5, True), {"roots,sampling": (feature,)})
        store.put("fs", listing)
        assert await store.get("fs") == listing
    store.remove("fs")
    store.remove("fs")
    assert await store.get("fs") is None
    for key in "abc":
        store.put(key, listing)
    assert [await store.get(key) for key in "abc"] == [None, listing, listing]


# What is written to them


async def test_the_state_of_a_client_is_all_that_it_negotiated_and_asked_for() -> None:
    server = Server(tools=[tool("t")], resources=[{"uri": "x:1", "name": "x"}])
    server.capabilities |= {"resources": {"subscribe": True}, "logging": {}}
    async with serving(a=server) as gateway:
        changes: list[ClientRecord] = []
        async with session_client(gateway) as client:
            (mcp_session,) = gateway.sessions
            mcp_session.on_changed = lambda: changes.append(mcp_session.client_record)
            first = mcp_session.client_record
            assert (first.revision, first.operational) == ("2025-11-25", True)
            assert from_raw(first.client_info, dict[str, str])["name"]
            await client.ask("logging/setLevel", {"level": "error"})
            await client.ask("resources/subscribe", {"uri": "x:1"})
            await client.ask("resources/unsubscribe", {"uri": "x:1"})
            await client.ask("resources/subscribe", {"uri": "x:1"})
            assert [(each.log_level, each.subscriptions) for each in changes] == [
                ("error", {}),
                ("error", {"x:1": ("a", "x:1")}),
                ("error", {}),
                ("error", {"x:1": ("a", "x:1")}),
            ]
            mcp_session.drop_backend("b")
            assert len(changes) == 4
            mcp_session.drop_backend("a")
            assert changes[-1].subscriptions == {}
            written = msgspec.json.encode(changes[-1])
            assert msgspec.json.decode(written, type=ClientRecord) == changes[-1]


async def test_a_session_becomes_operational_once() -> None:
    async with serving(a=one_tool()) as gateway, SessionClient(gateway) as client:
        changes: list[bool] = []
        await client.ask("ping")
        (mcp_session,) = gateway.sessions
        mcp_session.on_changed = lambda: changes.append(mcp_session.client_record.operational)
        await client.hello()
        await client.ask("ping")
        assert changes == [True]


def test_the_chosen_stores_are_used_by_default(request: pytest.FixtureRequest) -> None:
    kind = str(request.config.getoption("--stores"))
    stores = build_stores(Config(), None)
    for store in (stores.sessions, stores.suspended_calls, stores.limits):
        assert type(store).__name__.startswith(kind.capitalize())
    for store in (stores.listings, stores.switches, stores.eras):
        assert type(store).__name__.startswith("Memory" if kind == "memory" else "Bytes")
