"""What one principal may hold: requests in flight, open streams, and buffered events."""

from hypothesis import given
from hypothesis import strategies as st

from trunkline.endpoints.principal_limits import (
    BufferBudget,
    InFlightLimiter,
    LimitRefusal,
    StreamLimiter,
)


def status(refusal: LimitRefusal | None) -> int | None:
    return None if refusal is None else refusal.status


# Requests in flight


def test_one_principal_cannot_use_up_the_total_limit() -> None:
    limiter = InFlightLimiter(max_total=3, max_per_owner=2)
    for call in range(2):
        assert limiter.acquire("p", call) is None
    assert status(limiter.refusal("p")) == 429
    assert status(limiter.acquire("p", 2)) == 429
    assert limiter.acquire("q", 3) is None
    assert status(limiter.refusal("p")) == 503
    assert status(limiter.refusal("r")) == 503
    limiter.release(1)
    assert limiter.refusal("p") is None
    assert limiter.refusal("r") is None


def test_principals_with_nothing_in_flight_are_forgotten() -> None:
    limiter = InFlightLimiter(max_total=1, max_per_owner=1)
    for number in range(100):
        limiter.acquire(f"p{number}", number)
        limiter.release(number)
        assert limiter.refusal(f"p{number}") is None


class Counted:
    """A simple model of InFlightLimiter, which always counts per principal."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        self.limits: tuple[int, int, bool] = (4, 2, False)

    def rejection_status(self, owner: str) -> int | None:
        max_total, max_own, is_shared = self.limits
        free = max_total - len(self.owners)
        if free <= 0:
            return 503
        own = list(self.owners.values()).count(owner)
        return 429 if own >= max_own or (is_shared and own >= free) else None


LIMITS = st.tuples(st.integers(0, 12), st.integers(0, 6), st.booleans())


@given(st.lists(st.sampled_from("pqr") | st.integers(0, 30) | LIMITS, max_size=80))
def test_the_uncounted_fast_path_changes_no_decision(
    steps: list[str | int | tuple[int, int, bool]],
) -> None:
    limiter, counted = InFlightLimiter(4, 2), Counted()
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            limiter.reconfigure(*step[:2], is_shared=step[2])
            counted.limits = step
        elif isinstance(step, str):
            expected = counted.rejection_status(step)
            assert status(limiter.refusal(step)) == expected
            assert status(limiter.acquire(step, number)) == expected
            if expected is None:
                counted.owners[number] = step
        elif counted.owners:
            call = [*counted.owners][step % len(counted.owners)]
            limiter.release(call)
            del counted.owners[call]


def test_new_limits_apply_at_once_and_requests_in_flight_stay() -> None:
    limiter = InFlightLimiter(2, 1)
    assert limiter.acquire("a", 1) is None
    assert status(limiter.acquire("a", 2)) == 429
    limiter.reconfigure(2, 2)
    assert limiter.acquire("a", 2) is None
    assert status(limiter.acquire("b", 3)) == 503
    limiter.reconfigure(1, 1)
    limiter.release(1)
    assert status(limiter.acquire("b", 3)) == 503
    limiter.release(2)
    assert limiter.acquire("b", 3) is None


def test_with_several_principals_each_may_have_as_many_requests_as_are_free() -> None:
    limiter = InFlightLimiter(12, 12, is_shared=True)
    counts = dict.fromkeys("abcd", 0)
    for owner in counts:
        while limiter.acquire(owner, (owner, counts[owner])) is None:
            counts[owner] += 1
    assert counts == {"a": 6, "b": 3, "c": 2, "d": 1}
    refusal = limiter.refusal("a")
    assert refusal is not None
    assert (refusal.status, refusal.limit) == (503, "http.max_in_flight")


def test_a_refusal_names_its_limit_and_a_remedy() -> None:
    limiter = InFlightLimiter(12, 3)
    for call in range(3):
        limiter.acquire("a", call)
    assert limiter.refusal("a") == LimitRefusal(
        429,
        "http.max_in_flight_per_principal",
        "you have 3 requests in flight (http.max_in_flight_per_principal); "
        "wait for some of their responses",
    )


# Streams


def test_open_streams_are_limited_in_total_and_per_principal() -> None:
    limiter = StreamLimiter(3, 2)
    assert [status(limiter.acquire("a")) for _ in range(3)] == [None, None, 429]
    assert [status(limiter.acquire("b")) for _ in range(2)] == [None, 503]
    assert limiter.counts == {"a": 2, "b": 1}
    limiter.release("a")
    assert status(limiter.acquire("b")) is None
    limiter.reconfigure(9, None)
    assert [status(limiter.acquire("b")) for _ in range(6)] == [None] * 6
    for owner in "abbbbbbbb":
        limiter.release(owner)
    assert limiter.counts == {}


# Buffered events


class Stream:
    """A stream with events of one byte, of which the last ones are being sent."""

    def __init__(self, budget: BufferBudget, principal: str, sending: int = 0) -> None:
        self.principal = principal
        self.size = 0
        self._budget = budget
        self._sending = sending

    def append(self, size: int) -> None:
        self.size += size
        self._budget.update(self)

    def drop_events(self) -> None:
        self.size = min(self.size, self._sending)


def test_above_its_limit_a_principal_loses_the_events_that_it_got_first() -> None:
    budget = BufferBudget(100, 10)
    first, second, other = (Stream(budget, name) for name in "aab")
    first.append(4)
    second.append(4)
    other.append(9)
    first.append(2)
    assert [each.size for each in (first, second, other)] == [6, 4, 9]
    first.append(1)  # the stream that got no event for the longest time is `second`
    assert [each.size for each in (first, second, other)] == [7, 0, 9]
    assert (budget.total, budget.bytes, budget.dropped_count) == (16, {"a": 7, "b": 9}, 1)


def test_in_total_the_principal_with_the_most_bytes_loses_events() -> None:
    budget = BufferBudget(10)
    large, small = Stream(budget, "a"), Stream(budget, "b")
    large.append(8)
    small.append(2)
    small.append(1)
    assert (large.size, small.size) == (0, 3)
    assert budget.bytes == {"b": 3}


def test_events_that_are_being_sent_are_kept() -> None:
    budget = BufferBudget(10)
    sending, other = Stream(budget, "a", sending=9), Stream(budget, "a")
    sending.append(9)
    other.append(5)
    assert (sending.size, other.size, budget.total) == (9, 0, 9)
    sending.append(3)
    assert (sending.size, budget.total) == (9, 9)
    full = Stream(budget, "b", sending=5)
    full.append(5)
    assert budget.total == 14  # nothing can be dropped


def test_a_stream_that_is_dropped_counts_no_more() -> None:
    budget = BufferBudget(10, 10)
    stream = Stream(budget, "a")
    budget.forget(stream)
    stream.append(4)
    budget.forget(stream)
    budget.forget(stream)
    assert (budget.total, budget.bytes) == (0, {})
    budget.reconfigure(3, 2)
    stream.append(0)
    assert (stream.size, budget.total) == (0, 0)
