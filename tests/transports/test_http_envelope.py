"""The door of the envelope era: requests that stand alone, judged in order, and answered last."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, tidy
from tests.transports.exchanges import META, Gate, House, Paper, altered, asked, call, visit
from trunkline.jsonrpc import Incident, Request, RpcError, decode
from trunkline.mcp.meta import Params
from trunkline.transports import http_answers
from trunkline.transports.http_answers import Load
from trunkline.transports.http_envelope import EnvelopeDoor

P = "io.modelcontextprotocol/"


class Door:
    """An EnvelopeDoor, and papers for those who come to it."""

    def __init__(self, load: Load, house: House) -> None:
        self.house = house
        self.reports: list[Incident] = []
        self.door = EnvelopeDoor(house, load, self.reports.append)

    def post(
        self,
        id: Any = 1,
        method: str = "wait",
        repeated: tuple[bytes, ...] = (),
        meta: Any = META,
        **headers: str,
    ) -> Paper:
        every = {"mcp_protocol_version": "2026-07-28", "mcp_method": method}
        request = asked(call(id, method, _meta=meta), **(every | headers))
        paper = Paper(altered(request, repeated=frozenset(repeated)))
        message = decode(request.body)
        assert isinstance(message, Request)
        self.door.post(visit(paper), message, Params(message.params))
        return paper


@asynccontextmanager
async def opened(load: Load | None = None, **methods: Any) -> AsyncGenerator[Door]:
    door = Door(load or Load(100, 100), House(**methods))
    try:
        yield door
    finally:
        await door.door.aclose()
        assert door.door.streams == []


@tidy
async def test_an_answer_at_once_is_a_body_at_once() -> None:
    async with opened() as door:
        paper = door.post("x", "ping", mcp_session_id="any", last_event_id="1-1")
        assert paper.json == {"jsonrpc": "2.0", "id": "x", "result": {}}
        assert paper.headers == {b"content-type": b"application/json", b"x-any": b"1"}


@tidy
async def test_the_first_thing_that_is_wrong_decides() -> None:
    half = {f"{P}protocolVersion": "2026-07-28"}
    async with opened() as door:
        for code, paper in (
            (-32020, door.post(repeated=(b"mcp-method",), meta={})),
            (-32602, door.post(meta={}, mcp_method="")),
            (-32602, door.post(meta=half, mcp_method="other")),
            (-32020, door.post(mcp_method="")),
            (-32020, door.post(mcp_method="WAIT")),
            (-32020, door.post(mcp_protocol_version="")),
            (-32020, door.post(mcp_protocol_version="v999")),
        ):
            assert (paper.status, paper.code, paper.json["id"]) == (400, code, 1)
        assert door.post(method="ping", repeated=(b"x-forwarded-for",)).status == 200


@pytest.mark.parametrize("later", [False, True])
@tidy
async def test_the_status_says_what_kind_of_error_it_is(later: bool) -> None:
    codes = {
        -32700: 400,
        -32600: 400,
        -32601: 404,
        -32602: 400,
        -32020: 400,
        -32021: 400,
        -32022: 400,
        -32603: 200,
        -32000: 200,
        5030: 200,
    }

    def refuse(request: Request, line: Any) -> Any:
        error = RpcError(int(request.id or 0), "no")
        if not later:
            raise error

        async def fail() -> None:
            raise error

        return fail()

    async with opened(refuse=refuse) as door:
        for code, status in codes.items():
            paper = door.post(code, "refuse")
            await paper.answered.wait()
            assert (paper.status, paper.code, paper.json["id"]) == (status, code, code)


@tidy
async def test_a_breakdown_is_reported_and_not_shown() -> None:
    async def broken(request: Request, line: Any) -> Any:
        raise ValueError("secret")

    def babble(request: Request, line: Any) -> Any:
        return object()

    async with opened(broken=broken, babble=babble) as door:
        for method in ("broken", "babble"):
            paper = door.post(method=method)
            await paper.answered.wait()
            assert (paper.status, paper.code) == (200, -32603)
            assert b"secret" not in paper.body
        assert [incident.method for incident in door.reports] == ["broken", "babble"]


@tidy
async def test_what_is_said_first_makes_the_answer_a_stream() -> None:
    async def chat(request: Request, line: Any) -> Any:
        await line.notify("a", {})
        await line.notify("b", {})
        raise RpcError.method_not_found("late")

    async with opened(chat=chat) as door:
        paper = door.post(method="chat")
        await paper.answered.wait()
        assert paper.status == 200  # too late for another
        assert [entry.get("method") for entry in paper.data] == ["a", "b", None]
        assert paper.data[2]["error"]["code"] == -32601
        assert {event.id for event in paper.events} == {None}
        assert paper.headers[b"x-accel-buffering"] == b"no"
        assert paper.headers[b"x-any"] == b"1"


@tidy
async def test_what_comes_after_the_answer_is_dropped() -> None:
    gate = Gate()
    async with opened(wait=gate) as door:
        for streaming in (False, True):
            gate.opened.clear()
            paper = door.post()
            await settle()
            line = gate.lines[-1]
            if streaming:
                await line.notify("a", {})
            gate.opened.set()
            await paper.answered.wait()
            body = paper.body
            await line.notify("late", {})
            await line.keep_alive()
            assert paper.body == body


@tidy
async def test_nobody_is_asked_on_the_way() -> None:
    async def consult(request: Request, line: Any) -> Any:
        return await line.call("roots/list", {})

    async with opened(consult=consult) as door:
        paper = door.post(method="consult")
        await paper.answered.wait()
        assert (paper.status, paper.code) == (404, -32601)


@pytest.mark.parametrize("streaming", [False, True])
@tidy
async def test_who_goes_has_cancelled(streaming: bool) -> None:
    gate, load = Gate(), Load(1, 1)
    async with opened(load, wait=gate) as door:
        paper = door.post()
        await gate.begun.wait()
        if streaming:
            await gate.lines[0].notify("a", {})
        assert load.refuses("p") is not None
        paper.go()
        await settle()
        assert gate.cancelled == 1
        assert load.refuses("p") is None
        assert door.door.streams == []
        assert not paper.ended


@tidy
async def test_who_had_gone_before_is_noticed_too() -> None:
    gate, load = Gate(), Load(1, 1)
    async with opened(load, wait=gate) as door:
        request = asked(
            call(1, "wait", _meta=META), mcp_protocol_version="2026-07-28", mcp_method="wait"
        )
        paper = Paper(request)
        paper.go()
        message = decode(request.body)
        assert isinstance(message, Request)
        door.door.post(visit(paper), message, Params(message.params))
        await settle()
        assert gate.cancelled == 1
        assert load.refuses("p") is None


@pytest.mark.parametrize(("most", "status"), [((1, 9), 503), ((9, 1), 429)])
@tidy
async def test_one_call_too_many_is_told_to_come_back(most: tuple[int, int], status: int) -> None:
    gate = Gate()
    async with opened(Load(*most), wait=gate) as door:
        first, second = door.post(), door.post()
        assert (second.status, second.code) == (status, -32603)
        assert second.headers[b"retry-after"] == b"1"
        gate.opened.set()
        await first.answered.wait()
        third = door.post()
        await third.answered.wait()
        assert third.status == 200


@tidy
async def test_a_call_that_takes_long_becomes_a_stream() -> None:
    gate = Gate()
    async with opened(wait=gate) as door:
        paper = door.post()
        await gate.begun.wait()
        (reply,) = door.door.streams
        reply.quiet = True
        await reply.keep_alive()
        assert paper.comments == 1
        assert not reply.quiet
        gate.opened.set()
        await paper.answered.wait()
        assert paper.data == [{"jsonrpc": "2.0", "id": 1, "result": {"done": True}}]


@pytest.mark.parametrize("begun", [False, True])
@tidy
async def test_the_end_answers_what_is_under_way(begun: bool) -> None:
    gate = Gate()
    async with opened(wait=gate) as door:
        papers = [door.post(), door.post()]
        if begun:
            await gate.begun.wait()
            await gate.lines[1].notify("a", {})
        await door.door.aclose()
        assert all(paper.ended for paper in papers)
        assert papers[0].code == -32603
        assert gate.cancelled == 2


@tidy
async def test_the_end_waits_for_nobody_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answers, "LAST_WORD", 0.01)
    gate = Gate()
    async with opened(wait=gate) as door:
        paper = door.post()
        await gate.begun.wait()
        await gate.lines[0].notify("a", {})
        paper.room.clear()
        closing = asyncio.create_task(door.door.aclose())
        assert await is_stuck(closing)
        await closing
        assert json.loads(paper.events[-1].data)["error"]["code"] == -32603
