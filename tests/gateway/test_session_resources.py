"""Resources: the owner of a URI, equal URIs, and change notifications."""

import asyncio
from typing import Any

import pytest

from tests.contexts import without_token
from tests.gateway.servers import HeldAnswer, Server, one_tool, refuse, serving, session_client
from tests.gateway.stateless_callers import stateless_caller
from trunkline.gateway.settings import GatewayLimits
from trunkline.jsonrpc import Request, to_raw

UPDATED = "notifications/resources/updated"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"


def subscribable(*uris: str, templates: tuple[str, ...] = ()) -> Server:
    """Return a server with these resources, which returns the requested URI."""
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


def last_read(server: Server) -> Any:
    """Return the params of the last message to a server, a read, without the progress token."""
    method, params = server.received[-1]
    assert method == "resources/read"
    return without_token(params)


async def test_a_resource_is_read_from_its_server() -> None:
    a, b = subscribable("x:1"), subscribable("x:2", templates=("y:{+path}",))
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        assert await user.names("resources/list") == ["x:1", "x:2"]
        for uri in ("x:2", "y:anything"):
            result = await user.ask("resources/read", {"uri": uri})
            assert result["contents"][0]["uri"] == uri
            assert last_read(b) == {"uri": uri}
        assert a.count("resources/read") == 0


async def test_equal_uris_are_distinguished_also_when_they_are_read() -> None:
    a, b = subscribable("x:1"), subscribable("x:1")
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        first, second = await user.names("resources/list")
        assert first == "x:1"
        result = await user.ask("resources/read", {"uri": second})
        assert last_read(b) == {"uri": "x:1"}
        assert [content["uri"] for content in result["contents"]] == [second, "other:"]
        assert result["_meta"] == {"k": 1}
        assert a.count("resources/read") == 0


async def test_an_unreadable_call_is_recorded_by_its_name() -> None:
    a, b, marked = subscribable("x:1"), subscribable("x:1"), "trunkline:b:x:1"
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        client = await stateless_caller(gateway)
        b.methods["resources/read"] = refuse(-32002, "gone", {"uri": "x:1", "k": [1]})
        for error, code in (
            (await user.expect_error("resources/read", {"uri": marked}), -32002),
            (await client.expect_error("resources/read", uri=marked), -32602),
        ):
            assert (error.code, error.message) == (code, "gone")
            assert error.data == {"uri": marked, "k": [1]}
        for data in ({"uri": "x:2"}, {"k": 1}, 7, None):
            b.methods["resources/read"] = refuse(-32603, "odd", data)
            error = await user.expect_error("resources/read", {"uri": marked})
            assert error.data == data


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"contents":[{"uri":"x:\\u0031"}]}', "trunkline:b:x:1"),
        (b'{"contents":[{"uri":"x:/"}]}', "x:/"),
    ],
)
async def test_a_uri_is_the_same_in_any_json_spelling(answer: bytes, expected: str) -> None:
    a, b = subscribable("x:1"), subscribable("x:1")
    b.methods["resources/read"] = lambda _: answer
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        result = await user.ask("resources/read", {"uri": "trunkline:b:x:1"})
        assert result["contents"][0]["uri"] == expected


@pytest.mark.parametrize("answer", [{"contents": [1]}, {"b": 1, "contents": [{"a": 1}]}])
async def test_an_unusual_answer_passes_unchanged(answer: Any) -> None:
    a, b = subscribable("x:1"), subscribable("x:1")
    b.methods["resources/read"] = lambda _: answer
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        assert await user.ask("resources/read", {"uri": "trunkline:b:x:1"}) == answer


@pytest.mark.holds("C13")
async def test_an_unknown_resource_is_not_found() -> None:
    async with (
        serving(a=subscribable("x:1"), b=subscribable("x:2")) as gateway,
        session_client(gateway) as user,
    ):
        error = await user.expect_error("resources/read", {"uri": "z:"})
        assert (error.code, error.data) == (-32002, {"uri": "z:"})


async def test_the_only_server_with_resources_may_have_unlisted_ones() -> None:
    a = subscribable("x:1")
    async with serving(a=a, b=one_tool()) as gateway, session_client(gateway) as user:
        await user.ask("resources/read", {"uri": "z:"})
        assert last_read(a) == {"uri": "z:"}


async def test_only_subscribers_are_notified_of_changes() -> None:
    server = subscribable("x:1")
    async with (
        serving(s=server) as gateway,
        session_client(gateway) as one,
        session_client(gateway) as two,
    ):
        assert await one.ask("resources/subscribe", {"uri": "x:1"}) == {}
        await server.active_connection.notify(UPDATED, {"uri": "x:1", "vendor": 1})
        assert await one.wait_notification(UPDATED) == {"uri": "x:1", "vendor": 1}
        await one.ask("resources/unsubscribe", {"uri": "x:1"})
        await server.active_connection.notify(UPDATED, {"uri": "x:1"})
        await server.active_connection.notify("vendor/news", {})
        for user in (one, two):
            methods = await everything_until(user, "vendor/news")
            assert UPDATED not in methods


async def everything_until(user: Any, last: str) -> list[str]:
    methods: list[str] = []
    while last not in methods:
        methods.append((await user.notifications.get())[0])
    return methods


async def test_a_change_is_reported_under_the_uri_that_the_client_knows() -> None:
    a, b = subscribable("x:1"), subscribable("x:1", "x:1/deep")
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        await user.ask("resources/subscribe", {"uri": "trunkline:b:x:1"})
        assert b.received[-1] == ("resources/subscribe", {"uri": "x:1"})
        await a.active_connection.notify(UPDATED, {"uri": "x:1"})  # that is another one
        await a.active_connection.notify("vendor/news", {})
        assert UPDATED not in await everything_until(user, "vendor/news")
        for native, public in (
            ("x:1", "trunkline:b:x:1"),
            ("x:1/deep", "x:1/deep"),
            ("x:1/new", "trunkline:b:x:1/new"),
        ):
            await b.active_connection.notify(UPDATED, {"uri": native})
            assert await user.wait_notification(UPDATED) == {"uri": public}
        for other in ("x:12", "x:", "y:1"):
            await b.active_connection.notify(UPDATED, {"uri": other})
        await b.active_connection.notify(UPDATED)
        await b.active_connection.notify("vendor/news", {})
        assert UPDATED not in await everything_until(user, "vendor/news")


async def test_a_resource_of_a_template_can_be_subscribed() -> None:
    a, b = subscribable(templates=("t:///{id}",)), subscribable(templates=("t:///{id}",))
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        await user.ask("resources/subscribe", {"uri": "trunkline:b:t:///7"})
        assert b.received[-1] == ("resources/subscribe", {"uri": "t:///7"})
        await b.active_connection.notify(UPDATED, {"uri": "t:///7"})
        assert await user.wait_notification(UPDATED) == {"uri": "trunkline:b:t:///7"}


async def test_a_refused_client_has_no_subscription() -> None:
    server = subscribable("x:1")
    server.methods["resources/subscribe"] = refuse(-32602)
    async with serving(s=server) as gateway, session_client(gateway) as user:
        assert (await user.expect_error("resources/subscribe", {"uri": "x:1"})).code == -32602
        await server.active_connection.notify(UPDATED, {"uri": "x:1"})
        await server.active_connection.notify("vendor/news", {})
        assert UPDATED not in await everything_until(user, "vendor/news")


async def test_a_change_right_after_the_answer_is_reported() -> None:
    server = subscribable("x:1")

    async def subscribe(_: Any) -> Any:
        async def change() -> None:
            await server.active_connection.notify(UPDATED, {"uri": "x:1"})

        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(change()))
        return {}

    server.methods["resources/subscribe"] = subscribe
    async with serving(s=server) as gateway, session_client(gateway) as user:
        await user.ask("resources/subscribe", {"uri": "x:1"})
        assert await user.wait_notification(UPDATED) == {"uri": "x:1"}


async def test_a_restarted_server_gets_the_clients_subscriptions_and_level_again() -> None:
    server, other = subscribable("x:1", "x:2"), subscribable("z:1")
    server.capabilities["logging"] = {}
    async with serving(s=server, o=other) as gateway, session_client(gateway) as user:
        for uri in ("x:1", "x:2"):
            await user.ask("resources/subscribe", {"uri": uri})
        await user.ask("resources/unsubscribe", {"uri": "x:2"})
        await user.ask("logging/setLevel", {"level": "debug"})
        for method in ("resources/subscribe", "resources/subscribe", "logging/setLevel"):
            await server.wait_received(method)
        await server.crash()
        assert await server.wait_received("resources/subscribe") == {"uri": "x:1"}
        assert await server.wait_received("logging/setLevel") == {"level": "debug"}
        assert server.starts == 2
        assert server.count("resources/subscribe") == 3
        assert other.count("logging/setLevel") == 0


async def test_subscribing_twice_at_once_is_one_subscription() -> None:
    server = subscribable("x:1")
    server.methods[SUBSCRIBE] = hold = HeldAnswer({})
    async with serving(s=server) as gateway, session_client(gateway) as user:
        requests = [asyncio.create_task(user.ask(SUBSCRIBE, {"uri": "x:1"})) for _ in range(2)]
        await hold.started.wait()
        await user.ask("ping")
        hold.released.set()
        assert await asyncio.gather(*requests) == [{}, {}]
        assert server.count(SUBSCRIBE) == 1
        await user.ask(UNSUBSCRIBE, {"uri": "x:1"})
        assert await server.wait_received(UNSUBSCRIBE) == {"uri": "x:1"}


async def test_a_client_that_disconnects_has_no_subscriptions() -> None:
    server = subscribable("x:1", "x:2")
    async with serving(s=server) as gateway:
        async with session_client(gateway) as user:
            for uri in ("x:1", "x:2"):
                await user.ask(SUBSCRIBE, {"uri": uri})
        gone = [(await server.wait_received(UNSUBSCRIBE))["uri"] for _ in range(2)]
        assert sorted(gone) == ["x:1", "x:2"]


async def test_a_client_that_disconnects_while_subscribing_has_no_subscription() -> None:
    server = subscribable("x:1")
    server.methods[SUBSCRIBE] = hold = HeldAnswer({})
    async with serving(s=server) as gateway:
        async with session_client(gateway) as user:
            early = asyncio.create_task(user.ask(SUBSCRIBE, {"uri": "x:1"}))
            await hold.started.wait()
        await asyncio.gather(early, return_exceptions=True)
        assert await server.wait_received(UNSUBSCRIBE) == {"uri": "x:1"}


async def test_a_session_that_ends_before_its_request_has_no_subscription() -> None:
    server = subscribable("x:1")
    server.capabilities["logging"] = {}
    server.methods[SUBSCRIBE] = hold = HeldAnswer({})
    async with serving(s=server) as gateway, session_client(gateway) as user:
        (session,) = gateway.sessions
        follow = session.answer(Request(7, SUBSCRIBE, to_raw({"uri": "x:1"})), None)
        late = session.answer(Request(8, "logging/setLevel", to_raw({"level": "debug"})), None)
        following = asyncio.create_task(follow)
        await hold.started.wait()
        await gateway.close_session(session)
        hold.released.set()
        assert (await following, await late) == ({}, {})
        assert await server.wait_received(UNSUBSCRIBE) == {"uri": "x:1"}
        await user.ask("ping")
        assert server.count("logging/setLevel") == 0


async def test_a_resource_is_unsubscribed_at_the_server_of_its_subscription() -> None:
    a, b = subscribable("x:1"), subscribable("x:2")
    async with (
        serving(a=a, b=b) as gateway,
        session_client(gateway) as one,
        session_client(gateway) as two,
    ):
        await one.ask(SUBSCRIBE, {"uri": "x:1"})
        for server, uris in ((a, []), (b, ["x:1"])):
            server.lists["resources"] = [{"uri": uri, "name": uri} for uri in uris]
            await server.active_connection.notify("notifications/resources/list_changed")
        while (await one.ask("resources/list"))["resources"] != b.lists["resources"]:
            await asyncio.sleep(0)
        await two.ask(SUBSCRIBE, {"uri": "x:1"})
        assert await b.wait_received(SUBSCRIBE) == {"uri": "x:1"}
        await one.ask(UNSUBSCRIBE, {"uri": "x:1"})
        assert await a.wait_received(UNSUBSCRIBE) == {"uri": "x:1"}
        await b.active_connection.notify(UPDATED, {"uri": "x:1"})
        await two.wait_notification(UPDATED)
        assert b.count(UNSUBSCRIBE) == 0


async def test_subscriptions_are_limited() -> None:
    limits, server = GatewayLimits(max_subscribed_uris=2), subscribable("x:1")
    async with serving(limits, s=server) as gateway, session_client(gateway) as user:
        for uri in ("x:1", "x:2", "x:1"):
            await user.ask(SUBSCRIBE, {"uri": uri})
        error = await user.expect_error(SUBSCRIBE, {"uri": "x:3"})
        assert (error.code, server.count(SUBSCRIBE)) == (-32602, 2)
        await user.ask(UNSUBSCRIBE, {"uri": "x:2"})
        await user.ask(SUBSCRIBE, {"uri": "x:3"})
        assert await user.ask(UNSUBSCRIBE, {"uri": "x:9"}) == {}
        assert (await user.expect_error(UNSUBSCRIBE, {})).code == -32602
