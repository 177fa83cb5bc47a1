"""SwitchFile: what was stopped at run time, remembered until it is revived.

    kill, revive ──keep──> read, change, write anew ──> switches-DIGEST.json in the folder for state
    start ──load──> what is stopped from the first call on

There is one file for each configuration, whichever process serves it.

Rules upheld here:
1. A file that cannot be read stops everything: nobody can know what it stopped. `revive all` ends
   that, and the file is set aside when another is written.
2. Whoever reads the file finds all of it, old or new; nobody but its owner can read it.
3. Two gateways of one configuration lose nothing of each other's: each changes what it finds there.
"""

import asyncio
import hashlib
import logging
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from trunkline.files import alone, read_file, replace_file
from trunkline.routing.switches import EVERYTHING, Switch, read_switch
from trunkline.visible import visible

MAX_FILE = 1024 * 1024
"""How large a file may be, in bytes, to be read."""

_DIGEST = 16

_log = logging.getLogger(__name__)


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    what: str
    name: str = ""


class _Book(Struct, frozen=True, forbid_unknown_fields=True):
    stopped: tuple[_Entry, ...]
    config: str = ""
    """Whose it is, for people who look."""


class SwitchFile:
    """The file for one configuration."""

    def __init__(self, folder: Path, config: Path | None) -> None:
        """Prepare; nothing is read or written yet. Without a configuration it is the default's."""
        self._config = "embedded default" if config is None else str(config.absolute())
        digest = hashlib.sha256(os.fsencode(self._config)).hexdigest()[:_DIGEST]
        self.path = folder / f"switches-{digest}.json"
        self._writing: set[asyncio.Task[str | None]] = set()

    def load(self) -> frozenset[Switch]:
        """Return what is stopped; everything, if that cannot be read, and say so."""
        found, problem = self._read()
        if problem is not None:
            _log.error(
                "trunkline: %s cannot be read: %s; everything is stopped, since nobody knows what "
                "was: `trunkline revive all` lets all go on",
                self.path,
                problem,
            )
        return found

    async def keep(self, switch: Switch, off: bool) -> str | None:
        """Write down that something is stopped, or is not; return why that cannot be."""
        # A task of its own: whoever stops the very call that stops something ends that, too.
        task = asyncio.create_task(asyncio.to_thread(self._update, switch, off))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Wait until all is written."""
        if self._writing:
            await asyncio.wait(set(self._writing))

    # Files: what follows is done by threads, but for the first look

    def _read(self) -> tuple[frozenset[Switch], str | None]:
        """Return what the file says, and what is wrong with it."""
        try:
            book = msgspec.json.decode(read_file(self.path, MAX_FILE), type=_Book)
            return frozenset(read_switch(entry.what, entry.name) for entry in book.stopped), None
        except (FileNotFoundError, NotADirectoryError):
            return frozenset(), None
        except OSError as why:
            return frozenset([EVERYTHING]), (why.strerror or str(why)).lower()
        except (ValueError, RecursionError) as why:  # also of msgspec
            return frozenset([EVERYTHING]), visible(str(why))

    def _update(self, switch: Switch, off: bool) -> str | None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with alone(self.path):
                found, problem = self._read()
                if problem is not None:
                    self.path.replace(self.path.with_suffix(".unreadable"))
                found = found | {switch} if off else found - {switch}
                entries = tuple(_Entry(each.what.value, each.name) for each in sorted(found))
                content = msgspec.json.encode(_Book(entries, self._config))
                replace_file(self.path, msgspec.json.format(content) + b"\n")
        except OSError as why:
            return f"{self.path} cannot be written: {(why.strerror or str(why)).lower()}"
        return None
