"""DecisionCache: what the gateway found out about callers and targets, until something changes.

    routes             where calls of a name go, and what the callers of that target may do
    policy_decisions   what the policy says of a feature, for a group of callers
    lists              the encoded lists of features and their digests, for a group of callers
    capabilities       what the upstreams can do together

Looking these up for every call would take longer than the rest of the call: see `bench.layers`.
The cache knows nothing of how its contents were found out.

Invariants:
1. `invalidate` drops everything. Every change of the catalogue, the visibility, the policy, the
   limits or a kill switch calls it before the next call is routed.
2. Its size is limited. Routes are limited by the catalogue, since only listed names have one.
"""

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct, field

from trunkline.gateway.upstream import Upstream
from trunkline.jsonrpc import PendingResult, Raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller
from trunkline.mcp.methods import Method
from trunkline.mcp.params import Params
from trunkline.mcp.versions import Revision
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.limits import AppliedLimits
from trunkline.routing.policy import PolicyDecision

MAX_CACHED_CALLERS = 64
"""How many callers of one target are cached; beyond that, the cache of the target is emptied."""

MAX_CACHED_CALLER_BYTES = 4096
"""Callers with a larger envelope are not cached: the cache keeps the caller alive."""

MAX_CACHED_LISTS = 256
"""How many lists are cached: one per kind, revision and group of callers."""

MAX_CACHED_DIGESTS = 20_000
"""How many digests of lists are cached; beyond that, all are dropped."""

LIST_DIGEST_BYTES = 16

MAX_CACHED_DECISIONS = 20_000
"""How many policy decisions are cached; beyond that, all are dropped."""

MAX_CACHED_NAME = 256
"""Decisions about longer names, in characters, are not cached: mostly made-up URIs."""

T = TypeVar("T")


class CallerRules(NamedTuple):
    """The results of the checks that are the same for all calls of one caller to one target."""

    is_visible: bool = True
    is_disabled: bool = False
    """Whether a kill switch is on."""
    limits: AppliedLimits | None = None
    rule: str | None = None
    """The policy rule that allows every call, if one does."""


class CallerCache(Generic[T]):
    """Caches one value per Caller, by object identity: its capabilities cannot be hashed."""

    __slots__ = ("_cached", "_decide")

    def __init__(self, decide: Callable[[Caller], T]) -> None:
        """Create an empty cache; `decide` returns the value for a caller that is not in it."""
        self._decide = decide
        # The caller too, so that its id is not reused
        self._cached: dict[int, tuple[T, Caller]] = {}

    def get(self, caller: Caller) -> T:
        """Return the value for a caller."""
        known = self._cached.get(id(caller))
        return self._add(caller) if known is None else known[0]

    def _add(self, caller: Caller) -> T:
        value = self._decide(caller)
        if len(self._cached) >= MAX_CACHED_CALLERS:
            self._cached.clear()
        if len(caller.envelope) <= MAX_CACHED_CALLER_BYTES:
            self._cached[id(caller)] = (value, caller)
        return value

    def __len__(self) -> int:
        return len(self._cached)


def _allow_all(_: Caller) -> CallerRules:
    return CallerRules()


class Route(Struct, frozen=True):
    """The upstream of one catalogue entry, and the checks that its calls must pass."""

    entry: CatalogEntry
    upstream: Upstream
    checks: tuple[Callable[..., Any], ...] = ()
    """The checks of the pipeline (`CallCheck`)."""
    caller_rules: CallerCache[CallerRules] = field(default_factory=lambda: CallerCache(_allow_all))
    """The rules for each caller."""
    is_restricted: bool = False
    """Whether the entry may be hidden from some callers, or calls another tool."""
    is_call_tool: bool = False
    rewrite_params: Callable[[Params], None] | None = None
    """Rewrites the params for the owner of the entry; None if they can stay."""
    rewrite_answer: Callable[[PendingResult], None] | None = None
    """Rewrites the answer for the client; None if it can stay."""
    generation: int = 0
    """The generation of the DecisionCache in which it was built."""
    wrapper: "Route | None" = None
    """The route of the `call_tool` that calls this tool. Its checks apply, too."""
    start_check: Callable[..., Any] | None = None
    """The last of `checks` if the upstream has to start first; it waits for that."""


class DecisionCache:
    """The cached decisions about callers and targets."""

    def __init__(self, max_decisions: int = MAX_CACHED_DECISIONS) -> None:
        """Create an empty cache with at most `max_decisions` decisions of the policy."""
        self._max_decisions = max_decisions
        self.generation = 0
        """How often the cache was invalidated."""
        self._routes: dict[tuple[Method, str], Route] = {}
        self._policy_decisions: dict[Hashable, tuple[Raw, PolicyDecision]] = {}
        self._lists: dict[Hashable, Raw] = {}
        self._list_digests: dict[Hashable, str] = {}
        self.capabilities: dict[str, Any] | None = None

    def invalidate(self) -> None:
        """Drop everything: something has changed that may have gone into it."""
        self.generation += 1
        self._routes = {}
        self._policy_decisions = {}
        self._lists = {}
        self._list_digests = {}
        self.capabilities = None

    def route(self, method: Method, name: str) -> Route | None:
        """Return the route of a name, if it is cached."""
        return self._routes.get((method, name))

    def add_route(self, method: Method, name: str, route: Route) -> None:
        """Cache the route of a name that the catalogue lists."""
        self._routes[method, name] = route

    def policy_decision(
        self, group: Hashable, entry: CatalogEntry, decide: Callable[[], PolicyDecision]
    ) -> PolicyDecision:
        """Return what the policy says of a feature for a group of callers."""
        key = (group, entry.kind, entry.public_name, entry.backend)
        cached = self._policy_decisions.get(key)
        # The gateway makes up entries for names that are not listed; they have no definition.
        if cached is not None and cached[0] is entry.definition:
            return cached[1]
        decision = decide()
        if len(entry.public_name) <= MAX_CACHED_NAME:
            if len(self._policy_decisions) >= self._max_decisions:
                self._policy_decisions.clear()
            self._policy_decisions[key] = (entry.definition, decision)
        return decision

    def encoded_list(
        self, group: Hashable, kind: FeatureKind, revision: Revision, write: Callable[[], Raw]
    ) -> Raw:
        """Return the list of one kind for a group of callers; `write` encodes it."""
        key = (group, kind, revision)
        found = self._lists.get(key)
        if found is None:
            if len(self._lists) >= MAX_CACHED_LISTS:
                del self._lists[next(iter(self._lists))]
            found = self._lists[key] = write()
        return found

    def list_digest(
        self, group: Hashable, kind: FeatureKind, revision: Revision, write: Callable[[], Raw]
    ) -> str:
        """Return a digest of such a list, the same in every process."""
        key = (group, kind, revision)
        found = self._list_digests.get(key)
        if found is None:
            content = self.encoded_list(group, kind, revision, write)
            if len(self._list_digests) >= MAX_CACHED_DIGESTS:
                self._list_digests.clear()
            digest = blake2b(content, digest_size=LIST_DIGEST_BYTES).hexdigest()
            found = self._list_digests[key] = digest
        return found
