"""Visible: text of others, made fit to be shown; what is not to be seen in it is spelled out.

Refuses to judge a text, or to hide anything in it: it only makes sure that all of it can be seen.

Rules upheld here:
1. Nothing shown moves a cursor, sets a colour, turns text around or fails to be encoded.
2. What is shown on one line stays on one line.
"""

import re

# Whatever controls a terminal or ends a line, what turns the direction of text, and halves of
# characters, which nothing can encode.
_SET = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_HIDDEN = re.compile(_SET)
_HIDDEN_IN_LINES = re.compile(rf"(?![\n\t]){_SET}")


def visible(text: str, longest: int | None = None) -> str:
    """Return a text on one line, cut short if it has more than `longest` characters."""
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return _HIDDEN.sub(_spell, text)


def visible_lines(text: str) -> str:
    """Return a text with its lines and tabs as they are."""
    return _HIDDEN_IN_LINES.sub(_spell, text.replace("\r\n", "\n"))


def visible_json(text: str) -> str:
    """Return JSON that means the same, with what is not to be seen written as JSON writes it."""
    return _HIDDEN_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _spell(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
