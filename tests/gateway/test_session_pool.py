"""The session pool: a session for each call group, queued calls in order, and limits."""

import asyncio
from typing import Any

import pytest

from trunkline.gateway.session_pool import NO_INPUT_GROUP, SHARED_GROUP, SessionPool, SessionProfile
from trunkline.jsonrpc import ConnectionLost, PendingResult

FORM = frozenset(("elicitation.form",))
NOTHING: frozenset[str] = frozenset()


class PoolHarness:
    """A pool of numbered sessions, and the calls that were started in each."""

    def __init__(
        self,
        most: int = 2,
        first: frozenset[str] = NOTHING,
        idle_timeout: float = 60.0,
        max_per_principal: int | None = None,
    ) -> None:
        self.opened: list[frozenset[str]] = []
        self.closed: list[int] = []
        self.started: list[tuple[str, int]] = []
        self.calls: dict[str, PendingResult] = {}
        self.failure: Exception | None = None
        self.dead: set[int] = set()
        self.pool: SessionPool[int] = SessionPool(
            most, self.open, self.close, idle_timeout, max_per_principal
        )
        self.pool.set_primary(0, SessionProfile(first))

    async def open(self, kind: SessionProfile) -> int:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.opened.append(kind.client_features)
        return len(self.opened)

    async def close(self, held: int) -> None:
        self.closed.append(held)

    def acquire(
        self,
        name: str,
        group: object,
        features: frozenset[str] = FORM,
        *,
        urgent: bool = False,
        owner: str | None = None,
        principal: str | None = None,
    ) -> PendingResult:
        def start(held: int) -> Any:
            if held in self.dead:
                raise ConnectionLost("gone")
            self.started.append((name, held))
            self.calls[name] = PendingResult()
            return self.calls[name]

        return self.pool.acquire(
            group, SessionProfile(features, owner), start, urgent=urgent, principal=principal
        )

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


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


async def test_an_idle_session_with_another_profile_makes_room() -> None:
    harness = PoolHarness(most=1)
    harness.acquire("a", "A")
    await harness.settle()
    other = frozenset(("sampling",))
    harness.acquire("b", "B", other)
    await harness.settle()
    assert harness.opened == [FORM]
    harness.calls["a"].set_result(1)
    await harness.settle()
    assert (harness.opened, harness.closed) == ([FORM, other], [1])
    assert harness.started[-1] == ("b", 2)
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


async def test_a_call_with_another_profile_is_not_overtaken_forever() -> None:
    harness = PoolHarness(most=1)
    harness.acquire("a", "A")
    await harness.settle()
    other = frozenset(("sampling",))
    harness.acquire("b", "B", other)
    harness.acquire("c", "C")  # later, and of the kind that is there
    harness.calls["a"].set_result(1)
    await harness.settle()
    assert harness.started == [("a", 1), ("b", 2)]
    harness.calls["b"].set_result(1)
    await harness.settle()
    assert harness.started[2:] == [("c", 3)]
    await harness.pool.aclose()


async def test_an_idle_session_is_closed_after_its_timeout() -> None:
    harness = PoolHarness(idle_timeout=0.01)
    harness.acquire("a", "A")
    await harness.settle()
    harness.calls["a"].set_result(1)
    async with asyncio.timeout(5):
        while not harness.closed:
            await asyncio.sleep(0)
    assert harness.pool.extra_count == 0
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


async def test_a_session_is_opened_ahead_unless_one_exists() -> None:
    harness = PoolHarness(most=1)
    await asyncio.gather(*(harness.pool.open_ahead(SessionProfile(FORM)) for _ in range(2)))
    await harness.pool.open_ahead(
        SessionProfile(frozenset(("sampling",)))
    )  # which would be one too many
    assert harness.opened == [FORM]
    harness.acquire("a", "A")
    assert harness.started == [("a", 1)]
    await harness.pool.aclose()


async def test_no_session_is_opened_ahead_where_the_primary_serves_all_or_one_just_failed() -> None:
    harness = PoolHarness(first=FORM)
    await harness.pool.open_ahead(SessionProfile(frozenset(("sampling",))))
    assert harness.opened == []
    harness = PoolHarness()
    harness.failure = OSError("no more processes")
    await harness.pool.open_ahead(SessionProfile(FORM))
    harness.failure = None
    await harness.pool.open_ahead(SessionProfile(FORM))
    assert harness.opened == []


SAMPLING = frozenset(("sampling",))


async def test_a_shared_group_uses_sessions_of_its_profile_only() -> None:
    harness = PoolHarness(first=FORM | SAMPLING)
    for name, kind in (("a", FORM), ("b", FORM), ("c", SAMPLING), ("d", FORM | SAMPLING)):
        harness.acquire(name, SHARED_GROUP, kind, urgent=True)
    await harness.settle()
    assert harness.opened == [FORM, SAMPLING]
    assert sorted(harness.started) == [("a", 1), ("b", 1), ("c", 2), ("d", 0)]
    await harness.pool.aclose()


async def test_all_groups_share_the_primary_session_if_there_are_too_many_profiles() -> None:
    harness = PoolHarness(most=1, first=FORM | SAMPLING)
    harness.acquire("a", SHARED_GROUP, FORM, urgent=True)
    harness.acquire("b", SHARED_GROUP, SAMPLING, urgent=True)
    await harness.settle()
    harness.acquire("c", SHARED_GROUP, SAMPLING, urgent=True)
    assert harness.started == [("a", 1), ("b", 0), ("c", 0)]
    harness.calls["a"].set_result(1)
    harness.acquire("d", SHARED_GROUP, SAMPLING, urgent=True)
    await harness.settle()
    assert (harness.closed, harness.started[-1]) == ([1], ("d", 2))
    await harness.pool.aclose()


async def test_all_groups_share_the_primary_session_if_no_other_can_be_opened() -> None:
    harness = PoolHarness(first=FORM | SAMPLING)
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
    harness.pool.reconfigure(2)
    await harness.settle()
    assert harness.started == [("a", 1), ("b", 2)]
    harness.pool.reconfigure(3)
    await harness.settle()
    assert harness.started == [("a", 1), ("b", 2), ("c", 3)]
    await harness.pool.aclose()


async def test_extra_sessions_are_closed_when_idle() -> None:
    harness = PoolHarness(most=3)
    for name in "abc":
        harness.acquire(name, name.upper())
    await harness.settle()
    harness.calls["a"].set_result(None)
    harness.pool.reconfigure(1)
    await harness.settle()
    assert (harness.closed, harness.pool.extra_count) == ([1], 2)
    harness.acquire("d", "D")
    harness.calls["b"].set_result(None)
    await harness.settle()
    assert harness.started[-1] == ("d", 2)
    harness.acquire("e", "E", frozenset(("sampling",)))
    harness.calls["c"].set_result(None)
    await harness.settle()
    assert (harness.closed, harness.pool.extra_count) == ([1, 3], 1)
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


async def test_a_session_with_a_roots_owner_is_never_shared() -> None:
    harness = PoolHarness(most=1)
    harness.acquire("a", "A", owner="ann")
    await harness.settle()
    harness.calls["a"].set_result(None)
    harness.acquire("again", "A2", owner="ann")
    harness.acquire("b", "B", owner="bob")
    await harness.settle()
    assert harness.started == [("a", 1), ("again", 1)]
    harness.calls["again"].set_result(None)
    await harness.settle()
    assert harness.started[2:] == [("b", 2)]
    assert harness.closed == [1]
    await harness.pool.aclose()


async def test_opening_ahead_ends_when_the_pool_is_closed() -> None:
    harness = PoolHarness()
    harness.acquire("a", "A").cancel()
    preparing = asyncio.create_task(
        harness.pool.open_ahead(SessionProfile(frozenset(("sampling",))))
    )
    await harness.pool.aclose()  # before the session starts to open
    async with asyncio.timeout(5):
        await preparing
    assert (harness.opened, harness.pool.sessions) == ([], [])


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
    harness.pool.reconfigure(2, 2)
    await harness.settle()
    assert len(harness.started) == 2
    await harness.pool.aclose()
