"""Calls through the gateway: to their owner, side by side, cancelled, and back with every byte."""

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.letters import EnvelopeServer, Paper
from tests.gateway.servers import (
    Hold,
    Server,
    User,
    add,
    gateway,
    hello,
    one_tool,
    refuse,
    running,
    serving,
    text_of,
    tool,
    user,
)
from trunkline.gateway import registry
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import Notification, Request, RpcError, pipe, to_raw
from trunkline.mcp.principal import LOCAL

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Wire:
    """A client that says what it likes, to the byte, and hears what is said."""

    def __init__(self, made: Gateway) -> None:
        self.near, far = pipe()
        self.serving = asyncio.create_task(made.serve(far))

    async def say(self, payload: str | dict[str, Any]) -> None:
        line = payload if isinstance(payload, str) else json.dumps({"jsonrpc": "2.0", **payload})
        await self.near.send(line.encode())

    async def hear(self) -> Any:
        heard = await self.near.receive()
        return None if heard is None else json.loads(heard)

    async def hear_answer(self) -> Any:
        while "method" in (heard := await self.hear()):
            pass
        return heard

    async def open(self, version: str = "2025-11-25") -> None:
        await self.say({"id": 0, "method": "initialize", "params": hello(version)})
        await self.hear()
        await self.say({"method": "notifications/initialized"})

    async def call(self, id: Any, name: str, **params: Any) -> None:
        await self.say({"id": id, "method": "tools/call", "params": {"name": name, **params}})

    async def close(self) -> None:
        await self.near.aclose()
        await self.serving


async def test_a_call_goes_to_its_owner_under_the_name_that_it_knows() -> None:
    a, b = one_tool("x"), one_tool("x")
    async with serving(a=a, b=b) as made, user(made) as somebody:
        assert await somebody.names() == ["a__x", "b__x"]
        assert text_of(await somebody.call("b__x", arguments={"k": 1})) == "x ran"
        assert b.heard[-1] == ("tools/call", {"name": "x", "arguments": {"k": 1}})
        assert a.count("tools/call") == 0


async def test_a_call_that_comes_before_its_server_is_ready_waits_for_it_a_moment() -> None:
    quick, slow, hold = one_tool("x"), one_tool("x"), Hold({"tools": [tool("x")]})
    slow.methods["tools/list"] = hold
    async with serving(quick=quick, slow=slow) as made, User(made) as somebody:
        await somebody.hello()
        await hold.begun.wait()
        assert text_of(await somebody.call("quick__x")) == "x ran"  # which waits for nobody
        early = asyncio.create_task(somebody.call("slow__x"))
        hold.let_go.set()
        assert text_of(await early) == "x ran"


async def test_a_call_waits_no_longer_than_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PATIENCE", 0.0)
    slow, hold = one_tool("x"), Hold({"tools": [tool("x")]})
    slow.methods["tools/list"] = hold
    async with serving(slow=slow) as made, User(made) as somebody:
        await somebody.hello()
        await hold.begun.wait()
        with pytest.raises(RpcError, match="Upstream unavailable: slow"):
            await somebody.call("slow__x")
        hold.let_go.set()


async def test_equal_names_can_both_be_called() -> None:
    a, b = one_tool("x"), one_tool("x")
    made = gateway()
    add(made, "a", a, prefix="")
    add(made, "b", b, prefix="")
    async with running(made, a, b), user(made) as somebody:
        first, second = await somebody.names()
        await somebody.call(second)
        assert (a.count("tools/call"), b.count("tools/call")) == (0, 1)
        await somebody.call(first)
        assert (a.count("tools/call"), b.count("tools/call")) == (1, 1)


@pytest.mark.holds("T99", "T100")
async def test_what_is_not_ours_passes_both_ways_to_the_byte() -> None:
    server = one_tool()
    result = '{"content" : [], "_meta": {"vendor.x/y": 1.0}, "extra": 12345678901234567890123}'
    server.methods["tools/call"] = lambda _: result.encode()
    params = (
        '{"name": "s__echo", "arguments": {"n": 1.0, "big": 1.50E2, "u": "\\u00e9"}, '
        f'"_meta": {{"traceparent": "{TRACE}", "vendor/z": [1.50]}}, "vendor": {{ }}}}'
    )
    async with serving(s=server) as made:
        wire = Wire(made)
        await wire.open()
        await made.registry.wait_settled()
        await wire.say(f'{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{params}}}')
        while b"content" not in (answer := await wire.near.receive() or b""):
            pass
        await wire.close()
    assert result.encode() in answer
    sent = bytes(server.requests[-1].params)
    assert b'"arguments":{"n": 1.0, "big": 1.50E2, "u": "\\u00e9"}' in sent
    assert f'"traceparent": "{TRACE}", "vendor/z": [1.50]'.encode() in sent
    assert b'"name":"echo"' in sent
    assert b'"vendor":{ }' in sent


@pytest.mark.holds("T101")
async def test_two_clients_with_the_same_id_and_token_do_not_hear_each_other() -> None:
    server = one_tool()
    hold = Hold()
    server.methods["tools/call"] = hold
    async with serving(s=server) as made:
        wires = [Wire(made), Wire(made)]
        for wire in wires:
            await wire.open()
        await made.registry.wait_settled()
        for wire, token in zip(wires, (7, "7"), strict=True):
            await wire.call("1", "s__echo", _meta={"progressToken": token})
        tokens = [(await server.until_heard("tools/call"))["_meta"]["progressToken"] for _ in wires]
        assert len(set(tokens)) == 2
        for token in reversed(tokens):
            note = {"progressToken": token, "progress": token, "message": "m", "x": 1}
            await server.line.notify("notifications/progress", note)
        for wire, token, original in zip(wires, tokens, (7, "7"), strict=True):
            while (heard := await wire.hear())["method"] != "notifications/progress":
                pass
            expected = {"progressToken": original, "progress": token, "message": "m", "x": 1}
            assert heard["params"] == expected
        hold.let_go.set()
        for wire in wires:
            answer = await wire.hear()
            assert (answer["id"], answer["result"]) == ("1", {"content": []})
            await wire.close()


async def test_progress_of_nobodys_call_is_dropped() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made, user(made) as somebody:
        calling = asyncio.create_task(somebody.call("s__echo"))  # it wants to hear of none
        await hold.begun.wait()
        for token in (1, 99, "1", True, 1.0, None):
            note = {"progressToken": token, "progress": 1}
            await server.line.notify("notifications/progress", note)
        await server.line.notify("notifications/progress")
        await server.line.notify("notifications/message", {"level": "info", "data": 1})
        await somebody.until_told("notifications/message")
        hold.let_go.set()
        await calling
        await server.line.notify("notifications/progress", {"progressToken": 1, "progress": 2})
        assert somebody.told.empty()


@pytest.mark.holds("T77")
async def test_a_cancelled_call_is_cancelled_upstream_and_leaves_nothing() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made:
        wire = Wire(made)
        await wire.open()
        await made.registry.wait_settled()
        await wire.call("slow", "s__echo")
        await hold.begun.wait()
        assert [pending.original_id for pending in made.remapper.pending()] == ["slow"]
        await wire.say({"method": "notifications/cancelled", "params": {"requestId": "slow"}})
        cancelled = await server.until_heard("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        assert made.remapper.pending_count() == 0
        assert made.registry.snapshot()[0].in_flight == 0
        hold.let_go.set()  # a late answer
        await wire.say({"id": "next", "method": "ping"})
        assert (await wire.hear_answer())["id"] == "next"
        await wire.say({"id": "slow", "method": "ping"})
        assert (await wire.hear_answer())["id"] == "slow"  # the id is free again
        await wire.close()
    assert made.remapper.pending_count() == 0


@pytest.mark.holds("T78")
async def test_to_cancel_what_is_finished_reaches_nobody() -> None:
    server = one_tool()
    async with serving(s=server) as made:
        wire = Wire(made)
        await wire.open()
        await made.registry.wait_settled()
        await wire.call(1, "s__echo")
        await wire.hear_answer()
        for id in (0, 1, "1", True, 1.0, None):
            await wire.say({"method": "notifications/cancelled", "params": {"requestId": id}})
        await wire.say({"method": "notifications/cancelled"})
        await wire.say({"id": 2, "method": "ping"})
        assert (await wire.hear_answer())["id"] == 2
        await wire.close()
    assert server.count("notifications/cancelled") == 0


async def test_a_client_that_leaves_cancels_its_calls() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made:
        wire = Wire(made)
        await wire.open()
        await made.registry.wait_settled()
        await wire.call(1, "s__echo")
        await hold.begun.wait()
        await wire.close()
        cancelled = await server.until_heard("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        assert made.remapper.pending_count() == 0
        assert made.sessions == frozenset()


async def test_a_gateway_that_ends_leaves_no_call_behind() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made:
        wire = Wire(made)
        await wire.open()
        await made.registry.wait_settled()
        await wire.call(1, "s__echo")
        await hold.begun.wait()
        await made.aclose()
        assert (await wire.hear_answer())["error"]["code"] == -32603
        await wire.close()


async def test_a_slow_call_holds_up_no_other() -> None:
    a, b = one_tool(), one_tool("quick")
    a.methods["tools/call"] = hold = Hold()
    async with serving(a=a, b=b) as made, user(made) as somebody:
        slow = asyncio.create_task(somebody.call("a__echo"))
        await hold.begun.wait()
        assert text_of(await somebody.call("b__quick")) == "quick ran"
        assert not slow.done()
        hold.let_go.set()
        await slow


async def test_an_upstreams_own_error_passes_as_it_is() -> None:
    server = one_tool()
    server.methods["tools/call"] = refuse(-32099, "odd", {"k": [1]})
    async with serving(s=server) as made, user(made) as somebody:
        error = await somebody.refusal("tools/call", {"name": "s__echo"})
        assert (error.code, error.message, error.data) == (-32099, "odd", {"k": [1]})


@pytest.mark.parametrize(
    "params",
    [{}, {"name": 1}, {"name": "s__echo", "arguments": []}, {"name": "s__echo", "arguments": 1}],
)
async def test_a_malformed_call_never_reaches_the_server(params: Any) -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made) as somebody:
        assert (await somebody.refusal("tools/call", params)).code == -32602
        assert server.count("tools/call") == 0


async def test_a_key_that_comes_twice_is_refused() -> None:
    server = one_tool()
    async with serving(s=server) as made:
        wire = Wire(made)
        await wire.open()
        await made.registry.wait_settled()
        twice = '"name":"s__echo","name":"s__echo"'
        meta = '"name":"s__echo","_meta":{"a":1,"a":2}'
        for params in (twice, meta):
            call = f'{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{{params}}}}}'
            await wire.say(call)
            assert (await wire.hear_answer())["error"]["code"] == -32602
        await wire.close()
    assert server.count("tools/call") == 0


async def test_an_unknown_method_goes_to_the_only_server_there_is() -> None:
    server = one_tool()
    server.methods["vendor/do"] = lambda params: {"did": params}
    async with serving(s=server) as made, user(made) as somebody:
        assert await somebody.ask("vendor/do", {"a": 1}) == {"did": {"a": 1}}
        assert (await somebody.refusal("sampling/createMessage")).code == -32601


async def test_with_two_servers_an_unknown_method_goes_to_neither() -> None:
    a, b = one_tool(), one_tool()
    async with serving(a=a, b=b) as made, user(made) as somebody:
        assert (await somebody.refusal("vendor/do")).code == -32601
        await somebody.tell("vendor/news")
        await somebody.ask("ping")
        assert a.count("vendor/news") + b.count("vendor/news") == 0


async def test_a_level_goes_to_all_that_log_and_what_one_answers_concerns_no_other() -> None:
    a, b, deaf = Server(logging=[]), Server(logging=[]), one_tool()
    a.methods["logging/setLevel"] = refuse(-32603)
    async with serving(a=a, b=b, deaf=deaf) as made, user(made) as somebody:
        assert await somebody.ask("logging/setLevel", {"level": "info"}) == {}
        assert b.heard[-1] == ("logging/setLevel", {"level": "info"})
        assert (a.count("logging/setLevel"), deaf.count("logging/setLevel")) == (1, 0)


async def test_completions_are_asked_of_the_owner_under_its_own_name() -> None:
    a = Server(prompts=[{"name": "p"}])
    b = Server(prompts=[{"name": "p"}], resources=[])
    b.lists["resourceTemplates"] = [{"uriTemplate": "x:///{id}", "name": "t"}]
    argument = {"name": "n", "value": "v"}
    async with serving(a=a, b=b) as made, user(made) as somebody:
        for ref, native in (
            ({"type": "ref/prompt", "name": "b__p", "title": "T"}, {"name": "p", "title": "T"}),
            ({"type": "ref/resource", "uri": "x:///{id}"}, {"uri": "x:///{id}"}),
            ({"type": "ref/resource", "uri": "x:///7"}, {"uri": "x:///7"}),
        ):
            await somebody.ask("completion/complete", {"ref": ref, "argument": argument})
            sent = {"ref": {"type": ref["type"], **native}, "argument": argument}
            assert b.heard[-1] == ("completion/complete", sent)
        for bad in ({"type": "ref/prompt", "name": "zz"}, {"type": "ref/resource", "uri": "q"}):
            error = await somebody.refusal("completion/complete", {"ref": bad})
            assert error.code == -32602
        assert (await somebody.refusal("completion/complete", {})).code == -32602


@pytest.mark.holds("T110")
async def test_a_list_comes_in_the_same_order_twice() -> None:
    servers = {name: Server(tools=[tool("z"), tool("a"), tool("m")]) for name in "cab"}
    async with serving(**servers) as made, user(made) as somebody:
        first = await somebody.ask("tools/list")
        assert first == await somebody.ask("tools/list")
        assert [t["name"] for t in first["tools"]][:4] == ["c__z", "c__a", "c__m", "a__z"]


async def test_a_client_that_is_gone_need_not_be_told() -> None:
    async with serving(s=one_tool()) as made:
        async with User(made) as somebody:
            await somebody.hello()
            (session,) = made.sessions
        await session.tell("notifications/message", {})


@pytest.mark.parametrize("kind", [Server, EnvelopeServer])
async def test_what_was_told_before_an_answer_comes_before_it_however_quick_that_is(
    kind: Any,
) -> None:
    server = kind(tools=[tool("t")])

    async def hurry(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        for step in range(5):  # all of it, and the answer, may come in one piece
            news = {"progressToken": token, "progress": step}
            await server.line.notify("notifications/progress", news)
        return {"content": []}

    server.methods["tools/call"] = hurry
    async with serving(s=server) as made, user(made) as somebody:
        for number in range(5):
            await somebody.call("s__t", _meta={"progressToken": number})
            told = [somebody.told.get_nowait()[1] for _ in range(somebody.told.qsize())]
            assert [(news["progressToken"], news["progress"]) for news in told if news] == [
                (number, step) for step in range(5)
            ]


class Stack(Paper):
    """The line of a whole conversation."""

    def cancel(self, request_id: object) -> bool:
        return False


async def test_a_client_that_does_not_read_takes_no_server_away_from_others() -> None:
    server, made = Server(tools=[tool("t")]), gateway()
    add(made, "s", server, max_in_flight=1, max_queue=0)

    async def talk(params: Any) -> Any:
        if token := params.get("_meta", {}).get("progressToken"):
            for step in range(3):
                news = {"progressToken": token, "progress": step}
                await server.line.notify("notifications/progress", news)
        return {"content": []}

    server.methods["tools/call"] = talk
    async with running(made, server), user(made) as somebody:
        paper = Stack()
        paper.blocked = asyncio.Event()
        conversation = made.open(paper, LOCAL)
        conversation.answer(Request(0, "initialize", to_raw(hello())), paper)
        conversation.notified(Notification("notifications/initialized"))
        said = {"name": "s__t", "_meta": {"progressToken": "p"}}
        answer = conversation.answer(Request(1, "tools/call", to_raw(said)), paper)
        async with asyncio.timeout(5):
            await answer
            assert await somebody.call("s__t") == {"content": []}
        assert paper.everything() == []
        await made.close(conversation)
