"""A call wrapped in `call_tool` behaves like a direct call, in both protocols."""

from typing import Any

import pytest

from tests.backends.search_gateway import searching
from tests.contexts import without_token
from tests.gateway.servers import HeldAnswer, Server, one_tool, refuse, session_client, tool
from tests.gateway.stateless_callers import (
    RecordingStream,
    StatelessScriptedServer,
    stateless_caller,
)
from tests.gateway.test_pipeline import record_calls
from tests.gateway.test_session import Wire
from trunkline.gateway.router import unwrap_call
from trunkline.jsonrpc import Raw, RpcError, to_raw
from trunkline.mcp.params import Params

CALL = "search__call_tool"


def wrapped(name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    inner = {"name": name} | ({} if arguments is None else {"arguments": arguments})
    return {"name": CALL, "arguments": inner, **more}


def direct(name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments or {}, **more}


@pytest.mark.holds("I6.3")
async def test_the_server_gets_the_same_request_as_for_a_direct_call() -> None:
    server = one_tool()
    arguments = {"deep": [1, {"x": 1.50}], "ü": None}
    async with searching(s=server) as gateway, session_client(gateway) as client:
        answers = [
            await client.ask("tools/call", build_params("s__echo", arguments, _meta={"x/y": 1}))
            for build_params in (wrapped, direct)
        ]
        first, second = (
            without_token(params) for method, params in server.received if method == "tools/call"
        )
        assert first == second
        assert first["name"] == "echo"
        assert answers[0] == answers[1]


async def test_wrapped_arguments_are_forwarded_byte_for_byte() -> None:
    server = one_tool()
    raw = b'{"name":"search__call_tool","arguments":{"arguments":{"n": 1.50 },"name":"s__echo"}}'
    async with searching(s=server) as gateway, session_client(gateway) as client:
        await client.connection.call("tools/call", Raw(raw))
        (forwarded,) = (r for r in server.requests if r.method == "tools/call")
        assert bytes(Params(forwarded.params).get("arguments") or b"") == b'{"n": 1.50 }'


@pytest.mark.holds("I6.3")
@pytest.mark.parametrize("protocol", ["session", "stateless"])
async def test_structured_content_and_errors_are_returned_unchanged(protocol: str) -> None:
    server = Server() if protocol == "session" else StatelessScriptedServer()
    server.lists = {"tools": [tool("ok"), tool("bad"), tool("worse")]}
    server.capabilities = {"tools": {}}
    answers: dict[str, Any] = {
        "ok": {"content": [], "structuredContent": {"a": 1}, "resultType": "complete"},
        "bad": {"content": [], "isError": True, "resultType": "complete"},
    }
    fail = refuse(-32050, "no", {"why": 1})
    server.methods["tools/call"] = lambda p: answers.get(p["name"]) or fail(p)
    async with searching(s=server) as gateway:
        client = await stateless_caller(gateway)
        for name in ("ok", "bad"):
            results = [
                await client.ask("tools/call", **build_params(f"s__{name}"))
                for build_params in (wrapped, direct)
            ]
            assert results[0] == results[1]
        errors = [
            await client.expect_error("tools/call", **build_params("s__worse"))
            for build_params in (wrapped, direct)
        ]
        assert len({(e.code, e.message, str(e.data)) for e in errors}) == 1
        assert errors[0].message == "no"


@pytest.mark.holds("I6.3")
async def test_progress_of_a_wrapped_call_reaches_its_caller() -> None:
    server = one_tool()

    async def report_progress(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        await server.active_connection.notify(
            "notifications/progress", {"progressToken": token, "progress": 1}
        )
        return {"content": []}

    server.methods["tools/call"] = report_progress
    async with searching(s=server) as gateway:
        async with session_client(gateway) as client:
            await client.ask("tools/call", wrapped("s__echo", _meta={"progressToken": "mine"}))
            params = await client.wait_notification("notifications/progress")
            assert params == {"progressToken": "mine", "progress": 1}
        stream = RecordingStream()
        meta = {"progressToken": 7}
        await (await stateless_caller(gateway)).ask(
            "tools/call", stream, _meta=meta, **wrapped("s__echo")
        )
        assert (await stream.next_notification())[1]["progressToken"] == 7


@pytest.mark.holds("I6.3")
async def test_a_cancelled_wrapped_call_is_cancelled_at_the_server() -> None:
    server, hold = one_tool(), HeldAnswer()
    server.methods["tools/call"] = hold
    async with searching(s=server) as gateway:
        wire = Wire(gateway)
        await wire.open()
        await gateway.registry.wait_complete()
        await wire.send({"id": "slow", "method": "tools/call", "params": wrapped("s__echo")})
        await hold.started.wait()
        await wire.send({"method": "notifications/cancelled", "params": {"requestId": "slow"}})
        cancelled = await server.wait_received("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        await wire.close()


@pytest.mark.holds("I6.3")
async def test_a_server_request_during_a_wrapped_call_reaches_its_caller() -> None:
    server = one_tool()

    async def ask_client(_: Any) -> Any:
        answer = await server.ask("elicitation/create", {"message": "Sure?"})
        return {"content": [], "structuredContent": answer}

    server.methods["tools/call"] = ask_client
    capabilities: dict[str, Any] = {"elicitation": {}}
    async with searching(s=server) as gateway, session_client(gateway, **capabilities) as client:
        client.answers["elicitation/create"] = lambda _: {"action": "accept"}
        result = await client.ask("tools/call", wrapped("s__echo"))
        assert result["structuredContent"] == {"action": "accept"}


async def test_wrapped_and_direct_calls_of_an_unavailable_server_fail_alike() -> None:
    server = Server()
    server.broken = RuntimeError("no")
    async with searching(s=server) as gateway, session_client(gateway) as client:
        results = [
            await client.expect_error("tools/call", build_params("s__echo"))
            for build_params in (wrapped, direct)
        ]
        assert {error.code for error in results} == {-32007}


@pytest.mark.parametrize("name", ["s__nothing", CALL])
async def test_call_tool_refuses_unknown_tools_and_itself(name: str) -> None:
    async with searching(s=one_tool()) as gateway, session_client(gateway) as client:
        error = await client.expect_error("tools/call", wrapped(name, {"name": "s__echo"}))
        assert (error.code, error.message) == (-32602, f"Unknown tool: {name}")


async def test_other_search_tools_can_be_called_wrapped() -> None:
    async with searching(s=one_tool()) as gateway, session_client(gateway) as client:
        result = await client.ask("tools/call", wrapped("search__find_tools", {"query": "echo"}))
        assert result["structuredContent"]["tools"][0]["name"] == "s__echo"


async def test_a_wrapped_call_needs_no_argument_headers() -> None:
    region = {"type": "string", "x-mcp-header": "Region"}
    schema = {"type": "object", "properties": {"region": region}}
    server = Server(tools=[tool("echo", inputSchema=schema)])
    async with searching(s=server) as gateway:
        client, summaries = await stateless_caller(gateway), record_calls(gateway)
        arguments = {"region": "eu"}
        await client.expect_error("tools/call", **direct("s__echo", arguments))
        await client.ask("tools/call", **wrapped("s__echo", arguments))
        assert server.count("tools/call") == 1
    assert [(summary.status, summary.backend) for summary in summaries] == [
        ("error", "s"),
        ("success", "s"),
    ]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "missing 'name'"),
        ({"name": 1}, "expected a string as 'name'"),
        ({"name": "x", "arguments": []}, "expected an object as 'arguments'"),
        ({"name": "x", "path": "/"}, "unexpected 'path'; put the tool's own arguments into"),
    ],
)
def test_an_invalid_wrapped_call_is_refused(arguments: Any, why: str) -> None:
    with pytest.raises(RpcError, match=why):
        unwrap_call(Params(to_raw({"name": CALL, "arguments": arguments})))


async def test_an_invalid_wrapped_call_is_recorded_as_invalid_arguments() -> None:
    async with searching(s=one_tool()) as gateway, session_client(gateway) as client:
        summaries = record_calls(gateway)
        wrong: tuple[Any, ...] = ([], {"name": "s__echo", "path": "/"})
        for arguments in wrong:
            await client.expect_error("tools/call", {"name": CALL, "arguments": arguments})
    records = [(summary.status, summary.name, summary.backend) for summary in summaries]
    assert records == [("invalid_arguments", CALL, "search")] * 2
    assert summaries[1].arguments == to_raw({"name": "s__echo", "path": "/"})


def test_a_wrapped_call_without_arguments_has_an_empty_object() -> None:
    for inner in ({"name": "x"}, {"name": "x", "arguments": None}):
        name, arguments = unwrap_call(Params(to_raw({"arguments": inner})))
        assert (name, bytes(arguments)) == ("x", b"{}")
    with pytest.raises(RpcError, match="missing 'name'"):
        unwrap_call(Params(to_raw({})))
