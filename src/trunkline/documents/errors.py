"""What is wrong with a file that people write, all of it at once, and where.

    trunkline.toml:12: servers.fs.comand: unknown key; did you mean "command"?
    file           line key               why          fix

Rules upheld here:
1. An error names its file and line, its key, the reason and the remedy, on one line of plain text,
   whatever characters the file may hold.
2. An error shows the names of keys and variables, never the value of one.
"""

import json
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from msgspec import Struct

from trunkline.documents.lines import KeyPath, Lines

Complain = Callable[[KeyPath, str, str], None]
"""Takes what is wrong at a path: why, and how to mend it."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 40


class ConfigError(Struct, frozen=True):
    """One thing that is wrong: where, why, and how to mend it."""

    file: str
    line: int | None
    key: str
    why: str
    fix: str = ""
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(n) for n in (self.file, self.line, self.column) if n is not None)
        reason = f"{self.why}; {self.fix}" if self.fix else self.why
        return ": ".join(part for part in (place, self.key, reason) if part)


class ConfigErrors(Exception):
    """A file that cannot be used; `errors` is everything that is wrong with it."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(map(str, self.errors)))


class Report:
    """Collects what is to be said about one file."""

    def __init__(self, file: str, lines: Lines) -> None:
        self.columns = False
        """Whether complaints about keys name their columns too."""
        self._file = file
        self._lines = lines
        self._errors: list[ConfigError] = []
        self._notes: list[ConfigError] = []

    @property
    def lines(self) -> Lines:
        """Where the keys of the file stand."""
        return self._lines

    def error(self, path: KeyPath, why: str, fix: str) -> None:
        """Add what is wrong at `path`."""
        self._errors.append(self._at(path, why, fix))

    def note(self, path: KeyPath, why: str, fix: str) -> None:
        """Add what is good enough to go on with."""
        self._notes.append(self._at(path, why, fix))

    def add(self, error: ConfigError) -> None:
        """Add an error that knows its own place."""
        self._errors.append(error)

    def notes(self) -> tuple[str, ...]:
        """Return the notes, from the top of the file down."""
        return tuple(map(str, sorted(self._notes, key=_order)))

    def check(self) -> None:
        """Raise ConfigErrors, from the top of the file down, unless all is well."""
        if self._errors:
            raise ConfigErrors(sorted(self._errors, key=_order))

    def _at(self, path: KeyPath, why: str, fix: str) -> ConfigError:
        place = self._lines.find(path)
        column = place.column if self.columns else None
        return ConfigError(self._file, place.line, key_text(path), why, fix, column)


def _order(error: ConfigError) -> int:
    return error.line or 0


def key_text(path: KeyPath) -> str:
    """Write a path as TOML does: dotted, and quoted where it must be."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{quoted_key(part)}" for part in path]
    return "".join(parts).removeprefix(".")


def quoted_key(key: str) -> str:
    """Return a key as it can stand in a message: short, and without anything unprintable."""
    shown = key if len(key) <= _SHOWN else key[:_SHOWN] + "…"
    return shown if _BARE.fullmatch(shown) else quoted(shown)


def quoted(text: str) -> str:
    """Put `text` in quotes, on one line."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def meant(word: str, known: Iterable[str], likeness: float = 0.7) -> str | None:
    """Return the known word that `word` was probably meant to be."""
    if len(word) > _SHOWN:
        return None
    plain = {_plain(name): name for name in known}
    close = get_close_matches(_plain(word), plain, n=1, cutoff=likeness)
    return plain[close[0]] if close else None


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
