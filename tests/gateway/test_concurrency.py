"""The queue of an upstream: its limit, its order and its timeouts."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.contexts import call_of, end_call
from trunkline.gateway.concurrency import UpstreamQueue
from trunkline.jsonrpc import PendingResult, Raw
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller
from trunkline.mcp.versions import V2025_11_25


class FakeClient:
    """The client of a call; the server may have sent it a request."""

    asked_at: float | None = None


NO_CLIENT = FakeClient()
CALLER = Caller(LOCAL_PRINCIPAL, V2025_11_25, {}, Raw(b"{}"))


def new_queue(max_in_flight: int, seconds: float) -> UpstreamQueue:
    def asked_at(client: Any) -> float | None:
        return client.asked_at

    return UpstreamQueue(max_in_flight, seconds, asked_at)


def submit(
    queue: UpstreamQueue, start: Callable[[], PendingResult], client: FakeClient = NO_CLIENT
) -> PendingResult:
    """Submit a call, which leaves the queue when it ends."""
    context = call_of(client, Raw(b"{}"), caller=CALLER)
    context.answer = answer = queue.submit(context, start)
    answer.add_callback(partial(end_call, context))
    return answer


def starter(started: list[PendingResult]) -> Callable[[], PendingResult]:
    def start() -> PendingResult:
        started.append(PendingResult())
        return started[-1]

    return start


def refuse() -> PendingResult:
    raise ValueError("no")


async def test_calls_start_at_once_or_in_queue_order() -> None:
    queue, started = new_queue(2, 60.0), list[PendingResult]()
    results = [submit(queue, starter(started)) for _ in range(4)]
    assert (len(started), len(queue)) == (2, 4)
    started[1].set_result("b")
    assert (len(started), len(queue)) == (3, 3)
    started[0].set_result("a")
    started[2].set_result("c")
    started[3].set_exception(ValueError("d"))
    assert [answer.result for answer in results] == ["a", "b", "c", None]
    assert str(results[3].error) == "d"
    assert len(queue) == 0
    queue.close()


async def test_a_call_that_completes_immediately_takes_no_slot() -> None:
    queue = new_queue(1, 60.0)

    def start() -> PendingResult:
        done = PendingResult()
        done.set_result(7)
        return done

    assert [submit(queue, start).result for _ in range(3)] == [7, 7, 7]
    assert len(queue) == 0
    queue.close()


async def test_a_call_that_cannot_start_fails_and_takes_no_slot() -> None:
    queue, started = new_queue(1, 60.0), list[PendingResult]()
    with pytest.raises(ValueError, match="no"):
        submit(queue, refuse)
    submit(queue, starter(started))
    waiting, last = (
        submit(queue, refuse),
        submit(queue, starter(started)),
    )
    started[0].set_result(None)
    assert str(waiting.error) == "no"
    started[1].set_result("then")
    assert last.result == "then"
    assert len(queue) == 0
    queue.close()


async def test_a_queued_call_starts_however_many_before_it_fail() -> None:
    queue, started = new_queue(1, 60.0), list[PendingResult]()
    submit(queue, starter(started))
    waiting = [submit(queue, refuse) for _ in range(5000)]
    last = submit(queue, starter(started))
    started[0].set_result(None)
    assert {str(answer.error) for answer in waiting} == {"no"}
    assert (len(started), len(queue), last.done) == (2, 1, False)
    started[1].set_result(None)
    assert (len(queue), last.done) == (0, True)
    queue.close()


async def test_a_queued_call_can_leave_and_a_running_one_is_cancelled() -> None:
    queue, started = new_queue(1, 60.0), list[PendingResult]()
    first, second, third = (submit(queue, starter(started)) for _ in range(3))
    second.cancel()
    assert isinstance(second.error, asyncio.CancelledError)
    assert len(started) == 1
    first.cancel()
    assert isinstance(started[0].error, asyncio.CancelledError)
    third.cancel()
    assert isinstance(started[1].error, asyncio.CancelledError)
    assert isinstance(third.error, asyncio.CancelledError)
    assert len(queue) == 0
    queue.close()


async def test_a_call_over_its_timeout_gets_an_error() -> None:
    stopped = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    queue, started = new_queue(1, 0.01), list[PendingResult]()
    working = submit(queue, lambda: PendingResult.from_awaitable(forever()))
    waiting = submit(queue, starter(started))
    async with asyncio.timeout(5):
        for answer in (working, waiting):
            with pytest.raises(TimeoutError):
                await answer
        assert stopped.is_set()
        again = submit(queue, starter(started))
        with pytest.raises(TimeoutError):
            await again
    assert len(queue) == 0
    queue.close()
    queue.close()


async def test_each_call_has_its_own_deadline_in_the_queue() -> None:
    queue, started = new_queue(9, 0.05), list[PendingResult]()
    first = submit(queue, starter(started))
    await asyncio.sleep(0)
    later = submit(queue, starter(started))
    async with asyncio.timeout(5):
        await first.wait()
        assert isinstance(first.error, TimeoutError)
        await later.wait()
    assert isinstance(later.error, TimeoutError)
    queue.close()


async def test_the_time_a_client_takes_to_answer_does_not_count() -> None:
    queue, started, client = new_queue(9, 0.01), list[PendingResult](), FakeClient()
    answer = submit(queue, starter(started), client)
    client.asked_at = asyncio.get_running_loop().time()
    other = submit(queue, starter(started))
    async with asyncio.timeout(5):
        await other.wait()
        assert isinstance(other.error, TimeoutError)
        assert not answer.done
        client.asked_at = None
        await answer.wait()
    assert isinstance(answer.error, TimeoutError)
    queue.close()


async def test_a_server_request_sent_before_a_call_does_not_extend_the_call() -> None:
    queue, started, client = new_queue(9, 0.01), list[PendingResult](), FakeClient()
    client.asked_at = asyncio.get_running_loop().time() - 1.0
    answer = submit(queue, starter(started), client)
    async with asyncio.timeout(5):
        await answer.wait()
    assert isinstance(answer.error, TimeoutError)
    queue.close()


async def test_a_new_timeout_applies_to_all_and_never_extends_the_time_left() -> None:
    queue, started = new_queue(4, 60.0), list[PendingResult]()
    old = submit(queue, starter(started))
    queue.reconfigure(0, 0.01)
    new = submit(queue, starter(started))
    async with asyncio.timeout(10):
        await asyncio.gather(old.wait(), new.wait())
    assert isinstance(old.error, TimeoutError)
    assert isinstance(new.error, TimeoutError)
    queue.reconfigure(0, 0.02)
    short = submit(queue, starter(started))
    queue.reconfigure(0, 600.0)
    long = submit(queue, starter(started))
    async with asyncio.timeout(10):
        await short.wait()
    assert not long.done
    for pending in started:
        pending.set_result(None)
    queue.close()


async def test_a_higher_limit_applies_at_once_and_a_lower_one_as_calls_end() -> None:
    queue, started = new_queue(1, 60.0), list[PendingResult]()
    for _ in range(4):
        submit(queue, starter(started))
    assert len(started) == 1
    queue.adjust_limit(1)
    assert len(started) == 2
    queue.reconfigure(1, 60.0)  # the adjustment stays in effect
    assert (len(started), queue.max_in_flight) == (3, 3)
    queue.reconfigure(-1, 60.0)
    started[0].set_result(None)
    assert len(started) == 3
    started[1].set_result(None)
    assert len(started) == 4
    for pending in started[2:]:
        pending.set_result(None)
    queue.close()


async def test_queued_calls_can_fail_while_running_ones_continue() -> None:
    queue, started = new_queue(1, 60.0), list[PendingResult]()
    assert not queue.full
    results = [submit(queue, starter(started)) for _ in range(3)]
    assert queue.full
    queue.fail_queued(ValueError("go"))
    assert [str(answer.error) for answer in results[1:]] == ["go", "go"]
    assert (len(started), len(queue), results[0].done) == (1, 1, False)
    started[0].set_result("a")
    assert (len(queue), queue.full) == (0, False)
    queue.close()


async def test_a_queued_call_gets_the_reason_of_its_cancellation() -> None:
    queue, started = new_queue(1, 60.0), list[PendingResult]()
    first, second = (submit(queue, starter(started)) for _ in range(2))
    first.cancel()
    why = TimeoutError()
    second.cancel(why)
    assert started[1].error is second.error is why
    queue.close()
