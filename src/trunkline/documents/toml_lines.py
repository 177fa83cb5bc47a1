"""Finds the keys of a TOML text: headers, dotted keys, inline tables, arrays, arrays of tables.

`tomllib` reads the values but keeps no positions. This scanner knows just enough of the notation to
walk past every value, and leaves to `tomllib` what is right and what is wrong.

Rules upheld here:
1. Any text gives an index: where the scanner is lost it stops, and keeps what it has.
2. In a text that `tomllib` reads, every key and every element has its place, down to MAX_DEPTH.
"""

import re
import tomllib
from contextlib import suppress

from trunkline.documents.lines import MAX_DEPTH, Index, KeyPath, Statement

# Possessive throughout: what is not closed costs one look at it, not one for every way to cut it.
_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*+)*+")
_SPACE = re.compile(r"[ \t]*+")
_KEY_PART = re.compile(r"[A-Za-z0-9_-]++|\"(?:[^\"\\\n]|\\.)*+\"|'[^'\n]*+'")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"{3,5}'
    r"|'''(?:[^']|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'[^'\n]*+'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^\n,\]}#]++")


class _Lost(Exception):
    """The text is not what TOML allows here."""


def scan_toml(text: str) -> Index:
    """Return where the keys of `text` stand, as far as it can be followed."""
    scanner = _Scanner(text)
    with suppress(_Lost, RecursionError):
        while scanner.step():
            pass
    return scanner.index


def unread(text: str, index: Index) -> int:
    """Return where the first statement begins that is TOML and beyond what Python reads."""
    end = 0
    for statement in index.statements:
        start, end = statement.start, statement.end
        try:
            tomllib.loads(text[start:end])
        except tomllib.TOMLDecodeError:
            continue
        except (RecursionError, ValueError):
            return start
    # Nor could the scanner walk past it: it is what comes next.
    gap = _GAP.match(text, end)
    return gap.end() if gap else end


class _Scanner:
    """Walks through a text, one statement at a time."""

    def __init__(self, text: str) -> None:
        self.index = Index()
        self._text = text
        self._at = 0
        self._table: KeyPath = ()
        self._counts: dict[KeyPath, int] = {}

    def step(self) -> bool:
        """Walk past one statement; tell whether there was one."""
        self._skip(_GAP)
        start = self._at
        if start == len(self._text):
            return False
        is_header = self._text[start] == "["
        path = self._header(start) if is_header else self._pair(self._table)
        self.index.statements.append(Statement(start, self._at, path, is_header))
        return True

    def _header(self, start: int) -> KeyPath:
        brackets = 2 if self._text.startswith("[[", start) else 1
        self._at += brackets
        *parents, last = self._key()
        self._expect("]" * brackets)
        path: KeyPath = ()
        for part in parents:
            path = self._newest((*path, part))
            self.index.imply(path, start)
        path = (*path, last)
        if brackets == 2:
            count = self._counts[path] = self._counts.get(path, 0) + 1
            self.index.imply(path, start)
            path = (*path, count - 1)
        self.index.give(path, start)
        self._table = path
        return path

    def _newest(self, path: KeyPath) -> KeyPath:
        """Return `path`, or its last element where it is an array of tables."""
        return (*path, self._counts[path] - 1) if path in self._counts else path

    def _pair(self, table: KeyPath) -> KeyPath:
        start = self._at
        path = table
        *parents, last = self._key()
        for part in parents:
            path = (*path, part)
            self.index.imply(path, start)
        path = (*path, last)
        self._expect("=")
        self.index.give(path, start)
        self._skip(_SPACE)
        self._value(path)
        return path

    def _key(self) -> list[str]:
        """Walk past a dotted key; return its parts."""
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            parts.append(_unquote(self._take(_KEY_PART)))
            self._skip(_SPACE)
            if not self._has("."):
                return parts
            if len(parts) > MAX_DEPTH:
                raise _Lost

    def _value(self, path: KeyPath) -> None:
        if self._has("["):
            self._array(path)
        elif self._has("{"):
            self._inline_table(path)
        elif self._text.startswith(('"', "'"), self._at):
            self._take(_STRING)
        else:
            self._take(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        count = 0
        while not self._closes("]"):
            self.index.give((*path, count), self._at)
            self._value((*path, count))
            count += 1
            self._separate("]")

    def _inline_table(self, path: KeyPath) -> None:
        while not self._closes("}"):
            self._pair(path)
            self._separate("}")

    def _closes(self, bracket: str) -> bool:
        self._skip(_GAP)
        if self._at == len(self._text):
            raise _Lost
        return self._has(bracket)

    def _separate(self, bracket: str) -> None:
        """Walk past the comma after an element; only the last may do without."""
        self._skip(_GAP)
        if not self._has(",") and not self._text.startswith(bracket, self._at):
            raise _Lost

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if not found:
            raise _Lost
        self._at = found.end()
        return found[0]

    def _has(self, token: str) -> bool:
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def _expect(self, token: str) -> None:
        if not self._has(token):
            raise _Lost


def _unquote(part: str) -> str:
    if part[0] not in "\"'":
        return part
    try:
        (key,) = tomllib.loads(f"{part} = 0")
    except ValueError:
        raise _Lost from None
    return key
