"""Reload: a configuration that is read again is checked first, and then taken whole.

    files ──read, in a thread──> Config ──> every part prepares ──> every part applies, at once
                 │ bad                          │ one cannot
                 └──────────────────────────────┴──> nothing has changed, and it is said why

A part is a function that prepares. It may fail, by ConfigErrors, OSError or ValueError, and has
changed nothing by then; what it returns applies, must not fail, and has nothing to await:

    def prepare_guard(change: Change) -> Apply:
        guard = guard_of(change.new)      # reads keys, compiles rules: whatever may go wrong

        def apply() -> None:
            door.guard = guard            # swaps what is ready, and keeps what is counted

        return apply

    reloader.add(prepare_guard)

`change.difference` says what differs, `change.note` says what else did, such as a file that the
configuration only names, and `change.postpone` what has to wait for the next start. A part is
asked at every reload, also if nothing in its tables differs: a key file may have changed. A table
that names a file appends it to `Surroundings.files`, and it is watched.

Refuses to know what a part does.

Rules upheld here:
1. Nothing has changed unless everything could be prepared; then all of it changes without a pause.
2. Reloads come one after the other; calls do not wait for any of them.
3. What is on the disk is taken once: a file that was touched, or is still as bad as it was, is no
   news.
4. What has to wait is said to wait at every reload until it is as it runs, and no longer.
"""

import asyncio
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, field

from trunkline.config import Config, ConfigError, ConfigErrors, load
from trunkline.config.difference import Difference, difference, keep
from trunkline.files import Stamp, stamp_of
from trunkline.jsonrpc.incident import Report, answer_for, print_incident

PAUSE = 1.0
"""How many seconds pass between two looks at the files."""

QUIET = 0.1
"""For how many seconds files must have been left alone before they are read."""

RESTLESS = 20
"""How often that is waited for at most."""

AGAIN = 0.5
"""After how many seconds a file that is bad right after its change is read once more."""

PARTLY = "taken only in part; start the gateway anew"
"""What is said of a part that was prepared, and failed all the same."""

_ROUNDS = 3
_ONCE = b"once"
"""The digest of what can be read only once."""

Apply: TypeAlias = Callable[[], None]


class Change(Struct, frozen=True):
    """One configuration in the place of another: of the one that runs, whatever the file said."""

    old: Config
    new: Config
    difference: Difference
    noted: list[str] = field(default_factory=list[str])
    postponed: list[str] = field(default_factory=list[str])

    def note(self, what: str) -> None:
        """Say that something changes that the configuration itself does not show."""
        self.noted.append(what)

    def postpone(self, *keys: str) -> None:
        """Say that what differs in these keys has to wait for the next start."""
        for key in keys:
            self.postponed.extend(self.difference.keys_of(key))


Prepare: TypeAlias = Callable[[Change], Apply | Awaitable[Apply]]


class Outcome(Struct, frozen=True):
    """What came of a reload; with a `problem`, nothing has changed unless `changed` says so."""

    problem: str | None = None
    changed: tuple[str, ...] = ()
    postponed: tuple[str, ...] = ()
    """The keys whose values have to wait for the next start."""
    notes: tuple[str, ...] = ()
    """What a reader should know of a file that is good all the same."""

    @property
    def is_news(self) -> bool:
        """Tell whether there is anything to say."""
        return bool(self.problem or self.changed or self.postponed)


class Reading(Struct, frozen=True):
    """What the files said: a configuration, or what is wrong with it."""

    found: Config | ConfigErrors
    files: tuple[Path, ...]
    stamps: tuple[Stamp, ...]
    digest: bytes
    """Of all that was read; empty if it changed all the while."""


class Reloader:
    """Keeps a gateway as its configuration has it."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        tell: Callable[[Outcome], None],
        report: Report = print_incident,
    ) -> None:
        """Begin with what is running; `tell` hears what came of every reload that is news."""
        self.config = config
        """What was read last, and was good."""
        self._running = config
        """The same, but for what has to wait."""
        self._environ = environ
        self._tell = tell
        self._report = report
        self._parts: list[Prepare] = []
        self._reloading = asyncio.Lock()
        self._asked = asyncio.Event()
        self._files: tuple[Path, ...] = () if config.source is None else (config.source,)
        self._stamps: tuple[Stamp, ...] = ()
        self._digest = b""

    def add(self, prepare: Prepare) -> None:
        """Have one more part reloaded, after those that were added before."""
        self._parts.append(prepare)

    def ask(self) -> None:
        """Have it reloaded soon; asking again before that is asking once."""
        self._asked.set()

    async def reload(self) -> Outcome:
        """Take the configuration as it is on the disk, if it is good."""
        async with self._reloading:
            outcome = await self._attempt(await self._read())
            self._tell(outcome)
        return outcome

    # Watching

    async def run(self) -> None:
        """Reload whenever it is asked for, or one of the files has changed."""
        turn = self.begin
        while True:
            try:
                await turn()
            except Exception as why:  # whatever it was, the next change is another one
                answer_for(why, "reload", self._report)
            turn = self._turn
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await self._asked.wait()

    async def _turn(self) -> None:
        if self._asked.is_set():
            self._asked.clear()
            await self.reload()
        else:
            await self.look()

    async def begin(self) -> None:
        """Learn which files there are, and take what has changed since they were read."""
        async with self._reloading:
            reading = await self._read()
            if reading is None or reading.digest == _ONCE or not self.config.gateway.watch:
                return
            if reading.found != self.config:
                await self._settle(reading)

    async def look(self) -> None:
        """Take the configuration if one of its files has changed, once it has settled down."""
        settled = bool(self._digest) and stamps_of(self._files) == self._stamps
        if settled or not self._files or not self.config.gateway.watch:
            return
        async with self._reloading:
            before = self._digest
            await self._wait_quiet()
            reading = await self._read()
            if reading is not None and (not reading.digest or reading.digest != before):
                await self._settle(reading)

    async def _wait_quiet(self) -> None:
        """Wait until whoever writes the files has finished, but not for ever."""
        seen = stamps_of(self._files)
        for _ in range(RESTLESS):
            await asyncio.sleep(QUIET)
            last, seen = seen, stamps_of(self._files)
            if seen == last:
                return

    async def _settle(self, reading: Reading) -> None:
        """Take what was read; what is bad may be half written, so it is read once more."""
        outcome = await self._attempt(reading)
        if outcome.problem is not None:
            await asyncio.sleep(AGAIN)
            outcome = await self._attempt(await self._read())
        if outcome.is_news:
            self._tell(outcome)

    # Reading, and taking what was read

    async def _read(self) -> Reading | None:
        """Read all files, off the loop; None if there are none."""
        source = self.config.source
        if source is None:
            return None
        reading = await asyncio.to_thread(read, source, self._environ, self._files)
        self._files, self._stamps, self._digest = reading.files, reading.stamps, reading.digest
        return reading

    async def _attempt(self, reading: Reading | None) -> Outcome:
        if reading is None:
            return Outcome("the embedded default is served: there is no file to read again")
        if isinstance(reading.found, ConfigErrors):
            return Outcome(str(reading.found))
        new = reading.found
        change = Change(self._running, new, difference(self._running, new))
        try:
            steps = [await self._prepare(prepare, change) for prepare in self._parts]
        except ConfigErrors as wrong:
            return Outcome(str(wrong))
        except (OSError, ValueError) as why:
            return Outcome(str(ConfigError(str(new.source), None, "", str(why))))
        except Exception as why:
            error = answer_for(why, "reload", self._report)
            return Outcome(f"{new.source}: {error.message}: {error.data}")
        return self._apply(steps, change)

    async def _prepare(self, prepare: Prepare, change: Change) -> Apply:
        prepared = prepare(change)
        return prepared if callable(prepared) else await prepared

    def _apply(self, steps: Iterable[Apply], change: Change) -> Outcome:
        """Change everything; from here on nobody waits for anything."""
        self.config = change.new
        self._running = keep(change.old, change.new, change.postponed)
        problem: str | None = None
        for step in steps:
            try:
                step()
            except Exception as why:  # it must not; the rest is closer to the new one than not
                error = answer_for(why, "reload", self._report)
                problem = f"{change.new.source}: {PARTLY}: {error.message}: {error.data}"
        changed = (*change.difference.lines(), *change.noted)
        done = (line for line in changed if line not in change.postponed)
        return Outcome(problem, tuple(done), tuple(change.postponed), change.new.notes)


# Files


def read(source: Path, environ: Mapping[str, str], known: Sequence[Path]) -> Reading:
    """Read a configuration and all files that belong to it, at one moment; `known` are those."""
    found: Config | ConfigErrors = Config()
    for _ in range(_ROUNDS):
        if _is_no_file(source):
            why = "expected a file that can be read again"
            problem = ConfigError(str(source), None, "", why, "start with a regular file")
            return Reading(ConfigErrors([problem]), (source,), stamps_of((source,)), _ONCE)
        # Before anything is read: what changes meanwhile is seen the next time.
        stamps, before, files = stamps_of(known), digest_of(known), list[Path]()
        try:
            found = load(source, environ, files)
        except ConfigErrors as wrong:
            found = wrong
        files = list(dict.fromkeys((source, *files)))
        if files == list(known) and digest_of(files) == before:
            return Reading(found, tuple(files), stamps, before)
        known = files
    return Reading(found, tuple(known), stamps_of(known), b"")


def _is_no_file(path: Path) -> bool:
    """Tell whether something is there that would keep whoever reads it waiting."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def digest_of(files: Iterable[Path]) -> bytes:
    """Return what tells the contents of files from any others."""
    whole = hashlib.sha256()
    for path in files:
        whole.update(hashlib.sha256(os.fsencode(path)).digest())
        try:
            whole.update(b"" if _is_no_file(path) else _digest_of(path))
        except (OSError, ValueError) as why:
            whole.update(str(getattr(why, "errno", None)).encode())
    return whole.digest()


def _digest_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def stamps_of(files: Iterable[Path]) -> tuple[Stamp, ...]:
    """Return what tells quickly that files may have changed."""
    return tuple(map(stamp_of, files))
