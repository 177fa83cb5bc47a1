"""Reload: read the configuration again, check it, and then apply all of it or nothing.

    files ──read, in a thread──> Config ──> every part prepares ──> every part applies, at once
                 │ invalid                     │ one fails
                 └─────────────────────────────┴──> nothing changes, and the result says why

A part is a function that prepares a change. It may raise ConfigErrors, OSError or ValueError, and
must not change anything yet. It returns a function that applies the change, must not fail, and does
not await:

    def prepare_auth(change: ConfigChange) -> Apply:
        authenticator = build_authenticator(change.new)   # reads keys: may fail

        def apply() -> None:
            router.authenticator = authenticator          # uses the new one

        return apply

    reloader.add(prepare_auth)

`change.diff` says what differs. `change.note` adds differences outside the configuration, such as a
new certificate in the same file. `change.postpone` marks keys that need a restart. Every reload
calls every part, even if its tables are equal: a key file may have changed. A table that names a
file appends it to `ResolveContext.files`, and the reloader watches it.

This module does not depend on the parts.

Invariants:
1. Nothing changes unless every part could prepare. Then all parts apply without an await.
2. Reloads run one after the other; no call waits for a reload.
3. The same file content is applied or reported once. A touched file, or a file with the
   same errors, causes no result.
4. Postponed keys are reported at every reload until the file agrees with the running gateway.
"""

import asyncio
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, field

from trunkline.config import Config, ConfigError, ConfigErrors, load_config
from trunkline.config.diff import ConfigDiff, compare_configs, enabled_servers, with_old_values
from trunkline.files import FileStamp, file_stamp
from trunkline.jsonrpc.errors import IncidentReporter, print_incident, to_rpc_error

PARTIAL_RELOAD = "applied only in part; restart the gateway"

_MAX_READ_ATTEMPTS = 3
# The digest of a source that can be read only once, such as a pipe.
_ONCE_DIGEST = b"once"

Apply: TypeAlias = Callable[[], None]


class ReloadTimings(Struct, frozen=True, kw_only=True):
    """How the reloader watches files; times in seconds."""

    poll_interval: float = 1.0
    # Changed files must be left alone for this long before they are read.
    quiet_period: float = 0.1
    max_quiet_waits: int = 20
    # A file that is invalid right after its change is read again after this time.
    retry_delay: float = 0.5


class ConfigChange(Struct, frozen=True):
    """The running configuration and its replacement."""

    old: Config
    new: Config
    diff: ConfigDiff
    extra_changes: list[str] = field(default_factory=list[str])
    postponed: list[str] = field(default_factory=list[str])

    def note(self, text: str) -> None:
        """Add a change that the configuration itself does not show."""
        self.extra_changes.append(text)

    def postpone(self, *keys: str) -> None:
        """Mark changed values of these keys as waiting for a restart."""
        for key in keys:
            self.postponed.extend(self.diff.changed_keys(key))


Prepare: TypeAlias = Callable[[ConfigChange], Apply | Awaitable[Apply]]


class ReloadResult(Struct, frozen=True):
    """The outcome of a reload; with a `problem`, nothing changed except what `changed` lists."""

    problem: str | None = None
    changed: tuple[str, ...] = ()
    # Keys whose new values need a restart.
    postponed: tuple[str, ...] = ()
    # Warnings about a valid file.
    notes: tuple[str, ...] = ()

    @property
    def is_notable(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.problem or self.changed or self.postponed)


class ConfigReading(Struct, frozen=True):
    """The configuration that the files describe, or their errors."""

    found: Config | ConfigErrors
    files: tuple[Path, ...]
    stamps: tuple[FileStamp, ...]
    # Of all files; empty if they kept changing.
    digest: bytes


class ConfigReloader:
    """Applies changed configuration files to a running gateway."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        on_result: Callable[[ReloadResult], None],
        report: IncidentReporter = print_incident,
        timings: ReloadTimings | None = None,
        *,
        announce: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Start from the running `config`; `on_result` receives every notable result.

        Each requested reload runs in a context of `announce`.
        """
        # The last valid configuration that was read.
        self.config = config
        # The same, with the old values of postponed keys.
        self._running = config
        self._environ = environ
        self._on_result = on_result
        self._report = report
        self._timings = timings or ReloadTimings()
        self._announce = announce
        self._parts: list[Prepare] = []
        self._reloading = asyncio.Lock()
        self._requested = asyncio.Event()
        self._files: tuple[Path, ...] = () if config.source is None else (config.source,)
        self._stamps: tuple[FileStamp, ...] = ()
        self._digest = b""

    def add(self, prepare: Prepare) -> None:
        """Add a part; parts prepare and apply in the order of their addition."""
        self._parts.append(prepare)

    def request_reload(self) -> None:
        """Make `run` reload soon; several requests before that count as one."""
        self._requested.set()

    async def reload(self) -> ReloadResult:
        """Read the files and apply the configuration if it is valid."""
        async with self._reloading:
            with self._announce():
                result = await self._try_reload(await self._read())
            self._on_result(result)
        return result

    async def run(self) -> None:
        """Reload on request and when one of the files has changed, until cancelled."""
        step = self.start
        while True:
            try:
                await step()
            except Exception as error:  # the next change may succeed
                to_rpc_error(error, "reload", self._report)
            step = self._poll
            # A request ends the wait at once; otherwise poll again after the interval.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timings.poll_interval):
                    await self._requested.wait()

    async def _poll(self) -> None:
        if self._requested.is_set():
            self._requested.clear()
            await self.reload()
        else:
            await self.check_files()

    async def start(self) -> None:
        """Learn which files to watch, and apply what changed since they were first read."""
        async with self._reloading:
            reading = await self._read()
            if reading is None or reading.digest == _ONCE_DIGEST:
                return
            if self.config.gateway.reload_on_change and reading.found != self.config:
                await self._apply_reading(reading)

    async def check_files(self) -> None:
        """Reload if one of the files has changed and all have been left alone for a moment."""
        is_unchanged = bool(self._digest) and file_stamps(self._files) == self._stamps
        if is_unchanged or not self._files or not self.config.gateway.reload_on_change:
            return
        async with self._reloading:
            before = self._digest
            await self._wait_quiet()
            reading = await self._read()
            if reading is not None and (not reading.digest or reading.digest != before):
                await self._apply_reading(reading)

    async def _wait_quiet(self) -> None:
        current = file_stamps(self._files)
        for _ in range(self._timings.max_quiet_waits):
            await asyncio.sleep(self._timings.quiet_period)
            previous, current = current, file_stamps(self._files)
            if current == previous:
                return

    async def _apply_reading(self, reading: ConfigReading) -> None:
        """Apply a reading; an invalid file may be half written, so read it once more."""
        result = await self._try_reload(reading)
        if result.problem is not None:
            await asyncio.sleep(self._timings.retry_delay)
            result = await self._try_reload(await self._read())
        if result.is_notable:
            self._on_result(result)

    async def _read(self) -> ConfigReading | None:
        """Read all files in a thread; None if there are none."""
        source = self.config.source
        if source is None:
            return None
        reading = await asyncio.to_thread(read_config_files, source, self._environ, self._files)
        self._files, self._stamps, self._digest = reading.files, reading.stamps, reading.digest
        return reading

    async def _try_reload(self, reading: ConfigReading | None) -> ReloadResult:
        if reading is None:
            return ReloadResult("the gateway runs without a configuration file; nothing to reload")
        if isinstance(reading.found, ConfigErrors):
            return ReloadResult(str(reading.found))
        new = reading.found
        if (problem := _find_loss(self._running, new)) is not None:
            return ReloadResult(problem)
        change = ConfigChange(self._running, new, compare_configs(self._running, new))
        try:
            steps = [await self._prepare(prepare, change) for prepare in self._parts]
        except ConfigErrors as exc:
            return ReloadResult(str(exc))
        except (OSError, ValueError) as exc:
            return ReloadResult(str(ConfigError(str(new.source), None, "", str(exc))))
        except Exception as exc:
            error = to_rpc_error(exc, "reload", self._report)
            return ReloadResult(f"{new.source}: {error.message}: {error.data}")
        return self._apply(steps, change)

    async def _prepare(self, prepare: Prepare, change: ConfigChange) -> Apply:
        prepared = prepare(change)
        return prepared if callable(prepared) else await prepared

    def _apply(self, steps: Iterable[Apply], change: ConfigChange) -> ReloadResult:
        """Apply all prepared parts; nothing here awaits."""
        self.config = change.new
        self._running = with_old_values(change.old, change.new, change.postponed)
        problem: str | None = None
        for step in steps:
            try:
                step()
            except Exception as exc:  # a bug; applying the rest leaves the least inconsistency
                error = to_rpc_error(exc, "reload", self._report)
                problem = f"{change.new.source}: {PARTIAL_RELOAD}: {error.message}: {error.data}"
        changed = (*change.diff.lines(), *change.extra_changes)
        applied = (line for line in changed if line not in change.postponed)
        failing = (s.unresolved for s in enabled_servers(change.new).values() if s.unresolved)
        notes = (*change.new.notes, *failing)
        return ReloadResult(problem, tuple(applied), tuple(change.postponed), notes)


def _find_loss(old: Config, new: Config) -> str | None:
    """Return why servers that can be started now could not be with `new`; None if there are none.

    A file that a server needs may be missing for a moment, while it is replaced.
    """
    usable = {name for name, server in enabled_servers(old).items() if server.unresolved is None}
    reasons = [s.unresolved for s in new.servers if s.name in usable and s.unresolved is not None]
    return "\n".join(reasons) or None


def read_config_files(
    source: Path, environ: Mapping[str, str], known_files: Sequence[Path]
) -> ConfigReading:
    """Read a configuration and its files as of one moment.

    Digests are taken before and after loading; if they differ, everything is read again.
    """
    found: Config | ConfigErrors = Config()
    for _ in range(_MAX_READ_ATTEMPTS):
        if _is_not_regular(source):
            reason = "expected a file that can be read again"
            problem = ConfigError(str(source), None, "", reason, "start with a regular file")
            return ConfigReading(
                ConfigErrors([problem]), (source,), file_stamps((source,)), _ONCE_DIGEST
            )
        # Stamps first: a change during the load differs from them and is noticed by the next poll.
        stamps, before, files = file_stamps(known_files), files_digest(known_files), list[Path]()
        try:
            found = load_config(source, environ, files)
        except ConfigErrors as error:
            found = error
        files = list(dict.fromkeys((source, *files)))
        if files == list(known_files) and files_digest(files) == before:
            return ConfigReading(found, tuple(files), stamps, before)
        known_files = files
    return ConfigReading(found, tuple(known_files), file_stamps(known_files), b"")


def _is_not_regular(path: Path) -> bool:
    """Whether opening `path` could block, as for a pipe; False if it does not exist."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def files_digest(files: Iterable[Path]) -> bytes:
    """Return a digest of the names and contents of files, or of the errors of reading them."""
    whole = hashlib.sha256()
    for path in files:
        # Digests have one length, so no name and content can be taken for another pair.
        whole.update(hashlib.sha256(os.fsencode(path)).digest())
        try:
            whole.update(b"" if _is_not_regular(path) else _file_digest(path))
        except (OSError, ValueError) as error:
            # An error counts as content: a file that becomes readable is a change.
            whole.update(str(getattr(error, "errno", None)).encode())
    return whole.digest()


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def file_stamps(files: Iterable[Path]) -> tuple[FileStamp, ...]:
    """Return stamps that differ when files may have changed."""
    return tuple(map(file_stamp, files))
