"""The queue of an upstream: its limit, its order, the shares of principals, and its timeouts."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.contexts import call_of, end_call
from tests.gateway.clock import ClockLoop, pass_time
from tests.tasks import LoopClock, hang_guard
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.concurrency import QueueFull, UpstreamQueue, fair_share
from trunkline.jsonrpc import PendingResult, Raw
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2025_11_25


class FakeClient:
    """The client of a call; the server may have sent it a request."""

    asked_at: float | None = None


NO_CLIENT = FakeClient()
LOCAL = Caller(Principal("local"), V2025_11_25, {}, Raw(b"{}"))


def new_queue(
    max_in_flight: int,
    seconds: float,
    max_per_principal: int | None = None,
    max_timeout: float = 3600.0,
) -> UpstreamQueue:
    def asked_at(client: Any) -> float | None:
        return client.asked_at

    return UpstreamQueue(max_in_flight, seconds, asked_at, max_per_principal, max_timeout)


def submit(
    queue: UpstreamQueue,
    start: Callable[[], PendingResult],
    client: FakeClient = NO_CLIENT,
    principal: str = "local",
) -> PendingResult:
    """Submit a call, which leaves the queue when it ends."""
    caller = Caller(Principal(principal), V2025_11_25, {}, Raw(b"{}"))
    context = call_of(client, Raw(b"{}"), caller=caller)
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
    LoopClock().skip_idle_time()
    stopped = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    queue, started = new_queue(1, 0.01), list[PendingResult]()
    working = submit(queue, lambda: PendingResult.from_awaitable(forever()))
    waiting = submit(queue, starter(started))
    async with hang_guard():
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
    LoopClock().skip_idle_time()
    queue, started = new_queue(9, 0.05), list[PendingResult]()
    first = submit(queue, starter(started))
    await asyncio.sleep(0)
    later = submit(queue, starter(started))
    async with hang_guard():
        await first.wait()
        assert isinstance(first.error, TimeoutError)
        await later.wait()
    assert isinstance(later.error, TimeoutError)
    queue.close()


async def test_the_time_a_client_takes_to_answer_does_not_count() -> None:
    LoopClock().skip_idle_time()
    queue, started, client = new_queue(9, 0.01), list[PendingResult](), FakeClient()
    answer = submit(queue, starter(started), client)
    client.asked_at = asyncio.get_running_loop().time()
    other = submit(queue, starter(started))
    async with hang_guard():
        await other.wait()
        assert isinstance(other.error, TimeoutError)
        assert not answer.done
        client.asked_at = None
        await answer.wait()
    assert isinstance(answer.error, TimeoutError)
    queue.close()


async def test_a_server_request_sent_before_a_call_does_not_extend_the_call() -> None:
    LoopClock().skip_idle_time()
    queue, started, client = new_queue(9, 0.01), list[PendingResult](), FakeClient()
    client.asked_at = asyncio.get_running_loop().time() - 1.0
    answer = submit(queue, starter(started), client)
    async with hang_guard():
        await answer.wait()
    assert isinstance(answer.error, TimeoutError)
    queue.close()


def test_restarted_calls_expire_in_the_order_of_their_deadlines() -> None:
    loop = ClockLoop()

    async def scenario() -> None:
        queue, ended = new_queue(9, 10.0, max_timeout=12.0), list[tuple[str, float]]()

        def begin(name: str) -> CallContext:
            context = call_of(FakeClient(), Raw(b"{}"), caller=LOCAL)
            context.answer = answer = queue.submit(context, PendingResult)
            answer.add_callback(lambda _: ended.append((name, loop.time())))
            answer.add_callback(partial(end_call, context))
            return context

        calls = [begin("a")]
        for name in ("b", "c", "d"):
            await pass_time(1.0)
            calls.append(begin(name))
        await pass_time(1.0)
        for context in (calls[0], calls[0], calls[1]):  # at 4 s
            queue.restart(context)
        await pass_time(4.0)
        queue.restart(calls[2])  # at 8 s
        await asyncio.gather(*(context.answer.wait() for context in calls if context.answer))
        assert ended == [("a", 12.0), ("d", 13.0), ("b", 13.0), ("c", 14.0)]
        queue.restart(calls[0])  # it has ended
        assert len(queue) == 0
        queue.close()

    loop.run(scenario())
    loop.close()


def test_a_new_maximum_applies_to_calls_in_flight() -> None:
    loop = ClockLoop()

    async def scenario() -> None:
        queue = new_queue(9, 10.0, max_timeout=100.0)
        first, second = (submit(queue, PendingResult) for _ in range(2))
        await pass_time(4.0)
        for context in tuple(queue.calls):
            queue.restart(context)
        queue.reconfigure(0, 10.0, max_timeout=12.0)
        await asyncio.gather(first.wait(), second.wait())
        assert loop.time() == 12.0
        assert "within 12 s" in str(first.error)
        third = submit(queue, PendingResult)
        await pass_time(9.0)
        queue.restart(next(iter(queue.calls)))
        queue.reconfigure(0, 1.0, max_timeout=1.0)
        await third.wait()
        assert loop.time() == 21.0
        queue.close()

    loop.run(scenario())
    loop.close()


async def test_a_new_timeout_applies_to_all_and_never_extends_the_time_left() -> None:
    LoopClock().skip_idle_time()
    queue, started = new_queue(4, 60.0), list[PendingResult]()
    old = submit(queue, starter(started))
    queue.reconfigure(0, 0.01)
    new = submit(queue, starter(started))
    async with hang_guard():
        await asyncio.gather(old.wait(), new.wait())
    assert isinstance(old.error, TimeoutError)
    assert isinstance(new.error, TimeoutError)
    queue.reconfigure(0, 0.02)
    short = submit(queue, starter(started))
    queue.reconfigure(0, 600.0)
    long = submit(queue, starter(started))
    async with hang_guard():
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
    queue.adjust_limit(1, "local")
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
    results = [submit(queue, starter(started)) for _ in range(3)]
    queue.fail_queued(ValueError("go"))
    assert [str(answer.error) for answer in results[1:]] == ["go", "go"]
    assert (len(started), len(queue), results[0].done) == (1, 1, False)
    started[0].set_result("a")
    assert (len(queue), queue.waiting_count) == (0, 0)
    queue.close()


async def test_a_queued_call_gets_the_reason_of_its_cancellation() -> None:
    queue, started = new_queue(1, 60.0), list[PendingResult]()
    first, second = (submit(queue, starter(started)) for _ in range(2))
    first.cancel()
    why = TimeoutError()
    second.cancel(why)
    assert started[1].error is second.error is why
    queue.close()


# Principals


class SharedQueue:
    """A queue, and the calls of several principals that it has started, by name."""

    def __init__(self, max_in_flight: int, max_per_principal: int | None = None) -> None:
        self.queue = new_queue(max_in_flight, 60.0, max_per_principal)
        self.running: dict[str, PendingResult] = {}
        self.order: list[str] = []
        self.answers: dict[str, PendingResult] = {}

    def call(self, *names: str) -> None:
        """Submit calls; the first letter of a name is the principal."""
        for name in names:
            self.answers[name] = submit(self.queue, partial(self._start, name), principal=name[0])

    def _start(self, name: str) -> PendingResult:
        self.order.append(name)
        self.running[name] = PendingResult()
        return self.running[name]

    def end(self, name: str) -> None:
        self.running.pop(name).set_result(name)

    def end_all(self) -> None:
        """End all calls in the order in which they were started; nothing may be left."""
        for name in self.order:
            if name in self.running:
                self.end(name)
        assert (len(self.queue), self.queue.waiting_count, self.running) == (0, 0, {})
        assert all(answer.done for answer in self.answers.values())
        self.queue.close()


@pytest.mark.parametrize(
    ("slots", "share"), [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (64, 48), (65536, 49152)]
)
def test_one_principal_may_hold_three_quarters_of_the_slots(slots: int, share: int) -> None:
    assert fair_share(slots) == share


async def test_a_principal_with_its_share_waits_while_others_start_at_once() -> None:
    shared = SharedQueue(8, fair_share(8))
    shared.call(*(f"a{n}" for n in range(20)), "b0")
    assert shared.order == ["a0", "a1", "a2", "a3", "a4", "a5", "b0"]
    assert shared.queue.waiting_count == 14
    shared.end("b0")
    assert len(shared.running) == 6  # the two slots stay free for others
    shared.end("a3")
    assert shared.order[7:] == ["a6"]
    shared.end_all()


async def test_waiting_principals_take_turns_and_keep_their_own_order() -> None:
    shared = SharedQueue(1)
    shared.call("x0", "a0", "a1", "a2", "b0", "b1", "c0")
    shared.end_all()
    assert shared.order == ["x0", "a0", "b0", "c0", "a1", "b1", "a2"]


async def test_a_principal_uses_all_slots_without_a_limit_per_principal() -> None:
    shared = SharedQueue(4)
    shared.call("a0", "a1", "a2", "a3", "a4")
    assert len(shared.running) == 4
    shared.end_all()


async def test_in_a_full_queue_the_principal_with_the_most_calls_loses_its_newest() -> None:
    shared = SharedQueue(1)
    shared.call("a0", "a1", "a2", "a3", "c1")
    assert shared.queue.make_room("b", 4)
    assert isinstance(shared.answers["a3"].error, QueueFull)
    shared.call("b1")
    assert not shared.queue.make_room("b", 4)  # it would have as many as the others
    assert not shared.queue.make_room("a", 4)
    assert shared.queue.make_room("d", 4)
    assert isinstance(shared.answers["a2"].error, QueueFull)
    assert shared.queue.refused_count == 4
    assert shared.queue.make_room("d", 5)
    shared.end_all()
    assert shared.order == ["a0", "a1", "c1", "b1"]


async def test_without_waiting_calls_a_full_queue_has_no_room() -> None:
    shared = SharedQueue(1)
    shared.call("a0")
    assert not shared.queue.make_room("b", 0)
    shared.end_all()


async def test_a_call_that_waits_for_its_client_leaves_its_share_to_its_principal() -> None:
    shared = SharedQueue(4, 2)
    shared.call("a0", "a1", "a2")
    assert len(shared.running) == 2
    shared.queue.adjust_limit(1, "a")
    assert list(shared.running) == ["a0", "a1", "a2"]
    shared.call("b0", "b1", "b2")
    assert list(shared.running)[3:] == ["b0", "b1"]
    shared.queue.adjust_limit(-1, "a")
    shared.end("a0")
    shared.call("a3")
    assert "a3" not in shared.running
    shared.end_all()


async def test_a_new_limit_per_principal_applies_at_once() -> None:
    shared = SharedQueue(8, 2)
    shared.call("a0", "a1", "a2", "a3", "a4")
    shared.queue.reconfigure(0, 60.0, 4)
    assert len(shared.running) == 4
    shared.queue.reconfigure(0, 60.0)
    assert len(shared.running) == 5
    shared.queue.reconfigure(0, 60.0, 1)
    shared.end("a0")
    shared.call("a5")
    assert list(shared.running) == ["a1", "a2", "a3", "a4"]
    shared.end_all()


async def test_calls_are_counted_only_while_a_principal_could_have_its_share() -> None:
    shared = SharedQueue(8, 6)
    shared.call(*(f"a{n}" for n in range(6)))
    assert vars(shared.queue)["_counts"] is None
    shared.call("a6")
    assert vars(shared.queue)["_counts"] == {"a": 7}
    for name in ("a0", "a1", "a2", "a3"):
        shared.end(name)
    assert vars(shared.queue)["_counts"] == {"a": 3}
    shared.end("a4")
    assert vars(shared.queue)["_counts"] is None
    shared.end_all()
