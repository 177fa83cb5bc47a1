"""Calls that are withdrawn, what comes outside of calls, and the end of a link."""

import asyncio
from typing import Any

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.transports.faulty import Line, faulty
from tests.transports.links import (
    EMPTY,
    SESSION,
    Ear,
    call,
    in_session,
    linked,
    no_patience,
    refusal,
)
from tests.transports.web import (
    Asked,
    Hold,
    InTurn,
    Web,
    answers,
    event,
    fails,
    news,
    question,
    refuses,
    response,
    streams,
)
from trunkline.jsonrpc import (
    ConnectionLost,
    IdRemapper,
)
from trunkline.routing.call import withdrawal
from trunkline.transports import http_stream, streamable
from trunkline.transports.exchange import Headers
from trunkline.transports.http_client import HttpClient, HttpResponse, Poster, Unreachable
from trunkline.transports.streamable import Streamable

__all__ = ["no_patience"]


# Calls that nobody awaits any more


@tidy
@pytest.mark.parametrize("reaction", [Hold, lambda: streams(news("x"), end=False)])
async def test_in_the_handshake_era_a_cancelled_call_is_withdrawn_by_a_notification(
    reaction: Any,
) -> None:
    web, ear = Web(), Ear()
    web.reactions["tools/call"] = reaction()
    async with in_session(web) as link:
        calling = asyncio.create_task(call(link, handler=ear))
        asked = await web.until("tools/call")
        await settle()
        await stop(calling)
        withdrawn = await web.until("notifications/cancelled")
        assert withdrawn.params == {"requestId": asked.id, "reason": "cancelled"}
        assert withdrawn.header(SESSION) == "s1"


@tidy
@pytest.mark.parametrize("method", ["tools/call", "subscriptions/listen"])
async def test_in_the_envelope_era_a_cancelled_call_ends_with_its_stream(method: str) -> None:
    web, hold = Web(), Hold()
    web.reactions[method] = hold
    async with linked(web, "envelope") as link:
        calling = asyncio.create_task(call(link, method))
        await hold.begun.wait()
        await stop(calling)
        await hold.gone.wait()
    assert web.methods == [method]


@tidy
async def test_a_handshake_is_never_withdrawn() -> None:
    web, hold = Web(), Hold()
    web.reactions["initialize"] = hold
    async with linked(web) as link:
        calling = asyncio.create_task(call(link, "initialize"))
        await hold.begun.wait()
        await stop(calling)
        await hold.gone.wait()
    assert web.methods == ["initialize"]


# What comes outside of calls


@tidy
async def test_what_comes_outside_of_calls_is_heard_and_answered() -> None:
    web, ear = Web(), Ear()
    web.reactions["GET"] = streams(news("changed"), question("q", "ping"), end=False)
    async with in_session(web, ear):
        asked = await web.until("GET")
        assert asked.header("accept") == "text/event-stream"
        answer = await web.until("answer")
        assert answer.message == response("q", {"yes": True})
        assert ear.heard == ["changed", "ping"]


@tidy
async def test_a_server_that_offers_no_such_stream_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamable, "MAX_RETRY", 0.0)  # the next would come at once
    web = Web()
    web.reactions["tools/call"] = answers({})
    async with in_session(web) as link:
        await web.until("GET")
        for _ in range(9):
            await call(link)
    assert len(web.of("GET")) == 1


@tidy
async def test_listening_lasts_as_long_as_the_link_however_often_it_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamable, "MAX_RETRY", 0.01)

    async def reset(line: Line, asked: Asked) -> None:
        line.reset()

    web, ear = Web(), Ear()
    cut = [streams(event(news("one"), "e1")), refuses("503 Later"), refuses("409 Taken"), reset]
    web.reactions["GET"] = InTurn(*cut, *[streams()] * 8, streams(news("two"), end=False))
    async with in_session(web, ear):
        while ear.heard != ["one", "two"]:
            await ear.arrived.get()
    assert [asked.header("last-event-id") for asked in web.of("GET")] == [None] + ["e1"] * 12


@tidy
async def test_a_server_that_has_forgotten_where_we_were_is_listened_to_from_now_on() -> None:
    web, ear = Web(), Ear()
    forgotten = fails(-32000, "Invalid event ID", status="400 Bad Request", astray=True)
    web.reactions["GET"] = InTurn(
        streams(event(news("one"), "e1")), forgotten, streams(news("two")), refuses("405 No")
    )
    async with in_session(web, ear):
        while ear.heard != ["one", "two"]:
            await ear.arrived.get()
    asked = [asked.header("last-event-id") for asked in web.of("GET")]
    assert asked[:3] == [None, "e1", None]


@tidy
async def test_a_stream_that_brings_nothing_is_asked_for_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []
    enough = asyncio.Event()

    async def rest(self: Streamable, seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 12:
            enough.set()
            await self.wait_ended()

    for module in (streamable, http_stream):
        monkeypatch.setattr(module, "RETRY", 1.0)
    monkeypatch.setattr(http_stream, "MIN_RETRY", 0.05)
    monkeypatch.setattr(Streamable, "_rest", rest)
    web = Web()
    web.reactions["GET"] = InTurn(
        *[streams()] * 7, streams(news("x")), streams(event(retry=0)), streams(event(retry=10**9))
    )
    async with in_session(web):
        await enough.wait()
    assert rests == [1, 2, 4, 8, 16, 30, 30, 1, 0.1, 30, 30, 30]


@tidy
async def test_a_new_session_is_listened_to_anew() -> None:
    web, old, new = Web(), Ear(), Ear()
    web.reactions["GET"] = InTurn(streams(news("old"), end=False), streams(news("new"), end=False))
    async with in_session(web, old) as link:
        await old.arrived.get()
        await call(link, "initialize")
        link.opened("2025-11-25", new)
        assert await new.arrived.get() == "new"
    assert [asked.header(SESSION) for asked in web.of("GET")] == ["s1", "s2"]


# The end


class Fickle(HttpClient):
    """A client that cannot always reach its server."""

    down = False
    refused = 0

    async def request(self, *given: Any, **options: Any) -> HttpResponse:
        if self.down:
            self.refused += 1
            raise Unreachable("nobody is at home")
        return await super().request(*given, **options)

    def post_now(self, headers: Headers, body: bytes, poster: Poster) -> bool:
        return not self.down and super().post_now(headers, body, poster)


@tidy
@pytest.mark.parametrize("others", ["", "tools/call", "subscriptions/listen"])
async def test_a_server_that_cannot_be_reached_is_lost_unless_it_is_answering_others(
    others: str,
) -> None:
    web, hold = Web(), Hold(answers({}))
    web.reactions[others] = hold
    async with faulty(web.play) as server:
        client = Fickle(server.url)
        link = Streamable(client, "s", IdRemapper(), None)
        calling = asyncio.create_task(call(link, others)) if others else None
        if calling is not None:
            await hold.begun.wait()
        client.down = True
        with pytest.raises(Unreachable):
            await call(link)
        ended = asyncio.create_task(link.wait_ended())
        assert await is_stuck(ended) == (others == "tools/call")
        hold.let_go.set()
        if calling is not None:
            assert await calling == {}
        with pytest.raises(Unreachable):
            await call(link)
        await ended
        await link.aclose()


@tidy
async def test_who_listens_may_notice_first_that_the_server_cannot_be_reached() -> None:
    web, hold = Web(), Hold(answers({}))
    web.reactions |= {"GET": streams(), "tools/call": hold}
    async with faulty(web.play) as server:
        client = Fickle(server.url)
        link = Streamable(client, "s", IdRemapper(), withdrawal)
        calling = asyncio.create_task(call(link))
        await hold.begun.wait()
        link.opened("2025-11-25", Ear())
        await web.until("GET")
        client.down = True
        ended = asyncio.create_task(link.wait_ended())
        while client.refused < 3:
            await asyncio.sleep(0)
        with pytest.raises(Unreachable):
            await call(link, "subscriptions/listen")
        assert await is_stuck(ended)
        hold.let_go.set()
        assert await calling == {}  # which it was, all the same
        await ended
        await link.aclose()


@tidy
async def test_the_end_fails_what_is_under_way() -> None:
    web, hold = Web(), Hold()
    web.reactions |= {"tools/call": hold, "tools/list": streams(news("x"), end=False)}
    async with in_session(web) as link:
        calls = [asyncio.create_task(call(link, m)) for m in ("tools/call", "tools/list")]
        await web.until("tools/list")
        await settle()
        await link.aclose()
        for calling in calls:
            assert isinstance(await refusal(calling), ConnectionLost)
        assert isinstance(await refusal(call(link)), ConnectionLost)
        assert isinstance(await refusal(link.notify("x", None)), ConnectionLost)
        await link.wait_ended()
        await link.aclose()
    assert len(web.of("DELETE")) == 1


@tidy
async def test_a_call_that_waits_to_take_up_its_stream_does_not_outlast_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (streamable, http_stream):
        monkeypatch.setattr(module, "RETRY", 30.0)
    web = Web()
    web.reactions["tools/call"] = streams(event(None, "e0"))
    async with in_session(web) as link:
        calling = asyncio.create_task(call(link))
        await web.until("tools/call")
        assert await is_stuck(calling)
        await link.aclose()
        assert isinstance(await refusal(calling), ConnectionLost)


@tidy
async def test_the_end_waits_for_what_is_being_said_and_not_for_what_is_being_thought() -> None:
    async def think() -> Any:
        await asyncio.Event().wait()

    web, ear = Web(), Ear()
    ear.answer = think
    web.reactions["tools/call"] = streams(question(1, "ask"), end=False)
    async with in_session(web) as link:
        calling = asyncio.create_task(call(link, handler=ear))
        await ear.asked.wait()
        await stop(calling)
    assert web.of("answer") == []
    assert web.methods[-2:] == ["notifications/cancelled", "DELETE"]


@tidy
async def test_a_server_that_does_not_say_goodbye_is_left() -> None:
    web, hold = Web(), Hold()
    web.reactions["DELETE"] = hold
    async with in_session(web) as link:
        await link.aclose()
        await hold.gone.wait()


@tidy
async def test_who_is_cancelled_while_it_ends_leaves_nothing_either() -> None:
    web, hold, calls = Web(), Hold(), Hold()
    web.reactions |= {"DELETE": hold, "tools/call": calls}
    async with faulty(web.play) as server:
        client = HttpClient(server.url)
        link = Streamable(client, "s", IdRemapper(), withdrawal)
        await link.call("initialize", EMPTY)
        link.opened(web.version, Ear())
        calling = asyncio.create_task(call(link))
        await calls.begun.wait()
        ending = asyncio.create_task(link.aclose())
        await hold.begun.wait()
        await stop(calling)  # of which the server need not be told any more
        await settle()
        await stop(ending)
        assert client.connections == 0
    assert web.of("notifications/cancelled") == []


@tidy
async def test_after_the_end_nothing_begins() -> None:
    web = Web()
    async with linked(web) as link:
        await link.aclose()
        before = asyncio.all_tasks()
        link.opened("2025-11-25", Ear())
        assert asyncio.all_tasks() == before  # at once: one that began would not last
        calling = asyncio.create_task(call(link))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert asyncio.all_tasks() == before
    assert web.asked == []
