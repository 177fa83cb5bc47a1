"""The dispatcher: methods by name, and params checked against annotations."""

import asyncio
import functools
import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from tests.json_values import DEEP
from trunkline.jsonrpc import (
    UNSET,
    Dispatcher,
    Incident,
    LocalProtocolError,
    Notification,
    Peer,
    Raw,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
)
from trunkline.jsonrpc.dispatcher import bind_params, params_type


def make(batch: Any = "reject") -> tuple[Dispatcher, list[Incident], list[Any]]:
    reports: list[Incident] = []
    seen: list[Any] = []
    dispatcher = Dispatcher(batch, report=reports.append)

    @dispatcher.method("subtract")
    def subtract(minuend: int, subtrahend: int) -> int:
        return minuend - subtrahend

    @dispatcher.method("later")
    async def later(value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    @dispatcher.method("refuse")
    def refuse() -> None:
        raise RpcError(-32001, "no", {"why": "because"})

    @dispatcher.method("refuse badly")
    def refuse_badly() -> None:
        raise RpcError(-32001, "no", object())

    @dispatcher.method("break")
    def fail(secret: str) -> None:
        raise ValueError(secret)

    @dispatcher.method("break later")
    async def fail_later(secret: str) -> None:
        await asyncio.sleep(0)
        fail(secret)

    @dispatcher.method("not json")
    def not_json() -> object:
        return object()

    @dispatcher.notification("note")
    def note(value: int) -> None:
        seen.append(value)
        if value < 0:
            raise ValueError(value)

    @dispatcher.notification("note later")
    async def note_later(value: int) -> None:
        await asyncio.sleep(0)
        note(value)

    assert [subtract, later, refuse, refuse_badly, fail, fail_later, not_json, note, note_later]
    return dispatcher, reports, seen


async def ask(dispatcher: Dispatcher, payload: bytes | str) -> Any:
    answer = await dispatcher.handle(payload)
    return None if answer is None else json.loads(answer)


@pytest.mark.holds("S4.1", "S4.6", "S4.12")
@pytest.mark.parametrize("params", ["[42,23]", '{"subtrahend":23,"minuend":42}'])
async def test_a_request_is_answered_under_its_id(params: str) -> None:
    dispatcher, _, _ = make()
    payload = f'{{"jsonrpc":"2.0","id":"x","method":"subtract","params":{params}}}'
    assert await ask(dispatcher, payload) == {"jsonrpc": "2.0", "id": "x", "result": 19}


async def test_a_method_may_be_async_in_any_way() -> None:
    dispatcher, _, _ = make()

    async def scale(factor: int, value: int) -> int:
        return factor * value

    dispatcher.method("double")(functools.partial(scale, 2))
    assert (await ask(dispatcher, Request(1, "later", [{"a": 1}]).encode()))["result"] == {"a": 1}
    assert (await ask(dispatcher, Request(1, "double", [21]).encode()))["result"] == 42


@pytest.mark.holds("S4.2", "C19", "S1.8", "S1.26")
async def test_an_unknown_method_is_named() -> None:
    dispatcher, _, _ = make()
    answer = await ask(dispatcher, Request(5, "foo/bar").encode())
    assert answer["error"] == {"code": -32601, "message": "Method not found: foo/bar"}
    assert answer["id"] == 5


@pytest.mark.holds("C4")
async def test_a_null_id_is_answered_under_null() -> None:
    dispatcher, _, _ = make()
    answer = await ask(dispatcher, Request(None, "subtract", [3, 1]).encode())
    assert answer == {"jsonrpc": "2.0", "id": None, "result": 2}


async def test_params_that_do_not_fit_never_reach_the_function() -> None:
    dispatcher, reports, _ = make()
    answer = await ask(dispatcher, Request(1, "subtract", ["x", 1]).encode())
    assert answer["error"]["code"] == -32602
    assert reports == []


async def test_an_error_that_a_handler_chose_reaches_the_caller() -> None:
    dispatcher, reports, _ = make()
    answer = await ask(dispatcher, Request(1, "refuse").encode())
    assert answer["error"] == {"code": -32001, "message": "no", "data": {"why": "because"}}
    assert reports == []


@pytest.mark.holds("S4.16")
@pytest.mark.parametrize("method", ["break", "break later"])
async def test_an_unexpected_exception_reaches_the_caller_as_an_incident_id(
    method: str,
) -> None:
    dispatcher, reports, _ = make()
    raw = await dispatcher.handle(Request(1, method, ["hunter2"]).encode())
    assert raw is not None
    assert b"hunter2" not in raw
    (incident,) = reports
    assert json.loads(raw)["error"] == {
        "code": -32603,
        "message": "Internal error",
        "data": {"incident": incident.id},
    }
    assert (incident.method, str(incident.error)) == (method, "hunter2")


@pytest.mark.parametrize("method", ["not json", "refuse badly"])
async def test_an_answer_that_is_not_json_is_an_incident(method: str) -> None:
    dispatcher, reports, _ = make()
    answer = await ask(dispatcher, Request(1, method).encode())
    assert answer["error"]["data"] == {"incident": reports[0].id}
    assert isinstance(reports[0].error, LocalProtocolError)


@pytest.mark.holds("S4.3", "S4.12", "C10")
async def test_a_notification_is_handled_and_never_answered() -> None:
    dispatcher, reports, seen = make()
    for method, value in (("note", 1), ("note later", 2), ("note", -1), ("note later", -2)):
        payload = f'{{"jsonrpc":"2.0","method":"{method}","params":[{value}]}}'
        assert await dispatcher.handle(payload) is None
    assert seen == [1, 2, -1, -2]
    assert [incident.method for incident in reports] == ["note", "note later"]


@pytest.mark.holds("C10")
async def test_a_method_also_runs_for_a_notification_of_its_name() -> None:
    dispatcher, reports, seen = make()

    @dispatcher.method("add")
    async def add(value: int) -> int:
        seen.append(value)
        return value

    @dispatcher.method("add at once")
    def add_at_once(value: int) -> int:
        seen.append(value)
        return value

    assert [add, add_at_once]
    assert await dispatcher.handle(Notification("add", [1]).encode()) is None
    assert await dispatcher.handle(Notification("add at once", [2]).encode()) is None
    assert (seen, reports) == ([1, 2], [])


@pytest.mark.holds("C10")
@pytest.mark.parametrize(
    ("method", "params", "error"),
    [
        ("break", ["x"], ValueError),
        ("break later", ["x"], ValueError),
        ("refuse", UNSET, RpcError),
        ("subtract", ["one"], RpcError),
        ("note", ["one"], RpcError),
    ],
)
async def test_the_error_of_a_notification_is_reported_and_never_answered(
    method: str, params: Any, error: type[Exception]
) -> None:
    dispatcher, reports, _ = make()
    assert await dispatcher.handle(Notification(method, params).encode()) is None
    assert [(each.method, type(each.error)) for each in reports] == [(method, error)]


async def test_a_function_for_notifications_only_comes_first_and_answers_no_request() -> None:
    dispatcher, reports, seen = make()

    def seen_secret(secret: str) -> None:
        seen.append(secret)

    dispatcher.notification("break")(seen_secret)
    assert await dispatcher.handle(Notification("break", ["x"]).encode()) is None
    assert (seen, reports) == (["x"], [])
    answer = await ask(dispatcher, Request(1, "note", [1]).encode())
    assert answer["error"]["code"] == -32601
    assert await dispatcher.handle(Notification("unknown").encode()) is None
    assert await dispatcher.handle('{"jsonrpc":"2.0","method":"note","params":"bad"}') is not None


def test_an_unknown_batch_policy_is_refused() -> None:
    unknown: Any = "alow"
    reason = "'reject' or 'allow' as batch policy, got 'alow'"
    with pytest.raises(LocalProtocolError, match=reason):
        Dispatcher(unknown)
    with pytest.raises(LocalProtocolError, match=reason):
        Peer(batch_policy=unknown)


async def test_a_response_is_never_answered() -> None:
    dispatcher, _, _ = make()
    assert await dispatcher.handle(Response(1, 2).encode()) is None
    assert await dispatcher.handle('{"jsonrpc":"2.0","id":1,"result":1,"error":2}') is None


def cancelled_at_once() -> None:
    raise asyncio.CancelledError


async def cancelled_later() -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    task.cancel()
    await task


@pytest.mark.parametrize("function", [cancelled_at_once, cancelled_later])
async def test_a_cancellation_inside_a_handler_is_an_incident(function: Any) -> None:
    dispatcher, reports, _ = make("allow")
    dispatcher.method("give up")(function)
    dispatcher.notification("give up")(function)
    batch = (
        '[{"jsonrpc":"2.0","id":1,"method":"later","params":["a"]},'
        '{"jsonrpc":"2.0","id":2,"method":"give up"},{"jsonrpc":"2.0","method":"give up"}]'
    )
    first, second = await ask(dispatcher, batch)
    assert first["result"] == "a"
    assert second["error"]["code"] == -32603
    assert second["error"]["data"] == {"incident": reports[0].id}
    assert await dispatcher.handle('{"jsonrpc":"2.0","method":"give up"}') is None
    assert [type(incident.error) for incident in reports] == [asyncio.CancelledError] * 3


@pytest.mark.parametrize("id", ['"id":1,', ""])
async def test_a_cancelled_caller_of_handle_stays_cancelled(id: str) -> None:
    dispatcher, reports, _ = make()
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    dispatcher.method("wait")(wait)
    dispatcher.notification("wait")(wait)
    task = asyncio.create_task(dispatcher.handle(f'{{"jsonrpc":"2.0",{id}"method":"wait"}}'))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reports == []


@pytest.mark.holds("S4.7", "C2")
async def test_garbage_is_answered_and_nothing_is_lost() -> None:
    dispatcher, _, _ = make()
    assert (await ask(dispatcher, b"\xff"))["error"]["code"] == -32700
    assert (await ask(dispatcher, b"{}"))["error"]["code"] == -32600
    assert (await ask(dispatcher, Request(1, "subtract", [2, 1]).encode()))["result"] == 1


@pytest.mark.holds("S4.4", "S4.5", "C1", "S2.26")
async def test_a_batch_is_answered_in_order_or_not_at_all() -> None:
    dispatcher, _, seen = make("allow")
    batch = (
        '[{"jsonrpc":"2.0","id":1,"method":"later","params":["a"]},'
        '{"jsonrpc":"2.0","method":"note","params":[7]}, 3,'
        '{"jsonrpc":"2.0","id":9,"result":1},'
        '{"jsonrpc":"2.0","id":2,"method":"subtract","params":[3,1]}]'
    )
    answers = await ask(dispatcher, batch)
    assert [(a["id"], a.get("result")) for a in answers] == [(1, "a"), (None, None), (2, 2)]
    assert seen == [7]
    assert await dispatcher.handle('[{"jsonrpc":"2.0","method":"note","params":[8]}]') is None
    assert seen == [7, 8]


@pytest.mark.holds("C1")
async def test_batches_are_refused_unless_they_are_allowed() -> None:
    dispatcher, _, seen = make()
    answer = await ask(dispatcher, '[{"jsonrpc":"2.0","method":"note","params":[7]}]')
    assert answer == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32600, "message": "Batch requests not supported"},
    }
    assert seen == []


def test_a_name_is_registered_once_and_none_is_reserved() -> None:
    dispatcher, _, _ = make()
    with pytest.raises(LocalProtocolError, match="again"):
        dispatcher.method("subtract")
    with pytest.raises(LocalProtocolError, match="reserved"):
        dispatcher.notification("rpc.off")
    assert dispatcher.methods[:2] == ("subtract", "later")


def test_violated_does_nothing() -> None:
    dispatcher, reports, _ = make()
    dispatcher.violated(RemoteProtocolError(RpcError.parse_error()))
    assert reports == []


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Colour(StrEnum):
    RED = "red"


def nothing() -> tuple[Any, ...]:
    return ()


def two(a: int, b: str) -> tuple[Any, ...]:
    return (a, b)


untyped: Callable[..., Any] = eval("lambda a, b: (a, b)")


def default(a: int, b: list[int] = [1], c: int | None = None) -> tuple[Any, ...]:  # noqa: B006
    return (a, b, c)


def positional_only(a: int, b: int = 2, /) -> tuple[Any, ...]:
    return (a, b)


def keyword_only(*, a: int, b: int = 2) -> tuple[Any, ...]:
    return (a, b)


def mixed(a: int = 1, *, b: int = 2) -> tuple[Any, ...]:
    return (a, b)


def variable(a: Any, *rest: Any, **named: Any) -> tuple[Any, ...]:
    return (a, rest, named)


def typed(p: Point, c: Colour, n: Annotated[int, msgspec.Meta(ge=1)], r: Raw) -> tuple[Any, ...]:
    return (p, c, n, bytes(r))


def closed(a: Literal["x"]) -> tuple[Any, ...]:
    return (a,)


def call(function: Callable[..., Any], params: bytes | None) -> Any:
    return bind_params(function)(UNSET if params is None else Raw(params))


@pytest.mark.parametrize(
    ("function", "params", "expected"),
    [
        (nothing, None, ()),
        (nothing, b"[]", ()),
        (nothing, b"{}", ()),
        (two, b'[1,"x"]', (1, "x")),
        (two, b'{"b":"x","a":1}', (1, "x")),
        (untyped, b'[1,{"a":2}]', (1, {"a": 2})),
        (default, b"[1]", (1, [1], None)),
        (default, b"[1,[2]]", (1, [2], None)),
        (default, b'{"a":1,"c":3}', (1, [1], 3)),
        (default, b'{"a":1,"c":null}', (1, [1], None)),
        (positional_only, b"[1]", (1, 2)),
        (positional_only, b"[1,3]", (1, 3)),
        (keyword_only, b'{"a":1}', (1, 2)),
        (keyword_only, b'{"b":3,"a":1}', (1, 3)),
        (mixed, None, (1, 2)),
        (mixed, b"[5]", (5, 2)),
        (mixed, b'{"b":6}', (1, 6)),
        (variable, b'[1,"2",null]', (1, ("2", None), dict[str, Any]())),
        (variable, b'{"a":1,"z":2}', (1, (), {"z": 2})),
        (
            typed,
            b'{"p":{"x":1},"c":"red","n":3,"r":[1.0]}',
            (Point(1), Colour.RED, 3, b"[1.0]"),
        ),
    ],
)
def test_params_that_fit_become_arguments(
    function: Callable[..., Any], params: bytes | None, expected: Any
) -> None:
    assert call(function, params) == expected


@pytest.mark.parametrize(
    ("function", "params", "reason"),
    [
        (nothing, b"[1]", "length 0"),
        (nothing, b'{"a":1}', "unknown field `a`"),
        (two, None, "missing required field `a`"),
        (two, b"[1]", "length 2"),
        (two, b'[1,"x",3]', "length 2"),
        (two, b'{"a":1}', "missing required field `b`"),
        (two, b'{"a":1,"b":"x","c":1}', "unknown field `c`"),
        (two, b'{"a":"x","b":"x"}', "expected `int`, got `str` - at `$.a`"),
        (two, b"[true,1]", "expected `int`, got `bool` - at `$[0]`"),
        (default, None, "missing required field `a`"),
        (default, b"[1,[2],3,4]", "at most length 3"),
        (default, b'{"z":1}', "unknown field"),
        (positional_only, b'{"a":1}', "'a', which can only be given by position"),
        (keyword_only, b"[1]", "'a', which can only be given by name"),
        (keyword_only, None, "missing required field `a`"),
        (variable, None, "missing a required argument: 'a'"),
        (closed, b'["secret"]', "invalid enum value - at `$[0]`"),
        (variable, b"[" + DEEP + b"]", "nested too deeply"),
    ],
)
def test_params_that_do_not_fit_are_rejected_with_their_place(
    function: Callable[..., Any], params: bytes | None, reason: str
) -> None:
    with pytest.raises(RpcError) as caught:
        call(function, params)
    assert caught.value.code == -32602
    assert caught.value.message.startswith("Invalid params: ")
    assert reason in caught.value.message
    assert "secret" not in caught.value.message


class Line(msgspec.Struct):
    x: int


def unreadable(a: Point | Line) -> None: ...


unknown: Callable[..., Any] = eval("lambda a: a")
unknown.__annotations__["a"] = "Nowhere"


@pytest.mark.parametrize("function", [unreadable, unknown])
def test_a_function_that_json_cannot_call_is_rejected_at_registration(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(LocalProtocolError, match="cannot read params for"):
        bind_params(function)


def broken(a: int, b: int = 0) -> None:
    raise TypeError("a fault of its own")


def test_an_exception_of_the_function_is_not_an_invalid_params_error() -> None:
    with pytest.raises(TypeError, match="of its own"):
        call(broken, b"[1]")


def test_params_type_describes_the_params_of_a_function() -> None:
    def loose(a: int, b: Point | None = None, *rest: int, c: str, **more: int) -> None: ...

    kind = params_type(loose)
    read = msgspec.json.Decoder(kind).decode
    assert msgspec.structs.asdict(read(b'{"a": 1, "c": "x"}')) == {"a": 1, "b": UNSET, "c": "x"}
    for bad in (b'{"a": 1}', b'{"a": 1, "c": "x", "rest": []}', b'{"a": null, "c": "x"}'):
        with pytest.raises(msgspec.ValidationError):
            read(bad)
    assert params_type(positional_only).__struct_fields__ == ()
