"""Limits: which limits apply to a call, and how much of each has been used.

    caller, entry ──resolve──> of (subject, tool), tool, (subject, server), server, subject, roles
    applied limits, now ──acquire──> counted under all of them, or LimitExceeded and under none

In each table one entry applies: the exact name, or else the first matching pattern. The entries of
all tables apply together. `rpm` and `concurrent` count per subject, `total_rpm` and
`total_concurrent` for all subjects together.

A limit of N calls per minute is a leaky bucket: a call adds one, N per minute drain, and the bucket
never holds more than N. So N calls may arrive at once, and over T seconds at most N × (1 + T/60).
Amounts are whole numbers, one call being a minute in nanoseconds, so waits are exact.

Time is an argument: nanoseconds of a monotonic clock. A LimitStore counts; LimitResolver says which
calls it counts. A store that several processes share may answer later; the one in memory answers at
once, since every governed call asks it.

Rules upheld here:
1. Keys derive from the catalogue and from principals. Values that clients invent, such as resource
   URIs, get no count of their own.
2. Resolutions are cached.
3. A call that one limit rejects does not count against the others.
4. The reported wait suffices if no other call arrives, and no shorter wait does.
5. Usage survives a change of the limit. The new rate counts from the next call, and a lowered limit
   cuts the bucket to its new size.
6. At most `max_buckets` are kept. Empty ones are evicted. When the table is full, new keys share
   one overflow bucket per kind, so that invented names gain neither memory nor calls.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from trunkline.mcp.features import TOOL, FeatureKind
from trunkline.mcp.identity import Principal
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.naming import matches_pattern

MINUTE_NS = 60_000_000_000
SECOND_NS = 1_000_000_000

# The number of buckets, of some 300 bytes each.
MAX_BUCKETS = 100_000

# How many old buckets are checked for each new one, so that eviction outpaces creation.
_EVICTION_SCAN = 2

# What is counted together: the kind of limit, then its owner.
LimitKey: TypeAlias = tuple[str, ...]


class AppliedLimit(NamedTuple):
    """One limit that applies to a call."""

    key: LimitKey
    rpm: int | None = None
    concurrent: int | None = None


class LimitExceeded(NamedTuple):
    """The limit that rejects a call, and the number of nanoseconds until a retry may pass."""

    key: LimitKey
    retry_after_ns: int
    is_concurrent: bool
    """Whether too many calls are in flight. Then the wait is an estimate."""


class LimitStore(Protocol):
    """The usage of all limits."""

    def acquire(
        self, limits: Sequence[AppliedLimit], now: int
    ) -> LimitExceeded | Awaitable[LimitExceeded | None] | None:
        """Count a call under all of its limits, or under none if one of them rejects it.

        If the wait for the answer is cancelled, nothing stays counted.
        """
        ...

    def release(self, held: Sequence[AppliedLimit]) -> None:
        """Release the in-flight limits of a call; `held` are the limits that have one."""
        ...


class Bucket(Struct, gc=False):
    """The usage of one rate limit."""

    empty_at: int
    """When the bucket will be empty, times `rpm`. Each call adds one minute."""
    rpm: int
    """The rate at which it drains."""

    def time_until_room(self, rpm: int, now: int) -> int:
        """Return the number of nanoseconds until a call fits."""
        if rpm != self.rpm:
            self._change_rate(rpm, now)
        left = self.empty_at - now * rpm
        if left <= 0:
            self.empty_at -= left  # not empty any more: the caller is about to fill it
            return 0
        excess = left - (rpm - 1) * MINUTE_NS
        return -(-excess // rpm) if excess > 0 else 0

    def _change_rate(self, rpm: int, now: int) -> None:
        """Drain at another rate from now on. Content above the new capacity is dropped."""
        left = max(self.empty_at - now * self.rpm, 0)
        self.empty_at, self.rpm = now * rpm + min(left, rpm * MINUTE_NS), rpm

    def is_empty(self, now: int) -> bool:
        """Return whether the bucket is empty and no call is about to fill it."""
        return self.empty_at < now * self.rpm


class MemoryLimitStore:
    """The usage of all limits, in one process."""

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self._max_buckets = max_buckets
        self._buckets: OrderedDict[LimitKey, Bucket] = OrderedDict()
        # Overflow buckets when the table is full, by kind of key and rate.
        self._shared: dict[tuple[str, int], Bucket] = {}
        self._in_flight: dict[LimitKey, int] = {}

    def __len__(self) -> int:
        return len(self._buckets) + len(self._shared) + len(self._in_flight)

    def acquire(self, limits: Sequence[AppliedLimit], now: int) -> LimitExceeded | None:
        """Count a call under all of its limits, or under none if one of them rejects it."""
        worst: LimitExceeded | None = None
        filled: list[Bucket] = []
        held: list[LimitKey] = []
        for key, rpm, concurrent in limits:
            if concurrent is not None:
                held.append(key)
                if self._in_flight.get(key, 0) >= concurrent:
                    worst = _longer_wait(worst, LimitExceeded(key, SECOND_NS, True))
            if rpm is not None:
                bucket = self._buckets.get(key) or self._create_bucket(key, rpm, now)
                filled.append(bucket)
                if wait := bucket.time_until_room(rpm, now):
                    worst = _longer_wait(worst, LimitExceeded(key, wait, False))
        if worst is None:
            for bucket in filled:
                bucket.empty_at += MINUTE_NS
            for key in held:
                self._in_flight[key] = self._in_flight.get(key, 0) + 1
        return worst

    def release(self, held: Sequence[AppliedLimit]) -> None:
        """Release the in-flight limits of a call; `held` are the limits that have one."""
        for key, _, _ in held:
            left = self._in_flight.pop(key) - 1
            if left:
                self._in_flight[key] = left

    def _create_bucket(self, key: LimitKey, rpm: int, now: int) -> Bucket:
        self._evict_empty(now)
        bucket = Bucket(now * rpm, rpm)
        if len(self._buckets) >= self._max_buckets:
            return self._shared.setdefault((key[0], rpm), bucket)
        self._buckets[key] = bucket
        return bucket

    def _evict_empty(self, now: int) -> None:
        """Check the buckets that were checked least recently, and evict those that are empty."""
        for _ in range(min(_EVICTION_SCAN, len(self._buckets))):
            key, bucket = self._buckets.popitem(last=False)
            if not bucket.is_empty(now):
                self._buckets[key] = bucket


def _longer_wait(one: LimitExceeded | None, other: LimitExceeded) -> LimitExceeded:
    """Return the one with the longer wait; of equals the one with the smaller key."""
    if one is None or (other.retry_after_ns, one.key) > (one.retry_after_ns, other.key):
        return other
    return one


# Which limits apply


class Limit(NamedTuple):
    """How much is allowed, per subject and in total."""

    rpm: int | None = None
    concurrent: int | None = None
    total_rpm: int | None = None
    total_concurrent: int | None = None


_NO_LIMIT = Limit()
_NO_LIMITS: Mapping[str, Limit] = {}


class LimitTables(Struct, frozen=True):
    """All limits. Table keys are names and patterns, except for roles, which are names."""

    default_rpm: int | None = None
    """Calls per minute of each subject and tool without an entry."""
    requests_rpm: int | None = None
    """Requests and notifications per minute of each subject that are no calls."""
    max_concurrent: int | None = None
    """Calls in flight of each subject without an entry."""
    tools: Mapping[str, Limit] = _NO_LIMITS
    servers: Mapping[str, Limit] = _NO_LIMITS
    subjects: Mapping[str, Limit] = _NO_LIMITS
    roles: Mapping[str, Limit] = _NO_LIMITS


class AppliedLimits(NamedTuple):
    """The limits of one call, and those among them that count calls in flight."""

    all: tuple[AppliedLimit, ...]
    concurrent: tuple[AppliedLimit, ...]


def combine_limits(several: Iterable[AppliedLimits]) -> AppliedLimits:
    """Return all limits of one call that falls under several; each limit is in it once."""
    found = tuple(dict.fromkeys(limit for applied in several for limit in applied.all))
    return AppliedLimits(found, tuple(each for each in found if each.concurrent is not None))


class LimitResolver:
    """Finds the limits that apply to a call, for one configuration."""

    def __init__(self, limits: LimitTables) -> None:
        self._limits = limits

    def resolve(self, principal: Principal, entry: CatalogEntry) -> AppliedLimits:
        """Return the limits that apply to a call of `entry`."""
        limits, principal_id = self._limits, principal.id
        is_tool = entry.kind is TOOL
        name = entry.public_name if is_tool else _limit_name(entry)
        tool = _limit_for(limits.tools, name) if is_tool else _NO_LIMIT
        server = _limit_for(limits.servers, entry.backend)
        subject = _limit_for(limits.subjects, principal.subject)
        rpm = limits.default_rpm if tool.rpm is None else tool.rpm
        concurrent = limits.max_concurrent if subject.concurrent is None else subject.concurrent
        found = [
            AppliedLimit(("tool", principal_id, name), rpm, tool.concurrent),
            AppliedLimit(("tool_total", name), tool.total_rpm, tool.total_concurrent),
            AppliedLimit(("server", principal_id, entry.backend), server.rpm, server.concurrent),
            AppliedLimit(
                ("server_total", entry.backend), server.total_rpm, server.total_concurrent
            ),
            AppliedLimit(("subject", principal_id), subject.rpm, concurrent),
        ]
        for role in dict.fromkeys(principal.roles):
            limit = limits.roles.get(role, _NO_LIMIT)
            found.append(AppliedLimit(("role", principal_id, role), limit.rpm, limit.concurrent))
            found.append(
                AppliedLimit(("role_total", role), limit.total_rpm, limit.total_concurrent)
            )
        held = tuple(each for each in found if each.concurrent is not None)
        return AppliedLimits(
            tuple(each for each in found if each in held or each.rpm is not None), held
        )

    def resolve_unknown(self, principal: Principal) -> tuple[AppliedLimit, ...]:
        """Return the rates that apply to calls of what does not exist for a subject.

        All of them count as calls of one more tool: clients may make up any name.
        """
        limits, principal_id = self._limits, principal.id
        found = [
            AppliedLimit(("unknown", principal_id), limits.default_rpm),
            AppliedLimit(
                ("subject", principal_id), _limit_for(limits.subjects, principal.subject).rpm
            ),
        ]
        for role in dict.fromkeys(principal.roles):
            limit = limits.roles.get(role, _NO_LIMIT)
            found.append(AppliedLimit(("role", principal_id, role), limit.rpm))
            found.append(AppliedLimit(("role_total", role), limit.total_rpm))
        return tuple(each for each in found if each.rpm is not None)

    def resolve_request(self, principal: Principal) -> tuple[AppliedLimit, ...]:
        """Return the rate that applies to requests and notifications that are no calls."""
        rpm = self._limits.requests_rpm
        return () if rpm is None else (AppliedLimit(("request", principal.id), rpm),)


def _limit_name(entry: CatalogEntry) -> str:
    """Return the name under which other features than tools count. A server's resources are one."""
    # Tool names contain no space.
    is_prompt = entry.kind is FeatureKind.PROMPT
    return f"prompt {entry.public_name}" if is_prompt else f"resources {entry.backend}"


def _limit_for(table: Mapping[str, Limit], name: str) -> Limit:
    exact = table.get(name)
    if exact is not None:
        return exact
    matching = (limit for pattern, limit in table.items() if matches_pattern(pattern, name))
    return next(matching, _NO_LIMIT)
