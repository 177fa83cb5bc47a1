"""Search: the records that somebody wants, from a store, whether they are on sheets or alone.

Refuses to hold more than a step of them: whoever asks takes one after the other, and stops.
"""

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from trunkline.journal.sheet import records
from trunkline.journal.store import Filter, Row, Store

_STEP = 100
"""How many rows are read at a time."""


def search(store: Store, wanted: Filter, newest: bool = False) -> Iterator[Row]:
    """Return all records that are wanted: the first first, or the newest."""
    while rows := store.select(wanted, _STEP, newest):
        for row in rows:
            yield from records(row, wanted, newest)
        last = rows[-1].seq
        wanted = replace(wanted, before=last) if newest else replace(wanted, after=last)


def newest(store: Store, wanted: Filter, limit: int) -> list[Row]:
    """Return the newest records that are wanted, up to so many, in order."""
    return [*islice(search(store, wanted, newest=True), limit)][::-1]
