"""Access to the endpoints: settings, Host and Origin checks, authentication.

    request ──> check_access: Host, Origin ──> None, or a status and the reason
    request ──cached_principal──> a Principal, at once   ──authenticate──> Principal or Challenge
    open stream ──> its credentials are no longer cached ──> authenticate again ──> maybe closed

The implementation of Authenticator defines what credentials are and how to check them.

Invariants:
1. A web page of another site cannot reach a gateway on this machine: neither by DNS rebinding
   (Host, status 421), nor from a browser that sends its Origin (status 403).
2. Loopback names are always allowed, and IP addresses for health pages; all other names must be
   listed.
3. Without authentication, only clients on this machine are served, unless a setting allows others.
   A client whose address is not known counts as remote. A client that a
   forwarding header places on another machine counts too, even if the gateway does not trust the
   proxy.
4. A request with two Host, Origin or Authorization headers is rejected: a proxy may have checked
   the other one.
5. An open stream or WebSocket does not outlive the credentials it was opened with. A running
   request does: it was authenticated when it came, and gets its response.
"""

import re
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Protocol

from msgspec import Struct

from trunkline.gateway.stores import SessionLimits
from trunkline.http.address import is_loopback_address, names_remote_hop
from trunkline.http.exchange import HttpRequest
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Principal

_is_loopback = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]").fullmatch
_URL_SCHEMES = ("http://", "https://")

_AUTHORIZATION = b"authorization"

# The headers that a page of an allowed origin may send, in addition to `Mcp-Param-*` headers.
CORS_REQUEST_HEADERS = (
    "accept, authorization, content-type, last-event-id, mcp-method, mcp-name, "
    "mcp-protocol-version, mcp-session-id"
)


class EndpointSettings(Struct, frozen=True, kw_only=True):
    """The `[http]` settings that the endpoints need."""

    path: str = "/mcp"
    sse_path: str = "/sse"
    messages_path: str = "/messages"
    ws_path: str = "/ws"
    public_prefix: str = ""
    """The path of `http.public_url`, which a proxy removes from paths before it forwards them."""
    allowed_hosts: frozenset[str] = frozenset()
    """Host names of this gateway in addition to loopback ones, with or without a port."""
    allowed_origins: frozenset[str] = frozenset()
    max_body: int = 4 * 1024 * 1024
    max_receive_buffer: int = 256 * 1024 * 1024
    """How many bytes of bodies and WebSocket messages may be arriving, in total."""
    session_idle: float = 1800.0
    session_max_age: float = 86400.0
    max_sessions: int = 10_000
    max_sessions_per_principal: int | None = None
    """For this and the other limits per principal, None means no limit but the one in total."""
    max_streams: int = 10_000
    """How many HTTP+SSE streams and WebSockets may be open."""
    max_streams_per_principal: int | None = None
    max_buffered_bytes: int = 512 * 1024 * 1024
    """How many bytes of events are kept for clients that resume a stream."""
    max_buffered_bytes_per_principal: int | None = None
    max_in_flight: int = 16384
    max_in_flight_per_principal: int = 8192
    is_shared: bool = False
    """Whether several principals use the gateway, as they do with `[auth]`."""
    sse_ping_interval: float = 15.0
    """A stream that was silent for this many seconds gets a ping comment."""
    pings_per_turn: int = 64
    """How many streams are checked for pings before other tasks get a turn."""
    close_timeout: float = 1.0
    """How long clients have, in seconds, to read the last messages when the endpoints close."""

    @property
    def session_limits(self) -> SessionLimits:
        """The limits of the number of sessions."""
        return SessionLimits(
            self.max_sessions, self.max_sessions_per_principal or self.max_sessions
        )

    @property
    def public_messages_path(self) -> str:
        """The path to which clients of HTTP+SSE are told to POST."""
        return self.public_prefix + self.messages_path

    @property
    def messages_paths(self) -> tuple[str, ...]:
        """The paths of such POSTs: also those of clients that connect without the proxy."""
        return self.messages_path, self.public_messages_path

    def check_access(self, host: bytes | None, origin: bytes | None) -> tuple[int, str] | None:
        """Return the status and the reason if a request is rejected by its headers, else None."""
        if self.is_wrong_host(host):
            return 421, "this host is not served here; set http.public_url or http.allowed_hosts"
        if self.is_forbidden_origin(origin):
            return (
                403,
                "this origin is not allowed; if it should be, list it in http.allowed_origins",
            )
        return None

    def check_probe(self, host: bytes | None, origin: bytes | None) -> tuple[int, str] | None:
        """Check the headers of a request for a health page, where Host may be any IP address.

        Probes of Kubernetes name the address of the pod. DNS rebinding needs a name.
        """
        name = (host or b"").decode("latin-1")
        return self.check_access(b"localhost" if _is_ip_address(name) else host, origin)

    def is_wrong_host(self, host: bytes | None) -> bool:
        """Return whether the Host header names neither loopback nor an allowed host."""
        name = (host or b"").decode("latin-1").lower()  # latin-1 decodes any bytes
        return not _is_loopback(_without_port(name)) and not _is_listed(name, self.allowed_hosts)

    def is_forbidden_origin(self, origin: bytes | None) -> bool:
        """Return whether the Origin header names neither loopback nor an allowed origin."""
        if origin is None:
            return False
        name = origin.decode("latin-1").lower()
        if name in self.allowed_origins or "*" in self.allowed_origins:
            return False
        scheme = next((s for s in _URL_SCHEMES if name.startswith(s)), None)
        return scheme is None or not _is_loopback(_without_port(name.removeprefix(scheme)))


def check_repeated(repeated: frozenset[bytes]) -> tuple[int, str] | None:
    """Return the status and the reason if Host or Origin was sent twice, else None."""
    if b"host" in repeated or b"origin" in repeated:
        return 400, "expected one Host and at most one Origin header, got several"
    return None


def _without_port(name: str) -> str:
    host, colon, port = name.rpartition(":")
    return host if colon and port.isdigit() else name


def _is_ip_address(name: str) -> bool:
    try:
        ip_address(_without_port(name).removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_listed(name: str, hosts: Collection[str]) -> bool:
    return name in hosts or _without_port(name) in hosts or "*" in hosts


def cors_headers(origin: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    """Return the CORS headers that let a page of `origin` read a response."""
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
        (b"vary", b"origin"),
    )


def preflight_headers(requested: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    """Return the CORS headers of the response to a preflight request."""
    names = {name.strip() for name in (requested or b"").decode("latin-1").lower().split(",")}
    extra = sorted(name for name in names if name.startswith("mcp-param-"))
    allowed = ", ".join((CORS_REQUEST_HEADERS, *extra))
    return (
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", allowed.encode("latin-1")),
        (b"access-control-max-age", b"600"),
    )


class Challenge(Struct, frozen=True):
    """Why a request is not authenticated: the status, the reason, and response headers."""

    status: int
    reason: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Authenticator(Protocol):
    """Authenticates HTTP requests."""

    def cached_principal(self, request: HttpRequest) -> Principal | None:
        """Return the principal if the credentials are known already; called for every request."""
        ...

    async def authenticate(self, request: HttpRequest) -> Principal | Challenge:
        """Authenticate a request; this may take time, bounded by the implementation."""
        ...

    async def reauthenticate(self, request: HttpRequest) -> Principal | Challenge:
        """Authenticate the request of an open stream again; never refuses by a rate limit."""
        ...


_REMOTE_CLIENT = Challenge(
    403,
    "without [auth], only clients on this machine are served; add [auth], "
    "or set http.allow_remote_without_auth = true",
)


class AllowAll:
    """The authenticator without `[auth]`: accepts clients on this machine as the local user."""

    def __init__(self, *, allow_remote: bool = False) -> None:
        """Create it; with `allow_remote`, clients on other machines are accepted as well."""
        self._allow_remote = allow_remote

    def cached_principal(self, request: HttpRequest) -> Principal | None:
        """Return the local principal, or None for a client that is not accepted."""
        head, headers = request.head, request.head.headers
        # Nearly all requests; `bench.hop` shows what the checks below would cost.
        if (
            head.address == "127.0.0.1"
            and not head.repeated
            and b"x-forwarded-for" not in headers
            and b"forwarded" not in headers
        ):
            return LOCAL_PRINCIPAL
        is_local = is_loopback_address(head.address) and not names_remote_hop(headers)
        is_accepted = self._allow_remote or is_local
        return LOCAL_PRINCIPAL if is_accepted and _AUTHORIZATION not in head.repeated else None

    async def authenticate(self, request: HttpRequest) -> Principal | Challenge:
        """Return the local principal, or why the request is refused."""
        if _AUTHORIZATION in request.repeated:
            return Challenge(400, "expected one Authorization header, got several")
        return self.cached_principal(request) or _REMOTE_CLIENT

    async def reauthenticate(self, request: HttpRequest) -> Principal | Challenge:
        """Do as `authenticate` does."""
        return await self.authenticate(request)


# The status of an authenticator that cannot decide now; open streams stay open.
AUTH_UNAVAILABLE = 503


class OpenStream(Struct):
    """A stream or WebSocket that stays open until one side closes it."""

    request: HttpRequest
    """The request that opened it, with its credentials."""
    principal: Principal
    is_closed: Callable[[], bool]
    close: Callable[[], None]
    is_checking: bool = False


class StreamReauthenticator:
    """Authenticates the owners of open streams again and again."""

    def __init__(self) -> None:
        self._streams: list[OpenStream] = []

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: OpenStream) -> None:
        """Watch a stream until it is closed."""
        self._streams.append(stream)

    def unconfirmed(self, authenticator: Authenticator) -> list[OpenStream]:
        """Return the streams whose credentials are no longer known; forget closed streams."""
        self._streams = [stream for stream in self._streams if not stream.is_closed()]
        return [
            stream
            for stream in self._streams
            if not stream.is_checking
            and authenticator.cached_principal(stream.request) != stream.principal
        ]

    async def check(self, stream: OpenStream, authenticator: Authenticator) -> None:
        """Authenticate a stream again; close it unless the principal and its roles are the same."""
        stream.is_checking = True
        try:
            result = await authenticator.reauthenticate(stream.request)
        finally:
            stream.is_checking = False
        # An unreachable key server is no reason to disconnect a client.
        is_unavailable = isinstance(result, Challenge) and result.status == AUTH_UNAVAILABLE
        if result != stream.principal and not is_unavailable and not stream.is_closed():
            stream.close()
