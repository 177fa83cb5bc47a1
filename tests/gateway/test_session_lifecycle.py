"""The lifecycle of a session: responses before and after `initialize`."""

import json
from typing import Any

import pytest

from tests.gateway.servers import (
    NO_GRACE,
    Server,
    SessionClient,
    hello,
    make_gateway,
    one_tool,
    serving,
    session_client,
    tool,
)
from trunkline.gateway.gateway import Engine, Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.jsonrpc import Connection, RpcError
from trunkline.mcp.versions import V2025_06_18

HELLO = hello()


def text(method: str, params: Any = None, id: Any = 1, **more: Any) -> str:
    message = {"jsonrpc": "2.0", "id": id, "method": method, **more}
    return json.dumps(message if params is None else message | {"params": params})


def notification_text(method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params})


async def send_text(engine: Engine, payload: str) -> Any:
    answer = await engine.handle_json(payload)
    return None if answer is None else json.loads(answer)


async def initialized_engine(
    version: str = "2025-11-25", gateway: Gateway | None = None, capabilities: Any = None
) -> Engine:
    engine = (gateway or make_gateway()).open_engine()
    assert "result" in await send_text(engine, text("initialize", hello(version, capabilities)))
    assert await send_text(engine, notification_text("notifications/initialized")) is None
    return engine


@pytest.mark.holds("S1.17", "S1.27", "S3.18", "S4.13", "C29")
async def test_a_text_session_is_text_in_and_text_out() -> None:
    engine = make_gateway().open_engine()
    assert (await send_text(engine, text("initialize", HELLO)))["id"] == 1
    assert await engine.handle_json(notification_text("notifications/initialized")) is None
    listed = await send_text(engine, text("tools/list", id="two"))
    assert listed == {"jsonrpc": "2.0", "id": "two", "result": {"tools": []}}
    assert (await send_text(engine, text("ping", id=3)))["result"] == {}


@pytest.mark.holds("S1.18", "S1.19", "S1.21", "S1.32")
@pytest.mark.parametrize(
    ("payload", "code", "message"),
    [
        ("{", -32700, "Parse error"),
        ("", -32700, "Parse error"),
        ("[" + text("ping") + "]", -32600, "Batch requests not supported"),
        ("[]", -32600, "Batch requests not supported"),
        ('{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600, "Invalid Request"),
        ('{"id": 1, "method": "ping"}', -32600, "Invalid Request"),
    ],
)
async def test_an_invalid_request_gets_one_error(payload: str, code: int, message: str) -> None:
    answer = await send_text(make_gateway().open_engine(), payload)
    assert answer["jsonrpc"] == "2.0"
    assert answer["error"]["code"] == code
    assert answer["error"]["message"].startswith(message)


@pytest.mark.holds("S1.22", "C10")
@pytest.mark.parametrize("ready", [False, True])
async def test_notifications_are_never_answered(ready: bool) -> None:
    engine = await initialized_engine() if ready else make_gateway().open_engine()
    for method in ("tools/list", "initialize", "foo/bar", "notifications/cancelled", "ping"):
        assert await engine.handle_json(notification_text(method, requestId=1)) is None
    bad = '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": [1]}'
    assert await engine.handle_json(bad) is None
    assert engine.session.initialized is ready


@pytest.mark.holds("S1.22", "C10")
async def test_a_request_sent_as_a_notification_is_ignored() -> None:
    server = one_tool()
    async with serving(only=server) as gateway, session_client(gateway) as user:
        for method in ("tools/call", "tools/list", "sampling/createMessage"):
            await user.notify(method, {"name": "only__echo"})
        await user.notify("vendor/news", {"a": 1})
        assert await server.wait_received("vendor/news") == {"a": 1}
        assert server.count("tools/call") == 0
        assert server.count("tools/list") == 1
        assert server.count("sampling/createMessage") == 0


@pytest.mark.holds("C10")
async def test_a_notification_sent_as_a_request_is_refused() -> None:
    server = one_tool()
    async with serving(only=server) as gateway, session_client(gateway) as user:
        error = await user.expect_error("notifications/initialized")
        assert error.code == -32601
        assert server.count("notifications/initialized") == 1


@pytest.mark.holds("S1.23", "S1.24", "S1.25", "S3.20", "C11", "C13", "T60", "S1.10", "M2")
@pytest.mark.parametrize(
    "method", ["tools/list", "tools/call", "prompts/get", "logging/setLevel", "foo/bar"]
)
async def test_before_initialize_no_request_is_executed(method: str) -> None:
    answer = await send_text(make_gateway().open_engine(), text(method, {"name": "x"}, id="a"))
    assert answer["id"] == "a"
    assert answer["error"]["code"] == -32002
    assert answer["error"]["message"] == "Server not initialized. Call initialize first."
    assert answer["error"]["data"] == {"type": "not_initialized"}


@pytest.mark.holds("C13")
@pytest.mark.parametrize("initialized", [False, True])
async def test_the_missing_resource_code_is_never_used_for_an_uninitialized_session(
    initialized: bool,
) -> None:
    engine = make_gateway().open_engine()
    if initialized:
        await send_text(engine, text("initialize", HELLO))
    error = (await send_text(engine, text("resources/read", {"uri": "a:b"})))["error"]
    assert error["code"] == -32600
    assert error["data"] == {"type": "not_initialized"}


@pytest.mark.holds("S3.17", "C11", "T59", "M2")
async def test_a_ping_is_always_answered() -> None:
    engine = make_gateway().open_engine()
    assert await send_text(engine, text("ping")) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    await send_text(engine, text("initialize", HELLO))
    assert (await send_text(engine, text("ping")))["result"] == {}


@pytest.mark.holds("S1.26", "S3.21", "C12")
async def test_an_unknown_method_is_named_in_the_error() -> None:
    engine = make_gateway().open_engine()
    await send_text(engine, text("initialize", HELLO))
    error = (await send_text(engine, text("foo/bar")))["error"]
    assert error["code"] == -32601
    assert "foo/bar" in error["message"]


@pytest.mark.holds("S1.29", "S3.16", "C18")
async def test_initialize_returns_the_servers_identity_and_capabilities() -> None:
    identity = GatewayIdentity("three-good-sources", "3.2.1", "Be kind.")
    gateway = Gateway(identity, jitter=lambda: 0.0, limits=NO_GRACE)
    result = (await send_text(gateway.open_engine(), text("initialize", HELLO)))["result"]
    assert result == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "three-good-sources", "version": "3.2.1"},
        "instructions": "Be kind.",
    }


@pytest.mark.holds("C16", "T56")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_session_revision_is_negotiated(version: str) -> None:
    answer = await send_text(make_gateway().open_engine(), text("initialize", hello(version)))
    assert answer["result"]["protocolVersion"] == version


@pytest.mark.holds("C16", "T57")
@pytest.mark.parametrize("version", ["2026-07-28", "9999-01-01", "", "x"])
async def test_an_unknown_revision_is_answered_with_the_latest(version: str) -> None:
    answer = await send_text(make_gateway().open_engine(), text("initialize", hello(version)))
    assert answer["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.holds("S1.30", "S1.31", "C15", "C16", "S1.9")
@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        [],
        {**HELLO, "protocolVersion": 1},
        {key: value for key, value in HELLO.items() if key != "protocolVersion"},
        {**HELLO, "capabilities": []},
        {**HELLO, "clientInfo": None},
    ],
)
async def test_a_failed_initialize_changes_nothing_and_can_be_repeated(params: Any) -> None:
    gateway = make_gateway(a=Server())
    engine = gateway.open_engine()
    assert (await send_text(engine, text("initialize", params)))["error"]["code"] == -32602
    assert not engine.session.initialized
    assert [upstream.state for upstream in gateway.registry] == ["not_started"]
    assert (await send_text(engine, text("tools/list")))["error"]["code"] == -32002
    assert "result" in await send_text(engine, text("initialize", HELLO))
    assert engine.session.initialized
    await gateway.aclose()


@pytest.mark.holds("C15")
async def test_a_second_initialize_is_refused_and_changes_nothing() -> None:
    engine = await initialized_engine("2025-06-18")
    error = (await send_text(engine, text("initialize", HELLO)))["error"]
    assert (error["code"], error["message"]) == (-32600, "Already initialized")
    assert engine.session.caller.revision is V2025_06_18


@pytest.mark.holds("S3.20", "S3.22", "C12", "S1.28")
async def test_a_tool_is_called_only_after_the_initialized_notification() -> None:
    server = one_tool()
    async with serving(a=server) as gateway, SessionClient(gateway) as user:
        await user.ask("initialize", HELLO)
        assert await user.names() == ["a__echo"]
        error = await user.expect_error("tools/call", {"name": "a__echo"})
        assert error.code == -32002
        assert "not initialized" in error.message
        assert (await user.expect_error("vendor/method")).code == -32002
        assert server.count("tools/call") + server.count("vendor/method") == 0
        await user.notify("notifications/initialized")
        assert "content" in await user.call("a__echo")


@pytest.mark.holds("C12")
async def test_a_lenient_gateway_does_not_wait_for_the_initialized_notification() -> None:
    identity = GatewayIdentity("g", "1", strict_lifecycle=False)
    gateway = Gateway(identity, jitter=lambda: 0.0, limits=NO_GRACE)
    engine = gateway.open_engine()
    await send_text(engine, text("initialize", HELLO))
    error = (await send_text(engine, text("tools/call", {"name": "x"})))["error"]
    assert error["message"] == "No tools available"


@pytest.mark.holds("C14")
async def test_each_session_has_its_own_lifecycle_check() -> None:
    gateway = make_gateway()
    assert (await initialized_engine(gateway=gateway)).session.operational
    other = gateway.open_engine()
    assert (await send_text(other, text("tools/list")))["error"]["code"] == -32002


@pytest.mark.holds("C4")
@pytest.mark.parametrize("method", ["ping", "initialize", "tools/list"])
async def test_a_request_with_a_null_id_is_not_executed(method: str) -> None:
    engine = make_gateway().open_engine()
    answer = await send_text(engine, text(method, HELLO, id=None))
    assert answer["id"] is None
    error = answer["error"]
    assert (error["code"], error["message"]) == (-32600, "Request id must not be null")
    assert not engine.session.initialized


@pytest.mark.holds("S3.19", "C20")
async def test_without_tools_every_call_is_an_error() -> None:
    error = (await send_text(await initialized_engine(), text("tools/call", {"name": "x"})))[
        "error"
    ]
    assert (error["code"], error["message"]) == (-32602, "No tools available")


@pytest.mark.holds("C20")
async def test_an_unknown_tool_or_prompt_is_named() -> None:
    server = Server(tools=[tool("a")], prompts=[{"name": "p"}])
    async with serving(s=server) as gateway, session_client(gateway) as user:
        error = await user.expect_error("tools/call", {"name": "s__b"})
        assert (error.code, error.message) == (-32602, "Unknown tool: s__b")
        error = await user.expect_error("prompts/get", {"name": "q"})
        assert (error.code, error.message) == (-32602, "Unknown prompt: q")


@pytest.mark.holds("S3.23", "T78")
async def test_cancelling_an_unknown_call_is_no_error() -> None:
    engine = await initialized_engine()
    for id in (1, 99, "x", None, {"a": 1}, 1.5):
        assert (
            await send_text(engine, notification_text("notifications/cancelled", requestId=id))
            is None
        )
    assert await send_text(engine, notification_text("notifications/cancelled")) is None


@pytest.mark.holds("T69")
@pytest.mark.parametrize("over_a_channel", [False, True])
async def test_under_2025_03_26_a_batch_is_answered_in_order(over_a_channel: bool) -> None:
    entries = [text("ping", id=2), notification_text("foo"), text("tools/list", id="b"), "1"]
    async with serving() as gateway:
        if over_a_channel:
            async with session_client(gateway, "2025-03-26") as user:
                (session,) = gateway.sessions
                assert isinstance(session.session_stream, Connection)
                assert session.session_stream.peer.batch_policy == "allow"
                assert await user.ask("ping") == {}
        engine = await initialized_engine("2025-03-26", gateway)
        answers = await send_text(engine, f"[{','.join(entries)}]")
    assert [answer["id"] for answer in answers] == [2, "b", None]
    assert answers[2]["error"]["code"] == -32600
    assert await engine.handle_json(f"[{notification_text('foo')}]") is None


@pytest.mark.holds("T70")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_under_other_revisions_a_batch_is_refused(version: str) -> None:
    answer = await send_text(await initialized_engine(version), f"[{text('ping')}]")
    assert answer["error"]["code"] == -32600
    assert answer["id"] is None


@pytest.mark.holds("T71", "T72")
async def test_an_empty_batch_and_initialize_in_a_batch_are_refused() -> None:
    engine = await initialized_engine("2025-03-26")
    assert (await send_text(engine, "[]"))["error"]["code"] == -32600
    answers = await send_text(engine, f"[{text('initialize', HELLO)}]")
    assert [answer["error"]["code"] for answer in answers] == [-32600]


@pytest.mark.holds("T79", "T80")
async def test_results_for_session_clients_have_no_stateless_members() -> None:
    server = Server(tools=[tool("t")], resources=[{"uri": "a:b", "name": "r"}], logging=[])
    async with serving(s=server) as gateway, session_client(gateway) as user:
        assert await user.ask("ping") == {}
        assert await user.ask("logging/setLevel", {"level": "debug"}) == {}
        assert await user.ask("resources/subscribe", {"uri": "a:b"}) == {}
        for method in ("tools/list", "resources/list", "prompts/list"):
            assert len(await user.ask(method)) == 1
        assert set(await user.call("s__t")) == {"content"}


async def test_an_unknown_cursor_is_refused() -> None:
    engine = await initialized_engine()
    assert "result" in await send_text(engine, text("tools/list", {"cursor": None}))
    assert (await send_text(engine, text("tools/list", {"cursor": "x"})))["error"]["code"] == -32602


async def test_there_is_no_caller_before_initialize() -> None:
    with pytest.raises(RpcError, match="not initialized"):
        _ = make_gateway().open_engine().session.caller
