"""Metadata: what a client must know to get a token for us, and how it is told (RFC 9728, RFC 6750).

    401 ──> WWW-Authenticate: Bearer resource_metadata=URL ──> GET URL ──> authorization servers

Refuses to give out tokens: that is the authorization server's.

Rules upheld here:
1. A request without credentials is told no error, for it has made none; RFC 6750, 3.
2. Nothing of what a client sent is in an answer, but the name of the host that it asked for, which
   the door has checked.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from trunkline.auth.proof import Fault
from trunkline.transports.exchange import HttpRequest
from trunkline.transports.http_guard import Challenge, Page, Pages

WELL_KNOWN = "/.well-known/oauth-protected-resource"

_STATUS: Mapping[Fault, int] = {
    "invalid_request": 400,
    "invalid_token": 401,
    "insufficient_scope": 403,
    "unavailable": 503,
}
_QUOTED = str.maketrans({'"': "'", "\\": "/"})


class Resource(Struct, frozen=True, kw_only=True):
    """What we are, as those who give out tokens for us see it."""

    url: str | None = None
    """Where clients reach us; as they do, unless set."""
    path: str = "/mcp"
    secure: bool = False
    """Whether clients come by TLS, for when there is no url."""
    servers: tuple[str, ...] = ()
    """Who gives out tokens for us."""
    scopes: tuple[str, ...] = ()

    def pages(self) -> Pages:
        """Return what is to be read about us, and where."""
        paths = {self.path, urlsplit(self.url).path if self.url else self.path}
        below = [WELL_KNOWN + path for path in sorted(paths) if path.strip("/")]
        return dict.fromkeys([WELL_KNOWN, *below], self.page)

    def page(self, request: HttpRequest) -> Page:
        """Say what we are and who gives out tokens for us."""
        about = {
            "resource": self.url or self._origin(request) + self.path,
            "authorization_servers": self.servers,
            "scopes_supported": self.scopes,
            "bearer_methods_supported": ("header",),
            "resource_name": "Trunkline",
        }
        body = msgspec.json.encode({key: value for key, value in about.items() if value})
        kept = b"max-age=300" if self.url else b"no-store"
        headers = ((b"content-type", b"application/json"), (b"cache-control", kept))
        return Page(200, headers, body)

    def challenge(self, request: HttpRequest, why: str, fault: Fault | None = None) -> Challenge:
        """Say why somebody is not let in, and where to learn what would help."""
        if fault == "unavailable":
            return Challenge(503, why, ((b"retry-after", b"5"),))
        told = {"resource_metadata": self._metadata_url(request), "scope": " ".join(self.scopes)}
        if fault is not None:
            told |= {"error": fault, "error_description": why.translate(_QUOTED)}
        line = ", ".join(f'{key}="{value}"' for key, value in told.items() if value)
        header = (b"www-authenticate", f"Bearer {line}".encode("ascii", "replace"))
        return Challenge(_STATUS[fault] if fault else 401, why, (header,))

    def _metadata_url(self, request: HttpRequest) -> str:
        if self.url is None:
            below = self.path if self.path.strip("/") else ""
            return f"{self._origin(request)}{WELL_KNOWN}{below}"
        parts = urlsplit(self.url)
        below = parts.path if parts.path.strip("/") else ""
        return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{below}"

    def _origin(self, request: HttpRequest) -> str:
        host = request.headers.get(b"host", b"localhost").decode("latin-1").translate(_QUOTED)
        return f"{'https' if self.secure else 'http'}://{host}"
