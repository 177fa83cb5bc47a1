"""Streamable HTTP, the client side: bodies, errors, and sessions."""

import asyncio

import pytest

from tests.backends.http_clients import (
    SESSION,
    VERSION,
    RecordingHandler,
    call,
    client_in_session,
    connected_client,
    error_of,
)
from tests.backends.http_servers import (
    JSON,
    FakeSessionServer,
    InSequence,
    Reaction,
    ReceivedMessage,
    answers,
    encode,
    fails,
    notification,
    rejects,
    response,
    result,
    sends_raw,
    server_request,
    streams,
)
from tests.http.scripted_server import ScriptedConnection, ok
from tests.tasks import is_stuck, stop, tidy
from trunkline.backends.http_responses import SessionLost, UpstreamStatusError
from trunkline.jsonrpc import (
    ConnectionLost,
    Raw,
    RpcError,
    from_raw,
)

# Bodies


@tidy
async def test_a_call_is_a_post_and_its_answer_a_body() -> None:
    web = FakeSessionServer()
    web.reactions["m"] = answers({"a": 1})
    async with connected_client(web, "session", (b"authorization", b"Bearer x")) as link:
        assert await call(link, "m", headers=[(b"mcp-method", b"m")]) == {"a": 1}
    (asked,) = web.received
    assert asked.message == {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"name": "t"}}
    assert asked.header("accept") == "application/json, text/event-stream"
    assert asked.header("content-type") == "application/json"
    assert (asked.header("authorization"), asked.header("mcp-method")) == ("Bearer x", "m")
    assert asked.header(SESSION) is asked.header(VERSION) is None


@tidy
async def test_params_and_results_pass_byte_for_byte() -> None:
    async def lines(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        body = b'{"jsonrpc":"2.0","id":%d,"result":{\n  "a": 1.0\n}}' % asked.id
        await line.send(ok(body, JSON))

    web = FakeSessionServer()
    web.reactions["m"] = lines
    async with connected_client(web) as link:
        found = await link.call("m", Raw(b'{\n  "b": 1.0\n}'))
    assert bytes(found) == b'{\n  "a": 1.0\n}'
    assert web.received[0].http_request.body.endswith(b'"params":{\n  "b": 1.0\n}}')


@tidy
async def test_an_error_of_the_server_is_raised_unchanged() -> None:
    web = FakeSessionServer()
    web.reactions["m"] = fails(-32602, "bad", {"field": "x"})
    async with connected_client(web) as link:
        error = await error_of(call(link, "m"))
        assert (error.code, error.message) == (-32602, "bad")
        assert from_raw(error.data, object) == {"field": "x"}


@tidy
async def test_an_answer_may_be_in_a_batch_and_an_error_may_have_no_id() -> None:
    async def batch(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        entries = [
            notification("x"),
            {"no": "message"},
            response(99, {}),
            response(asked.id, {"b": 2}),
        ]
        await line.send(ok(encode(entries), JSON))

    web = FakeSessionServer()
    web.reactions |= {"m": batch, "n": fails(-32000, "not you", misaddressed=True)}
    async with connected_client(web) as link:
        assert await call(link, "m") == {"b": 2}
        assert (await error_of(call(link, "n"))).code == -32000


@tidy
@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (ok(b"<html>", b"content-type: text/html"), "expected JSON or an event stream, got 'text/"),
        (ok(b"{}"), "expected JSON or an event stream, got ''"),
        (ok(b"<html>", JSON), "the response was malformed: Parse error"),
        (ok(b"{}", JSON), "the response was malformed: Invalid Request"),
        (ok(encode(response(99, {})), JSON), "does not belong to the request"),
        (ok(encode(server_request(1, "x")), JSON), "does not belong to the request"),
        (ok(b"", status=b"202 Accepted"), "the server answered HTTP 202"),
        (ok(b"", b"location: /else", status=b"307 Moved"), "the server answered HTTP 307"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n" + JSON + b"\r\n\r\n{}", "closed after 2 of"),
    ],
)
async def test_an_invalid_answer_is_an_error_at_once(raw: bytes, why: str) -> None:
    async def react(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await line.send(raw)
        line.close()

    web = FakeSessionServer()
    web.reactions["m"] = react
    async with connected_client(web) as link:
        error = await error_of(call(link, "m"))
        assert isinstance(error, ConnectionLost)
        assert why in str(error)
    assert len(web.received) == 1


# Refusals


@tidy
@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "500 Oops"])
async def test_an_error_about_a_call_goes_to_its_caller(status: str) -> None:
    web = FakeSessionServer()
    web.reactions["m"] = fails(-32021, "needs more", {"requiredCapabilities": {}}, status=status)
    async with connected_client(web, "stateless") as link:
        error = await error_of(call(link, "m"))
        assert isinstance(error, RpcError)
        assert (error.code, error.message) == (-32021, "needs more")


@tidy
@pytest.mark.parametrize("status", ["401 No", "403 No", "302 Found", "503 Busy"])
async def test_an_error_about_the_gateways_access_does_not_go_to_the_caller(status: str) -> None:
    web = FakeSessionServer()
    web.reactions["m"] = fails(-32001, "who are you", status=status)
    async with connected_client(web) as link:
        error = await error_of(call(link, "m"))
        assert isinstance(error, UpstreamStatusError)
        assert str(error) == f"the server answered HTTP {status[:3]}: who are you"


@tidy
@pytest.mark.parametrize(
    ("retry_after", "seconds"),
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
async def test_a_retry_after_is_read_unless_it_is_invalid(
    retry_after: str, seconds: float | None
) -> None:
    web = FakeSessionServer()
    web.reactions["m"] = rejects("429 Slow", b"", f"retry-after: {retry_after}".encode())
    async with connected_client(web) as link:
        error = await error_of(call(link, "m"))
        assert (error.status, error.retry_after, error.error) == (429, seconds, None)


@tidy
@pytest.mark.parametrize("method", ["initialize", "server/discover"])
async def test_a_probe_gets_the_status_and_the_error(method: str) -> None:
    web = FakeSessionServer()
    web.reactions[method] = fails(-32022, "no", {"supported": []}, status="400 Bad")
    async with connected_client(web) as link:
        error = await error_of(call(link, method))
        assert (error.status, error.error.code) == (400, -32022)


@tidy
async def test_an_unreadable_error_is_ignored() -> None:
    web = FakeSessionServer()
    web.reactions |= {
        "m": rejects("400 Bad", b"<html>", JSON),
        "n": sends_raw(b"HTTP/1.1 500 Oops\r\ncontent-length: 9\r\n" + JSON + b"\r\n\r\n{"),
        "o": rejects("400 Bad", encode(response(1, {})), JSON),
    }
    cut = web.reactions["n"]

    async def cut_short(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await cut(line, asked)
        line.close()

    web.reactions["n"] = cut_short
    async with connected_client(web) as link:
        for method, status in (("m", 400), ("n", 500), ("o", 400)):
            error = await error_of(call(link, method))
            assert (error.status, error.error) == (status, None)


@tidy
async def test_a_notification_that_cannot_be_sent_is_an_error() -> None:
    web = FakeSessionServer()
    web.reactions["notifications/x"] = rejects("500 Oops")
    async with client_in_session(web) as link:
        await link.notify("notifications/y", None)
        assert (await error_of(link.notify("notifications/x", {"a": 1}))).status == 500
    assert web.received_for("notifications/x")[0].params == {"a": 1}


# Sessions


@pytest.mark.holds("M6")
@tidy
async def test_session_and_revision_headers_are_sent_to_the_end() -> None:
    web, listener = FakeSessionServer("2025-06-18"), RecordingHandler()
    web.reactions["GET"] = streams(notification("hello"), end=False)
    web.reactions["tools/call"] = streams(server_request("q", "ask"), result())
    async with client_in_session(web, listener) as link:
        await link.notify("notifications/initialized", None)
        await call(link, handler=listener)
        while not {"answer", "GET"} <= set(web.methods):
            await asyncio.sleep(0)
    first, *rest = web.received
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
async def test_a_server_without_sessions_gets_no_delete() -> None:
    web = FakeSessionServer()
    web.reactions |= {"initialize": answers({}), "tools/call": answers({})}
    async with client_in_session(web) as link:
        await call(link)
    assert web.received_for("tools/call")[0].header(SESSION) is None
    assert web.received_for("DELETE") == []


@tidy
async def test_a_lost_session_is_recognized_and_kept_until_the_next() -> None:
    web = FakeSessionServer()
    async with client_in_session(web) as link:
        web.sessions.clear()
        lost = await error_of(call(link))
        assert isinstance(lost, SessionLost)
        assert not lost.maybe_processed
        web.reactions["initialize"] = InSequence(rejects("503 Later"), web.initialize)
        assert (await error_of(call(link, "initialize"))).status == 503
        # Without it the server would report another error.
        assert isinstance(await error_of(call(link)), SessionLost)
        await call(link, "initialize")
        await call(link)
    assert [asked.header(SESSION) for asked in web.received_for("initialize")] == [None] * 3
    assert [asked.header(SESSION) for asked in web.received_for("tools/call")] == ["s1", "s1", "s2"]


@tidy
async def test_an_unknown_method_error_is_no_lost_session() -> None:
    web = FakeSessionServer()
    web.reactions["resources/templates/list"] = fails(-32601, status="404 Not Found")
    async with client_in_session(web) as link:
        error = await error_of(call(link, "resources/templates/list"))
        assert isinstance(error, RpcError)


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        fails(-32000, "no valid session", status="400 Bad Request", misaddressed=True),
        fails(-32020, "Header mismatch", status="400 Bad Request"),
        fails(-32022, "Unsupported protocol version", status="400 Bad Request"),
    ],
)
async def test_another_server_has_lost_the_session_but_may_have_processed_the_call(
    reaction: Reaction,
) -> None:
    web = FakeSessionServer()
    web.reactions["tools/call"] = reaction
    async with client_in_session(web) as link:
        lost = await error_of(call(link))
        assert isinstance(lost, SessionLost)
        assert lost.maybe_processed


@tidy
async def test_a_server_without_tools_is_kept_and_the_violation_reported() -> None:
    class ViolationRecorder(RecordingHandler):
        def violated(self, violation: Exception) -> None:
            self.received.append(str(violation))

    web, listener = FakeSessionServer(), ViolationRecorder()
    web.reactions["tools/call"] = fails(-32601, "no such tool", status="404 Not Found")
    async with connected_client(web, "stateless") as link:
        ended = asyncio.create_task(link.wait_ended())
        for handler in (listener, None):
            assert (await error_of(call(link, handler=handler))).code == -32601
        assert await is_stuck(ended)
        await stop(ended)
    assert listener.received == ["no such tool"]


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        fails(-32600, "missing session", status="400 Bad Request", misaddressed=True),
        fails(-32022, "Unsupported protocol version", status="400 Bad Request"),
    ],
)
async def test_a_server_with_the_other_protocol_is_refused(reaction: Reaction) -> None:
    web = FakeSessionServer()
    web.reactions["tools/call"] = reaction
    web.reactions["completion/complete"] = fails(-32601, status="404 Not Found")
    async with connected_client(web, "stateless") as link:
        await error_of(call(link, "completion/complete"))
        ended = asyncio.create_task(link.wait_ended())
        assert await is_stuck(ended)
        assert isinstance(await error_of(call(link)), RpcError)
        await ended
