"""Catalog: the immutable merge of the features of all backends, under unique names.

    listings, in the order of the configuration ──> merge_listings ──> Catalog ──> find, list_result

A change of a backend's features makes a new Catalog, so readers need no lock.

Rules upheld here:
1. Every feature can be called. Of two equal names, the first in the order of the configuration
   keeps it, and the other gets a name with its backend.
2. A backend never renames features of the backends before it.
3. Lists are in the order of the configuration, and in each backend's own order.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.cache_hints import CacheHints, merge_cache_hints
from trunkline.mcp.compat import downgrade_tool
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.http_headers import HeaderParams, header_params
from trunkline.mcp.versions import Revision
from trunkline.routing.naming import (
    find_ambiguity,
    matches_template,
    public_name,
    template_specificity,
)
from trunkline.routing.schema_normalisation import NormalisedTool, normalise_tool
from trunkline.routing.schema_validation import UncheckableSchema

# The prefix of a URI that names its backend: trunkline:BACKEND:the native URI.
OWNED_URI_PREFIX = "trunkline:"

_NO_CACHE_HINTS = CacheHints()


class FeatureListing(NamedTuple):
    """The features of one backend, and the prefix of their public names."""

    backend: str
    prefix: str
    features: tuple[Feature, ...]
    cache_hints: CacheHints = _NO_CACHE_HINTS
    normalises_schemas: bool = False
    """Whether clients get the schemas of its tools in a form that strict clients can read."""


class CatalogEntry(NamedTuple):
    """One feature as the gateway offers it."""

    kind: FeatureKind
    public_name: str
    backend: str
    native_name: str
    definition: Raw
    header_params: HeaderParams = ()
    """The arguments that a client repeats in HTTP headers."""
    input_schema: Raw | None = None
    """The schema of the server, which checks arguments; None if the definition has it unchanged."""
    has_invalid_headers: bool = False
    """Whether the schema declares headers against the rules: stateless clients must ignore it."""


class Collision(NamedTuple):
    """Two features wanted one name: who keeps it, and the other's entry."""

    kind: FeatureKind
    wanted: str
    kept_by: str
    renamed: CatalogEntry


class Catalog:
    """An immutable merge of the features of all backends."""

    def __init__(
        self,
        entries: Iterable[CatalogEntry] = (),
        collisions: Iterable[Collision] = (),
        cache_hints: CacheHints = _NO_CACHE_HINTS,
    ) -> None:
        self._entries: dict[FeatureKind, dict[str, CatalogEntry]] = {
            kind: {} for kind in FeatureKind
        }
        for entry in entries:
            self._entries[entry.kind][entry.public_name] = entry
        self.collisions = tuple(collisions)
        self.cache_hints = cache_hints
        # Encoded lists by kind and revision, filled on demand.

    def entries(self, kind: FeatureKind) -> tuple[CatalogEntry, ...]:
        """Return all features of one kind, in order."""
        return tuple(self._entries[kind].values())

    def find(self, kind: FeatureKind, public: str) -> CatalogEntry | None:
        """Return the feature with exactly this public name or URI."""
        return self._entries[kind].get(public)

    def find_resource(self, uri: str) -> CatalogEntry | None:
        """Return the resource `uri`: listed, or matched by the most specific template.

        No template matches an ambiguous URI: rules would judge another one than the server reads.
        """
        found = self.find(FeatureKind.RESOURCE, uri)
        if found is not None or find_ambiguity(uri) is not None:
            return found
        candidates = [
            e for e in self.entries(FeatureKind.TEMPLATE) if matches_template(e.public_name, uri)
        ]
        best = max(
            candidates, key=lambda entry: template_specificity(entry.public_name), default=None
        )
        if best is None:
            return None
        prefix = _owned_uri(best.backend, "")
        native_uri = uri.removeprefix(prefix) if best.public_name.startswith(prefix) else uri
        return CatalogEntry(FeatureKind.RESOURCE, uri, best.backend, native_uri, best.definition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Catalog) and self._entries == other._entries

    def changed_kinds(self, other: "Catalog") -> tuple[FeatureKind, ...]:
        """Return the kinds whose features, or their order, differ in another catalogue."""
        return tuple(kind for kind in FeatureKind if self.entries(kind) != other.entries(kind))


def write_list_result(
    kind: FeatureKind, entries: Iterable[CatalogEntry], revision: Revision
) -> Raw:
    """Encode the result of a list for clients of `revision`."""
    if revision.is_stateless:
        entries = [entry for entry in entries if not entry.has_invalid_headers]
    definitions = [entry.definition for entry in entries]
    if kind is FeatureKind.TOOL:
        definitions = [downgrade_tool(definition, revision) for definition in definitions]
    return to_raw({kind.value: definitions})


def merge_listings(listings: Iterable[FeatureListing]) -> Catalog:
    """Return the catalogue of all listings, which must be in the order of the configuration."""
    taken: dict[tuple[FeatureKind, str], CatalogEntry] = {}
    native: set[tuple[str, FeatureKind, str]] = set()
    collisions: list[Collision] = []
    cache_hints: list[CacheHints] = []
    for listing in listings:
        cache_hints.append(listing.cache_hints)
        for feature in listing.features:
            if (listing.backend, feature.kind, feature.key) in native:
                continue  # the backend listed it twice
            native.add((listing.backend, feature.kind, feature.key))
            names = _candidate_names(listing, feature)
            wanted = public = next(names)
            while (feature.kind, public) in taken:
                public = next(names)
            normalised = _normalise(feature) if listing.normalises_schemas else None
            if normalised is not None:
                feature = feature._replace(definition=normalised.definition)  # noqa: PLW2901
            declared = _header_params(feature)
            entry = CatalogEntry(
                feature.kind,
                public,
                listing.backend,
                feature.key,
                feature.definition_as(public),
                declared or (),
                None if normalised is None else normalised.input_schema,
                declared is None,
            )
            if public != wanted:
                kept_by = taken[feature.kind, wanted].backend
                collisions.append(Collision(feature.kind, wanted, kept_by, entry))
            taken[feature.kind, public] = entry
    return Catalog(taken.values(), collisions, merge_cache_hints(cache_hints))


def _normalise(feature: Feature) -> NormalisedTool | None:
    """Return a tool with normalised schemas, None if it has to stay as it is."""
    try:
        return normalise_tool(feature.definition) if feature.kind is FeatureKind.TOOL else None
    except UncheckableSchema:
        return None


def _candidate_names(listing: FeatureListing, feature: Feature) -> Iterator[str]:
    """Yield the candidate names of a feature, best first, without end."""
    name = feature.key
    if feature.kind in (FeatureKind.RESOURCE, FeatureKind.TEMPLATE):
        while True:
            yield name
            name = _owned_uri(listing.backend, name)
    yield public_name(listing.prefix, name)
    while True:
        yield public_name(listing.backend, name)
        name += "\0"  # no longer plain, so that from here on a hash makes the name unique


def _owned_uri(backend: str, uri: str) -> str:
    return f"{OWNED_URI_PREFIX}{backend}:{uri}"


def _header_params(feature: Feature) -> HeaderParams | None:
    """Return the header arguments of a tool; None if they are declared against the rules."""
    try:
        return header_params(feature.definition) if feature.kind is FeatureKind.TOOL else ()
    except ValueError:
        return None
