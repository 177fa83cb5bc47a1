"""Payload in, payload out."""

import asyncio
import functools
import json
from typing import Any

import pytest

from trunkline.jsonrpc import (
    Dispatcher,
    Incident,
    LocalProtocolError,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
)


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


@pytest.mark.holds("S4.2", "C19")
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
async def test_an_error_that_a_handler_let_slip_reaches_the_caller_as_an_id_only(
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
async def test_a_notification_is_heard_and_never_answered() -> None:
    dispatcher, reports, seen = make()
    for method, value in (("note", 1), ("note later", 2), ("note", -1), ("note later", -2)):
        payload = f'{{"jsonrpc":"2.0","method":"{method}","params":[{value}]}}'
        assert await dispatcher.handle(payload) is None
    assert seen == [1, 2, -1, -2]
    assert [incident.method for incident in reports] == ["note", "note later"]


@pytest.mark.holds("C10")
async def test_requests_and_notifications_have_names_of_their_own() -> None:
    dispatcher, reports, seen = make()
    answer = await ask(dispatcher, Request(1, "note", [1]).encode())
    assert answer["error"]["code"] == -32601
    assert await dispatcher.handle('{"jsonrpc":"2.0","method":"break","params":["x"]}') is None
    assert await dispatcher.handle('{"jsonrpc":"2.0","method":"note","params":"bad"}') is not None
    assert await dispatcher.handle('{"jsonrpc":"2.0","method":"note","params":["bad"]}') is None
    assert (seen, reports) == ([], [])


async def test_an_answer_is_never_answered() -> None:
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
async def test_a_cancellation_of_the_handlers_own_is_an_incident(function: Any) -> None:
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
async def test_whoever_is_cancelled_stays_cancelled(id: str) -> None:
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


def test_violations_need_nothing_more() -> None:
    dispatcher, reports, _ = make()
    dispatcher.violated(RemoteProtocolError(RpcError.parse_error()))
    assert reports == []
