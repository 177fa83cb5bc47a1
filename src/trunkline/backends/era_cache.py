"""Which protocol each server speaks, remembered across restarts.

    a server that was connected ──> EraCache.record ──> EraFile ──> eras.json, written by a thread
    a server to connect <── EraCache.get <── EraFile <── eras.json, read once

The file is optional: without it, or if it cannot be read or written, each server is probed once
more.

Invariants:
1. Commands, arguments and URLs may contain secrets: the file has only digests of them.
2. A protocol detected by timeout is cached in memory only. The protocol of one version of a server
   does not apply to another version.
3. A reader of the file sees the complete old or the complete new one; only its owner can read it.
4. The number of entries is limited; the oldest are removed first.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct, field

from trunkline.files import BackgroundWriter, file_lock, read_file, replace_file
from trunkline.jsonrpc import Raw, from_raw
from trunkline.mcp.versions import Era
from trunkline.printable import printable

ERA_FILE = "eras.json"

MAX_ERA_FILE_BYTES = 1024 * 1024  # the maximum size of a file that is read
MAX_SERVERS = 512  # how many entries are kept
MAX_NAME_CHARS = 200  # how many characters of a server's name, and of its version, are kept
_log = logging.getLogger(__name__)


class CachedEra(Struct, frozen=True):
    """The protocol of a server, and its name and version at the time."""

    era: Era
    name: str = ""
    version: str = ""


class _EraFile(Struct, frozen=True):
    servers: dict[str, CachedEra] = field(default_factory=dict[str, CachedEra])


def server_digest(*parts: str) -> str:
    """Return the key of a server."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def cached_era(era: Era, server: Raw) -> CachedEra:
    """Return the entry for a server with this `serverInfo`."""
    try:
        server_info = from_raw(server, dict[str, object])
    except ValueError:
        server_info = {}
    name, version = (str(server_info.get(key, ""))[:MAX_NAME_CHARS] for key in ("name", "version"))
    return CachedEra(era, name, version)


class EraStore(Protocol):
    """The protocols of servers, by the digests of the servers."""

    async def get(self, key: str) -> CachedEra | None:
        """Return the entry of a server, or None."""
        ...

    def put(self, key: str, era: CachedEra | None) -> None:
        """Set the entry of a server; None removes it. A file or a shared store follows later."""
        ...


class MemoryEraStore:
    """The entries of one process."""

    def __init__(self, max_servers: int = MAX_SERVERS) -> None:
        self._max_servers = max_servers
        self._eras: dict[str, CachedEra] = {}

    async def get(self, key: str) -> CachedEra | None:
        """Return the entry of a server, or None."""
        return self._eras.get(key)

    def put(self, key: str, era: CachedEra | None) -> None:
        """Set the entry of a server; None removes it."""
        _apply_changes(self._eras, {key: era}, self._max_servers)


class EraFile:
    """The entries in a file, which several gateways may share."""

    def __init__(
        self, folder: Path, *, max_servers: int = MAX_SERVERS, flush_timeout: float = 2.0
    ) -> None:
        """Prepare; the file is read at the first `get`.

        `flush_timeout` is how many seconds closing waits for the last entries to be written.
        """
        self._max_servers = max_servers
        self._file = folder / ERA_FILE
        self._eras: dict[str, CachedEra] = {}
        self._loaded = False
        self._load_lock = asyncio.Lock()
        self._writer = BackgroundWriter[CachedEra | None](self._write_changes, flush_timeout)

    async def get(self, key: str) -> CachedEra | None:
        """Return the entry of a server, or None."""
        async with self._load_lock:
            if not self._loaded:
                loaded = await asyncio.to_thread(_read_eras, self._file, self._max_servers)
                # Entries set while the file was being read are newer.
                _apply_changes(loaded, {**self._eras}, self._max_servers)
                self._eras, self._loaded = loaded, True
        return self._eras.get(key)

    def put(self, key: str, era: CachedEra | None) -> None:
        """Set the entry of a server; None removes it."""
        if self._loaded and self._eras.get(key) == era:
            return
        _apply_changes(self._eras, {key: era}, self._max_servers)
        self._writer.put(key, era)

    async def aclose(self) -> None:
        """Wait until the entries are written, up to `flush_timeout`."""
        await self._writer.aclose()

    def _write_changes(self, changes: dict[str, CachedEra | None]) -> None:
        _update_file(self._file, changes, self._max_servers)


class EraCache:
    """The cached protocol of one server."""

    def __init__(self, store: EraStore | None = None, key: str = "") -> None:
        """Prepare; `key` is the server's digest. Without a store, the cache is in memory."""
        self._store = MemoryEraStore() if store is None else store
        self._key = key
        self._era: CachedEra | None = None
        self._loaded = False

    async def get(self) -> Era | None:
        """Return the protocol that the server last spoke, or None."""
        if not self._loaded:
            self._era = await self._store.get(self._key)
            self._loaded = True
        return None if self._era is None else self._era.era

    def record(self, era: Era, server: Raw, conclusive: bool) -> None:
        """Record how the server was connected; `conclusive` if it can speak no other protocol."""
        detected = cached_era(era, server)
        if conclusive:
            self._era = detected
            self._store.put(self._key, detected)
        elif self._era is None:
            self._era = detected  # in memory only
        elif self._era != detected:
            self._era = None  # another version of the server: probe again next time
            self._store.put(self._key, None)

    def invalidate(self) -> None:
        """Forget the protocol: the server could not be connected with it."""
        self._era, self._loaded = None, True


# The file; all of this runs in threads


def _apply_changes(
    eras: dict[str, CachedEra], changes: Mapping[str, CachedEra | None], limit: int
) -> None:
    """Apply changes to the entries, newest last, and remove the oldest above the limit."""
    for key, era in changes.items():
        eras.pop(key, None)
        if era is not None:
            eras[key] = era
    for key in list(eras)[: max(0, len(eras) - limit)]:
        del eras[key]


def _read_eras(file: Path, limit: int) -> dict[str, CachedEra]:
    """Read the file; logs a warning and returns nothing if it is invalid."""
    try:
        eras = msgspec.json.decode(read_file(file, MAX_ERA_FILE_BYTES), type=_EraFile).servers
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        reason = printable(str(error))  # it may quote the content
        _log.warning("trunkline: %s is ignored: %s", file, reason)
        return {}
    _apply_changes(eras, {}, limit)
    return eras


def _update_file(file: Path, changes: dict[str, CachedEra | None], limit: int) -> None:
    """Merge changes into the file, under a lock; logs a warning if that fails."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(file):
            eras = _read_eras(file, limit)
            _apply_changes(eras, changes, limit)
            replace_file(file, msgspec.json.format(msgspec.json.encode(_EraFile(eras))) + b"\n")
    except OSError as error:
        _log.warning("trunkline: %s cannot be written: %s", file, error)
