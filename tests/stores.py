"""Stores that keep only bytes: `pytest --stores=bytes` uses them instead of those in memory.

Every record is written as JSON when it enters a store, and built anew when it leaves. msgspec
refuses to write anything that is not data, so no live object can hide in a record. JSON and not
MessagePack, since definitions and client info are raw JSON, which JSON contains as it is.

With `--stores=later` they also answer one turn of the event loop later, where a store may.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from trunkline.backends import era_cache
from trunkline.backends.era_cache import MAX_SERVERS, CachedEra
from trunkline.gateway import stores
from trunkline.gateway.settings import SuspendedCallLimits
from trunkline.gateway.stores import (
    MAX_STORED_LISTINGS,
    SessionLimit,
    SessionLimits,
    SessionRecord,
    StoredListing,
    SuspendedCallRecord,
)
from trunkline.routing import limits
from trunkline.routing.kill_switch import KillSwitch
from trunkline.routing.limits import (
    MAX_BUCKETS,
    MINUTE_NS,
    SECOND_NS,
    AppliedLimit,
    Bucket,
    LimitExceeded,
    LimitKey,
)

T = TypeVar("T")

pack = msgspec.json.encode


def unpack(packed: bytes, kind: type[T]) -> T:
    """Build a new object."""
    return msgspec.json.decode(packed, type=kind)


async def later(answer: T) -> T:
    """Answer after the next turn of the event loop."""
    await asyncio.sleep(0)
    return answer


class BytesSessionStore:
    """Sessions as bytes."""

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}

    def create(
        self, record: SessionRecord, limits: SessionLimits, now: float
    ) -> SessionLimit | Awaitable[SessionLimit | None] | None:
        owners = [unpack(packed, SessionRecord).owner for packed in self._packed.values()]
        if len(owners) >= limits.max_sessions:
            return SessionLimit.TOTAL
        if owners.count(record.owner) >= limits.max_sessions_per_principal:
            return SessionLimit.PER_PRINCIPAL
        self._packed[record.id] = pack(record)
        return None

    def find(
        self, session_id: str, owner: str, now: float
    ) -> SessionRecord | Awaitable[SessionRecord | None] | None:
        record = self._get(session_id)
        is_valid = record is not None and record.owner == owner and record.expires_at >= now
        return record if is_valid else None

    def save(self, record: SessionRecord, now: float) -> None:
        stored = self._get(record.id)
        if stored is not None and stored.epoch <= record.epoch:
            self._packed[record.id] = pack(record)

    def remove(self, session_id: str, epoch: int) -> None:
        stored = self._get(session_id)
        if stored is not None and stored.epoch <= epoch:
            del self._packed[session_id]

    def _get(self, session_id: str) -> SessionRecord | None:
        packed = self._packed.get(session_id)
        return None if packed is None else unpack(packed, SessionRecord)


class LaterSessionStore(BytesSessionStore):
    """Sessions as bytes, found later."""

    def create(
        self, record: SessionRecord, limits: SessionLimits, now: float
    ) -> Awaitable[SessionLimit | None]:
        exceeded: Any = super().create(record, limits, now)
        return later(exceeded)

    def find(
        self, session_id: str, owner: str, now: float
    ) -> Awaitable[SessionRecord | None] | None:
        found: Any = super().find(session_id, owner, now)
        return later(found)


class BytesSuspendedCallStore:
    """Suspended calls as bytes."""

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}

    def add(
        self, record: SuspendedCallRecord, limits: SuspendedCallLimits, now: float
    ) -> bool | Awaitable[bool]:
        records = [unpack(packed, SuspendedCallRecord) for packed in self._packed.values()]
        own = [each for each in records if each.binding.principal == record.binding.principal]
        fits = (
            len(records) < limits.max_calls
            and len(own) < limits.max_calls_per_principal
            and sum(each.size for each in records) + record.size <= limits.max_bytes
            and sum(each.size for each in own) + record.size <= limits.max_bytes_per_principal
        )
        if fits:
            self._packed[record.id] = pack(record)
        return fits

    def take(
        self, call_id: str, round: int
    ) -> SuspendedCallRecord | Awaitable[SuspendedCallRecord | None] | None:
        packed = self._packed.get(call_id)
        record = None if packed is None else unpack(packed, SuspendedCallRecord)
        if record is None or record.round != round:
            return None
        self.remove(call_id)
        return record

    def remove(self, call_id: str) -> None:
        self._packed.pop(call_id, None)


class LaterSuspendedCallStore(BytesSuspendedCallStore):
    """Suspended calls as bytes, taken later."""

    def add(
        self, record: SuspendedCallRecord, limits: SuspendedCallLimits, now: float
    ) -> Awaitable[bool]:
        return later(super().add(record, limits, now) is True)

    def take(self, call_id: str, round: int) -> Awaitable[SuspendedCallRecord | None]:
        taken: Any = super().take(call_id, round)
        return later(taken)


class BytesLimitStore:
    """The usage of limits as bytes."""

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self._max_buckets = max_buckets
        # The bucket that was checked least recently comes first
        self._buckets: dict[bytes, bytes] = {}
        self._shared: dict[bytes, bytes] = {}
        self._in_flight: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._buckets) + len(self._shared) + len(self._in_flight)

    def acquire(
        self, limits: Sequence[AppliedLimit], now: int
    ) -> LimitExceeded | Awaitable[LimitExceeded | None] | None:
        exceeded: list[LimitExceeded] = []
        filled: list[tuple[dict[bytes, bytes], bytes]] = []
        for key, rpm, concurrent in limits:
            if concurrent is not None and self._in_flight[pack(key)] >= concurrent:
                exceeded.append(LimitExceeded(key, SECOND_NS, True))
            if rpm is not None:
                table, place = self._find_bucket(key, rpm, now)
                filled.append((table, place))
                bucket = unpack(table[place], Bucket)
                wait = bucket.time_until_room(rpm, now)
                table[place] = pack(bucket)
                if wait:
                    exceeded.append(LimitExceeded(key, wait, False))
        if exceeded:
            longest = max(each.retry_after_ns for each in exceeded)
            return min(each for each in exceeded if each.retry_after_ns == longest)
        for table, place in filled:
            bucket = unpack(table[place], Bucket)
            table[place] = pack(Bucket(bucket.empty_at + MINUTE_NS, bucket.rpm))
        self._in_flight.update(pack(each.key) for each in limits if each.concurrent is not None)
        return None

    def release(self, held: Sequence[AppliedLimit]) -> None:
        for each in held:
            key = pack(each.key)
            self._in_flight[key] -= 1
            if not self._in_flight[key]:
                del self._in_flight[key]

    def _find_bucket(self, key: LimitKey, rpm: int, now: int) -> tuple[dict[bytes, bytes], bytes]:
        """Return the table of the bucket and its place there; create it if it is missing."""
        place = pack(key)
        if place in self._buckets:
            return self._buckets, place
        for oldest in list(self._buckets)[:2]:
            packed = self._buckets.pop(oldest)
            if not unpack(packed, Bucket).is_empty(now):
                self._buckets[oldest] = packed
        table = self._buckets
        if len(table) >= self._max_buckets:
            table, place = self._shared, pack((key[0], rpm))
        table.setdefault(place, pack(Bucket(now * rpm, rpm)))
        return table, place


class LaterLimitStore(BytesLimitStore):
    """The usage of limits as bytes, counted later."""

    def acquire(self, limits: Sequence[AppliedLimit], now: int) -> Awaitable[LimitExceeded | None]:
        exceeded: Any = super().acquire(limits, now)
        return self._answer(limits, exceeded)

    async def _answer(
        self, limits: Sequence[AppliedLimit], exceeded: LimitExceeded | None
    ) -> LimitExceeded | None:
        try:
            return await later(exceeded)
        except asyncio.CancelledError:
            if exceeded is None:
                self.release([each for each in limits if each.concurrent is not None])
            raise


class BytesSwitchStore:
    """Kill switches as bytes."""

    def __init__(self, switches: Iterable[KillSwitch] = ()) -> None:
        self._packed = pack(sorted(switches))

    def load(self) -> frozenset[KillSwitch]:
        return unpack(self._packed, frozenset[KillSwitch])

    async def save(self, switch: KillSwitch, is_disabled: bool) -> str | None:
        before = self.load()
        self._packed = pack(sorted(before | {switch} if is_disabled else before - {switch}))
        return "it has no state directory"


class BytesListingStore:
    """Feature listings as bytes."""

    def __init__(self, max_servers: int = MAX_STORED_LISTINGS) -> None:
        self._max_servers = max_servers
        self._packed: dict[str, bytes] = {}

    async def get(self, key: str, _max_age: float | None = None, /) -> StoredListing | None:
        packed = self._packed.get(key)
        return None if packed is None else unpack(packed, StoredListing)

    def put(self, key: str, listing: StoredListing) -> None:
        self._packed.pop(key, None)
        self._packed[key] = pack(listing)
        for oldest in list(self._packed)[: max(0, len(self._packed) - self._max_servers)]:
            del self._packed[oldest]

    def remove(self, key: str) -> None:
        self._packed.pop(key, None)


class BytesEraStore:
    """The protocols of servers as bytes."""

    def __init__(self, max_servers: int = MAX_SERVERS) -> None:
        self._max_servers = max_servers
        self._packed: dict[str, bytes] = {}

    async def get(self, key: str) -> CachedEra | None:
        packed = self._packed.get(key)
        return None if packed is None else unpack(packed, CachedEra)

    def put(self, key: str, era: CachedEra | None) -> None:
        self._packed.pop(key, None)
        if era is not None:
            self._packed[key] = pack(era)
        for oldest in list(self._packed)[: max(0, len(self._packed) - self._max_servers)]:
            del self._packed[oldest]


REPLACED: dict[str, tuple[Any, type[Any], type[Any]]] = {
    "MemorySessionStore": (stores, BytesSessionStore, LaterSessionStore),
    "MemorySuspendedCallStore": (stores, BytesSuspendedCallStore, LaterSuspendedCallStore),
    "MemoryLimitStore": (limits, BytesLimitStore, LaterLimitStore),
    "MemorySwitchStore": (stores, BytesSwitchStore, BytesSwitchStore),
    "MemoryListingStore": (stores, BytesListingStore, BytesListingStore),
    "MemoryEraStore": (era_cache, BytesEraStore, BytesEraStore),
}
"""The stores in memory: where each is defined, and what replaces it."""


def replace_stores(kind: str) -> None:
    """Put other stores in place of those in memory, in this whole process.

    It must be called before a module that uses them is imported.
    """
    for user in ("trunkline.app", "trunkline.endpoints", "trunkline.gateway.gateway"):
        assert user not in sys.modules, f"{user} uses the stores in memory already"
    for name, (module, as_bytes, as_later) in REPLACED.items():
        setattr(module, name, as_bytes if kind == "bytes" else as_later)
