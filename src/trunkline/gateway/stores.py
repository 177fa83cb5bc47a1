"""The interfaces of the gateway's stores, and stores in memory.

    SessionEndpoint ──> SessionStore          KillSwitchControl ──> SwitchStore
    SuspendedCalls ───> SuspendedCallStore    Registry ───────────> ListingStore

A store holds records: immutable data that msgspec writes as JSON and reads back. Streams, tasks,
timers and callbacks stay in the process that runs them, and are found by the id of the record. Two
more stores are defined where they are used: `LimitStore` in routing/limits, which is pure, and
`EraStore` in backends/era_cache.

Rules for every store:
1. An operation is atomic, and operations on one record take effect in the order of their calls.
2. A store in memory answers at once. Where the type allows it, a shared store returns an awaitable.
   An operation without an answer returns at once; a shared store carries it out in the background.
3. Time is an argument, on the clock of the caller; in seconds here, in nanoseconds in `LimitStore`.
   Clocks of two processes differ, so a shared store keeps how long a record is still valid, not
   until when.
"""

from collections import Counter
from collections.abc import Awaitable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from msgspec import Struct

from trunkline.gateway.request_state import StateBinding
from trunkline.gateway.settings import SuspendedCallLimits
from trunkline.jsonrpc import Raw
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.features import Feature
from trunkline.routing.kill_switch import KillSwitch

T = TypeVar("T")


async def resolve(answer: T | Awaitable[T]) -> T:
    """Return the answer of a store; wait for it only if the store does not have it yet."""
    if isinstance(answer, Awaitable):
        return await cast("Awaitable[T]", answer)
    return answer


# Sessions


class ClientRecord(Struct, frozen=True):
    """The negotiated values of a session, and the client's subscriptions and log level."""

    revision: str
    capabilities: Raw
    client_info: Raw
    operational: bool = False
    """Whether the client has sent `notifications/initialized`."""
    log_level: str | None = None
    listed: dict[str, str] = {}
    """The digests of the lists that it got last, by the kind of their features."""
    subscriptions: dict[str, tuple[str, str]] = {}
    """By the URI that the client subscribed to: the backend, and its own URI."""


class SessionRecord(Struct, frozen=True):
    """One session of the session protocol: all that another replica needs to continue it."""

    id: str
    owner: str
    """The id of the principal it belongs to."""
    created_at: float
    expires_at: float
    client: ClientRecord
    epoch: int = 1
    """The number of replicas that have run the session. Only the last one may change the record."""


class SessionLimits(NamedTuple):
    """How many sessions there may be."""

    max_sessions: int
    max_sessions_per_principal: int


class SessionLimit(StrEnum):
    """The limit that a new session would exceed, by its key in the configuration."""

    TOTAL = "http.max_sessions"
    PER_PRINCIPAL = "http.max_sessions_per_principal"


class SessionStore(Protocol):
    """The sessions of the session protocol over Streamable HTTP, by id."""

    def create(
        self, record: SessionRecord, limits: SessionLimits, now: float
    ) -> SessionLimit | Awaitable[SessionLimit | None] | None:
        """Add a session; return the limit that it would exceed, else None."""
        ...

    def find(
        self, session_id: str, owner: str, now: float
    ) -> SessionRecord | Awaitable[SessionRecord | None] | None:
        """Return the owner's session, or None if there is none or it has expired."""
        ...

    def save(self, record: SessionRecord, now: float) -> None:
        """Replace a session, unless it was removed or the store has a later epoch of it."""
        ...

    def remove(self, session_id: str, epoch: int) -> None:
        """Remove a session, unless the store has a later epoch of it."""
        ...


class MemorySessionStore:
    """The sessions of one process."""

    def __init__(self) -> None:
        self._records: dict[str, SessionRecord] = {}
        self._counts_by_owner: Counter[str] = Counter()

    def create(
        self, record: SessionRecord, limits: SessionLimits, now: float
    ) -> SessionLimit | None:
        """Add a session; return the limit that it would exceed, else None."""
        if len(self._records) >= limits.max_sessions:
            return SessionLimit.TOTAL
        if self._counts_by_owner[record.owner] >= limits.max_sessions_per_principal:
            return SessionLimit.PER_PRINCIPAL
        self._counts_by_owner[record.owner] += 1
        self._records[record.id] = record
        return None

    def find(self, session_id: str, owner: str, now: float) -> SessionRecord | None:
        """Return the owner's session, or None if there is none or it has expired."""
        record = self._records.get(session_id)
        if record is None or record.owner != owner or record.expires_at < now:
            return None
        return record

    def save(self, record: SessionRecord, now: float) -> None:
        """Replace a session, unless it was removed or the store has a later epoch of it."""
        stored = self._records.get(record.id)
        if stored is not None and stored.epoch <= record.epoch:
            self._records[record.id] = record

    def remove(self, session_id: str, epoch: int) -> None:
        """Remove a session, unless the store has a later epoch of it."""
        stored = self._records.get(session_id)
        if stored is None or stored.epoch > epoch:
            return
        del self._records[session_id]
        self._counts_by_owner[stored.owner] -= 1
        if not self._counts_by_owner[stored.owner]:
            del self._counts_by_owner[stored.owner]


# Suspended calls


class SuspendedCallRecord(Struct, frozen=True):
    """One call that waits for its client."""

    id: str
    binding: StateBinding
    """The principal and the backend of the call, and a digest of its params."""
    method: str
    round: int
    question_count: int
    size: int
    """The bytes of its params and questions."""
    suspended_at: float
    expires_at: float


class SuspendedCallStore(Protocol):
    """The calls that wait for their clients, by id."""

    def add(
        self, record: SuspendedCallRecord, limits: SuspendedCallLimits, now: float
    ) -> bool | Awaitable[bool]:
        """Add a call; return False if it would exceed the limits."""
        ...

    def take(
        self, call_id: str, round: int
    ) -> SuspendedCallRecord | Awaitable[SuspendedCallRecord | None] | None:
        """Remove a call and return it, or None if it does not wait in this round.

        Of several calls of `take` for one round, one gets the record.
        """
        ...

    def remove(self, call_id: str) -> None:
        """Remove a call that ends, in any round."""
        ...


class MemorySuspendedCallStore:
    """The suspended calls of one process."""

    def __init__(self) -> None:
        self._records: dict[str, SuspendedCallRecord] = {}
        self._counts_by_principal: Counter[str] = Counter()
        self._bytes_by_principal: Counter[str] = Counter()
        self._bytes = 0

    def add(self, record: SuspendedCallRecord, limits: SuspendedCallLimits, now: float) -> bool:
        """Add a call; return False if it would exceed the limits."""
        principal = record.binding.principal
        own_calls = self._counts_by_principal[principal]
        too_many = (
            len(self._records) >= limits.max_calls or own_calls >= limits.max_calls_per_principal
        )
        own_bytes = self._bytes_by_principal[principal] + record.size
        too_large = (
            self._bytes + record.size > limits.max_bytes
            or own_bytes > limits.max_bytes_per_principal
        )
        if too_many or too_large:
            return False
        self._records[record.id] = record
        self._counts_by_principal[principal] += 1
        self._bytes_by_principal[principal] = own_bytes
        self._bytes += record.size
        return True

    def take(self, call_id: str, round: int) -> SuspendedCallRecord | None:
        """Remove a call and return it, or None if it does not wait in this round."""
        record = self._records.get(call_id)
        if record is None or record.round != round:
            return None
        self.remove(call_id)
        return record

    def remove(self, call_id: str) -> None:
        """Remove a call that ends, in any round."""
        record = self._records.pop(call_id, None)
        if record is not None:
            self._bytes -= record.size
            principal = record.binding.principal
            self._counts_by_principal[principal] -= 1
            self._bytes_by_principal[principal] -= record.size
            if not self._counts_by_principal[principal]:
                del self._counts_by_principal[principal]
                del self._bytes_by_principal[principal]


# Kill switches


class SwitchStore(Protocol):
    """The kill switches that operators set."""

    def load(self) -> frozenset[KillSwitch]:
        """Return the switches; called once, before the gateway serves anything.

        It returns no awaitable: no call may pass before the switches are known.
        """
        ...

    async def save(self, switch: KillSwitch, is_disabled: bool) -> str | None:
        """Save a change of the kill switches; return why that failed, or None."""
        ...


class MemorySwitchStore:
    """The kill switches of one process; they are lost when it ends."""

    def __init__(self, switches: Iterable[KillSwitch] = ()) -> None:
        self._switches = frozenset(switches)

    def load(self) -> frozenset[KillSwitch]:
        """Return the switches."""
        return self._switches

    async def save(self, switch: KillSwitch, is_disabled: bool) -> str | None:
        """Keep the switch, and return that a restart loses it."""
        self._switches = self._switches | {switch} if is_disabled else self._switches - {switch}
        return "it has no state directory"


# Feature listings

MAX_STORED_LISTINGS = 512
"""How many servers have a stored listing; those stored longest ago are removed first."""

MAX_GATED_SETS = 8
"""For how many sets of client features the gated features of one server are stored."""


class StoredListing(Struct, frozen=True):
    """What one server listed last: a snapshot of its definitions."""

    features: tuple[Feature, ...] = ()
    cache_hints: CacheHints = CacheHints()
    gated: dict[str, tuple[Feature, ...]] = {}
    """The lists for clients with certain features, by the joined names of these features."""
    instructions: str | None = None
    """What it told models about its use."""
    extensions: dict[str, Any] = {}
    """The protocol extensions that it declared."""


class ListingStore(Protocol):
    """What each server listed last, by a digest of its configuration."""

    async def get(self, key: str, max_age: float | None = None, /) -> StoredListing | None:
        """Return the last listing of a server, or None; never raises.

        With `max_age`, a store that outlives the process ignores listings that are older than
        so many seconds.
        """
        ...

    def put(self, key: str, listing: StoredListing) -> None:
        """Replace the listing of a server. A file or a shared store follows later."""
        ...

    def remove(self, key: str) -> None:
        """Forget a server that could not be started."""
        ...


class MemoryListingStore:
    """The listings of one process."""

    def __init__(self, max_servers: int = MAX_STORED_LISTINGS) -> None:
        self._max_servers = max_servers
        self._listings: dict[str, StoredListing] = {}

    async def get(self, key: str, _max_age: float | None = None, /) -> StoredListing | None:
        """Return the last listing of a server, or None."""
        return self._listings.get(key)

    def put(self, key: str, listing: StoredListing) -> None:
        """Replace the listing of a server."""
        self._listings.pop(key, None)
        self._listings[key] = listing
        if len(self._listings) > self._max_servers:
            del self._listings[next(iter(self._listings))]

    def remove(self, key: str) -> None:
        """Forget a server that could not be started."""
        self._listings.pop(key, None)
