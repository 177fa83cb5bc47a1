"""Files to tables: TOML by `tomllib`, JSON by `json`; every error with line and column.

    file ──> text ──> tomllib or json ──> tables
                       │ a key is given twice: report it, blank it out, read again (TOML)
                       │ any other error: report it and stop

`tomllib` and `json` do not return the positions of keys. Two scanners find them, on demand: they
know just enough of the notations to skip every value. JSON may have comments and trailing commas,
as in the files of editors, unless it is read as strict.

Invariants upheld here:
1. Any file gives tables or errors, never another exception; so does any text.
2. A key that is given twice is an error, in JSON too, and hides no other error outside of itself.
3. `blank_comments` keeps the length of every line, so that positions stay the same.
4. Any text gives a KeyIndex: a scanner that is lost stops and keeps what it has. In valid TOML and
   JSON every key and every element has its position, down to MAX_KEY_DEPTH.
5. JSON is read down to MAX_JSON_DEPTH on every version of Python.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

from trunkline.documents.errors import (
    MAX_KEY_DEPTH,
    ConfigError,
    ConfigErrors,
    ErrorCollector,
    KeyIndex,
    KeyLocator,
    KeyPath,
    RepeatedKey,
    TextPosition,
    TomlStatement,
    format_key_path,
)

Table = dict[str, Any]

# How deep JSON may be nested. Python has limits of its own, from about 1,000 levels in 3.11 to
# 10,000 in 3.13.
MAX_JSON_DEPTH = 500

# How many repeated keys are reported for a TOML file: each takes another parse.
_MAX_REPEATED_KEYS = 100

_TOML_ERROR_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_REPEATED_KEY_ERRORS = ("Cannot ", "Duplicate ")
_KEEP_ONE_FIX = "keep one of the two"

_BACKSLASH_FIX = "write \\\\ for a backslash, or put the text in single quotes"
# What to do about an error of tomllib, by the beginning of its message.
_TOML_FIXES = {
    "Invalid value": "put text in quotes",
    "Expected newline": "put text in quotes, and every key on a line of its own",
    "Expected '=' after a key": "write key = value",
    "Expected ']'": "close the bracket",
    "Illegal character": "close the quotes on the same line",
    "Unescaped": _BACKSLASH_FIX,
    "Invalid hex": _BACKSLASH_FIX,
}

_JSON_COMMENT = r"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/|\Z)"
# Strings come first, so that no part of a string is taken for a comment.
_JSON_EXTRA = re.compile(
    rf'"(?:[^"\\\n]|\\.)*+"?|{_JSON_COMMENT}|,(?=(?:\s|{_JSON_COMMENT})*+[\]}}])'
)
JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL)
_NOT_NEWLINE = re.compile(r"[^\n]")

# Numbers to Python's json module, but not in JSON.
_JSON_CONSTANTS = ("NaN", "Infinity")

# Possessive quantifiers throughout: unclosed input is scanned once, without backtracking.
_TOML_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*+)*+")
_TOML_SPACE = re.compile(r"[ \t]*+")
_TOML_KEY_PART = re.compile(r"[A-Za-z0-9_-]++|\"(?:[^\"\\\n]|\\.)*+\"|'[^'\n]*+'")
_TOML_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"{3,5}'
    r"|'''(?:[^']|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"'
    r"|'[^'\n]*+'",
    re.DOTALL,
)
_TOML_SCALAR = re.compile(r"[^\n,\]}#]++")


class ParsedDocument:
    """The tables of a text, if all of it could be read, and the collector for further errors."""

    def __init__(self, tree: object, errors: ErrorCollector, is_complete: bool = True) -> None:
        self.tree = tree
        self.errors = errors
        self.is_complete = is_complete


def read_text(path: Path, limit: int, missing_fix: str = "check the name") -> str:
    """Return the text of a file of at most `limit` bytes; raises ConfigErrors.

    `missing_fix` is the fix in the error about a missing file.
    """
    data = _read_bytes(path, limit + 1, missing_fix)
    if len(data) > limit:
        raise _unreadable(path, f"longer than {limit} bytes", "is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise _unreadable(path, "not UTF-8", "save it as UTF-8", line) from None


def as_table(value: object) -> Table | None:
    """Return `value` if it is a table."""
    return cast("Table", value) if isinstance(value, dict) else None


def get_table(table: Table, key: str) -> Table:
    """Return the table at `key`, or an empty one."""
    return as_table(table.get(key)) or {}


def parse_toml(text: str, file: str) -> ParsedDocument:
    """Parse TOML; the errors of the result say what is wrong with it."""
    text = text.replace("\r\n", "\n")
    errors = ErrorCollector(file, KeyLocator(text, scan_toml))
    locator = errors.locator
    for _ in range(_MAX_REPEATED_KEYS):
        try:
            return ParsedDocument(tomllib.loads(text), errors)
        except tomllib.TOMLDecodeError as exc:
            message = str(exc)
            offset = _error_offset(message, text, locator)
            statement = _statement_at(offset, locator)
            if statement is None or not message.startswith(_REPEATED_KEY_ERRORS):
                errors.add(_toml_error(file, locator.position_at(offset), message))
                break
            _report_repeated_statement(errors, file, statement)
            text = _blank_statement(text, statement, locator)
        except (RecursionError, ValueError) as exc:
            offset = find_unreadable_statement(text, locator.index)
            errors.add(_limit_error(file, locator.position_at(offset), exc))
            break
    return ParsedDocument(None, errors, is_complete=False)


def parse_json(text: str, file: str, *, strict: bool = False) -> ParsedDocument:
    """Parse JSON; `strict` JSON has no comments and no trailing commas."""
    text = text if strict else blank_comments(text)
    errors = ErrorCollector(file, KeyLocator(text, scan_json))
    has_repeated_key = False

    def build_table(pairs: list[tuple[str, Any]]) -> Table:
        nonlocal has_repeated_key
        table = dict(pairs)
        has_repeated_key = has_repeated_key or len(table) < len(pairs)
        return table

    try:
        check_json_depth(text)
        tree = json.loads(text, object_pairs_hook=build_table, parse_constant=_reject_constant)
    except json.JSONDecodeError as exc:
        reason, fix = f"not JSON: {_lower_first(exc.msg)}", "check quotes, commas and brackets here"
        errors.add(ConfigError(file, exc.lineno, "", reason, fix, exc.colno))
    except (RecursionError, ValueError) as exc:
        is_deep = isinstance(exc, RecursionError)
        offset = _deepest_bracket(text)[0] if is_deep else _find_bad_number(text)
        errors.add(_limit_error(file, errors.locator.position_at(offset), exc))
    else:
        if has_repeated_key:
            repeated = errors.locator.index.repeated
            _report_repeated_keys(errors, file, repeated)
            if not repeated:
                reason = "a deeply nested key is given twice"
                errors.add(ConfigError(file, None, "", reason, _KEEP_ONE_FIX))
        return ParsedDocument(tree, errors)
    return ParsedDocument(None, errors, is_complete=False)


def check_json_depth(text: str) -> None:
    """Raise RecursionError for JSON that is nested deeper than MAX_JSON_DEPTH."""
    # Few files have that many brackets, and only those are scanned.
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
        _, depth = _deepest_bracket(text)
        if depth > MAX_JSON_DEPTH:
            raise RecursionError(f"nested {depth} levels deep")


def blank_comments(text: str, *, keep_commas: bool = False) -> str:
    """Return `text` with spaces for comments and, unless kept, for trailing commas."""
    kept = '",' if keep_commas else '"'
    return _JSON_EXTRA.sub(lambda found: found[0] if found[0][0] in kept else blank(found[0]), text)


def blank(text: str) -> str:
    """Replace every character with a space, except newlines."""
    return _NOT_NEWLINE.sub(" ", text)


def scan_json(text: str) -> KeyIndex:
    """Return where the keys of a JSON text without comments stand."""
    index = KeyIndex()
    stack: list[_OpenContainer] = []
    for found in JSON_TOKEN.finditer(text):
        lexeme = found[0]
        top = stack[-1] if stack else None
        if lexeme == ",":
            if top:
                top.count += 1
                top.key = None
        elif lexeme in "}]":
            del stack[-1:]
        elif top and top.is_object and top.key is None:
            top.key = _unquote_json(lexeme)
            index.add(top.child_path(), found.start())
        elif lexeme != ":":
            path = top.child_path() if top else ()
            if top and not top.is_object:
                index.add(path, found.start())
            if lexeme in "{[":
                stack.append(_OpenContainer(path, lexeme == "{"))
    return index


def scan_toml(text: str) -> KeyIndex:
    """Return where the keys of a TOML text stand, as far as the scanner can follow it."""
    scanner = _TomlScanner(text)
    with suppress(_ScanError, RecursionError):
        while scanner.scan_statement():
            pass
    return scanner.index


def find_unreadable_statement(text: str, index: KeyIndex) -> int:
    """Return the offset of the first statement that is TOML but beyond the limits of Python."""
    end = 0
    for statement in index.statements:
        start, end = statement.start, statement.end
        try:
            tomllib.loads(text[start:end])
        except tomllib.TOMLDecodeError:
            continue
        except (RecursionError, ValueError):
            return start
    # The scanner stopped there too: it is the next statement.
    gap = _TOML_GAP.match(text, end)
    return gap.end() if gap else end


def _read_bytes(path: Path, limit: int, missing_fix: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file", missing_fix) from None
    except (OSError, ValueError) as exc:  # ValueError: a NUL in the name
        reason = (getattr(exc, "strerror", None) or "not a file name").lower()
        fix = "check its name and its permissions"
        raise _unreadable(path, f"cannot be read: {reason}", fix) from None


def _unreadable(path: Path, reason: str, fix: str, line: int | None = None) -> ConfigErrors:
    return ConfigErrors([ConfigError(str(path), line, "", reason, fix)])


def _error_offset(message: str, text: str, locator: KeyLocator) -> int:
    """Return where `tomllib` stopped, which it says in its message."""
    found = _TOML_ERROR_POSITION.search(message)
    if found is None or found[1] is None:
        return len(text)
    return locator.offset_at(int(found[1]), int(found[2]))


def _toml_error(file: str, position: TextPosition, message: str) -> ConfigError:
    words = _TOML_ERROR_POSITION.sub("", message)
    fixes = (fix for start, fix in _TOML_FIXES.items() if words.startswith(start))
    fix = next(fixes, "see https://toml.io for the notation")
    reason = f"not TOML: {_lower_first(words)}"
    return ConfigError(file, position.line, "", reason, fix, position.column)


def _statement_at(offset: int, locator: KeyLocator) -> TomlStatement | None:
    """Return the statement in which, or right after which, `tomllib` stopped."""
    for statement in locator.index.statements:
        if statement.start < offset <= statement.end:
            return statement
    return None


def _report_repeated_statement(errors: ErrorCollector, file: str, statement: TomlStatement) -> None:
    locator = errors.locator
    repeated = [r for r in locator.index.repeated if statement.start <= r.offset < statement.end]
    _report_repeated_keys(errors, file, repeated)
    if not repeated:
        # The same table in two notations, such as a.b = 1 and then [a].
        key = format_key_path(statement.path)
        reason = "given twice, in two notations"
        errors.add(_repeated_key_error(file, locator.position_at(statement.start), key, reason))


def _report_repeated_keys(
    errors: ErrorCollector, file: str, repeated: Iterable[RepeatedKey]
) -> None:
    """Report repeated keys, but not those inside of another repeated key."""
    locator = errors.locator
    reported: set[KeyPath] = set()
    for path, offset, first_offset in repeated:
        if not any(path[:length] in reported for length in range(len(path))):
            reason = f"given twice, first on line {locator.position_at(first_offset).line}"
            position, key = locator.position_at(offset), format_key_path(path)
            errors.add(_repeated_key_error(file, position, key, reason))
        reported.add(path)


def _repeated_key_error(file: str, position: TextPosition, key: str, reason: str) -> ConfigError:
    return ConfigError(file, position.line, key, reason, _KEEP_ONE_FIX, position.column)


def _blank_statement(text: str, statement: TomlStatement, locator: KeyLocator) -> str:
    # Blank a statement; for a header its whole table, whose keys would join the table before.
    end = statement.end
    if statement.is_header:
        later = (s.start for s in locator.index.statements if s.is_header and s.start >= end)
        end = next(later, len(text))
    return text[: statement.start] + blank(text[statement.start : end]) + text[end:]


def _limit_error(file: str, position: TextPosition, exc: Exception) -> ConfigError:
    reason, fix = "a number is too long or not valid", "use fewer digits"
    if isinstance(exc, RecursionError):
        reason, fix = "nested too deeply", "use fewer brackets"
    return ConfigError(file, position.line, "", reason, fix, position.column)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity, which json accepts


def _find_bad_number(text: str) -> int:
    max_digits = sys.get_int_max_str_digits() or len(text)
    for found in JSON_TOKEN.finditer(text):
        lexeme = found[0].removeprefix("-")
        if lexeme in _JSON_CONSTANTS or (len(lexeme) > max_digits and lexeme.isdecimal()):
            return found.start()
    return 0


def _deepest_bracket(text: str) -> tuple[int, int]:
    """Return the offset of the first of the innermost brackets, and its depth."""
    offset = depth = max_depth = 0
    for found in JSON_TOKEN.finditer(text):
        if found[0] in "{[":
            depth += 1
            if depth > max_depth:
                offset, max_depth = found.start(), depth
        elif found[0] in "}]":
            depth -= 1
    return offset, max_depth


def _lower_first(message: str) -> str:
    return message[:1].lower() + message[1:]


class _OpenContainer:
    """An object or an array whose end the JSON scanner has not reached."""

    def __init__(self, path: KeyPath, is_object: bool) -> None:
        self.path = path
        self.is_object = is_object
        self.count = 0
        self.key: str | None = None

    def child_path(self) -> KeyPath:
        return (*self.path, self.count if self.key is None else self.key)


def _unquote_json(lexeme: str) -> str:
    try:
        return str(json.loads(lexeme))
    except ValueError:
        return lexeme


class _ScanError(Exception):
    """The text is not what TOML allows here."""


class _TomlScanner:
    def __init__(self, text: str) -> None:
        self.index = KeyIndex()
        self._text = text
        self._offset = 0
        self._table: KeyPath = ()
        # The number of elements of each array of tables.
        self._counts: dict[KeyPath, int] = {}

    def scan_statement(self) -> bool:
        """Scan one statement; return False at the end of the text."""
        self._skip(_TOML_GAP)
        start = self._offset
        if start == len(self._text):
            return False
        is_header = self._text[start] == "["
        path = self._scan_header(start) if is_header else self._scan_pair(self._table)
        self.index.statements.append(TomlStatement(start, self._offset, path, is_header))
        return True

    def _scan_header(self, start: int) -> KeyPath:
        brackets = 2 if self._text.startswith("[[", start) else 1
        self._offset += brackets
        *parents, last = self._scan_key()
        self._expect("]" * brackets)
        path: KeyPath = ()
        for part in parents:
            path = self._last_element((*path, part))
            self.index.add_implied(path, start)
        path = (*path, last)
        if brackets == 2:
            count = self._counts[path] = self._counts.get(path, 0) + 1
            self.index.add_implied(path, start)
            path = (*path, count - 1)
        self.index.add(path, start)
        self._table = path
        return path

    def _last_element(self, path: KeyPath) -> KeyPath:
        """Return `path`, or its last element if it is an array of tables."""
        return (*path, self._counts[path] - 1) if path in self._counts else path

    def _scan_pair(self, table: KeyPath) -> KeyPath:
        start = self._offset
        path = table
        *parents, last = self._scan_key()
        for part in parents:
            path = (*path, part)
            self.index.add_implied(path, start)
        path = (*path, last)
        self._expect("=")
        self.index.add(path, start)
        self._skip(_TOML_SPACE)
        self._scan_value(path)
        return path

    def _scan_key(self) -> list[str]:
        """Scan a dotted key; return its parts."""
        parts: list[str] = []
        while True:
            self._skip(_TOML_SPACE)
            parts.append(_unquote_toml(self._read(_TOML_KEY_PART)))
            self._skip(_TOML_SPACE)
            if not self._accept("."):
                return parts
            if len(parts) > MAX_KEY_DEPTH:
                raise _ScanError

    def _scan_value(self, path: KeyPath) -> None:
        if self._accept("["):
            self._scan_array(path)
        elif self._accept("{"):
            self._scan_inline_table(path)
        elif self._text.startswith(('"', "'"), self._offset):
            self._read(_TOML_STRING)
        else:
            self._read(_TOML_SCALAR)

    def _scan_array(self, path: KeyPath) -> None:
        count = 0
        while not self._accept_closing("]"):
            self.index.add((*path, count), self._offset)
            self._scan_value((*path, count))
            count += 1
            self._expect_separator("]")

    def _scan_inline_table(self, path: KeyPath) -> None:
        while not self._accept_closing("}"):
            self._scan_pair(path)
            self._expect_separator("}")

    def _accept_closing(self, bracket: str) -> bool:
        self._skip(_TOML_GAP)
        if self._offset == len(self._text):
            raise _ScanError
        return self._accept(bracket)

    def _expect_separator(self, bracket: str) -> None:
        """Scan the comma after an element, unless the closing bracket follows."""
        self._skip(_TOML_GAP)
        if not self._accept(",") and not self._text.startswith(bracket, self._offset):
            raise _ScanError

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._offset)
        self._offset = found.end() if found else self._offset

    def _read(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._offset)
        if not found:
            raise _ScanError
        self._offset = found.end()
        return found[0]

    def _accept(self, lexeme: str) -> bool:
        if not self._text.startswith(lexeme, self._offset):
            return False
        self._offset += len(lexeme)
        return True

    def _expect(self, lexeme: str) -> None:
        if not self._accept(lexeme):
            raise _ScanError


def _unquote_toml(part: str) -> str:
    if part[0] not in "\"'":
        return part
    try:
        (key,) = tomllib.loads(f"{part} = 0")
    except ValueError:
        raise _ScanError from None
    return key
