"""Verdicts: which era each server was found to belong to, remembered across restarts.

    a server that was opened ──> Memory.learn ──> Verdicts ──> eras.json, written by a thread
    a server to be opened <── Memory.recall <── Verdicts <── eras.json, read once

Refuses to be needed: without a file, or with one that cannot be read or written, servers are asked
once more, and that is all.

Rules upheld here:
1. Commands, arguments and URLs may hold secrets: of those only a digest is kept.
2. What was concluded from silence is not written down, and what was found of one version of a
   server is not believed of another.
3. Whoever reads the file finds all of it, old or new; nobody but its owner can read it.
4. There are never more than so many verdicts; those that were learnt first are forgotten first.
"""

import asyncio
import hashlib
import logging
from pathlib import Path

import msgspec
from msgspec import Struct, field

from trunkline.files import alone, read_file, replace_file
from trunkline.jsonrpc import Raw, from_raw
from trunkline.mcp.versions import Era
from trunkline.visible import visible

FILE = "eras.json"

MAX_VERDICTS = 512
MAX_FILE = 1024 * 1024
"""How large a file may be, in bytes, to be read."""

MAX_NAME = 200
"""How much is kept of a server's name, and of its version."""

PATIENCE = 2.0
"""How long, in seconds, the end of the gateway waits for the last verdicts to be written."""

_log = logging.getLogger(__name__)


class Known(Struct, frozen=True):
    """What a server was found to be, and what it called itself then."""

    era: Era
    name: str = ""
    version: str = ""


class _Book(Struct, frozen=True):
    servers: dict[str, Known] = field(default_factory=dict[str, Known])


def digest(*parts: str) -> str:
    """Return what a server is remembered by."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def known(era: Era, server: Raw) -> Known:
    """Return what to remember of a server that says this of itself."""
    try:
        said = from_raw(server, dict[str, object])
    except ValueError:
        said = {}
    name, version = (str(said.get(key, ""))[:MAX_NAME] for key in ("name", "version"))
    return Known(era, name, version)


class Verdicts:
    """All that is remembered, in a file, or for as long as the gateway runs."""

    def __init__(self, folder: Path | None = None) -> None:
        """Prepare; nothing is read before the first question."""
        self._file = None if folder is None else folder / FILE
        self._known: dict[str, Known] = {}
        self._loaded = self._file is None
        self._reading = asyncio.Lock()
        self._news: dict[str, Known | None] = {}
        self._writing: asyncio.Task[None] | None = None

    async def recall(self, key: str) -> Known | None:
        """Return what is remembered of a server."""
        async with self._reading:
            if not self._loaded and self._file is not None:
                found = await asyncio.to_thread(_read, self._file)
                _note(found, {**self._known})  # what was learnt meanwhile is newer
                self._known, self._loaded = found, True
        return self._known.get(key)

    def remember(self, key: str, news: Known | None) -> None:
        """Remember something else of a server, or with None nothing any more."""
        if self._loaded and self._known.get(key) == news:
            return
        _note(self._known, {key: news})
        if self._file is not None:
            self._news.pop(key, None)
            self._news[key] = news
            if self._writing is None:
                self._writing = asyncio.create_task(self._write(self._file))

    async def aclose(self) -> None:
        """Wait until what was learnt is written, but not for ever."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=PATIENCE)

    async def _write(self, file: Path) -> None:
        try:
            while self._news:
                news, self._news = self._news, {}
                await asyncio.to_thread(_update, file, news)
        finally:
            self._writing = None


class Memory:
    """What is remembered of one server."""

    def __init__(self, verdicts: Verdicts | None = None, key: str = "") -> None:
        """Prepare; `key` is its digest. Without verdicts, it lasts as long as this."""
        self._verdicts = verdicts or Verdicts()
        self._key = key
        self._known: Known | None = None
        self._asked = False

    async def recall(self) -> Era | None:
        """Return which era the server was last found to belong to."""
        if not self._asked:
            self._known = await self._verdicts.recall(self._key)
            self._asked = True
        return None if self._known is None else self._known.era

    def learn(self, era: Era, server: Raw, conclusive: bool) -> None:
        """Take note of how the server was opened, and whether it can be in no other way."""
        found = known(era, server)
        if conclusive:
            self._known = found
            self._verdicts.remember(self._key, found)
        elif self._known is None:
            self._known = found  # until the gateway ends, or it proves wrong
        elif self._known != found:
            self._known = None  # another version, which may have learnt more: ask the next time
            self._verdicts.remember(self._key, None)

    def doubt(self) -> None:
        """Ask the next time: the server could not be opened, and may not be what it was."""
        self._known, self._asked = None, True


# Files: all of this is done by threads


def _note(book: dict[str, Known], news: dict[str, Known | None]) -> None:
    """Enter news into a book, last, and keep it within bounds."""
    for key, known in news.items():
        book.pop(key, None)
        if known is not None:
            book[key] = known
    for key in list(book)[: max(0, len(book) - MAX_VERDICTS)]:
        del book[key]


def _read(file: Path) -> dict[str, Known]:
    """Read a file; of one that makes no sense, say so."""
    try:
        book = msgspec.json.decode(read_file(file, MAX_FILE), type=_Book).servers
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as why:
        reason = visible(str(why))  # it may quote what is in there
        _log.warning("trunkline: %s is ignored: %s", file, reason)
        return {}
    _note(book, {})
    return book


def _update(file: Path, news: dict[str, Known | None]) -> None:
    """Enter news into a file, beside what others have entered; if that fails, say so."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone(file):
            book = _read(file)
            _note(book, news)
            replace_file(file, msgspec.json.format(msgspec.json.encode(_Book(book))) + b"\n")
    except OSError as why:
        _log.warning("trunkline: %s cannot be written: %s", file, why)
