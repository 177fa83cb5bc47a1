"""Where in a file a key stands: offsets by key path, turned into lines when somebody asks.

Refuses to parse: `toml_lines` and `json_lines` know the two notations.

Rules upheld here:
1. Every path has a position: where its own is not known, that of the nearest table around it.
2. Nothing is scanned before something has to be said about the file.
"""

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""The keys and indexes that lead to a value, from the outside in."""


MAX_DEPTH = 32
"""How deep keys are remembered: far below any that mean something, and memory stays in bounds."""


class Position(NamedTuple):
    """A place in a text, counted from 1 as editors do."""

    line: int
    column: int


class Twice(NamedTuple):
    """A key that was given again: where that happened, and where it was given first."""

    path: KeyPath
    again: int
    first: int


class Statement(NamedTuple):
    """A table header, or a key with its value: what one line of TOML says, or several."""

    start: int
    end: int
    path: KeyPath
    is_header: bool


class Index:
    """What a scanner learnt about a text, in offsets."""

    def __init__(self) -> None:
        self.places: dict[KeyPath, int] = {}
        self.statements: list[Statement] = []
        self.twice: list[Twice] = []
        self._given: set[KeyPath] = set()

    def imply(self, path: KeyPath, offset: int) -> None:
        """Remember where a table was first spoken of."""
        if len(path) <= MAX_DEPTH:
            self.places.setdefault(path, offset)

    def give(self, path: KeyPath, offset: int) -> None:
        """Remember where a key was given; for the second time, that it was."""
        if len(path) > MAX_DEPTH:
            return
        if path in self._given:
            self.twice.append(Twice(path, offset, self.places[path]))
            return
        self._given.add(path)
        self.places[path] = offset


class Lines:
    """Answers for one text where its keys stand."""

    def __init__(self, text: str, scan: Callable[[str], Index]) -> None:
        self._text = text
        self._scan = scan

    @cached_property
    def index(self) -> Index:
        """All that the scanner found."""
        return self._scan(self._text)

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        while (newline := self._text.find("\n", starts[-1])) >= 0:
            starts.append(newline + 1)
        return starts

    def position(self, offset: int) -> Position:
        """Return the line and the column of an offset."""
        line = bisect_right(self._starts, offset)
        return Position(line, offset - self._starts[line - 1] + 1)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line and a column; past the end, that of the end."""
        if line > len(self._starts):
            return len(self._text)
        return min(self._starts[line - 1] + column - 1, len(self._text))

    def find(self, path: KeyPath) -> Position:
        """Return where `path` stands, or the nearest table around it."""
        places = self.index.places
        while path and path not in places:
            path = path[:-1]
        return self.position(places[path] if path else 0)
