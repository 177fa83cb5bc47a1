"""Text and JSON-RPC responses, the limit of requests in flight, and the end of tasks."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.endpoints.exchanges import FakeExchange, make_context
from tests.tasks import tidy
from trunkline.endpoints.request_context import (
    MIN_UNCOPIED_BYTES,
    RETRY_AFTER_1_S,
    InFlightLimiter,
    encode_response_parts,
    retry_after_header,
    wait_or_cancel,
)
from trunkline.jsonrpc import Incident, PendingResult, Raw, Request, Response, RpcError


async def test_every_response_has_the_common_headers() -> None:
    exchanges = [FakeExchange() for _ in range(4)]
    make_context(exchanges[0]).respond_text(404, "nothing", (b"allow", b"POST"))
    make_context(exchanges[1]).respond_error(429, RpcError(-1, "no"), 7, RETRY_AFTER_1_S)
    make_context(exchanges[2]).respond_json(200, b"{}")
    make_context(exchanges[3]).respond_accepted()
    assert all(exchange.headers[b"x-any"] == b"1" for exchange in exchanges)
    assert [exchange.status for exchange in exchanges] == [404, 429, 200, 202]
    assert exchanges[0].body == b"nothing\n"
    assert exchanges[0].headers[b"allow"] == b"POST"
    assert exchanges[1].json == {"jsonrpc": "2.0", "id": 7, "error": {"code": -1, "message": "no"}}
    assert exchanges[1].headers[b"retry-after"] == b"1"
    assert exchanges[2].json == {}
    assert exchanges[3].body == b""


def test_a_large_result_is_sent_without_a_copy() -> None:
    small, large = Raw(b'"%b"' % (b"x" * 100)), Raw(b'"%b"' % (b"x" * MIN_UNCOPIED_BYTES))
    reports: list[Incident] = []
    assert encode_response_parts(Request(1, "m"), small, reports.append)[1] == ()
    payload, rest = encode_response_parts(Request(1, "m"), large, reports.append)
    view = rest[0]
    assert isinstance(view, memoryview)
    assert view.obj is large
    assert b"".join((payload, *rest)) == Response(1, large).encode()


def test_one_principal_cannot_use_up_the_total_limit() -> None:
    limiter = InFlightLimiter(max_total=3, max_per_owner=2)
    for call in range(2):
        assert limiter.acquire("p", call) is None
    assert limiter.rejection_status("p") == 429
    assert limiter.acquire("p", 2) == 429
    assert limiter.acquire("q", 3) is None
    assert limiter.rejection_status("p") == 503
    assert limiter.rejection_status("r") == 503
    limiter.release(1)
    assert limiter.rejection_status("p") is None
    assert limiter.rejection_status("r") is None


def test_principals_with_nothing_in_flight_are_forgotten() -> None:
    limiter = InFlightLimiter(max_total=1, max_per_owner=1)
    for number in range(100):
        limiter.acquire(f"p{number}", number)
        limiter.release(number)
        assert limiter.rejection_status(f"p{number}") is None


class Counted:
    """A simple model of InFlightLimiter, which always counts per principal."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        self.limits: tuple[int, int] = (4, 2)

    def rejection_status(self, owner: str) -> int | None:
        if len(self.owners) >= self.limits[0]:
            return 503
        return 429 if list(self.owners.values()).count(owner) >= self.limits[1] else None


LIMITS = st.tuples(st.integers(0, 12), st.integers(0, 6))


@given(st.lists(st.sampled_from("pqr") | st.integers(0, 30) | LIMITS, max_size=80))
def test_the_uncounted_fast_path_changes_no_decision(
    steps: list[str | int | tuple[int, int]],
) -> None:
    limiter, counted = InFlightLimiter(4, 2), Counted()
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            limiter.reconfigure(*step)
            counted.limits = step
        elif isinstance(step, str):
            expected = counted.rejection_status(step)
            assert limiter.rejection_status(step) == expected
            assert limiter.acquire(step, number) == expected
            if expected is None:
                counted.owners[number] = step
        elif counted.owners:
            call = [*counted.owners][step % len(counted.owners)]
            limiter.release(call)
            del counted.owners[call]


@tidy
async def test_tasks_may_finish_within_the_close_timeout() -> None:
    message: list[str] = []

    async def speak() -> None:
        await asyncio.sleep(0)
        message.append("last")

    stuck = asyncio.create_task(asyncio.Event().wait())
    call, never = PendingResult.from_awaitable(speak()), PendingResult()
    await wait_or_cancel([call, never], {asyncio.create_task(speak()), stuck}, 0.01)
    assert message == ["last", "last"]
    assert stuck.cancelled()
    assert isinstance(never.error, asyncio.CancelledError)
    await wait_or_cancel([], set(), 0.01)


def test_new_limits_apply_at_once_and_requests_in_flight_stay() -> None:
    limiter = InFlightLimiter(2, 1)
    assert limiter.acquire("a", 1) is None
    assert limiter.acquire("a", 2) == 429
    limiter.reconfigure(2, 2)
    assert limiter.acquire("a", 2) is None
    assert limiter.acquire("b", 3) == 503
    limiter.reconfigure(1, 1)
    limiter.release(1)
    assert limiter.acquire("b", 3) == 503
    limiter.release(2)
    assert limiter.acquire("b", 3) is None


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
def test_retry_after_in_an_error_becomes_a_header(
    data: Any, header: tuple[tuple[bytes, bytes], ...]
) -> None:
    assert retry_after_header(RpcError(-1, "no", data)) == header
