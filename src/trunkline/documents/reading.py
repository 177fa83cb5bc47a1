"""From a file to its text, and no further than a limit.

Rule upheld here: any path gives text or ConfigErrors, and nothing else.
"""

from pathlib import Path

from trunkline.documents.errors import ConfigError, ConfigErrors


def read_text(path: Path, limit: int, missing: str = "check the name") -> str:
    """Return what is in a file of at most `limit` bytes; `missing` is the remedy if none is there.

    Raises ConfigErrors.
    """
    data = _bytes(path, limit + 1, missing)
    if len(data) > limit:
        raise _unread(path, f"longer than {limit} bytes", "is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as why:
        line = data.count(b"\n", 0, why.start) + 1
        raise _unread(path, "not UTF-8", "save it as UTF-8", line) from None


def _bytes(path: Path, limit: int, missing: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except FileNotFoundError:
        raise _unread(path, "there is no such file", missing) from None
    except (OSError, ValueError) as why:  # ValueError: a NUL in its name
        reason = (getattr(why, "strerror", None) or "not a file name").lower()
        fix = "check its name and its permissions"
        raise _unread(path, f"cannot be read: {reason}", fix) from None


def _unread(path: Path, why: str, fix: str, line: int | None = None) -> ConfigErrors:
    return ConfigErrors([ConfigError(str(path), line, "", why, fix)])
