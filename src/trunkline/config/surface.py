"""The key `gateway.surface`, beyond its type: what is not listed must be found in another way.

Rule upheld here: `surface = "search"` leaves nobody with an empty list.
"""

from collections.abc import Iterable

from trunkline.config.entry import Entry
from trunkline.documents.errors import Complain
from trunkline.documents.parse import Table


def check_surface(gateway: Table, entries: Iterable[Entry], complain: Complain) -> None:
    """Complain if only the tools that search are to be listed, and there are none."""
    tables = [entry.table for entry in entries if entry.table.get("disabled") is not True]
    if gateway.get("surface") == "search" and all(t.get("builtin") != "search" for t in tables):
        why = 'there is no server with builtin = "search", so that nothing would be listed'
        complain(("gateway", "surface"), why, 'add builtin = "search" below [servers.search]')
