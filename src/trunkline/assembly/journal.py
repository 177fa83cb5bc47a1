"""The journal as the `[journal]` settings have it: its store, its terms, and where its end is kept.

Without settings it is a file in the folder for state, shared by all gateways of a user.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from trunkline.config import Config, JournalSettings
from trunkline.config.journal_table import SQLITE, file_of
from trunkline.journal.head_file import HeadFile
from trunkline.journal.journal import Journal, Terms
from trunkline.journal.ledger import Ledger, Retention
from trunkline.journal.record import Scribe
from trunkline.journal.redact import Rules
from trunkline.journal.store import Store

FILE = "journal.db"
HEAD = "journal.head"


class Place(NamedTuple):
    """Where records are, where the end of the chain is noted, and how people are told."""

    url: str
    head: HeadFile | None
    shown: str


def state_of(config: Config, state: Path | None) -> Path | None:
    """Return the folder for what is to be kept: as configured, else `state`."""
    named = config.gateway.state
    if named is None:
        return state
    folder = config.source.parent if config.source else Path()
    return folder / named if named else None


def place_of(config: Config, state: Path | None) -> Place | None:
    """Return where the journal is; None if there is none. `state` is as `state_of` has it."""
    url = config.journal.url
    if url is None:
        if state is None:
            return None
        path = state / FILE
        return Place(f"{SQLITE}{path}", HeadFile(state / HEAD), str(path))
    if not url:
        return None
    shown = shown_url(url)
    if state is None:
        return Place(url, None, shown)
    digest = hashlib.sha256(shown.encode()).hexdigest()[:12]
    return Place(url, HeadFile(state / f"journal-{digest}.head"), shown)


def store_at(place: Place) -> Store:
    """Return the store that a journal is kept in, not opened yet."""
    if path := file_of(place.url):
        from trunkline.journal.sqlite import SqliteStore  # noqa: PLC0415  only who has it waits

        return SqliteStore(path)
    from trunkline.journal.postgresql import PostgresStore  # noqa: PLC0415

    return PostgresStore(place.url, place.shown)


def journal_of(config: Config, state: Path | None) -> Journal | None:
    """Return the journal, not started yet; None if there is none."""
    place = place_of(config, state)
    if place is None:
        return None
    terms = terms_of(config.journal)
    return Journal(config.gateway.name, place.shown, partial(_open, place), terms)


def _open(place: Place, scribe: Scribe) -> Ledger:
    return Ledger(store_at(place), scribe, place.head)


def terms_of(journal: JournalSettings) -> Terms:
    """Return what may change while the journal is written."""
    return Terms(
        Rules(journal.arguments, journal.redact, journal.max_arguments),
        Retention(journal.keep_days or None, journal.max_mb or None),
        journal.queue,
        journal.when_full,
    )


def shown_url(url: str) -> str:
    """Return a url as people may see it."""
    if path := file_of(url):
        return str(path)
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{user}{parts.hostname or ''}{port}{parts.path}"
