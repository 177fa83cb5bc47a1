"""Make foreign text safe to show: escape control characters, redact credentials in URLs.

    https://ann:secret@host/x ──redact_userinfo──> https://[redacted]@host/x

Invariants upheld here:
1. Printed text does not move the cursor, set a colour, change the direction of text, or fail to be
   encoded. Every character stays, or becomes a visible escape.
2. Text for one line stays on one line.
3. What may be a password is redacted, even when in doubt.
"""

import re

# C0 and C1 controls, line and paragraph separators, bidirectional controls, and lone surrogates,
# which no encoding can write.
_CONTROL_CHARACTERS = (
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CONTROL = re.compile(_CONTROL_CHARACTERS)
_CONTROL_IN_LINES = re.compile(rf"(?![\n\t]){_CONTROL_CHARACTERS}")

REDACTED = "[redacted]"
"""Stands in place of a removed secret."""

_PASSWORD = r"(?![^/?#:]*:\d{1,5}[/?#])[^/?#:]*:"  # noqa: S105  what is no port is one
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
