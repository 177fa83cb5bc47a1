"""Files: replace one atomically, lock it between processes, notice its changes, write in a thread.

Invariants upheld here:
1. A reader of a replaced file sees the whole old or the whole new content, after a crash too.
2. A new file is readable by its owner only; a replaced file keeps its permissions on request.
3. Waiting for a lock ends after a timeout.
4. A change of permissions counts as a change of the file.
5. Only its owner and root can change a file that decides who a caller is: no other user may write
   to it, or to a folder above it.
"""

import asyncio
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

if sys.platform != "win32":
    import fcntl

LOCK_TIMEOUT = 5.0  # how long `file_lock` waits for another process, in seconds

_LOCK_RETRY_INTERVAL = 0.01

# The permission bits that let group or others write.
_WRITABLE_BY_OTHERS = 0o022

T = TypeVar("T")

FileStamp: TypeAlias = tuple[int, int, int, int] | None


class WritableByOthers(ValueError):
    """Other users may change or replace the file, so its content cannot be trusted."""

    def __init__(self, path: Path, reason: str = "") -> None:
        super().__init__(reason or f"others may write to it; run chmod go-w {path}")


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


def find_exposure(path: Path, is_secret: bool = False) -> str | None:
    """Return how other users could change a file, or read a secret one, and the remedy.

    None without such a way, and where modes mean nothing.
    """
    if sys.platform == "win32":
        return None
    try:
        path = path.resolve()
        found, folders = path.stat(), [(each, each.stat()) for each in path.parents]
    except (OSError, RuntimeError, ValueError):  # its reader reports it
        return None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in {0, os.getuid()}:
        return f"it belongs to user {found.st_uid}; run chown {os.getuid()} {path}"
    if _is_shared(found, stat.S_IWGRP, stat.S_IWOTH):
        return f"others may write to it (mode {mode:04o}); run chmod go-w {path}"
    if (reason := _find_shared_folder(folders)) is not None:
        return reason
    # A folder above that others cannot enter protects the file.
    is_reachable = all(_is_shared(each, stat.S_IXGRP, stat.S_IXOTH) for _, each in folders)
    if is_secret and is_reachable and _is_shared(found, stat.S_IRGRP, stat.S_IROTH):
        return f"others may read it (mode {mode:04o}); run chmod go-rwx {path}"
    return None


def _find_shared_folder(folders: list[tuple[Path, os.stat_result]]) -> str | None:
    for folder, found in folders:
        if found.st_uid not in {0, os.getuid()}:
            return f"its folder {folder} belongs to user {found.st_uid}; move it to one of your own"
        # In a sticky folder such as /tmp, only the owner of a file can replace it.
        if _is_shared(found, stat.S_IWGRP, stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(found.st_mode)
            return f"others may replace it: {folder} has mode {mode:04o}; run chmod go-w {folder}"
    return None


def _is_shared(found: os.stat_result, group: int, others: int) -> bool:
    """Return whether other users have a permission; a group of one user's own does not count."""
    has_own_group = found.st_gid == found.st_uid  # as Debian and Red Hat create users
    return bool(found.st_mode & others) or (bool(found.st_mode & group) and not has_own_group)


def read_file(path: Path, max_bytes: int, owner_only: bool = False) -> bytes:
    """Read a file; raises OSError, or FileTooLarge.

    With `owner_only`, raises WritableByOthers if other users may change or replace it.
    """
    with path.open("rb") as file:
        # On the open file: a check by name could see another file than the read.
        if (
            owner_only
            and os.name == "posix"
            and os.fstat(file.fileno()).st_mode & _WRITABLE_BY_OTHERS
        ):
            raise WritableByOthers(path)
        if owner_only and (reason := find_exposure(path)) is not None:
            raise WritableByOthers(path, reason)
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


def rewrite_file(path: Path, content: bytes) -> None:
    """Replace a file atomically with its mode and owner kept, or create it; raises OSError."""
    if not path.exists():
        create_file(path, content)
        return
    found = path.stat()
    replace_file(path, content, stat.S_IMODE(found.st_mode))
    with suppress(PermissionError):  # root keeps the file of another user
        os.chown(path, found.st_uid, found.st_gid)


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
    with _flock(descriptor, timeout):
        yield


@contextmanager
def folder_lock(folder: Path, timeout: float = LOCK_TIMEOUT) -> Generator[None]:
    """Lock a folder between processes, as `file_lock` does, and leave no file behind."""
    if sys.platform == "win32":
        yield
        return
    with _flock(os.open(folder, os.O_RDONLY), timeout):
        yield


@contextmanager
def _flock(descriptor: int, timeout: float) -> Generator[None]:
    """Lock an open file, and close it at the end; raises OSError."""
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


class HeldLock:
    """A lock between processes that is held until `release`, or until the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def try_acquire(cls, path: Path) -> "HeldLock | None":
        """Lock a file, creating it if needed; return None if another process holds the lock."""
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            if sys.platform != "win32":
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Release the lock; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class BackgroundWriter(Generic[T]):
    """Writes changes by key, in a thread and in batches; the last change of a key counts."""

    def __init__(self, write: Callable[[dict[str, T]], None], flush_timeout: float) -> None:
        """`write` runs in the thread. Closing waits `flush_timeout` seconds for it."""
        self._write = write
        self._flush_timeout = flush_timeout
        self.unsaved: dict[str, T] = {}
        """The changes of the next batch; the last change is last."""
        self._writing: asyncio.Task[None] | None = None

    def put(self, key: str, change: T) -> None:
        """Have a change written soon."""
        self.unsaved.pop(key, None)
        self.unsaved[key] = change
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_batches())

    async def aclose(self) -> None:
        """Wait until the changes are written, up to `flush_timeout`."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=self._flush_timeout)

    async def _write_batches(self) -> None:
        try:
            while self.unsaved:
                changes, self.unsaved = self.unsaved, {}
                await asyncio.to_thread(self._write, changes)
        finally:
            self._writing = None
