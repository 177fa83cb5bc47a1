"""Answers in words and in JSON-RPC; how much is in flight; and the end of tasks."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jsonrpc.test_channel import tidy
from tests.transports.exchanges import Paper, visit
from trunkline.jsonrpc import Due, Incident, Raw, Request, Response, RpcError
from trunkline.transports import http_answers
from trunkline.transports.http_answers import LARGE, LATER, Load, end_all, later, pieces_of


async def test_an_answer_has_the_headers_that_any_answer_gets() -> None:
    papers = [Paper() for _ in range(4)]
    visit(papers[0]).say(404, "nothing", (b"allow", b"POST"))
    visit(papers[1]).fail(429, RpcError(-1, "no"), 7, LATER)
    visit(papers[2]).respond(200, b"{}")
    visit(papers[3]).accept()
    assert all(paper.headers[b"x-any"] == b"1" for paper in papers)
    assert [paper.status for paper in papers] == [404, 429, 200, 202]
    assert papers[0].body == b"nothing\n"
    assert papers[0].headers[b"allow"] == b"POST"
    assert papers[1].json == {"jsonrpc": "2.0", "id": 7, "error": {"code": -1, "message": "no"}}
    assert papers[1].headers[b"retry-after"] == b"1"
    assert papers[2].json == {}
    assert papers[3].body == b""


def test_a_large_result_is_answered_with_as_it_is() -> None:
    small, large = Raw(b'"%b"' % (b"x" * 100)), Raw(b'"%b"' % (b"x" * LARGE))
    reports: list[Incident] = []
    assert pieces_of(Request(1, "m"), small, reports.append)[1] == ()
    payload, rest = pieces_of(Request(1, "m"), large, reports.append)
    view = rest[0]
    assert isinstance(view, memoryview)
    assert view.obj is large
    assert b"".join((payload, *rest)) == Response(1, large).encode()


def test_one_principal_cannot_use_up_what_is_there_for_all() -> None:
    load = Load(max_all=3, max_each=2)
    for call in range(2):
        assert load.enter("p", call) is None
    assert load.refuses("p") == 429
    assert load.enter("p", 2) == 429
    assert load.enter("q", 3) is None
    assert load.refuses("p") == 503
    assert load.refuses("r") == 503
    load.leave(1)
    assert load.refuses("p") is None
    assert load.refuses("r") is None


def test_nobody_is_remembered_who_has_nothing_in_flight() -> None:
    load = Load(max_all=1, max_each=1)
    for number in range(100):
        load.enter(f"p{number}", number)
        load.leave(number)
        assert load.refuses(f"p{number}") is None


class Counted:
    """A Load that is told all that a Load is, and counts everybody always."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        self.limits: tuple[int, int] = (4, 2)

    def refuses(self, owner: str) -> int | None:
        if len(self.owners) >= self.limits[0]:
            return 503
        return 429 if list(self.owners.values()).count(owner) >= self.limits[1] else None


LIMITS = st.tuples(st.integers(0, 12), st.integers(0, 6))


@given(st.lists(st.sampled_from("pqr") | st.integers(0, 30) | LIMITS, max_size=80))
def test_it_makes_no_difference_that_few_are_not_counted(
    steps: list[str | int | tuple[int, int]],
) -> None:
    load, counted = Load(4, 2), Counted()
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            load.adopt(*step)
            counted.limits = step
        elif isinstance(step, str):
            expected = counted.refuses(step)
            assert load.refuses(step) == expected
            assert load.enter(step, number) == expected
            if expected is None:
                counted.owners[number] = step
        elif counted.owners:
            call = [*counted.owners][step % len(counted.owners)]
            load.leave(call)
            del counted.owners[call]


@tidy
async def test_tasks_may_have_their_last_word_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answers, "LAST_WORD", 0.01)
    said: list[str] = []

    async def speak() -> None:
        await asyncio.sleep(0)
        said.append("last")

    stuck = asyncio.create_task(asyncio.Event().wait())
    call, never = Due.of(speak()), Due()
    await end_all([call, never], {asyncio.create_task(speak()), stuck})
    assert said == ["last", "last"]
    assert stuck.cancelled()
    assert isinstance(never.error, asyncio.CancelledError)
    await end_all([], set())


def test_other_limits_hold_from_now_on_and_what_is_in_flight_stays() -> None:
    load = Load(2, 1)
    assert load.enter("a", 1) is None
    assert load.enter("a", 2) == 429
    load.adopt(2, 2)
    assert load.enter("a", 2) is None
    assert load.enter("b", 3) == 503
    load.adopt(1, 1)
    load.leave(1)
    assert load.enter("b", 3) == 503
    load.leave(2)
    assert load.enter("b", 3) is None


@pytest.mark.parametrize(
    ("data", "header"),
    [
        ({"type": "rate_limited", "retryAfter": 30}, ((b"retry-after", b"30"),)),
        ({"retryAfter": 0.25}, ((b"retry-after", b"1"),)),
        ({"retryAfter": "soon"}, ()),
        ({}, ()),
        (["retryAfter"], ()),
    ],
)
def test_an_error_that_says_when_to_try_again_says_so_in_a_header(
    data: Any, header: tuple[tuple[bytes, bytes], ...]
) -> None:
    assert later(RpcError(-1, "no", data)) == header
