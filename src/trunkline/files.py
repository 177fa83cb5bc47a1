"""Files: replaced as a whole or not at all, by one process at a time; and whether one has changed.

Rules upheld here:
1. Whoever reads a file that is replaced finds all of it, old or new, after a crash as well.
2. A new file is its owner's alone; one that was there keeps its permissions if that is asked for.
3. One who holds a file and never finishes is not waited for for ever.
4. A file has changed as well if others may do with it what they could not, or no longer.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

if sys.platform != "win32":
    import fcntl

PATIENCE = 2.0
"""How long, in seconds, another who writes is waited for."""

_PAUSE = 0.01

_OTHERS = 0o022
"""The permissions by which others than the owner may write."""

Stamp: TypeAlias = tuple[int, int, int, int] | None


class Exposed(ValueError):
    """A file that others may write to, so that what is in it may be anybody's."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"others may write to it; run chmod go-w {path}")


class TooLong(ValueError):
    """A file with more in it than whoever reads it takes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"expected at most {most} bytes")


def stamp_of(path: Path) -> Stamp:
    """Return what changes when a file does, without reading it; None if it is not there."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # also for a name that can be no file's
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode


def read_file(path: Path, most: int, own: bool = False) -> bytes:
    """Read a file of at most so many bytes; raises OSError, and TooLong for a longer one.

    With `own`, raises Exposed if others may write to it.
    """
    with path.open("rb") as file:
        if own and os.name == "posix" and os.fstat(file.fileno()).st_mode & _OTHERS:
            raise Exposed(path)
        content = file.read(most + 1)
    if len(content) > most:
        raise TooLong(most)
    return content


class Watched:
    """A file that is looked at now and then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = stamp_of(path)

    async def has_changed(self) -> bool:
        """Tell whether it is another than at the last look."""
        before, self._stamp = self._stamp, await asyncio.to_thread(stamp_of, self.path)
        return self._stamp != before


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Put `content` in the place of a file, at once; raises OSError."""
    with _beside(path, content) as new:
        if mode is not None:
            new.chmod(mode)
        new.replace(path)


def create_file(path: Path, content: bytes) -> None:
    """Make a file that is not there; raises FileExistsError, or another OSError."""
    with _beside(path, content) as new:
        path.hardlink_to(new)  # unlike a replacement, this never overwrites


@contextmanager
def _beside(path: Path, content: bytes) -> Generator[Path]:
    """Have `content` in a file of its own, in the same folder, for a while."""
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(number)
        yield Path(name)
    finally:
        with suppress(OSError):  # it may be what it was made for by now
            Path(name).unlink()


@contextmanager
def alone(path: Path, patience: float | None = None) -> Generator[None]:
    """Keep others from writing a file meanwhile; raises OSError if one does not finish.

    It waits as threads do: not for an event loop.
    """
    if sys.platform == "win32":
        yield
        return
    number = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        until = time.monotonic() + (PATIENCE if patience is None else patience)
        while True:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise OSError("another is writing it") from None
                time.sleep(_PAUSE)  # in a thread, or a command: there is no loop to hold up
        yield
    finally:
        os.close(number)
