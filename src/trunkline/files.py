"""Files: replace one atomically, lock it between processes, and notice its changes.

Invariants upheld here:
1. A reader of a replaced file sees the whole old or the whole new content, after a crash too.
2. A new file is readable by its owner only; a replaced file keeps its permissions on request.
3. Waiting for a lock ends after a timeout.
4. A change of permissions counts as a change of the file.
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

LOCK_TIMEOUT = 2.0  # how long `file_lock` waits for another process, in seconds

_LOCK_RETRY_INTERVAL = 0.01

# The permission bits that let group or others write.
_WRITABLE_BY_OTHERS = 0o022

FileStamp: TypeAlias = tuple[int, int, int, int] | None


class WritableByOthers(ValueError):
    """Other users may write to the file, so its content cannot be trusted."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"others may write to it; run chmod go-w {path}")


class FileTooLarge(ValueError):
    """The file is larger than its reader accepts."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"expected at most {max_bytes} bytes")


def file_stamp(path: Path) -> FileStamp:
    """Return what changes when the file does, without reading it; None if there is no file."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: an invalid file name
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode


def read_file(path: Path, max_bytes: int, owner_only: bool = False) -> bytes:
    """Read a file; raises OSError, or FileTooLarge.

    With `owner_only`, raises WritableByOthers if other users may write to it.
    """
    with path.open("rb") as file:
        # On the open file: a check by name could see another file than the read.
        if (
            owner_only
            and os.name == "posix"
            and os.fstat(file.fileno()).st_mode & _WRITABLE_BY_OTHERS
        ):
            raise WritableByOthers(path)
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise FileTooLarge(max_bytes)
    return content


class WatchedFile:
    """A file that is checked for changes now and then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = file_stamp(path)

    async def has_changed(self) -> bool:
        """Return whether the file has changed since the last check."""
        before, self._stamp = self._stamp, await asyncio.to_thread(file_stamp, self.path)
        return self._stamp != before


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replace a file atomically; raises OSError."""
    with _temporary_file(path, content) as new:
        if mode is not None:
            new.chmod(mode)
        new.replace(path)


def create_file(path: Path, content: bytes) -> None:
    """Create a file; raises FileExistsError, or another OSError."""
    with _temporary_file(path, content) as new:
        path.hardlink_to(new)  # unlike a rename, a link never overwrites


@contextmanager
def _temporary_file(path: Path, content: bytes) -> Generator[Path]:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        yield Path(name)
    finally:
        with suppress(OSError):  # it is gone if it was renamed
            Path(name).unlink()


@contextmanager
def file_lock(path: Path, timeout: float = LOCK_TIMEOUT) -> Generator[None]:
    """Lock a file between processes; raises OSError after `timeout` seconds.

    It blocks its thread: do not call it on an event loop.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError("another process is writing it") from None
                time.sleep(_LOCK_RETRY_INTERVAL)
        yield
    finally:
        os.close(descriptor)
