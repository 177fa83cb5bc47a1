"""What a server of the envelope era tells of changes: one subscription, kept alive."""

import asyncio
from typing import Any

import pytest

from tests.backends.test_envelope import LISTEN, Listener, a_call, loss, talk, until
from tests.backends.test_remote import Ear
from tests.gateway.servers import tool
from tests.jsonrpc.test_channel import settle, stop, tidy
from tests.transports.faulty import Line
from tests.transports.links import no_patience as no_patience_with_links
from tests.transports.web import (
    END,
    STREAM,
    Asked,
    Hold,
    InTurn,
    Modern,
    Reaction,
    event,
    fails,
    news,
    refuses,
    response,
    result,
    streams,
)
from trunkline.backends import envelope

__all__ = ["no_patience_with_links"]

CHANGES: dict[str, Any] = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}


@pytest.fixture(autouse=True)
def relisten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "RELISTEN_DELAY", 0.001)
    monkeypatch.setattr(envelope, "MAX_RELISTEN_DELAY", 0.01)


def listening() -> Modern:
    """Return a server that tells of changes."""
    web = Modern(tools=[], resources=[])
    web.capabilities = CHANGES
    return web


@tidy
async def test_one_subscription_is_held_for_all_and_what_it_tells_is_passed_on() -> None:
    web, ear = listening(), Listener()
    async with talk(web, ear) as backend:
        asked = await web.until("subscriptions/listen")
        assert asked.params["notifications"] == {"toolsListChanged": True}
        assert asked.header("mcp-method") == "subscriptions/listen"
        await web.tell("tools/list_changed")
        assert await ear.changed.get() == "tools"
        await backend.follow("a:b")
        await web.tell("resources/updated", uri="a:b/c")
        assert await ear.told_of.get() == (
            "notifications/resources/updated",
            {"uri": "a:b/c"},
        )


@tidy
async def test_who_tells_of_nothing_is_not_listened_to() -> None:
    web = Modern(tools=[tool("t")])
    async with talk(web, Listener()):
        pass
    assert web.of("subscriptions/listen") == []


@tidy
async def test_the_old_subscription_ends_when_the_new_one_stands() -> None:
    web, ear = listening(), Listener()
    async with talk(web, ear) as backend:
        await backend.follow("a:b")
        await until(lambda: len(web.listening) == 1)
        hold = Hold(web.react)
        web.reactions["subscriptions/listen"] = hold
        following = asyncio.create_task(backend.follow("a:c"))
        await hold.begun.wait()
        await web.tell("tools/list_changed")  # on the old one, which stands
        assert await ear.changed.get() == "tools"
        hold.let_go.set()
        await following
        await until(lambda: len(web.listening) == 1)
        await backend.unfollow("a:b")
        await until(lambda: len(web.listening) == 1)
    wishes = [a.params["notifications"].get("resourceSubscriptions") for a in web.of(LISTEN)]
    assert wishes == [None, ["a:b"], ["a:b", "a:c"], ["a:c"]]


@tidy
async def test_a_resource_that_the_server_does_not_follow_is_refused() -> None:
    web = listening()
    web.honours = lambda wishes: {"toolsListChanged": True}
    async with talk(web, Listener()) as backend:
        error = await loss(backend.follow("a:b"))
        assert error.code == -32602
        await until(lambda: len(web.listening) == 1)
    assert [len(a.params["notifications"]) for a in web.of(LISTEN)] == [1, 2, 1]


@tidy
async def test_who_follows_no_more_and_hears_of_nothing_else_holds_no_subscription() -> None:
    web = Modern(resources=[])
    async with talk(web, Listener()) as backend:
        await backend.follow("a:b")
        await until(lambda: len(web.listening) == 1)
        await backend.unfollow("a:b")
        await until(lambda: not web.listening)
        await settle()
    assert len(web.of(LISTEN)) == 1


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        fails(-32601, status="404 Not Found"),
        fails(-32601),
        streams(result()),
        refuses("400 Bad Request"),
        streams(),
    ],
)
async def test_who_cannot_do_it_after_all_is_not_blamed(reaction: Reaction) -> None:
    web = listening()
    web.reactions[LISTEN] = reaction
    async with talk(web, Listener()) as backend:
        await backend.call(a_call({"name": "t"}), Ear())
        await settle()
        await loss(backend.follow("a:b"))
    assert len(web.of(LISTEN)) == 2


@tidy
async def test_who_does_not_acknowledge_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "LISTEN_PATIENCE", 0.2)
    web, hold = listening(), Hold()
    web.reactions[LISTEN] = hold
    async with talk(web, Listener()) as backend:
        await hold.gone.wait()
        assert isinstance(await loss(backend.follow("a:b")), TimeoutError)


@tidy
async def test_a_subscription_that_the_server_ended_is_made_again_and_again() -> None:
    async def reset(line: Line, asked: Asked) -> None:
        line.reset()

    async def end(line: Line, asked: Asked) -> None:
        acknowledged = news("notifications/subscriptions/acknowledged", {"notifications": {}})
        await line.send(STREAM + event(acknowledged) + event(response(asked.id, {})) + END)

    web, ear = listening(), Listener()
    failing = [reset, refuses("503 Later"), fails(-32603), refuses("401 Who"), streams()]
    web.reactions[LISTEN] = InTurn(web.listen, *failing, end, web.listen)
    async with talk(web, ear) as backend:
        await until(lambda: web.listening)
        web.listening[-1].reset()
        await until(lambda: len(web.of(LISTEN)) == 8)
        changed = {await ear.changed.get() for _ in range(4)}
        assert changed == {"tools", "resources"}  # for who knows what was not told
        await web.tell("tools/list_changed")
        assert await ear.changed.get() == "tools"
        await backend.follow("a:b")
        web.listening[-1].reset()
        await until(lambda: len(web.of(LISTEN)) == 10)
    assert web.of(LISTEN)[-1].params["notifications"]["resourceSubscriptions"] == ["a:b"]


@tidy
async def test_who_says_that_there_is_no_such_thing_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    web = listening()
    web.reactions[LISTEN] = InTurn(web.listen, fails(-32601, status="404 Not Found"))
    monkeypatch.setattr(envelope, "RELISTEN_DELAY", 0.0)  # the next would come at once
    async with talk(web, Listener()) as backend:
        await until(lambda: web.listening)
        web.listening[-1].reset()
        await until(lambda: len(web.of(LISTEN)) == 2)
        for _ in range(9):
            await backend.ping()
    assert len(web.of(LISTEN)) == 2


@tidy
async def test_whoever_follows_while_a_subscription_is_lost_brings_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(envelope, "RELISTEN_DELAY", 0.3)
    monkeypatch.setattr(envelope, "MAX_RELISTEN_DELAY", 0.3)
    web, ear = listening(), Listener()
    async with talk(web, ear) as backend:
        await until(lambda: web.listening)
        web.listening[-1].reset()
        await until(lambda: not web.listening)
        await backend.follow("a:b")
        assert {await ear.changed.get() for _ in range(2)} == {"tools", "resources"}
        assert len(web.of(LISTEN)) == 2
        assert len(web.listening) == 1


@tidy
async def test_an_old_subscription_that_ends_while_the_new_one_fails_is_made_again() -> None:
    web, hold = listening(), Hold(fails(-32603))
    web.reactions[LISTEN] = InTurn(web.listen, hold, web.listen)
    async with talk(web, Listener()) as backend:
        await until(lambda: web.listening)
        following = asyncio.create_task(backend.follow("a:b"))
        await hold.begun.wait()
        web.listening[-1].reset()
        await until(lambda: not web.listening)
        hold.let_go.set()
        await loss(following)
        await until(lambda: web.listening)


@tidy
async def test_who_gives_up_following_leaves_the_old_subscription_as_it_was() -> None:
    web, ear, hold = listening(), Listener(), Hold()
    web.reactions[LISTEN] = InTurn(web.listen, hold)
    async with talk(web, ear) as backend:
        await until(lambda: web.listening)
        following = asyncio.create_task(backend.follow("a:b"))
        await hold.begun.wait()
        await stop(following)
        await hold.gone.wait()
        await web.tell("tools/list_changed")
        assert await ear.changed.get() == "tools"


@tidy
@pytest.mark.parametrize("delay", [0.0, 30.0])
async def test_the_end_comes_whatever_is_being_listened_to(
    monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    monkeypatch.setattr(envelope, "RELISTEN_DELAY", delay)
    monkeypatch.setattr(envelope, "MAX_RELISTEN_DELAY", delay)
    web, hold = listening(), Hold()
    web.reactions[LISTEN] = InTurn(web.listen, hold)
    async with talk(web, Listener()):
        await until(lambda: web.listening)
        web.listening[-1].reset()
        await until(lambda: not web.listening)
        if not delay:
            await hold.begun.wait()
