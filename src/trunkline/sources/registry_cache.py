"""RegistryCache: the registry that is served, reloaded when its file changes.

    current() ── has the file changed? (at most once per second, in a thread) ──> load ──> serve it
                                                                 invalid: keep the old one ──┘

While one caller checks the file, all other callers get the cached registry without waiting.

Invariants upheld here:
1. A valid registry is served until another valid one replaces it.
2. No file is read on the event loop.
"""

import asyncio
import logging
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from trunkline.documents.errors import ConfigError, ConfigErrors
from trunkline.files import FileStamp, file_stamp
from trunkline.sources.registry_file import (
    LoadedRegistry,
    load_embedded,
    load_registry,
    log_path,
    read_log,
)
from trunkline.sources.signing import InvalidChangeLog, is_same_key, verify_log
from trunkline.sources.topics import MatchSettings, TopicFinder

# How many seconds pass at least between two checks of the file.
CHECK_INTERVAL = 1.0

_MISSING_FIX = "check the name, or leave registry out for the embedded default"
_log = logging.getLogger(__name__)

# The stamps of the file and its log.
RegistryStamp: TypeAlias = tuple[FileStamp, ...]


class ChangeLogStatus(Struct, frozen=True):
    """The length and last hash of a change log, or why it is not valid."""

    entries: int = 0
    head: str | None = None
    problem: str | None = None


class CachedRegistry(Struct, frozen=True):
    """A registry with its index, and the status of its change log if there is one."""

    loaded: LoadedRegistry
    finder: TopicFinder
    log: ChangeLogStatus | None = None


class RegistryCache:
    """Keeps a registry up to date with its file; without a path, the embedded registry."""

    def __init__(
        self,
        path: Path | None = None,
        settings: MatchSettings | None = None,
        pinned_key: str | None = None,
        check_interval: float = CHECK_INTERVAL,
    ) -> None:
        """Create an empty cache; a registry must be signed by `pinned_key`, if there is one."""
        self._path = path
        self._settings = settings or MatchSettings()
        self._pinned_key = pinned_key
        self._check_interval = check_interval
        self._cached: CachedRegistry | None = None
        self._stamp: RegistryStamp = ()
        self._checked_at = float("-inf")
        self._check_lock = asyncio.Lock()
        # Whether the file has changed and is not valid.
        self.is_outdated = False

    async def open(self) -> CachedRegistry:
        """Read the registry for the first time; raises ConfigErrors."""
        self._checked_at = asyncio.get_running_loop().time()
        self._stamp, self._cached = await asyncio.to_thread(self._read)
        return self._cached

    async def current(self) -> CachedRegistry:
        """Return the registry as its file is now, if that is valid."""
        cached = self._cached or await self.open()
        now = asyncio.get_running_loop().time()
        # Not even a `stat` on the path of most calls.
        is_recent = now - self._checked_at < self._check_interval
        if self._path is None or self._check_lock.locked() or is_recent:
            return cached
        async with self._check_lock:
            # Before the check, so that a check that fails is not repeated for every call.
            self._checked_at = now
            await self._reload_if_changed()
        return self._cached or cached

    async def _reload_if_changed(self) -> None:
        if await asyncio.to_thread(_registry_stamp, self._path) == self._stamp:
            return
        try:
            self._stamp, self._cached = await asyncio.to_thread(self._read)
            self.is_outdated = False
        except ConfigErrors as exc:
            # The new stamp is kept, so that the error is logged once and not every second.
            self._stamp = await asyncio.to_thread(_registry_stamp, self._path)
            self.is_outdated = True
            _log.warning("the new registry is not valid, the old one stays:\n%s", exc)

    def _read(self) -> tuple[RegistryStamp, CachedRegistry]:
        # The stamp first: a change during the read is then noticed by the next check.
        stamp = _registry_stamp(self._path)
        path = self._path
        loaded = load_embedded() if path is None else load_registry(path, _MISSING_FIX)
        self._check_pinned_key(loaded)
        finder = TopicFinder(loaded.registry.categories, self._settings)
        return stamp, CachedRegistry(loaded, finder, _check_change_log(path, loaded))

    def _check_pinned_key(self, loaded: LoadedRegistry) -> None:
        key = self._pinned_key
        if key is None:
            return
        if not (loaded.is_signed and is_same_key(loaded.registry.curator.pubkey, key)):
            reason = "not signed by the key that the configuration names as curator_key"
            fix = "have it signed: trunkline sources sign"
            raise ConfigErrors([ConfigError(loaded.file, None, "signature", reason, fix)])


def _registry_stamp(path: Path | None) -> RegistryStamp:
    return () if path is None else (file_stamp(path), file_stamp(log_path(path)))


def _check_change_log(path: Path | None, loaded: LoadedRegistry) -> ChangeLogStatus | None:
    if path is None:
        return None
    try:
        entries = read_log(path)
        if entries is None:
            return None
        return ChangeLogStatus(len(entries), verify_log(entries, loaded.tree))
    except (InvalidChangeLog, ConfigErrors) as exc:
        # Clients see this, so the paths on our disk that ConfigErrors names are left out.
        problem = str(exc) if isinstance(exc, InvalidChangeLog) else "cannot be read"
        return ChangeLogStatus(problem=problem)
