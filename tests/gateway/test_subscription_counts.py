"""How many subscriptions a principal may have, over all sessions, streams and servers."""

import pytest

from tests.gateway.servers import Server, refuse, serving, session_client
from tests.gateway.stateless_callers import RecordingStream, StatelessCaller, cancel_all
from trunkline.gateway.settings import SubscriptionLimits
from trunkline.gateway.upstream_subscriptions import SubscriptionCounts
from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2025_11_25, V2026_07_28, Revision


def caller(principal: str, revision: Revision = V2025_11_25) -> Caller:
    return Caller(Principal(principal), revision, {}, Raw(b"{}"))


def test_subscriptions_are_limited_in_total_and_per_principal() -> None:
    counts, reached = SubscriptionCounts(SubscriptionLimits(3, 2)), list[tuple[str, str]]()
    counts.on_limit = lambda principal, limit: reached.append((principal.id, limit))
    for _ in range(2):
        counts.acquire(caller("a"))
    with pytest.raises(RpcError, match="you have 2 subscriptions") as own:
        counts.acquire(caller("a", V2026_07_28))
    assert own.value.code == 4290
    assert own.value.data == {
        "type": "rate_limited",
        "limit": "gateway.max_subscriptions_per_principal",
        "retryAfter": 1,
    }
    counts.acquire(caller("b"))
    with pytest.raises(RpcError, match="the gateway has 3 subscriptions"):
        counts.acquire(caller("c"))
    assert reached == [
        ("a", "gateway.max_subscriptions_per_principal"),
        ("c", "gateway.max_subscriptions"),
    ]
    counts.release("a", 2)
    counts.release("a", 0)
    counts.acquire(caller("c"))
    counts.reconfigure(SubscriptionLimits(9, 9))
    counts.acquire(caller("b"))
    assert (counts.total, counts.by_principal) == (3, {"b": 2, "c": 1})


def resource_server() -> Server:
    server = Server(resources=[{"uri": f"x:{n}", "name": f"x{n}"} for n in range(9)])
    server.capabilities["resources"] = {"subscribe": True}
    return server


async def test_resources_of_all_sessions_count_until_they_are_unsubscribed() -> None:
    server = resource_server()
    async with serving(s=server) as gateway:
        counts = gateway.subscription_counts
        counts.reconfigure(SubscriptionLimits(9, 2))
        async with session_client(gateway) as one, session_client(gateway) as two:
            await one.ask("resources/subscribe", {"uri": "x:1"})
            await one.ask("resources/subscribe", {"uri": "x:1"})  # the same one
            await two.ask("resources/subscribe", {"uri": "x:2"})
            with pytest.raises(RpcError, match="you have 2 subscriptions"):
                await two.ask("resources/subscribe", {"uri": "x:3"})
            await one.ask("resources/unsubscribe", {"uri": "x:1"})
            await two.ask("resources/subscribe", {"uri": "x:3"})
            assert counts.by_principal == {"local": 2}
        assert counts.total == 0


async def test_a_refused_subscription_does_not_count() -> None:
    server = resource_server()
    server.methods["resources/subscribe"] = refuse(-32602)
    async with serving(s=server) as gateway, session_client(gateway) as user:
        with pytest.raises(RpcError):
            await user.ask("resources/subscribe", {"uri": "x:1"})
        assert gateway.subscription_counts.total == 0


async def test_a_subscription_stream_counts_with_its_resources_until_it_ends() -> None:
    server = resource_server()
    async with serving(s=server) as gateway:
        counts = gateway.subscription_counts
        counts.reconfigure(SubscriptionLimits(9, 3))
        client, stream = StatelessCaller(gateway), RecordingStream()
        listening = client.listen(stream, "s", resourceSubscriptions=["x:1", "x:2", "x:3"])
        _, acknowledged = await stream.next_notification()
        assert len(acknowledged["notifications"]["resourceSubscriptions"]) == 2
        assert counts.total == 3
        with pytest.raises(RpcError, match="you have 3 subscriptions"):
            await client.listen(RecordingStream(), "t", toolsListChanged=True)
        await cancel_all(listening)
        assert counts.by_principal == {}
