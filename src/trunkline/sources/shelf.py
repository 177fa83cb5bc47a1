"""Shelf: the registry that is being served, taken from its file again whenever that has changed.

    fresh() ── has the file another stamp? once a second at most, in a thread ──> load ──> serve it
                                                              not good: keep the old one ──┘

Refuses to hold anybody up: while one caller looks at the file, all others get what is there.

Rules upheld here:
1. What was good is served until something else is good.
2. No file is touched on the event loop.
"""

import asyncio
import logging
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from trunkline.documents.errors import ConfigError, ConfigErrors
from trunkline.files import Stamp, stamp_of
from trunkline.sources.changes import BadLog, verify_log
from trunkline.sources.edit import log_path, read_log
from trunkline.sources.keys import is_same_key
from trunkline.sources.load import Loaded, embedded, load
from trunkline.sources.matching import Matching, TopicFinder

LOOK_AGAIN = 1.0
"""How many seconds pass at least between two looks at the file."""

_MISSING = "check the name, or leave registry out for the embedded default"
_log = logging.getLogger(__name__)

FileStamp: TypeAlias = tuple[Stamp, ...]


class LogState(Struct, frozen=True):
    """What is to be said of a change log: its length and last hash, or why it does not hold."""

    entries: int = 0
    head: str | None = None
    problem: str | None = None


class Shelved(Struct, frozen=True):
    """A registry with its index, and its change log if there is one."""

    loaded: Loaded
    finder: TopicFinder
    log: LogState | None = None


class Shelf:
    """Holds a registry and keeps it fresh; without a path, the embedded one."""

    def __init__(
        self, path: Path | None = None, matching: Matching | None = None, pinned: str | None = None
    ) -> None:
        """Begin empty; `pinned` is the key that must have signed what is served."""
        self._path = path
        self._matching = matching or Matching()
        self._pinned = pinned
        self._held: Shelved | None = None
        self._stamp: FileStamp = ()
        self._looked = float("-inf")
        self._looking = asyncio.Lock()
        self.is_behind = False
        """Whether there is a newer file that is not good."""

    async def open(self) -> Shelved:
        """Read the registry for the first time; raises ConfigErrors."""
        self._looked = asyncio.get_running_loop().time()
        self._stamp, self._held = await asyncio.to_thread(self._read)
        return self._held

    async def fresh(self) -> Shelved:
        """Return the registry as its file has it now, if that is good."""
        held = self._held or await self.open()
        now = asyncio.get_running_loop().time()
        if self._path is None or self._looking.locked() or now - self._looked < LOOK_AGAIN:
            return held
        async with self._looking:
            self._looked = now
            await self._look()
        return self._held or held

    async def _look(self) -> None:
        if await asyncio.to_thread(_stamp_of, self._path) == self._stamp:
            return
        try:
            self._stamp, self._held = await asyncio.to_thread(self._read)
            self.is_behind = False
        except ConfigErrors as wrong:
            # Remembered, so that it is said once and not every second.
            self._stamp = await asyncio.to_thread(_stamp_of, self._path)
            self.is_behind = True
            _log.warning("the old registry is kept, since the new one is not good:\n%s", wrong)

    def _read(self) -> tuple[FileStamp, Shelved]:
        """Read all of it, stamp first: what changes meanwhile is seen the next time."""
        stamp = _stamp_of(self._path)
        loaded = embedded() if self._path is None else load(self._path, _MISSING)
        self._check_pinned(loaded)
        finder = TopicFinder(loaded.registry.categories, self._matching)
        return stamp, Shelved(loaded, finder, _log_state(self._path, loaded))

    def _check_pinned(self, loaded: Loaded) -> None:
        if self._pinned is None:
            return
        if not (loaded.is_signed and is_same_key(loaded.registry.curator.pubkey, self._pinned)):
            why = "not signed by the key that the configuration names as curator_key"
            fix = "have it signed: trunkline sources sign"
            raise ConfigErrors([ConfigError(loaded.file, None, "signature", why, fix)])


def _stamp_of(path: Path | None) -> FileStamp:
    return () if path is None else (stamp_of(path), stamp_of(log_path(path)))


def _log_state(path: Path | None, loaded: Loaded) -> LogState | None:
    if path is None:
        return None
    try:
        entries = read_log(path)
        if entries is None:
            return None
        return LogState(len(entries), verify_log(entries, loaded.tree))
    except (BadLog, ConfigErrors) as why:
        # Not the whole of ConfigErrors: that names places on our disk, and this is for clients.
        problem = str(why) if isinstance(why, BadLog) else "cannot be read"
        return LogState(problem=problem)
