"""Sessions and streams belong to one principal and end with its token."""

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.auth.issuer import NOW, token
from tests.endpoints.exchanges import rpc_notification, rpc_request
from tests.gateway.conftest import no_delays
from tests.gateway.servers import hello, make_gateway, one_tool, tool
from tests.gateway.stateless_callers import StatelessScriptedServer
from tests.gateway.test_suspended_calls import FORM, INPUT_META, YES, AskingServer, retry
from tests.gateway.test_suspended_calls import make_gateway as suspending_gateway
from tests.http_client import HOST, HttpReply, SessionHttpClient
from tests.identities import (
    AuthenticatedGateway,
    AuthenticatedSite,
    authenticated_gateway,
    ignore_rejection,
    make_authenticator,
)
from tests.tasks import hang_guard
from trunkline.endpoints.auth import AllowAll
from trunkline.gateway.events import CallSummary, GatewayEvent

__all__ = ["no_delays"]

PING_INTERVAL = 0.01
"""Seconds between pings; streams are reauthenticated twice in that time."""


async def with_stolen_session(
    other_principal: AuthenticatedSite, of: SessionHttpClient
) -> SessionHttpClient:
    """Return a client with its own token and the session id of another."""
    client = SessionHttpClient(other_principal, "2025-11-25")
    client.id = of.id
    return client


@pytest.mark.holds("T65")
@pytest.mark.parametrize("other_principal", ["mallory", "", "key:ada", "ADA", "ada "])
async def test_a_session_belongs_to_its_principal(other_principal: str) -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        mine = await guarded.client("ada").session_client()
        stolen = await with_stolen_session(guarded.client(other_principal), mine)
        expected = 401 if not other_principal else 404
        before = len(server.received)
        for reply in (
            await stolen.ask("tools/call", name="s__echo"),
            await stolen.notify("notifications/cancelled", requestId=1),
            await stolen.get(),
            await stolen.get("0-0"),
            await stolen.delete(),
        ):
            assert reply.status == expected
            assert b"echo" not in reply.body
        assert len(server.received) == before
        unauthenticated = await with_stolen_session(
            AuthenticatedSite(guarded.site, "nonsense"), mine
        )
        assert (await unauthenticated.delete()).status == 401
        assert (
            await mine.ask("tools/call", name="s__echo")
        ).status == 200  # the session is unaffected


@pytest.mark.holds("T65")
async def test_a_new_token_of_the_same_principal_continues_with_its_roles() -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        mine = await guarded.client("ada", role="dev").session_client()
        later = await with_stolen_session(guarded.client("ada", role="ops", jti="2"), mine)
        events: list[GatewayEvent] = []
        guarded.site.gateway.pipeline.events.add_listener(events.append)
        assert (await later.ask("tools/call", name="s__echo")).status == 200
        (summary,) = events
        assert isinstance(summary, CallSummary)
        assert summary.principal.roles == ("ops",)


@pytest.mark.holds("T65")
async def test_a_stream_cannot_be_resumed_by_another_principal() -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        mine = await guarded.client("ada").session_client()
        await mine.ask("tools/list")
        stream = await mine.get()
        stolen = await with_stolen_session(guarded.client("mallory"), mine)
        assert (await stolen.get("0-0")).status == 404
        server.lists["tools"] = [tool("more")]
        await server.active_connection.notify("notifications/tools/list_changed")
        assert (await stream.next_message())["method"] == "notifications/tools/list_changed"


async def endpoint(stream: HttpReply) -> str:
    event = await stream.next_event()
    assert event is not None
    return event.data.decode()


@pytest.mark.holds("T65")
async def test_no_principal_posts_into_the_stream_of_another() -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        ada, mallory = guarded.client("ada"), guarded.client("mallory")
        stream = await ada.ask(None, "GET", "/sse")
        path = await endpoint(stream)
        begin = rpc_request(1, "initialize", **hello("2024-11-05"))
        assert (await mallory.ask(begin, "POST", path)).status == 404
        assert (await guarded.site.ask(begin, "POST", path)).status == 401
        assert (await ada.ask(begin, "POST", path)).status == 202
        assert (await stream.next_message())["id"] == 1


@pytest.mark.holds("T65")
async def test_a_post_has_the_roles_of_its_own_token_not_those_of_the_stream() -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        ops, dev = guarded.client("ada", role="ops"), guarded.client("ada", role="dev", jti="2")
        stream = await ops.ask(None, "GET", "/sse")
        path = await endpoint(stream)
        await ops.ask(rpc_request(1, "initialize", **hello("2024-11-05")), "POST", path)
        await ops.ask(rpc_notification("notifications/initialized"), "POST", path)
        assert (await stream.next_message())["id"] == 1
        roles: list[tuple[str, ...]] = []

        def note_roles(event: GatewayEvent) -> None:
            if isinstance(event, CallSummary):
                roles.append(event.principal.roles)

        guarded.site.gateway.pipeline.events.add_listener(note_roles)
        for number, client in enumerate((dev, ops, dev), 2):
            call = rpc_request(number, "tools/call", name="s__echo", arguments={})
            assert (await client.ask(call, "POST", path)).status == 202
            assert (await stream.next_message())["id"] == number
        assert roles == [("dev",), ("ops",), ("dev",)]


async def test_a_suspended_call_is_resumed_only_by_its_principal() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with authenticated_gateway(suspending_gateway(server), server) as guarded:
        ada, mallory = (
            guarded.client("ada").stateless_client(),
            guarded.client("mallory").stateless_client(),
        )
        asked = (await ada.ask("tools/call", meta=INPUT_META, name="s__t")).result
        assert asked["resultType"] == "input_required"
        answered = retry(asked, YES)
        stolen = await mallory.ask("tools/call", meta=INPUT_META, name="s__t", **answered)
        assert "error" in await stolen.final_message()
        assert server.runs_of_tool == 1
        assert len(guarded.site.gateway.stateless.suspended_calls) == 1  # it was not consumed
        done = await (
            await ada.ask("tools/call", meta=INPUT_META, name="s__t", **answered)
        ).final_message()
        assert done["result"]["structuredContent"] == {"answers": [YES]}


@pytest.mark.holds("T33")
async def test_the_state_of_a_stateless_server_returns_only_from_its_principal() -> None:
    server = StatelessScriptedServer(tools=[tool("t")])
    server.methods["tools/call"] = lambda params: (
        {"resultType": "complete", "content": []}
        if "requestState" in params
        else {"resultType": "input_required", "requestState": "of ada"}
    )
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        ada, mallory = (guarded.client(name).stateless_client() for name in ("ada", "mallory"))
        state = (await ada.ask("tools/call", name="s__t")).result["requestState"]
        calls = len(server.received)
        for stolen in (state, "of ada"):
            refused = await mallory.ask("tools/call", name="s__t", requestState=stolen)
            assert refused.error == (400, -32602)
        assert len(server.received) == calls
        done = await ada.ask("tools/call", name="s__t", requestState=state)
        assert done.result["resultType"] == "complete"
        assert server.received[-1][1]["requestState"] == "of ada"


async def test_a_cursor_is_not_bound_to_a_principal() -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        replies = [
            await guarded.client(who).stateless_client().ask("tools/list", cursor="x")
            for who in ("ada", "bob")
        ]
        assert [reply.error for reply in replies] == [(400, -32602)] * 2
        assert replies[0].body == replies[1].body


# Streams end with their tokens


async def socket_of(guarded: AuthenticatedGateway, made: str) -> Any:
    headers = {"authorization": f"Bearer {made}"}
    url = f"ws://{HOST}:{guarded.site.port}/ws"
    return await connect(url, subprotocols=[Subprotocol("mcp")], additional_headers=headers)


async def wait_until_reauthenticated(guarded: AuthenticatedGateway) -> None:
    """Wait until all streams have been reauthenticated twice."""
    checks = 0
    original = guarded.site.router.authenticator.cached_principal

    def count(request: Any) -> Any:
        nonlocal checks
        checks += 1
        return original(request)

    guarded.site.router.authenticator.cached_principal = count  # pyright: ignore[reportAttributeAccessIssue]
    while checks < 4:
        await asyncio.sleep(0)


async def test_a_websocket_ends_when_its_token_does() -> None:
    async with (
        hang_guard(),
        authenticated_gateway(make_gateway(), sse_ping_interval=PING_INTERVAL) as guarded,
    ):
        short = await socket_of(guarded, token(exp=int(NOW) + 60))
        long = await socket_of(guarded, token(sub="bob"))
        guarded.clock.now += 89
        await wait_until_reauthenticated(guarded)
        for socket in (short, long):
            await socket.send('{"jsonrpc":"2.0","id":1,"method":"ping"}')
            assert '"result"' in str(await socket.recv())
        guarded.clock.now += 1
        with pytest.raises(ConnectionClosed):
            await short.recv()
        await long.send('{"jsonrpc":"2.0","id":2,"method":"ping"}')
        assert '"result"' in str(await long.recv())
        await long.close()
        assert guarded.rejections[-1].reason == "the token has expired"


async def test_event_streams_end_when_their_token_does() -> None:
    server = StatelessScriptedServer(tools=[tool("t")])
    async with (
        hang_guard(),
        authenticated_gateway(
            make_gateway(s=server), server, sse_ping_interval=PING_INTERVAL
        ) as guarded,
    ):
        ada = guarded.client("ada", exp=int(NOW) + 60)
        session = await ada.session_client()
        streams = [await ada.ask(None, "GET", "/sse"), await session.get()]
        listen = {"notifications": {"toolsListChanged": True}}
        streams.append(await ada.stateless_client().ask("subscriptions/listen", **listen))
        assert all(stream.is_stream for stream in streams)
        await endpoint(streams[0])
        guarded.clock.now += 90
        for stream in streams:
            await stream.remaining_messages()
            assert stream.ended
        assert (await ada.ask(None, "GET", "/sse")).status == 401


async def test_a_call_in_flight_is_still_answered() -> None:
    gate = asyncio.Event()
    server = one_tool()

    async def slow(params: Any) -> Any:
        await gate.wait()
        return {"content": []}

    server.methods["tools/call"] = slow
    async with (
        hang_guard(),
        authenticated_gateway(
            make_gateway(s=server), server, sse_ping_interval=PING_INTERVAL
        ) as guarded,
    ):
        session = await guarded.client("ada", exp=int(NOW) + 60).session_client()
        calling = await session.start("tools/call", name="s__echo")
        await server.wait_received("tools/call")
        guarded.clock.now += 90
        await wait_for_pings(await calling)
        gate.set()
        assert "result" in (await (await calling).final_message())
        assert (await session.ask("ping")).status == 401


async def wait_for_pings(reply: HttpReply) -> None:
    """Wait for two pings, so that the stream was reauthenticated in between."""
    for _ in range(2):
        assert await reply.next_chunk()


async def test_a_new_authenticator_does_not_trust_the_cache_of_the_old_one() -> None:
    async with (
        hang_guard(),
        authenticated_gateway(make_gateway(), sse_ping_interval=PING_INTERVAL) as guarded,
    ):
        socket = await socket_of(guarded, token(scope="a"))
        ada = guarded.client("ada", scope="a")
        session = await ada.session_client()
        guarded.site.router.authenticator = make_authenticator(guarded.clock, ignore_rejection, "b")
        assert (await session.ask("ping")).status == 403
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        guarded.site.router.authenticator = AllowAll()
        assert (await session.ask("ping")).status == 404  # the principal is another one now
        message = json.dumps(rpc_notification("notifications/initialized")).encode()
        assert (await ada.ask(message, mcp_session_id=session.id)).status == 404
