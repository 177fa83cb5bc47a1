"""Addresses and URLs in a configuration: their formats, and which of them are safe to use.

Nothing here connects or listens.

Invariants:
1. Without authentication only loopback addresses are accepted.
2. Secrets and keys travel over TLS or loopback only.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

# HOST:PORT.
ADDRESS_PATTERN = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"

# No user name, query or fragment, and no "." or ".." in the path.
PUBLIC_URL_PATTERN = (
    r"^[Hh][Tt][Tt][Pp][Ss]?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?$"
)

# Addresses to listen on, on all interfaces; no client can connect to them.
WILDCARD_HOSTS = frozenset(("0.0.0.0", "::"))  # noqa: S104  only compared

DEFAULT_PORTS = {"http": 80, "https": 443}

DEFAULT_MCP_PATH = "/mcp"

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
            'write 127.0.0.1, localhost or [::1], or require keys: [auth] and mode = "api_key"',
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


class PublicUrl(NamedTuple):
    """The address of the gateway for its clients: `http.public_url`."""

    scheme: str
    # The host in lower case, in brackets if it is an IPv6 address.
    host: str
    # None if it is the usual one of the scheme.
    port: int | None
    # The path in front of the gateway's own paths, without a slash at its end.
    prefix: str

    @property
    def origin(self) -> str:
        """The origin, as browsers send it."""
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"

    @property
    def base(self) -> str:
        """The URL to which the gateway's own paths are appended."""
        return self.origin + self.prefix


def parse_public_url(text: object) -> PublicUrl | None:
    """Return the parts of `http.public_url`, None if it is absent or not usable for clients."""
    if not isinstance(text, str) or not re.fullmatch(PUBLIC_URL_PATTERN, text):
        return None
    parts = split_url(text)
    host = (parts.hostname or "") if parts is not None else ""
    if parts is None or not host or host in WILDCARD_HOSTS or parts.port == 0:
        return None
    port = None if parts.port == DEFAULT_PORTS[parts.scheme] else parts.port
    return PublicUrl(
        parts.scheme, f"[{host}]" if ":" in host else host, port, parts.path.rstrip("/")
    )


def public_mcp_url(http: Mapping[str, object]) -> str | None:
    """Return the URL of MCP by the `public_url` and `path` of `[http]`, None without one."""
    public, path = parse_public_url(http.get("public_url")), http.get("path", DEFAULT_MCP_PATH)
    return None if public is None or not isinstance(path, str) else public.base + path


def reachable_origin(origin: str) -> str:
    """Return an origin that clients can connect to: 0.0.0.0 and [::] become loopback."""
    scheme, _, place = origin.partition("://")
    for wildcard, loopback in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
        if place.startswith(wildcard):
            return f"{scheme}://{loopback}{place.removeprefix(wildcard)}"
    return origin


def has_credentials(url: object) -> bool:
    """Whether a URL contains a user name or password."""
    return isinstance(url, str) and is_http_url(url) and not is_http_url_without_user(url)


def is_confidential(text: str) -> bool:
    """Whether requests to a URL cannot be read or changed on the way: TLS, or loopback."""
    parts = split_url(text)
    return parts is not None and (parts.scheme == "https" or is_loopback(parts.hostname or ""))
