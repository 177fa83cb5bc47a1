"""View: what of the catalogue each caller gets to see, and which of it is on the list.

    sees(caller, entry)      may know of it: lists, searches, descriptions and calls all ask this
    lists(caller, entry)     has it on its lists: what is stopped for now is not
    shown(entry)             is on the list; what is not can still be found, described and called

Refuses to be asked twice: nobody else decides what a caller may see.

Rules upheld here:
1. What a caller may not see is not there for it: not listed, not found, and unknown when called.
2. What is not on the list can be called all the same, by those who may see it.
3. The tools that find tools are on every list: without them the rest could not be reached.
4. A list is written once for all who see the same, for as long as they do; how many are kept is
   bounded.
5. What is stopped is not listed or found, but it is known: who calls it learns that it is stopped.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeAlias

from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.routing.catalog import Catalog, Entry, write_list
from trunkline.routing.known_callers import KnownCallers
from trunkline.routing.pattern import fits_any

CALL_TOOL = "call_tool"
"""The tool that calls another; its backend is named to the View."""

MOST = 256
"""How many lists are kept: one for each kind, revision, and sort of caller."""


Stops: TypeAlias = Callable[[Caller, Entry], bool]
"""Tells whether an offer is stopped for a caller."""

Sees: TypeAlias = Callable[[Caller, Entry], bool]


class Sight(Protocol):
    """Whoever says what callers may see."""

    def sees(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether an offer exists for a caller."""
        ...

    def key(self, caller: Caller) -> Hashable:
        """Return what callers have in common who see the same lists."""
        ...


class Onlookers:
    """Those who called one offer, and whether they see it: each is asked for once."""

    __slots__ = ("_known", "_sees")

    def __init__(self, sees: Sees) -> None:
        self._sees = sees
        self._known = KnownCallers[bool]()

    def visible(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether a caller may know of the offer."""
        known = self._known.get(id(caller))
        if known is None:
            known = self._known.keep(caller, self._sees(caller, entry))
        return known[0]


class View:
    """Decides who sees what."""

    def __init__(
        self,
        surface: Sequence[str] | None = None,
        searches: frozenset[str] = frozenset(),
        sight: Sight | None = None,
    ) -> None:
        """Show the tools that fit the patterns of `surface`, or all; `searches` are backends.

        `sight` is for those who may not see everything.
        """
        self.visible: Sees = _all if sight is None else sight.sees
        """Tells whether a caller may know of an offer, and call it."""
        self.searches = searches
        self._surface = surface
        self._sight = sight
        self._stops: Stops | None = None
        self._catalog = Catalog()
        self._written: dict[tuple[Hashable, str, Kind, str], Raw] = {}
        self.plain = sight is None and not searches
        """Whether everybody may see everything, and nothing is called by way of something else."""

    @property
    def alike(self) -> bool:
        """Whether all see the same."""
        return self._sight is None and self._stops is None

    @property
    def stops(self) -> "Stops | None":
        """What tells whether an offer is stopped for a caller, while anything is."""
        return self._stops

    @stops.setter
    def stops(self, stops: "Stops | None") -> None:
        self._stops = stops
        self.forget()

    def offered(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether a caller is told of an offer: it may know of it, and it is not stopped."""
        stopped = self._stops is not None and self._stops(caller, entry)
        return not stopped and self.visible(caller, entry)

    def shown(self, entry: Entry) -> bool:
        """Tell whether an offer is on the list of those who may see it."""
        if self._surface is None or entry.kind is not Kind.TOOL or entry.backend in self.searches:
            return True
        return fits_any(self._surface, entry.public)

    def onlookers(self) -> "Onlookers | None":
        """Return what knows who sees one offer; None if it is plain who does."""
        return None if self.plain else Onlookers(self.visible)

    def calls_another(self, entry: Entry) -> bool:
        """Tell whether a tool is the one that calls another."""
        return entry.native == CALL_TOOL and entry.backend in self.searches

    def knows(self, catalog: Catalog, caller: Caller, backend: str) -> bool:
        """Tell whether a backend is there for a caller: it may see some of what that offers."""
        sight = self._sight
        if sight is None:
            return True
        offers = (entry for kind in Kind for entry in catalog.entries(kind))
        return any(entry.backend == backend and sight.sees(caller, entry) for entry in offers)

    def list_result(self, catalog: Catalog, kind: Kind, caller: Caller) -> Raw:
        """Return the result of a list of one kind, as the caller sees it."""
        sight, version = self._sight, caller.version
        if self.alike and (self._surface is None or kind is not Kind.TOOL):
            return catalog.list_result(kind, version)
        if self._catalog is not catalog:
            self._catalog = catalog
            self.forget()
        # A switch may stop one subject alone, so with switches every one has lists of its own.
        subject = "" if self._stops is None else caller.principal.id
        key = (None if sight is None else sight.key(caller), subject, kind, version)
        found = self._written.get(key)
        if found is None:
            if len(self._written) >= MOST:
                del self._written[next(iter(self._written))]
            found = self._written[key] = self._write(catalog, kind, caller)
        return found

    def _write(self, catalog: Catalog, kind: Kind, caller: Caller) -> Raw:
        entries = [entry for entry in catalog.entries(kind) if self.shown(entry)]
        if not self.alike:
            entries = [entry for entry in entries if self.offered(caller, entry)]
        return write_list(kind, entries, caller.version)

    def forget(self) -> None:
        """Write all lists anew: callers may see something else by now."""
        self._written = {}


def _all(_caller: Caller, _entry: Entry) -> bool:
    """Let everybody see everything."""
    return True
