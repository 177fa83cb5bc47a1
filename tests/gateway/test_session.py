"""Calls through the gateway: routing, concurrency, cancellation, and byte-for-byte results."""

import asyncio
import json
from typing import Any

import pytest

from tests.contexts import without_token
from tests.gateway.servers import (
    NO_STARTUP_WAIT,
    HeldAnswer,
    Server,
    SessionClient,
    add,
    hello,
    make_gateway,
    one_tool,
    refuse,
    running,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import RecordingStream, StatelessScriptedServer
from tests.tasks import hang_guard
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import Notification, Request, RpcError, memory_pipe, to_raw
from trunkline.mcp.identity import LOCAL_PRINCIPAL

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Wire:
    """A client that sends and receives raw payloads."""

    def __init__(self, gateway: Gateway) -> None:
        self.near, far = memory_pipe()
        self.serving = asyncio.create_task(gateway.serve(far))

    async def send(self, payload: str | dict[str, Any]) -> None:
        line = payload if isinstance(payload, str) else json.dumps({"jsonrpc": "2.0", **payload})
        await self.near.send(line.encode())

    async def receive(self) -> Any:
        message = await self.near.receive()
        return None if message is None else json.loads(message)

    async def receive_response(self) -> Any:
        while "method" in (message := await self.receive()):
            pass
        return message

    async def open(self, version: str = "2025-11-25") -> None:
        await self.send({"id": 0, "method": "initialize", "params": hello(version)})
        await self.receive()
        await self.send({"method": "notifications/initialized"})

    async def call(self, id: Any, name: str, **params: Any) -> None:
        await self.send({"id": id, "method": "tools/call", "params": {"name": name, **params}})

    async def close(self) -> None:
        await self.near.aclose()
        await self.serving


@pytest.mark.holds("S1.28", "M7")
async def test_a_call_goes_to_its_server_under_the_native_name() -> None:
    a, b = one_tool("x"), one_tool("x")
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        assert await user.names() == ["a__x", "b__x"]
        assert text_of(await user.call("b__x", arguments={"k": 1})) == "x ran"
        method, params = b.received[-1]
        assert method == "tools/call"
        assert without_token(params) == {"name": "x", "arguments": {"k": 1}}
        assert a.count("tools/call") == 0


async def test_a_call_before_its_server_is_ready_waits_for_a_moment() -> None:
    quick, slow, hold = one_tool("x"), one_tool("x"), HeldAnswer({"tools": [tool("x")]})
    slow.methods["tools/list"] = hold
    async with serving(quick=quick, slow=slow) as gateway, SessionClient(gateway) as user:
        await user.hello()
        await hold.started.wait()
        assert text_of(await user.call("quick__x")) == "x ran"  # not delayed
        early = asyncio.create_task(user.call("slow__x"))
        hold.released.set()
        assert text_of(await early) == "x ran"


async def test_a_call_waits_up_to_the_first_list_timeout() -> None:
    slow, hold = one_tool("x"), HeldAnswer({"tools": [tool("x")]})
    slow.methods["tools/list"] = hold
    async with serving(NO_STARTUP_WAIT, slow=slow) as gateway, SessionClient(gateway) as user:
        await user.hello()
        await hold.started.wait()
        with pytest.raises(RpcError, match="Upstream unavailable: slow"):
            await user.call("slow__x")
        hold.released.set()


@pytest.mark.holds("M7")
async def test_equal_names_can_both_be_called() -> None:
    a, b = one_tool("x"), one_tool("x")
    gateway = make_gateway()
    add(gateway, "a", a, prefix="")
    add(gateway, "b", b, prefix="")
    async with running(gateway, a, b), session_client(gateway) as user:
        first, second = await user.names()
        await user.call(second)
        assert (a.count("tools/call"), b.count("tools/call")) == (0, 1)
        await user.call(first)
        assert (a.count("tools/call"), b.count("tools/call")) == (1, 1)


@pytest.mark.holds("T99", "T100")
async def test_unknown_members_pass_both_ways_byte_for_byte() -> None:
    server = one_tool()
    result = '{"content" : [], "_meta": {"vendor.x/y": 1.0}, "extra": 12345678901234567890123}'
    server.methods["tools/call"] = lambda _: result.encode()
    params = (
        '{"name": "s__echo", "arguments": {"n": 1.0, "big": 1.50E2, "u": "\\u00e9"}, '
        f'"_meta": {{"traceparent": "{TRACE}", "vendor/z": [1.50]}}, "vendor": {{ }}}}'
    )
    async with serving(s=server) as gateway:
        wire = Wire(gateway)
        await wire.open()
        await gateway.registry.wait_complete()
        await wire.send(f'{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{params}}}')
        while b"content" not in (answer := await wire.near.receive() or b""):
            pass
        await wire.close()
    assert result.encode() in answer
    sent = bytes(server.requests[-1].params)
    assert b'"arguments":{"n": 1.0, "big": 1.50E2, "u": "\\u00e9"}' in sent
    assert f'"traceparent": "{TRACE}", "vendor/z": [1.50]'.encode() in sent
    assert b'"name":"echo"' in sent
    assert b'"vendor":{ }' in sent


@pytest.mark.holds("T101", "O0.17")
async def test_two_clients_with_the_same_id_and_token_are_kept_apart() -> None:
    server = one_tool()
    hold = HeldAnswer()
    server.methods["tools/call"] = hold
    async with serving(s=server) as gateway:
        wires = [Wire(gateway), Wire(gateway)]
        for wire in wires:
            await wire.open()
        await gateway.registry.wait_complete()
        for wire, token in zip(wires, (7, "7"), strict=True):
            await wire.call("1", "s__echo", _meta={"progressToken": token})
        tokens = [
            (await server.wait_received("tools/call"))["_meta"]["progressToken"] for _ in wires
        ]
        assert len(set(tokens)) == 2
        for token in reversed(tokens):
            note = {"progressToken": token, "progress": token, "message": "m", "x": 1}
            await server.active_connection.notify("notifications/progress", note)
        for wire, token, original in zip(wires, tokens, (7, "7"), strict=True):
            while (message := await wire.receive())["method"] != "notifications/progress":
                pass
            expected = {"progressToken": original, "progress": token, "message": "m", "x": 1}
            assert message["params"] == expected
        hold.released.set()
        for wire in wires:
            answer = await wire.receive()
            assert (answer["id"], answer["result"]) == ("1", {"content": []})
            await wire.close()


async def test_progress_of_an_unknown_call_is_dropped() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway, session_client(gateway) as user:
        calling = asyncio.create_task(user.call("s__echo"))  # without a progress token
        await hold.started.wait()
        for token in (1, 99, "1", True, 1.0, None):
            note = {"progressToken": token, "progress": 1}
            await server.active_connection.notify("notifications/progress", note)
        await server.active_connection.notify("notifications/progress")
        await server.active_connection.notify("notifications/message", {"level": "info", "data": 1})
        await user.wait_notification("notifications/message")
        hold.released.set()
        await calling
        await server.active_connection.notify(
            "notifications/progress", {"progressToken": 1, "progress": 2}
        )
        assert user.notifications.empty()


@pytest.mark.holds("T77", "M8")
async def test_a_cancelled_call_is_cancelled_upstream_and_leaves_nothing() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway:
        wire = Wire(gateway)
        await wire.open()
        await gateway.registry.wait_complete()
        await wire.call("slow", "s__echo")
        await hold.started.wait()
        assert [pending.original_id for pending in gateway.remapper.pending()] == ["slow"]
        await wire.send({"method": "notifications/cancelled", "params": {"requestId": "slow"}})
        cancelled = await server.wait_received("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        assert gateway.remapper.pending_count() == 0
        assert gateway.registry.snapshots()[0].in_flight == 0
        hold.released.set()  # a late answer
        await wire.send({"id": "next", "method": "ping"})
        assert (await wire.receive_response())["id"] == "next"
        await wire.send({"id": "slow", "method": "ping"})
        assert (await wire.receive_response())["id"] == "slow"  # the id is free again
        await wire.close()
    assert gateway.remapper.pending_count() == 0


@pytest.mark.holds("T78")
async def test_cancelling_a_finished_call_has_no_effect() -> None:
    server = one_tool()
    async with serving(s=server) as gateway:
        wire = Wire(gateway)
        await wire.open()
        await gateway.registry.wait_complete()
        await wire.call(1, "s__echo")
        await wire.receive_response()
        for id in (0, 1, "1", True, 1.0, None):
            await wire.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        await wire.send({"method": "notifications/cancelled"})
        await wire.send({"id": 2, "method": "ping"})
        assert (await wire.receive_response())["id"] == 2
        await wire.close()
    assert server.count("notifications/cancelled") == 0


async def test_a_client_that_disconnects_cancels_its_calls() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway:
        wire = Wire(gateway)
        await wire.open()
        await gateway.registry.wait_complete()
        await wire.call(1, "s__echo")
        await hold.started.wait()
        await wire.close()
        cancelled = await server.wait_received("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        assert gateway.remapper.pending_count() == 0
        assert gateway.sessions == frozenset()


async def test_a_closing_gateway_leaves_no_call_behind() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway:
        wire = Wire(gateway)
        await wire.open()
        await gateway.registry.wait_complete()
        await wire.call(1, "s__echo")
        await hold.started.wait()
        await gateway.aclose()
        assert (await wire.receive_response())["error"]["code"] == -32603
        await wire.close()


async def test_a_slow_call_delays_no_other() -> None:
    a, b = one_tool(), one_tool("quick")
    a.methods["tools/call"] = hold = HeldAnswer()
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        slow = asyncio.create_task(user.call("a__echo"))
        await hold.started.wait()
        assert text_of(await user.call("b__quick")) == "quick ran"
        assert not slow.done()
        hold.released.set()
        await slow


@pytest.mark.holds("M8")
async def test_an_upstream_error_passes_unchanged() -> None:
    server = one_tool()
    server.methods["tools/call"] = refuse(-32099, "odd", {"k": [1]})
    async with serving(s=server) as gateway, session_client(gateway) as user:
        error = await user.expect_error("tools/call", {"name": "s__echo"})
        assert (error.code, error.message, error.data) == (-32099, "odd", {"k": [1]})


@pytest.mark.parametrize(
    "params",
    [{}, {"name": 1}, {"name": "s__echo", "arguments": []}, {"name": "s__echo", "arguments": 1}],
)
async def test_a_malformed_call_never_reaches_the_server(params: Any) -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway) as user:
        assert (await user.expect_error("tools/call", params)).code == -32602
        assert server.count("tools/call") == 0


async def test_a_repeated_key_is_refused() -> None:
    server = one_tool()
    async with serving(s=server) as gateway:
        wire = Wire(gateway)
        await wire.open()
        await gateway.registry.wait_complete()
        twice = '"name":"s__echo","name":"s__echo"'
        meta = '"name":"s__echo","_meta":{"a":1,"a":2}'
        for params in (twice, meta):
            call = f'{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{{params}}}}}'
            await wire.send(call)
            assert (await wire.receive_response())["error"]["code"] == -32602
        await wire.close()
    assert server.count("tools/call") == 0


async def test_an_unknown_method_goes_to_the_only_server() -> None:
    server = one_tool()
    server.methods["vendor/do"] = lambda params: {"did": params}
    async with serving(s=server) as gateway, session_client(gateway) as user:
        assert await user.ask("vendor/do", {"a": 1}) == {"did": {"a": 1}}
        assert (await user.expect_error("sampling/createMessage")).code == -32601


async def test_with_two_servers_an_unknown_method_goes_to_neither() -> None:
    a, b = one_tool(), one_tool()
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        assert (await user.expect_error("vendor/do")).code == -32601
        await user.notify("vendor/news")
        await user.ask("ping")
        assert a.count("vendor/news") + b.count("vendor/news") == 0


async def test_a_level_goes_to_all_servers_with_logging_and_one_error_affects_no_other() -> None:
    a, b, no_logging = Server(logging=[]), Server(logging=[]), one_tool()
    a.methods["logging/setLevel"] = refuse(-32603)
    async with serving(a=a, b=b, no_logging=no_logging) as gateway, session_client(gateway) as user:
        assert await user.ask("logging/setLevel", {"level": "info"}) == {}
        assert b.received[-1] == ("logging/setLevel", {"level": "info"})
        assert (a.count("logging/setLevel"), no_logging.count("logging/setLevel")) == (1, 0)


async def test_completions_go_to_the_owning_server_under_its_own_name() -> None:
    a = Server(prompts=[{"name": "p"}])
    b = Server(prompts=[{"name": "p"}], resources=[])
    b.lists["resourceTemplates"] = [{"uriTemplate": "x:///{id}", "name": "t"}]
    argument = {"name": "n", "value": "v"}
    async with serving(a=a, b=b) as gateway, session_client(gateway) as user:
        for ref, native in (
            ({"type": "ref/prompt", "name": "b__p", "title": "T"}, {"name": "p", "title": "T"}),
            ({"type": "ref/resource", "uri": "x:///{id}"}, {"uri": "x:///{id}"}),
            ({"type": "ref/resource", "uri": "x:///7"}, {"uri": "x:///7"}),
        ):
            await user.ask("completion/complete", {"ref": ref, "argument": argument})
            sent = {"ref": {"type": ref["type"], **native}, "argument": argument}
            assert b.received[-1] == ("completion/complete", sent)
        for ref in ({"type": "ref/prompt", "name": "zz"}, {"type": "ref/resource", "uri": "q"}):
            error = await user.expect_error("completion/complete", {"ref": ref})
            assert error.code == -32602
        assert (await user.expect_error("completion/complete", {})).code == -32602


@pytest.mark.holds("T110", "M7")
async def test_a_list_has_the_same_order_twice() -> None:
    servers = {name: Server(tools=[tool("z"), tool("a"), tool("m")]) for name in "cab"}
    async with serving(**servers) as gateway, session_client(gateway) as user:
        first = await user.ask("tools/list")
        assert first == await user.ask("tools/list")
        assert [t["name"] for t in first["tools"]][:4] == ["c__z", "c__a", "c__m", "a__z"]


async def test_a_notification_for_a_disconnected_client_is_dropped() -> None:
    async with serving(s=one_tool()) as gateway:
        async with SessionClient(gateway) as user:
            await user.hello()
            (session,) = gateway.sessions
        await session.notify("notifications/message", {})


@pytest.mark.parametrize("kind", [Server, StatelessScriptedServer])
async def test_notifications_before_an_answer_arrive_before_it(
    kind: Any,
) -> None:
    server = kind(tools=[tool("t")])

    async def hurry(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        for step in range(5):  # all of it, and the answer, may come in one piece
            news = {"progressToken": token, "progress": step}
            await server.active_connection.notify("notifications/progress", news)
        return {"content": []}

    server.methods["tools/call"] = hurry
    async with serving(s=server) as gateway, session_client(gateway) as user:
        for number in range(5):
            await user.call("s__t", _meta={"progressToken": number})
            progress = [
                user.notifications.get_nowait()[1] for _ in range(user.notifications.qsize())
            ]
            assert [(news["progressToken"], news["progress"]) for news in progress if news] == [
                (number, step) for step in range(5)
            ]


class Stack(RecordingStream):
    """The stream of a whole session."""

    def cancel_request(self, request_id: object) -> bool:
        return False


async def test_a_client_that_does_not_read_keeps_no_server_from_others() -> None:
    server, gateway = Server(tools=[tool("t")]), make_gateway()
    add(gateway, "s", server, max_in_flight=1, max_queue=0)

    async def call_tool(params: Any) -> Any:
        if token := params.get("_meta", {}).get("progressToken"):
            for step in range(3):
                news = {"progressToken": token, "progress": step}
                await server.active_connection.notify("notifications/progress", news)
        return {"content": []}

    server.methods["tools/call"] = call_tool
    async with running(gateway, server), session_client(gateway) as user:
        stream = Stack()
        stream.blocked = asyncio.Event()
        session = gateway.open_session(stream, LOCAL_PRINCIPAL)
        session.answer(Request(0, "initialize", to_raw(hello())), stream)
        session.notified(Notification("notifications/initialized"))
        params = {"name": "s__t", "_meta": {"progressToken": "p"}}
        answer = session.answer(Request(1, "tools/call", to_raw(params)), stream)
        async with hang_guard():
            await answer
            assert await user.call("s__t") == {"content": []}
        assert stream.take_notifications() == []
        await gateway.close_session(session)
