"""A call by way of `call_tool` is the call of that tool, in both eras."""

from typing import Any

import pytest

from tests.backends.search_gateway import searching
from tests.gateway.letters import EnvelopeServer, Paper, poster
from tests.gateway.servers import Hold, Server, one_tool, refuse, tool, user
from tests.gateway.test_layers import watched
from tests.gateway.test_session import Wire
from trunkline.gateway.wrapped import unwrap
from trunkline.jsonrpc import Raw, RpcError, to_raw
from trunkline.mcp.meta import Params

CALL = "search__call_tool"


def wrapped(name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    inside = {"name": name} | ({} if arguments is None else {"arguments": arguments})
    return {"name": CALL, "arguments": inside, **more}


def direct(name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments or {}, **more}


@pytest.mark.holds("I6.3")
async def test_the_server_hears_the_same_as_of_a_direct_call() -> None:
    server = one_tool()
    arguments = {"deep": [1, {"x": 1.50}], "ü": None}
    async with searching(s=server) as made, user(made) as somebody:
        answers = [
            await somebody.ask("tools/call", make("s__echo", arguments, _meta={"x/y": 1}))
            for make in (wrapped, direct)
        ]
        first, second = (params for method, params in server.heard if method == "tools/call")
        assert first == second
        assert first["name"] == "echo"
        assert answers[0] == answers[1]


async def test_arguments_go_through_to_the_byte() -> None:
    server = one_tool()
    raw = b'{"name":"search__call_tool","arguments":{"arguments":{"n": 1.50 },"name":"s__echo"}}'
    async with searching(s=server) as made, user(made) as somebody:
        await somebody.connection.call("tools/call", Raw(raw))
        (heard,) = (r for r in server.requests if r.method == "tools/call")
        assert bytes(Params(heard.params).get("arguments") or b"") == b'{"n": 1.50 }'


@pytest.mark.holds("I6.3")
@pytest.mark.parametrize("era", ["handshake", "envelope"])
async def test_structured_content_and_errors_come_back_as_they_are(era: str) -> None:
    server = Server() if era == "handshake" else EnvelopeServer()
    server.lists = {"tools": [tool("ok"), tool("bad"), tool("worse")]}
    server.capabilities = {"tools": {}}
    answers: dict[str, Any] = {
        "ok": {"content": [], "structuredContent": {"a": 1}, "resultType": "complete"},
        "bad": {"content": [], "isError": True, "resultType": "complete"},
    }
    fail = refuse(-32050, "no", {"why": 1})
    server.methods["tools/call"] = lambda p: answers.get(p["name"]) or fail(p)
    async with searching(s=server) as made:
        somebody = await poster(made)
        for name in ("ok", "bad"):
            pair = [
                await somebody.ask("tools/call", **make(f"s__{name}")) for make in (wrapped, direct)
            ]
            assert pair[0] == pair[1]
        errors = [
            await somebody.refusal("tools/call", **make("s__worse")) for make in (wrapped, direct)
        ]
        assert len({(e.code, e.message, str(e.data)) for e in errors}) == 1
        assert errors[0].message == "no"


@pytest.mark.holds("I6.3")
async def test_progress_reaches_whoever_called() -> None:
    server = one_tool()

    async def progressing(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        await server.line.notify("notifications/progress", {"progressToken": token, "progress": 1})
        return {"content": []}

    server.methods["tools/call"] = progressing
    async with searching(s=server) as made:
        async with user(made) as somebody:
            await somebody.ask("tools/call", wrapped("s__echo", _meta={"progressToken": "mine"}))
            told = await somebody.until_told("notifications/progress")
            assert told == {"progressToken": "mine", "progress": 1}
        paper = Paper()
        meta = {"progressToken": 7}
        await (await poster(made)).ask("tools/call", paper, _meta=meta, **wrapped("s__echo"))
        assert (await paper.hear())[1]["progressToken"] == 7


@pytest.mark.holds("I6.3")
async def test_a_call_that_is_cancelled_is_cancelled_at_the_server() -> None:
    server, hold = one_tool(), Hold()
    server.methods["tools/call"] = hold
    async with searching(s=server) as made:
        wire = Wire(made)
        await wire.open()
        await made.registry.wait_settled()
        await wire.say({"id": "slow", "method": "tools/call", "params": wrapped("s__echo")})
        await hold.begun.wait()
        await wire.say({"method": "notifications/cancelled", "params": {"requestId": "slow"}})
        cancelled = await server.until_heard("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        await wire.close()


@pytest.mark.holds("I6.3")
async def test_a_question_of_the_server_reaches_whoever_called() -> None:
    server = one_tool()

    async def asking(_: Any) -> Any:
        said = await server.ask("elicitation/create", {"message": "Sure?"})
        return {"content": [], "structuredContent": said}

    server.methods["tools/call"] = asking
    offered: dict[str, Any] = {"elicitation": {}}
    async with searching(s=server) as made, user(made, **offered) as somebody:
        somebody.answers["elicitation/create"] = lambda _: {"action": "accept"}
        result = await somebody.ask("tools/call", wrapped("s__echo"))
        assert result["structuredContent"] == {"action": "accept"}


async def test_a_server_that_is_down_is_unavailable_either_way() -> None:
    server = Server()
    server.broken = RuntimeError("no")
    async with searching(s=server) as made, user(made) as somebody:
        pair = [await somebody.refusal("tools/call", make("s__echo")) for make in (wrapped, direct)]
        assert {error.code for error in pair} == {-32007}


@pytest.mark.parametrize("name", ["s__nothing", CALL])
async def test_what_is_not_there_is_unknown_and_nothing_is_wrapped_twice(name: str) -> None:
    async with searching(s=one_tool()) as made, user(made) as somebody:
        error = await somebody.refusal("tools/call", wrapped(name, {"name": "s__echo"}))
        assert (error.code, error.message) == (-32602, f"Unknown tool: {name}")


async def test_other_search_tools_can_be_called_by_way_of_it() -> None:
    async with searching(s=one_tool()) as made, user(made) as somebody:
        result = await somebody.ask("tools/call", wrapped("search__find_tools", {"query": "echo"}))
        assert result["structuredContent"]["tools"][0]["name"] == "s__echo"


async def test_headers_that_repeat_arguments_are_not_missed() -> None:
    mirrored = {"type": "string", "x-mcp-header": "Region"}
    schema = {"type": "object", "properties": {"region": mirrored}}
    server = Server(tools=[tool("echo", inputSchema=schema)])
    async with searching(s=server) as made:
        somebody, ends = await poster(made), watched(made)
        arguments = {"region": "eu"}
        await somebody.refusal("tools/call", **direct("s__echo", arguments))
        await somebody.ask("tools/call", **wrapped("s__echo", arguments))
        assert server.count("tools/call") == 1
    assert [(end.status, end.backend) for end in ends] == [("error", "s"), ("success", "s")]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "missing 'name'"),
        ({"name": 1}, "expected a string as 'name'"),
        ({"name": "x", "arguments": []}, "expected an object as 'arguments'"),
        ({"name": "x", "path": "/"}, "unexpected 'path'; what is for the tool belongs into"),
    ],
)
def test_what_is_wrapped_badly_is_refused(arguments: Any, why: str) -> None:
    with pytest.raises(RpcError, match=why):
        unwrap(Params(to_raw({"name": CALL, "arguments": arguments})))


async def test_what_is_wrapped_badly_is_noted_as_such() -> None:
    async with searching(s=one_tool()) as made, user(made) as somebody:
        ends = watched(made)
        wrong: tuple[Any, ...] = ([], {"name": "s__echo", "path": "/"})
        for arguments in wrong:
            await somebody.refusal("tools/call", {"name": CALL, "arguments": arguments})
    told = [(end.status, end.name, end.backend) for end in ends]
    assert told == [("invalid_arguments", CALL, "search")] * 2
    assert ends[1].arguments == to_raw({"name": "s__echo", "path": "/"})


def test_no_arguments_are_none() -> None:
    for inside in ({"name": "x"}, {"name": "x", "arguments": None}):
        name, arguments = unwrap(Params(to_raw({"arguments": inside})))
        assert (name, bytes(arguments)) == ("x", b"{}")
    with pytest.raises(RpcError, match="missing 'name'"):
        unwrap(Params(to_raw({})))
