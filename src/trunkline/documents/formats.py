"""Formats of values that several tables use: texts, numbers and HTTP headers.

A format is defined once: `validation` checks values against it, and JSON Schemas are made from it.
"""

import re
from typing import Annotated

from msgspec import Meta

DAY_SECONDS = 86400
MIB = 1024 * 1024

# Tab and visible ASCII (RFC 9110, 5.5); implementations disagree about other characters.
HEADER_VALUE_PATTERN = re.compile(r"[\t\x20-\x7e]*")

# Headers that only the HTTP client can set correctly.
TRANSPORT_HEADERS = frozenset(
    (
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
    )
)

NOT_BLANK_PATTERN = r"^\s*\S[\s\S]*$"
WILDCARD_PATTERN = "^[A-Za-z0-9_*?-]+$"


def idle_seconds(duration: str) -> float | None:
    """Return an IdleDuration in seconds, None for `off`."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    return None if duration == "off" else float(duration[:-1]) * units[duration[-1]]


def text_format(pattern: str, expected: str, max_length: int | None = None) -> Meta:
    """Describe a text: its pattern, the same in words, and its maximum length.

    For a union of a text and a list, use `text_format_in_union`.
    """
    return Meta(pattern=pattern, max_length=max_length, extra={"expected": expected})


def text_format_in_union(pattern: str, expected: str, max_length: int | None = None) -> Meta:
    """Describe a text in a union with a list, without giving msgspec the pattern.

    msgspec 0.22 frees such a pattern twice and crashes the interpreter at exit.
    """
    extra, schema = (
        {"expected": expected, "pattern": pattern},
        {"type": "string", "pattern": pattern},
    )
    return Meta(max_length=max_length, extra=extra, extra_json_schema=schema)


NonBlankText = Annotated[str, text_format(NOT_BLANK_PATTERN, "text that is not blank")]
# In a process's environment, `=` ends the name and NUL ends the variable.
EnvName = Annotated[str, text_format("^[^=\\x00]+$", "the name of a variable, without =")]
HeaderName = Annotated[
    str,
    # RFC 9110, 5.6.2
    text_format("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", "the name of an HTTP header"),
]
UrlPath = Annotated[
    str,
    text_format(
        "^/[A-Za-z0-9._~/-]*$", 'a path that begins with "/", of letters, digits, ., _, ~ and -'
    ),
]
ToolPattern = Annotated[
    str, text_format(WILDCARD_PATTERN, "the name of a tool, with * and ? for what may vary", 128)
]
Seconds = Annotated[float, Meta(gt=0, le=DAY_SECONDS)]
IdleDuration = Annotated[
    str,
    # Two digits of seconds make "10s" the least.
    text_format(
        "^(off|[1-9][0-9]{1,4}s|[1-9][0-9]{0,3}m|[1-9][0-9]{0,2}h)$",
        '"off", or a duration of at least "10s", such as "10m" or "2h"',
    ),
]
Fraction = Annotated[float, Meta(ge=0, le=1)]
