"""Errors in a file that people write: all of them at once, with line and column.

    trunkline.toml:12: servers.fs.comand: unknown key; did you mean "command"?
    file           line key               reason       fix

KeyLocator finds the line of a key; the scanners for TOML and JSON are in `parser`.

Invariants upheld here:
1. An error names its file and line, its key, the reason and the fix, on one line of plain text,
   whatever characters the file contains.
2. An error shows names of keys and variables, never the value of one.
3. Every key path has a position: its own, or that of the nearest table around it.
4. No file is scanned before there is an error to report.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

# The keys and indexes that lead to a value, from the outside in.
KeyPath = tuple[str | int, ...]

# Takes one error: the path of the key, the reason, and the fix.
AddError = Callable[[KeyPath, str, str], None]

# How deep the positions of keys are kept, to bound memory; no valid key is nearly as deep.
MAX_KEY_DEPTH = 32

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MAX_SHOWN_CHARS = 40


class ConfigError(Struct, frozen=True):
    """One error: where, why, and how to fix it."""

    file: str
    line: int | None
    key: str
    reason: str
    fix: str = ""
    column: int | None = None

    def __str__(self) -> str:
        position = ":".join(str(n) for n in (self.file, self.line, self.column) if n is not None)
        message = f"{self.reason}; {self.fix}" if self.fix else self.reason
        return ": ".join(part for part in (position, self.key, message) if part)


class ConfigErrors(Exception):
    """A file cannot be used; `errors` is everything that is wrong with it.

    `notes` are warnings about the same file.
    """

    def __init__(self, errors: Iterable[ConfigError], notes: Iterable[str] = ()) -> None:
        self.errors = tuple(errors)
        self.notes = tuple(notes)
        super().__init__("\n".join(map(str, self.errors)))


class ErrorCollector:
    """Collects the errors and notes about one file."""

    def __init__(self, file: str, locator: "KeyLocator") -> None:
        # Whether errors about keys name the column too.
        self.with_columns = False
        self._file = file
        self._locator = locator
        # With the path of the key, () for errors that have a position only.
        self._errors: list[tuple[KeyPath, ConfigError]] = []
        self._notes: list[ConfigError] = []

    @property
    def locator(self) -> "KeyLocator":
        """The positions of the keys in the file."""
        return self._locator

    def add_error(self, path: KeyPath, reason: str, fix: str) -> None:
        """Add an error at `path`."""
        self._errors.append((path, self.locate(path, reason, fix)))

    def add_note(self, path: KeyPath, reason: str, fix: str) -> None:
        """Add a note at `path`, which does not make the file unusable."""
        self._notes.append(self.locate(path, reason, fix))

    def locate(self, path: KeyPath, reason: str, fix: str) -> ConfigError:
        """Return an error at `path` without adding it."""
        position = self._locator.find_key(path)
        column = position.column if self.with_columns else None
        return ConfigError(self._file, position.line, format_key_path(path), reason, fix, column)

    def add(self, error: ConfigError) -> None:
        """Add an error that has its position."""
        self._errors.append(((), error))

    def downgrade_errors(self, min_depth: int) -> list[KeyPath]:
        """Turn errors about keys that are so deep in the file into notes; return their paths."""
        deep = [each for each in self._errors if len(each[0]) >= min_depth]
        self._errors = [each for each in self._errors if len(each[0]) < min_depth]
        self._notes += [error for _, error in deep]
        return [path for path, _ in deep]

    @property
    def has_errors(self) -> bool:
        """Whether there are errors; notes do not count."""
        return bool(self._errors)

    def notes(self) -> tuple[str, ...]:
        """Return the notes in the order of their lines."""
        return tuple(map(str, sorted(self._notes, key=_line_order)))

    def raise_if_any(self, others: Iterable[ConfigError] = ()) -> None:
        """Raise ConfigErrors, in the order of their lines, if there are errors.

        `others` do not count, but are shown with the errors.
        """
        if self._errors:
            own = (error for _, error in self._errors)
            errors = sorted([*own, *others], key=_line_order)
            raise ConfigErrors(errors, self.notes())


class TextPosition(NamedTuple):
    """A place in a text, counted from 1 as editors do."""

    line: int
    column: int


class RepeatedKey(NamedTuple):
    """A key that is given twice: the offsets of the second and the first time."""

    path: KeyPath
    offset: int
    first_offset: int


class TomlStatement(NamedTuple):
    """A table header, or a key with its value, which may span several lines."""

    start: int
    end: int
    path: KeyPath
    is_header: bool


class KeyIndex:
    """What a scanner found in a text, by offset."""

    def __init__(self) -> None:
        self.offsets: dict[KeyPath, int] = {}
        self.statements: list[TomlStatement] = []
        self.repeated: list[RepeatedKey] = []
        self._added: set[KeyPath] = set()

    def add_implied(self, path: KeyPath, offset: int) -> None:
        """Add a table that exists because a key in it does, unless it is known."""
        if len(path) <= MAX_KEY_DEPTH:
            self.offsets.setdefault(path, offset)

    def add(self, path: KeyPath, offset: int) -> None:
        """Add a key, or the second occurrence of one."""
        if len(path) > MAX_KEY_DEPTH:
            return
        if path in self._added:
            self.repeated.append(RepeatedKey(path, offset, self.offsets[path]))
            return
        self._added.add(path)
        self.offsets[path] = offset


class KeyLocator:
    """Finds the line and column of a key in one text."""

    def __init__(self, text: str, scan: Callable[[str], KeyIndex]) -> None:
        self._text = text
        self._scan = scan

    @cached_property
    def index(self) -> KeyIndex:
        """All keys that the scanner found."""
        return self._scan(self._text)

    @cached_property
    def _line_starts(self) -> list[int]:
        line_starts = [0]
        while (newline := self._text.find("\n", line_starts[-1])) >= 0:
            line_starts.append(newline + 1)
        return line_starts

    def position_at(self, offset: int) -> TextPosition:
        """Return the line and column of an offset."""
        line = bisect_right(self._line_starts, offset)
        return TextPosition(line, offset - self._line_starts[line - 1] + 1)

    def offset_at(self, line: int, column: int) -> int:
        """Return the offset of a line and column, at most the end of the text."""
        if line > len(self._line_starts):
            return len(self._text)
        return min(self._line_starts[line - 1] + column - 1, len(self._text))

    def find_key(self, path: KeyPath) -> TextPosition:
        """Return the position of `path`, or of the nearest table around it."""
        offsets = self.index.offsets
        while path and path not in offsets:
            path = path[:-1]
        return self.position_at(offsets[path] if path else 0)


def format_key_path(path: KeyPath) -> str:
    """Write a path as TOML does: dotted, with quotes where they are needed."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{quote_key(part)}" for part in path]
    return "".join(parts).removeprefix(".")


def quote_key(key: str) -> str:
    """Return a key for a message: short, and without unprintable characters."""
    shown = key if len(key) <= _MAX_SHOWN_CHARS else key[:_MAX_SHOWN_CHARS] + "…"
    return shown if _BARE_KEY.fullmatch(shown) else quote(shown)


def quote(text: str) -> str:
    """Put `text` in quotes, on one line."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def closest_match(word: str, candidates: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Return the candidate that `word` is probably a misspelling of."""
    if len(word) > _MAX_SHOWN_CHARS:
        return None
    by_normalised = {_normalise_word(name): name for name in candidates}
    close = get_close_matches(_normalise_word(word), by_normalised, n=1, cutoff=cutoff)
    return by_normalised[close[0]] if close else None


def _normalise_word(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")


def _line_order(error: ConfigError) -> int:
    return error.line or 0
