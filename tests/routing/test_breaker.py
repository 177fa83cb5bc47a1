"""Back-off and the circuit breaker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trunkline.routing.breaker import (
    HEALTHY_UPTIME,
    MAX_RETRY_DELAY,
    Breaker,
    CircuitState,
    backoff_delay,
    count_failure,
)


@pytest.mark.holds("O0.17")
def test_each_failure_doubles_the_delay_up_to_a_minute() -> None:
    assert [backoff_delay(n, 0.0) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_limits_of_the_delay_can_be_set() -> None:
    assert [backoff_delay(n, 0.0, 0.25, 1.5) for n in range(1, 6)] == [0.25, 0.5, 1, 1.5, 1.5]
    assert backoff_delay(9, 1.0, 0.25, 2.0) == 3.0


@pytest.mark.holds("O0.17")
@given(st.integers(1, 10**9), st.floats(0, 1))
def test_jitter_adds_up_to_half_and_no_delay_is_longer(failures: int, jitter: float) -> None:
    least = backoff_delay(failures, 0.0)
    assert 1.0 <= least <= backoff_delay(failures, jitter) <= 1.5 * least <= 1.5 * MAX_RETRY_DELAY


@pytest.mark.holds("O0.17")
def test_a_long_uptime_resets_the_failures() -> None:
    assert count_failure(0, 0.0) == 1
    assert count_failure(7, HEALTHY_UPTIME - 0.1) == 8
    assert count_failure(7, HEALTHY_UPTIME) == 1


RECOVERY = 30.0


def opened(at: float = 0.0, threshold: int = 1) -> Breaker:
    breaker = Breaker(threshold, RECOVERY)
    for _ in range(threshold):
        breaker.record_failure(breaker.generation, at)
    return breaker


def admitted(breaker: Breaker, now: float) -> int:
    passed = breaker.admit(now)
    assert passed is not None
    return passed


@pytest.mark.holds("O0.12")
def test_it_opens_after_the_threshold_of_failures_in_a_row() -> None:
    breaker = Breaker(5, RECOVERY)
    opened = [breaker.record_failure(admitted(breaker, 0.0), 0.0) for _ in range(5)]
    assert opened == [False] * 4 + [True]
    assert breaker.state is CircuitState.OPEN
    assert breaker.admit(29.9) is None
    assert breaker.retry_in(10.0) == 20.0


@pytest.mark.holds("O0.12")
def test_a_success_in_between_resets_the_count() -> None:
    breaker = Breaker(2, RECOVERY)
    for _ in range(9):
        passed = admitted(breaker, 0.0)
        assert not breaker.record_failure(passed, 0.0)
        assert not breaker.record_success(passed)
    assert breaker.is_closed
    assert breaker.failures == 0
    assert breaker.retry_in(0.0) == 0.0


def test_with_a_threshold_of_zero_it_never_opens() -> None:
    breaker = Breaker(0, RECOVERY)
    assert not any(breaker.record_failure(breaker.generation, 0.0) for _ in range(1000))
    assert breaker.is_closed


@pytest.mark.holds("O0.12", "M12")
def test_after_the_recovery_time_one_call_probes_alone() -> None:
    breaker = opened()
    probe = admitted(breaker, 30.0)
    assert breaker.state is CircuitState.HALF_OPEN
    assert [breaker.admit(30.0 + n) for n in range(29)] == [None] * 29
    assert breaker.record_success(probe)
    assert breaker.state is CircuitState.CLOSED
    assert breaker.failures == 0


@pytest.mark.holds("O0.12")
def test_a_failed_probe_opens_it_again() -> None:
    breaker = opened(threshold=3)
    assert breaker.record_failure(admitted(breaker, 30.0), 31.0)
    assert breaker.state is CircuitState.OPEN
    assert breaker.admit(60.9) is None
    assert breaker.record_success(admitted(breaker, 61.0))


def test_a_released_probe_lets_the_next_call_probe() -> None:
    breaker = opened()
    breaker.release(admitted(breaker, 30.0), 31.0)
    assert breaker.state is CircuitState.OPEN
    assert breaker.record_success(admitted(breaker, 31.0))


def test_a_release_in_a_closed_circuit_means_nothing() -> None:
    breaker = Breaker(2, RECOVERY)
    breaker.record_failure(breaker.generation, 0.0)
    breaker.release(breaker.generation, 0.0)
    assert (breaker.state, breaker.failures) == (CircuitState.CLOSED, 1)


def test_a_probe_without_an_outcome_does_not_block_for_ever() -> None:
    breaker = opened()
    first = admitted(breaker, 30.0)
    second = admitted(breaker, 60.0)
    assert not breaker.record_success(first)
    assert not breaker.record_failure(first, 61.0)
    breaker.release(first, 61.0)
    assert breaker.state is CircuitState.HALF_OPEN
    assert breaker.record_success(second)


def test_outcomes_of_earlier_generations_are_ignored() -> None:
    breaker = Breaker(2, RECOVERY)
    old = admitted(breaker, 0.0)
    breaker.record_failure(old, 0.0)
    assert breaker.record_failure(old, 0.0)
    assert not breaker.record_success(old)
    assert breaker.state is CircuitState.OPEN
    assert breaker.record_success(admitted(breaker, 30.0))
    assert not any(breaker.record_failure(old, 31.0) for _ in range(9))
    assert breaker.is_closed


def test_a_restarted_backend_is_probed_immediately() -> None:
    breaker = opened()
    breaker.probe_now(5.0)
    assert breaker.record_success(admitted(breaker, 5.0))
    breaker.probe_now(6.0)
    assert breaker.is_closed


@given(st.integers(1, 20), st.lists(st.booleans(), max_size=60))
def test_it_opens_at_the_first_long_enough_run_of_failures(
    threshold: int, answers: list[bool]
) -> None:
    breaker, run = Breaker(threshold, RECOVERY), 0
    for answered in answers:
        passed = admitted(breaker, 0.0)
        if answered:
            breaker.record_success(passed)
        else:
            breaker.record_failure(passed, 0.0)
        run = 0 if answered else run + 1
        assert breaker.is_closed == (run < threshold)
        if run == threshold:
            break


class Life(RuleBasedStateMachine):
    """A sequence of admissions, outcomes, releases and lost calls, while time passes."""

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
        assert not could or self.breaker.retry_in(self.now) == 0.0  # time alone never closes it

    @rule()
    def come(self) -> None:
        closed, left = self.breaker.is_closed, self.breaker.retry_in(self.now)
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
        before, current = self.breaker.state, passed == self.breaker.generation
        if how == "answer":
            assert self.breaker.record_success(passed) == (probe and current)
        elif how == "fail":
            failures = self.breaker.failures
            opened = self.breaker.record_failure(passed, self.now)
            assert opened == (current and (probe or failures == 2))
        elif how == "give up":
            self.breaker.release(passed, self.now)
        if not current or how == "vanish":
            assert self.breaker.state is before
        if how != "vanish":
            self.probes = [each for each in self.probes if each[0] != passed]

    @rule()
    def start_anew(self) -> None:
        self.breaker.probe_now(self.now)
        self.probes.clear()

    @invariant()
    def it_is_open_only_for_a_reason(self) -> None:
        assert self.breaker.is_closed or self.breaker.failures >= 3
        assert self.breaker.retry_in(self.now) <= RECOVERY + 1e-6


TestLife = Life.TestCase


def test_new_settings_apply_from_now_on() -> None:
    breaker = Breaker(5, 30.0)
    breaker.record_failure(breaker.generation, 0.0)
    breaker.reconfigure(2, 1.0)
    assert breaker.record_failure(breaker.generation, 0.0)
    assert breaker.retry_in(0.0) == 1.0
    breaker.reconfigure(2, 60.0)
    assert breaker.retry_in(0.0) == 1.0
