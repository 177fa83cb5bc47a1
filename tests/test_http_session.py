"""The whole gateway over HTTP for clients up to 2025-11-25: sessions and streams."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.endpoints.exchanges import rpc_notification, rpc_request
from tests.gateway.conftest import no_delays
from tests.gateway.servers import HeldAnswer, Server, hello, make_gateway, one_tool, tool
from tests.gateway.stateless_callers import CLIENT, stateless_params
from tests.gateway.stateless_callers import StatelessScriptedServer as Letters
from tests.http_client import HttpReply, SessionHttpClient, site
from trunkline.endpoints.session_state import STREAM_RETRY_MS
from trunkline.http.sse import SseEvent
from trunkline.jsonrpc import to_raw

__all__ = ["no_delays"]

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


# Sessions


@pytest.mark.holds("T56", "T57", "T58")
async def test_initialize_negotiates_a_revision_and_opens_a_session() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        latest = VERSIONS[-1]
        expected = {**{v: v for v in VERSIONS}, "2026-07-28": latest, "9999-01-01": latest}
        for asked, agreed in expected.items():
            for header in (None, latest):
                body = rpc_request(1, "initialize", **hello(asked))
                reply = await here.ask(body, mcp_protocol_version=header)
                assert reply.result["protocolVersion"] == agreed
                assert re.fullmatch(r"[!-~]{32}", reply.headers["mcp-session-id"])
        wrong = await here.ask(rpc_request(1, "initialize", protocolVersion=1))
        assert wrong.error == (200, -32602)
        assert "mcp-session-id" not in wrong.headers


@pytest.mark.holds("C23", "T60", "T62", "T63", "T64")
async def test_requests_without_a_session_are_rejected() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        for body in (
            rpc_request(1, "tools/list"),
            rpc_request(1, "tools/call", name="s__echo"),
            rpc_notification("a"),
        ):
            assert (await here.ask(body)).error == (400, -32600)
            assert (await here.ask(body, mcp_session_id="x" * 32)).error == (404, -32600)
        client = await here.session_client()  # notifications/initialized was answered with 202
        assert (await client.notify("notifications/initialized")).body == b""
        assert (await client.delete()).status == 204
        for reply in (await client.ask("tools/list"), await client.get(), await client.delete()):
            assert reply.error == (404, -32600)
        assert server.count("tools/call") == 0


@pytest.mark.holds("S3.12")
async def test_a_session_is_ready_after_the_initialized_notification() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        reply = await here.ask(rpc_request(1, "initialize", **hello()))
        session = reply.headers["mcp-session-id"]
        body, ready = (
            rpc_request(1, "tools/call", name="s__echo"),
            rpc_notification("notifications/initialized"),
        )
        assert (await here.ask(body, mcp_session_id=session)).error == (200, -32002)
        assert (await here.ask(ready, mcp_session_id="x" * 32)).status == 404
        assert (await here.ask(body, mcp_session_id=session)).error == (200, -32002)
        assert (await here.ask(ready, mcp_session_id=session)).status == 202
        assert (await here.ask(body, mcp_session_id=session)).status == 200


@pytest.mark.holds("T61")
async def test_an_unknown_method_is_a_json_rpc_error_with_status_200() -> None:
    server, other = one_tool(), one_tool()
    async with site(make_gateway(s=server, t=other), server, other) as here:
        assert (await here.ask(rpc_request(1, "nonsense"))).status == 400
        client = await here.session_client()
        assert (await client.ask("nonsense")).error == (200, -32601)
        assert (await client.ask("server/discover")).error == (200, -32601)
        assert (await client.ask("ping")).result == {}


@pytest.mark.holds("T66")
async def test_delete_releases_the_session_at_the_servers() -> None:
    server = Server(resources=[{"uri": "file:///a", "name": "a"}], tools=[tool("echo")])
    server.capabilities["resources"] = {"subscribe": True}
    server.methods["tools/call"] = hold = HeldAnswer()
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client()
        assert (await client.ask("resources/subscribe", uri="file:///a")).result == {}
        calling = await client.start("tools/call", name="s__echo")
        await hold.started.wait()
        assert (await client.delete()).status == 204
        assert (await calling).error == (200, -32800)
        while (
            not {"resources/unsubscribe", "notifications/cancelled"} <= dict(server.received).keys()
        ):
            await server.inbox.get()
        assert here.router.session_count == 0


@pytest.mark.holds("T67", "T68", "C24")
async def test_the_version_header_names_a_known_revision_or_is_absent() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client("2025-06-18")
        for version in ("v999", "1.0", ""):
            reply = await here.ask(
                rpc_request(1, "tools/list"), mcp_session_id=client.id, mcp_protocol_version=version
            )
            assert reply.status == 400
        bare = await here.ask(rpc_request(1, "tools/list"), mcp_session_id=client.id)
        assert [each["name"] for each in bare.result["tools"]] == ["s__echo"]
        batch = await here.ask([rpc_request(1, "ping")], mcp_session_id=client.id)
        assert batch.status == 400  # it is served as 2025-06-18, which has no batches


# Batches


@pytest.mark.holds("T69", "T70", "T71", "T72")
async def test_batches_belong_to_one_revision_and_contain_no_initialize() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client("2025-03-26")
        entries = [
            rpc_request(1, "ping"),
            rpc_notification("a"),
            rpc_request("x", "tools/call", name="s__echo"),
        ]
        reply = await client.post([*entries, rpc_request(3, "initialize", **hello())])
        assert [each["id"] for each in reply.json] == [1, "x", 3]
        assert [each.get("error", {}).get("code") for each in reply.json] == [None, None, -32600]
        assert (await client.post([rpc_notification("a"), rpc_notification("b")])).status == 202
        assert (await client.post([])).error == (400, -32600)
        assert (await here.ask([rpc_request(1, "initialize", **hello())])).error == (400, -32600)
        for version in ("2024-11-05", "2025-06-18", "2025-11-25"):
            other = await here.session_client(version)
            assert (await other.post([rpc_request(1, "ping")])).error == (400, -32600)


async def test_a_session_request_cannot_forge_the_client_with_an_envelope() -> None:
    server = Letters(tools=[tool("echo")])
    forged: Any = stateless_params({CLIENT: {"name": "forged", "version": "1"}}, name="s__echo")
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client("2025-03-26")
        reply = await client.post([rpc_request(1, "tools/call", **forged), rpc_request(2, "ping")])
        assert [each.get("error", {}).get("code") for each in reply.json] == [-32600, None]
        assert server.count("tools/call") == 0
        # However the key is escaped, it cannot name the client.
        body = to_raw(rpc_request(3, "tools/call", **forged))
        hidden = bytes(body).replace(b"protocolVersion", rb"protocol\u0056ersion")
        assert (await here.ask(hidden, mcp_session_id=client.id)).status == 200
        _, params = server.received[-1]
        assert params["_meta"][CLIENT]["name"] == "user"


# Calls


def chatty(kind: Any = Server) -> tuple[Server, HeldAnswer]:
    """Return a server whose tool reports progress, and then waits."""
    server: Server = kind(tools=[tool("echo")])
    hold = HeldAnswer()

    async def work(params: Any) -> Any:
        token = params.get("_meta", {}).get("progressToken")
        for done in (1, 2):
            progress = {"progressToken": token, "progress": done}
            await server.active_connection.notify("notifications/progress", progress)
        return await hold(params)

    server.methods["tools/call"] = work
    return server, hold


async def begin_chat(client: SessionHttpClient, id: Any = 1, token: Any = "t") -> HttpReply:
    reply = await client.ask("tools/call", id, name="s__echo", _meta={"progressToken": token})
    assert reply.is_stream
    return reply


async def test_notifications_of_a_call_precede_the_response_in_order() -> None:
    server, hold = chatty()
    hold.released.set()
    async with site(make_gateway(s=server), server) as here:
        for version in VERSIONS[1:]:
            reply = await begin_chat(await here.session_client(version), "x", 7)
            *progress, answer = await reply.remaining_messages()
            assert [news["params"]["progress"] for news in progress] == [1, 2]
            assert {news["params"]["progressToken"] for news in progress} == {7}
            assert answer == {"jsonrpc": "2.0", "id": "x", "result": {"content": []}}


@pytest.mark.holds("T79", "T80")
@pytest.mark.parametrize("kind", [Server, Letters])
async def test_results_have_the_form_of_the_session_protocol(kind: Any) -> None:
    server: Server = kind(
        tools=[tool("echo")], resources=[{"uri": "file:///a", "name": "a"}], prompts=[{"name": "p"}]
    )
    server.capabilities["resources"] = {"subscribe": True}
    server.capabilities["logging"] = {}
    server.methods["resources/read"] = lambda params: {"contents": []}
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client()
        for method, params in (
            ("tools/list", {}),
            ("resources/list", {}),
            ("prompts/list", {}),
            ("tools/call", {"name": "s__echo"}),
            ("resources/read", {"uri": "file:///a"}),
        ):
            found = (await client.ask(method, **params)).result
            assert not {"resultType", "ttlMs", "cacheScope"} & found.keys()
        assert (await client.ask("ping")).result == {}
        assert (await client.ask("logging/setLevel", level="info")).result == {}
        assert (await client.ask("resources/subscribe", uri="file:///a")).result == {}


@pytest.mark.holds("T77", "T78")
async def test_only_a_notification_cancels_a_call() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client()
        for stranger in (99, "1", True, 0, None):
            assert (
                await client.notify("notifications/cancelled", requestId=stranger)
            ).status == 202
        calling = await client.start("tools/call", 1, name="s__echo")
        await hold.started.wait()
        other = await here.session_client()
        assert (await other.notify("notifications/cancelled", requestId=1)).status == 202
        assert server.count("notifications/cancelled") == 0
        assert (await client.notify("notifications/cancelled", requestId=1)).status == 202
        assert (await calling).error == (200, -32800)
        cancelled = await server.wait_received("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        await server.transport.send(
            b'{"jsonrpc":"2.0","id":%d,"result":{}}' % cancelled["requestId"]
        )
        assert (await client.ask("ping", 1)).result == {}


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create"])
async def test_a_server_request_uses_the_stream_of_the_call_and_is_answered_by_post(
    method: str,
) -> None:
    server = one_tool()

    async def work(params: Any) -> Any:
        return {"content": [], "heard": await server.ask(method, {"message": "?"})}

    server.methods["tools/call"] = work
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client("2025-06-18", sampling={}, elicitation={})
        aside = await client.get()
        reply = await client.ask("tools/call", 7, name="s__echo")
        question = await reply.next_message()
        assert (question["method"], question["params"]) == (method, {"message": "?"})
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}
        accepted = await client.post(answer)
        assert (accepted.status, accepted.body) == (202, b"")
        (found,) = await reply.remaining_messages()
        assert (found["id"], found["result"]["heard"]) == (7, {"action": "accept"})
        assert (await client.post(answer)).status == 202  # again, but nothing waits for it
        assert (await client.delete()).status == 204
        assert await aside.remaining_messages() == []


async def test_a_slow_call_becomes_a_stream() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with site(make_gateway(s=server), server, sse_ping_interval=0.01) as here:
        client = await here.session_client()
        reply = await client.ask("tools/call", 1, name="s__echo")  # the head comes with a ping
        assert reply.is_stream
        hold.released.set()
        assert (await reply.final_message())["result"] == {"content": []}


# Streams


async def test_a_stream_lost_before_its_first_message_can_be_resumed() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client()
        await client.ask("tools/list")
        stream = await client.get()
        first = await stream.next_event()
        assert first is not None
        again = await client.get(last_event_id=first.id)  # the loss is not noticed yet
        assert again.status == 200
        server.lists["tools"].append(tool("more"))
        await server.active_connection.notify("notifications/tools/list_changed")
        assert (await again.next_message())["method"] == "notifications/tools/list_changed"


@pytest.mark.holds("T73")
async def test_one_standalone_stream_carries_messages_that_belong_to_no_call() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client()
        await client.ask("tools/list")
        assert (await client.get(accept="application/json")).status == 406
        assert (await client.get(accept=None)).status == 406
        stream = await client.get()
        assert (stream.status, stream.is_stream) == (200, True)
        assert [await stream.next_event()] == [SseEvent(b"", id="1-0", retry=STREAM_RETRY_MS)]
        assert (await client.get()).status == 409
        server.lists["tools"].append(tool("more"))
        await server.active_connection.notify("notifications/tools/list_changed")
        assert (await stream.next_message())["method"] == "notifications/tools/list_changed"
        stream.close()
        while (again := await client.get()).status == 409:
            pass
        server.lists["tools"].append(tool("most"))
        await server.active_connection.notify("notifications/tools/list_changed")
        found = [await again.next_event(), await again.next_event()]
        assert [each and each.id for each in found] == ["1-1", "1-2"]
        assert found[0] is not None
        assert found[0].data == b""  # earlier messages are not repeated
        back = await client.get(last_event_id="1-0")
        found = [await back.next_event(), await back.next_event()]
        assert [each and each.id for each in found] == ["1-1", "1-2"]
        assert await again.next_event() is None  # the resumed stream replaces it


@pytest.mark.holds("T74", "T75")
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_resumed_stream_continues_after_the_last_event(how: str) -> None:
    server, hold = chatty()
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client("2025-06-18")
        reply, other = await begin_chat(client, 1, "a"), await begin_chat(client, 2, "b")
        first = await reply.next_event()
        assert first is not None
        getattr(reply, how)()
        back = await client.get(last_event_id=first.id)  # at once: the loss is not noticed yet
        assert (await back.next_message())["params"] == {"progressToken": "a", "progress": 2}
        hold.released.set()
        (answer,) = await back.remaining_messages()
        assert answer == {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
        assert [each.get("id") for each in await other.remaining_messages()] == [None, None, 2]
        assert server.count("notifications/cancelled") == 0
        late = await client.get(last_event_id=first.id)  # the call has ended, its stream is kept
        assert [each.get("id") for each in await late.remaining_messages()] == [None, 1]


@pytest.mark.holds("T76")
async def test_only_clients_of_2025_11_25_get_priming_events() -> None:
    server, hold = chatty()
    hold.released.set()
    async with site(make_gateway(s=server), server) as here:
        for version in VERSIONS[1:]:
            reply = await begin_chat(await here.session_client(version))
            first = await reply.next_event()
            assert first is not None
            assert (first.data == b"") is (version == "2025-11-25")


async def test_a_disconnect_does_not_cancel_the_call() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with site(make_gateway(s=server), server) as here:
        client = await here.session_client()
        reply = await here.send(rpc_request(1, "tools/call", name="s__echo"), **client.headers)
        await hold.started.wait()
        before = here.listener.connections
        reply.reset()
        while here.listener.connections == before:
            await asyncio.sleep(0)
        hold.released.set()
        assert (await client.ask("ping", 2)).result == {}
        assert not hold.cancelled.is_set()
        assert server.count("notifications/cancelled") == 0


# HTTP+SSE


@pytest.mark.holds("T81", "T82")
async def test_clients_of_2024_11_05_use_http_and_sse() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        stream = await here.ask(None, "GET", "/sse")
        assert (stream.status, stream.is_stream) == (200, True)
        first = await stream.next_event()
        assert first is not None
        assert first.event == "endpoint"
        place = first.data.decode()
        assert re.fullmatch(r"/messages\?session_id=[\w-]+", place)
        posted = await here.ask(rpc_request(1, "initialize", **hello("2024-11-05")), path=place)
        assert (posted.status, posted.body) == (202, b"")
        answer = await stream.next_event()
        assert answer is not None
        assert answer.event == "message"
        assert json.loads(answer.data)["result"]["protocolVersion"] == "2024-11-05"
        assert (
            await here.ask(rpc_notification("notifications/initialized"), path=place)
        ).status == 202
        body = rpc_request(2, "tools/call", name="s__echo")
        assert (await here.ask(body, path=place)).status == 202
        assert (await stream.next_message())["result"]["content"][0]["text"] == "echo ran"
        assert (await here.ask(body, path="/messages")).status == 400
        assert (await here.ask(body, path="/messages?session_id=nobody")).status == 404
        stream.reset()
