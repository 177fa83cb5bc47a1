"""Catalog: all that all backends offer, merged, under names that tell them apart.

    listings, in the order of the configuration ──> merge ──> Catalog ──> find, list_result

Refuses to change: when a backend's offers change, another Catalog is made and takes its place, so
that whoever reads one reads it whole and without a lock.

Rules upheld here:
1. Every offer of every backend can be called, whatever it is named: of two equal names the first in
   the order of the configuration keeps it, and the other gets one that says where it comes from.
2. What one backend does never renames what another offers before it.
3. Lists come in the order of the configuration, and within a backend in its own.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.cacheable import Freshness, merge_freshness
from trunkline.mcp.headers import HeaderMap, header_params
from trunkline.mcp.offer import Kind, Offer
from trunkline.mcp.shapes import narrow_tool
from trunkline.mcp.versions import V2026_07_28
from trunkline.routing.naming import public_name
from trunkline.routing.template import matches, weight

OWNED = "trunkline:"
"""How a URI begins that says whose it is: trunkline:BACKEND:the URI that the backend knows."""


_UNSAID = Freshness()


class Listing(NamedTuple):
    """What one backend offers, and the prefix that its names get."""

    backend: str
    prefix: str
    offers: tuple[Offer, ...]
    freshness: Freshness = _UNSAID


class Entry(NamedTuple):
    """One offer as the gateway offers it."""

    kind: Kind
    public: str
    backend: str
    native: str
    definition: Raw
    mirrors: HeaderMap = ()
    """The arguments that a client repeats in HTTP headers."""


class Collision(NamedTuple):
    """Two offers wanted one name: who has it, and what the other is called instead."""

    kind: Kind
    wanted: str
    kept_by: str
    renamed: Entry


class Catalog:
    """An immutable merge of offers."""

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        collisions: Iterable[Collision] = (),
        freshness: Freshness = _UNSAID,
    ) -> None:
        self._entries: dict[Kind, dict[str, Entry]] = {kind: {} for kind in Kind}
        for entry in entries:
            self._entries[entry.kind][entry.public] = entry
        self.collisions = tuple(collisions)
        self.freshness = freshness
        self._results: dict[tuple[Kind, str], Raw] = {}
        """Lists that were asked for, as each revision has them."""

    def entries(self, kind: Kind) -> tuple[Entry, ...]:
        """Return all offers of one kind, in order."""
        return tuple(self._entries[kind].values())

    def find(self, kind: Kind, public: str) -> Entry | None:
        """Return what is offered under exactly this name or URI."""
        return self._entries[kind].get(public)

    def find_reader(self, uri: str) -> Entry | None:
        """Return whose resource `uri` is: as listed, or by the template that fits best."""
        found = self.find(Kind.RESOURCE, uri)
        if found is not None:
            return found
        fitting = [e for e in self.entries(Kind.TEMPLATE) if matches(e.public, uri)]
        best = max(fitting, key=lambda entry: weight(entry.public), default=None)
        if best is None:
            return None
        marked = _mark(best.backend, "")
        native = uri.removeprefix(marked) if best.public.startswith(marked) else uri
        return Entry(Kind.RESOURCE, uri, best.backend, native, best.definition)

    def list_result(self, kind: Kind, version: str = V2026_07_28) -> Raw:
        """Return the result of a list as clients of `version` read it, written once for all."""
        key = (kind, version if kind is Kind.TOOL else V2026_07_28)
        if key not in self._results:
            self._results[key] = write_list(kind, self._entries[kind].values(), version)
        return self._results[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Catalog) and self._entries == other._entries

    def changed_kinds(self, other: "Catalog") -> tuple[Kind, ...]:
        """Name the kinds of which another catalogue offers something else, or in another order."""
        return tuple(kind for kind in Kind if self.entries(kind) != other.entries(kind))


def write_list(kind: Kind, entries: Iterable[Entry], version: str) -> Raw:
    """Write the result of a list as clients of `version` read it."""
    definitions = [entry.definition for entry in entries]
    if kind is Kind.TOOL:
        definitions = [narrow_tool(definition, version) for definition in definitions]
    return to_raw({kind.value: definitions})


def merge(listings: Iterable[Listing]) -> Catalog:
    """Return the catalogue of all listings, which come in the order of the configuration."""
    taken: dict[tuple[Kind, str], Entry] = {}
    native: set[tuple[str, Kind, str]] = set()
    collisions: list[Collision] = []
    fresh: list[Freshness] = []
    for listing in listings:
        fresh.append(listing.freshness)
        for offer in listing.offers:
            if (listing.backend, offer.kind, offer.key) in native:
                continue  # a backend that lists something twice has it once
            native.add((listing.backend, offer.kind, offer.key))
            names = _names(listing, offer)
            wanted = public = next(names)
            while (offer.kind, public) in taken:
                public = next(names)
            definition = offer.under(public)
            mirrors = _mirrors(offer)
            entry = Entry(offer.kind, public, listing.backend, offer.key, definition, mirrors)
            if public != wanted:
                kept_by = taken[offer.kind, wanted].backend
                collisions.append(Collision(offer.kind, wanted, kept_by, entry))
            taken[offer.kind, public] = entry
    return Catalog(taken.values(), collisions, merge_freshness(fresh))


def _names(listing: Listing, offer: Offer) -> Iterator[str]:
    """Yield the names that an offer may get, best first, without end."""
    name = offer.key
    if offer.kind in (Kind.RESOURCE, Kind.TEMPLATE):
        while True:
            yield name
            name = _mark(listing.backend, name)
    yield public_name(listing.prefix, name)
    while True:
        yield public_name(listing.backend, name)
        name += "\0"  # no longer plain, so that from here on a hash tells it apart


def _mark(backend: str, uri: str) -> str:
    return f"{OWNED}{backend}:{uri}"


def _mirrors(offer: Offer) -> HeaderMap:
    """Return which arguments of a tool go into headers; marks that cannot be count for none."""
    try:
        return header_params(offer.definition) if offer.kind is Kind.TOOL else ()
    except ValueError:
        return ()
