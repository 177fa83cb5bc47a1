"""A session server over HTTP: lost sessions, and the streams of calls."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.http_clients import SHORT_LIMITS, SHORT_STREAM_LIMITS
from tests.backends.http_servers import (
    END,
    STREAM,
    BlockedReply,
    FakeSessionServer,
    InSequence,
    Reaction,
    ReceivedMessage,
    event,
    fails,
    notification,
    rejects,
    response,
    result,
    server_request,
    streams,
)
from tests.backends.test_session_server import Recorder
from tests.contexts import start_call
from tests.gateway.servers import tool
from tests.http.scripted_server import ScriptedConnection, scripted_server
from tests.tasks import LoopClock, is_stuck, settle, stop, tidy
from trunkline.backends.limits import BackendLimits
from trunkline.backends.server_connection import ServerConnection
from trunkline.backends.session_server import SessionServer
from trunkline.backends.streamable_http import StreamableHttpClient
from trunkline.http.client import HttpClient
from trunkline.jsonrpc import ConnectionLost, IdRemapper, Raw, RpcError, from_raw, to_raw
from trunkline.mcp.identity import cancelled_notification
from trunkline.mcp.versions import V2025_06_18

SESSION = "mcp-session-id"
TEXT = {"content": [{"type": "text", "text": "t ran"}]}


@asynccontextmanager
async def connected_backend(
    web: FakeSessionServer, listener: Recorder, limits: BackendLimits = SHORT_LIMITS
) -> AsyncGenerator[tuple[SessionServer, ServerConnection]]:
    """Yield a connection to a server."""
    remapper = IdRemapper()
    async with scripted_server(web.play) as server:
        client = HttpClient(server.url)
        backend = SessionServer(listener, limits)
        link = StreamableHttpClient(
            client, "s", remapper, cancelled_notification, limits=limits.streams
        )
        await backend.open(link, {"roots": {}}, {"name": "gateway"})
        yield backend, link
        await backend.aclose()
        assert remapper.pending_count() == 0
        assert client.connection_count == 0


async def run(backend: SessionServer, listener: Recorder, **meta: Any) -> Any:
    params: dict[str, Any] = {"name": "t"} | ({"_meta": meta} if meta else {})
    return from_raw(await start_call(backend, listener.call(params)), object)


async def loss(calling: Awaitable[Any]) -> str:
    with pytest.raises(ConnectionLost) as failed:
        await calling
    return str(failed.value)


@tidy
async def test_initialization_opens_the_listening_stream() -> None:
    web, listener = FakeSessionServer("2025-06-18", tools=[tool("t")]), Recorder()
    async with connected_backend(web, listener) as (backend, _):
        assert backend.revision is V2025_06_18
        assert [offer.key for offer in (await backend.list_features()).features] == ["t"]
        await web.wait_for("GET")
    first, *others = web.received
    assert first.params["protocolVersion"] == "2025-11-25"
    assert first.params["capabilities"] == {"roots": {}}
    assert sorted(asked.method for asked in others) == [
        "DELETE",
        "GET",
        "notifications/initialized",
        "tools/list",
    ]


# Sessions


@pytest.mark.holds("C31")
@tidy
async def test_a_lost_session_is_renewed_once_and_the_calls_are_repeated() -> None:
    web, listener = FakeSessionServer(), Recorder()
    async with connected_backend(web, listener) as (backend, _):
        assert await run(backend, listener) == TEXT
        web.sessions.clear()
        assert await asyncio.gather(*(run(backend, listener) for _ in range(5))) == [TEXT] * 5
        assert listener.renewed == 1
        web.sessions.clear()
        await backend.subscribe("a:b")
        assert listener.renewed == 2
    assert len(web.received_for("initialize")) == 3
    assert len(web.received_for("notifications/initialized")) == 3
    served = [a for a in web.received_for("tools/call") if a.header(SESSION) == "s2"]
    assert len(served) == 5
    assert [a.header(SESSION) for a in web.received_for("resources/subscribe")] == ["s2", "s3"]


@tidy
async def test_a_call_that_notices_a_lost_session_late_uses_the_new_one() -> None:
    web, listener = FakeSessionServer(), Recorder()
    late = BlockedReply(fails(-32001, "no session", status="404 Not Found", misaddressed=True))
    web.reactions["tools/call"] = InSequence(late, web.react)
    async with connected_backend(web, listener) as (backend, _):
        first = asyncio.create_task(run(backend, listener))
        await late.started.wait()
        web.sessions.clear()
        assert await run(backend, listener) == TEXT
        late.unblocked.set()
        assert await first == TEXT
        assert listener.renewed == 1
    assert len(web.received_for("initialize")) == 2


@tidy
async def test_a_call_that_loses_the_new_session_as_well_is_not_sent_again() -> None:
    web, listener = FakeSessionServer(), Recorder()
    web.reactions["tools/call"] = fails(-32001, status="404 Not Found", misaddressed=True)
    async with connected_backend(web, listener) as (backend, _):
        assert "HTTP 404" in await loss(run(backend, listener))
    assert len(web.received_for("initialize")) == 2
    assert len(web.received_for("tools/call")) == 2


@pytest.mark.holds("C31")
@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        rejects("500 Oops"),
        rejects("400 Bad Request"),
        rejects("401 Who"),
        rejects("429 Slow"),
        streams(notification("x")),
        fails(-32603, status="500 Oops"),
        fails(-32602),
    ],
)
async def test_after_any_other_failure_nothing_is_repeated(reaction: Reaction) -> None:
    web, listener = FakeSessionServer(), Recorder()
    web.reactions["tools/call"] = reaction
    async with connected_backend(web, listener) as (backend, _):
        with pytest.raises((ConnectionLost, RpcError)):
            await run(backend, listener)
        assert listener.renewed == 0
    assert len(web.received_for("tools/call")) == len(web.received_for("initialize")) == 1


@pytest.mark.holds("C31")
@tidy
async def test_a_server_with_another_error_for_a_lost_session_gets_a_new_one() -> None:
    web, listener = FakeSessionServer(), Recorder()
    complaint = fails(-32000, "No valid session ID", status="400 Bad Request", misaddressed=True)
    web.reactions["tools/call"] = InSequence(complaint, web.react)
    async with connected_backend(web, listener) as (backend, _):
        with pytest.raises(RpcError, match="No valid session ID"):
            await run(backend, listener)  # the server may have carried it out
        assert await run(backend, listener) == TEXT
    assert [a.header(SESSION) for a in web.received_for("tools/call")] == ["s1", "s2"]


@tidy
async def test_calls_during_a_renewal_wait_for_the_new_session() -> None:
    web, listener = FakeSessionServer(), Recorder()
    async with connected_backend(web, listener) as (backend, _):
        await web.wait_for("notifications/initialized")
        hold = BlockedReply(web.react)
        web.sessions.clear()
        web.reactions["notifications/initialized"] = hold
        first = asyncio.create_task(run(backend, listener))
        await hold.started.wait()
        second = asyncio.create_task(run(backend, listener))
        asking = asyncio.create_task(backend.set_log_level("info"))
        assert await is_stuck(second)
        assert len(web.received_for("tools/call")) == 1
        assert web.received_for("logging/setLevel") == []
        hold.unblocked.set()
        assert [await first, await second] == [TEXT] * 2
        await asking
    assert len(web.received_for("initialize")) == 2


@tidy
async def test_a_new_session_does_not_depend_on_the_first_call_that_noticed() -> None:
    web, listener = FakeSessionServer(), Recorder()
    async with connected_backend(web, listener) as (backend, _):
        hold = BlockedReply(web.react)
        web.sessions.clear()
        web.reactions["initialize"] = hold
        first = asyncio.create_task(run(backend, listener))
        await hold.started.wait()
        await stop(first)
        second = asyncio.create_task(run(backend, listener))
        assert await is_stuck(second)
        hold.unblocked.set()
        assert await second == TEXT
    assert (
        len(web.received_for("initialize"))
        == len(web.received_for("notifications/initialized"))
        == 2
    )


@tidy
async def test_a_session_that_cannot_be_renewed_now_can_be_renewed_later() -> None:
    clock, web, listener = LoopClock(), FakeSessionServer(), Recorder()
    async with connected_backend(web, listener) as (backend, link):
        web.sessions.clear()
        hang = BlockedReply()
        web.reactions["initialize"] = InSequence(rejects("503 Later"), hang, web.react)
        assert "could not be renewed: the server answered HTTP 503" in await loss(
            run(backend, listener)
        )
        calling = asyncio.create_task(run(backend, listener))
        await hang.started.wait()
        await clock.advance(SHORT_LIMITS.session_renewal_timeout)
        assert "it did not answer within 30 s" in await loss(calling)
        ended = asyncio.create_task(link.wait_ended())
        assert await is_stuck(ended)
        assert await run(backend, listener) == TEXT
        assert listener.renewed == 1
        await stop(ended)
    assert [a.header(SESSION) for a in web.received_for("initialize")] == [None] * 4


@tidy
@pytest.mark.parametrize(
    "reaction", [fails(-32601, status="404 Not Found"), fails(-32601), rejects("401 Who")]
)
async def test_a_server_that_refuses_a_new_session_ends_the_connection(reaction: Reaction) -> None:
    web, listener = FakeSessionServer(), Recorder()
    async with connected_backend(web, listener) as (backend, _):
        web.sessions.clear()
        web.reactions["initialize"] = reaction
        assert "could not be renewed" in await loss(run(backend, listener))
        await backend.wait_ended()
        assert listener.renewed == 0


@tidy
async def test_closing_does_not_wait_for_a_new_session() -> None:
    web, listener, hold = FakeSessionServer(), Recorder(), BlockedReply()
    async with connected_backend(web, listener) as (backend, _):
        web.sessions.clear()
        web.reactions["initialize"] = hold
        calling = asyncio.create_task(run(backend, listener))
        await hold.started.wait()
        await backend.aclose()
        await loss(calling)


@tidy
async def test_a_cancelled_initialization_leaves_nothing() -> None:
    web, hold, remapper = FakeSessionServer(), BlockedReply(), IdRemapper()
    web.reactions["initialize"] = hold
    async with scripted_server(web.play) as server:
        backend = SessionServer(Recorder())
        client = HttpClient(server.url)
        link = StreamableHttpClient(
            client, "s", remapper, cancelled_notification, limits=SHORT_STREAM_LIMITS
        )
        opening = asyncio.create_task(backend.open(link, {}, {}))
        await hold.started.wait()
        await stop(opening)
        await hold.disconnected.wait()
    assert web.methods == ["initialize"]
    assert remapper.pending_count() == 0


# Streams


@tidy
async def test_a_request_goes_to_the_client_on_whose_stream_it_comes() -> None:
    class AnsweringClient(Recorder):
        async def send_request(self, method: str, params: Any, requester: object = None) -> Raw:
            return to_raw({"by": id(self)})

    async def ask(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await line.send(STREAM + event(server_request(f"q{asked.id}", "roots/list")))
        while not (found := [a for a in web.received_for("answer") if a.id == f"q{asked.id}"]):
            await asyncio.sleep(0)
        await line.send(event(response(asked.id, found[0].message["result"])) + END)

    web, clients = FakeSessionServer(), [AnsweringClient() for _ in range(4)]
    web.reactions["tools/call"] = ask
    async with connected_backend(web, Recorder()) as (backend, _):
        found = await asyncio.gather(*(run(backend, client) for client in clients))
    assert found == [{"by": id(client)} for client in clients]


@tidy
async def test_a_request_outside_of_calls_goes_to_the_listener() -> None:
    web, listener = FakeSessionServer(), Recorder()
    web.reactions["GET"] = streams(
        server_request("q", "roots/list"), server_request("p", "ping"), end=False
    )
    async with connected_backend(web, listener):
        answers = {(await web.wait_for("answer")).id for _ in range(2)}
    assert answers == {"q", "p"}
    sent = {asked.id: asked.message["result"] for asked in web.received_for("answer")}
    assert sent == {"q": {"by": "listener"}, "p": {}}


@tidy
async def test_progress_and_log_messages_go_to_their_call_before_its_answer() -> None:
    async def work(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        token = asked.meta["progressToken"]
        sent = [
            notification("notifications/progress", {"progressToken": token, "progress": 1}),
            notification("notifications/message", {"level": "info"}),
            notification("notifications/progress", {"progressToken": "unknown", "progress": 2}),
            notification("notifications/tools/list_changed"),
        ]
        await streams(*sent, result({"done": 1}))(line, asked)

    web, listener, client, other = (
        FakeSessionServer(),
        Recorder(),
        Recorder(),
        Recorder(),
    )
    hold = BlockedReply()
    web.reactions["tools/call"] = InSequence(hold, work)
    async with connected_backend(web, listener) as (backend, _):
        others = asyncio.create_task(run(backend, other, progressToken="theirs"))
        await hold.started.wait()
        assert await run(backend, client, progressToken="mine") == {"done": 1}
        assert [client.notifications.get_nowait() for _ in range(2)] == [
            ("notifications/progress", {"progressToken": "mine", "progress": 1}),
            ("notifications/message", {"level": "info"}),
        ]
        assert not listener.changes.empty()
        assert client.notifications.empty()
        assert other.notifications.empty()
        await stop(others)


@tidy
async def test_messages_while_connecting_or_listing_are_handled() -> None:
    async def initialize_result(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        answer: Any = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        await streams(server_request("early", "ping"), result(answer))(line, asked)

    web, listener = FakeSessionServer(tools=[]), Recorder()
    changed = notification("notifications/prompts/list_changed")
    web.reactions |= {
        "initialize": initialize_result,
        "notifications/initialized": rejects("202 Accepted"),
        "tools/list": streams(changed, server_request("late", "ping"), result({"tools": []})),
    }
    async with connected_backend(web, listener) as (backend, _):
        assert (await web.wait_for("answer")).message == response("early", {})
        await backend.list_features()
        assert not listener.changes.empty()
        assert (await web.wait_for("answer")).message == response("late", {})


@tidy
async def test_a_request_that_the_server_cancels_on_the_stream_is_dropped() -> None:
    cancelled = asyncio.Event()

    class Thinking(Recorder):
        async def send_request(self, method: str, params: Any, requester: object = None) -> Raw:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

    async def change_mind(line: ScriptedConnection, asked_: ReceivedMessage) -> None:
        await line.send(STREAM + event(server_request(5, "roots/list")))
        await asked.wait()
        await line.send(event(notification("notifications/cancelled", {"requestId": 5})))
        await cancelled.wait()
        await line.send(event(response(asked_.id, {})) + END)

    web, asked = FakeSessionServer(), asyncio.Event()
    web.reactions["tools/call"] = change_mind
    async with connected_backend(web, Recorder()) as (backend, _):
        assert await run(backend, Thinking()) == {}
        await settle()
    assert web.received_for("answer") == []
