"""Redaction: remove secrets from the arguments of a call before they are recorded.

    arguments, any JSON ──> values under secret keys, such as `password`, hidden at any depth
                        ──> texts that look like credentials hidden everywhere
                        ──> long texts cut, and the whole limited in bytes

It hides too much rather than too little. It never fails, for any input.

Invariants:
1. Nothing under a secret key is kept, at any depth. A key that is too long to be kept whole counts
   as secret.
2. The result, encoded as JSON, has at most `max_bytes` bytes.
3. Of duplicate keys in an object the last value is kept, so nothing hides behind the first.
4. Texts are searched for credentials before they are cut, so no cut-off credential remains.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct

from trunkline.jsonrpc.raw_json import check_utf8
from trunkline.printable import REDACTED, clip_text, redact_userinfo
from trunkline.routing.naming import matches_any_pattern

ArgumentsMode = Literal["none", "redacted", "full"]
# The meaning of a key for its object: in {"name": …, "value": …} the name classifies the value
_KeyRole = Literal["secret", "name", "value", ""]

ELLIPSIS = "…"  # marks a cut; as a key, it holds the amount that was cut

# Keys whose values are hidden; case and the characters `-`, `_`, `.` and space are ignored.
SECRET_KEY_PATTERNS = (
    "*password*", "*passwd*", "*passphrase*", "pwd", "pin", "*secret*", "*token*",
    "*authorization*", "auth", "*apikey*", "*accesskey*", "*privatekey*", "*credential*",
    "*cookie*", "*signature*", "sessionid",
)  # fmt: skip

MAX_TEXT_LENGTH = 256  # number of characters kept of one text

# The number of characters searched: enough to find credentials that start in the kept part
_SCANNED_LENGTH = MAX_TEXT_LENGTH + 32
_MAX_DEEP_BYTES = 64 * 1024  # arguments with more bytes than this are decoded one level deep
_MAX_SCANNED_BYTES = 1024 * 1024  # arguments with more bytes than this are not decoded at all
_MAX_DEPTH = 16
_MAX_NODES = 500
# Arguments up to this size cannot exceed _MAX_NODES: every member or item takes two bytes
SMALL_BYTES = 2 * _MAX_NODES

# An upper bound of how much longer a redacted value can get; `1e15` becomes five times as long.
_MAX_GROWTH = 16
_MAX_CACHED_KEYS = 2048

_SEPARATORS = str.maketrans("", "", "-_. ")
_NAME_KEYS = frozenset(("name", "key", "header"))
# Prefixes of texts that are hidden completely; compared in lower case.
_CREDENTIAL_PREFIXES = (
    "bearer ", "basic ", "eyj", "sk-", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-",
    "xoxp-", "akia", "-----begin",
)  # fmt: skip

# The same anywhere in a text; after prefixes that are words, more characters must follow.
_CREDENTIAL = re.compile(
    r"-----BEGIN[\s\S]*"
    r"|(?:gh[pos]_|github_pat_|glpat-|xox[bp]-)[\w-]+"
    r"|(?:(?<![A-Za-z])|(?<=\\[nrt]))"  # at the start of a word, or after an escape
    r"(?:eyJ[\w-]{8,}[\w.-]*|sk-[\w-]{8,}|AKIA\w{8,}"
    r"|((?i:bearer)[\s:=]+)\S+"
    r"|((?i:basic)[\s:=]+)(?=\S[a-z]*[A-Z0-9+/=])[\w+/=-]{8,})"
)

# Few texts have a credential: searching for one character first rules most of them out.
_find_dash = re.compile(r"-(?:(?<=sk-|at-|xb-|xp-)|----BEGIN)").search
_find_underscore = re.compile(r"_(?<=gh[pos]_|pat_)").search
_SECRET_WORDS = ("pass", "secret", "token", "auth", "key", "cred")
_ASSIGNMENT = re.compile(
    r"(?i)(passw|passphrase|secret|token|authorization|api[-_]?key|access[-_]?key|credential)"
    r"[\w\"' -]{0,24}[:=]"
)
_AUTHORITY = re.compile(r"://\S+")
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.encode


class RedactionRules(Struct, frozen=True):
    """Settings: the mode, patterns of further secret keys, and the limit in bytes."""

    mode: ArgumentsMode = "redacted"
    patterns: tuple[str, ...] = ()
    max_bytes: int = 4096


class Redactor:
    """Redacts arguments by one set of rules."""

    def __init__(
        self,
        rules: RedactionRules,
        mask: Callable[[bytes], bytes] = bytes,
        small_bytes: int = SMALL_BYTES,
    ) -> None:
        """Prepare; `mask` removes further secrets from encoded arguments, in every mode.

        `small_bytes` is the size up to which nodes are not counted; the result is the same.
        """
        self._rules = rules
        self._mask = mask
        self._small_bytes = small_bytes
        self._patterns = SECRET_KEY_PATTERNS + tuple(
            _normalise_key(pattern) for pattern in rules.patterns
        )
        self._key_roles: dict[str, _KeyRole] = {}
        self._plain_keys: set[str] = set()  # cached keys without a role, which are most keys
        self._nodes = 0
        self._inline_limit = (
            min(small_bytes, rules.max_bytes // _MAX_GROWTH) if rules.mode == "redacted" else -1
        )

    def redact_inline(self, arguments: Raw | None) -> object:
        """Return the same as `redact`, but leave small arguments for the caller to encode.

        This saves encoding small arguments twice (`python -m bench.audit_log`).
        """
        if arguments is None or len(arguments) > self._inline_limit:
            return self.redact(arguments)
        try:
            return self._redact_small_object(_decode_object(self._mask(bytes(arguments))), 0)
        except (ValueError, RecursionError):  # not an object, or not JSON
            return self.redact(arguments)

    def redact(self, arguments: Raw | None) -> Raw | None:
        """Return redacted arguments as JSON; None for mode `none`, and for null."""
        mode = self._rules.mode
        if arguments is None or mode == "none":
            return None
        try:
            if mode == "full":
                return self._keep_full(Raw(self._mask(bytes(arguments))))
            size = len(arguments)
            if size <= _MAX_SCANNED_BYTES:
                arguments = Raw(self._mask(bytes(arguments)))
            if size <= self._small_bytes:
                value = self._redact_small(_decode(arguments), 0)
            elif size <= _MAX_SCANNED_BYTES:
                value = self._redact_large(arguments)
            else:
                return _size_note(arguments)
            if value is None:
                return None
            kept = _encode(value)
            if len(kept) > self._rules.max_bytes:
                kept = _truncate_object(value, self._rules.max_bytes)
            return Raw(kept)
        except (ValueError, RecursionError):  # not JSON, too deep, or numbers out of range
            return _size_note(arguments)

    def mask_text(self, text: str) -> str:
        """Return a text that is not part of the arguments without the further secrets."""
        masked = self._mask(text.encode("utf-8", "surrogatepass"))
        return masked.decode("utf-8", "surrogatepass")

    def _keep_full(self, arguments: Raw) -> Raw | None:
        kept = (
            msgspec.json.format(arguments, indent=-1)
            if len(arguments) <= _MAX_SCANNED_BYTES
            else b""
        )
        check_utf8(kept)
        if kept == b"null":
            return None
        return Raw(kept) if 0 < len(kept) <= self._rules.max_bytes else _size_note(arguments)

    def is_secret_key(self, key: str) -> bool:
        """Return whether values under this key are hidden."""
        return self._key_role(key) == "secret"

    def _key_role(self, key: str) -> _KeyRole:
        role = self._key_roles.get(key)
        if role is None:
            if len(key) > MAX_TEXT_LENGTH:
                return "secret"
            if len(self._key_roles) >= _MAX_CACHED_KEYS:
                self._key_roles.clear()
                self._plain_keys.clear()
            role = self._key_roles[key] = self._classify_key(_normalise_key(key))
            if role == "":
                self._plain_keys.add(key)
        return role

    def _classify_key(self, normalised: str) -> _KeyRole:
        if matches_any_pattern(self._patterns, normalised):
            return "secret"
        if normalised in _NAME_KEYS:
            return "name"
        return "value" if normalised == "value" else ""

    def _names_a_secret(self, table: dict[str, Any]) -> bool:
        names = (name for key, name in table.items() if self._key_role(key) == "name")
        return any(isinstance(name, str) and self.is_secret_key(name) for name in names)

    # Small arguments, which are most: they cannot exceed the limits, so nothing is counted.

    def _redact_small(self, value: Any, depth: int) -> Any:
        if depth >= _MAX_DEPTH and isinstance(value, dict | list):
            return ELLIPSIS
        if isinstance(value, dict):
            return self._redact_small_object(cast("dict[str, Any]", value), depth)
        if isinstance(value, list):
            return [self._redact_small(item, depth + 1) for item in cast("list[Any]", value)]
        return redact_text(value) if isinstance(value, str) else value

    def _redact_small_object(self, table: dict[str, Any], depth: int) -> dict[str, Any]:
        """Redact an object, in place if none of its keys has a role."""
        if not self._plain_keys.issuperset(table):
            return self._redact_marked_object(table, depth)
        for key, value in table.items():
            if type(value) is not int:
                table[key] = (
                    redact_text(value)
                    if type(value) is str
                    else self._redact_small(value, depth + 1)
                )
        return table

    def _redact_marked_object(self, table: dict[str, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        values: list[str] = []
        for key, value in table.items():
            role = self._key_role(key)
            if role == "secret":
                kept[_truncate_key(key)] = REDACTED
                continue
            if role == "value":
                values.append(key)
            kept[key] = self._redact_small(value, depth + 1)
        if values and self._names_a_secret(table):
            kept.update(dict.fromkeys(values, REDACTED))
        return kept

    # Large arguments: the same, but every node is counted.

    def _redact_large(self, arguments: Raw) -> Any:
        self._nodes = 0
        if len(arguments) <= _MAX_DEEP_BYTES:
            return self._redact_value(_decode(arguments), 0)
        return self._redact_value(
            {key: _decode_member(raw) for key, raw in _decode_members(arguments).items()}, 0
        )

    def _redact_value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return redact_text(value)
        if isinstance(value, dict):
            return self._redact_object(cast("dict[str, Any]", value), depth)
        if isinstance(value, list):
            return self._redact_list(cast("list[Any]", value), depth)
        return value

    def _redact_object(self, table: dict[str, Any], depth: int) -> Any:
        if depth >= _MAX_DEPTH:
            return ELLIPSIS
        kept: dict[str, Any] = {}
        values: list[str] = []
        for key, value in table.items():
            self._nodes += 1
            if self._nodes > _MAX_NODES:
                kept[ELLIPSIS] = f"{len(table) - len(kept)} more"
                break
            role = self._key_role(key)
            if role == "value":
                values.append(key)
            kept[_truncate_key(key)] = (
                REDACTED if role == "secret" else self._redact_value(value, depth + 1)
            )
        if values and (ELLIPSIS in kept or self._names_a_secret(table)):
            kept.update(dict.fromkeys(values, REDACTED))
        return kept

    def _redact_list(self, items: Sequence[Any], depth: int) -> Any:
        if depth >= _MAX_DEPTH:
            return ELLIPSIS
        kept: list[Any] = []
        for item in items:
            self._nodes += 1
            if self._nodes > _MAX_NODES:
                kept.append(f"{ELLIPSIS} {len(items) - len(kept)} more")
                break
            kept.append(self._redact_value(item, depth + 1))
        return kept


def redact_text(text: str) -> str:
    """Return a text without credentials, cut to MAX_TEXT_LENGTH."""
    size = len(text)
    if size > MAX_TEXT_LENGTH:
        text = clip_text(text, _SCANNED_LENGTH)
    assigns = ":" in text or "=" in text
    low = text.lower() if assigns or " " in text else ""
    if (
        "bearer" in low
        or "basic" in low
        or ("-" in text and _find_dash(text))
        or ("_" in text and _find_underscore(text))
        or ("J" in text and "eyJ" in text)
        or ("K" in text and "AKIA" in text)
    ):
        if text.lower().startswith(_CREDENTIAL_PREFIXES):
            return REDACTED
        text = _CREDENTIAL.sub(rf"\1\2{REDACTED}", text)
    if assigns:
        if any(word in low for word in _SECRET_WORDS) and _ASSIGNMENT.search(low):
            return REDACTED
        if "@" in text:
            text = _AUTHORITY.sub(_strip_user, text)
    if size > MAX_TEXT_LENGTH:
        text = f"{text.removesuffix('@')[:MAX_TEXT_LENGTH]}{ELLIPSIS} ({size} characters)"
    return text


def redact_uri(uri: str) -> str:
    """Return a URI without its password, and without a query that holds a credential."""
    uri = _AUTHORITY.sub(_strip_user, _CREDENTIAL.sub(rf"\1\2{REDACTED}", uri))
    address, mark, query = uri.partition("?")
    if _ASSIGNMENT.search(query):
        query = REDACTED
    return address + mark + query


def _strip_user(found: re.Match[str]) -> str:
    return redact_userinfo(found[0])


def _normalise_key(key: str) -> str:
    return key.lower().translate(_SEPARATORS)


def _truncate_key(key: str) -> str:
    return key if len(key) <= MAX_TEXT_LENGTH else key[:MAX_TEXT_LENGTH] + ELLIPSIS


def _decode_member(raw: Raw) -> Any:
    size = len(raw)
    return _decode(raw) if size <= 4 * MAX_TEXT_LENGTH else {ELLIPSIS: f"{size} bytes"}


def _size_note(arguments: Raw) -> Raw:
    return Raw(_encode({ELLIPSIS: f"{len(arguments)} bytes"}))


def _truncate_object(value: Any, room: int) -> bytes:
    """Return the first members of an object that fit into `room` bytes, each complete."""
    table = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    kept: dict[str, Raw] = {}
    used = 32 + len(_encode(f"{len(table)} more"))
    for key, item in table.items():
        written = Raw(_encode(item))
        used += len(_encode(key)) + len(written) + 2
        if used > room:
            break
        kept[key] = written
    return _encode({**kept, ELLIPSIS: f"{len(table) - len(kept)} more"})
