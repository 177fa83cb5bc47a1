"""An MCP server of the handshake era over HTTP: sessions that are lost, and streams of calls."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.test_remote import Ear
from tests.gateway.servers import tool
from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.transports.faulty import Line, faulty
from tests.transports.links import no_patience as no_patience_with_links
from tests.transports.web import (
    END,
    STREAM,
    Asked,
    Hold,
    InTurn,
    Reaction,
    Web,
    event,
    fails,
    news,
    question,
    refuses,
    response,
    result,
    streams,
)
from trunkline.backends import remote
from trunkline.backends.link import Link
from trunkline.backends.remote import Remote
from trunkline.jsonrpc import ConnectionLost, IdRemapper, Raw, RpcError, from_raw, to_raw
from trunkline.routing.call import withdrawal
from trunkline.transports.http_client import HttpClient
from trunkline.transports.streamable import Streamable

__all__ = ["no_patience_with_links"]

SESSION = "mcp-session-id"
TEXT = {"content": [{"type": "text", "text": "t ran"}]}


@asynccontextmanager
async def talk(web: Web, ear: Ear) -> AsyncGenerator[tuple[Remote, Link]]:
    """Connect to a server for a moment."""
    remapper = IdRemapper()
    async with faulty(web.play) as server:
        client = HttpClient(server.url)
        link, backend = Streamable(client, "s", remapper, withdrawal), Remote(ear)
        await backend.open(link, {"roots": {}}, {"name": "gateway"})
        yield backend, link
        await backend.aclose()
        assert remapper.pending_count() == 0
        assert client.connections == 0


async def run(backend: Remote, ear: Ear, **meta: Any) -> Any:
    params: dict[str, Any] = {"name": "t"} | ({"_meta": meta} if meta else {})
    return from_raw(await backend.call(ear.call(params), ear), object)


async def loss(calling: Awaitable[Any]) -> str:
    with pytest.raises(ConnectionLost) as failed:
        await calling
    return str(failed.value)


@tidy
async def test_hands_are_shaken_and_then_the_stream_is_opened() -> None:
    web, ear = Web("2025-06-18", tools=[tool("t")]), Ear()
    async with talk(web, ear) as (backend, _):
        assert backend.version == "2025-06-18"
        assert [offer.key for offer in await backend.offers()] == ["t"]
        await web.until("GET")
    first, *others = web.asked
    assert first.params["protocolVersion"] == "2025-11-25"
    assert first.params["capabilities"] == {"roots": {}}
    assert sorted(asked.method for asked in others) == [
        "DELETE",
        "GET",
        "notifications/initialized",
        "tools/list",
    ]


# Sessions


@tidy
async def test_a_lost_session_is_made_anew_once_and_the_calls_are_repeated() -> None:
    web, ear = Web(), Ear()
    async with talk(web, ear) as (backend, _):
        assert await run(backend, ear) == TEXT
        web.sessions.clear()
        assert await asyncio.gather(*(run(backend, ear) for _ in range(5))) == [TEXT] * 5
        assert ear.renewed == 1
        web.sessions.clear()
        await backend.follow("a:b")
        assert ear.renewed == 2
    assert len(web.of("initialize")) == 3
    assert len(web.of("notifications/initialized")) == 3
    served = [a for a in web.of("tools/call") if a.header(SESSION) == "s2"]
    assert len(served) == 5
    assert [a.header(SESSION) for a in web.of("resources/subscribe")] == ["s2", "s3"]


@tidy
async def test_who_learns_late_that_the_session_is_lost_uses_the_new_one() -> None:
    web, ear = Web(), Ear()
    late = Hold(fails(-32001, "no session", status="404 Not Found", astray=True))
    web.reactions["tools/call"] = InTurn(late, web.react)
    async with talk(web, ear) as (backend, _):
        first = asyncio.create_task(run(backend, ear))
        await late.begun.wait()
        web.sessions.clear()
        assert await run(backend, ear) == TEXT
        late.let_go.set()
        assert await first == TEXT
        assert ear.renewed == 1
    assert len(web.of("initialize")) == 2


@tidy
async def test_who_loses_the_new_session_as_well_is_not_asked_a_third_time() -> None:
    web, ear = Web(), Ear()
    web.reactions["tools/call"] = fails(-32001, status="404 Not Found", astray=True)
    async with talk(web, ear) as (backend, _):
        assert "HTTP 404" in await loss(run(backend, ear))
    assert len(web.of("initialize")) == 2
    assert len(web.of("tools/call")) == 2


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        refuses("500 Oops"),
        refuses("400 Bad Request"),
        refuses("401 Who"),
        refuses("429 Slow"),
        streams(news("x")),
        fails(-32603, status="500 Oops"),
        fails(-32602),
    ],
)
async def test_after_any_other_failure_nothing_is_repeated(reaction: Reaction) -> None:
    web, ear = Web(), Ear()
    web.reactions["tools/call"] = reaction
    async with talk(web, ear) as (backend, _):
        with pytest.raises((ConnectionLost, RpcError)):
            await run(backend, ear)
        assert ear.renewed == 0
    assert len(web.of("tools/call")) == len(web.of("initialize")) == 1


@tidy
async def test_a_server_that_complains_of_the_session_in_other_words_gets_another_one() -> None:
    web, ear = Web(), Ear()
    complaint = fails(-32000, "No valid session ID", status="400 Bad Request", astray=True)
    web.reactions["tools/call"] = InTurn(complaint, web.react)
    async with talk(web, ear) as (backend, _):
        with pytest.raises(RpcError, match="No valid session ID"):
            await run(backend, ear)  # which it may have carried out, for all we know
        assert await run(backend, ear) == TEXT
    assert [a.header(SESSION) for a in web.of("tools/call")] == ["s1", "s2"]


@tidy
async def test_whoever_comes_meanwhile_waits_for_the_new_session() -> None:
    web, ear = Web(), Ear()
    async with talk(web, ear) as (backend, _):
        await web.until("notifications/initialized")
        hold = Hold(web.react)
        web.sessions.clear()
        web.reactions["notifications/initialized"] = hold
        first = asyncio.create_task(run(backend, ear))
        await hold.begun.wait()
        second = asyncio.create_task(run(backend, ear))
        asking = asyncio.create_task(backend.set_level("info"))
        assert await is_stuck(second)
        assert len(web.of("tools/call")) == 1
        assert web.of("logging/setLevel") == []
        hold.let_go.set()
        assert [await first, await second] == [TEXT] * 2
        await asking
    assert len(web.of("initialize")) == 2


@tidy
async def test_a_new_session_does_not_depend_on_who_noticed_first() -> None:
    web, ear = Web(), Ear()
    async with talk(web, ear) as (backend, _):
        hold = Hold(web.react)
        web.sessions.clear()
        web.reactions["initialize"] = hold
        first = asyncio.create_task(run(backend, ear))
        await hold.begun.wait()
        await stop(first)
        second = asyncio.create_task(run(backend, ear))
        assert await is_stuck(second)
        hold.let_go.set()
        assert await second == TEXT
    assert len(web.of("initialize")) == len(web.of("notifications/initialized")) == 2


@tidy
async def test_a_session_that_cannot_be_made_now_can_be_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "RENEWAL", 0.3)
    web, ear = Web(), Ear()
    async with talk(web, ear) as (backend, link):
        web.sessions.clear()
        hang = Hold()
        web.reactions["initialize"] = InTurn(refuses("503 Later"), hang, web.react)
        assert "could not be made anew: the server answered HTTP 503" in await loss(
            run(backend, ear)
        )
        assert "it did not answer within 0.3 s" in await loss(run(backend, ear))
        ended = asyncio.create_task(link.wait_ended())
        assert await is_stuck(ended)
        assert await run(backend, ear) == TEXT
        assert ear.renewed == 1
        await stop(ended)
    assert [a.header(SESSION) for a in web.of("initialize")] == [None] * 4


@tidy
@pytest.mark.parametrize(
    "reaction", [fails(-32601, status="404 Not Found"), fails(-32601), refuses("401 Who")]
)
async def test_who_refuses_a_new_session_is_not_what_it_was(reaction: Reaction) -> None:
    web, ear = Web(), Ear()
    async with talk(web, ear) as (backend, _):
        web.sessions.clear()
        web.reactions["initialize"] = reaction
        assert "could not be made anew" in await loss(run(backend, ear))
        await backend.wait_ended()
        assert ear.renewed == 0


@tidy
async def test_the_end_does_not_wait_for_a_new_session() -> None:
    web, ear, hold = Web(), Ear(), Hold()
    async with talk(web, ear) as (backend, _):
        web.sessions.clear()
        web.reactions["initialize"] = hold
        calling = asyncio.create_task(run(backend, ear))
        await hold.begun.wait()
        await backend.aclose()
        await loss(calling)


@tidy
async def test_who_gives_up_a_handshake_leaves_nothing() -> None:
    web, hold, remapper = Web(), Hold(), IdRemapper()
    web.reactions["initialize"] = hold
    async with faulty(web.play) as server:
        backend = Remote(Ear())
        link = Streamable(HttpClient(server.url), "s", remapper, withdrawal)
        opening = asyncio.create_task(backend.open(link, {}, {}))
        await hold.begun.wait()
        await stop(opening)
        await hold.gone.wait()
    assert web.methods == ["initialize"]
    assert remapper.pending_count() == 0


# Streams


@tidy
async def test_a_question_goes_to_the_client_on_whose_stream_it_comes() -> None:
    class Somebody(Ear):
        async def ask(self, method: str, params: Any, asker: object = None) -> Raw:
            return to_raw({"by": id(self)})

    async def ask(line: Line, asked: Asked) -> None:
        await line.send(STREAM + event(question(f"q{asked.id}", "roots/list")))
        while not (found := [a for a in web.of("answer") if a.id == f"q{asked.id}"]):
            await asyncio.sleep(0)
        await line.send(event(response(asked.id, found[0].message["result"])) + END)

    web, clients = Web(), [Somebody() for _ in range(4)]
    web.reactions["tools/call"] = ask
    async with talk(web, Ear()) as (backend, _):
        found = await asyncio.gather(*(run(backend, client) for client in clients))
    assert found == [{"by": id(client)} for client in clients]


@tidy
async def test_a_question_of_nobody_in_particular_goes_to_the_listener() -> None:
    web, ear = Web(), Ear()
    web.reactions["GET"] = streams(question("q", "roots/list"), question("p", "ping"), end=False)
    async with talk(web, ear):
        answers = {(await web.until("answer")).id for _ in range(2)}
    assert answers == {"q", "p"}
    said = {asked.id: asked.message["result"] for asked in web.of("answer")}
    assert said == {"q": {"by": "listener"}, "p": {}}


@tidy
async def test_progress_and_messages_go_to_their_call_before_its_answer() -> None:
    async def work(line: Line, asked: Asked) -> None:
        token = asked.meta["progressToken"]
        said = [
            news("notifications/progress", {"progressToken": token, "progress": 1}),
            news("notifications/message", {"level": "info"}),
            news("notifications/progress", {"progressToken": "unknown", "progress": 2}),
            news("notifications/tools/list_changed"),
        ]
        await streams(*said, result({"done": 1}))(line, asked)

    web, listener, client, other = Web(), Ear(), Ear(), Ear()
    hold = Hold()
    web.reactions["tools/call"] = InTurn(hold, work)
    async with talk(web, listener) as (backend, _):
        others = asyncio.create_task(run(backend, other, progressToken="theirs"))
        await hold.begun.wait()
        assert await run(backend, client, progressToken="mine") == {"done": 1}
        assert [client.told_of.get_nowait() for _ in range(2)] == [
            ("notifications/progress", {"progressToken": "mine", "progress": 1}),
            ("notifications/message", {"level": "info"}),
        ]
        assert not listener.changes.empty()
        assert client.told_of.empty()
        assert other.told_of.empty()
        await stop(others)


@tidy
async def test_what_the_server_says_while_it_is_opened_or_listed_is_heard() -> None:
    async def welcome(line: Line, asked: Asked) -> None:
        answer: Any = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        await streams(question("early", "ping"), result(answer))(line, asked)

    web, ear = Web(tools=[]), Ear()
    changed = news("notifications/prompts/list_changed")
    web.reactions |= {
        "initialize": welcome,
        "notifications/initialized": refuses("202 Accepted"),
        "tools/list": streams(changed, question("late", "ping"), result({"tools": []})),
    }
    async with talk(web, ear) as (backend, _):
        assert (await web.until("answer")).message == response("early", {})
        await backend.offers()
        assert not ear.changes.empty()
        assert (await web.until("answer")).message == response("late", {})


@tidy
async def test_a_question_that_the_server_withdraws_on_the_stream_is_dropped() -> None:
    cancelled = asyncio.Event()

    class Thinking(Ear):
        async def ask(self, method: str, params: Any, asker: object = None) -> Raw:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

    async def change_mind(line: Line, asked_: Asked) -> None:
        await line.send(STREAM + event(question(5, "roots/list")))
        await asked.wait()
        await line.send(event(news("notifications/cancelled", {"requestId": 5})))
        await cancelled.wait()
        await line.send(event(response(asked_.id, {})) + END)

    web, asked = Web(), asyncio.Event()
    web.reactions["tools/call"] = change_mind
    async with talk(web, Ear()) as (backend, _):
        assert await run(backend, Thinking()) == {}
        await settle()
    assert web.of("answer") == []
