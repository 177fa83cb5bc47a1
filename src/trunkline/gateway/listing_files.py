"""Snapshots on disk: what each server listed last, so that lists are complete after a restart.

    a server has listed its features ──> ListingFiles.put ──> listings/KEY.json, by a thread
    a server that starts <── ListingFiles.get <── listings/KEY.json, read once

The files are optional: without one, clients wait for the server's first listing. A snapshot never
decides anything: calls always wait for the server itself.

Invariants:
1. Keys are digests of configurations, so no file has a command, a URL or a secret of one.
2. A file counts only if it is ours, complete, of this format, and has its key as its content says.
   Otherwise it is ignored with a warning.
3. A reader sees the complete old or the complete new file; only its owner can read it.
4. The size of a file, the number of files and their total size are limited. The files that were
   written longest ago are removed first.
"""

import asyncio
import logging
import re
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from trunkline.files import BackgroundWriter, read_file, replace_file
from trunkline.gateway.stores import MAX_STORED_LISTINGS, StoredListing
from trunkline.printable import printable

LISTINGS_FOLDER = "listings"

MAX_LISTING_BYTES = 8 * 1024 * 1024
"""The maximum size of one file. The listing of a server with more is not stored."""

MAX_TOTAL_LISTING_BYTES = 64 * 1024 * 1024
"""The maximum size of all files."""

_FORMAT = 1
_KEY = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger(__name__)


class _ListingFile(Struct, frozen=True):
    key: str
    listing: StoredListing
    format: int = _FORMAT


class ListingFiles:
    """The listings in one file per server, which several gateways may share."""

    def __init__(
        self,
        folder: Path,
        *,
        max_files: int = MAX_STORED_LISTINGS,
        max_total_bytes: int = MAX_TOTAL_LISTING_BYTES,
        flush_timeout: float = 2.0,
    ) -> None:
        """Prepare; nothing is read or created yet.

        `flush_timeout` is how many seconds closing waits for the last listings to be written.
        """
        self._folder = folder / LISTINGS_FOLDER
        self._max_files = max_files
        self._max_total_bytes = max_total_bytes
        self._writer = BackgroundWriter[StoredListing | None](self._apply_changes, flush_timeout)

    async def get(self, key: str, max_age: float | None = None, /) -> StoredListing | None:
        """Return the last listing of a server; None if there is none younger than `max_age` s."""
        unsaved = self._writer.unsaved
        if key in unsaved:
            return unsaved[key]
        return await asyncio.to_thread(_read_listing, self._path(key), key, max_age)

    def put(self, key: str, listing: StoredListing) -> None:
        """Replace the listing of a server."""
        self._writer.put(key, listing)

    def remove(self, key: str) -> None:
        """Forget a server that could not be started."""
        self._writer.put(key, None)

    async def aclose(self) -> None:
        """Wait until the listings are written, up to `flush_timeout`."""
        await self._writer.aclose()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    # The files; all of this runs in threads

    def _apply_changes(self, changes: dict[str, StoredListing | None]) -> None:
        """Write and remove files; logs a warning for what fails."""
        for key, listing in changes.items():
            path = self._path(key)
            try:
                if listing is None:
                    path.unlink(missing_ok=True)
                else:
                    self._write_file(path, key, listing)
            except OSError as error:
                _log.warning("trunkline: %s cannot be written: %s", path, error)
        with suppress(OSError):  # another gateway may be removing files, too
            self._remove_oldest()

    def _write_file(self, path: Path, key: str, listing: StoredListing) -> None:
        content = msgspec.json.encode(_ListingFile(key, listing))
        if len(content) > MAX_LISTING_BYTES:
            _log.warning(
                "trunkline: the lists of a server are not stored: %d bytes exceed the limit of %d",
                len(content),
                MAX_LISTING_BYTES,
            )
            path.unlink(missing_ok=True)
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, content)

    def _remove_oldest(self) -> None:
        """Remove the oldest files above the limits."""
        if not self._folder.is_dir():
            return
        found = sorted(
            ((path.stat(), path) for path in self._folder.iterdir() if _KEY.fullmatch(path.stem)),
            key=lambda each: each[0].st_mtime_ns,
            reverse=True,
        )
        total = 0
        for count, (stat, path) in enumerate(found, start=1):
            total += stat.st_size
            if count > self._max_files or total > self._max_total_bytes:
                path.unlink(missing_ok=True)


def _read_listing(path: Path, key: str, max_age: float | None) -> StoredListing | None:
    """Read one file; logs a warning and returns None if it is invalid or others may change it."""
    try:
        # Every start of the server writes it, so its time is when the server last listed this.
        if max_age is not None and time.time() - path.stat().st_mtime > max_age:
            return None
        # Definitions are instructions for models, so only this user may write them.
        content = read_file(path, MAX_LISTING_BYTES, owner_only=True)
        found = msgspec.json.decode(content, type=_ListingFile)
        _require_own(found, key)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        reason = printable(str(error))  # it may quote the content
        _log.warning("trunkline: %s is ignored: %s", path, reason)
        return None
    return found.listing


def _require_own(found: _ListingFile, key: str) -> None:
    if found.format != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}, got {found.format}")
    if found.key != key:
        raise ValueError("it is the snapshot of another server or configuration")
