"""What a function can do with the message that it handles: its context."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.jsonrpc.test_connection import ScriptedTransport
from tests.tasks import settle, tidy
from trunkline.jsonrpc import (
    UNSET,
    Connection,
    ConnectionLost,
    Dispatcher,
    Incident,
    LocalProtocolError,
    Notification,
    PendingResult,
    Request,
    RpcContext,
    RpcError,
    memory_pipe,
)
from trunkline.jsonrpc.dispatcher import bind_params


def client_methods(answers: asyncio.Event | None = None) -> tuple[Dispatcher, list[str]]:
    client, heard = Dispatcher(), list[str]()

    @client.method("confirm")
    async def confirm(text: str) -> bool:
        if answers is not None:
            await answers.wait()
        heard.append(text)
        return True

    @client.notification("progress")
    def progress(text: str) -> None:
        heard.append(text)

    assert [confirm, progress]
    return client, heard


@tidy
async def test_a_method_can_call_and_notify_the_side_that_called_it() -> None:
    server = Dispatcher()

    @server.method("delete")
    async def delete(path: str, context: RpcContext) -> list[Any]:
        await context.notify("progress", [path])
        sure = await context.call("confirm", {"text": "sure?"}, result=bool, timeout=5)
        return [sure, context.method, context.request_id, context.is_notification]

    client, heard = client_methods()
    near, far = memory_pipe()
    async with Connection(far, server), Connection(near, client) as connection:
        found = await connection.call("delete", ["/a"], result=list[Any])
    assert delete
    assert found == [True, "delete", 1, False]
    assert heard == ["/a", "sure?"]


@tidy
async def test_each_connection_of_a_dispatcher_has_contexts_of_its_own() -> None:
    server = Dispatcher()
    found: list[Connection] = []

    @server.method("who")
    def who(context: RpcContext) -> None:
        found.append(context.connection)

    (a, far_a), (b, far_b) = memory_pipe(), memory_pipe()
    async with (
        Connection(far_a, server) as first,
        Connection(far_b, server) as second,
        Connection(a) as near_a,
        Connection(b) as near_b,
    ):
        server.method("added later")(who)
        await near_a.call("who")
        await near_b.call("who")
        await near_b.call("added later")
    assert found == [first, second, second]


@tidy
async def test_a_notification_can_call_back_while_other_messages_wait() -> None:
    server = Dispatcher()
    seen: list[Any] = []

    @server.notification("check")
    async def check(context: RpcContext) -> None:
        assert context.is_notification
        assert context.request_id is UNSET
        seen.append(await context.call("confirm", ["from a notification"], result=bool))

    @server.method("count")
    def count() -> int:
        seen.append("count")
        return len(seen)

    answers = asyncio.Event()
    client, _ = client_methods(answers)
    near, far = memory_pipe()
    async with Connection(far, server), Connection(near, client) as connection:
        await connection.notify("check")
        counting = asyncio.create_task(connection.call("count", result=int))
        await settle()
        assert seen == []
        answers.set()
        assert await counting == 2
    assert [check, count]
    assert seen == [True, "count"]


@tidy
async def test_without_a_connection_a_context_can_send_nothing() -> None:
    reports: list[Incident] = []
    dispatcher = Dispatcher(report=reports.append)

    @dispatcher.method("ask")
    async def ask(context: RpcContext) -> str:
        assert not context.is_cancelled
        await context.notify("x")
        return "not reached"

    @dispatcher.method("id")
    def get_id(context: RpcContext) -> Any:
        return context.request_id

    assert [ask, get_id]
    assert await dispatcher.handle(Request("a", "id").encode()) == (
        b'{"jsonrpc":"2.0","id":"a","result":"a"}'
    )
    assert b"Internal error" in (await dispatcher.handle(Request(1, "ask").encode()) or b"")
    assert await dispatcher.handle(Notification("ask").encode()) is None
    assert [type(each.error) for each in reports] == [LocalProtocolError] * 2
    assert "pass the dispatcher to a Connection" in str(reports[0].error)
    assert dispatcher.methods == ("ask", "id")


@pytest.mark.parametrize("end", ["cancel_request", "aclose", "the other side"])
@tidy
async def test_a_context_knows_that_its_request_was_cancelled(end: str) -> None:
    dispatcher, contexts, started = Dispatcher(), list[RpcContext](), asyncio.Event()
    in_cleanup: list[bool] = []

    @dispatcher.method("slow")
    async def slow(context: RpcContext) -> None:
        contexts.append(context)
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            in_cleanup.append(context.is_cancelled)

    @dispatcher.method("quick")
    async def quick(context: RpcContext) -> None:
        contexts.append(context)

    assert [slow, quick]
    transport = ScriptedTransport()
    async with Connection(transport, dispatcher, close_timeout=0) as connection:
        transport.deliver(Request(1, "slow").encode())
        transport.deliver(Request(2, "quick").encode())
        await started.wait()
        await settle()
        assert [each.is_cancelled for each in contexts] == [False, False]
        if end == "cancel_request":
            assert connection.cancel_request(1)
        elif end == "aclose":
            await connection.aclose()
        else:
            transport.deliver(None)
            await connection.wait_ended()
        await settle()
        assert [each.is_cancelled for each in contexts] == [True, False]
    assert in_cleanup == [True]


@tidy
async def test_a_context_follows_a_result_that_needs_no_task() -> None:
    dispatcher, contexts, pending = Dispatcher(), list[RpcContext](), PendingResult()

    @dispatcher.method("later")
    def later(context: RpcContext) -> PendingResult:
        contexts.append(context)
        return pending

    assert later
    transport = ScriptedTransport()
    async with Connection(transport, dispatcher) as connection:
        transport.deliver(Request(1, "later").encode())
        await settle()
        assert connection.cancel_request(1)
        await settle()
    assert contexts[0].is_cancelled


@tidy
async def test_a_context_of_a_connection_that_ended_raises() -> None:
    dispatcher, contexts = Dispatcher(), list[RpcContext]()
    dispatcher.method("keep")(keep := _recorder(contexts))
    near, far = memory_pipe()
    async with Connection(far, dispatcher), Connection(near) as connection:
        await connection.call("keep")
    assert keep
    with pytest.raises(ConnectionLost):
        await contexts[0].call("m")
    with pytest.raises(ConnectionLost):
        await contexts[0].notify("m")


def _recorder(contexts: list[RpcContext]) -> Callable[..., Any]:
    def keep(context: RpcContext) -> None:
        contexts.append(context)

    return keep


class Point(msgspec.Struct):
    x: int


def first(context: RpcContext, a: int, b: str = "b") -> Any:
    return [context.method, a, b]


def middle(a: int, context: RpcContext, b: str = "b") -> Any:
    return [context.method, a, b]


def last(a: int, b: str = "b", *, context: RpcContext) -> Any:
    return [context.method, a, b]


def variadic(context: RpcContext, *values: Any, **named: Any) -> Any:
    return [context.method, *values, *named.values()]


@pytest.mark.parametrize("function", [first, middle, last, variadic])
@pytest.mark.parametrize("params", [[1, "b"], {"a": 1, "b": "b"}])
async def test_the_context_may_stand_anywhere(function: Callable[..., Any], params: Any) -> None:
    dispatcher = Dispatcher()
    dispatcher.method("m")(function)
    assert await dispatcher.handle(Request(1, "m", params).encode()) == (
        b'{"jsonrpc":"2.0","id":1,"result":["m",1,"b"]}'
    )


@pytest.mark.parametrize("params", [["x"], {"a": 1, "context": {}}, {}, [1, "b", {}]])
@pytest.mark.parametrize("function", [first, middle, last])
async def test_a_caller_cannot_pass_a_context(function: Callable[..., Any], params: Any) -> None:
    dispatcher = Dispatcher()
    dispatcher.method("m")(function)
    assert b'"code":-32602' in (await dispatcher.handle(Request(1, "m", params).encode()) or b"")


async def test_params_with_defaults_may_be_absent_before_a_context() -> None:
    dispatcher = Dispatcher()

    @dispatcher.method("m")
    def with_default(a: int = 1, context: RpcContext = RpcContext("none")) -> Any:  # noqa: B008
        return [context.method, a]

    assert with_default
    for params in (UNSET, [], [1], {"a": 1}):
        assert b'["m",1]' in (await dispatcher.handle(Request(1, "m", params).encode()) or b"")


def two_contexts(a: RpcContext, b: RpcContext) -> None: ...


def positional_only(a: RpcContext, /) -> None: ...


def many_contexts(*a: RpcContext) -> None: ...


unreadable: Any = eval("lambda a, context: None")
unreadable.__annotations__ = {"a": "Missing", "context": RpcContext}


@pytest.mark.parametrize("function", [two_contexts, positional_only, many_contexts, unreadable])
def test_a_function_that_cannot_get_its_context_is_rejected(function: Any) -> None:
    with pytest.raises(LocalProtocolError):
        Dispatcher().method("m")(function)


def with_two_objects(a: dict[str, int] | Point, context: RpcContext) -> None: ...


def test_params_that_json_cannot_express_are_rejected_with_a_context() -> None:
    with pytest.raises(LocalProtocolError, match="cannot read params"):
        Dispatcher().method("m")(with_two_objects)


def test_a_context_is_only_for_functions_of_a_dispatcher() -> None:
    with pytest.raises(LocalProtocolError, match="RpcContext"):
        bind_params(first)


@tidy
async def test_an_error_of_a_function_with_a_context_reaches_the_caller() -> None:
    dispatcher = Dispatcher()

    @dispatcher.method("refuse")
    async def refuse(context: RpcContext) -> None:
        raise RpcError(7, context.method)

    assert refuse
    assert b'"code":7,"message":"refuse"' in (
        await dispatcher.handle(Request(1, "refuse").encode()) or b""
    )
