"""One session over many exchanges: calls to be stopped, questions, and whose stream is whose."""

import asyncio
from typing import Any

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.transports.exchanges import Paper, visit
from trunkline.jsonrpc import ConnectionLost, Due, ErrorResponse, Raw, Response, RpcError
from trunkline.transports.http_session import (
    MAX_FLOWS,
    MAX_QUESTIONS,
    MAX_STORED,
    HttpSession,
    SessionReply,
)


def session(version: str = "2025-06-18") -> HttpSession:
    made = HttpSession()
    made.version = version
    return made


def listening(made: HttpSession) -> Paper:
    paper = Paper()
    made.standalone.carry(paper, (), primed=made.primes)
    return paper


def replying(made: HttpSession) -> tuple[SessionReply, Paper]:
    paper = Paper()
    return SessionReply(made, visit(paper)), paper


def asking(made: Any, method: str = "roots/list") -> asyncio.Task[Raw]:
    return asyncio.create_task(made.call(method, {}))


# Calls


@tidy
async def test_a_call_is_stopped_by_its_id_and_by_no_other() -> None:
    made, stopped = session(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()

    call = Due.of(work())
    made.in_progress[1] = call, replying(made)[0]
    assert made.busy
    strangers: list[Any] = ["1", 2, True, 1.0, None, [1], {}]
    for other in strangers:
        assert not made.cancel(other)
    assert made.cancel(1)  # before it had a chance to begin: it begins, and then it stops
    await call
    assert stopped.is_set()
    del made.in_progress[1]
    assert not made.busy
    assert not made.cancel(1)


# Questions


@tidy
async def test_a_question_is_settled_by_its_answer() -> None:
    made = session()
    paper = listening(made)
    question = asking(made)
    await settle()
    assert paper.data == [{"jsonrpc": "2.0", "id": 1, "method": "roots/list", "params": {}}]
    for stranger in (Response("1", 1), Response(2, 1), Response(None, 1)):
        made.settle(stranger)
    assert await is_stuck(question)
    made.settle(Response(1, Raw(b'{"roots":[]}')))
    made.settle(Response(1, Raw(b'{"roots":["late"]}')))
    assert bytes(await question) == b'{"roots":[]}'
    made.settle(Response(1, Raw(b"{}")))


@tidy
async def test_a_question_that_is_refused_says_why() -> None:
    made = session()
    question = asking(made)
    await settle()
    made.settle(ErrorResponse(1, RpcError(-1, "no")))
    with pytest.raises(RpcError, match="no"):
        await question


@tidy
async def test_a_question_that_nobody_waits_for_is_withdrawn() -> None:
    made = session()
    paper = listening(made)
    question = asking(made)
    await settle()
    await stop(question)
    assert paper.data[1:] == [
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    ]
    made.settle(Response(1, Raw(b"{}")))


@tidy
async def test_a_client_that_answers_nothing_is_not_asked_for_ever() -> None:
    made = session()
    questions = [asking(made) for _ in range(MAX_QUESTIONS)]
    await settle()
    with pytest.raises(ConnectionLost, match="too many questions"):
        await made.call("roots/list", {})
    made.close()
    found = await asyncio.gather(*questions, return_exceptions=True)
    assert {str(why) for why in found} == {"the session has ended"}


@tidy
async def test_a_session_that_has_ended_asks_nothing() -> None:
    made = session()
    paper = listening(made)
    made.close()
    assert paper.ended
    with pytest.raises(ConnectionLost, match="the session has ended"):
        await made.call("roots/list", {})


# Which stream


@tidy
async def test_an_answer_with_nothing_before_it_is_a_body() -> None:
    reply, paper = replying(session())
    reply.finish(b'{"id":1}')
    await reply.catch_up()
    assert (paper.status, paper.json) == (200, {"id": 1})
    assert paper.headers == {b"content-type": b"application/json", b"x-any": b"1"}


@tidy
async def test_what_concerns_a_call_goes_on_its_own_stream_and_in_order() -> None:
    made = session()
    rest = listening(made)
    reply, paper = replying(made)
    await reply.notify("a", {})
    question = asking(reply, "sampling/createMessage")
    await settle()
    made.settle(Response(1, Raw(b"{}")))
    await question
    await made.notify("other", {})
    reply.finish(b'{"id":1}')
    await reply.catch_up()
    said = [entry.get("method") for entry in paper.data]
    assert said == ["a", "sampling/createMessage", None]
    assert paper.ended
    assert paper.headers[b"x-any"] == b"1"
    assert [entry["method"] for entry in rest.data] == ["other"]


@pytest.mark.holds("T76")
@tidy
async def test_only_clients_of_2025_11_25_get_an_event_without_data() -> None:
    for version, primed in (("2025-03-26", False), ("2025-06-18", False), ("2025-11-25", True)):
        made = session(version)
        reply, paper = replying(made)
        await reply.notify("a", {})
        assert (paper.events[0].data == b"") is primed
        rest = listening(made)
        await made.notify("b", {})
        assert (rest.events[0].data == b"") is primed


@tidy
async def test_what_comes_after_the_answer_belongs_to_no_call() -> None:
    made = session()
    reply, paper = replying(made)
    reply.finish(b'{"id":1}')
    await reply.catch_up()
    await reply.notify("late", {})
    await reply.keep_alive()
    assert paper.json == {"id": 1}
    rest = listening(made)
    await made.standalone.catch_up()
    assert [entry["method"] for entry in rest.data] == ["late"]
    assert made.find_flow(b"2-0") == (made.standalone, None)  # no other stream was begun


@tidy
async def test_a_call_that_takes_long_becomes_a_stream() -> None:
    made = session("2025-11-25")
    reply, paper = replying(made)
    reply.quiet = True
    await reply.keep_alive()
    assert not reply.quiet
    assert paper.comments == 1
    assert [event.data for event in paper.events] == [b""]
    reply.finish(b'{"id":1}')
    await reply.catch_up()
    assert paper.data == [{"id": 1}]


# Coming back


@tidy
async def test_a_stream_is_found_by_an_event_of_its_own() -> None:
    made = session()
    reply, _ = replying(made)
    await reply.notify("a", {})
    found = made.find_flow(b"2-1")
    assert found is not None
    assert (found[0].number, found[1]) == (2, 1)
    assert made.find_flow(b"1-5") == (made.standalone, 5)
    for stranger in (None, b"", b"nonsense", b"3-1", b"0-1"):
        assert made.find_flow(stranger) == (made.standalone, None)


@tidy
async def test_of_many_streams_the_oldest_that_have_ended_are_forgotten() -> None:
    made = session()
    going_on, _ = replying(made)
    await going_on.notify("a", {})
    for _ in range(MAX_FLOWS):
        reply, _ = replying(made)
        await reply.notify("a", {})
        reply.finish(b"{}")
        await reply.catch_up()
    assert made.find_flow(b"2-1") is not None
    assert made.find_flow(b"3-1") is None
    assert made.find_flow(b"4-1") is None
    assert made.find_flow(b"5-1") is not None


@tidy
async def test_streams_that_have_ended_take_only_so_much_room() -> None:
    made = session()
    large = b'"' + b"x" * (MAX_STORED // 2) + b'"'
    for _ in range(3):
        reply, _ = replying(made)
        await reply.notify("a", {})
        reply.finish(large)
        await reply.catch_up()
    assert made.find_flow(b"2-1") is None
    assert made.find_flow(b"3-1") is None
    assert made.find_flow(b"4-1") is not None


@tidy
async def test_who_listens_is_busy() -> None:
    made = session()
    assert not made.busy
    paper = listening(made)
    assert made.busy
    paper.go()
    await settle()
    assert not made.busy
