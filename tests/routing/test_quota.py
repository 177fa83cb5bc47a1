"""What has been used: never more than a limit allows, and never a wait that is wrong."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.quota import MINUTE, SECOND, Demand, Excess, Quota

RATES = st.integers(1, 7) | st.integers(1, 10**9)
STEPS = st.integers(0, 2 * MINUTE) | st.integers(0, 10)
KEYS = st.sampled_from([("tool", "ann", "x"), ("tool", "bob", "x"), ("server_total", "s")])


def moments(steps: Sequence[int]) -> list[int]:
    now, found = 0, list[int]()
    for step in steps:
        now += step
        found.append(now)
    return found


def demand(rpm: int | None = None, concurrent: int | None = None, *key: str) -> Demand:
    return Demand(key or ("tool", "ann", "x"), rpm, concurrent)


@pytest.mark.holds("O0.10", "M12")
def test_the_third_of_two_a_minute_waits_for_half_a_minute() -> None:
    quota, two = Quota(), [demand(2)]
    assert quota.enter(two, 0) is None
    assert quota.enter(two, 0) is None
    assert quota.enter(two, 0) == Excess(("tool", "ann", "x"), MINUTE // 2, False)
    assert quota.enter(two, MINUTE // 2) is None


@given(RATES.filter(lambda rpm: rpm < 100), st.lists(STEPS, max_size=60))
def test_over_any_stretch_no_more_are_let_in_than_the_limit_and_what_runs_out(
    rpm: int, steps: list[int]
) -> None:
    quota = Quota()
    let_in = [now for now in moments(steps) if quota.enter([demand(rpm)], now) is None]
    for first, start in enumerate(let_in):
        for last, end in enumerate(let_in[first:], first):
            assert (last - first + 1) * MINUTE <= rpm * (MINUTE + end - start)


@given(RATES, st.lists(STEPS, max_size=40), st.integers(1, 50))
def test_a_wait_suffices_and_nothing_shorter_does(rpm: int, steps: list[int], burst: int) -> None:
    quota, limit = Quota(), [demand(min(rpm, burst))]
    now = 0
    for now in moments(steps):
        quota.enter(limit, now)
    while (excess := quota.enter(limit, now)) is None:
        pass
    assert 0 < excess.wait <= MINUTE
    too_soon = quota.enter(limit, now + excess.wait - 1)
    assert too_soon is not None
    assert too_soon.wait == 1
    assert quota.enter(limit, now + excess.wait) is None


@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=40), st.integers(1, 5))
def test_one_client_never_notices_another(calls: list[tuple[int, bool]], rpm: int) -> None:
    together, alone = Quota(), Quota()
    now = 0
    for step, is_ann in calls:
        now += step
        if is_ann:
            ann = [demand(rpm, None, "tool", "ann", "x")]
            assert together.enter(ann, now) == alone.enter(ann, now)
        else:
            together.enter([demand(rpm, None, "tool", "bob", "x")], now)


LIMITS = st.lists(st.tuples(KEYS, st.integers(1, 4)), max_size=3, unique_by=lambda each: each[0])


@given(st.lists(st.tuples(STEPS, LIMITS), max_size=30))
def test_it_does_not_matter_in_which_order_limits_come(
    calls: list[tuple[int, list[tuple[tuple[str, ...], int]]]],
) -> None:
    one, other = Quota(), Quota()
    now = 0
    for step, limits in calls:
        now += step
        demands = [Demand(key, rpm) for key, rpm in limits]
        assert one.enter(demands, now) == other.enter(demands[::-1], now)


@given(st.lists(st.tuples(STEPS, LIMITS), max_size=30))
def test_a_call_that_one_limit_refuses_uses_up_nothing_of_the_others(
    calls: list[tuple[int, list[tuple[tuple[str, ...], int]]]],
) -> None:
    quota, without = Quota(), Quota()
    now = 0
    for step, limits in calls:
        now += step
        demands = [Demand(key, rpm) for key, rpm in limits]
        refused = quota.enter(demands, now) is not None
        if not refused:
            assert without.enter(demands, now) is None
        else:
            assert without.enter(demands, now) is not None
            never = [*demands, Demand(("stopped",), None, 0)]
            assert quota.enter(never, now) is not None  # and once more, in vain


def test_what_is_forgotten_for_one_limit_is_not_lost_to_another_of_the_same_call() -> None:
    quota = Quota()
    ann, new = demand(1, None, "subject", "ann"), demand(1, None, "tool", "ann", "x")
    assert quota.enter([ann], 0) is None
    assert quota.enter([ann, new], MINUTE) is None
    assert quota.enter([ann], MINUTE) is not None
    assert quota.enter([new], MINUTE) is not None


def test_a_refused_call_leaves_the_other_limit_as_it_was() -> None:
    quota = Quota()
    wide, narrow = demand(2, None, "subject", "ann"), demand(1, None, "tool", "ann", "x")
    assert quota.enter([wide, narrow], 0) is None
    assert quota.enter([wide, narrow], 0) == Excess(narrow.key, MINUTE, False)
    assert quota.enter([wide], 0) is None
    assert quota.enter([wide], 0) == Excess(wide.key, MINUTE // 2, False)


def test_of_several_limits_the_longest_wait_is_told() -> None:
    quota = Quota()
    long, short = demand(1, None, "tool", "ann", "x"), demand(6, 1, "subject", "ann")
    assert quota.enter([short, long], 0) is None
    assert quota.enter([short, long], 0) == Excess(long.key, MINUTE, False)
    assert quota.enter([long, short], 0) == Excess(long.key, MINUTE, False)
    assert quota.enter([short], 0) == Excess(short.key, SECOND, True)


def test_no_more_are_under_way_than_may_be_and_those_who_leave_make_room() -> None:
    quota, two = Quota(), [demand(None, 2)]
    assert quota.enter(two, 0) is None
    assert quota.enter(two, 0) is None
    assert quota.enter(two, 0) == Excess(two[0].key, SECOND, True)
    quota.leave(two)
    assert quota.enter(two, 0) is None
    quota.leave(two)
    quota.leave(two)
    assert len(quota) == 0


# When limits change


@pytest.mark.holds("M12")
@given(RATES, RATES, st.integers(0, 40), st.integers(0, MINUTE))
def test_what_was_used_stays_used_when_a_limit_changes(
    before: int, after: int, calls: int, later: int
) -> None:
    before, after = before % 50 + 1, after % 50 + 1
    quota = Quota()
    used = sum(quota.enter([demand(before)], 0) is None for _ in range(calls))
    left = max(used * MINUTE - before * later, 0)  # of what was used, since nobody called
    room = sum(quota.enter([demand(after)], later) is None for _ in range(after + 1))
    assert room == (after * MINUTE - min(left, after * MINUTE)) // MINUTE


def test_a_limit_that_was_lowered_makes_nobody_wait_for_longer_than_its_own_minute() -> None:
    quota = Quota()
    for _ in range(1000):
        assert quota.enter([demand(1000)], 0) is None
    assert quota.enter([demand(2)], 0) == Excess(("tool", "ann", "x"), MINUTE // 2, False)
    assert quota.enter([demand(2)], MINUTE // 2) is None


# What is kept


def test_what_has_run_out_is_forgotten() -> None:
    quota = Quota()
    for number in range(1000):
        quota.enter([demand(60, None, "subject", str(number))], number * SECOND)
    assert len(quota) <= 3


@given(st.integers(1, 20), st.lists(st.integers(0, 100), max_size=200))
def test_whoever_invents_subjects_wins_neither_memory_nor_calls(
    most: int, subjects: list[int]
) -> None:
    quota = Quota(most)
    let_in = 0
    for subject in subjects:
        let_in += quota.enter([demand(3, None, "subject", str(subject))], 0) is None
        assert len(quota) <= most + 1
    assert let_in <= 3 * (most + 1)


def test_those_who_were_there_first_keep_their_own_when_others_come_too_late() -> None:
    quota = Quota(1)
    ann, bob, cid = (demand(2, None, "subject", name) for name in ("ann", "bob", "cid"))
    assert quota.enter([ann], 0) is None
    assert quota.enter([bob], 0) is None
    assert quota.enter([cid], 0) is None
    assert quota.enter([bob], 0) == Excess(("subject", "bob"), MINUTE // 2, False)
    assert quota.enter([ann], 0) is None
    assert quota.enter([bob], MINUTE) is None


def test_what_has_not_run_out_is_kept_when_room_is_made() -> None:
    quota = Quota(max_buckets=9)
    first, second = (Demand(("subject", name), 1, None) for name in "ab")
    assert quota.enter([first], 0) is None
    assert quota.enter([second], SECOND) is None
    assert quota.enter([first], 2 * SECOND) is not None


def test_what_is_about_to_be_used_is_not_forgotten_to_make_room_for_what_is_used_with_it() -> None:
    quota = Quota()
    old, new = (Demand(("subject", name), 1, None) for name in "ab")
    assert quota.enter([old], 0) is None
    assert quota.enter([old, new], 5 * MINUTE) is None
    assert quota.enter([old], 5 * MINUTE) == Excess(old.key, MINUTE, False)
