"""The features of one server: from its snapshot during its first start, then from its own lists.

    snapshot ──restore──> listed for clients ──┬── the server lists its features ──> those, stored
                                               └── its first start fails ──> nothing, not stored

Some servers offer more to clients with certain features, such as sampling. The snapshot has these
gated features, too, and clients get them once such a client has connected.

Invariants:
1. A snapshot never replaces what the server itself has listed.
2. After a first start that failed, nothing is listed until a start succeeds.
3. Definitions with a configured secret in them are not stored.
"""

from collections.abc import Callable

from trunkline.gateway.backend import BackendFeatures
from trunkline.gateway.secondary_sessions import GatedFeatures
from trunkline.gateway.stores import MAX_GATED_SETS, StoredListing
from trunkline.jsonrpc import to_raw
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.features import Feature


class ServerListing:
    """The features of one server, and for which clients they are known."""

    def __init__(self, mask: Callable[[str], str] = str) -> None:
        """Start without features; `mask` removes secrets from a text."""
        self._mask = mask
        self.current = BackendFeatures()
        """What the server listed last, without gated features."""
        self.gated_features = GatedFeatures()
        self.has_listed = False
        """Whether the server itself has listed its features since the start of the gateway."""
        self.has_failed = False
        """Whether its first start has failed, and no start has succeeded since."""
        self._is_restored = False
        self._restored_gated: dict[frozenset[str], tuple[Feature, ...]] = {}
        # The sets of client features for which the gated features are known
        self._known_sets: set[frozenset[str]] = set()

    def features(self) -> tuple[Feature, ...]:
        """Return all features, followed by the gated ones."""
        return self.gated_features.merge(self.current.features)

    def restore(self, snapshot: StoredListing) -> None:
        """List the features of a snapshot, unless the server has already listed its own."""
        if self.has_listed or self.has_failed:
            return
        self._is_restored = True
        self.current = BackendFeatures(
            snapshot.features,
            snapshot.cache_hints,
            instructions=snapshot.instructions,
            extensions=snapshot.extensions,
        )
        self._restored_gated = {_read_names(k): found for k, found in snapshot.gated.items()}
        for client_features in self.gated_features.client_feature_sets:
            self._restore_gated(client_features)

    def add_client_features(self, client_features: frozenset[str]) -> None:
        """Note that clients with these features have connected."""
        self.gated_features.client_feature_sets.add(client_features)
        self._restore_gated(client_features)

    def _restore_gated(self, client_features: frozenset[str]) -> None:
        found = self._restored_gated.get(client_features)
        if found is not None and client_features not in self._known_sets:
            self._known_sets.add(client_features)
            self.gated_features.store(client_features, found)

    def set_listed(self, listed: BackendFeatures) -> None:
        """Replace the features by what the server has listed."""
        if self._is_restored and listed.features != self.current.features:
            self._restored_gated = {}  # the server has changed: they may have changed, too
        self._is_restored = self.has_failed = False
        self.current, self.has_listed = listed, True

    def set_gated_known(self, client_features: frozenset[str]) -> None:
        """Note that the features for clients with these features have been listed."""
        self._known_sets.add(client_features)

    def note_failed_start(self) -> None:
        """Forget the snapshot if the server has never been ready."""
        self.has_failed = not self.has_listed
        if self._is_restored:
            self._is_restored, self.current = False, BackendFeatures()
            for client_features in self._restored_gated:
                self.gated_features.store(client_features, ())
            self._restored_gated = {}
            self._known_sets.clear()

    def forget_details(self) -> None:
        """Keep the features, instructions and extensions only: the server has ended."""
        self.current = self.current._replace(cache_hints=CacheHints(), skipped=())

    def has_stored_gated(self, client_features: frozenset[str]) -> bool:
        """Return whether the snapshot of a server that has not changed has these gated features."""
        return self.has_listed and client_features in self._restored_gated

    def is_known_for(self, client_features: frozenset[str]) -> bool:
        """Return whether the features for such clients are known, perhaps from the snapshot."""
        known = self.has_listed or self._is_restored
        return known and (not client_features or client_features in self._known_sets)

    def to_store(self) -> StoredListing | None:
        """Return the snapshot to store, or None if the server has listed nothing that may be."""
        if not self.has_listed:
            return None
        gated = {**self._restored_gated, **self.gated_features.stored()}
        kept = list(gated.items())[-MAX_GATED_SETS:]
        found = StoredListing(
            self.current.features,
            self.current.cache_hints,
            {",".join(sorted(names)): features for names, features in kept},
            self.current.instructions,
            self.current.extensions or {},
        )
        return None if self._has_secret(found) else found

    def _has_secret(self, found: StoredListing) -> bool:
        listed = [feature for features in found.gated.values() for feature in features]
        raw = [*(feature.definition for feature in (*found.features, *listed))]
        raw.append(to_raw(found.extensions))
        texts = (bytes(each).decode("utf-8", "replace") for each in raw)
        return any(self._mask(text) != text for text in texts)


def _read_names(key: str) -> frozenset[str]:
    return frozenset(name for name in key.split(",") if name)
