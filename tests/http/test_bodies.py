"""Bodies that are still arriving: their budget, and connections that ask before they read."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.test_connection import Client, connected, echo
from tests.tasks import settle
from trunkline.http.bodies import (
    BodyBudget,
    BodyDecision,
    BodyReservation,
    overloaded_response,
    text_response,
)
from trunkline.http.exchange import HttpRequest
from trunkline.http.listener import HttpListener
from trunkline.http.message import HttpLimits
from trunkline.http.states import InputFlow

HOST = "127.0.0.1"


def test_the_budget_limits_the_total_and_each_owner() -> None:
    budget = BodyBudget(100, 10)
    first = budget.reserve("a", 20)
    assert first is not None
    assert budget.reserve("a", 6) is None
    assert first.grow_to(25)
    assert not first.grow_to(26)
    others = [budget.reserve(owner, 25) for owner in "bcd"]
    assert None not in others
    assert (budget.reserved, budget.reserve("e", 1)) == (100, None)
    first.release()
    first.release()
    assert budget.reserved == 75
    assert budget.reserve("e", 1) is not None


def test_an_owner_may_always_have_one_body_of_the_maximum_length() -> None:
    budget = BodyBudget(100, 50)
    assert budget.reserve("a", 50) is not None
    budget.reconfigure(100, 10)
    assert budget.reserve("a", 1) is None
    assert budget.reserve("b", 25) is not None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60))))
def test_the_budget_is_never_exceeded_and_forgets_nothing(sizes: list[tuple[str, int]]) -> None:
    budget = BodyBudget(100, 30)
    reservations = {owner: BodyReservation(budget, owner) for owner in "abc"}
    for owner, size in sizes:
        before = reservations[owner].size
        changed = reservations[owner].resize(size)
        assert reservations[owner].size == (size if changed else before)
        assert changed or size > 30 or budget.reserved - before + size > 100
        assert budget.reserved == sum(each.size for each in reservations.values()) <= 100
    for reservation in reservations.values():
        reservation.release()
    assert budget.reserved == 0


class Gate:
    """A BodyCheck that decides when the test says."""

    def __init__(self, budget: BodyBudget) -> None:
        self.budget = budget
        self.asked: list[tuple[HttpRequest, int | None]] = []
        self.decides: list[Callable[[BodyDecision], None]] = []
        self.decision: BodyDecision | None = None
        """Decides at once if it is set."""

    def __call__(
        self, request: HttpRequest, length: int | None, decide: Callable[[BodyDecision], None]
    ) -> BodyDecision | None:
        self.asked.append((request, length))
        self.decides.append(decide)
        return self.decision

    def reserve(self, size: int = 0) -> BodyReservation:
        reservation = self.budget.reserve("a", size)
        assert reservation is not None
        return reservation

    async def wait(self) -> None:
        while not self.asked:
            await asyncio.sleep(0)


@asynccontextmanager
async def gated(
    gate: Gate, limits: HttpLimits | None = None
) -> AsyncGenerator[tuple[HttpListener, Client]]:
    listener = HttpListener(echo, limits or HttpLimits(), check_body=gate)
    await listener.listen(HOST, 0)
    try:
        async with connected(listener) as client:
            yield listener, client
    finally:
        await listener.aclose(0)
        assert gate.budget.reserved == 0


def new_gate(total: int = 1000) -> Gate:
    return Gate(BodyBudget(total, 10))


async def test_a_body_that_arrives_with_its_head_is_not_asked_about() -> None:
    async with gated(gate := new_gate()) as (_, client):
        for _ in range(3):
            client.send(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
            assert (await client.answer()).body == b"/ahi"
        assert gate.asked == []


@pytest.mark.parametrize("expects_continue", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_body_is_read_once_it_is_allowed(at_once: bool, expects_continue: bool) -> None:
    async with gated(gate := new_gate()) as (_, client):
        if at_once:
            gate.decision = gate.reserve(20)
        lines = ["Expect: 100-continue"] if expects_continue else []
        client.get("/a", "Content-Length: 20", *lines, method="POST")
        await gate.wait()
        if not expects_continue:
            client.send(b"x" * 10)
            await settle()
        assert [(request.path, length) for request, length in gate.asked] == [("/a", 20)]
        if not at_once:
            gate.decides[0](gate.reserve(20))
        if expects_continue:
            assert (await client.head())[0] == 100
            client.send(b"x" * 10)
        assert gate.budget.reserved == 20
        client.send(b"x" * 10)
        assert (await client.answer()).body == b"/a" + b"x" * 20
        assert gate.budget.reserved == 0
        gate.decision = None
        client.send(b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
        assert (await client.answer()).body == b"/bhi"


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_refused_body_is_answered_unread(at_once: bool) -> None:
    response = text_response(401, "no token", ((b"www-authenticate", b"Bearer"),))
    async with gated(gate := new_gate()) as (_, client):
        if at_once:
            gate.decision = response
        client.get("/a", "Content-Length: 1000000", "Expect: 100-continue", method="POST")
        await gate.wait()
        if not at_once:
            gate.decides[0](response)
        status, headers, body = await client.answer()
        assert (status, body) == (401, b"no token\n")
        assert (headers[b"www-authenticate"], headers[b"connection"]) == (b"Bearer", b"close")
        assert await client.rest() == b""


async def test_while_it_is_undecided_little_of_a_body_is_kept() -> None:
    async with gated(gate := new_gate()) as (listener, client):
        client.get("/a", "Content-Length: 4000000", method="POST")
        await gate.wait()
        client.send(b"x" * 4_000_000)
        (connection,) = listener._connections  # pyright: ignore[reportPrivateUsage]
        while connection.state.input is not InputFlow.PAUSED:
            await asyncio.sleep(0)
        assert len(connection._pending) < 512 * 1024  # pyright: ignore[reportPrivateUsage]
        gate.decides[0](text_response(403, "no"))
        assert (await client.answer()).status == 403


async def test_a_chunked_body_reserves_what_has_arrived() -> None:
    async with gated(gate := new_gate(100)) as (_, client):
        gate.decision = gate.reserve()
        client.get("/a", "Transfer-Encoding: chunked", method="POST")
        await gate.wait()
        assert gate.asked[0][1] is None
        client.send(b"14\r\n" + b"x" * 20 + b"\r\n")
        while gate.budget.reserved != 20:
            await asyncio.sleep(0)
        client.send(b"14\r\n" + b"x" * 20 + b"\r\n")
        status, headers, _ = await client.answer()
        assert (status, headers[b"retry-after"]) == (503, b"1")
        assert (status, gate.budget.reserved) == (overloaded_response().status, 0)


@pytest.mark.parametrize("decided", [False, True])
async def test_a_client_that_disconnects_leaves_no_reservation(decided: bool) -> None:
    async with gated(gate := new_gate()) as (listener, client):
        client.get("/a", "Content-Length: 20", method="POST")
        await gate.wait()
        if decided:
            gate.decides[0](gate.reserve(20))
        client.reset()
        while listener.connections:
            await asyncio.sleep(0)
        if not decided:
            gate.decides[0](gate.reserve(20))
        assert gate.budget.reserved == 0


async def test_a_client_that_sends_eof_before_the_decision_is_closed() -> None:
    async with gated(gate := new_gate()) as (_, client):
        client.get("/a", "Content-Length: 20", method="POST")
        await gate.wait()
        client.writer.write_eof()
        await settle()
        gate.decides[0](gate.reserve(20))
        assert await client.rest() == b""


async def test_a_slow_body_gives_its_reservation_back() -> None:
    limits = HttpLimits(body_timeout=0.02, linger_timeout=0.1)
    async with gated(gate := new_gate(), limits) as (_, client):
        gate.decision = gate.reserve(20)
        client.get("/a", "Content-Length: 20", method="POST")
        assert (await client.answer()).status == 408
        assert gate.budget.reserved == 0


async def test_the_body_after_pipelined_requests_is_asked_about_as_well() -> None:
    async with gated(gate := new_gate()) as (_, client):
        gate.decision = gate.reserve(20)
        client.send(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        client.get("/b", "Content-Length: 20", method="POST")
        assert [(await client.answer()).body for _ in range(2)] == [b"/a"] * 2
        await gate.wait()
        client.send(b"x" * 20)
        assert (await client.answer()).body == b"/b" + b"x" * 20
        assert len(gate.asked) == 1


async def test_shutdown_waits_for_a_body_that_is_being_decided() -> None:
    async with gated(gate := new_gate()) as (listener, client):
        client.get("/a", "Content-Length: 2", method="POST")
        await gate.wait()
        closing = asyncio.create_task(listener.aclose(5))
        await settle()
        gate.decides[0](gate.reserve(2))
        client.send(b"hi")
        status, headers, body = await client.answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"/ahi")
        await closing
