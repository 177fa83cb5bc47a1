"""Cancelled calls, messages outside of calls, and closing the connection."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.backends.http_clients import (
    EMPTY,
    SESSION,
    SHORT_STREAM_LIMITS,
    RecordingHandler,
    call,
    client_in_session,
    connected_client,
    error_of,
)
from tests.backends.http_servers import (
    BlockedReply,
    FakeSessionServer,
    InSequence,
    ReceivedMessage,
    answers,
    event,
    fails,
    notification,
    rejects,
    response,
    server_request,
    streams,
)
from tests.http.scripted_server import ScriptedConnection, scripted_server
from tests.tasks import LoopClock, is_stuck, settle, stop, tidy
from trunkline.backends.limits import StreamLimits
from trunkline.backends.streamable_http import StreamableHttpClient
from trunkline.http.client import HttpClient, HttpResponse, PostSink, ServerUnreachable
from trunkline.http.exchange import Headers
from trunkline.jsonrpc import (
    ConnectionLost,
    IdRemapper,
)
from trunkline.mcp.identity import cancelled_notification
from trunkline.mcp.versions import V2025_11_25

# Cancelled calls


@tidy
@pytest.mark.parametrize("reaction", [BlockedReply, lambda: streams(notification("x"), end=False)])
async def test_a_cancelled_session_call_sends_a_notification(
    reaction: Any,
) -> None:
    web, listener = FakeSessionServer(), RecordingHandler()
    web.reactions["tools/call"] = reaction()
    async with client_in_session(web) as link:
        calling = asyncio.create_task(call(link, handler=listener))
        asked = await web.wait_for("tools/call")
        await settle()
        await stop(calling)
        withdrawn = await web.wait_for("notifications/cancelled")
        assert withdrawn.params == {"requestId": asked.id, "reason": "cancelled"}
        assert withdrawn.header(SESSION) == "s1"


@tidy
@pytest.mark.parametrize("method", ["tools/call", "subscriptions/listen"])
async def test_a_cancelled_stateless_call_closes_its_stream(method: str) -> None:
    web, hold = FakeSessionServer(), BlockedReply()
    web.reactions[method] = hold
    async with connected_client(web, "stateless") as link:
        calling = asyncio.create_task(call(link, method))
        await hold.started.wait()
        await stop(calling)
        await hold.disconnected.wait()
    assert web.methods == [method]


@tidy
async def test_initialize_is_never_cancelled() -> None:
    web, hold = FakeSessionServer(), BlockedReply()
    web.reactions["initialize"] = hold
    async with connected_client(web) as link:
        calling = asyncio.create_task(call(link, "initialize"))
        await hold.started.wait()
        await stop(calling)
        await hold.disconnected.wait()
    assert web.methods == ["initialize"]


# Messages outside of calls


@tidy
async def test_messages_outside_of_calls_are_handled_and_answered() -> None:
    web, listener = FakeSessionServer(), RecordingHandler()
    web.reactions["GET"] = streams(notification("changed"), server_request("q", "ping"), end=False)
    async with client_in_session(web, listener):
        asked = await web.wait_for("GET")
        assert asked.header("accept") == "text/event-stream"
        answer = await web.wait_for("answer")
        assert answer.message == response("q", {"yes": True})
        assert listener.received == ["changed", "ping"]


@tidy
async def test_a_server_without_a_listening_stream_is_asked_once() -> None:
    limits = replace(SHORT_STREAM_LIMITS, max_reconnect_delay=0.0)  # the next would come at once
    web = FakeSessionServer()
    web.reactions["tools/call"] = answers({})
    async with client_in_session(web, limits=limits) as link:
        await web.wait_for("GET")
        for _ in range(9):
            await call(link)
    assert len(web.received_for("GET")) == 1


@tidy
async def test_listening_continues_with_the_connection_through_any_interruptions() -> None:
    async def reset(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        line.reset()

    web, listener = FakeSessionServer(), RecordingHandler()
    cut = [
        streams(event(notification("one"), "e1")),
        rejects("503 Later"),
        rejects("409 Taken"),
        reset,
    ]
    web.reactions["GET"] = InSequence(
        *cut, *[streams()] * 8, streams(notification("two"), end=False)
    )
    limits = replace(SHORT_STREAM_LIMITS, max_reconnect_delay=0.01)
    async with client_in_session(web, listener, limits=limits):
        while listener.received != ["one", "two"]:
            await listener.arrived.get()
    assert [asked.header("last-event-id") for asked in web.received_for("GET")] == [None] + [
        "e1"
    ] * 12


@tidy
async def test_a_server_without_the_last_event_id_is_listened_to_from_now_on() -> None:
    web, listener = FakeSessionServer(), RecordingHandler()
    forgotten = fails(-32000, "Invalid event ID", status="400 Bad Request", misaddressed=True)
    web.reactions["GET"] = InSequence(
        streams(event(notification("one"), "e1")),
        forgotten,
        streams(notification("two")),
        rejects("405 No"),
    )
    async with client_in_session(web, listener):
        while listener.received != ["one", "two"]:
            await listener.arrived.get()
    asked = [asked.header("last-event-id") for asked in web.received_for("GET")]
    assert asked[:3] == [None, "e1", None]


@tidy
async def test_a_stream_without_messages_is_reopened_with_growing_delays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []
    enough = asyncio.Event()

    async def rest(self: StreamableHttpClient, seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 12:
            enough.set()
            await self.wait_ended()

    monkeypatch.setattr(StreamableHttpClient, "_sleep", rest)
    web = FakeSessionServer()
    web.reactions["GET"] = InSequence(
        *[streams()] * 7,
        streams(notification("x")),
        streams(event(retry=0)),
        streams(event(retry=10**9)),
    )
    async with client_in_session(web, limits=StreamLimits()):
        await enough.wait()
    assert rests == [1, 2, 4, 8, 16, 30, 30, 1, 0.1, 30, 30, 30]


@tidy
async def test_a_new_session_gets_a_new_listening_stream() -> None:
    web, old, new = FakeSessionServer(), RecordingHandler(), RecordingHandler()
    web.reactions["GET"] = InSequence(
        streams(notification("old"), end=False), streams(notification("new"), end=False)
    )
    async with client_in_session(web, old) as link:
        await old.arrived.get()
        await call(link, "initialize")
        link.on_session_opened(V2025_11_25, new)
        assert await new.arrived.get() == "new"
    assert [asked.header(SESSION) for asked in web.received_for("GET")] == ["s1", "s2"]


# The end


class Fickle(HttpClient):
    """A client whose requests fail on demand."""

    down = False
    refused = 0

    async def request(self, *given: Any, **options: Any) -> HttpResponse:
        if self.down:
            self.refused += 1
            raise ServerUnreachable("no server is there")
        return await super().request(*given, **options)

    def try_post(self, headers: Headers, body: bytes, sink: PostSink) -> bool:
        return not self.down and super().try_post(headers, body, sink)


@tidy
@pytest.mark.parametrize("others", ["", "tools/call", "subscriptions/listen"])
async def test_an_unreachable_server_is_lost_unless_other_calls_are_in_flight(
    others: str,
) -> None:
    web, hold = FakeSessionServer(), BlockedReply(answers({}))
    web.reactions[others] = hold
    async with scripted_server(web.play) as server:
        client = Fickle(server.url)
        link = StreamableHttpClient(client, "s", IdRemapper(), None, limits=SHORT_STREAM_LIMITS)
        calling = asyncio.create_task(call(link, others)) if others else None
        if calling is not None:
            await hold.started.wait()
        client.down = True
        with pytest.raises(ServerUnreachable):
            await call(link)
        ended = asyncio.create_task(link.wait_ended())
        assert await is_stuck(ended) == (others == "tools/call")
        hold.unblocked.set()
        if calling is not None:
            assert await calling == {}
        with pytest.raises(ServerUnreachable):
            await call(link)
        await ended
        await link.aclose()


@tidy
async def test_the_listening_stream_may_notice_first_that_the_server_is_unreachable() -> None:
    web, hold = FakeSessionServer(), BlockedReply(answers({}))
    web.reactions |= {"GET": streams(), "tools/call": hold}
    async with scripted_server(web.play) as server:
        client = Fickle(server.url)
        link = StreamableHttpClient(
            client, "s", IdRemapper(), cancelled_notification, limits=SHORT_STREAM_LIMITS
        )
        calling = asyncio.create_task(call(link))
        await hold.started.wait()
        link.on_session_opened(V2025_11_25, RecordingHandler())
        await web.wait_for("GET")
        client.down = True
        ended = asyncio.create_task(link.wait_ended())
        while client.refused < 3:
            await asyncio.sleep(0)
        with pytest.raises(ServerUnreachable):
            await call(link, "subscriptions/listen")
        assert await is_stuck(ended)
        hold.unblocked.set()
        assert await calling == {}  # which it was, all the same
        await ended
        await link.aclose()


@tidy
async def test_closing_fails_calls_in_flight() -> None:
    web, hold = FakeSessionServer(), BlockedReply()
    web.reactions |= {"tools/call": hold, "tools/list": streams(notification("x"), end=False)}
    async with client_in_session(web) as link:
        calls = [asyncio.create_task(call(link, m)) for m in ("tools/call", "tools/list")]
        await web.wait_for("tools/list")
        await settle()
        await link.aclose()
        for calling in calls:
            assert isinstance(await error_of(calling), ConnectionLost)
        assert isinstance(await error_of(call(link)), ConnectionLost)
        assert isinstance(await error_of(link.notify("x", None)), ConnectionLost)
        await link.wait_ended()
        await link.aclose()
    assert len(web.received_for("DELETE")) == 1


@tidy
async def test_a_call_that_waits_to_resume_its_stream_ends_with_the_connection() -> None:
    web = FakeSessionServer()
    web.reactions["tools/call"] = streams(event(None, "e0"))
    limits = replace(SHORT_STREAM_LIMITS, reconnect_delay=30.0)
    async with client_in_session(web, limits=limits) as link:
        calling = asyncio.create_task(call(link))
        await web.wait_for("tools/call")
        assert await is_stuck(calling)
        await link.aclose()
        assert isinstance(await error_of(calling), ConnectionLost)


@tidy
async def test_closing_waits_for_messages_being_sent_and_not_for_pending_answers() -> None:
    async def think() -> Any:
        await asyncio.Event().wait()

    clock, web, listener = LoopClock(), FakeSessionServer(), RecordingHandler()
    listener.answer = think
    web.reactions["tools/call"] = streams(server_request(1, "ask"), end=False)
    async with client_in_session(web) as link:
        calling = asyncio.create_task(call(link, handler=listener))
        await listener.asked.wait()
        await stop(calling)
        closing = asyncio.create_task(link.aclose())
        await web.wait_for("notifications/cancelled")
        await clock.advance(SHORT_STREAM_LIMITS.close_drain_timeout)
        await closing
    assert web.received_for("answer") == []
    assert web.methods[-2:] == ["notifications/cancelled", "DELETE"]


@tidy
async def test_a_server_that_does_not_answer_the_delete_is_left() -> None:
    clock, web, hold = LoopClock(), FakeSessionServer(), BlockedReply()
    web.reactions["DELETE"] = hold
    async with client_in_session(web) as link:
        closing = asyncio.create_task(link.aclose())
        await hold.started.wait()
        await clock.advance(SHORT_STREAM_LIMITS.session_delete_timeout)
        await closing
        await hold.disconnected.wait()


@tidy
async def test_cancelling_a_close_leaves_nothing_either() -> None:
    web, hold, calls = FakeSessionServer(), BlockedReply(), BlockedReply()
    web.reactions |= {"DELETE": hold, "tools/call": calls}
    async with scripted_server(web.play) as server:
        client = HttpClient(server.url)
        link = StreamableHttpClient(
            client, "s", IdRemapper(), cancelled_notification, limits=SHORT_STREAM_LIMITS
        )
        await link.call("initialize", EMPTY)
        link.on_session_opened(V2025_11_25, RecordingHandler())
        calling = asyncio.create_task(call(link))
        await calls.started.wait()
        ending = asyncio.create_task(link.aclose())
        await hold.started.wait()
        await stop(calling)  # no cancellation is sent any more
        await settle()
        await stop(ending)
        assert client.connection_count == 0
    assert web.received_for("notifications/cancelled") == []


@tidy
async def test_after_closing_no_call_starts() -> None:
    web = FakeSessionServer()
    async with connected_client(web) as link:
        await link.aclose()
        before = asyncio.all_tasks()
        link.on_session_opened(V2025_11_25, RecordingHandler())
        assert asyncio.all_tasks() == before  # before it connects: a connection would not last
        calling = asyncio.create_task(call(link))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert asyncio.all_tasks() == before
    assert web.received == []
