"""The whole gateway over HTTP, for clients up to 2025-11-25: sessions, streams and their ends."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.gateway.conftest import no_patience
from tests.gateway.letters import CLIENT, letter
from tests.gateway.letters import EnvelopeServer as Letters
from tests.gateway.servers import Hold, Server, gateway, hello, one_tool, tool
from tests.http_client import Old, Reply, site
from tests.transports.exchanges import call, note
from trunkline.jsonrpc import to_raw
from trunkline.transports.http_flow import RETRY
from trunkline.transports.sse import Event

__all__ = ["no_patience"]

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


# Sessions


@pytest.mark.holds("T56", "T57", "T58")
async def test_initialize_agrees_on_a_revision_and_opens_a_session() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        latest = VERSIONS[-1]
        expected = {**{v: v for v in VERSIONS}, "2026-07-28": latest, "9999-01-01": latest}
        for asked, agreed in expected.items():
            for header in (None, latest):
                body = call(1, "initialize", **hello(asked))
                reply = await here.ask(body, mcp_protocol_version=header)
                assert reply.result["protocolVersion"] == agreed
                assert re.fullmatch(r"[!-~]{32}", reply.headers["mcp-session-id"])
        wrong = await here.ask(call(1, "initialize", protocolVersion=1))
        assert wrong.error == (200, -32602)
        assert "mcp-session-id" not in wrong.headers


@pytest.mark.holds("C23", "T60", "T62", "T63", "T64")
async def test_nothing_is_done_without_a_session() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        for body in (call(1, "tools/list"), call(1, "tools/call", name="s__echo"), note("a")):
            assert (await here.ask(body)).error == (400, -32600)
            assert (await here.ask(body, mcp_session_id="x" * 32)).error == (404, -32600)
        old = await here.old()  # in which notifications/initialized was answered with 202
        assert (await old.tell("notifications/initialized")).body == b""
        assert (await old.delete()).status == 204
        for reply in (await old.ask("tools/list"), await old.get(), await old.delete()):
            assert reply.error == (404, -32600)
        assert server.count("tools/call") == 0


@pytest.mark.holds("S3.12")
async def test_a_session_is_ready_when_its_client_says_so() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        reply = await here.ask(call(1, "initialize", **hello()))
        session = reply.headers["mcp-session-id"]
        body, ready = call(1, "tools/call", name="s__echo"), note("notifications/initialized")
        assert (await here.ask(body, mcp_session_id=session)).error == (200, -32002)
        assert (await here.ask(ready, mcp_session_id="x" * 32)).status == 404
        assert (await here.ask(body, mcp_session_id=session)).error == (200, -32002)
        assert (await here.ask(ready, mcp_session_id=session)).status == 202
        assert (await here.ask(body, mcp_session_id=session)).status == 200


@pytest.mark.holds("T61")
async def test_an_unknown_method_is_an_answer_and_no_missing_session() -> None:
    server, other = one_tool(), one_tool()
    async with site(gateway(s=server, t=other), server, other) as here:
        assert (await here.ask(call(1, "nonsense"))).status == 400
        old = await here.old()
        assert (await old.ask("nonsense")).error == (200, -32601)
        assert (await old.ask("server/discover")).error == (200, -32601)
        assert (await old.ask("ping")).result == {}


@pytest.mark.holds("T66")
async def test_delete_releases_what_the_session_had_at_the_servers() -> None:
    server = Server(resources=[{"uri": "file:///a", "name": "a"}], tools=[tool("echo")])
    server.capabilities["resources"] = {"subscribe": True}
    server.methods["tools/call"] = hold = Hold()
    async with site(gateway(s=server), server) as here:
        old = await here.old()
        assert (await old.ask("resources/subscribe", uri="file:///a")).result == {}
        calling = await old.begin("tools/call", name="s__echo")
        await hold.begun.wait()
        assert (await old.delete()).status == 204
        assert (await calling).error == (200, -32800)
        while not {"resources/unsubscribe", "notifications/cancelled"} <= dict(server.heard).keys():
            await server.news.get()
        assert here.door.sessions == 0


@pytest.mark.holds("T67", "T68")
async def test_the_header_is_a_revision_that_is_known_or_is_not_there() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        old = await here.old("2025-06-18")
        for version in ("v999", "1.0", ""):
            reply = await here.ask(
                call(1, "tools/list"), mcp_session_id=old.id, mcp_protocol_version=version
            )
            assert reply.status == 400
        bare = await here.ask(call(1, "tools/list"), mcp_session_id=old.id)
        assert [each["name"] for each in bare.result["tools"]] == ["s__echo"]
        batch = await here.ask([call(1, "ping")], mcp_session_id=old.id)
        assert batch.status == 400  # it is served as 2025-06-18, and not as what has batches


# Batches


@pytest.mark.holds("T69", "T70", "T71", "T72")
async def test_a_batch_is_for_one_revision_and_has_no_initialize() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        old = await here.old("2025-03-26")
        said = [call(1, "ping"), note("a"), call("x", "tools/call", name="s__echo")]
        reply = await old.post([*said, call(3, "initialize", **hello())])
        assert [each["id"] for each in reply.json] == [1, "x", 3]
        assert [each.get("error", {}).get("code") for each in reply.json] == [None, None, -32600]
        assert (await old.post([note("a"), note("b")])).status == 202
        assert (await old.post([])).error == (400, -32600)
        assert (await here.ask([call(1, "initialize", **hello())])).error == (400, -32600)
        for version in ("2024-11-05", "2025-06-18", "2025-11-25"):
            other = await here.old(version)
            assert (await other.post([call(1, "ping")])).error == (400, -32600)


async def test_nobody_speaks_for_another_from_within_a_session() -> None:
    server = Letters(tools=[tool("echo")])
    forged: Any = letter({CLIENT: {"name": "forged", "version": "1"}}, name="s__echo")
    async with site(gateway(s=server), server) as here:
        old = await here.old("2025-03-26")
        reply = await old.post([call(1, "tools/call", **forged), call(2, "ping")])
        assert [each.get("error", {}).get("code") for each in reply.json] == [-32600, None]
        assert server.count("tools/call") == 0
        # However it is written, it never says who asks.
        body = to_raw(call(3, "tools/call", **forged))
        hidden = bytes(body).replace(b"protocolVersion", rb"protocol\u0056ersion")
        assert (await here.ask(hidden, mcp_session_id=old.id)).status == 200
        _, told = server.heard[-1]
        assert told["_meta"][CLIENT]["name"] == "user"


# Calls


def chatty(kind: Any = Server) -> tuple[Server, Hold]:
    """Return a server whose tool tells of its progress, and then waits."""
    server: Server = kind(tools=[tool("echo")])
    hold = Hold()

    async def work(params: Any) -> Any:
        token = params.get("_meta", {}).get("progressToken")
        for done in (1, 2):
            progress = {"progressToken": token, "progress": done}
            await server.line.notify("notifications/progress", progress)
        return await hold(params)

    server.methods["tools/call"] = work
    return server, hold


async def begin_chat(old: Old, id: Any = 1, token: Any = "t") -> Reply:
    reply = await old.ask("tools/call", id, name="s__echo", _meta={"progressToken": token})
    assert reply.is_stream
    return reply


async def test_what_is_told_on_the_way_comes_first_and_in_order() -> None:
    server, hold = chatty()
    hold.let_go.set()
    async with site(gateway(s=server), server) as here:
        for version in VERSIONS[1:]:
            reply = await begin_chat(await here.old(version), "x", 7)
            *progress, answer = await reply.rest()
            assert [news["params"]["progress"] for news in progress] == [1, 2]
            assert {news["params"]["progressToken"] for news in progress} == {7}
            assert answer == {"jsonrpc": "2.0", "id": "x", "result": {"content": []}}


@pytest.mark.holds("T79", "T80")
@pytest.mark.parametrize("kind", [Server, Letters])
async def test_results_are_those_of_this_era(kind: Any) -> None:
    server: Server = kind(
        tools=[tool("echo")], resources=[{"uri": "file:///a", "name": "a"}], prompts=[{"name": "p"}]
    )
    server.capabilities["resources"] = {"subscribe": True}
    server.capabilities["logging"] = {}
    server.methods["resources/read"] = lambda params: {"contents": []}
    async with site(gateway(s=server), server) as here:
        old = await here.old()
        for method, params in (
            ("tools/list", {}),
            ("resources/list", {}),
            ("prompts/list", {}),
            ("tools/call", {"name": "s__echo"}),
            ("resources/read", {"uri": "file:///a"}),
        ):
            found = (await old.ask(method, **params)).result
            assert not {"resultType", "ttlMs", "cacheScope"} & found.keys()
        assert (await old.ask("ping")).result == {}
        assert (await old.ask("logging/setLevel", level="info")).result == {}
        assert (await old.ask("resources/subscribe", uri="file:///a")).result == {}


@pytest.mark.holds("T77", "T78")
async def test_a_call_is_cancelled_by_word_and_in_no_other_way() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with site(gateway(s=server), server) as here:
        old = await here.old()
        for stranger in (99, "1", True, 0, None):
            assert (await old.tell("notifications/cancelled", requestId=stranger)).status == 202
        calling = await old.begin("tools/call", 1, name="s__echo")
        await hold.begun.wait()
        other = await here.old()
        assert (await other.tell("notifications/cancelled", requestId=1)).status == 202
        assert server.count("notifications/cancelled") == 0
        assert (await old.tell("notifications/cancelled", requestId=1)).status == 202
        assert (await calling).error == (200, -32800)
        cancelled = await server.until_heard("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        await server.channel.send(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % cancelled["requestId"])
        assert (await old.ask("ping", 1)).result == {}


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create"])
async def test_a_server_asks_on_the_stream_of_the_call_and_is_answered_by_post(method: str) -> None:
    server = one_tool()

    async def work(params: Any) -> Any:
        return {"content": [], "heard": await server.ask(method, {"message": "?"})}

    server.methods["tools/call"] = work
    async with site(gateway(s=server), server) as here:
        old = await here.old("2025-06-18", sampling={}, elicitation={})
        aside = await old.get()
        reply = await old.ask("tools/call", 7, name="s__echo")
        question = await reply.said()
        assert (question["method"], question["params"]) == (method, {"message": "?"})
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}
        accepted = await old.post(answer)
        assert (accepted.status, accepted.body) == (202, b"")
        (found,) = await reply.rest()
        assert (found["id"], found["result"]["heard"]) == (7, {"action": "accept"})
        assert (await old.post(answer)).status == 202  # again, for nobody
        assert (await old.delete()).status == 204
        assert await aside.rest() == []


async def test_a_call_that_takes_long_becomes_a_stream() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with site(gateway(s=server), server, keep_alive=0.01) as here:
        old = await here.old()
        reply = await old.ask("tools/call", 1, name="s__echo")  # its head comes with a comment
        assert reply.is_stream
        hold.let_go.set()
        assert (await reply.last())["result"] == {"content": []}


# Streams


async def test_a_stream_that_is_lost_before_anything_was_said_is_taken_up_at_once() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        old = await here.old()
        stream = await old.get()
        first = await stream.event()
        assert first is not None
        again = await old.get(last_event_id=first.id)  # nobody has noticed yet that it is lost
        assert again.status == 200
        server.lists["tools"].append(tool("more"))
        await server.line.notify("notifications/tools/list_changed")
        assert (await again.said())["method"] == "notifications/tools/list_changed"


@pytest.mark.holds("T73")
async def test_there_is_one_stream_for_all_that_belongs_to_no_call() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        old = await here.old()
        assert (await old.get(accept="application/json")).status == 406
        assert (await old.get(accept=None)).status == 406
        stream = await old.get()
        assert (stream.status, stream.is_stream) == (200, True)
        assert [await stream.event()] == [Event(b"", id="1-0", retry=RETRY)]
        assert (await old.get()).status == 409
        server.lists["tools"].append(tool("more"))
        await server.line.notify("notifications/tools/list_changed")
        assert (await stream.said())["method"] == "notifications/tools/list_changed"
        stream.close()
        while (again := await old.get()).status == 409:
            pass
        server.lists["tools"].append(tool("most"))
        await server.line.notify("notifications/tools/list_changed")
        found = [await again.event(), await again.event()]
        assert [each and each.id for each in found] == ["1-1", "1-2"]
        assert found[0] is not None
        assert found[0].data == b""  # what was said before is not said again
        back = await old.get(last_event_id="1-0")
        found = [await back.event(), await back.event()]
        assert [each and each.id for each in found] == ["1-1", "1-2"]
        assert await again.event() is None  # whoever comes back has it


@pytest.mark.holds("T74", "T75")
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_who_loses_a_stream_gets_the_rest_of_that_stream(how: str) -> None:
    server, hold = chatty()
    async with site(gateway(s=server), server) as here:
        old = await here.old("2025-06-18")
        reply, other = await begin_chat(old, 1, "a"), await begin_chat(old, 2, "b")
        first = await reply.event()
        assert first is not None
        getattr(reply, how)()
        back = await old.get(last_event_id=first.id)  # at once: nobody knows yet that it was lost
        assert (await back.said())["params"] == {"progressToken": "a", "progress": 2}
        hold.let_go.set()
        (answer,) = await back.rest()
        assert answer == {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
        assert [each.get("id") for each in await other.rest()] == [None, None, 2]
        assert server.count("notifications/cancelled") == 0
        late = await old.get(last_event_id=first.id)  # all is over, and still there
        assert [each.get("id") for each in await late.rest()] == [None, 1]


@pytest.mark.holds("T76")
async def test_only_clients_of_2025_11_25_get_an_event_without_data() -> None:
    server, hold = chatty()
    hold.let_go.set()
    async with site(gateway(s=server), server) as here:
        for version in VERSIONS[1:]:
            reply = await begin_chat(await here.old(version))
            first = await reply.event()
            assert first is not None
            assert (first.data == b"") is (version == "2025-11-25")


async def test_who_goes_has_not_cancelled() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with site(gateway(s=server), server) as here:
        old = await here.old()
        reply = await here.send(call(1, "tools/call", name="s__echo"), **old.headers)
        await hold.begun.wait()
        before = here.listener.connections
        reply.reset()
        while here.listener.connections == before:
            await asyncio.sleep(0)
        hold.let_go.set()
        assert (await old.ask("ping", 2)).result == {}
        assert not hold.cancelled.is_set()
        assert server.count("notifications/cancelled") == 0


# HTTP+SSE


@pytest.mark.holds("T81", "T82")
async def test_the_oldest_clients_have_their_own_way_in() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        stream = await here.ask(None, "GET", "/sse")
        assert (stream.status, stream.is_stream) == (200, True)
        first = await stream.event()
        assert first is not None
        assert first.event == "endpoint"
        place = first.data.decode()
        assert re.fullmatch(r"/messages\?session_id=[\w-]+", place)
        posted = await here.ask(call(1, "initialize", **hello("2024-11-05")), path=place)
        assert (posted.status, posted.body) == (202, b"")
        answer = await stream.event()
        assert answer is not None
        assert answer.event == "message"
        assert json.loads(answer.data)["result"]["protocolVersion"] == "2024-11-05"
        assert (await here.ask(note("notifications/initialized"), path=place)).status == 202
        body = call(2, "tools/call", name="s__echo")
        assert (await here.ask(body, path=place)).status == 202
        assert (await stream.said())["result"]["content"][0]["text"] == "echo ran"
        assert (await here.ask(body, path="/messages")).status == 400
        assert (await here.ask(body, path="/messages?session_id=nobody")).status == 404
        stream.reset()
