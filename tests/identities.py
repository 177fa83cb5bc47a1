"""A gateway with authentication for tests, and its clients."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, Clock, token
from tests.gateway.servers import Server
from tests.http_client import GatewaySite, HttpReply, site
from trunkline.auth.authenticator import ProtectedResource, RejectionListener, TokenAuthenticator
from trunkline.auth.claims import ClaimsValidator
from trunkline.auth.key_sets import SharedSecret
from trunkline.auth.signatures import secret_key
from trunkline.auth.tokens import JwtVerifier, TokenVerifier
from trunkline.gateway.events import AuthRejected
from trunkline.gateway.gateway import Gateway


class AuthenticatedSite(GatewaySite):
    """A site whose requests carry the token of one principal."""

    def __init__(self, site: GatewaySite, token: str) -> None:
        vars(self).update(vars(site))
        self.token = token

    async def send(
        self, body: Any = None, method: str = "POST", path: str = "/mcp", **headers: str | None
    ) -> HttpReply:
        mine: dict[str, Any] = {"authorization": f"Bearer {self.token}", **headers}
        return await super().send(body, method, path, **mine)


class AuthenticatedGateway:
    """A site with authentication, its clock, and the rejections that it reported."""

    def __init__(self, site: GatewaySite, clock: Clock) -> None:
        self.site = site
        self.clock = clock
        self.rejections: list[AuthRejected] = []

    def client(self, subject: str = "ada", **claims: Any) -> AuthenticatedSite:
        return AuthenticatedSite(self.site, token(sub=subject, **claims))


def ignore_rejection(address: str, reason: str) -> None:
    """Do nothing."""


def make_authenticator(
    clock: Clock,
    on_rejected: RejectionListener = ignore_rejection,
    *scopes: str,
    max_failures: int = 100_000,
) -> TokenAuthenticator:
    validator = ClaimsValidator(
        issuer=ISSUER, audiences=frozenset((AUDIENCE,)), scopes=frozenset(scopes)
    )
    tokens = JwtVerifier(validator, SharedSecret(secret_key(SECRET)))
    resource = ProtectedResource(authorization_servers=(ISSUER,), scopes=scopes)
    return TokenAuthenticator(
        TokenVerifier(tokens, clock=clock), resource, max_failures, on_rejected
    )


@asynccontextmanager
async def authenticated_gateway(
    gateway: Gateway,
    *servers: Server,
    scopes: tuple[str, ...] = (),
    max_failures: int = 100_000,
    **settings: Any,
) -> AsyncGenerator[AuthenticatedGateway]:
    """Put a gateway here a socket and an authenticator."""
    async with site(gateway, *servers, **settings) as here:
        guarded = AuthenticatedGateway(here, Clock())

        def on_rejected(address: str, reason: str) -> None:
            guarded.rejections.append(AuthRejected(address, reason))

        here.router.authenticator = authenticator = make_authenticator(
            guarded.clock, on_rejected, *scopes, max_failures=max_failures
        )
        here.router.pages = authenticator.resource.pages()
        yield guarded


def current_claims(**claims: Any) -> dict[str, Any]:
    """Return claims that are valid now, for gateways with a real clock."""
    now = int(time.time())
    return {"iat": now, "exp": now + 3600, **claims}
