"""Visibility: which features of the catalogue each caller sees, and which of them are listed.

    is_visible(caller, entry)   the caller may know of it: lists, searches and calls all check this
    is_offered(caller, entry)   visible, and not disabled by a kill switch
    is_listed(entry)            on the list; other visible features can still be found and called

Nothing else decides what a caller may see.

Rules upheld here:
1. A feature that a caller may not see does not exist for it: not listed, not found, and unknown
   when called.
2. A visible feature that is not listed can still be called.
3. The search tools are on every list, because they lead to the unlisted tools.
4. A list is encoded once for all callers who see the same. The number of cached lists is bounded.
5. A disabled feature is not listed or found, but a call of it reports that it is disabled.

CallerCache keys by object identity: a Caller is immutable, but its capabilities cannot be hashed.
It keeps the Caller alive, so that its id is not reused. Its owner invalidates it.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from trunkline.jsonrpc import Raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller
from trunkline.routing.catalog import Catalog, CatalogEntry, write_list_result
from trunkline.routing.naming import matches_any_pattern

# When the cache is full, it is cleared.
MAX_CACHED_CALLERS = 64

# Callers with a larger envelope, in bytes, are not cached.
MAX_CACHED_CALLER_BYTES = 4096

T = TypeVar("T")


class CallerCache(dict[int, tuple[T, Caller]]):
    """Caches one decision per Caller, by object identity."""

    __slots__ = ()

    def store(self, caller: Caller, value: T) -> tuple[T, Caller]:
        """Cache the value for a caller if there is room; return the cache entry."""
        if len(self) >= MAX_CACHED_CALLERS:
            self.clear()
        entry = (value, caller)
        if len(caller.envelope) <= MAX_CACHED_CALLER_BYTES:
            self[id(caller)] = entry
        return entry


# The tool that calls another tool; Visibility knows its backends.
CALL_TOOL = "call_tool"

# The number of cached lists: one per kind, revision and group of callers.
MAX_CACHED_LISTS = 256

# Tells whether a kill switch disables a feature for a caller.
DisabledCheck: TypeAlias = Callable[[Caller, CatalogEntry], bool]

VisibleCheck: TypeAlias = Callable[[Caller, CatalogEntry], bool]


class VisibilityPolicy(Protocol):
    """Decides which features a caller may see."""

    def is_visible(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Tell whether a feature exists for a caller."""
        ...

    def visibility_key(self, caller: Caller) -> Hashable:
        """Return a key that is equal for callers who see the same lists."""
        ...


class VisibilityCache:
    """Caches for one feature which callers may see it."""

    __slots__ = ("_check", "_decisions")

    def __init__(self, check: VisibleCheck) -> None:
        self._check = check
        self._decisions = CallerCache[bool]()

    def is_visible(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Tell whether a caller may see the feature."""
        known = self._decisions.get(id(caller))
        if known is None:
            known = self._decisions.store(caller, self._check(caller, entry))
        return known[0]


class Visibility:
    """Decides which features each caller sees, and which of them are listed."""

    def __init__(
        self,
        surface: Sequence[str] | None = None,
        search_backends: frozenset[str] = frozenset(),
        policy: VisibilityPolicy | None = None,
    ) -> None:
        """List the tools that match a pattern of `surface`, or all.

        `search_backends` are the backends of the search tools. `policy` restricts what callers see.
        """
        self.is_visible: VisibleCheck = _always_visible if policy is None else policy.is_visible
        """Tells whether a caller may see and call a feature."""
        self.search_backends = search_backends
        self._surface = surface
        self._policy = policy
        self._disabled_check: DisabledCheck | None = None
        self._catalog = Catalog()
        self._cached_lists: dict[tuple[Hashable, str, FeatureKind, str], Raw] = {}
        self.is_unrestricted = policy is None and not search_backends
        """Whether every caller sees everything and no tool calls another."""

    @property
    def is_uniform(self) -> bool:
        """Whether all callers see the same features."""
        return self._policy is None and self._disabled_check is None

    @property
    def disabled_check(self) -> "DisabledCheck | None":
        """Tells whether a feature is disabled for a caller; None while no kill switch is on."""
        return self._disabled_check

    @disabled_check.setter
    def disabled_check(self, check: "DisabledCheck | None") -> None:
        self._disabled_check = check
        self.invalidate()

    def is_offered(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Tell whether a caller may see a feature that is not disabled."""
        disabled = self._disabled_check is not None and self._disabled_check(caller, entry)
        return not disabled and self.is_visible(caller, entry)

    def is_listed(self, entry: CatalogEntry) -> bool:
        """Tell whether a feature is listed for callers who may see it."""
        if (
            self._surface is None
            or entry.kind is not FeatureKind.TOOL
            or entry.backend in self.search_backends
        ):
            return True
        return matches_any_pattern(self._surface, entry.public_name)

    def make_cache(self) -> "VisibilityCache | None":
        """Return a cache of who sees one feature; None if everybody sees everything."""
        return None if self.is_unrestricted else VisibilityCache(self.is_visible)

    def is_call_tool(self, entry: CatalogEntry) -> bool:
        """Tell whether a tool is the search tool that calls another tool."""
        return entry.native_name == CALL_TOOL and entry.backend in self.search_backends

    def can_see_backend(self, catalog: Catalog, caller: Caller, backend: str) -> bool:
        """Tell whether a caller may see any feature of a backend."""
        policy = self._policy
        if policy is None:
            return True
        entries = (entry for kind in FeatureKind for entry in catalog.entries(kind))
        return any(
            entry.backend == backend and policy.is_visible(caller, entry) for entry in entries
        )

    def list_result(self, catalog: Catalog, kind: FeatureKind, caller: Caller) -> Raw:
        """Return the list of one kind for a caller."""
        policy, version = self._policy, caller.version
        if self.is_uniform and (self._surface is None or kind is not FeatureKind.TOOL):
            return catalog.list_result(kind, version)
        if self._catalog is not catalog:
            self._catalog = catalog
            self.invalidate()
        # A kill switch can disable a single subject, so each subject needs its own lists.
        subject = "" if self._disabled_check is None else caller.principal.id
        key = (None if policy is None else policy.visibility_key(caller), subject, kind, version)
        found = self._cached_lists.get(key)
        if found is None:
            if len(self._cached_lists) >= MAX_CACHED_LISTS:
                del self._cached_lists[next(iter(self._cached_lists))]
            found = self._cached_lists[key] = self._write_list(catalog, kind, caller)
        return found

    def _write_list(self, catalog: Catalog, kind: FeatureKind, caller: Caller) -> Raw:
        entries = [entry for entry in catalog.entries(kind) if self.is_listed(entry)]
        if not self.is_uniform:
            entries = [entry for entry in entries if self.is_offered(caller, entry)]
        return write_list_result(kind, entries, caller.version)

    def invalidate(self) -> None:
        """Drop all cached lists, because callers may see something else now."""
        self._cached_lists = {}


def _always_visible(_caller: Caller, _entry: CatalogEntry) -> bool:
    return True
