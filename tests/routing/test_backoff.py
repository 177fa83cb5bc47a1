"""How long a backend waits before it is started again."""

from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.backoff import HEALTHY, LONGEST, delay, failures_after


def test_each_failure_doubles_the_delay_up_to_a_minute() -> None:
    assert [delay(n, 0.0) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_whoever_has_less_or_more_patience_says_so() -> None:
    assert [delay(n, 0.0, 0.25, 1.5) for n in range(1, 6)] == [0.25, 0.5, 1, 1.5, 1.5]
    assert delay(9, 1.0, 0.25, 2.0) == 3.0


@given(st.integers(1, 10**9), st.floats(0, 1))
def test_chance_adds_up_to_half_and_nothing_is_ever_longer(failures: int, chance: float) -> None:
    least = delay(failures, 0.0)
    assert 1.0 <= least <= delay(failures, chance) <= 1.5 * least <= 1.5 * LONGEST


def test_whoever_lived_long_enough_starts_anew() -> None:
    assert failures_after(0, 0.0) == 1
    assert failures_after(7, HEALTHY - 0.1) == 8
    assert failures_after(7, HEALTHY) == 1
