"""View: what of the catalogue each caller gets to see, and which of it is on the list.

    visible(caller, entry)     may know of it: lists, searches, descriptions and calls all ask this
    shown(entry)               is on the list; what is not can still be found, described and called

Refuses to be asked twice: nobody else decides what a caller may see.

Rules upheld here:
1. What a caller may not see is not there for it: not listed, not found, and unknown when called.
2. What is not on the list can be called all the same, by those who may see it.
3. The tools that find tools are on every list: without them the rest could not be reached.
4. What is stopped is not listed or found, but it is known: who calls it learns that it is stopped.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.routing.catalog import Catalog, Entry, write_list
from trunkline.routing.pattern import fits_any

CALL_TOOL = "call_tool"
"""The tool that calls another; its backend is named to the View."""

Visible: TypeAlias = Callable[[Caller, Entry], bool]
"""Tells whether a caller may know of an offer."""


class View:
    """Decides who sees what."""

    def __init__(
        self,
        surface: Sequence[str] | None = None,
        searches: frozenset[str] = frozenset(),
        visible: Visible | None = None,
    ) -> None:
        """Show the tools that fit the patterns of `surface`, or all; `searches` are backends.

        `visible` is for those who may not see everything.
        """
        self.searches = searches
        self._surface = surface
        self._visible = visible
        self._written: tuple[Catalog, dict[str, Raw]] = (Catalog(), {})
        self.stops: Visible | None = None
        """Tells whether an offer is stopped for a caller, while anything is."""
        self.plain = visible is None and not searches
        """Whether everybody may see everything, and nothing is called by way of something else."""

    def visible(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether a caller may know of an offer, and call it."""
        return self._visible is None or self._visible(caller, entry)

    def offered(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether a caller is told of an offer: it may know of it, and it is not stopped."""
        stopped = self.stops is not None and self.stops(caller, entry)
        return not stopped and self.visible(caller, entry)

    def shown(self, entry: Entry) -> bool:
        """Tell whether an offer is on the list of those who may see it."""
        if self._surface is None or entry.kind is not Kind.TOOL or entry.backend in self.searches:
            return True
        return fits_any(self._surface, entry.public)

    def calls_another(self, entry: Entry) -> bool:
        """Tell whether a tool is the one that calls another."""
        return entry.native == CALL_TOOL and entry.backend in self.searches

    def list_result(self, catalog: Catalog, kind: Kind, caller: Caller) -> Raw:
        """Return the result of a list of one kind, as the caller sees it."""
        version = caller.version
        if self._visible is not None or self.stops is not None:
            found = [entry for entry in catalog.entries(kind) if self.offered(caller, entry)]
            return write_list(kind, [entry for entry in found if self.shown(entry)], version)
        if self._surface is None or kind is not Kind.TOOL:
            return catalog.list_result(kind, version)
        if self._written[0] is not catalog:
            self._written = (catalog, {})
        lists = self._written[1]
        if version not in lists:
            shown = [entry for entry in catalog.entries(kind) if self.shown(entry)]
            lists[version] = write_list(kind, shown, version)
        return lists[version]
