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
4. Callers with the same `list_group` see the same lists.
5. A disabled feature is not listed or found, but a call of it reports that it is disabled.

It caches nothing. The gateway's DecisionCache keeps its answers.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeAlias

from trunkline.jsonrpc import Raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller
from trunkline.routing.catalog import Catalog, CatalogEntry, write_list_result
from trunkline.routing.naming import matches_any_pattern

# The tool that calls another tool; Visibility knows its backends.
CALL_TOOL = "call_tool"

_SURFACE_ID_LENGTH = 12

# Whether a kill switch disables a feature for a caller.
DisabledCheck: TypeAlias = Callable[[Caller, CatalogEntry], bool]

VisibleCheck: TypeAlias = Callable[[Caller, CatalogEntry], bool]


class VisibilityPolicy(Protocol):
    """Decides which features a caller may see."""

    def is_visible(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Return whether a feature exists for a caller."""
        ...

    def visibility_key(self, caller: Caller) -> Hashable:
        """Return a key that is equal for callers who see the same lists."""
        ...


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
        """Returns whether a caller may see and call a feature."""
        self.search_backends = search_backends
        self._surface = surface
        self._policy = policy
        self.disabled_check: DisabledCheck | None = None
        """Returns whether a feature is disabled for a caller; None while no kill switch is on."""
        self.is_unrestricted = policy is None and not search_backends
        """Whether every caller sees everything and no tool calls another."""

    @property
    def is_uniform(self) -> bool:
        """Whether all callers see the same features."""
        return self._policy is None and self.disabled_check is None

    def is_offered(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Return whether a caller may see a feature that is not disabled."""
        disabled = self.disabled_check is not None and self.disabled_check(caller, entry)
        return not disabled and self.is_visible(caller, entry)

    def is_listed(self, entry: CatalogEntry) -> bool:
        """Return whether a feature is listed for callers who may see it."""
        if (
            self._surface is None
            or entry.kind is not FeatureKind.TOOL
            or entry.backend in self.search_backends
        ):
            return True
        return matches_any_pattern(self._surface, entry.public_name)

    def is_call_tool(self, entry: CatalogEntry) -> bool:
        """Return whether a tool is the search tool that calls another tool."""
        return entry.native_name == CALL_TOOL and entry.backend in self.search_backends

    def can_see_backend(self, catalog: Catalog, caller: Caller, backend: str) -> bool:
        """Return whether a caller may see any feature of a backend."""
        policy = self._policy
        if policy is None:
            return True
        entries = (entry for kind in FeatureKind for entry in catalog.entries(kind))
        return any(
            entry.backend == backend and policy.is_visible(caller, entry) for entry in entries
        )

    def listed_backends(self, catalog: Catalog, caller: Caller) -> set[str]:
        """Return the backends that have features on a caller's lists."""
        found: set[str] = set()
        for kind in FeatureKind:
            for entry in catalog.entries(kind):
                is_new = entry.backend not in found and self.is_listed(entry)
                if is_new and self.is_offered(caller, entry):
                    found.add(entry.backend)
        return found

    def list_group(self, caller: Caller) -> Hashable:
        """Return a key that is equal for callers who see the same lists."""
        # A kill switch can disable a single subject, so each subject needs its own lists.
        subject = "" if self.disabled_check is None else caller.principal.id
        return (None if self._policy is None else self._policy.visibility_key(caller), subject)

    def surface_id(self, caller: Caller) -> str:
        """Return a short text that is equal for callers who may see the same features.

        It is the same after a restart and in other processes; empty if no policy hides features.
        """
        if self._policy is None:
            return ""
        key = repr(self._policy.visibility_key(caller))
        return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:_SURFACE_ID_LENGTH]

    def write_list(self, catalog: Catalog, kind: FeatureKind, caller: Caller) -> Raw:
        """Return the list of one kind for a caller."""
        entries = [entry for entry in catalog.entries(kind) if self.is_listed(entry)]
        if not self.is_uniform:
            entries = [entry for entry in entries if self.is_offered(caller, entry)]
        return write_list_result(kind, entries, caller.revision)


def _always_visible(_caller: Caller, _entry: CatalogEntry) -> bool:
    return True
