"""The session pool: a session for each client, queued calls in order, and limits."""

import asyncio
from typing import Any, cast

import pytest

from tests.tasks import hang_guard
from trunkline.gateway.client import DownstreamClient
from trunkline.gateway.session_pool import (
    NO_INPUT_GROUP,
    OPEN_RETRY_INTERVAL,
    SHARED_GROUP,
    OpeningFailures,
    PoolCall,
    PoolLimits,
    SessionPool,
    SessionProfile,
    StatelessOwner,
)
from trunkline.jsonrpc import ConnectionLost, PendingResult, RpcError

FORM = frozenset(("elicitation.form",))
SAMPLING = frozenset(("sampling",))
ROOTS = frozenset(("roots",))
NOTHING: frozenset[str] = frozenset()
NO_CLIENT = cast("DownstreamClient", None)


class PoolHarness:
    """A pool of numbered sessions, and the calls that were started in each."""

    def __init__(
        self,
        most: int = 2,
        first: frozenset[str] = NOTHING,
        idle_timeout: float = 60.0,
        max_per_principal: int | None = None,
        has_streams: bool = False,
    ) -> None:
        self.opened: list[frozenset[str]] = []
        self.closed: list[int] = []
        self.started: list[tuple[str, int]] = []
        self.calls: dict[str, PendingResult] = {}
        self.failure: Exception | None = None
        self.hold: asyncio.Event | None = None  # no session opens before it is set
        self.dead: set[int] = set()
        self.roots_given: set[int] = set()
        self.refusing: list[int] = []
        self.evictions = 0
        self.reasons: list[str | None] = []
        self.failures = OpeningFailures(self.reasons.append)
        self.pool: SessionPool[int] = SessionPool(
            self, PoolLimits(most, max_per_principal, idle_timeout), self.failures
        )
        self.pool.set_primary(0, SessionProfile(first), has_streams=has_streams)

    async def open(self, profile: SessionProfile, client: object, on_ended: object) -> int:
        await asyncio.sleep(0)
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        self.opened.append(profile.client_features)
        return len(self.opened)

    async def close(self, session: int) -> None:
        self.closed.append(session)

    def is_unfit_for_others(self, session: int) -> bool:
        return session in self.roots_given

    def refuse_requests(self, session: int) -> None:
        self.refusing.append(session)

    def on_evicted(self) -> None:
        self.evictions += 1

    def acquire(
        self,
        name: str,
        group: object,
        features: frozenset[str] = FORM,
        *,
        urgent: bool = False,
        owner: object = None,
        principal: str | None = None,
    ) -> PendingResult:
        """Start a call; its session belongs to the client `group` unless there is an `owner`."""

        def start(held: int) -> Any:
            if held in self.dead:
                raise ConnectionLost("gone")
            self.started.append((name, held))
            self.calls[name] = PendingResult()
            return self.calls[name]

        if owner is None and group not in (NO_INPUT_GROUP, SHARED_GROUP):
            owner = group
        profile = SessionProfile(features, owner)
        return self.pool.acquire(PoolCall(group, profile, start, NO_CLIENT, principal, urgent))

    async def finish(self, *names: str) -> None:
        for name in names:
            self.calls[name].set_result(None)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def stateless(name: str, principal: str = "p") -> StatelessOwner:
    return StatelessOwner(principal, name.encode())


# Clients of the session protocol


async def test_each_client_keeps_its_own_session_while_it_lives() -> None:
    harness = PoolHarness(most=6)
    clients = "ABCDEF"
    for turn in "123":
        for client in clients:
            harness.acquire(client + turn, client)
        await harness.settle()
        await harness.finish(*(client + turn for client in clients))
    sessions = dict(harness.started)
    assert len(harness.opened) == 6
    for client in clients:
        assert len({sessions[client + turn] for turn in "123"}) == 1
    assert (harness.closed, harness.evictions) == ([], 0)
    await harness.pool.aclose()


async def test_a_client_that_leaves_closes_its_session_once_its_calls_have_ended() -> None:
    harness = PoolHarness()
    for client in "AB":
        harness.acquire(client, client)
    await harness.settle()
    await harness.finish("A")
    harness.pool.release("A")
    harness.pool.release("B")
    await harness.settle()
    assert harness.closed == [1]
    await harness.finish("B")
    assert harness.closed == [1, 2]
    assert harness.pool.extra_count == 0
    await harness.pool.aclose()


async def test_a_session_that_is_being_opened_ends_with_its_client() -> None:
    harness = PoolHarness(most=1)
    harness.hold = asyncio.Event()
    harness.acquire("a", "A").cancel()
    harness.acquire("b", "B")
    await harness.settle()
    harness.pool.release("A")
    harness.hold.set()
    await harness.settle()
    assert harness.started == [("b", 1)]
    await harness.pool.aclose()


async def test_a_client_that_does_not_answer_delays_no_other() -> None:
    harness = PoolHarness()
    harness.hold = asyncio.Event()
    harness.acquire("a", "A")
    await harness.settle()
    harness.hold = None
    harness.acquire("b", "B")
    await harness.settle()
    assert harness.started == [("b", 1)]
    await harness.pool.aclose()


async def test_the_least_recently_used_idle_session_makes_room() -> None:
    harness = PoolHarness(most=2)
    for client in "AB":
        harness.acquire(client, client)
    await harness.settle()
    await harness.finish("A", "B")
    harness.acquire("a2", "A")
    await harness.finish("a2")
    harness.acquire("c", "C")
    await harness.settle()
    assert harness.started[-1] == ("c", 3)
    assert (harness.closed, harness.evictions) == ([2], 1)
    await harness.pool.aclose()


async def test_a_session_with_calls_is_never_evicted() -> None:
    harness = PoolHarness(most=1)
    harness.acquire("a", "A")
    harness.acquire("b", "B")
    await harness.settle()
    harness.acquire("a2", "A")
    assert harness.started == [("a", 1), ("a2", 1)]
    await harness.finish("a")
    assert harness.closed == []
    await harness.finish("a2")
    assert (harness.closed, harness.started[-1]) == ([1], ("b", 2))
    await harness.pool.aclose()


async def test_calls_of_one_client_wait_for_the_same_session() -> None:
    harness = PoolHarness(most=4)
    for name in ("a", "a2", "a3"):
        harness.acquire(name, "A")
    await harness.settle()
    assert harness.opened == [FORM]
    assert harness.started == [("a", 1), ("a2", 1), ("a3", 1)]
    await harness.pool.aclose()


async def test_a_kept_session_does_not_expire() -> None:
    harness = PoolHarness(idle_timeout=0.0)
    harness.acquire("a", "A")
    harness.acquire("s", object(), owner=stateless("S"))
    await harness.settle()
    await harness.finish("a", "s")
    assert harness.closed == [2]
    await harness.pool.aclose()


async def test_the_first_client_uses_a_primary_session_with_features_as_its_own() -> None:
    harness = PoolHarness(first=FORM)
    harness.acquire("a", "A")
    harness.acquire("b", "B")
    await harness.settle()
    await harness.finish("a", "b")
    harness.acquire("b2", "B")
    harness.acquire("a2", "A")
    assert harness.started == [("a", 0), ("b", 1), ("b2", 1), ("a2", 0)]
    harness.pool.release("A")
    await harness.finish("a2")
    harness.acquire("c", "C")
    await harness.settle()
    assert harness.started[-1] == ("c", 2)  # the server may have kept what A answered
    await harness.pool.aclose()


async def test_calls_that_cannot_be_asked_do_not_wait_for_a_busy_primary_session() -> None:
    harness = PoolHarness(first=FORM)
    harness.acquire("a", "A")
    harness.acquire("n", NO_INPUT_GROUP, NOTHING)
    harness.acquire("m", NO_INPUT_GROUP, NOTHING)
    await harness.settle()
    assert harness.started == [("a", 0), ("n", 1), ("m", 1)]
    assert harness.opened == [NOTHING]
    await harness.pool.aclose()


# Clients of the stateless protocol


async def test_calls_of_one_stateless_owner_use_the_same_session_one_after_the_other() -> None:
    harness = PoolHarness(most=4)
    for name in ("a", "b", "c"):
        harness.acquire(name, object(), owner=stateless("S"))
        await harness.settle()
        await harness.finish(name)
    assert harness.started == [("a", 1), ("b", 1), ("c", 1)]
    harness.acquire("d", object(), owner=stateless("S"))
    harness.acquire("e", object(), owner=stateless("S"))
    harness.acquire("f", object(), owner=stateless("other"))
    await harness.settle()
    assert sorted(harness.started[3:]) == [("d", 1), ("e", 2), ("f", 3)]
    await harness.finish("e", "d")
    harness.acquire("g", object(), owner=stateless("S"))
    assert harness.started[-1] == ("g", 1)
    await harness.pool.aclose()


async def test_a_stateless_client_with_roots_never_uses_a_primary_session_with_features() -> None:
    harness = PoolHarness(first=ROOTS)
    harness.acquire("a", "A", ROOTS, owner=stateless("a"))
    await harness.settle()
    assert harness.started == [("a", 1)]  # whose server asked for roots while no call was there
    await harness.pool.aclose()


async def test_a_stateless_session_with_kept_answers_ends_with_the_call() -> None:
    harness = PoolHarness()
    harness.acquire("a", object(), owner=stateless("S"))
    await harness.settle()
    harness.roots_given.add(1)
    await harness.finish("a")
    harness.acquire("b", object(), owner=stateless("S"))
    await harness.settle()
    assert (harness.closed, harness.started[-1]) == ([1], ("b", 2))
    await harness.pool.aclose()


async def test_a_stateless_session_ends_with_a_call_that_took_too_long() -> None:
    harness = PoolHarness()
    harness.acquire("a", object(), owner=stateless("S"))
    await harness.settle()
    harness.calls["a"].cancel(TimeoutError())
    harness.acquire("b", object(), owner=stateless("S"))
    await harness.settle()
    assert (harness.closed, harness.started[-1]) == ([1], ("b", 2))
    await harness.pool.aclose()


async def test_after_a_cancelled_call_a_stateless_session_refuses_requests() -> None:
    harness = PoolHarness()
    harness.acquire("a", object(), owner=stateless("S"))
    harness.acquire("o", "O")
    await harness.settle()
    harness.calls["o"].cancel()
    assert harness.refusing == []
    harness.calls["a"].cancel()
    assert harness.refusing == [1]
    harness.acquire("b", object(), owner=stateless("S"))
    assert harness.started[-1] == ("b", 1)
    await harness.pool.aclose()


async def test_an_idle_stateless_session_is_closed_after_its_timeout() -> None:
    harness = PoolHarness(idle_timeout=0.01)
    harness.acquire("a", object(), owner=stateless("S"))
    await harness.settle()
    await harness.finish("a")
    async with hang_guard():
        while not harness.closed:
            await asyncio.sleep(0)
    assert harness.pool.extra_count == 0
    await harness.pool.aclose()


async def test_a_call_with_another_profile_is_not_overtaken_forever() -> None:
    harness = PoolHarness(most=1)
    harness.acquire("a", object(), owner=stateless("S"))
    await harness.settle()
    harness.acquire("b", object(), owner=stateless("other"))
    harness.acquire("c", object(), owner=stateless("S"))  # later, and there is a session for it
    await harness.finish("a")
    assert harness.started == [("a", 1), ("b", 2)]
    await harness.finish("b")
    assert harness.started[2:] == [("c", 3)]
    await harness.pool.aclose()


# A server with one session


async def test_the_reason_why_no_session_opens_has_no_data_of_the_error() -> None:
    harness = PoolHarness()
    harness.failure = RpcError(-32001, "no more", {"token": "hunter2"})
    harness.acquire("a", "A")
    await harness.settle()
    assert harness.reasons == ["no more (-32001)"]
    await harness.pool.aclose()


async def test_the_next_attempt_to_open_a_session_is_later_each_time() -> None:
    harness = PoolHarness()
    harness.failure = OSError("no more")
    loop = asyncio.get_running_loop()
    now, pauses = loop.time(), list[float]()
    loop.time = lambda: now
    for attempt in range(12):
        harness.acquire(f"a{attempt}", "A")
        await harness.settle()
        before = now
        while harness.failures.is_paused:
            now += OPEN_RETRY_INTERVAL
        pauses.append(round(now - before, 3))
    assert pauses[:3] == [5.0, 10.0, 20.0]
    assert pauses[-1] == 3600.0
    assert {held for _, held in harness.started} == {0}
    assert harness.reasons == ["no more"]
    harness.failure = None
    harness.acquire("b", "B")
    await harness.settle()
    assert harness.started[-1] == ("b", 1)
    assert harness.reasons == ["no more", None]
    await harness.pool.aclose()


async def test_after_a_second_session_ended_the_first_none_is_opened() -> None:
    harness = PoolHarness()
    harness.failures.record_exclusive("it ended")
    for client in "AB":
        harness.acquire(client, client)
    await harness.settle()
    assert harness.started == [("A", 0), ("B", 0)]
    assert (harness.opened, harness.reasons) == ([], ["it ended"])
    await harness.pool.aclose()


# Any pool


async def test_a_primary_session_without_features_serves_clients_without_input() -> None:
    harness = PoolHarness()
    harness.acquire("a", "A")
    harness.acquire("n", NO_INPUT_GROUP, NOTHING)
    await harness.settle()
    assert sorted(harness.started) == [("a", 1), ("n", 0)]
    assert harness.opened == [FORM]
    await harness.pool.aclose()
    assert harness.closed == [1]


async def test_a_primary_session_with_features_serves_one_call_group_at_a_time() -> None:
    harness = PoolHarness(most=0, first=FORM)
    harness.acquire("a", "A")
    harness.acquire("a2", "A")
    waiting = harness.acquire("b", "B")
    harness.acquire("n", NO_INPUT_GROUP, NOTHING)
    assert harness.started == [("a", 0), ("a2", 0)]
    harness.calls["a"].set_result(1)
    harness.calls["a2"].set_result(2)
    assert harness.started[2:] == [("b", 0)]
    harness.calls["b"].set_result(3)
    assert waiting.result == 3
    assert harness.started[3:] == [("n", 0)]
    await harness.pool.aclose()


async def test_a_group_with_a_session_yields_to_queued_calls_unless_urgent() -> None:
    harness = PoolHarness(most=0, first=FORM)
    harness.acquire("a", "A")
    harness.acquire("b", "B")
    harness.acquire("late", "A")
    harness.acquire("urgent", "A", urgent=True)
    assert harness.started == [("a", 0), ("urgent", 0)]
    harness.calls["a"].set_result(1)
    harness.calls["urgent"].set_result(1)
    assert harness.started[2:] == [("b", 0)]
    harness.calls["b"].set_result(1)
    assert harness.started[3:] == [("late", 0)]
    await harness.pool.aclose()


async def test_a_queued_call_that_times_out_leaves_the_queue() -> None:
    harness = PoolHarness(most=0, first=FORM)
    harness.acquire("a", "A")
    waiting = harness.acquire("b", "B")
    waiting.cancel()
    harness.calls["a"].set_result(1)
    assert harness.started == [("a", 0)]
    started = harness.acquire("c", "C")
    started.cancel()
    assert isinstance(harness.calls["c"].error, asyncio.CancelledError)
    await harness.pool.aclose()


async def test_without_another_session_a_call_runs_where_requests_are_refused() -> None:
    harness = PoolHarness()
    harness.failure = OSError("no")
    harness.acquire("a", "A")
    await harness.settle()
    harness.failure = None
    harness.acquire("b", "B")  # not tried again at once
    await harness.settle()
    assert (harness.opened, harness.started) == ([], [("a", 0), ("b", 0)])
    await harness.pool.aclose()


async def test_without_extra_sessions_calls_use_the_primary_one() -> None:
    harness = PoolHarness(most=0)
    harness.acquire("a", "A")
    harness.acquire("b", "B")
    assert harness.started == [("a", 0), ("b", 0)]
    await harness.pool.aclose()


async def test_queued_calls_fail_when_the_backend_ends() -> None:
    harness = PoolHarness(most=0, first=FORM)
    harness.acquire("a", "A")
    waiting = harness.acquire("b", "B")
    await harness.pool.aclose()
    assert isinstance(waiting.error, ConnectionLost)


async def test_a_call_whose_session_has_ended_starts_in_another() -> None:
    harness = PoolHarness(most=1)
    harness.acquire("a", "A")
    await harness.settle()
    waiting = harness.acquire("b", "B")
    harness.dead.add(1)  # the pool has not noticed yet
    harness.calls["a"].set_exception(ConnectionLost("gone"))
    await harness.settle()
    assert harness.started == [("a", 1), ("b", 2)]
    harness.dead.add(2)
    harness.calls["b"].set_result(7)
    assert waiting.result == 7
    harness.acquire("c", "C")
    await harness.settle()
    assert harness.started[2:] == [("c", 3)]
    assert harness.closed == [1, 2]
    await harness.pool.aclose()


async def test_all_sessions_end_with_the_primary_one() -> None:
    harness = PoolHarness(most=0, first=FORM)
    harness.acquire("a", "A")
    waiting = harness.acquire("b", "B")
    harness.dead.add(0)
    with pytest.raises(ConnectionLost):
        harness.acquire("a2", "A", urgent=True)
    harness.calls["a"].set_exception(ConnectionLost("gone"))
    assert isinstance(waiting.error, ConnectionLost)
    await harness.pool.aclose()


async def test_a_session_that_has_ended_is_not_used_any_more() -> None:
    harness = PoolHarness()
    harness.acquire("a", "A")
    await harness.settle()
    harness.pool.discard(1)
    harness.calls["a"].set_exception(ConnectionError("gone"))
    harness.acquire("a2", "A")
    await harness.settle()
    assert harness.started[-1] == ("a2", 2)
    await harness.pool.aclose()


async def test_a_shared_group_uses_sessions_of_its_profile_only() -> None:
    harness = PoolHarness(first=FORM | SAMPLING, has_streams=True)
    for name, kind in (("a", FORM), ("b", FORM), ("c", SAMPLING), ("d", FORM | SAMPLING)):
        harness.acquire(name, SHARED_GROUP, kind, urgent=True)
    await harness.settle()
    assert harness.opened == [FORM, SAMPLING]
    assert sorted(harness.started) == [("a", 1), ("b", 1), ("c", 2), ("d", 0)]
    await harness.pool.aclose()


async def test_all_groups_share_the_primary_session_if_there_are_too_many_profiles() -> None:
    harness = PoolHarness(most=1, first=FORM | SAMPLING, has_streams=True)
    harness.acquire("a", SHARED_GROUP, FORM, urgent=True)
    harness.acquire("b", SHARED_GROUP, SAMPLING, urgent=True)
    await harness.settle()
    harness.acquire("c", SHARED_GROUP, SAMPLING, urgent=True)
    assert sorted(harness.started) == [("a", 1), ("b", 0), ("c", 0)]
    harness.calls["a"].set_result(1)
    harness.acquire("d", SHARED_GROUP, SAMPLING, urgent=True)
    await harness.settle()
    assert (harness.closed, harness.started[-1]) == ([1], ("d", 2))
    await harness.pool.aclose()


async def test_all_groups_share_the_primary_session_if_no_other_can_be_opened() -> None:
    harness = PoolHarness(first=FORM | SAMPLING, has_streams=True)
    harness.failure = OSError("no")
    harness.acquire("a", SHARED_GROUP, FORM, urgent=True)
    await harness.settle()
    harness.acquire("b", SHARED_GROUP, FORM, urgent=True)
    assert harness.started == [("a", 0), ("b", 0)]
    await harness.pool.aclose()


async def test_an_exhausted_pool_is_not_a_failure_of_the_server() -> None:
    harness = PoolHarness(most=0, first=FORM)
    harness.acquire("a", "A")
    waiting = harness.acquire("b", "B")
    waiting.cancel(TimeoutError())
    assert isinstance(waiting.error, ConnectionLost)
    assert "max_sessions" in str(waiting.error)
    started = harness.acquire("c", "A", urgent=True)
    started.cancel(TimeoutError())
    assert isinstance(started.error, TimeoutError)
    await harness.pool.aclose()


async def test_more_sessions_are_opened_after_the_limit_is_raised() -> None:
    harness = PoolHarness(most=1)
    for name in "abc":
        harness.acquire(name, name.upper())
    await harness.settle()
    assert harness.started == [("a", 1)]
    harness.pool.reconfigure(PoolLimits(2))
    await harness.settle()
    assert harness.started == [("a", 1), ("b", 2)]
    harness.pool.reconfigure(PoolLimits(3))
    await harness.settle()
    assert harness.started == [("a", 1), ("b", 2), ("c", 3)]
    await harness.pool.aclose()


async def test_queued_calls_can_fail_while_the_sessions_stay() -> None:
    harness = PoolHarness(most=0, first=FORM)
    harness.acquire("a", "A")
    waiting = harness.acquire("b", "B")
    harness.pool.fail_queued(ValueError("go"))
    assert str(waiting.error) == "go"
    harness.calls["a"].set_result(1)
    harness.acquire("c", "C")
    assert [name for name, _ in harness.started] == ["a", "c"]
    await harness.pool.aclose()


async def test_a_queued_call_gets_the_reason_of_its_cancellation() -> None:
    harness, why = PoolHarness(most=0, first=FORM), TimeoutError()
    harness.acquire("a", "A")
    waiting = harness.acquire("b", "B")
    harness.calls["a"].set_result(1)
    waiting.cancel(why)
    assert harness.calls["b"].error is why
    await harness.pool.aclose()


async def test_a_principal_with_its_share_of_sessions_leaves_one_for_others() -> None:
    harness = PoolHarness(most=3, max_per_principal=2)
    for name in ("a1", "a2", "a3"):
        harness.acquire(name, name, principal="a")
    await harness.settle()
    assert [name for name, _ in harness.started] == ["a1", "a2"]
    assert len(harness.opened) == 2
    harness.acquire("b1", "b1", principal="b")
    await harness.settle()
    assert [name for name, _ in harness.started] == ["a1", "a2", "b1"]
    harness.calls["a1"].set_result(None)
    await harness.settle()
    assert [name for name, _ in harness.started][3:] == ["a3"]
    await harness.pool.aclose()


async def test_a_principal_that_occupies_fewer_sessions_gets_the_next_one() -> None:
    harness = PoolHarness(most=2)
    for name in ("a1", "a2", "a3", "a4"):
        harness.acquire(name, name, principal="a")
    await harness.settle()
    harness.acquire("b1", "b1", principal="b")
    await harness.settle()
    assert len(harness.started) == 2
    harness.calls["a1"].set_result(None)
    await harness.settle()
    assert [name for name, _ in harness.started] == ["a1", "a2", "b1"]
    await harness.pool.aclose()


async def test_calls_without_input_share_a_session_and_have_no_share() -> None:
    harness = PoolHarness(max_per_principal=1)
    for name in ("n1", "n2", "n3"):
        harness.acquire(name, NO_INPUT_GROUP, NOTHING, principal="a")
    assert harness.started == [("n1", 0), ("n2", 0), ("n3", 0)]
    await harness.pool.aclose()


async def test_a_new_share_of_sessions_applies_at_once() -> None:
    harness = PoolHarness(max_per_principal=1)
    for name in ("a1", "a2"):
        harness.acquire(name, name, principal="a")
    await harness.settle()
    assert len(harness.started) == 1
    harness.pool.reconfigure(PoolLimits(2, 2))
    await harness.settle()
    assert len(harness.started) == 2
    await harness.pool.aclose()


async def test_idle_sessions_above_a_lower_limit_are_closed() -> None:
    harness = PoolHarness(most=3)
    for name in "abc":
        harness.acquire(name, name.upper())
    await harness.settle()
    await harness.finish("a")
    harness.pool.reconfigure(PoolLimits(1))
    await harness.settle()
    assert (harness.closed, harness.pool.extra_count) == ([1], 2)
    harness.acquire("d", "D")
    await harness.finish("b")
    await harness.finish("c")
    assert harness.pool.extra_count == 1
    assert harness.started[-1] == ("d", 4)
    await harness.pool.aclose()


async def test_a_principal_with_its_share_evicts_only_its_own_sessions() -> None:
    harness = PoolHarness(most=3, max_per_principal=2)
    for name in ("b1", "a1", "a2"):
        harness.acquire(name, name, principal=name[0])
        await harness.settle()
        await harness.finish(name)
    harness.acquire("a3", "a3", principal="a")
    await harness.settle()
    assert (harness.closed, harness.started[-1]) == ([2], ("a3", 4))
    await harness.pool.aclose()
