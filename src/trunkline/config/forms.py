"""The forms of texts and numbers that more than one table asks for.

Refuses to look at values: `fit` does, and says in our words what was expected.

Rule upheld here: a form stands in one place, for the checks and for the JSON Schema alike.
"""

import re
from typing import Annotated

from msgspec import Meta

DAY = 86400
MIB = 1024 * 1024

ADDRESS = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"
"""The form of HOST:PORT."""

HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
"""Tab and visible characters; RFC 9110, 5.5. What others are, nobody agrees on."""

OUR_HEADERS = frozenset(
    (
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
    )
)
"""Those that say how a request is sent, which only whoever sends it knows."""

NOT_BLANK = r"^\s*\S[\s\S]*$"
WILDCARD = "^[A-Za-z0-9_*?-]+$"


def form(pattern: str, expected: str, most: int | None = None) -> Meta:
    """Say what a text must be: a pattern, the same in words, and how long it may be.

    Not for a text beside a list in a union: see `form_beside_list`.
    """
    return Meta(pattern=pattern, max_length=most, extra={"expected": expected})


def form_beside_list(pattern: str, expected: str, most: int | None = None) -> Meta:
    """Say the same of a text that stands beside a list in a union, where msgspec must not know.

    msgspec 0.22 frees such a pattern twice, and takes the interpreter down as it ends.
    """
    extra, schema = (
        {"expected": expected, "pattern": pattern},
        {"type": "string", "pattern": pattern},
    )
    return Meta(max_length=most, extra=extra, extra_json_schema=schema)


Text = Annotated[str, form(NOT_BLANK, "text that is not blank")]
EnvName = Annotated[str, form("^[^=\\x00]+$", "the name of a variable, without =")]
HeaderName = Annotated[
    str,
    # A field name as RFC 9110, 5.6.2, has it.
    form("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", "the name of an HTTP header"),
]
UrlPath = Annotated[
    str,
    form("^/[A-Za-z0-9._~/-]*$", 'a path that begins with "/", of letters, digits, ., _, ~ and -'),
]
ToolPattern = Annotated[
    str, form(WILDCARD, "the name of a tool, with * and ? for what may vary", 128)
]
Seconds = Annotated[float, Meta(gt=0, le=DAY)]
Share = Annotated[float, Meta(ge=0, le=1)]
