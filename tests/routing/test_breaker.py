"""The circuit of a backend: it opens, lets one call find out, and closes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trunkline.routing.breaker import Breaker, Circuit

RECOVERY = 30.0


def opened(at: float = 0.0, threshold: int = 1) -> Breaker:
    breaker = Breaker(threshold, RECOVERY)
    for _ in range(threshold):
        breaker.fail(breaker.passing, at)
    return breaker


def admitted(breaker: Breaker, now: float) -> int:
    passed = breaker.admit(now)
    assert passed is not None
    return passed


@pytest.mark.holds("O0.12")
def test_it_opens_after_so_many_failures_in_a_row() -> None:
    breaker = Breaker(5, RECOVERY)
    news = [breaker.fail(admitted(breaker, 0.0), 0.0) for _ in range(5)]
    assert news == [False] * 4 + [True]
    assert breaker.circuit is Circuit.OPEN
    assert breaker.admit(29.9) is None
    assert breaker.retry_in(10.0) == 20.0


@pytest.mark.holds("O0.12")
def test_an_answer_in_between_begins_the_count_anew() -> None:
    breaker = Breaker(2, RECOVERY)
    for _ in range(9):
        passed = admitted(breaker, 0.0)
        assert not breaker.fail(passed, 0.0)
        assert not breaker.succeed(passed)
    assert breaker.closed
    assert breaker.failures == 0
    assert breaker.retry_in(0.0) == 0.0


def test_with_a_threshold_of_nothing_it_never_opens() -> None:
    breaker = Breaker(0, RECOVERY)
    assert not any(breaker.fail(breaker.passing, 0.0) for _ in range(1000))
    assert breaker.closed


@pytest.mark.holds("O0.12", "M12")
def test_after_a_while_one_call_finds_out_and_nobody_else() -> None:
    breaker = opened()
    probe = admitted(breaker, 30.0)
    assert breaker.circuit is Circuit.HALF_OPEN
    assert [breaker.admit(30.0 + n) for n in range(29)] == [None] * 29
    assert breaker.succeed(probe)
    assert breaker.circuit is Circuit.CLOSED
    assert breaker.failures == 0


@pytest.mark.holds("O0.12")
def test_a_failure_of_the_one_that_finds_out_opens_it_again() -> None:
    breaker = opened(threshold=3)
    assert breaker.fail(admitted(breaker, 30.0), 31.0)
    assert breaker.circuit is Circuit.OPEN
    assert breaker.admit(60.9) is None
    assert breaker.succeed(admitted(breaker, 61.0))


def test_one_that_gives_up_leaves_it_to_the_next() -> None:
    breaker = opened()
    breaker.release(admitted(breaker, 30.0), 31.0)
    assert breaker.circuit is Circuit.OPEN
    assert breaker.succeed(admitted(breaker, 31.0))


def test_to_give_up_in_a_closed_circuit_means_nothing() -> None:
    breaker = Breaker(2, RECOVERY)
    breaker.fail(breaker.passing, 0.0)
    breaker.release(breaker.passing, 0.0)
    assert (breaker.circuit, breaker.failures) == (Circuit.CLOSED, 1)


def test_one_that_never_says_what_came_of_it_is_not_waited_for() -> None:
    breaker = opened()
    first = admitted(breaker, 30.0)
    second = admitted(breaker, 60.0)
    assert not breaker.succeed(first)
    assert not breaker.fail(first, 61.0)
    breaker.release(first, 61.0)
    assert breaker.circuit is Circuit.HALF_OPEN
    assert breaker.succeed(second)


def test_calls_from_before_say_nothing_about_what_is_now() -> None:
    breaker = Breaker(2, RECOVERY)
    old = admitted(breaker, 0.0)
    breaker.fail(old, 0.0)
    assert breaker.fail(old, 0.0)
    assert not breaker.succeed(old)
    assert breaker.circuit is Circuit.OPEN
    assert breaker.succeed(admitted(breaker, 30.0))
    assert not any(breaker.fail(old, 31.0) for _ in range(9))
    assert breaker.closed


def test_one_that_was_started_anew_may_be_asked_at_once() -> None:
    breaker = opened()
    breaker.hasten(5.0)
    assert breaker.succeed(admitted(breaker, 5.0))
    breaker.hasten(6.0)
    assert breaker.closed


@given(st.integers(1, 20), st.lists(st.booleans(), max_size=60))
def test_it_opens_at_the_first_run_of_failures_that_is_long_enough(
    threshold: int, answers: list[bool]
) -> None:
    breaker, run = Breaker(threshold, RECOVERY), 0
    for answered in answers:
        passed = admitted(breaker, 0.0)
        if answered:
            breaker.succeed(passed)
        else:
            breaker.fail(passed, 0.0)
        run = 0 if answered else run + 1
        assert breaker.closed == (run < threshold)
        if run == threshold:
            break


class Life(RuleBasedStateMachine):
    """Calls come, answer, fail, give up and are never heard of again, while time goes by."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(3, RECOVERY)
        self.now = 0.0
        self.under_way: list[tuple[int, bool]] = []
        self.probes: list[tuple[int, float]] = []

    @rule(seconds=st.floats(0, 45))
    def wait(self, seconds: float) -> None:
        could = self.breaker.retry_in(self.now) == 0.0
        self.now += seconds
        assert not could or self.breaker.retry_in(self.now) == 0.0  # time alone never shuts it

    @rule()
    def come(self) -> None:
        closed, left = self.breaker.closed, self.breaker.retry_in(self.now)
        passed = self.breaker.admit(self.now)
        assert (passed is None) == (left > 0.0)
        if passed is None:
            return
        self.under_way.append((passed, not closed))
        if not closed:
            assert all(self.now - since >= RECOVERY for _, since in self.probes)
            self.probes.append((passed, self.now))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), how=st.sampled_from(("answer", "fail", "give up", "vanish")))
    def end(self, data: st.DataObject, how: str) -> None:
        at = data.draw(st.integers(0, len(self.under_way) - 1))
        passed, probe = self.under_way.pop(at)
        before, current = self.breaker.circuit, passed == self.breaker.passing
        if how == "answer":
            assert self.breaker.succeed(passed) == (probe and current)
        elif how == "fail":
            failures = self.breaker.failures
            news = self.breaker.fail(passed, self.now)
            assert news == (current and (probe or failures == 2))
        elif how == "give up":
            self.breaker.release(passed, self.now)
        if not current or how == "vanish":
            assert self.breaker.circuit is before
        if how != "vanish":
            self.probes = [each for each in self.probes if each[0] != passed]

    @rule()
    def start_anew(self) -> None:
        self.breaker.hasten(self.now)
        self.probes.clear()

    @invariant()
    def it_is_open_only_for_a_reason(self) -> None:
        assert self.breaker.closed or self.breaker.failures >= 3
        assert self.breaker.retry_in(self.now) <= RECOVERY + 1e-6


TestLife = Life.TestCase


def test_other_limits_hold_from_now_on() -> None:
    breaker = Breaker(5, 30.0)
    breaker.fail(breaker.passing, 0.0)
    breaker.adopt(2, 1.0)
    assert breaker.fail(breaker.passing, 0.0)
    assert breaker.retry_in(0.0) == 1.0
    breaker.adopt(2, 60.0)
    assert breaker.retry_in(0.0) == 1.0
