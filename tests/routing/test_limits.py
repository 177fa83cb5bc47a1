"""Limits: usage never exceeds them, and reported waits are exact."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Principal
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.limits import (
    MINUTE_NS,
    SECOND_NS,
    AppliedLimit,
    Limit,
    LimitExceeded,
    LimitResolver,
    LimitTables,
    MemoryLimitStore,
    combine_limits,
)

pytestmark = pytest.mark.at_once

RATES = st.integers(1, 7) | st.integers(1, 10**9)
STEPS = st.integers(0, 2 * MINUTE_NS) | st.integers(0, 10)
KEYS = st.sampled_from([("tool", "ann", "x"), ("tool", "bob", "x"), ("server_total", "s")])


def moments(steps: Sequence[int]) -> list[int]:
    now, found = 0, list[int]()
    for step in steps:
        now += step
        found.append(now)
    return found


def limit_of(rpm: int | None = None, concurrent: int | None = None, *key: str) -> AppliedLimit:
    return AppliedLimit(key or ("tool", "ann", "x"), rpm, concurrent)


@pytest.mark.holds("O0.10", "M12")
def test_the_third_call_of_two_per_minute_waits_half_a_minute() -> None:
    store, two = MemoryLimitStore(), [limit_of(2)]
    assert store.acquire(two, 0) is None
    assert store.acquire(two, 0) is None
    assert store.acquire(two, 0) == LimitExceeded(("tool", "ann", "x"), MINUTE_NS // 2, False)
    assert store.acquire(two, MINUTE_NS // 2) is None


@given(RATES.filter(lambda rpm: rpm < 100), st.lists(STEPS, max_size=60))
def test_over_any_time_only_the_limit_plus_the_drain_is_admitted(
    rpm: int, steps: list[int]
) -> None:
    store = MemoryLimitStore()
    admitted = [now for now in moments(steps) if store.acquire([limit_of(rpm)], now) is None]
    for first, start in enumerate(admitted):
        for last, end in enumerate(admitted[first:], first):
            assert (last - first + 1) * MINUTE_NS <= rpm * (MINUTE_NS + end - start)


@given(RATES, st.lists(STEPS, max_size=40), st.integers(1, 50))
def test_the_reported_wait_suffices_and_no_shorter_one_does(
    rpm: int, steps: list[int], burst: int
) -> None:
    store, limit = MemoryLimitStore(), [limit_of(min(rpm, burst))]
    now = 0
    for now in moments(steps):
        store.acquire(limit, now)
    while (exceeded := store.acquire(limit, now)) is None:
        pass
    assert 0 < exceeded.retry_after_ns <= MINUTE_NS
    too_soon = store.acquire(limit, now + exceeded.retry_after_ns - 1)
    assert too_soon is not None
    assert too_soon.retry_after_ns == 1
    assert store.acquire(limit, now + exceeded.retry_after_ns) is None


@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=40), st.integers(1, 5))
def test_clients_do_not_affect_each_other(calls: list[tuple[int, bool]], rpm: int) -> None:
    together, alone = MemoryLimitStore(), MemoryLimitStore()
    now = 0
    for step, is_ann in calls:
        now += step
        if is_ann:
            ann = [limit_of(rpm, None, "tool", "ann", "x")]
            assert together.acquire(ann, now) == alone.acquire(ann, now)
        else:
            together.acquire([limit_of(rpm, None, "tool", "bob", "x")], now)


LIMITS = st.lists(st.tuples(KEYS, st.integers(1, 4)), max_size=3, unique_by=lambda each: each[0])


@given(st.lists(st.tuples(STEPS, LIMITS), max_size=30))
def test_the_order_of_limits_does_not_matter(
    calls: list[tuple[int, list[tuple[tuple[str, ...], int]]]],
) -> None:
    one, other = MemoryLimitStore(), MemoryLimitStore()
    now = 0
    for step, limits in calls:
        now += step
        applied = [AppliedLimit(key, rpm) for key, rpm in limits]
        assert one.acquire(applied, now) == other.acquire(applied[::-1], now)


@given(st.lists(st.tuples(STEPS, LIMITS), max_size=30))
def test_a_rejected_call_uses_nothing_of_the_other_limits(
    calls: list[tuple[int, list[tuple[tuple[str, ...], int]]]],
) -> None:
    store, without = MemoryLimitStore(), MemoryLimitStore()
    now = 0
    for step, limits in calls:
        now += step
        applied = [AppliedLimit(key, rpm) for key, rpm in limits]
        rejected = store.acquire(applied, now) is not None
        if not rejected:
            assert without.acquire(applied, now) is None
        else:
            assert without.acquire(applied, now) is not None
            never = [*applied, AppliedLimit(("stopped",), None, 0)]
            assert store.acquire(never, now) is not None  # and a call that is rejected anyway


def test_eviction_for_one_limit_does_not_lose_another_of_the_same_call() -> None:
    store = MemoryLimitStore()
    ann, new = limit_of(1, None, "subject", "ann"), limit_of(1, None, "tool", "ann", "x")
    assert store.acquire([ann], 0) is None
    assert store.acquire([ann, new], MINUTE_NS) is None
    assert store.acquire([ann], MINUTE_NS) is not None
    assert store.acquire([new], MINUTE_NS) is not None


def test_a_rejected_call_leaves_the_other_limit_unchanged() -> None:
    store = MemoryLimitStore()
    wide, narrow = limit_of(2, None, "subject", "ann"), limit_of(1, None, "tool", "ann", "x")
    assert store.acquire([wide, narrow], 0) is None
    assert store.acquire([wide, narrow], 0) == LimitExceeded(narrow.key, MINUTE_NS, False)
    assert store.acquire([wide], 0) is None
    assert store.acquire([wide], 0) == LimitExceeded(wide.key, MINUTE_NS // 2, False)


def test_of_several_limits_the_longest_wait_is_reported() -> None:
    store = MemoryLimitStore()
    long, short = limit_of(1, None, "tool", "ann", "x"), limit_of(6, 1, "subject", "ann")
    assert store.acquire([short, long], 0) is None
    assert store.acquire([short, long], 0) == LimitExceeded(long.key, MINUTE_NS, False)
    assert store.acquire([long, short], 0) == LimitExceeded(long.key, MINUTE_NS, False)
    assert store.acquire([short], 0) == LimitExceeded(short.key, SECOND_NS, True)


def test_calls_in_flight_are_bounded_and_releases_make_room() -> None:
    store, two = MemoryLimitStore(), [limit_of(None, 2)]
    assert store.acquire(two, 0) is None
    assert store.acquire(two, 0) is None
    assert store.acquire(two, 0) == LimitExceeded(two[0].key, SECOND_NS, True)
    store.release(two)
    assert store.acquire(two, 0) is None
    store.release(two)
    store.release(two)
    assert len(store) == 0


# Changed limits


@pytest.mark.holds("M12")
@given(RATES, RATES, st.integers(0, 40), st.integers(0, MINUTE_NS))
def test_usage_survives_a_change_of_the_limit(
    before: int, after: int, calls: int, later: int
) -> None:
    before, after = before % 50 + 1, after % 50 + 1
    store = MemoryLimitStore()
    used = sum(store.acquire([limit_of(before)], 0) is None for _ in range(calls))
    left = max(used * MINUTE_NS - before * later, 0)  # the usage that has not drained
    room = sum(store.acquire([limit_of(after)], later) is None for _ in range(after + 1))
    assert room == (after * MINUTE_NS - min(left, after * MINUTE_NS)) // MINUTE_NS


def test_a_lowered_limit_causes_at_most_a_minute_of_waiting() -> None:
    store = MemoryLimitStore()
    for _ in range(1000):
        assert store.acquire([limit_of(1000)], 0) is None
    assert store.acquire([limit_of(2)], 0) == LimitExceeded(
        ("tool", "ann", "x"), MINUTE_NS // 2, False
    )
    assert store.acquire([limit_of(2)], MINUTE_NS // 2) is None


# Eviction


def test_empty_buckets_are_evicted() -> None:
    store = MemoryLimitStore()
    for number in range(1000):
        store.acquire([limit_of(60, None, "subject", str(number))], number * SECOND_NS)
    assert len(store) <= 3


@given(st.integers(1, 20), st.lists(st.integers(0, 100), max_size=200))
def test_invented_subjects_gain_neither_memory_nor_calls(most: int, subjects: list[int]) -> None:
    store = MemoryLimitStore(most)
    admitted = 0
    for subject in subjects:
        admitted += store.acquire([limit_of(3, None, "subject", str(subject))], 0) is None
        assert len(store) <= most + 1
    assert admitted <= 3 * (most + 1)


def test_early_keys_keep_their_buckets_when_the_table_is_full() -> None:
    store = MemoryLimitStore(1)
    ann, bob, cid = (limit_of(2, None, "subject", name) for name in ("ann", "bob", "cid"))
    assert store.acquire([ann], 0) is None
    assert store.acquire([bob], 0) is None
    assert store.acquire([cid], 0) is None
    assert store.acquire([bob], 0) == LimitExceeded(("subject", "bob"), MINUTE_NS // 2, False)
    assert store.acquire([ann], 0) is None
    assert store.acquire([bob], MINUTE_NS) is None


def test_buckets_in_use_are_not_evicted() -> None:
    store = MemoryLimitStore(max_buckets=9)
    first, second = (AppliedLimit(("subject", name), 1, None) for name in "ab")
    assert store.acquire([first], 0) is None
    assert store.acquire([second], SECOND_NS) is None
    assert store.acquire([first], 2 * SECOND_NS) is not None


def test_a_bucket_about_to_be_filled_is_not_evicted() -> None:
    store = MemoryLimitStore()
    old, new = (AppliedLimit(("subject", name), 1, None) for name in "ab")
    assert store.acquire([old], 0) is None
    assert store.acquire([old, new], 5 * MINUTE_NS) is None
    assert store.acquire([old], 5 * MINUTE_NS) == LimitExceeded(old.key, MINUTE_NS, False)


ANN = Principal("key:ann", "ann", ("dev", "ops", "dev"))


def entry(
    name: str = "fs__read", kind: FeatureKind = FeatureKind.TOOL, backend: str = "fs"
) -> CatalogEntry:
    return CatalogEntry(kind, name, backend, name, Raw(b"{}"))


def applied(
    limits: LimitTables, principal: Principal = ANN, of: CatalogEntry | None = None
) -> set[AppliedLimit]:
    return set(LimitResolver(limits).resolve(principal, of or entry()).all)


def test_a_limit_that_two_tools_share_counts_a_call_once() -> None:
    limits = LimitTables(default_rpm=1000, subjects={"*": Limit(5, 2)})
    both = [LimitResolver(limits).resolve(ANN, entry(name)) for name in ("fs__read", "fs__stat")]
    combined = combine_limits(both)
    assert combined.all == (
        AppliedLimit(("tool", "key:ann", "fs__read"), 1000),
        AppliedLimit(("subject", "key:ann"), 5, 2),
        AppliedLimit(("tool", "key:ann", "fs__stat"), 1000),
    )
    assert combined.concurrent == (AppliedLimit(("subject", "key:ann"), 5, 2),)


def test_without_limits_nothing_is_counted() -> None:
    assert applied(LimitTables()) == set()


@pytest.mark.holds("O0.10")
def test_the_default_applies_per_subject_and_tool_unless_the_tool_has_its_own() -> None:
    limits = LimitTables(default_rpm=1000, tools={"fs__write": Limit(5)})
    assert applied(limits) == {AppliedLimit(("tool", "key:ann", "fs__read"), 1000)}
    assert applied(limits, of=entry("fs__write")) == {
        AppliedLimit(("tool", "key:ann", "fs__write"), 5)
    }


def test_a_tool_with_only_another_limit_keeps_the_default() -> None:
    limits = LimitTables(default_rpm=1000, tools={"fs__*": Limit(concurrent=1)})
    assert applied(limits) == {AppliedLimit(("tool", "key:ann", "fs__read"), 1000, 1)}


def test_an_exact_name_wins_over_the_first_pattern() -> None:
    table = {"*": Limit(1), "fs__*": Limit(2), "fs__read": Limit(3)}
    limits = LimitTables(tools=table)
    assert applied(limits) == {AppliedLimit(("tool", "key:ann", "fs__read"), 3)}
    assert applied(limits, of=entry("fs__stat")) == {
        AppliedLimit(("tool", "key:ann", "fs__stat"), 1)
    }


def test_all_tables_apply_together_per_subject_and_in_total() -> None:
    limits = LimitTables(
        tools={"fs__read": Limit(1, 2, 3, 4)},
        servers={"f?": Limit(5, 6, 7, 8)},
        subjects={"a*": Limit(9, 10)},
        roles={"dev": Limit(11, 12, 13, 14), "ops": Limit(total_rpm=15), "boss": Limit(16)},
    )
    found = LimitResolver(limits).resolve(ANN, entry())
    assert set(found.all) == {
        AppliedLimit(("tool", "key:ann", "fs__read"), 1, 2),
        AppliedLimit(("tool_total", "fs__read"), 3, 4),
        AppliedLimit(("server", "key:ann", "fs"), 5, 6),
        AppliedLimit(("server_total", "fs"), 7, 8),
        AppliedLimit(("subject", "key:ann"), 9, 10),
        AppliedLimit(("role", "key:ann", "dev"), 11, 12),
        AppliedLimit(("role_total", "dev"), 13, 14),
        AppliedLimit(("role_total", "ops"), 15),
    }
    assert set(found.concurrent) == {each for each in found.all if each.concurrent is not None}


def test_a_subject_may_have_more_calls_in_flight_than_others() -> None:
    limits = LimitTables(max_concurrent=2, subjects={"ann": Limit(concurrent=50)})
    assert applied(limits) == {AppliedLimit(("subject", "key:ann"), None, 50)}
    assert applied(limits, Principal("bob")) == {AppliedLimit(("subject", "bob"), None, 2)}


def test_prompts_are_counted_by_name_and_resources_by_server() -> None:
    limits = LimitTables(default_rpm=7, tools={"*": Limit(1)})
    prompt = entry("fs__ask", FeatureKind.PROMPT)
    assert applied(limits, of=prompt) == {AppliedLimit(("tool", "key:ann", "prompt fs__ask"), 7)}
    for kind, uri in (
        (FeatureKind.RESOURCE, "file:///a"),
        (FeatureKind.TEMPLATE, "file:///{name}"),
    ):
        found = applied(limits, of=entry(uri, kind))
        assert found == {AppliedLimit(("tool", "key:ann", "resources fs"), 7)}


def test_changed_roles_are_resolved_again() -> None:
    resolver = LimitResolver(LimitTables(roles={"dev": Limit(1)}))
    assert resolver.resolve(ANN, entry()).all
    assert not resolver.resolve(Principal("key:ann", "ann", ("guest",)), entry()).all


def test_unknown_names_count_by_subject_and_role_and_other_requests_by_subject() -> None:
    tables = LimitTables(
        default_rpm=7,
        requests_rpm=9,
        subjects={"a*": Limit(5, 2)},
        roles={"dev": Limit(3, total_rpm=30)},
    )
    resolver, anna = LimitResolver(tables), Principal("key:anna", "anna", ("dev", "dev", "ops"))
    assert resolver.resolve_unknown(anna) == (
        AppliedLimit(("unknown", "key:anna"), 7),
        AppliedLimit(("subject", "key:anna"), 5),
        AppliedLimit(("role", "key:anna", "dev"), 3),
        AppliedLimit(("role_total", "dev"), 30),
    )
    assert resolver.resolve_request(anna) == (AppliedLimit(("request", "key:anna"), 9),)
    unlimited = LimitResolver(LimitTables())
    assert (unlimited.resolve_unknown(anna), unlimited.resolve_request(anna)) == ((), ())
