"""Text to tables: TOML by `tomllib`, JSON by `json`, and every complaint with line and column.

    text ──> tomllib ──> tables
              │ a key is given twice: complain, blank it, read again
              │ anything else: complain, and that is all that can be said

Rules upheld here:
1. Any text gives tables or complaints, never another exception.
2. A key that is given twice is an error, in JSON as well, and hides none outside of itself.
"""

import json
import re
import tomllib
from collections.abc import Iterable
from typing import Any, NoReturn, cast

from trunkline.documents.errors import ConfigError, Report, key_text
from trunkline.documents.json_lines import (
    blank,
    deepest,
    scan_json,
    unread_number,
    without_comments,
)
from trunkline.documents.lines import KeyPath, Lines, Position, Statement, Twice
from trunkline.documents.toml_lines import scan_toml, unread

Table = dict[str, Any]

_MAX_REPEATED = 100
"""How many keys that are given twice are looked for: each of them takes one more reading."""

_WHERE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_REPEATED = ("Cannot ", "Duplicate ")
_KEEP_ONE = "keep one of the two"

_BACKSLASH = "write \\\\ for a backslash, or put the text in single quotes"
_TOML_REMEDIES = {
    "Invalid value": "put text in quotes",
    "Expected newline": "put text in quotes, and every key on a line of its own",
    "Expected '=' after a key": "write key = value",
    "Expected ']'": "close the bracket",
    "Illegal character": "close the quotes on the same line",
    "Unescaped": _BACKSLASH,
    "Invalid hex": _BACKSLASH,
}


class Parsed:
    """What a text says, if it could be read to its end; and the report to go on with."""

    def __init__(self, tree: object, report: Report, done: bool = True) -> None:
        self.tree = tree
        self.report = report
        self.done = done


def as_table(value: object) -> Table | None:
    """Return `value` if it is a table."""
    return cast("Table", value) if isinstance(value, dict) else None


def table_in(table: Table, key: str) -> Table:
    """Return the table at `key`, an empty one if there is none."""
    return as_table(table.get(key)) or {}


def parse_toml(text: str, file: str) -> Parsed:
    """Read TOML; what is wrong with it is in the report, and then it may not be done."""
    text = text.replace("\r\n", "\n")
    report = Report(file, Lines(text, scan_toml))
    lines = report.lines
    for _ in range(_MAX_REPEATED):
        try:
            return Parsed(tomllib.loads(text), report)
        except tomllib.TOMLDecodeError as why:
            message = str(why)
            offset = _offset(message, text, lines)
            statement = _statement_at(offset, lines)
            if statement is None or not message.startswith(_REPEATED):
                report.add(_toml_error(file, lines.position(offset), message))
                break
            _complain_repeated(report, file, statement)
            text = _without(text, statement, lines)
        except (RecursionError, ValueError) as why:
            report.add(_beyond(file, lines.position(unread(text, lines.index)), why))
            break
    return Parsed(None, report, done=False)


def _offset(message: str, text: str, lines: Lines) -> int:
    """Return where `tomllib` stopped: it says so in words."""
    found = _WHERE.search(message)
    if found is None or found[1] is None:
        return len(text)
    return lines.offset(int(found[1]), int(found[2]))


def _toml_error(file: str, at: Position, message: str) -> ConfigError:
    words = _WHERE.sub("", message)
    remedies = (fix for start, fix in _TOML_REMEDIES.items() if words.startswith(start))
    fix = next(remedies, "see https://toml.io for the notation")
    return ConfigError(file, at.line, "", f"not TOML: {_lower(words)}", fix, at.column)


def _statement_at(offset: int, lines: Lines) -> Statement | None:
    """Return the statement in which, or right after which, `tomllib` stopped."""
    for statement in lines.index.statements:
        if statement.start < offset <= statement.end:
            return statement
    return None


def _complain_repeated(report: Report, file: str, statement: Statement) -> None:
    lines = report.lines
    inside = [t for t in lines.index.twice if statement.start <= t.again < statement.end]
    _complain_twice(report, file, inside)
    if not inside:
        # Not the same key, but the same table in another notation: a.b = 1 and then [a].
        key = key_text(statement.path)
        why = "given twice, in two notations"
        report.add(_error_at(file, lines.position(statement.start), key, why))


def _complain_twice(report: Report, file: str, found: Iterable[Twice]) -> None:
    """Complain about repeated keys, but not about what is inside of one."""
    lines = report.lines
    said: set[KeyPath] = set()
    for path, again, first in found:
        if not any(path[:length] in said for length in range(len(path))):
            why = f"given twice, first on line {lines.position(first).line}"
            report.add(_error_at(file, lines.position(again), key_text(path), why))
        said.add(path)


def _error_at(file: str, at: Position, key: str, why: str) -> ConfigError:
    return ConfigError(file, at.line, key, why, _KEEP_ONE, at.column)


def _without(text: str, statement: Statement, lines: Lines) -> str:
    """Blank a statement; with a header goes its whole table, which would land elsewhere."""
    end = statement.end
    if statement.is_header:
        later = (s.start for s in lines.index.statements if s.is_header and s.start >= end)
        end = next(later, len(text))
    return text[: statement.start] + blank(text[statement.start : end]) + text[end:]


def parse_json(text: str, file: str, *, plain: bool = False) -> Parsed:
    """Read JSON, unless it is to be `plain` with comments and trailing commas, as editors do."""
    text = text if plain else without_comments(text)
    report = Report(file, Lines(text, scan_json))
    repeated = False

    def keep(pairs: list[tuple[str, Any]]) -> Table:
        nonlocal repeated
        table = dict(pairs)
        repeated = repeated or len(table) < len(pairs)
        return table

    try:
        tree = json.loads(text, object_pairs_hook=keep, parse_constant=_refuse)
    except json.JSONDecodeError as why:
        problem, fix = f"not JSON: {_lower(why.msg)}", "check quotes, commas and brackets here"
        report.add(ConfigError(file, why.lineno, "", problem, fix, why.colno))
    except (RecursionError, ValueError) as why:
        offset = deepest(text) if isinstance(why, RecursionError) else unread_number(text)
        report.add(_beyond(file, report.lines.position(offset), why))
    else:
        if repeated:
            _complain_twice(report, file, report.lines.index.twice)
        if repeated and not report.lines.index.twice:
            report.add(ConfigError(file, None, "", "a key, deep inside, is given twice", _KEEP_ONE))
        return Parsed(tree, report)
    return Parsed(None, report, done=False)


def _beyond(file: str, at: Position, why: Exception) -> ConfigError:
    """Return the error for what the notation allows and Python does not read."""
    problem, fix = "a number is too long, or none", "use fewer digits"
    if isinstance(why, RecursionError):
        problem, fix = "nested too deeply", "use fewer brackets"
    return ConfigError(file, at.line, "", problem, fix, at.column)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity, which Python would read


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
