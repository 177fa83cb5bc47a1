"""Change notifications of a stateless server: one subscription, kept alive."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.backends.http_clients import SHORT_LIMITS
from tests.backends.http_servers import (
    END,
    STREAM,
    BlockedReply,
    FakeStatelessServer,
    InSequence,
    Reaction,
    ReceivedMessage,
    event,
    fails,
    notification,
    rejects,
    response,
    result,
    streams,
)
from tests.backends.test_session_server import Recorder
from tests.backends.test_stateless_server import LISTEN, Listener, a_call, loss, until
from tests.backends.test_stateless_server import connected_backend as connected_with_limits
from tests.contexts import start_call
from tests.gateway.servers import tool
from tests.http.scripted_server import ScriptedConnection
from tests.tasks import LoopClock, settle, stop, tidy
from trunkline.backends.limits import BackendLimits
from trunkline.backends.stateless_server import StatelessServer

LIMITS = replace(SHORT_LIMITS, relisten_delay=0.001, max_relisten_delay=0.01)
CHANGES: dict[str, Any] = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}


def connected_backend(
    web: FakeStatelessServer, listener: Listener, limits: BackendLimits = LIMITS
) -> AbstractAsyncContextManager[StatelessServer]:
    """Connect with hardly any pause before a subscription is renewed."""
    return connected_with_limits(web, listener, limits)


def listening() -> FakeStatelessServer:
    """Return a server with change notifications."""
    web = FakeStatelessServer(tools=[], resources=[])
    web.capabilities = CHANGES
    return web


@tidy
async def test_one_subscription_serves_all_and_its_changes_are_reported() -> None:
    web, listener = listening(), Listener()
    async with connected_backend(web, listener) as backend:
        asked = await web.wait_for("subscriptions/listen")
        assert asked.params["notifications"] == {"toolsListChanged": True}
        assert asked.header("mcp-method") == "subscriptions/listen"
        await web.notify_listeners("tools/list_changed")
        assert await listener.changed.get() == "tools"
        await backend.subscribe("a:b")
        await web.notify_listeners("resources/updated", uri="a:b/c")
        assert await listener.notifications.get() == (
            "notifications/resources/updated",
            {"uri": "a:b/c"},
        )


@tidy
async def test_a_server_without_changes_gets_no_subscription() -> None:
    web = FakeStatelessServer(tools=[tool("t")])
    async with connected_backend(web, Listener()):
        pass
    assert web.received_for("subscriptions/listen") == []


@tidy
async def test_the_old_subscription_ends_when_the_new_one_is_acknowledged() -> None:
    web, listener = listening(), Listener()
    async with connected_backend(web, listener) as backend:
        await backend.subscribe("a:b")
        await until(lambda: len(web.listening) == 1)
        hold = BlockedReply(web.react)
        web.reactions["subscriptions/listen"] = hold
        following = asyncio.create_task(backend.subscribe("a:c"))
        await hold.started.wait()
        await web.notify_listeners(
            "tools/list_changed"
        )  # on the old subscription, which is still open
        assert await listener.changed.get() == "tools"
        hold.unblocked.set()
        await following
        await until(lambda: len(web.listening) == 1)
        await backend.unsubscribe("a:b")
        await until(lambda: len(web.listening) == 1)
    requested = [
        a.params["notifications"].get("resourceSubscriptions") for a in web.received_for(LISTEN)
    ]
    assert requested == [None, ["a:b"], ["a:b", "a:c"], ["a:c"]]


@tidy
async def test_a_resource_without_subscription_support_is_refused() -> None:
    web = listening()
    web.honours = lambda requested: {"toolsListChanged": True}
    async with connected_backend(web, Listener()) as backend:
        error = await loss(backend.subscribe("a:b"))
        assert error.code == -32602
        await until(lambda: len(web.listening) == 1)
    assert [len(a.params["notifications"]) for a in web.received_for(LISTEN)] == [1, 2, 1]


@tidy
async def test_without_subscribers_and_list_changes_there_is_no_subscription() -> None:
    web = FakeStatelessServer(resources=[])
    async with connected_backend(web, Listener()) as backend:
        await backend.subscribe("a:b")
        await until(lambda: len(web.listening) == 1)
        await backend.unsubscribe("a:b")
        await until(lambda: not web.listening)
        await settle()
    assert len(web.received_for(LISTEN)) == 1


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        fails(-32601, status="404 Not Found"),
        fails(-32601),
        streams(result()),
        rejects("400 Bad Request"),
        streams(),
    ],
)
async def test_a_server_that_declared_too_many_subscriptions_is_accepted(
    reaction: Reaction,
) -> None:
    web = listening()
    web.reactions[LISTEN] = reaction
    async with connected_backend(web, Listener()) as backend:
        await start_call(backend, a_call({"name": "t"}, client=Recorder()))
        await settle()
        await loss(backend.subscribe("a:b"))
    assert len(web.received_for(LISTEN)) == 2


@tidy
async def test_a_missing_acknowledgement_is_not_awaited_forever() -> None:
    web, hold = listening(), BlockedReply()
    web.reactions[LISTEN] = hold
    async with connected_backend(web, Listener(), replace(LIMITS, listen_timeout=0.2)) as backend:
        await hold.disconnected.wait()
        assert isinstance(await loss(backend.subscribe("a:b")), TimeoutError)


@tidy
async def test_a_subscription_ended_by_the_server_is_renewed_again_and_again() -> None:
    async def reset(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        line.reset()

    async def end(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        acknowledged = notification(
            "notifications/subscriptions/acknowledged", {"notifications": {}}
        )
        await line.send(STREAM + event(acknowledged) + event(response(asked.id, {})) + END)

    web, listener = listening(), Listener()
    failing = [reset, rejects("503 Later"), fails(-32603), rejects("401 Who"), streams()]
    web.reactions[LISTEN] = InSequence(web.listen, *failing, end, web.listen)
    async with connected_backend(web, listener) as backend:
        await until(lambda: web.listening)
        web.listening[-1].reset()
        await until(lambda: len(web.received_for(LISTEN)) == 8)
        changed = {await listener.changed.get() for _ in range(4)}
        assert changed == {"tools", "resources"}  # changes may have been missed
        await web.notify_listeners("tools/list_changed")
        assert await listener.changed.get() == "tools"
        await backend.subscribe("a:b")
        web.listening[-1].reset()
        await until(lambda: len(web.received_for(LISTEN)) == 10)
    assert web.received_for(LISTEN)[-1].params["notifications"]["resourceSubscriptions"] == ["a:b"]


@tidy
async def test_a_method_not_found_error_ends_the_resubscribing() -> None:
    web = listening()
    web.reactions[LISTEN] = InSequence(web.listen, fails(-32601, status="404 Not Found"))
    limits = replace(LIMITS, relisten_delay=0.0)  # the next would come at once
    async with connected_backend(web, Listener(), limits) as backend:
        await until(lambda: web.listening)
        web.listening[-1].reset()
        await until(lambda: len(web.received_for(LISTEN)) == 2)
        for _ in range(9):
            await backend.ping()
    assert len(web.received_for(LISTEN)) == 2


@tidy
async def test_subscribing_renews_a_lost_subscription() -> None:
    limits = replace(LIMITS, relisten_delay=10.0, max_relisten_delay=10.0)
    clock, web, listener = LoopClock(), listening(), Listener()
    async with connected_backend(web, listener, limits) as backend:
        await until(lambda: web.listening)
        web.listening[-1].reset()
        await until(lambda: not web.listening)
        await backend.subscribe("a:b")
        await clock.advance(limits.relisten_delay)
        assert {await listener.changed.get() for _ in range(2)} == {"tools", "resources"}
        assert len(web.received_for(LISTEN)) == 2
        assert len(web.listening) == 1


@tidy
async def test_an_old_subscription_that_ends_while_the_new_one_fails_is_renewed() -> None:
    web, hold = listening(), BlockedReply(fails(-32603))
    web.reactions[LISTEN] = InSequence(web.listen, hold, web.listen)
    async with connected_backend(web, Listener()) as backend:
        await until(lambda: web.listening)
        following = asyncio.create_task(backend.subscribe("a:b"))
        await hold.started.wait()
        web.listening[-1].reset()
        await until(lambda: not web.listening)
        hold.unblocked.set()
        await loss(following)
        await until(lambda: web.listening)


@tidy
async def test_a_cancelled_subscribe_keeps_the_old_subscription() -> None:
    web, listener, hold = listening(), Listener(), BlockedReply()
    web.reactions[LISTEN] = InSequence(web.listen, hold)
    async with connected_backend(web, listener) as backend:
        await until(lambda: web.listening)
        following = asyncio.create_task(backend.subscribe("a:b"))
        await hold.started.wait()
        await stop(following)
        await hold.disconnected.wait()
        await web.notify_listeners("tools/list_changed")
        assert await listener.changed.get() == "tools"


@tidy
@pytest.mark.parametrize("delay", [0.0, 30.0])
async def test_closing_interrupts_the_listening_stream(delay: float) -> None:
    limits = replace(LIMITS, relisten_delay=delay, max_relisten_delay=delay)
    web, hold = listening(), BlockedReply()
    web.reactions[LISTEN] = InSequence(web.listen, hold)
    async with connected_backend(web, Listener(), limits):
        await until(lambda: web.listening)
        web.listening[-1].reset()
        await until(lambda: not web.listening)
        if not delay:
            await hold.started.wait()
