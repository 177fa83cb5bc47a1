"""Make foreign text safe to show: escape controls, remove credentials and configured secrets.

    https://ann:secret@host/x ──redact_userinfo──> https://[redacted]@host/x
    a text with the value of ${TOKEN} ──SecretMask──> the same text with [redacted]

`SecretMask` is the only code that replaces configured secrets; `app.telemetry` knows their values.

Invariants upheld here:
1. Printed text does not move the cursor, set a colour, change the direction of text, or fail to be
   encoded. Every character stays, or becomes a visible escape.
2. Text for one line stays on one line.
3. What may be a password is redacted, even when in doubt.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from urllib.parse import quote, quote_plus, unquote

# C0 and C1 controls, line and paragraph separators, bidirectional controls, and lone surrogates,
# which no encoding can write.
_CONTROL_CHARACTERS = (
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CONTROL = re.compile(_CONTROL_CHARACTERS)
_CONTROL_IN_LINES = re.compile(rf"(?![\n\t]){_CONTROL_CHARACTERS}")

REDACTED = "[redacted]"
"""Stands in place of a removed secret."""

_PASSWORD = r"(?![^/?#:]*:\d{1,5}[/?#])[^/?#:]*:"  # noqa: S105  a port is no password
_WITH_PASSWORD = re.compile(rf"://(?:{_PASSWORD}|[^/?#:@]{{20,}}@)")
_WITH_NAME = re.compile(rf"://(?:{_PASSWORD}|[^/?#:@]+@)")


def printable(text: str, max_length: int | None = None) -> str:
    """Return the text on one line, cut to `max_length` characters before escaping."""
    if max_length is not None and len(text) > max_length:
        text = text[: max_length - 1] + "…"
    return _CONTROL.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return the text with its lines and tabs kept."""
    return _CONTROL_IN_LINES.sub(_escape, text.replace("\r\n", "\n"))


def printable_json(text: str) -> str:
    """Return equivalent JSON, with JSON escapes for the unprintable characters."""
    return _CONTROL_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def redact_userinfo(address: str, any_name: bool = False) -> str:
    """Remove the user info of a URL if it contains a password, or a name as long as a token.

    With `any_name`, remove any name.
    """
    end = address.rfind("@")
    user = (_WITH_NAME if any_name else _WITH_PASSWORD).search(address, 0, end + 1)
    return address if user is None else f"{address[: user.start()]}://{REDACTED}{address[end:]}"


def clip_text(text: str, max_length: int) -> str:
    """Cut a text to `max_length`, and mark the cut so that a password before it is still found."""
    return text if len(text) <= max_length else f"{text[:max_length]}@"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


# Secrets of the configuration

MIN_SECRET_LENGTH = 4
"""Shorter values are not masked: they are no secrets, and masking them would garble the text."""

_MIN_LINE_LENGTH = 16  # of a line of a longer secret, such as a private key
_MIN_BASE64_LENGTH = 8  # shorter secrets would match other text once they are encoded
_MAX_PORT_DIGITS = 5
_HOST_NAME = re.compile("[A-Za-z0-9._-]+")  # errors show the host of a URL in lower case

# Values that are masked nowhere, in lower case: masking them would hide more than it protects.
_COMMON_VALUES = frozenset(
    (
        *("true", "false", "null", "none", "auto", "default", "enabled", "disabled"),
        *("debug", "info", "warn", "warning", "error", "trace", "silent", "json", "text"),
        *("production", "development", "staging", "test", "prod", "local", "localhost"),
        *("127.0.0.1", "0.0.0.0", "http", "https", "stdio", "utf-8", "utf8", "c.utf-8"),  # noqa: S104
        *("bearer", "basic", "token", "password", "secret", "read", "write", "read-only"),
    )
)

PLAIN_VARIABLES = frozenset(
    (
        *("HOME", "USERPROFILE", "USER", "USERNAME", "LOGNAME", "HOSTNAME", "PWD", "PATH"),
        *("SHELL", "TERM", "LANG", "LC_ALL", "TZ", "TMPDIR", "TEMP", "TMP", "APPDATA"),
        *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
        *("NODE_ENV", "PYTHONPATH", "NODE_PATH", "LOG_LEVEL"),
    )
)
"""Environment variables whose values are no secrets."""

_SENSITIVE_NAME = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|auth(?:orization)?|credentials?"
    r"|(?:api|access|private|signing)[-_]?key|key)"
)
# `--api-key=VALUE`, `X-Api-Key: VALUE`, `?token=VALUE`, `API_KEY=VALUE`
_SECRET_ASSIGNMENT = re.compile(
    rf"(?i){_SENSITIVE_NAME}[\"']?\s*[=:]\s*[\"']?(?:(?:bearer|basic)\s+)?([^\s&\"']+)"
)
_SECRET_OPTION = re.compile(rf"(?i)-+(?:[\w-]*[-_])?{_SENSITIVE_NAME}")
_KNOWN_TOKEN = re.compile(r"(?:sk-|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)[\w.-]{8,}")
_URL_PASSWORD = re.compile(r"://[^/?#\s:@]*:([^/?#\s]+)@")


def secrets_in_arguments(args: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of a command, and parts of them, that look like secrets."""
    found: list[str] = []
    for option, arg in pairwise(("", *args)):
        if _SECRET_OPTION.fullmatch(option) and not arg.startswith("-"):
            found.append(arg)
        for pattern in (_SECRET_ASSIGNMENT, _KNOWN_TOKEN, _URL_PASSWORD):
            found += (match[match.re.groups] for match in pattern.finditer(arg))
    return tuple(found)


class SecretMask:
    """Replaces secrets in texts: as they are, percent-encoded, escaped for JSON, and in base64.

    Errors and log lines are masked, results are not. A text of 200 characters takes 0.05 µs for
    each of about four spellings of a secret. `mask_json`, for arguments in audit records, looks for
    one spelling, and takes 0.03 µs for each secret.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Prepare; short and common values, such as `true` and ports, are not masked."""
        parts = {part for secret in secrets for part in _secret_parts(secret)}
        spellings = {each for part in parts for each in _spellings(part)}
        # Longest first: a secret may contain a shorter one.
        self._spellings = sorted(spellings, key=len, reverse=True)
        in_json = {json.dumps(part, ensure_ascii=False)[1:-1] for part in parts}
        self._in_json = sorted(in_json, key=len, reverse=True)
        self.has_secrets = bool(parts)
        """Whether there is anything to mask."""

    def __call__(self, text: str) -> str:
        """Return the text without secrets, also if a cut at its end, marked by `…`, split one."""
        for spelling in self._spellings:
            if spelling in text:
                text = text.replace(spelling, REDACTED)
        return self._mask_cut(text) if text.endswith("…") else text

    def _mask_cut(self, text: str) -> str:
        kept = text[:-1]
        for spelling in self._spellings:
            for length in range(min(len(spelling) - 1, len(kept)), MIN_SECRET_LENGTH - 1, -1):
                if kept.endswith(spelling[:length]):
                    return f"{kept[:-length]}{REDACTED}…"
        return text

    def mask_json(self, data: bytes) -> bytes:
        """Return encoded JSON without secrets; it is no JSON any more if a number was masked."""
        text = masked = data.decode("utf-8", "surrogateescape")  # searching bytes is slower
        for secret in self._in_json:
            if secret in masked:
                masked = masked.replace(secret, REDACTED)
        return data if masked is text else masked.encode("utf-8", "surrogateescape")


NO_SECRETS = SecretMask()
"""Masks nothing."""


def _secret_parts(secret: str) -> Iterator[str]:
    """Yield what must not be shown of one secret: the whole, and parts that grant access alone."""
    lines, words = secret.split("\n"), secret.split()
    parts = [secret.strip(), *(line.strip() for line in lines if len(line) >= _MIN_LINE_LENGTH)]
    if len(words) == 2:
        parts.append(words[1])
    for password in _URL_PASSWORD.findall(secret):
        parts += (password, unquote(password))
    for part in parts:
        is_port = len(part) <= _MAX_PORT_DIGITS and part.isdigit()
        if len(part) >= MIN_SECRET_LENGTH and not is_port and part.lower() not in _COMMON_VALUES:
            yield part


def _spellings(secret: str) -> Iterator[str]:
    yield secret
    yield printable(secret)
    yield quote(secret)
    yield quote(secret, safe="")
    yield quote_plus(secret)
    if _HOST_NAME.fullmatch(secret):
        yield secret.lower()
    for ascii_only in (True, False):
        escaped = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield json.dumps(escaped, ensure_ascii=ascii_only)[1:-1]  # JSON in a text of JSON
    if len(secret) >= _MIN_BASE64_LENGTH:
        yield from _base64_spellings(secret.encode("utf-8", "replace"))


def _base64_spellings(secret: bytes) -> Iterator[str]:
    """Yield the characters of base64 that depend on the secret only, wherever it begins."""
    for offset in range(3):
        text = b64encode(bytes(offset) + secret)
        # The characters at both ends also encode bits of the neighbours.
        first, last = -(-offset * 4 // 3), (offset + len(secret)) * 8 // 6
        inner = text[first:last].decode()
        yield inner
        yield inner.translate(_URL_SAFE)


_URL_SAFE = str.maketrans("+/", "-_")
