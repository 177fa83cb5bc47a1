"""Rules of the HTTP door: what it is called, whom it lets in, and how many.

Pure: headers in, a verdict out. Refuses to know connections, sessions and clocks.

Rules upheld here:
1. A page of another site cannot reach a gateway on this machine: neither by its own name that
   suddenly points here (Host, 421), nor from a browser that says where it comes from (Origin, 403).
2. Loopback is always let in; all else only by name.
"""

import re
from collections.abc import Collection

from msgspec import Struct

_is_loopback = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]").fullmatch
_SCHEMES = ("http://", "https://")

REQUEST_HEADERS = (
    "accept, authorization, content-type, last-event-id, mcp-method, mcp-name, "
    "mcp-protocol-version, mcp-session-id"
)
"""What a page of an allowed origin may send; `Mcp-Param-*` are added as they are asked for."""


class HttpRules(Struct, frozen=True, kw_only=True):
    """What a configuration says about the door."""

    path: str = "/mcp"
    sse_path: str = "/sse"
    messages_path: str = "/messages"
    ws_path: str = "/ws"
    allowed_hosts: frozenset[str] = frozenset()
    """Names of this gateway beside loopback ones, with or without a port."""
    allowed_origins: frozenset[str] = frozenset()
    session_idle: float = 1800.0
    session_life: float = 86400.0
    max_sessions: int = 10_000
    max_in_flight: int = 16384
    max_in_flight_per_principal: int = 8192
    keep_alive: float = 15.0
    """How long a stream may be silent, in seconds."""

    def refusal_of(self, host: bytes | None, origin: bytes | None) -> tuple[int, str] | None:
        """Return the status and the reason for what is not let in, None for what is."""
        if self.refuses_host(host):
            return 421, "this host is not served here; list it in allowed_hosts if it should be"
        if self.refuses_origin(origin):
            return 403, "this origin is not allowed; list it in allowed_origins if it should be"
        return None

    def refuses_host(self, host: bytes | None) -> bool:
        """Tell whether a request is meant for somebody else."""
        name = (host or b"").decode("latin-1").lower()
        return not _is_loopback(_without_port(name)) and not _is_listed(name, self.allowed_hosts)

    def refuses_origin(self, origin: bytes | None) -> bool:
        """Tell whether a request comes from a page that has no business here."""
        if origin is None:
            return False
        name = origin.decode("latin-1").lower()
        if name in self.allowed_origins or "*" in self.allowed_origins:
            return False
        scheme = next((s for s in _SCHEMES if name.startswith(s)), None)
        return scheme is None or not _is_loopback(_without_port(name.removeprefix(scheme)))


def _without_port(name: str) -> str:
    host, colon, port = name.rpartition(":")
    return host if colon and port.isdigit() else name


def _is_listed(name: str, hosts: Collection[str]) -> bool:
    return name in hosts or _without_port(name) in hosts or "*" in hosts


def cors(origin: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers by which a browser lets a page of `origin` read an answer."""
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
        (b"vary", b"origin"),
    )


def preflight(wanted: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that allow what a page wants to send."""
    names = {name.strip() for name in (wanted or b"").decode("latin-1").lower().split(",")}
    extra = sorted(name for name in names if name.startswith("mcp-param-"))
    allowed = ", ".join((REQUEST_HEADERS, *extra))
    return (
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", allowed.encode("latin-1")),
        (b"access-control-max-age", b"600"),
    )
