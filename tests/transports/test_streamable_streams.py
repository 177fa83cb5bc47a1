"""Answers that come as streams: what is said before them, questions, and streams that break."""

import asyncio
from typing import Any

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.transports.faulty import Line, faulty
from tests.transports.links import (
    SESSION,
    Ear,
    call,
    in_session,
    linked,
    no_patience,
    refusal,
)
from tests.transports.web import (
    END,
    STREAM,
    Asked,
    Hold,
    InTurn,
    Reaction,
    Web,
    answers,
    chunk,
    encode,
    event,
    fails,
    failure,
    news,
    question,
    refuses,
    response,
    result,
    streams,
)
from trunkline.jsonrpc import (
    ConnectionLost,
    IdRemapper,
    RpcError,
)
from trunkline.transports import http_stream, streamable
from trunkline.transports.http_client import ClientLimits, HttpClient
from trunkline.transports.streamable import Streamable

__all__ = ["no_patience"]


# Streams


@tidy
async def test_what_comes_before_the_answer_is_heard_before_it_in_order() -> None:
    web, ear = Web(), Ear()
    web.reactions["m"] = streams(
        news("one"), news("slow"), news("broken"), news("two"), result({"done": True}), news("late")
    )
    async with linked(web) as link:
        assert await call(link, "m", handler=ear) == {"done": True}
        assert ear.heard == ["one", "slow", "taken in", "broken", "two"]


@tidy
async def test_nobody_has_to_listen() -> None:
    web = Web()
    web.reactions["m"] = streams(news("one"), question(1, "ask"), result())
    async with linked(web) as link:
        assert await call(link, "m") == {}
    assert web.methods == ["m"]


@tidy
async def test_a_stream_is_read_to_the_letter() -> None:
    async def odd(line: Line, asked: Asked) -> None:
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

    web, ear = Web(), Ear()
    web.reactions["m"] = odd
    async with linked(web) as link:
        assert await call(link, "m", handler=ear) == {"text": "ä"}
        assert ear.heard == []


@tidy
async def test_of_several_answers_the_first_with_the_right_id_counts() -> None:
    web = Web()
    web.reactions["m"] = streams(
        response(99, {}), response("1", {}), [news("x"), response(1, {"a": 1})], response(1, {})
    )
    web.reactions["n"] = streams(failure(None, -32603, "oops"))
    async with linked(web) as link:
        assert await call(link, "m") == {"a": 1}
        assert (await refusal(call(link, "n"))).message == "oops"


@tidy
async def test_the_connection_of_a_stream_is_used_again() -> None:
    ended = asyncio.Event()

    async def react(line: Line, asked: Asked) -> None:
        await line.send(STREAM + event(response(asked.id, {})))
        await ended.wait()
        await line.send(END)

    web = Web()
    web.reactions |= {"m": react, "n": answers({})}
    async with faulty(web.play) as server:
        client = HttpClient(server.url, limits=ClientLimits(max_connections=1))
        link = Streamable(client, "s", IdRemapper(), None)
        assert await call(link, "m") == {}
        ended.set()
        await call(link, "n")  # for which there is a connection once the stream has ended
        assert len(server.lines) == 1
        await link.aclose()


@tidy
async def test_a_stream_that_goes_on_after_its_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_stream, "LAST_WORDS", 0.01)
    gone = asyncio.Event()

    async def endless(line: Line, asked: Asked) -> None:
        await streams(result(), end=False)(line, asked)
        gone.set()

    web = Web()
    web.reactions["m"] = endless
    async with linked(web) as link:
        await call(link, "m")
        await gone.wait()


@tidy
async def test_an_event_that_is_too_long_fails_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_stream, "MAX_EVENT", 100)
    web, ear = Web(), Ear()
    web.reactions["m"] = streams(news("short"), news("x" * 200), result())
    async with linked(web) as link:
        error = await refusal(call(link, "m", handler=ear))
        assert "an event was malformed" in str(error)
        assert ear.heard == ["short"]


# Questions


@tidy
async def test_a_question_is_answered_by_a_post_while_the_call_goes_on() -> None:
    async def ask(line: Line, asked: Asked) -> None:
        await line.send(STREAM + event(question("q1", "roots/list")))
        answer = await web.until("answer")
        await line.send(event(response(asked.id, answer.message)) + END)

    web, ear = Web(), Ear()
    web.reactions["tools/call"] = ask
    async with in_session(web) as link:
        assert await call(link, handler=ear) == response("q1", {"yes": True})
        ear.answer = RpcError(-1, "no", {"why": 1})
        assert await call(link, handler=ear) == failure("q1", -1, "no", {"why": 1})
        ear.answer = ZeroDivisionError()
        assert (await call(link, handler=ear))["error"]["code"] == -32603


@tidy
async def test_a_server_of_the_envelope_era_that_asks_is_not_answered() -> None:
    class Witness(Ear):
        def violated(self, violation: Exception) -> None:
            self.heard.append(str(violation))

    web, ear = Web(), Witness()
    web.reactions["tools/call"] = streams(question("q1", "ping"), news("one"), result({"a": 1}))
    async with linked(web, "envelope") as link:
        assert await call(link, handler=ear) == {"a": 1}
    assert ear.heard == ["Invalid Request: a server asks nobody", "one"]
    assert web.methods == ["tools/call"]


@tidy
async def test_a_question_that_is_withdrawn_is_not_answered() -> None:
    never, cancelled = asyncio.Event(), asyncio.Event()

    async def think() -> Any:
        try:
            await never.wait()
        finally:
            cancelled.set()

    web, ear, hold = Web(), Ear(), Hold(answers({}))
    ear.answer = think
    web.reactions["tools/call"] = streams(question(7, "ask"), end=False)
    async with in_session(web) as link:
        calling = asyncio.create_task(call(link, handler=ear))
        await ear.asked.wait()
        for stranger in (8, "7", 7.0, True, None, [7]):
            link.cancel(stranger)
        await settle()
        assert not cancelled.is_set()
        link.cancel(7)
        await cancelled.wait()
        await stop(calling)
    assert web.of("answer") == []
    assert not hold.begun.is_set()


def asking_nine() -> tuple[Web, Ear, asyncio.Event]:
    """Return a server that asks nine things, and who answers them once it is let go."""
    let_go = asyncio.Event()

    async def think() -> Any:
        await let_go.wait()

    web, ear = Web(), Ear()
    ear.answer = think
    web.reactions["tools/call"] = streams(*(question(n, f"q{n}") for n in range(9)), result())
    return web, ear, let_go


@tidy
async def test_a_server_cannot_ask_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable, "MAX_ASKED", 2)
    monkeypatch.setattr(streamable, "MAX_SAYING", 1)
    web, ear, let_go = asking_nine()
    async with in_session(web) as link:
        calling = asyncio.create_task(call(link, handler=ear))
        await ear.asked.wait()
        assert await is_stuck(calling)
        assert ear.heard == ["q0", "q1"]
        let_go.set()
        await calling
        while len(web.of("answer")) < 9:
            await asyncio.sleep(0)


@tidy
async def test_who_takes_long_to_answer_keeps_nobody_else_from_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamable, "MAX_SAYING", 1)
    web, ear, let_go = asking_nine()
    async with in_session(web) as link:
        await call(link, handler=ear)
        assert len(ear.heard) == 9
        let_go.set()
        while len(web.of("answer")) < 9:
            await asyncio.sleep(0)


# Streams that break


def primed(*said: Any) -> Reaction:
    """Begin a stream that can be taken up again after event "e0", and end it too early."""
    return streams(event(None, "e0", retry=1), *said)


@tidy
async def test_a_stream_that_breaks_is_taken_up_where_it_broke() -> None:
    async def cut(line: Line, asked: Asked) -> None:
        await line.send(STREAM + event(None, "e0", retry=1) + event(news("one"), "e1"))
        line.reset()

    async def reset(line: Line, asked: Asked) -> None:
        line.reset()

    async def resumed(line: Line, asked: Asked) -> None:
        id = web.of("tools/call")[0].id
        await line.send(STREAM + event(response(id, {"a": 1}), "e3") + END)

    web, ear = Web(), Ear()
    web.reactions["tools/call"] = cut
    web.reactions["GET"] = InTurn(
        refuses("405 Nothing else"),
        streams(event(news("two"), "e2")),
        reset,
        refuses("409 Conflict"),
        refuses("503 Later"),
        resumed,
    )
    async with in_session(web) as link:
        await web.until("GET")
        assert await call(link, handler=ear) == {"a": 1}
        assert ear.heard == ["one", "two"]
    taken_up = web.of("GET")[1:]
    assert [asked.header("last-event-id") for asked in taken_up] == ["e1"] + ["e2"] * 4
    assert {asked.header(SESSION) for asked in taken_up} == {"s1"}
    assert len(web.of("tools/call")) == 1


@tidy
async def test_a_stream_that_was_taken_up_is_let_go_after_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_stream, "LAST_WORDS", 0.01)
    gone = asyncio.Event()

    async def rest(line: Line, asked: Asked) -> None:
        await line.send(STREAM + event(response(web.of("tools/call")[0].id, {})))
        await line.gone()
        gone.set()

    web = Web()
    web.reactions |= {"tools/call": primed(), "GET": InTurn(refuses("405 No"), rest)}
    async with in_session(web) as link:
        await web.until("GET")
        await call(link)
        await gone.wait()


@tidy
async def test_a_stream_that_breaks_often_but_gets_on_is_followed_to_its_answer() -> None:
    async def last(line: Line, asked: Asked) -> None:
        await line.send(STREAM + event(response(web.of("tools/call")[0].id, {})) + END)

    web, ear = Web(), Ear()
    parts = [streams(event(news("more"), f"e{n}")) for n in range(2 * streamable.MAX_RESUMES)]
    web.reactions |= {"tools/call": primed(), "GET": InTurn(refuses("405 No"), *parts, last)}
    async with in_session(web) as link:
        await web.until("GET")
        assert await call(link, handler=ear) == {}
    assert len(ear.heard) == len(parts)


@tidy
async def test_patience_with_a_stream_that_keeps_breaking_is_bounded() -> None:
    web = Web()
    web.reactions |= {"tools/call": primed(), "GET": InTurn(refuses("405 No"), primed())}
    async with in_session(web) as link:
        await web.until("GET")
        error = await refusal(call(link))
        assert str(error) == "the stream ended before the answer"
    assert len(web.of("GET")) == 1 + streamable.MAX_RESUMES
    assert len(web.of("tools/call")) == 1


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        fails(-32001, "no session", status="404 Not Found", astray=True),
        fails(-32600, "no such event", status="400 Bad Request"),
        refuses("405 No"),
        answers({}),
    ],
)
async def test_what_cannot_be_taken_up_is_lost_and_never_asked_again(reaction: Reaction) -> None:
    web = Web()
    web.reactions |= {"tools/call": primed(), "GET": InTurn(refuses("405 No"), reaction)}
    async with in_session(web) as link:
        await web.until("GET")
        error = await refusal(call(link))
        assert type(error) is ConnectionLost
        assert "to take it up again the server answered HTTP" in str(error)


@tidy
@pytest.mark.parametrize(
    ("version", "reaction"),
    [("2025-11-25", streams(news("x"))), ("2024-11-05", primed()), (None, primed())],
)
async def test_where_it_cannot_be_a_stream_that_breaks_is_not_taken_up(
    version: str | None, reaction: Reaction
) -> None:
    web = Web()
    web.reactions |= {"tools/call": reaction}
    async with linked(web, "handshake" if version else "envelope") as link:
        link.opened(version or "2026-07-28", Ear())
        error = await refusal(call(link))
        assert str(error) == "the stream ended before the answer"
    assert [asked.header("last-event-id") for asked in web.of("GET")] in ([], [None])
