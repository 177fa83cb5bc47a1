"""Redaction: what is kept of the arguments of a call.

    arguments, any JSON ──> members under keys such as `password` hidden, at any depth
                        ──> what looks like a credential hidden, wherever it is
                        ──> long texts cut, and never more than so many bytes in all

Refuses to be exact: it would rather hide too much. It never fails, whatever it is given.

Rules upheld here:
1. Nothing under a key that a pattern means is kept: no part of its value, nor of what it nests.
   A key that is too long to be kept whole is taken for one of these.
2. What is kept, written as JSON, has at most so many bytes.
3. Objects with the same key twice are kept as the last of the two says: nothing hides behind it.
4. Credentials are looked for before a text is cut: none is kept because its end was cut off.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct

from trunkline.jsonrpc.raw import check_utf8
from trunkline.routing.pattern import fits_any
from trunkline.routing.userinfo import HIDDEN, beginning, without_user

Mode = Literal["none", "redacted", "full"]
_Part = Literal["secret", "name", "value", ""]
"""What a key means for its value: in {"name": …, "value": …} the one says what the other is."""

MORE = "…"
"""Stands for what was cut, and as a key, for how much of it there was."""

PATTERNS = (
    "*password*",
    "*passwd*",
    "*passphrase*",
    "pwd",
    "pin",
    "*secret*",
    "*token*",
    "*authorization*",
    "auth",
    "*apikey*",
    "*accesskey*",
    "*privatekey*",
    "*credential*",
    "*cookie*",
    "*signature*",
    "sessionid",
)
"""Keys whose values are always hidden; capitals and `-`, `_`, `.` and spaces make no difference."""

MAX_TEXT = 256
"""How many characters are kept of one text."""

_LOOKED = MAX_TEXT + 32
"""How many characters of a text are looked at: enough to tell what begins among those kept."""

_MAX_READ = 64 * 1024
"""Arguments with more bytes than this are looked into one level deep."""

_MAX_SCAN = 1024 * 1024
"""Arguments with more bytes than this are not looked into at all."""

_MAX_DEPTH = 16
_MAX_NODES = 500
_FEW = 2 * _MAX_NODES
"""Arguments of so many bytes cannot have more members and items than are kept: each takes two."""

_GROWTH = 16
"""How many times as long something may be at most when it is redacted: `1e15` is, five times."""

_MAX_KNOWN = 2048

_DROPPED = str.maketrans("", "", "-_. ")
_NAMES = frozenset(("name", "key", "header"))
_BEGINNINGS = (
    "bearer ",
    "basic ",
    "eyj",
    "sk-",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "akia",
    "-----begin",
)
"""What a text begins with of which nothing is kept; in small letters, as `BEARER` is no other."""

_CREDENTIAL = re.compile(
    r"-----BEGIN[\s\S]*"
    r"|(?:gh[pos]_|github_pat_|glpat-|xox[bp]-)[\w-]+"
    r"|(?:(?<![A-Za-z])|(?<=\\[nrt]))"  # where a word begins, after an escape too
    r"(?:eyJ[\w-]{8,}[\w.-]*|sk-[\w-]{8,}|AKIA\w{8,}"
    r"|((?i:bearer)[\s:=]+)\S+"
    r"|((?i:basic)[\s:=]+)(?=\S[a-z]*[A-Z0-9+/=])[\w+/=-]{8,})"
)
"""The same anywhere in a text; of an ordinary word, enough has to follow."""

# Hardly any text has a credential: to know that of most, one character is searched for quickly.
_dashed = re.compile(r"-(?:(?<=sk-|at-|xb-|xp-)|----BEGIN)").search
_underscored = re.compile(r"_(?<=gh[pos]_|pat_)").search
_TELLING = ("pass", "secret", "token", "auth", "key", "cred")
_ASSIGNED = re.compile(
    r"(?i)(passw|passphrase|secret|token|authorization|api[-_]?key|access[-_]?key|credential)"
    r"[\w\"' -]{0,24}[:=]"
)
_FROM_AUTHORITY = re.compile(r"://\S+")
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.decode
_decode_table = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.encode


class Rules(Struct, frozen=True):
    """What is kept: of which arguments, which keys are hidden beside ours, and how many bytes."""

    mode: Mode = "redacted"
    patterns: tuple[str, ...] = ()
    max_bytes: int = 4096


class Redactor:
    """Says what may be kept."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._patterns = PATTERNS + tuple(_plain(pattern) for pattern in rules.patterns)
        self._known: dict[str, _Part] = {}
        self._harmless: set[str] = set()
        """Those of the known keys that mean nothing for their values: most keys."""
        self._nodes = 0
        self._little = min(_FEW, rules.max_bytes // _GROWTH) if rules.mode == "redacted" else -1

    def value(self, arguments: Raw | None) -> object:
        """Return the same as `keep`, for whoever writes it: where it is little, not yet written."""
        if arguments is None or len(arguments) > self._little:
            return self.keep(arguments)
        try:
            return self._small_table(_decode_table(arguments), 0)
        except (ValueError, RecursionError):  # no object, as they should be, or no JSON
            return self.keep(arguments)

    def keep(self, arguments: Raw | None) -> Raw | None:
        """Return what may be kept of arguments; None for nothing, or if they are null."""
        mode = self._rules.mode
        if arguments is None or mode == "none":
            return None
        try:
            if mode == "full":
                return self._keep_all(arguments)
            size = len(arguments)
            if size <= _FEW:
                value = self._small(_decode(arguments), 0)
            elif size <= _MAX_SCAN:
                value = self._large(arguments)
            else:
                return _note(arguments)
            if value is None:
                return None
            kept = _encode(value)
            if len(kept) > self._rules.max_bytes:
                kept = _fit(value, self._rules.max_bytes)
            return Raw(kept)
        except (ValueError, RecursionError):  # no JSON after all, or numbers that nobody can read
            return _note(arguments)

    def _keep_all(self, arguments: Raw) -> Raw | None:
        kept = msgspec.json.format(arguments, indent=-1) if len(arguments) <= _MAX_SCAN else b""
        check_utf8(kept)
        if kept == b"null":
            return None
        return Raw(kept) if 0 < len(kept) <= self._rules.max_bytes else _note(arguments)

    def hides(self, key: str) -> bool:
        """Tell whether what stands under a key is not to be kept."""
        return self._part(key) == "secret"

    def _part(self, key: str) -> _Part:
        known = self._known.get(key)
        if known is None:
            if len(key) > MAX_TEXT:
                return "secret"
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
                self._harmless.clear()
            known = self._known[key] = self._judge(_plain(key))
            if known == "":
                self._harmless.add(key)
        return known

    def _judge(self, plain: str) -> _Part:
        if fits_any(self._patterns, plain):
            return "secret"
        if plain in _NAMES:
            return "name"
        return "value" if plain == "value" else ""

    def _names_secret(self, table: dict[str, Any]) -> bool:
        names = (name for key, name in table.items() if self._part(key) == "name")
        return any(isinstance(name, str) and self.hides(name) for name in names)

    # What cannot be too much: most arguments, and therefore with as few steps as can be

    def _small(self, value: Any, depth: int) -> Any:
        if depth >= _MAX_DEPTH and isinstance(value, dict | list):
            return MORE
        if isinstance(value, dict):
            return self._small_table(cast("dict[str, Any]", value), depth)
        if isinstance(value, list):
            return [self._small(item, depth + 1) for item in cast("list[Any]", value)]
        return shorten(value) if isinstance(value, str) else value

    def _small_table(self, table: dict[str, Any], depth: int) -> dict[str, Any]:
        """Redact an object that is nobody else's; in place, if its keys are known to be plain."""
        if not self._harmless.issuperset(table):
            return self._marked_table(table, depth)
        for key, value in table.items():
            if type(value) is not int:
                table[key] = shorten(value) if type(value) is str else self._small(value, depth + 1)
        return table

    def _marked_table(self, table: dict[str, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        values: list[str] = []
        for key, value in table.items():
            part = self._part(key)
            if part == "secret":
                kept[_key(key)] = HIDDEN
                continue
            if part == "value":
                values.append(key)
            kept[key] = self._small(value, depth + 1)
        if values and self._names_secret(table):
            kept.update(dict.fromkeys(values, HIDDEN))
        return kept

    # What may be: the same, and all that is looked at is counted

    def _large(self, arguments: Raw) -> Any:
        self._nodes = 0
        if len(arguments) <= _MAX_READ:
            return self._walk(_decode(arguments), 0)
        return self._walk({key: _part_of(raw) for key, raw in _members(arguments).items()}, 0)

    def _walk(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return shorten(value)
        if isinstance(value, dict):
            return self._table(cast("dict[str, Any]", value), depth)
        if isinstance(value, list):
            return self._list(cast("list[Any]", value), depth)
        return value

    def _table(self, table: dict[str, Any], depth: int) -> Any:
        if depth >= _MAX_DEPTH:
            return MORE
        kept: dict[str, Any] = {}
        values: list[str] = []
        for key, value in table.items():
            self._nodes += 1
            if self._nodes > _MAX_NODES:
                kept[MORE] = f"{len(table) - len(kept)} more"
                break
            part = self._part(key)
            if part == "value":
                values.append(key)
            kept[_key(key)] = HIDDEN if part == "secret" else self._walk(value, depth + 1)
        if values and (MORE in kept or self._names_secret(table)):
            kept.update(dict.fromkeys(values, HIDDEN))
        return kept

    def _list(self, items: Sequence[Any], depth: int) -> Any:
        if depth >= _MAX_DEPTH:
            return MORE
        kept: list[Any] = []
        for item in items:
            self._nodes += 1
            if self._nodes > _MAX_NODES:
                kept.append(f"{MORE} {len(items) - len(kept)} more")
                break
            kept.append(self._walk(item, depth + 1))
        return kept


def shorten(text: str) -> str:
    """Return a text as far as it may be kept: nothing of one that looks like a credential."""
    size = len(text)
    if size > MAX_TEXT:
        text = beginning(text, _LOOKED)
    assigns = ":" in text or "=" in text
    low = text.lower() if assigns or " " in text else ""
    if (
        "bearer" in low
        or "basic" in low
        or ("-" in text and _dashed(text))
        or ("_" in text and _underscored(text))
        or ("J" in text and "eyJ" in text)
        or ("K" in text and "AKIA" in text)
    ):
        if text.lower().startswith(_BEGINNINGS):
            return HIDDEN
        text = _CREDENTIAL.sub(rf"\1\2{HIDDEN}", text)
    if assigns:
        if any(word in low for word in _TELLING) and _ASSIGNED.search(low):
            return HIDDEN
        if "@" in text:
            text = _FROM_AUTHORITY.sub(_without_user, text)
    if size > MAX_TEXT:
        text = f"{text.removesuffix('@')[:MAX_TEXT]}{MORE} ({size} characters)"
    return text


def without_credentials(uri: str) -> str:
    """Return a URI without a password, and without a query that has a credential in it."""
    uri = _FROM_AUTHORITY.sub(_without_user, _CREDENTIAL.sub(rf"\1\2{HIDDEN}", uri))
    place, mark, query = uri.partition("?")
    if _ASSIGNED.search(query):
        query = HIDDEN
    return place + mark + query


def _without_user(found: re.Match[str]) -> str:
    return without_user(found[0])


def _plain(key: str) -> str:
    return key.lower().translate(_DROPPED)


def _key(key: str) -> str:
    return key if len(key) <= MAX_TEXT else key[:MAX_TEXT] + MORE


def _part_of(raw: Raw) -> Any:
    size = len(raw)
    return _decode(raw) if size <= 4 * MAX_TEXT else {MORE: f"{size} bytes"}


def _note(arguments: Raw) -> Raw:
    return Raw(_encode({MORE: f"{len(arguments)} bytes"}))


def _fit(value: Any, room: int) -> bytes:
    """Return as many members of an object as there is room for, whole, in order."""
    table = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    kept: dict[str, Raw] = {}
    used = 32 + len(_encode(f"{len(table)} more"))
    for key, item in table.items():
        written = Raw(_encode(item))
        used += len(_encode(key)) + len(written) + 2
        if used > room:
            break
        kept[key] = written
    return _encode({**kept, MORE: f"{len(table) - len(kept)} more"})
