"""Quota: how much has been used of what is limited, and how long it takes until there is more.

    demands of one call, now ──enter──> counted under all of its limits, or Excess, and under none

A limit of N calls a minute is a bucket: every call adds one to it, N a minute run out of it, and
more than N are never in it. So N may come at once, and over any stretch of T seconds no more than
N × (1 + T/60) do. All is counted in whole numbers, a call as the nanoseconds of a minute: nothing
is rounded, and the wait that is told is the wait.

Refuses to know what a limit is about, and what time it is: keys and the time are given, the time in
nanoseconds of a clock that never goes back.

Rules upheld here:
1. A call that one limit refuses uses up nothing of any other.
2. The wait that is told suffices if nobody else calls, and nothing shorter does.
3. What has been used stays used when a limit changes; how fast it runs out changes with the next
   call. One that is lowered holds no more than it allows.
4. No more than `max_buckets` are kept. What has run out is forgotten; those who come when nothing
   can be share one bucket of their kind, so that inventing names wins neither memory nor calls.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct

MINUTE = 60_000_000_000
SECOND = 1_000_000_000

MAX_BUCKETS = 100_000
"""How many buckets there may be, of some 300 bytes each."""

_LOOKED_AT = 2
"""How many old buckets are looked at for each new one: so they are forgotten faster than made."""

Key: TypeAlias = tuple[str, ...]
"""What is counted together: first its kind, then whose it is."""


class Demand(NamedTuple):
    """One limit that a call comes under."""

    key: Key
    rpm: int | None = None
    """Calls a minute."""
    concurrent: int | None = None
    """Calls under way at a time."""


class Excess(NamedTuple):
    """What a call is too much for, and after how many nanoseconds it may be tried again."""

    key: Key
    wait: int
    concurrent: bool
    """Whether too many are under way: then nobody knows how long that will be."""


class _Bucket(Struct, gc=False):
    empty: int
    """When it will have run out, times `rpm`: each call is a minute more."""
    rpm: int
    """How fast it runs out."""

    def wait(self, rpm: int, now: int) -> int:
        """Return how long it takes until there is room."""
        if rpm != self.rpm:
            self._change(rpm, now)
        left = self.empty - now * rpm
        if left <= 0:
            self.empty -= left  # so that it is not over while somebody is about to fill it
            return 0
        over = left - (rpm - 1) * MINUTE
        return -(-over // rpm) if over > 0 else 0

    def _change(self, rpm: int, now: int) -> None:
        """Let it run out faster or slower from now on; of what is too much nothing is left."""
        left = max(self.empty - now * self.rpm, 0)
        self.empty, self.rpm = now * rpm + min(left, rpm * MINUTE), rpm

    def is_over(self, now: int) -> bool:
        """Tell whether nothing is left in it, and nobody is about to fill it."""
        return self.empty < now * self.rpm


class Quota:
    """What has been used, by everybody."""

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self._max_buckets = max_buckets
        self._buckets: OrderedDict[Key, _Bucket] = OrderedDict()
        self._shared: dict[tuple[str, int], _Bucket] = {}
        """The buckets of those who came too late, by the kind of their key and their rate."""
        self._under_way: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._buckets) + len(self._shared) + len(self._under_way)

    def enter(self, demands: Sequence[Demand], now: int) -> Excess | None:
        """Count a call in under all of its limits; under none of them if one refuses it."""
        worst: Excess | None = None
        filled: list[_Bucket] = []
        held: list[Key] = []
        for key, rpm, concurrent in demands:
            if concurrent is not None:
                held.append(key)
                if self._under_way.get(key, 0) >= concurrent:
                    worst = _worse(worst, Excess(key, SECOND, True))
            if rpm is not None:
                bucket = self._buckets.get(key) or self._newcomer(key, rpm, now)
                filled.append(bucket)
                if wait := bucket.wait(rpm, now):
                    worst = _worse(worst, Excess(key, wait, False))
        if worst is None:
            for bucket in filled:
                bucket.empty += MINUTE
            for key in held:
                self._under_way[key] = self._under_way.get(key, 0) + 1
        return worst

    def leave(self, held: Iterable[Demand]) -> None:
        """Count a call out that was counted in; `held` are its limits on calls under way."""
        for key, _, _ in held:
            left = self._under_way.pop(key) - 1
            if left:
                self._under_way[key] = left

    def _newcomer(self, key: Key, rpm: int, now: int) -> _Bucket:
        """Return a bucket for a key that has none: its own, or one that it shares."""
        self._make_room(now)
        bucket = _Bucket(now * rpm, rpm)
        if len(self._buckets) >= self._max_buckets:
            return self._shared.setdefault((key[0], rpm), bucket)
        self._buckets[key] = bucket
        return bucket

    def _make_room(self, now: int) -> None:
        """Look at the buckets that were not looked at for longest, and forget what has run out."""
        for _ in range(min(_LOOKED_AT, len(self._buckets))):
            key, bucket = self._buckets.popitem(last=False)
            if not bucket.is_over(now):
                self._buckets[key] = bucket


def _worse(one: Excess | None, other: Excess) -> Excess:
    """Return the one of two with the longer wait; of equals the one whose key comes first."""
    if one is None or (other.wait, one.key) > (one.wait, other.key):
        return other
    return one
