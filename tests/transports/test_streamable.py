"""Streamable HTTP from the client's side: bodies, refusals, and sessions."""

import asyncio

import pytest

from tests.jsonrpc.test_channel import is_stuck, stop, tidy
from tests.transports.faulty import Line, ok
from tests.transports.links import (
    SESSION,
    VERSION,
    Ear,
    call,
    in_session,
    linked,
    no_patience,
    refusal,
)
from tests.transports.web import (
    JSON,
    Asked,
    InTurn,
    Reaction,
    Web,
    answers,
    encode,
    fails,
    news,
    question,
    refuses,
    response,
    result,
    says,
    streams,
)
from trunkline.jsonrpc import (
    ConnectionLost,
    Raw,
    RpcError,
    from_raw,
)
from trunkline.transports.http_refused import HttpRefused, SessionLost

__all__ = ["no_patience"]


# Bodies


@tidy
async def test_a_call_is_a_post_and_its_answer_a_body() -> None:
    web = Web()
    web.reactions["m"] = answers({"a": 1})
    async with linked(web, "handshake", (b"authorization", b"Bearer x")) as link:
        assert await call(link, "m", headers=[(b"mcp-method", b"m")]) == {"a": 1}
    (asked,) = web.asked
    assert asked.message == {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"name": "t"}}
    assert asked.header("accept") == "application/json, text/event-stream"
    assert asked.header("content-type") == "application/json"
    assert (asked.header("authorization"), asked.header("mcp-method")) == ("Bearer x", "m")
    assert asked.header(SESSION) is asked.header(VERSION) is None


@tidy
async def test_params_and_results_are_carried_to_the_byte() -> None:
    async def lines(line: Line, asked: Asked) -> None:
        body = b'{"jsonrpc":"2.0","id":%d,"result":{\n  "a": 1.0\n}}' % asked.id
        await line.send(ok(body, JSON))

    web = Web()
    web.reactions["m"] = lines
    async with linked(web) as link:
        found = await link.call("m", Raw(b'{\n  "b": 1.0\n}'))
    assert bytes(found) == b'{\n  "a": 1.0\n}'
    assert web.asked[0].seen.body.endswith(b'"params":{\n  "b": 1.0\n}}')


@tidy
async def test_an_error_is_raised_as_the_server_said_it() -> None:
    web = Web()
    web.reactions["m"] = fails(-32602, "bad", {"field": "x"})
    async with linked(web) as link:
        error = await refusal(call(link, "m"))
        assert (error.code, error.message) == (-32602, "bad")
        assert from_raw(error.data, object) == {"field": "x"}


@tidy
async def test_an_answer_may_stand_in_a_batch_and_an_error_may_name_nobody() -> None:
    async def batch(line: Line, asked: Asked) -> None:
        entries = [news("x"), {"no": "message"}, response(99, {}), response(asked.id, {"b": 2})]
        await line.send(ok(encode(entries), JSON))

    web = Web()
    web.reactions |= {"m": batch, "n": fails(-32000, "not you", astray=True)}
    async with linked(web) as link:
        assert await call(link, "m") == {"b": 2}
        assert (await refusal(call(link, "n"))).code == -32000


@tidy
@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (ok(b"<html>", b"content-type: text/html"), "expected JSON or an event stream, got 'text/"),
        (ok(b"{}"), "expected JSON or an event stream, got ''"),
        (ok(b"<html>", JSON), "the answer was malformed: Parse error"),
        (ok(b"{}", JSON), "the answer was malformed: Invalid Request"),
        (ok(encode(response(99, {})), JSON), "answered something else"),
        (ok(encode(question(1, "x")), JSON), "answered something else"),
        (ok(b"", status=b"202 Accepted"), "the server answered HTTP 202"),
        (ok(b"", b"location: /else", status=b"307 Moved"), "the server answered HTTP 307"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n" + JSON + b"\r\n\r\n{}", "closed after 2 of"),
    ],
)
async def test_what_is_no_answer_is_an_error_at_once(raw: bytes, why: str) -> None:
    async def react(line: Line, asked: Asked) -> None:
        await line.send(raw)
        line.close()

    web = Web()
    web.reactions["m"] = react
    async with linked(web) as link:
        error = await refusal(call(link, "m"))
        assert isinstance(error, ConnectionLost)
        assert why in str(error)
    assert len(web.asked) == 1


# Refusals


@tidy
@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "500 Oops"])
async def test_what_a_server_says_of_a_call_is_for_its_caller(status: str) -> None:
    web = Web()
    web.reactions["m"] = fails(-32021, "needs more", {"requiredCapabilities": {}}, status=status)
    async with linked(web, "envelope") as link:
        error = await refusal(call(link, "m"))
        assert isinstance(error, RpcError)
        assert (error.code, error.message) == (-32021, "needs more")


@tidy
@pytest.mark.parametrize("status", ["401 No", "403 No", "302 Found", "503 Busy"])
async def test_whether_we_may_come_in_is_not_for_the_caller(status: str) -> None:
    web = Web()
    web.reactions["m"] = fails(-32001, "who are you", status=status)
    async with linked(web) as link:
        error = await refusal(call(link, "m"))
        assert isinstance(error, HttpRefused)
        assert str(error) == f"the server answered HTTP {status[:3]}: who are you"


@tidy
@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("-1", None),
        ("soon", None),
        ("9" * 30, None),
        ("1.5", None),
        ("Fri, 31 Dec 1999 23:59:59 GMT", None),
        ("", None),
    ],
)
async def test_how_long_to_wait_is_read_unless_it_makes_no_sense(
    said: str, seconds: float | None
) -> None:
    web = Web()
    web.reactions["m"] = refuses("429 Slow", b"", f"retry-after: {said}".encode())
    async with linked(web) as link:
        error = await refusal(call(link, "m"))
        assert (error.status, error.retry_after, error.error) == (429, seconds, None)


@tidy
@pytest.mark.parametrize("method", ["initialize", "server/discover"])
async def test_a_probe_learns_the_status_and_the_error(method: str) -> None:
    web = Web()
    web.reactions[method] = fails(-32022, "no", {"supported": []}, status="400 Bad")
    async with linked(web) as link:
        error = await refusal(call(link, method))
        assert (error.status, error.error.code) == (400, -32022)


@tidy
async def test_an_error_that_cannot_be_read_is_none() -> None:
    web = Web()
    web.reactions |= {
        "m": refuses("400 Bad", b"<html>", JSON),
        "n": says(b"HTTP/1.1 500 Oops\r\ncontent-length: 9\r\n" + JSON + b"\r\n\r\n{"),
        "o": refuses("400 Bad", encode(response(1, {})), JSON),
    }
    cut = web.reactions["n"]

    async def cut_short(line: Line, asked: Asked) -> None:
        await cut(line, asked)
        line.close()

    web.reactions["n"] = cut_short
    async with linked(web) as link:
        for method, status in (("m", 400), ("n", 500), ("o", 400)):
            error = await refusal(call(link, method))
            assert (error.status, error.error) == (status, None)


@tidy
async def test_a_notification_that_is_not_taken_in_is_told() -> None:
    web = Web()
    web.reactions["notifications/x"] = refuses("500 Oops")
    async with in_session(web) as link:
        await link.notify("notifications/y", None)
        assert (await refusal(link.notify("notifications/x", {"a": 1}))).status == 500
    assert web.of("notifications/x")[0].params == {"a": 1}


# Sessions


@tidy
async def test_a_session_and_its_revision_are_named_from_then_on_to_the_last() -> None:
    web, ear = Web("2025-06-18"), Ear()
    web.reactions["GET"] = streams(news("hello"), end=False)
    web.reactions["tools/call"] = streams(question("q", "ask"), result())
    async with in_session(web, ear) as link:
        await link.notify("notifications/initialized", None)
        await call(link, handler=ear)
        while not {"answer", "GET"} <= set(web.methods):
            await asyncio.sleep(0)
    first, *rest = web.asked
    assert (first.method, first.header(SESSION), first.header(VERSION)) == (
        "initialize",
        None,
        None,
    )
    assert {asked.method for asked in rest} == {
        "notifications/initialized",
        "tools/call",
        "answer",
        "GET",
        "DELETE",
    }
    assert {(a.header(SESSION), a.header(VERSION)) for a in rest} == {("s1", "2025-06-18")}
    assert web.methods[-1] == "DELETE"


@tidy
async def test_a_server_without_sessions_is_not_told_of_an_end() -> None:
    web = Web()
    web.reactions |= {"initialize": answers({}), "tools/call": answers({})}
    async with in_session(web) as link:
        await call(link)
    assert web.of("tools/call")[0].header(SESSION) is None
    assert web.of("DELETE") == []


@tidy
async def test_a_lost_session_is_told_apart_and_stays_until_there_is_another() -> None:
    web = Web()
    async with in_session(web) as link:
        web.sessions.clear()
        lost = await refusal(call(link))
        assert isinstance(lost, SessionLost)
        assert not lost.heard
        web.reactions["initialize"] = InTurn(refuses("503 Later"), web.welcome)
        assert (await refusal(call(link, "initialize"))).status == 503
        # Without it the server would complain of something else.
        assert isinstance(await refusal(call(link)), SessionLost)
        await call(link, "initialize")
        await call(link)
    assert [asked.header(SESSION) for asked in web.of("initialize")] == [None] * 3
    assert [asked.header(SESSION) for asked in web.of("tools/call")] == ["s1", "s1", "s2"]


@tidy
async def test_an_unknown_method_is_no_lost_session() -> None:
    web = Web()
    web.reactions["resources/templates/list"] = fails(-32601, status="404 Not Found")
    async with in_session(web) as link:
        error = await refusal(call(link, "resources/templates/list"))
        assert isinstance(error, RpcError)


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        fails(-32000, "no valid session", status="400 Bad Request", astray=True),
        fails(-32020, "Header mismatch", status="400 Bad Request"),
        fails(-32022, "Unsupported protocol version", status="400 Bad Request"),
    ],
)
async def test_a_server_that_is_another_has_lost_the_session_but_may_have_listened(
    reaction: Reaction,
) -> None:
    web = Web()
    web.reactions["tools/call"] = reaction
    async with in_session(web) as link:
        lost = await refusal(call(link))
        assert isinstance(lost, SessionLost)
        assert lost.heard


@tidy
async def test_a_server_that_says_it_has_no_tools_is_not_given_up_but_somebody_is_told() -> None:
    class Told(Ear):
        def violated(self, violation: Exception) -> None:
            self.heard.append(str(violation))

    web, ear = Web(), Told()
    web.reactions["tools/call"] = fails(-32601, "no such tool", status="404 Not Found")
    async with linked(web, "envelope") as link:
        ended = asyncio.create_task(link.wait_ended())
        for handler in (ear, None):
            assert (await refusal(call(link, handler=handler))).code == -32601
        assert await is_stuck(ended)
        await stop(ended)
    assert ear.heard == ["no such tool"]


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        fails(-32600, "missing session", status="400 Bad Request", astray=True),
        fails(-32022, "Unsupported protocol version", status="400 Bad Request"),
    ],
)
async def test_a_server_of_another_era_is_given_up(reaction: Reaction) -> None:
    web = Web()
    web.reactions["tools/call"] = reaction
    web.reactions["completion/complete"] = fails(-32601, status="404 Not Found")
    async with linked(web, "envelope") as link:
        await refusal(call(link, "completion/complete"))
        ended = asyncio.create_task(link.wait_ended())
        assert await is_stuck(ended)
        assert isinstance(await refusal(call(link)), RpcError)
        await ended
