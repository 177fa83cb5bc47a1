"""Requests that have a head in common: what is known by it is known no longer than it holds."""

import asyncio
from typing import Any

import pytest

from tests.jsonrpc.test_channel import settle, tidy
from tests.transports.exchanges import Gate, House, Paper, asked, call, note
from tests.transports.test_http_handshake import Door, opened
from trunkline.jsonrpc import decode
from trunkline.mcp.principal import Principal
from trunkline.transports.http_answers import Load, Verdict, Visit
from trunkline.transports.http_rules import HttpRules
from trunkline.transports.http_server import HttpServer

ANNA, BERT = Principal("anna"), Principal("bert")


class Regular:
    """A client whose requests have one head."""

    def __init__(self, door: Door, session: str) -> None:
        self.door = door
        self.head = asked(mcp_session_id=session).head
        self.verdict = Verdict(())

    def post(self, said: Any, principal: Principal = ANNA) -> Paper:
        request = asked(said)
        paper = Paper(type(request)(self.head, request.body))
        self.door.door.post(Visit(paper, principal, self.verdict), decode(request.body))
        return paper

    def ping(self, principal: Principal = ANNA) -> int:
        return self.post(call(1, "ping"), principal).status


@tidy
async def test_a_session_is_found_again_as_long_as_it_is_there() -> None:
    async with opened() as door:
        client = Regular(door, session := door.begin("anna"))
        assert [client.ping() for _ in range(3)] == [200] * 3
        assert client.verdict.session is not None
        assert door.delete(session, "anna").status == 204
        assert [client.ping() for _ in range(2)] == [404] * 2
        assert client.verdict.session is None


@tidy
async def test_the_head_of_one_is_of_no_use_to_another() -> None:
    async with opened() as door:
        client = Regular(door, door.begin("anna"))
        found = [client.ping(who) for who in (ANNA, BERT, BERT, ANNA, BERT)]
        assert found == [200, 404, 404, 200, 404]


@tidy
async def test_what_somebody_may_be_taken_for_is_told_whenever_it_changes() -> None:
    async with opened() as door:
        one, other = (Regular(door, door.begin("anna")) for _ in range(2))
        other.head = one.head
        (talk, _) = door.house.talks
        admin = Principal("anna", roles=("admin",))
        for client, principal in ((one, ANNA), (other, admin), (one, ANNA), (one, admin)):
            assert client.ping(principal) == 200
            assert talk.principal is principal


@pytest.mark.parametrize("rules", [{"session_idle": 9.0}, {"session_life": 9.0}])
@tidy
async def test_a_session_that_is_over_is_not_found_again(rules: dict[str, Any]) -> None:
    async with opened(**rules) as door:
        client = Regular(door, door.begin("anna"))
        assert client.ping() == 200
        door.now = 9.0
        assert client.ping() == 200
        door.now = 18.1
        assert client.ping() == 404


@tidy
async def test_every_request_counts_as_activity() -> None:
    gate = Gate()
    async with opened(House(wait=gate), Load(1, 1), session_idle=9.0) as door:
        client = Regular(door, door.begin("anna"))
        for door.now in (8.0, 16.0, 24.0):
            assert client.ping() == 200
        waiting = client.post(call(2))
        door.now = 99.0  # it is busy
        assert client.ping() == 503
        gate.opened.set()
        await waiting.answered.wait()
        for door.now in (108.0, 117.0):
            assert client.post(note("here")).status == 202
        for door.now in (126.0, 135.0):
            assert client.ping() == 200


@tidy
async def test_other_limits_hold_for_those_who_were_here() -> None:
    async with opened() as door:
        client = Regular(door, door.begin("anna"))
        assert client.ping() == 200
        door.now = 10.0
        door.door.adopt(HttpRules(session_idle=9.0))
        assert client.ping() == 404


@tidy
async def test_a_call_of_a_session_that_was_ended_is_waited_for() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def stubborn(request: Any, line: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
        return {}

    async with opened(House(wait=stubborn)) as door:
        client = Regular(door, session := door.begin("anna"))
        paper = client.post(call())
        await begun.wait()
        assert door.delete(session, "anna").status == 204
        await settle()
        assert len(door.door.streams) == 1
        door.door.expire()
        assert len(door.door.streams) == 1
        release.set()
        await paper.answered.wait()
        assert door.door.streams == []


@tidy
async def test_a_verdict_is_that_of_one_door_and_of_its_rules() -> None:
    rules = HttpRules()
    one, other = HttpServer(House(), rules), HttpServer(House(), rules)
    request = asked(call(1, "ping"), mcp_session_id="x")
    verdicts: list[Any] = []
    for door in (one, one, other, other):
        door.answer(Paper(request))
        verdicts.append(request.head.notes)
    one.adopt(rules)
    one.answer(Paper(request))
    verdicts.append(request.head.notes)
    assert verdicts[0] is verdicts[1]
    assert verdicts[2] is verdicts[3]
    assert len({id(verdict) for verdict in verdicts}) == 3
    await asyncio.gather(one.aclose(), other.aclose())
