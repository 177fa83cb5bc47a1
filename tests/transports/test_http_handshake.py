"""The door of the handshake era: whose session it is, and what becomes of calls in it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.jsonrpc.test_channel import settle, tidy
from tests.transports.exchanges import Gate, House, Paper, altered, asked, call, note, reply, visit
from trunkline.jsonrpc import Incident, RpcError, decode
from trunkline.transports import http_answers
from trunkline.transports.http_answers import Load
from trunkline.transports.http_handshake import CANCELLED, HandshakeDoor
from trunkline.transports.http_rules import HttpRules


class Door:
    """A HandshakeDoor, and papers for those who come to it."""

    def __init__(self, house: House, load: Load, **rules: Any) -> None:
        self.house = house
        self.reports: list[Incident] = []
        self.now = 0.0
        self.door = HandshakeDoor(
            house, HttpRules(**rules), load, self.reports.append, lambda: self.now
        )

    def post(self, said: Any, session: str = "", principal: str = "p", **headers: str) -> Paper:
        paper = Paper(asked(said, mcp_session_id=session, **headers))
        self.door.post(visit(paper, principal), decode(json.dumps(said).encode()))
        return paper

    def begin(self, principal: str = "p") -> str:
        paper = self.post(call(0, "initialize"), principal=principal)
        assert paper.status == 200
        return paper.headers[b"mcp-session-id"].decode()

    def get(self, session: str = "", principal: str = "p", **headers: str) -> Paper:
        paper = Paper(asked(method="GET", mcp_session_id=session, **headers))
        self.door.get(visit(paper, principal))
        return paper

    def delete(self, session: str, principal: str = "p") -> Paper:
        paper = Paper(asked(method="DELETE", mcp_session_id=session))
        self.door.delete(visit(paper, principal))
        return paper


@asynccontextmanager
async def opened(
    house: House | None = None, load: Load | None = None, **rules: Any
) -> AsyncGenerator[Door]:
    door = Door(house or House(), load or Load(100, 100), **rules)
    try:
        yield door
    finally:
        await door.door.aclose()
        assert len(door.door) == 0
        assert door.door.streams == []
        assert len(door.house.closed) == len(door.house.talks)


# Sessions


@tidy
async def test_initialize_begins_a_session_and_names_it() -> None:
    async with opened() as door:
        paper = door.post(call("a", "initialize"))
        assert paper.json == {
            "jsonrpc": "2.0",
            "id": "a",
            "result": {"protocolVersion": "2025-11-25"},
        }
        assert len(paper.headers[b"mcp-session-id"]) == 32
        assert paper.headers[b"x-any"] == b"1"
        assert len(door.door) == 1
        assert door.house.talks[0].principal.id == "p"


@tidy
async def test_an_initialize_that_fails_leaves_nothing() -> None:
    async with opened() as door:
        door.house.broken = RpcError.invalid_params("no")
        paper = door.post(call(1, "initialize"))
        assert (paper.status, paper.code) == (200, -32602)
        assert b"mcp-session-id" not in paper.headers
        await settle()
        assert len(door.door) == 0
        assert door.house.closed == door.house.talks


@tidy
async def test_one_session_too_many_is_told_to_come_back() -> None:
    async with opened(max_sessions=1) as door:
        door.begin()
        paper = door.post(call(1, "initialize"))
        assert (paper.status, paper.code) == (503, -32603)
        assert paper.headers[b"retry-after"] == b"1"
        await settle()
        assert len(door.door) == 1
        assert door.house.closed == door.house.talks[1:]


@tidy
async def test_without_the_id_of_a_session_nothing_is_done() -> None:
    async with opened() as door:
        for paper in (door.post(call()), door.get(), door.delete("")):
            assert (paper.status, paper.code) == (400, -32600)
        for paper in (door.post(call(), "x"), door.get("x"), door.delete("x")):
            assert (paper.status, paper.code) == (404, -32600)


@pytest.mark.holds("T65")
@tidy
async def test_a_session_is_not_there_for_another_principal() -> None:
    async with opened() as door:
        session = door.begin("p")
        for paper in (
            door.post(call(1, "ping"), session, "q"),
            door.post(note("stolen"), session, "q"),
            door.get(session, "q"),
            door.delete(session, "q"),
        ):
            assert (paper.status, paper.code) == (404, -32600)
        assert door.house.talks[0].heard == []
        assert door.post(call(1, "ping"), session, "p").json["result"] == {}


@tidy
async def test_an_id_that_comes_twice_is_none() -> None:
    async with opened() as door:
        session = door.begin()
        request = asked(call(1, "ping"), mcp_session_id=session)
        twice = altered(request, repeated=frozenset({b"mcp-session-id"}))
        paper = Paper(twice)
        door.door.post(visit(paper), decode(twice.body))
        assert paper.status == 404


@pytest.mark.parametrize("rules", [{"session_idle": 9.0}, {"session_life": 9.0}])
@tidy
async def test_a_session_that_is_over_is_not_found_and_then_ended(rules: dict[str, Any]) -> None:
    async with opened(**rules) as door:
        session = door.begin()
        door.now = 9.0
        door.door.expire()
        assert len(door.door) == 1
        door.now = 9.1
        assert door.post(call(1, "ping"), session).status == 404
        assert door.house.closed == []
        door.door.expire()
        await settle()
        assert len(door.door) == 0
        assert door.house.closed == door.house.talks


@tidy
async def test_a_session_in_which_something_goes_on_is_not_idle() -> None:
    gate = Gate()
    async with opened(House("2025-03-26", wait=gate), session_idle=9.0) as door:
        listens, calls, batches, idle = (door.begin() for _ in range(4))
        stream = door.get(listens)
        papers = [door.post(call(), calls), door.post([call()], batches)]
        for door.now in (8.0, 16.0, 24.0):
            door.door.expire()
        found = [door.post(call(2, "ping"), each).status for each in (listens, calls, batches)]
        assert found == [200, 200, 200]
        assert door.post(call(2, "ping"), idle).status == 404
        assert len(door.door) == 3
        stream.go()
        gate.opened.set()
        await asyncio.gather(*(paper.answered.wait() for paper in papers))
        door.now = 99.0
        door.door.expire()
        assert len(door.door) == 0


@tidy
async def test_a_session_is_idle_from_the_end_of_what_went_on_whoever_looked_meanwhile() -> None:
    gate = Gate()
    async with opened(House("2025-03-26", wait=gate), session_idle=9.0) as door:
        sessions = listens, calls, batches = [door.begin() for _ in range(3)]
        stream = door.get(listens)
        papers = [door.post(call(), calls), door.post([call()], batches)]
        for door.now in (20.0, 40.0):
            assert [door.post(note("here"), each).status for each in sessions] == [202] * 3
        door.now = 60.0
        stream.go()
        gate.opened.set()
        await asyncio.gather(*(paper.answered.wait() for paper in papers))
        door.now = 69.0
        assert [door.post(note("here"), each).status for each in sessions] == [202] * 3


@tidy
async def test_a_session_that_is_too_old_ends_whatever_goes_on() -> None:
    gate = Gate()
    async with opened(House(wait=gate), session_life=9.0) as door:
        session = door.begin()
        stream, paper = door.get(session), door.post(call(), session)
        door.now = 10.0
        door.door.expire()
        await paper.answered.wait()
        assert paper.code == CANCELLED
        assert stream.ended
        assert len(door.door) == 0


# Calls


@tidy
async def test_an_answer_at_once_is_a_body_at_once() -> None:
    async with opened() as door:
        session = door.begin()
        paper = door.post(call("x", "ping"), session)
        assert paper.json == {"jsonrpc": "2.0", "id": "x", "result": {}}


@tidy
async def test_errors_of_a_call_are_answers_with_status_200() -> None:
    def refuse(request: Any, line: Any) -> Any:
        raise RpcError.method_not_found("x")

    async def fail(request: Any, line: Any) -> Any:
        raise RpcError(-5, "later")

    def break_down(request: Any, line: Any) -> Any:
        raise ValueError("secret")

    def babble(request: Any, line: Any) -> Any:
        return object()

    house = House(refuse=refuse, fail=fail, broken=break_down, babble=babble)
    async with opened(house) as door:
        session = door.begin()
        assert door.post(call(1, "refuse"), session).code == -32601
        later = door.post(call(2, "fail"), session)
        for method in ("broken", "babble"):
            paper = door.post(call(1, method), session)
            assert (paper.status, paper.code) == (200, -32603)
            assert b"secret" not in paper.body
        await later.answered.wait()
        assert (later.status, later.code) == (200, -5)
        assert [incident.method for incident in door.reports] == ["broken", "babble"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("begun", [False, True])
@tidy
async def test_a_call_that_is_cancelled_is_answered_and_counted_out(
    streaming: bool, begun: bool
) -> None:
    gate, load = Gate(), Load(1, 1)
    async with opened(House(wait=gate), load) as door:
        session = door.begin()
        paper = door.post(call(7), session)
        if begun:
            await gate.begun.wait()
        if begun and streaming:
            await gate.lines[0].notify("a", {})
        assert load.refuses("p") is not None
        for _ in range(2):  # who says so twice changes nothing
            assert door.post(note("notifications/cancelled", requestId=7), session).status == 202
        await paper.answered.wait()
        answer = paper.data[-1] if begun and streaming else paper.json
        assert (answer["id"], answer["error"]["code"]) == (7, CANCELLED)
        assert gate.cancelled == 1
        assert load.refuses("p") is None
        assert door.post(note("notifications/cancelled", requestId=7), session).status == 202


@tidy
async def test_who_cancels_while_it_does_not_read_still_gets_its_answer() -> None:
    gate = Gate()
    async with opened(House(wait=gate)) as door:
        session = door.begin()
        paper = door.post(call(7), session)
        await gate.begun.wait()
        await gate.lines[0].notify("a", {})
        paper.room.clear()
        for _ in range(3):
            door.post(note("notifications/cancelled", requestId=7), session)
            await settle()
        paper.room.set()
        await paper.answered.wait()
        assert paper.data[-1]["error"]["code"] == CANCELLED


@tidy
async def test_who_goes_has_not_cancelled() -> None:
    gate = Gate()
    async with opened(House(wait=gate)) as door:
        session = door.begin()
        paper = door.post(call(7), session)
        await gate.begun.wait()
        paper.go()
        await settle()
        assert gate.cancelled == 0
        gate.opened.set()
        await settle()
        assert door.door.streams == []


@tidy
async def test_two_requests_of_one_id_at_once_are_one_too_many() -> None:
    gate = Gate()
    async with opened(House(wait=gate)) as door:
        session = door.begin()
        first = door.post(call(1), session)
        second = door.post(call(1), session)
        assert (second.status, second.code, second.json["id"]) == (400, -32600, None)
        third = door.post(call("1"), session)
        gate.opened.set()
        await asyncio.gather(first.answered.wait(), third.answered.wait())
        assert (first.json["id"], third.json["id"]) == (1, "1")
        assert door.post(call(1), session).status == 0  # free again, and being answered


@pytest.mark.parametrize(("most", "status"), [((1, 9), 503), ((9, 1), 429)])
@tidy
async def test_one_call_too_many_is_told_to_come_back(most: tuple[int, int], status: int) -> None:
    gate = Gate()
    house = House("2025-03-26", wait=gate)
    async with opened(house, Load(*most)) as door:
        session = door.begin()
        first = door.post(call(1), session)
        for said in (call(2), [call(3)]):
            paper = door.post(said, session)
            assert (paper.status, paper.code) == (status, -32603)
            assert paper.headers[b"retry-after"] == b"1"
        gate.opened.set()
        await first.answered.wait()
        again = door.post(call(4), session)
        await again.answered.wait()
        assert again.status == 200


@tidy
async def test_a_notification_that_fails_is_accepted_all_the_same() -> None:
    async with opened() as door:
        session = door.begin()
        assert door.post(note("oops"), session).status == 202
        assert [incident.method for incident in door.reports] == ["oops"]


@tidy
async def test_answers_reach_whoever_asked() -> None:
    async def consult(request: Any, line: Any) -> Any:
        return await line.call("roots/list", {})

    async with opened(House("2025-06-18", consult=consult)) as door:
        session = door.begin()
        paper = door.post(call(1, "consult"), session)
        await settle()
        (question,) = paper.data
        answer = reply(question["id"], roots=[])
        other = door.begin()
        assert door.post(answer, other).status == 202  # but it is not this session's question
        await settle()
        assert not paper.ended
        accepted = door.post(answer, session)
        assert (accepted.status, accepted.body) == (202, b"")
        await paper.answered.wait()
        assert paper.data[1]["result"] == {"roots": []}


# Streams


@tidy
async def test_one_stream_is_enough() -> None:
    async with opened() as door:
        session = door.begin()
        first, second = door.get(session), door.get(session)
        assert (first.status, second.status) == (200, 409)
        first.go()
        await settle()
        assert door.get(session).status == 200


@tidy
async def test_a_stream_is_only_for_those_who_can_read_it() -> None:
    async with opened() as door:
        session = door.begin()
        assert door.get(session, accept="application/json").status == 406
        assert door.get(session, accept="").status == 406
        assert door.get(session, accept="*/*").status == 200


@tidy
async def test_who_comes_back_takes_up_the_stream_of_its_call() -> None:
    gate = Gate()
    async with opened(House("2025-06-18", wait=gate)) as door:
        session = door.begin()
        cut_off = door.post(call(1), session)
        await gate.begun.wait()
        await gate.lines[0].notify("a", {})
        await gate.lines[0].notify("b", {})
        # Its connection looks alive: nobody knows yet that it is not.
        back = door.get(session, last_event_id="2-1")
        assert cut_off.ended
        gate.opened.set()
        await back.answered.wait()
        assert [entry.get("method") for entry in back.data] == ["b", None]
        assert back.data[1]["result"] == {"done": True}
        again = door.get(session, last_event_id="2-0")
        await again.answered.wait()
        assert [event.id for event in again.events] == ["2-1", "2-2", "2-3"]


@tidy
async def test_a_stream_that_is_forgotten_is_not_waited_for() -> None:
    async def chat(request: Any, line: Any) -> Any:
        await line.notify("said", {"much": "x" * 700_000})
        return {}

    async with opened(House("2025-06-18", chat=chat)) as door:
        session = door.begin()
        for id in (1, 2):
            await door.post(call(id, "chat"), session).answered.wait()
        assert door.get(session, last_event_id="2-1").status == 400
        assert door.get(session, last_event_id="3-1").status == 200
        assert door.get(session, last_event_id="another's").status == 200


# The end


@pytest.mark.parametrize("streaming", [False, True])
@tidy
async def test_delete_ends_calls_questions_and_streams(streaming: bool) -> None:
    gate = Gate()
    async with opened(House("2025-06-18", wait=gate)) as door:
        session = door.begin()
        listening = door.get(session)
        paper = door.post(call(1), session)
        await gate.begun.wait()
        if streaming:
            await gate.lines[0].notify("a", {})
        question = asyncio.create_task(door.house.talks[0].trunk.call("roots/list", {}))
        await settle()
        gone = door.delete(session)
        assert (gone.status, gone.body) == (204, b"")
        await paper.answered.wait()
        answer = paper.data[-1] if streaming else paper.json
        assert answer["error"]["code"] == CANCELLED
        assert listening.ended
        (why,) = await asyncio.gather(question, return_exceptions=True)
        assert str(why) == "the session has ended"
        assert door.house.closed == door.house.talks
        assert door.post(call(1, "ping"), session).status == 404
        assert door.delete(session).status == 404


@tidy
async def test_the_end_waits_for_nobody_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answers, "LAST_WORD", 0.01)
    gate = Gate()
    async with opened(House("2025-06-18", wait=gate)) as door:
        session = door.begin()
        paper = door.post(call(1), session)
        await gate.begun.wait()
        await gate.lines[0].notify("a", {})
        paper.room.clear()
        await door.door.aclose()
        assert paper.data[-1]["error"]["code"] == CANCELLED
