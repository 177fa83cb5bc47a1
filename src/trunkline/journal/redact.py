"""Redaction: what is kept of the arguments of a call.

    arguments, any JSON ──> members under keys such as `password` hidden, at any depth
                        ──> what looks like a credential hidden, wherever it is
                        ──> long texts cut, and never more than so many bytes in all

Refuses to be exact: it would rather hide too much. It never fails, whatever it is given.

Rules upheld here:
1. Nothing under a key that a pattern means is kept: no part of its value, nor of what it nests.
2. What is kept, written as JSON, has at most so many bytes.
3. Objects with the same key twice are kept as the last of the two says: nothing hides behind it.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct

from trunkline.jsonrpc.raw import check_utf8
from trunkline.routing.pattern import fits_any

Mode = Literal["none", "redacted", "full"]

HIDDEN = "[redacted]"
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

_MAX_READ = 64 * 1024
"""Arguments with more bytes than this are looked into one level deep."""

_MAX_SCAN = 1024 * 1024
"""Arguments with more bytes than this are not looked into at all."""

_MAX_DEPTH = 16
_MAX_NODES = 500
_MAX_KNOWN = 2048

_DROPPED = str.maketrans("", "", "-_. ")
_CREDENTIALS = (
    "Bearer ",
    "bearer ",
    "Basic ",
    "basic ",
    "eyJ",
    "sk-",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "-----BEGIN",
)
_TELLING = ("pass", "secret", "token", "auth", "key", "cred")
_ASSIGNED = re.compile(
    r"(?i)(passw|passphrase|secret|token|authorization|api[-_]?key|access[-_]?key|credential)"
    r"[\w\"' -]{0,24}[:=]"
)
_URL_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.decode
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
        self._known: dict[str, bool] = {}
        self._nodes = 0

    def keep(self, arguments: Raw | None) -> Raw | None:
        """Return what may be kept of arguments; None for nothing."""
        if arguments is None or self._rules.mode == "none":
            return None
        try:
            return self._keep(arguments)
        except (ValueError, RecursionError):  # no JSON after all, or numbers that nobody can read
            return _note(arguments)

    def _keep(self, arguments: Raw) -> Raw:
        size = len(arguments)
        if self._rules.mode == "full":
            kept = msgspec.json.format(arguments, indent=-1) if size <= _MAX_SCAN else b""
            check_utf8(kept)
            return Raw(kept) if 0 < len(kept) <= self._rules.max_bytes else _note(arguments)
        if size > _MAX_SCAN:
            return _note(arguments)
        self._nodes = 0
        if size <= _MAX_READ:
            value = self._walk(_decode(arguments), 0)
        else:
            value = self._walk({key: _small(raw) for key, raw in _members(arguments).items()}, 0)
        kept = _encode(value)
        if len(kept) > self._rules.max_bytes:
            kept = _fit(value, self._rules.max_bytes)
        return Raw(kept)

    def hides(self, key: str) -> bool:
        """Tell whether what stands under a key is not to be kept."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = fits_any(self._patterns, _plain(key[:MAX_TEXT]))
            if len(key) <= MAX_TEXT:
                self._known[key] = known
        return known

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
        named = "value" in table and self._names_secret(table)  # {"name": …, "value": …}
        kept: dict[str, Any] = {}
        for key, value in table.items():
            self._nodes += 1
            if self._nodes > _MAX_NODES:
                kept[MORE] = f"{len(table) - len(kept)} more"
                break
            hidden = self.hides(key) or (named and key == "value")
            name = key if len(key) <= MAX_TEXT else key[:MAX_TEXT] + MORE
            kept[name] = HIDDEN if hidden else self._walk(value, depth + 1)
        return kept

    def _names_secret(self, table: dict[str, Any]) -> bool:
        names = (table.get(key) for key in ("name", "key", "header"))
        return any(isinstance(name, str) and self.hides(name) for name in names)

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
    if text.startswith(_CREDENTIALS):
        return HIDDEN
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}{MORE} ({len(text)} characters)"
    if ":" in text or "=" in text:
        low = text.lower()
        if any(word in low for word in _TELLING) and _ASSIGNED.search(low):
            return HIDDEN
        if "@" in text:
            return _URL_PASSWORD.sub(f"://{HIDDEN}@", text)
    return text


def without_credentials(uri: str) -> str:
    """Return a URI without a password, and without a query that has a credential in it."""
    place, mark, query = uri.partition("?")
    if _ASSIGNED.search(query):
        query = HIDDEN
    return _URL_PASSWORD.sub(f"://{HIDDEN}@", place) + mark + query


def _plain(key: str) -> str:
    return key.lower().translate(_DROPPED)


def _small(raw: Raw) -> Any:
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
