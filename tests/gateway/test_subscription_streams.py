"""Subscription streams: the acknowledgement, the requested changes, and the end."""

import asyncio
from typing import Any

import pytest

from tests.gateway.servers import (
    HeldAnswer,
    Server,
    add,
    make_gateway,
    refuse,
    running,
    serving,
    session_client,
    tool,
)
from tests.gateway.stateless_callers import (
    ACKNOWLEDGED,
    LISTEN,
    SUBSCRIPTION,
    RecordingStream,
    StatelessCaller,
    StatelessScriptedServer,
    cancel_all,
    stateless_caller,
)
from tests.tasks import LoopClock
from trunkline.gateway.settings import GatewayLimits
from trunkline.gateway.stateless import SubscriptionStream
from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.jsonrpc.message import VerbatimIntId, VerbatimStrId
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2026_07_28

CALLER = Caller(Principal("p"), V2026_07_28, {}, Raw(b"{}"))
UPDATED = "notifications/resources/updated"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"
LISTS = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}


def subscribable(*uris: str, kind: Any = Server) -> Any:
    """Return a server with these resources and change notifications."""
    server = kind(resources=[{"uri": uri, "name": uri} for uri in uris])
    server.capabilities["resources"] = {"subscribe": True, "listChanged": True}
    return server


def marked(id: Any, **params: Any) -> dict[str, Any]:
    return {"_meta": {SUBSCRIPTION: id}, **params}


def change_tools(listening: SubscriptionStream) -> None:
    """Give the client of a stream one list of tools, and then another."""
    listening.record_lists(lambda kind: "before")
    listening.notify_changed_lists((FeatureKind.TOOL,), lambda kind: "after")


async def acknowledged(stream: RecordingStream) -> Any:
    """Return the params of the acknowledgement."""
    method, params = await stream.next_notification()
    assert method == ACKNOWLEDGED
    return params["notifications"]


# Subscription requests


# One subscription stream


@pytest.mark.parametrize(
    ("id", "written"),
    [
        (5, b"5"),
        ("5", b'"5"'),
        (VerbatimIntId.from_json(0, b"-0"), b"-0"),
        (VerbatimStrId.from_json("A", b'"\\u0041"'), b'"\\u0041"'),
    ],
)
async def test_every_message_has_the_clients_own_subscription_id(id: Any, written: bytes) -> None:
    messages: list[Any] = []

    class Line(RecordingStream):
        async def notify(self, method: str, params: Any) -> None:
            messages.append(params)
            await super().notify(method, params)

    stream = Line()
    listening = SubscriptionStream(id, stream, ["tools", "resources"], CALLER)
    listening.subscribed["p:"] = ("a", "x:")
    running = asyncio.create_task(listening.run())
    await acknowledged(stream)
    change_tools(listening)
    listening.resource_updated(
        "notifications/resources/updated", "a", "x:", None, to_raw({"uri": "x:", "_meta": {"k": 1}})
    )
    for _ in range(2):
        await stream.next_notification()
    listening.end()
    messages.append(await running)
    assert [bytes(from_raw(to_raw(p), dict[str, Raw])["_meta"]) for p in messages] == [
        b'{"%s":%s}' % (SUBSCRIPTION.encode(), written),
        b'{"%s":%s}' % (SUBSCRIPTION.encode(), written),
        b'{"k":1,"%s":%s}' % (SUBSCRIPTION.encode(), written),
        b'{"%s":%s}' % (SUBSCRIPTION.encode(), written),
    ]


async def test_the_acknowledgement_comes_first_on_a_slow_stream() -> None:
    stream = RecordingStream()
    stream.blocked = asyncio.Event()
    listening = SubscriptionStream(1, stream, ["tools"], CALLER)
    running = asyncio.create_task(listening.run())
    await asyncio.sleep(0)
    blocked, stream.blocked = stream.blocked, None
    change_tools(listening)
    for _ in range(3):
        await asyncio.sleep(0)
    assert stream.notifications.empty()
    blocked.set()
    received = [(await stream.next_notification())[0] for _ in range(2)]
    assert received == [ACKNOWLEDGED, "notifications/tools/list_changed"]
    await cancel_all(running)


async def test_a_broken_stream_ends_nothing_but_itself() -> None:
    stream = RecordingStream()
    stream.broken = True
    listening = SubscriptionStream(1, stream, ["tools"], CALLER)
    running = asyncio.create_task(listening.run())
    await asyncio.sleep(0)
    change_tools(listening)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not running.done()
    await cancel_all(running)


# Through the gateway


async def test_only_the_requested_notifications_arrive() -> None:
    server = Server(tools=[tool("t")], prompts=[{"name": "p"}])
    async with serving(s=server) as gateway:
        client, tools, prompts = (
            await stateless_caller(gateway),
            RecordingStream(),
            RecordingStream(),
        )
        listening = [
            client.listen(tools, 1, toolsListChanged=True),
            client.listen(prompts, 2, promptsListChanged=True, resourcesListChanged=True),
        ]
        assert await acknowledged(tools) == {"toolsListChanged": True}
        assert await acknowledged(prompts) == {"promptsListChanged": True}  # no resources here
        for features in server.lists.values():
            features.clear()
        await server.active_connection.notify("notifications/tools/list_changed")
        received = await tools.next_notification()
        assert received == ("notifications/tools/list_changed", marked(1))
        await server.active_connection.notify("notifications/message", {"level": "error"})
        await server.active_connection.notify("vendor/news", {})
        assert await prompts.next_notification() == (
            "notifications/prompts/list_changed",
            marked(2),
        )
        assert (tools.take_notifications(), prompts.take_notifications()) == ([], [])
        await cancel_all(*listening)


@pytest.mark.holds("T40")
async def test_two_subscription_streams_have_their_own_ids() -> None:
    server = subscribable("x:1", "x:2")
    async with serving(s=server) as gateway:
        client, streams = await stateless_caller(gateway), [RecordingStream(), RecordingStream()]
        requested: dict[str, Any] = LISTS | {"resourceSubscriptions": ["x:1"]}
        listening = [
            client.listen(stream, id, **requested)
            for stream, id in zip(streams, (1, "1"), strict=True)
        ]
        for stream, id in zip(streams, (1, "1"), strict=True):
            assert await stream.next_notification() == (
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
        await server.active_connection.notify(UPDATED, {"uri": "x:2"})
        await server.active_connection.notify(UPDATED, {"uri": "x:1"})
        for stream, id in zip(streams, (1, "1"), strict=True):
            assert await stream.next_notification() == (UPDATED, marked(id, uri="x:1"))
        await cancel_all(*listening)


async def test_notifications_keep_the_servers_members_but_no_gateway_id() -> None:
    for kind in (Server, StatelessScriptedServer):
        server = subscribable("x:1", "x:1/listed", kind=kind)
        async with serving(s=server) as gateway, session_client(gateway) as old:
            client, stream = StatelessCaller(gateway), RecordingStream()
            await old.ask(SUBSCRIBE, {"uri": "x:1"})
            listening = client.listen(stream, "s", resourceSubscriptions=["x:1"])
            await acknowledged(stream)
            for uri in ("x:1", "x:1/listed", "x:1/other"):
                news = {"uri": uri, "vendor": 1}
                stray = {SUBSCRIPTION: "upstream's", "vendor/x": 1}
                await server.active_connection.notify(UPDATED, news | {"_meta": stray})
                _, expected = await stream.next_notification()
                assert expected == news | {"_meta": {SUBSCRIPTION: "s", "vendor/x": 1}}
                assert await old.wait_notification(UPDATED) == news | {"_meta": {"vendor/x": 1}}
            await cancel_all(listening)


async def test_invalid_notifications_are_dropped() -> None:
    server = subscribable("x:1")
    async with serving(s=server) as gateway, session_client(gateway) as old:
        client, stream = StatelessCaller(gateway), RecordingStream()
        await old.ask(SUBSCRIBE, {"uri": "x:1"})
        listening = client.listen(stream, resourceSubscriptions=["x:1"])
        await acknowledged(stream)
        for news in ({}, {"uri": 7}, {"uri": "x:1", "_meta": 7}, ["x:1"]):
            await server.active_connection.notify(UPDATED, news)
        await server.active_connection.notify(UPDATED, {"uri": "x:1"})
        assert await stream.next_notification() == (UPDATED, marked("s", uri="x:1"))
        assert await old.wait_notification(UPDATED) == {"uri": "x:1"}
        await cancel_all(listening)


async def test_equal_uris_of_two_servers_are_distinguished() -> None:
    a, b = subscribable("x:1"), subscribable("x:1", "x:1/deep")
    async with serving(a=a, b=b) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        listening = client.listen(stream, resourceSubscriptions=["trunkline:b:x:1"])
        await acknowledged(stream)
        assert (a.count(SUBSCRIBE), b.received[-1]) == (0, (SUBSCRIBE, {"uri": "x:1"}))
        await a.active_connection.notify(UPDATED, {"uri": "x:1"})
        for native, public in (
            ("x:1", "trunkline:b:x:1"),
            ("x:1/deep", "x:1/deep"),  # as it is listed
            ("x:1/new", "trunkline:b:x:1/new"),
        ):
            await b.active_connection.notify(UPDATED, {"uri": native})
            assert await stream.next_notification() == (UPDATED, marked("s", uri=public))
        await cancel_all(listening)
        assert stream.take_notifications() == []


@pytest.mark.holds("T93")
async def test_a_resource_with_two_subscribers_has_one_subscription_until_the_last_leaves() -> None:
    server = subscribable("x:1")
    async with serving(s=server) as gateway:
        client, one, two = await stateless_caller(gateway), RecordingStream(), RecordingStream()
        first = client.listen(one, 1, resourceSubscriptions=["x:1"])
        await acknowledged(one)
        second = client.listen(two, 2, resourceSubscriptions=["x:1"])
        await acknowledged(two)
        assert server.count(SUBSCRIBE) == 1
        await cancel_all(first)
        await server.active_connection.notify(UPDATED, {"uri": "x:1"})
        assert (await two.next_notification())[0] == UPDATED
        assert server.count(UNSUBSCRIBE) == 0
        await cancel_all(second)
        assert await server.wait_received(UNSUBSCRIBE) == {"uri": "x:1"}
        assert one.take_notifications() == two.take_notifications() == []


async def test_sessions_and_subscription_streams_share_subscriptions() -> None:
    server = subscribable("x:1")
    async with serving(s=server) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        async with session_client(gateway) as old:
            await old.ask(SUBSCRIBE, {"uri": "x:1"})
            listening = client.listen(stream, resourceSubscriptions=["x:1"])
            await acknowledged(stream)
            assert server.count(SUBSCRIBE) == 1
            await cancel_all(listening)
            await server.active_connection.notify(UPDATED, {"uri": "x:1"})
            await old.wait_notification(UPDATED)
            assert server.count(UNSUBSCRIBE) == 0
        await server.wait_received(UNSUBSCRIBE)


@pytest.mark.holds("T41")
async def test_a_failed_subscription_is_left_out_of_the_acknowledgement() -> None:
    able, unable, down = subscribable("x:1"), subscribable("y:1"), subscribable("z:1")
    unable.methods[SUBSCRIBE] = refuse(-32601)
    async with serving(a=able, b=unable, c=down) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        down.broken = OSError("gone")
        await down.crash()
        while gateway.registry.upstream("c").ready:
            await asyncio.sleep(0)
        listening = client.listen(
            stream, resourceSubscriptions=["unknown:", "y:1", "z:1", "x:1", "x:1"]
        )
        assert await acknowledged(stream) == {"resourceSubscriptions": ["x:1"]}
        await cancel_all(listening)
        assert unable.count(UNSUBSCRIBE) == 0


async def test_a_slow_server_delays_the_acknowledgement_only_up_to_a_limit() -> None:
    LoopClock().skip_idle_time()
    limits = GatewayLimits(acknowledge_timeout=0.1)
    able, slow = subscribable("x:1", "x:2"), subscribable("y:1", "y:2")
    slow.methods[SUBSCRIBE] = hold = HeldAnswer({})
    async with serving(limits, a=able, b=slow) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        listening = client.listen(stream, resourceSubscriptions=["x:1", "y:1", "y:2", "x:2"])
        assert sorted((await acknowledged(stream))["resourceSubscriptions"]) == ["x:1", "x:2"]
        assert hold.started.is_set()
        # The server may have subscribed, so it gets an unsubscribe request.
        assert await slow.wait_received(UNSUBSCRIBE) == {"uri": "y:1"}
        await cancel_all(listening)


async def test_closing_the_gateway_ends_the_streams_in_order() -> None:
    server = subscribable("x:1")
    async with serving(s=server) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        listening = client.listen(stream, 7, resourceSubscriptions=["x:1"])
        await acknowledged(stream)
        gateway.stateless.end_subscriptions()
        assert await listening == {"resultType": "complete", **marked(7)}
        late = client.listen(stream, 8, toolsListChanged=True)
        assert await late == {"resultType": "complete", **marked(8)}
        assert await acknowledged(stream) == {"toolsListChanged": True}
        assert stream.take_notifications() == []


async def test_closing_during_a_subscription_request_ends_the_stream() -> None:
    server = subscribable("x:1")
    server.methods[SUBSCRIBE] = hold = HeldAnswer({})
    async with serving(s=server) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        listening = client.listen(stream, 7, resourceSubscriptions=["x:1"])
        await hold.started.wait()
        gateway.stateless.end_subscriptions()
        hold.released.set()
        assert (await listening)["resultType"] == "complete"


@pytest.mark.parametrize("early", [True, False])
async def test_a_client_that_disconnects_while_subscribing_leaves_nothing(
    early: bool,
) -> None:
    server = subscribable("x:1", "x:2")
    server.methods[SUBSCRIBE] = hold = HeldAnswer({})
    async with serving(s=server) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        listening = client.listen(stream, resourceSubscriptions=["x:1", "x:2"])
        await hold.started.wait()
        if not early:
            hold.released.set()
            await acknowledged(stream)
        await cancel_all(listening)
        gone = {(await server.wait_received(UNSUBSCRIBE))["uri"]}
        if not early:
            gone.add((await server.wait_received(UNSUBSCRIBE))["uri"])
        assert gone == ({"x:1"} if early else {"x:1", "x:2"})
        # The next one has to ask again, and does.
        del server.methods[SUBSCRIBE]
        before = server.count(SUBSCRIBE)
        again = client.listen(stream, resourceSubscriptions=["x:1"])
        assert await acknowledged(stream) == {"resourceSubscriptions": ["x:1"]}
        assert server.count(SUBSCRIBE) == before + 1
        await cancel_all(again)


async def test_a_restarted_server_gets_subscriptions_again_and_a_removed_one_does_not() -> None:
    server = subscribable("x:1")
    gateway = make_gateway()
    add(gateway, "s", server, max_restarts=1)
    async with running(gateway, server):
        client, stream = await stateless_caller(gateway), RecordingStream()
        listening = client.listen(stream, resourceSubscriptions=["x:1"])
        await acknowledged(stream)
        await server.wait_received(SUBSCRIBE)
        await server.crash()
        assert await server.wait_received(SUBSCRIBE) == {"uri": "x:1"}
        await server.active_connection.notify(UPDATED, {"uri": "x:1"})
        assert await stream.next_notification() == (UPDATED, marked("s", uri="x:1"))
        server.broken = OSError("gone")
        await server.crash()
        while gateway.registry.upstream("s").state != "failed":
            await asyncio.sleep(0)
        await cancel_all(listening)
        assert server.count(UNSUBSCRIBE) == 0


async def test_changes_are_reported_whatever_caused_them() -> None:
    server, other = Server(tools=[tool("t")]), StatelessScriptedServer(tools=[tool("t")])
    async with serving(s=server, o=other) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        listening = client.listen(stream, **LISTS)
        await acknowledged(stream)
        expected = ("notifications/tools/list_changed", marked("s"))
        other.lists["tools"].append(tool("one"))
        await other.notify_subscriber("notifications/tools/list_changed")
        assert await stream.next_notification() == expected
        server.lists["tools"].append(tool("more"))
        await server.crash()
        assert await stream.next_notification() == expected
        await cancel_all(listening)


async def test_a_stateless_server_has_one_subscription_for_all_clients() -> None:
    server = subscribable("x:1", "x:2", kind=StatelessScriptedServer)
    async with serving(s=server) as gateway:
        client, streams = await stateless_caller(gateway), [RecordingStream(), RecordingStream()]
        listening = [
            client.listen(stream, resourceSubscriptions=[uri])
            for stream, uri in zip(streams, ("x:1", "x:2"), strict=True)
        ]
        for stream in streams:
            await acknowledged(stream)
        requested = [
            params["notifications"] for method, params in server.received if method == LISTEN
        ]
        assert set(requested[-1]["resourceSubscriptions"]) == {"x:1", "x:2"}
        await server.notify_subscriber(UPDATED, uri="x:2")
        assert await streams[1].next_notification() == (UPDATED, marked("s", uri="x:2"))
        assert streams[0].take_notifications() == []
        await cancel_all(*listening)
