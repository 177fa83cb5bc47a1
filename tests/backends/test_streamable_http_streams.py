"""Answers as streams: messages before the answer, requests, and broken streams."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.backends.http_clients import (
    SESSION,
    SHORT_STREAM_LIMITS,
    RecordingHandler,
    call,
    client_in_session,
    connected_client,
    error_of,
)
from tests.backends.http_servers import (
    END,
    STREAM,
    BlockedReply,
    FakeSessionServer,
    InSequence,
    Reaction,
    ReceivedMessage,
    answers,
    chunk,
    encode,
    event,
    fails,
    failure,
    notification,
    rejects,
    response,
    result,
    server_request,
    streams,
)
from tests.http.scripted_server import ScriptedConnection, scripted_server
from tests.tasks import is_stuck, settle, stop, tidy
from trunkline.backends import streamable_http
from trunkline.backends.streamable_http import StreamableHttpClient
from trunkline.http.client import ClientLimits, HttpClient
from trunkline.jsonrpc import (
    ConnectionLost,
    IdRemapper,
    RpcError,
)
from trunkline.mcp.versions import V2024_11_05, V2025_11_25, V2026_07_28, Revision

# Streams


@tidy
async def test_messages_before_the_answer_are_handled_before_it_in_order() -> None:
    web, listener = FakeSessionServer(), RecordingHandler()
    web.reactions["m"] = streams(
        notification("one"),
        notification("slow"),
        notification("broken"),
        notification("two"),
        result({"done": True}),
        notification("late"),
    )
    async with connected_client(web) as link:
        assert await call(link, "m", handler=listener) == {"done": True}
        assert listener.received == ["one", "slow", "taken in", "broken", "two"]


@tidy
async def test_a_call_needs_no_handler() -> None:
    web = FakeSessionServer()
    web.reactions["m"] = streams(notification("one"), server_request(1, "ask"), result())
    async with connected_client(web) as link:
        assert await call(link, "m") == {}
    assert web.methods == ["m"]


@pytest.mark.holds("M6")
@tidy
async def test_a_stream_is_decoded_byte_for_byte() -> None:
    async def odd(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        answer = encode(response(asked.id, {"text": "ä"}))
        lines = [
            b": hello",
            b"event: other",
            b"data: {}",
            b"",
            b"data: no JSON",
            b"",
            b"data:",
            b"",
        ]
        lines += [b"event:message", b"data: " + answer[:1], b"data:" + answer[1:], b"", b""]
        await line.send(STREAM + chunk(b"\r\n".join(lines)) + END)

    web, listener = FakeSessionServer(), RecordingHandler()
    web.reactions["m"] = odd
    async with connected_client(web) as link:
        assert await call(link, "m", handler=listener) == {"text": "ä"}
        assert listener.received == []


@tidy
async def test_of_several_answers_the_first_with_the_right_id_counts() -> None:
    web = FakeSessionServer()
    web.reactions["m"] = streams(
        response(99, {}),
        response("1", {}),
        [notification("x"), response(1, {"a": 1})],
        response(1, {}),
    )
    web.reactions["n"] = streams(failure(None, -32603, "oops"))
    async with connected_client(web) as link:
        assert await call(link, "m") == {"a": 1}
        assert (await error_of(call(link, "n"))).message == "oops"


@pytest.mark.holds("M6")
@tidy
async def test_the_connection_of_a_finished_stream_is_reused() -> None:
    ended = asyncio.Event()

    async def react(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await line.send(STREAM + event(response(asked.id, {})))
        await ended.wait()
        await line.send(END)

    web = FakeSessionServer()
    web.reactions |= {"m": react, "n": answers({})}
    async with scripted_server(web.play) as server:
        client = HttpClient(server.url, limits=ClientLimits(max_connections=1))
        link = StreamableHttpClient(client, "s", IdRemapper(), None, limits=SHORT_STREAM_LIMITS)
        assert await call(link, "m") == {}
        ended.set()
        await call(link, "n")  # for which there is a connection once the stream has ended
        assert len(server.lines) == 1
        await link.aclose()


@tidy
async def test_a_stream_that_continues_after_its_answer_is_closed() -> None:
    limits = replace(SHORT_STREAM_LIMITS, stream_drain_timeout=0.01)
    gone = asyncio.Event()

    async def endless(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await streams(result(), end=False)(line, asked)
        gone.set()

    web = FakeSessionServer()
    web.reactions["m"] = endless
    async with connected_client(web, limits=limits) as link:
        await call(link, "m")
        await gone.wait()


@tidy
async def test_a_too_long_event_fails_the_call() -> None:
    limits = replace(SHORT_STREAM_LIMITS, max_event_bytes=100)
    web, listener = FakeSessionServer(), RecordingHandler()
    web.reactions["m"] = streams(notification("short"), notification("x" * 200), result())
    async with connected_client(web, limits=limits) as link:
        error = await error_of(call(link, "m", handler=listener))
        assert "an event was malformed" in str(error)
        assert listener.received == ["short"]


# Questions


@tidy
async def test_a_request_is_answered_by_a_post_while_the_call_continues() -> None:
    async def ask(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await line.send(STREAM + event(server_request("q1", "roots/list")))
        answer = await web.wait_for("answer")
        await line.send(event(response(asked.id, answer.message)) + END)

    web, listener = FakeSessionServer(), RecordingHandler()
    web.reactions["tools/call"] = ask
    async with client_in_session(web) as link:
        assert await call(link, handler=listener) == response("q1", {"yes": True})
        listener.answer = RpcError(-1, "no", {"why": 1})
        assert await call(link, handler=listener) == failure("q1", -1, "no", {"why": 1})
        listener.answer = ZeroDivisionError()
        assert (await call(link, handler=listener))["error"]["code"] == -32603


@tidy
async def test_a_request_of_a_stateless_server_is_not_answered() -> None:
    class Witness(RecordingHandler):
        def violated(self, violation: Exception) -> None:
            self.received.append(str(violation))

    web, listener = FakeSessionServer(), Witness()
    web.reactions["tools/call"] = streams(
        server_request("q1", "ping"), notification("one"), result({"a": 1})
    )
    async with connected_client(web, "stateless") as link:
        assert await call(link, handler=listener) == {"a": 1}
    assert listener.received == ["Invalid Request: servers send no requests", "one"]
    assert web.methods == ["tools/call"]


@tidy
async def test_a_cancelled_request_is_not_answered() -> None:
    never, cancelled = asyncio.Event(), asyncio.Event()

    async def think() -> Any:
        try:
            await never.wait()
        finally:
            cancelled.set()

    web, listener, hold = FakeSessionServer(), RecordingHandler(), BlockedReply(answers({}))
    listener.answer = think
    web.reactions["tools/call"] = streams(server_request(7, "ask"), end=False)
    async with client_in_session(web) as link:
        calling = asyncio.create_task(call(link, handler=listener))
        await listener.asked.wait()
        for stranger in (8, "7", 7.0, True, None, [7]):
            link.cancel(stranger)
        await settle()
        assert not cancelled.is_set()
        link.cancel(7)
        await cancelled.wait()
        await stop(calling)
    assert web.received_for("answer") == []
    assert not hold.started.is_set()


def asking_nine() -> tuple[FakeSessionServer, RecordingHandler, asyncio.Event]:
    """Return a server that sends nine requests, and a handler that answers when released."""
    let_go = asyncio.Event()

    async def think() -> Any:
        await let_go.wait()

    web, listener = FakeSessionServer(), RecordingHandler()
    listener.answer = think
    web.reactions["tools/call"] = streams(*(server_request(n, f"q{n}") for n in range(9)), result())
    return web, listener, let_go


@tidy
async def test_a_server_cannot_ask_forever() -> None:
    limits = replace(SHORT_STREAM_LIMITS, max_pending_server_requests=2, max_outgoing_tasks=1)
    web, listener, let_go = asking_nine()
    async with client_in_session(web, limits=limits) as link:
        calling = asyncio.create_task(call(link, handler=listener))
        await listener.asked.wait()
        assert await is_stuck(calling)
        assert listener.received == ["q0", "q1"]
        let_go.set()
        await calling
        while len(web.received_for("answer")) < 9:
            await asyncio.sleep(0)


@tidy
async def test_a_pending_answer_of_a_client_blocks_no_other_request() -> None:
    limits = replace(SHORT_STREAM_LIMITS, max_outgoing_tasks=1)
    web, listener, let_go = asking_nine()
    async with client_in_session(web, limits=limits) as link:
        await call(link, handler=listener)
        assert len(listener.received) == 9
        let_go.set()
        while len(web.received_for("answer")) < 9:
            await asyncio.sleep(0)


# Streams that break


def primed(*messages: Any) -> Reaction:
    """Start a stream that can be resumed after event "e0", and end it too early."""
    return streams(event(None, "e0", retry=1), *messages)


@tidy
async def test_a_broken_stream_is_resumed_where_it_broke() -> None:
    async def cut(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await line.send(STREAM + event(None, "e0", retry=1) + event(notification("one"), "e1"))
        line.reset()

    async def reset(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        line.reset()

    async def resumed(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        id = web.received_for("tools/call")[0].id
        await line.send(STREAM + event(response(id, {"a": 1}), "e3") + END)

    web, listener = FakeSessionServer(), RecordingHandler()
    web.reactions["tools/call"] = cut
    web.reactions["GET"] = InSequence(
        rejects("405 Nothing else"),
        streams(event(notification("two"), "e2")),
        reset,
        rejects("409 Conflict"),
        rejects("503 Later"),
        resumed,
    )
    async with client_in_session(web) as link:
        await web.wait_for("GET")
        assert await call(link, handler=listener) == {"a": 1}
        assert listener.received == ["one", "two"]
    taken_up = web.received_for("GET")[1:]
    assert [asked.header("last-event-id") for asked in taken_up] == ["e1"] + ["e2"] * 4
    assert {asked.header(SESSION) for asked in taken_up} == {"s1"}
    assert len(web.received_for("tools/call")) == 1


@tidy
async def test_a_resumed_stream_is_closed_after_its_answer() -> None:
    limits = replace(SHORT_STREAM_LIMITS, stream_drain_timeout=0.01)
    gone = asyncio.Event()

    async def rest(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await line.send(STREAM + event(response(web.received_for("tools/call")[0].id, {})))
        await line.wait_disconnected()
        gone.set()

    web = FakeSessionServer()
    web.reactions |= {"tools/call": primed(), "GET": InSequence(rejects("405 No"), rest)}
    async with client_in_session(web, limits=limits) as link:
        await web.wait_for("GET")
        await call(link)
        await gone.wait()


@tidy
async def test_a_stream_that_breaks_often_but_advances_is_read_to_its_answer() -> None:
    async def last(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await line.send(STREAM + event(response(web.received_for("tools/call")[0].id, {})) + END)

    web, listener = FakeSessionServer(), RecordingHandler()
    parts = [
        streams(event(notification("more"), f"e{n}"))
        for n in range(2 * streamable_http.MAX_RESUMES)
    ]
    web.reactions |= {"tools/call": primed(), "GET": InSequence(rejects("405 No"), *parts, last)}
    async with client_in_session(web) as link:
        await web.wait_for("GET")
        assert await call(link, handler=listener) == {}
    assert len(listener.received) == len(parts)


@tidy
async def test_resuming_a_breaking_stream_is_limited() -> None:
    web = FakeSessionServer()
    web.reactions |= {"tools/call": primed(), "GET": InSequence(rejects("405 No"), primed())}
    async with client_in_session(web) as link:
        await web.wait_for("GET")
        error = await error_of(call(link))
        assert str(error) == "the stream ended before the answer"
    assert len(web.received_for("GET")) == 1 + streamable_http.MAX_RESUMES
    assert len(web.received_for("tools/call")) == 1


@pytest.mark.holds("C31")
@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        fails(-32001, "no session", status="404 Not Found", misaddressed=True),
        fails(-32600, "no such event", status="400 Bad Request"),
        rejects("405 No"),
        answers({}),
    ],
)
async def test_a_call_whose_stream_cannot_be_resumed_is_lost_and_not_repeated(
    reaction: Reaction,
) -> None:
    web = FakeSessionServer()
    web.reactions |= {"tools/call": primed(), "GET": InSequence(rejects("405 No"), reaction)}
    async with client_in_session(web) as link:
        await web.wait_for("GET")
        error = await error_of(call(link))
        assert type(error) is ConnectionLost
        assert "resuming it failed: the server answered HTTP" in str(error)


@tidy
@pytest.mark.parametrize(
    ("revision", "reaction"),
    [(V2025_11_25, streams(notification("x"))), (V2024_11_05, primed()), (V2026_07_28, primed())],
)
async def test_without_resumption_a_broken_stream_is_not_resumed(
    revision: Revision, reaction: Reaction
) -> None:
    web = FakeSessionServer()
    web.reactions |= {"tools/call": reaction}
    async with connected_client(web, revision.era) as link:
        link.on_session_opened(revision, RecordingHandler())
        error = await error_of(call(link))
        assert str(error) == "the stream ended before the answer"
    assert [asked.header("last-event-id") for asked in web.received_for("GET")] in ([], [None])
