"""One session over many exchanges: cancelling requests, requests to the client, streams."""

import asyncio
from typing import Any

import pytest

from tests.endpoints.exchanges import FakeExchange, make_context
from tests.tasks import is_stuck, settle, stop, tidy
from trunkline.endpoints.principal_limits import BufferBudget
from trunkline.endpoints.session_state import (
    MAX_ENDED_STREAM_BYTES,
    MAX_PENDING_CLIENT_REQUESTS,
    MAX_RESUMABLE_STREAMS,
    SessionResponseWriter,
    SessionState,
)
from trunkline.jsonrpc import ConnectionLost, ErrorResponse, PendingResult, Raw, Response, RpcError
from trunkline.mcp.versions import V2025_03_26, V2025_06_18, V2025_11_25, Revision


def session(revision: Revision = V2025_06_18) -> SessionState:
    made = SessionState()
    made.revision = revision
    return made


def listening(made: SessionState) -> FakeExchange:
    exchange = FakeExchange()
    made.standalone.attach(exchange, (), primed=made.sends_priming_event)
    return exchange


def replying(made: SessionState) -> tuple[SessionResponseWriter, FakeExchange]:
    exchange = FakeExchange()
    return SessionResponseWriter(made, make_context(exchange)), exchange


def asking(made: Any, method: str = "roots/list") -> asyncio.Task[Raw]:
    return asyncio.create_task(made.call(method, {}))


# Calls


@tidy
async def test_a_request_is_cancelled_by_its_exact_id() -> None:
    made, stopped = session(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()

    call = PendingResult.from_awaitable(work())
    made.in_progress[1] = call, replying(made)[0]
    assert made.is_busy
    strangers: list[Any] = ["1", 2, True, 1.0, None, [1], {}]
    for other in strangers:
        assert not made.cancel_request(other)
    assert made.cancel_request(1)  # before its first step: it starts, and then stops
    await call
    assert stopped.is_set()
    del made.in_progress[1]
    assert not made.is_busy
    assert not made.cancel_request(1)


# Questions


@tidy
async def test_a_client_request_gets_its_response() -> None:
    made = session()
    exchange = listening(made)
    question = asking(made)
    await settle()
    assert exchange.data == [{"jsonrpc": "2.0", "id": 1, "method": "roots/list", "params": {}}]
    for stranger in (Response("1", 1), Response(2, 1), Response(None, 1)):
        made.handle_response(stranger)
    assert await is_stuck(question)
    made.handle_response(Response(1, Raw(b'{"roots":[]}')))
    made.handle_response(Response(1, Raw(b'{"roots":["late"]}')))
    assert bytes(await question) == b'{"roots":[]}'
    made.handle_response(Response(1, Raw(b"{}")))


@tidy
async def test_an_error_response_raises_for_a_client_request() -> None:
    made = session()
    question = asking(made)
    await settle()
    made.handle_response(ErrorResponse(1, RpcError(-1, "no")))
    with pytest.raises(RpcError, match="no"):
        await question


@tidy
async def test_an_abandoned_client_request_is_cancelled() -> None:
    made = session()
    exchange = listening(made)
    question = asking(made)
    await settle()
    await stop(question)
    assert exchange.data[1:] == [
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    ]
    made.handle_response(Response(1, Raw(b"{}")))


@tidy
async def test_pending_client_requests_are_limited() -> None:
    made = session()
    questions = [asking(made) for _ in range(MAX_PENDING_CLIENT_REQUESTS)]
    await settle()
    with pytest.raises(ConnectionLost, match="too many unanswered"):
        await made.call("roots/list", {})
    made.close()
    found = await asyncio.gather(*questions, return_exceptions=True)
    assert {str(why) for why in found} == {"the session has ended"}


@tidy
async def test_an_ended_session_sends_no_requests() -> None:
    made = session()
    exchange = listening(made)
    made.close()
    assert exchange.ended
    with pytest.raises(ConnectionLost, match="the session has ended"):
        await made.call("roots/list", {})


# Which stream


@tidy
async def test_a_response_without_preceding_messages_is_json() -> None:
    reply, exchange = replying(session())
    reply.finish(b'{"id":1}')
    await reply.flush()
    assert (exchange.status, exchange.json) == (200, {"id": 1})
    assert exchange.headers == {b"content-type": b"application/json", b"x-any": b"1"}


@tidy
async def test_messages_of_a_request_use_its_stream_in_order() -> None:
    made = session()
    rest = listening(made)
    reply, exchange = replying(made)
    await reply.notify("a", {})
    question = asking(reply, "sampling/createMessage")
    await settle()
    made.handle_response(Response(1, Raw(b"{}")))
    await question
    await made.notify("other", {})
    reply.finish(b'{"id":1}')
    await reply.flush()
    message = [entry.get("method") for entry in exchange.data]
    assert message == ["a", "sampling/createMessage", None]
    assert exchange.ended
    assert exchange.headers[b"x-any"] == b"1"
    assert [entry["method"] for entry in rest.data] == ["other"]


@pytest.mark.holds("T76")
@tidy
async def test_only_clients_of_2025_11_25_get_priming_events() -> None:
    for revision, primed in ((V2025_03_26, False), (V2025_06_18, False), (V2025_11_25, True)):
        made = session(revision)
        reply, exchange = replying(made)
        await reply.notify("a", {})
        assert (exchange.events[0].data == b"") is primed
        rest = listening(made)
        await made.notify("b", {})
        assert (rest.events[0].data == b"") is primed


@tidy
async def test_messages_after_the_response_use_the_standalone_stream() -> None:
    made = session()
    reply, exchange = replying(made)
    reply.finish(b'{"id":1}')
    await reply.flush()
    await reply.notify("late", {})
    await reply.send_ping()
    assert exchange.json == {"id": 1}
    rest = listening(made)
    await made.standalone.flush()
    assert [entry["method"] for entry in rest.data] == ["late"]
    assert made.find_stream(b"2-0") == (made.standalone, None)  # no other stream was begun


@tidy
async def test_a_ping_turns_a_slow_response_into_a_stream() -> None:
    made = session(V2025_11_25)
    reply, exchange = replying(made)
    reply.is_idle = True
    await reply.send_ping()
    assert not reply.is_idle
    assert exchange.comments == 1
    assert [event.data for event in exchange.events] == [b""]
    reply.finish(b'{"id":1}')
    await reply.flush()
    assert exchange.data == [{"id": 1}]


# Resuming


@tidy
async def test_a_stream_is_found_by_its_event_id() -> None:
    made = session()
    reply, _ = replying(made)
    await reply.notify("a", {})
    found = made.find_stream(b"2-1")
    assert found is not None
    assert (found[0].number, found[1]) == (2, 1)
    assert made.find_stream(b"1-5") == (made.standalone, 5)
    for stranger in (None, b"", b"nonsense", b"3-1", b"0-1"):
        assert made.find_stream(stranger) == (made.standalone, None)


@tidy
async def test_the_oldest_ended_streams_are_dropped() -> None:
    made = session()
    going_on, _ = replying(made)
    await going_on.notify("a", {})
    for _ in range(MAX_RESUMABLE_STREAMS):
        reply, _ = replying(made)
        await reply.notify("a", {})
        reply.finish(b"{}")
        await reply.flush()
    assert made.find_stream(b"2-1") is not None
    assert made.find_stream(b"3-1") is None
    assert made.find_stream(b"4-1") is None
    assert made.find_stream(b"5-1") is not None


@tidy
async def test_the_size_of_ended_streams_is_limited() -> None:
    made = session()
    large = b'"' + b"x" * (MAX_ENDED_STREAM_BYTES // 2) + b'"'
    for _ in range(3):
        reply, _ = replying(made)
        await reply.notify("a", {})
        reply.finish(large)
        await reply.flush()
    assert made.find_stream(b"2-1") is None
    assert made.find_stream(b"3-1") is None
    assert made.find_stream(b"4-1") is not None


@tidy
async def test_a_session_with_an_open_stream_is_busy() -> None:
    made = session()
    assert not made.is_busy
    exchange = listening(made)
    assert made.is_busy
    exchange.disconnect()
    await settle()
    assert not made.is_busy


# The budget


EVENT = b'{"jsonrpc":"2.0","method":"notifications/x","params":{}}'


@tidy
async def test_sessions_of_one_principal_share_its_budget() -> None:
    budget = BufferBudget(10_000, 4 * len(EVENT))
    first, second, other = (SessionState(name, budget) for name in ("p", "p", "q"))
    for made in (other, first, second, first, second, first):
        await made.notify("notifications/x", {})
    assert budget.bytes == {"p": 3 * len(EVENT), "q": len(EVENT)}
    assert (first.standalone.size, second.standalone.size) == (3 * len(EVENT), 0)
    assert other.standalone.size == len(EVENT)
    first.close()
    second.close()
    assert budget.bytes == {"q": len(EVENT)}
    await first.standalone.send(EVENT)
    assert budget.total == len(EVENT)


@tidy
async def test_a_client_that_resumes_after_its_events_were_dropped_gets_the_next_ones() -> None:
    budget = BufferBudget(10_000, len(EVENT))
    made, other = SessionState("p", budget), SessionState("p", budget)
    await made.notify("notifications/x", {"lost": 1})
    await other.notify("notifications/x", {})
    assert made.standalone.size == 0
    exchange = FakeExchange()
    made.standalone.attach(exchange, (), after=0)
    await made.standalone.flush()
    assert exchange.data == []
    await made.notify("notifications/x", {"n": 2})
    assert [each["params"] for each in exchange.data] == [{"n": 2}]


@tidy
async def test_a_response_larger_than_the_budget_reaches_a_client_that_reads() -> None:
    budget = BufferBudget(10, 10)
    made = SessionState("p", budget)
    writer, exchange = replying(made)
    await writer.notify("notifications/x", {})
    assert not writer.finish(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    await writer.flush()
    assert [each.get("method") for each in exchange.data] == ["notifications/x", None]
    await made.notify("notifications/y", {})  # the events that were sent are dropped for it
    assert budget.total == 0
