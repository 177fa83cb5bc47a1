"""Resources: to whom a URI belongs, how equal ones are told apart, and who hears of changes."""

import asyncio
from typing import Any

import pytest

from tests.gateway.letters import poster
from tests.gateway.servers import Hold, Server, one_tool, refuse, serving, user
from trunkline.gateway import session
from trunkline.jsonrpc import Request, to_raw

UPDATED = "notifications/resources/updated"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"


def keeper(*uris: str, templates: tuple[str, ...] = ()) -> Server:
    """Return a server with these resources, which answers what it was asked for."""
    server = Server(
        resources=[{"uri": uri, "name": uri} for uri in uris],
        resourceTemplates=[{"uriTemplate": uri, "name": uri} for uri in templates],
    )
    server.capabilities["resources"] = {"subscribe": True}
    server.methods["resources/read"] = lambda params: {
        "contents": [{"uri": params["uri"], "text": "t"}, {"uri": "other:", "text": "o"}],
        "_meta": {"k": 1},
    }
    return server


async def test_a_resource_is_read_from_its_owner() -> None:
    a, b = keeper("x:1"), keeper("x:2", templates=("y:{+path}",))
    async with serving(a=a, b=b) as made, user(made) as somebody:
        assert await somebody.names("resources/list") == ["x:1", "x:2"]
        for uri in ("x:2", "y:anything"):
            result = await somebody.ask("resources/read", {"uri": uri})
            assert result["contents"][0]["uri"] == uri
            assert b.heard[-1] == ("resources/read", {"uri": uri})
        assert a.count("resources/read") == 0


async def test_equal_uris_are_told_apart_also_in_what_is_read() -> None:
    a, b = keeper("x:1"), keeper("x:1")
    async with serving(a=a, b=b) as made, user(made) as somebody:
        first, second = await somebody.names("resources/list")
        assert first == "x:1"
        result = await somebody.ask("resources/read", {"uri": second})
        assert b.heard[-1] == ("resources/read", {"uri": "x:1"})
        assert [content["uri"] for content in result["contents"]] == [second, "other:"]
        assert result["_meta"] == {"k": 1}
        assert a.count("resources/read") == 0


async def test_what_cannot_be_read_is_named_as_it_was_asked_for() -> None:
    a, b, marked = keeper("x:1"), keeper("x:1"), "trunkline:b:x:1"
    async with serving(a=a, b=b) as made, user(made) as somebody:
        client = await poster(made)
        b.methods["resources/read"] = refuse(-32002, "gone", {"uri": "x:1", "k": [1]})
        for error, code in (
            (await somebody.refusal("resources/read", {"uri": marked}), -32002),
            (await client.refusal("resources/read", uri=marked), -32602),
        ):
            assert (error.code, error.message) == (code, "gone")
            assert error.data == {"uri": marked, "k": [1]}
        for said in ({"uri": "x:2"}, {"k": 1}, 7, None):
            b.methods["resources/read"] = refuse(-32603, "odd", said)
            error = await somebody.refusal("resources/read", {"uri": marked})
            assert error.data == said


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"contents":[{"uri":"x:\\u0031"}]}', "trunkline:b:x:1"),
        (b'{"contents":[{"uri":"x:/"}]}', "x:/"),
    ],
)
async def test_a_uri_is_the_same_however_it_is_spelled(answer: bytes, expected: str) -> None:
    a, b = keeper("x:1"), keeper("x:1")
    b.methods["resources/read"] = lambda _: answer
    async with serving(a=a, b=b) as made, user(made) as somebody:
        result = await somebody.ask("resources/read", {"uri": "trunkline:b:x:1"})
        assert result["contents"][0]["uri"] == expected


@pytest.mark.parametrize(
    "answer", [{"contents": 1}, {"contents": [1]}, {"contents": [{"a": 1}]}, {"b": 1}]
)
async def test_an_odd_answer_passes_as_it_is(answer: Any) -> None:
    a, b = keeper("x:1"), keeper("x:1")
    b.methods["resources/read"] = lambda _: answer
    async with serving(a=a, b=b) as made, user(made) as somebody:
        assert await somebody.ask("resources/read", {"uri": "trunkline:b:x:1"}) == answer


@pytest.mark.holds("C13")
async def test_a_resource_of_nobody_is_not_found() -> None:
    async with serving(a=keeper("x:1"), b=keeper("x:2")) as made, user(made) as somebody:
        error = await somebody.refusal("resources/read", {"uri": "z:"})
        assert (error.code, error.data) == (-32002, {"uri": "z:"})


async def test_the_only_server_with_resources_may_know_more_than_it_lists() -> None:
    a = keeper("x:1")
    async with serving(a=a, b=one_tool()) as made, user(made) as somebody:
        await somebody.ask("resources/read", {"uri": "z:"})
        assert a.heard[-1] == ("resources/read", {"uri": "z:"})


async def test_only_those_who_follow_a_resource_hear_of_its_changes() -> None:
    server = keeper("x:1")
    async with serving(s=server) as made, user(made) as one, user(made) as two:
        assert await one.ask("resources/subscribe", {"uri": "x:1"}) == {}
        await server.line.notify(UPDATED, {"uri": "x:1", "vendor": 1})
        assert await one.until_told(UPDATED) == {"uri": "x:1", "vendor": 1}
        await one.ask("resources/unsubscribe", {"uri": "x:1"})
        await server.line.notify(UPDATED, {"uri": "x:1"})
        await server.line.notify("vendor/news", {})
        for somebody in (one, two):
            told = await everything_until(somebody, "vendor/news")
            assert UPDATED not in told


async def everything_until(somebody: Any, last: str) -> list[str]:
    told: list[str] = []
    while last not in told:
        told.append((await somebody.told.get())[0])
    return told


async def test_a_change_is_told_under_the_uri_that_the_client_knows() -> None:
    a, b = keeper("x:1"), keeper("x:1", "x:1/deep")
    async with serving(a=a, b=b) as made, user(made) as somebody:
        await somebody.ask("resources/subscribe", {"uri": "trunkline:b:x:1"})
        assert b.heard[-1] == ("resources/subscribe", {"uri": "x:1"})
        await a.line.notify(UPDATED, {"uri": "x:1"})  # that is another one
        await a.line.notify("vendor/news", {})
        assert UPDATED not in await everything_until(somebody, "vendor/news")
        for native, public in (
            ("x:1", "trunkline:b:x:1"),
            ("x:1/deep", "x:1/deep"),
            ("x:1/new", "trunkline:b:x:1/new"),
        ):
            await b.line.notify(UPDATED, {"uri": native})
            assert await somebody.until_told(UPDATED) == {"uri": public}
        for other in ("x:12", "x:", "y:1"):
            await b.line.notify(UPDATED, {"uri": other})
        await b.line.notify(UPDATED)
        await b.line.notify("vendor/news", {})
        assert UPDATED not in await everything_until(somebody, "vendor/news")


async def test_a_resource_of_a_template_can_be_followed_too() -> None:
    a, b = keeper(templates=("t:///{id}",)), keeper(templates=("t:///{id}",))
    async with serving(a=a, b=b) as made, user(made) as somebody:
        await somebody.ask("resources/subscribe", {"uri": "trunkline:b:t:///7"})
        assert b.heard[-1] == ("resources/subscribe", {"uri": "t:///7"})
        await b.line.notify(UPDATED, {"uri": "t:///7"})
        assert await somebody.until_told(UPDATED) == {"uri": "trunkline:b:t:///7"}


async def test_who_was_refused_follows_nothing() -> None:
    server = keeper("x:1")
    server.methods["resources/subscribe"] = refuse(-32602)
    async with serving(s=server) as made, user(made) as somebody:
        assert (await somebody.refusal("resources/subscribe", {"uri": "x:1"})).code == -32602
        await server.line.notify(UPDATED, {"uri": "x:1"})
        await server.line.notify("vendor/news", {})
        assert UPDATED not in await everything_until(somebody, "vendor/news")


async def test_a_change_that_comes_right_after_the_answer_is_heard() -> None:
    server = keeper("x:1")

    async def subscribe(_: Any) -> Any:
        async def change() -> None:
            await server.line.notify(UPDATED, {"uri": "x:1"})

        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(change()))
        return {}

    server.methods["resources/subscribe"] = subscribe
    async with serving(s=server) as made, user(made) as somebody:
        await somebody.ask("resources/subscribe", {"uri": "x:1"})
        assert await somebody.until_told(UPDATED) == {"uri": "x:1"}


async def test_a_server_that_comes_back_is_told_again_what_the_client_wants_of_it() -> None:
    server, other = keeper("x:1", "x:2"), keeper("z:1")
    server.capabilities["logging"] = {}
    async with serving(s=server, o=other) as made, user(made) as somebody:
        for uri in ("x:1", "x:2"):
            await somebody.ask("resources/subscribe", {"uri": uri})
        await somebody.ask("resources/unsubscribe", {"uri": "x:2"})
        await somebody.ask("logging/setLevel", {"level": "debug"})
        for method in ("resources/subscribe", "resources/subscribe", "logging/setLevel"):
            await server.until_heard(method)
        await server.die()
        assert await server.until_heard("resources/subscribe") == {"uri": "x:1"}
        assert await server.until_heard("logging/setLevel") == {"level": "debug"}
        assert server.starts == 2
        assert server.count("resources/subscribe") == 3
        assert other.count("logging/setLevel") == 0


async def test_to_follow_something_twice_at_once_is_to_follow_it_once() -> None:
    server = keeper("x:1")
    server.methods[SUBSCRIBE] = hold = Hold({})
    async with serving(s=server) as made, user(made) as somebody:
        asked = [asyncio.create_task(somebody.ask(SUBSCRIBE, {"uri": "x:1"})) for _ in range(2)]
        await hold.begun.wait()
        await somebody.ask("ping")
        hold.let_go.set()
        assert await asyncio.gather(*asked) == [{}, {}]
        assert server.count(SUBSCRIBE) == 1
        await somebody.ask(UNSUBSCRIBE, {"uri": "x:1"})
        assert await server.until_heard(UNSUBSCRIBE) == {"uri": "x:1"}


async def test_a_client_that_leaves_follows_nothing() -> None:
    server = keeper("x:1", "x:2")
    async with serving(s=server) as made:
        async with user(made) as somebody:
            for uri in ("x:1", "x:2"):
                await somebody.ask(SUBSCRIBE, {"uri": uri})
        gone = [(await server.until_heard(UNSUBSCRIBE))["uri"] for _ in range(2)]
        assert sorted(gone) == ["x:1", "x:2"]


async def test_a_client_that_leaves_while_it_begins_to_follow_follows_nothing() -> None:
    server = keeper("x:1")
    server.methods[SUBSCRIBE] = hold = Hold({})
    async with serving(s=server) as made:
        async with user(made) as somebody:
            early = asyncio.create_task(somebody.ask(SUBSCRIBE, {"uri": "x:1"}))
            await hold.begun.wait()
        await asyncio.gather(early, return_exceptions=True)
        assert await server.until_heard(UNSUBSCRIBE) == {"uri": "x:1"}


async def test_a_conversation_that_ends_before_its_request_does_follows_nothing() -> None:
    server = keeper("x:1")
    server.capabilities["logging"] = {}
    server.methods[SUBSCRIBE] = hold = Hold({})
    async with serving(s=server) as made, user(made) as somebody:
        (conversation,) = made.sessions
        follow = conversation.answer(Request(7, SUBSCRIBE, to_raw({"uri": "x:1"})), None)
        late = conversation.answer(Request(8, "logging/setLevel", to_raw({"level": "debug"})), None)
        following = asyncio.create_task(follow)
        await hold.begun.wait()
        await made.close(conversation)
        hold.let_go.set()
        assert (await following, await late) == ({}, {})
        assert await server.until_heard(UNSUBSCRIBE) == {"uri": "x:1"}
        await somebody.ask("ping")
        assert server.count("logging/setLevel") == 0


async def test_a_resource_is_followed_no_more_at_the_server_where_it_was_followed() -> None:
    a, b = keeper("x:1"), keeper("x:2")
    async with serving(a=a, b=b) as made, user(made) as one, user(made) as two:
        await one.ask(SUBSCRIBE, {"uri": "x:1"})
        for server, uris in ((a, []), (b, ["x:1"])):
            server.lists["resources"] = [{"uri": uri, "name": uri} for uri in uris]
            await server.line.notify("notifications/resources/list_changed")
        while (await one.ask("resources/list"))["resources"] != b.lists["resources"]:
            await asyncio.sleep(0)
        await two.ask(SUBSCRIBE, {"uri": "x:1"})
        assert await b.until_heard(SUBSCRIBE) == {"uri": "x:1"}
        await one.ask(UNSUBSCRIBE, {"uri": "x:1"})
        assert await a.until_heard(UNSUBSCRIBE) == {"uri": "x:1"}
        await b.line.notify(UPDATED, {"uri": "x:1"})
        await two.until_told(UPDATED)
        assert b.count(UNSUBSCRIBE) == 0


async def test_nobody_follows_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_URIS", 2)
    server = keeper("x:1")
    async with serving(s=server) as made, user(made) as somebody:
        for uri in ("x:1", "x:2", "x:1"):
            await somebody.ask(SUBSCRIBE, {"uri": uri})
        error = await somebody.refusal(SUBSCRIBE, {"uri": "x:3"})
        assert (error.code, server.count(SUBSCRIBE)) == (-32602, 2)
        await somebody.ask(UNSUBSCRIBE, {"uri": "x:2"})
        await somebody.ask(SUBSCRIBE, {"uri": "x:3"})
        assert await somebody.ask(UNSUBSCRIBE, {"uri": "x:9"}) == {}
        assert (await somebody.refusal(UNSUBSCRIBE, {})).code == -32602
