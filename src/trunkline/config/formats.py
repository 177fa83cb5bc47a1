"""Formats of values that several tables use: texts, numbers, addresses and URLs.

Nothing here connects or listens; `documents.validation` checks values against the formats.

Invariants:
1. A format is defined once, for the checks and for the JSON Schema.
2. Without authentication only loopback addresses are accepted.
3. Secrets and keys travel over TLS or loopback only.
"""

import re
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

DAY_SECONDS = 86400
MIB = 1024 * 1024

# HOST:PORT.
ADDRESS_PATTERN = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"

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


def text_format(pattern: str, expected: str, max_length: int | None = None) -> Meta:
    """Describe a text: its pattern, the same in words, and its maximum length.

    For a text beside a list in a union use `text_format_in_union`.
    """
    return Meta(pattern=pattern, max_length=max_length, extra={"expected": expected})


def text_format_in_union(pattern: str, expected: str, max_length: int | None = None) -> Meta:
    """Describe a text beside a list in a union, without telling msgspec the pattern.

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
Fraction = Annotated[float, Meta(ge=0, le=1)]


# The error of a URL with a user name or password.
CREDENTIALS_IN_URL = "it contains a user name or password, which is never sent"

# All of 127.0.0.0/8 is loopback (RFC 1122, 3.2.1.3).
_LOOPBACK_HOST = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1", re.IGNORECASE)
# A URL with spaces or control characters could add lines to the request.
_FORBIDDEN_IN_URL = re.compile(r"[\x00-\x20\x7f]")


class AddressError(ValueError):
    """An address that the gateway cannot or must not listen on, with a fix."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}; {fix}")
        self.reason, self.fix = reason, fix


def split_address(address: str, requires_auth: bool = False) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT.

    Raises AddressError for an invalid address and, without `requires_auth`, for one beyond
    loopback.
    """
    if not re.fullmatch(ADDRESS_PATTERN, address):
        raise AddressError("expected a host and a port", "write 127.0.0.1:8080, or [::1]:8080")
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    # The pattern admits any number of five digits.
    if int(port) > 65535:
        raise AddressError("expected a port of at most 65535", "choose another; 0 picks a free one")
    if not requires_auth and not is_loopback(host):
        raise AddressError(
            "expected a loopback address: without [auth] every client that reaches the gateway "
            "may call everything",
            "write 127.0.0.1, localhost or [::1], or add [auth]",
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    return _LOOPBACK_HOST.fullmatch(host) is not None


def split_url(text: str) -> SplitResult | None:
    """Return the parts of a URL, None if it is malformed."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return None
    return parts


def is_http_url(text: str) -> bool:
    """Whether a text is an http:// or https:// URL with a host."""
    parts = split_url(text)
    is_url = parts is not None and parts.scheme in {"http", "https"} and bool(parts.hostname)
    return is_url and _FORBIDDEN_IN_URL.search(text) is None


def is_http_url_without_user(text: str) -> bool:
    """Whether a text is an HTTP URL without user name and password."""
    return is_http_url(text) and "@" not in urlsplit(text).netloc


def has_credentials(url: object) -> bool:
    """Whether a URL contains a user name or password."""
    return isinstance(url, str) and is_http_url(url) and not is_http_url_without_user(url)


def is_confidential(text: str) -> bool:
    """Whether requests to a URL cannot be read or changed on the way: TLS, or loopback."""
    parts = split_url(text)
    return parts is not None and (parts.scheme == "https" or is_loopback(parts.hostname or ""))
