"""A guarded gateway for tests, and clients that say who they are."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, Clock, token
from tests.gateway.servers import Server
from tests.http_client import Reply, Site, site
from trunkline.auth.claims import Expected
from trunkline.auth.guard import TellAway, TokenGuard
from trunkline.auth.key_sets import SharedSecret
from trunkline.auth.metadata import Resource
from trunkline.auth.signatures import secret_key
from trunkline.auth.verifier import JwtVerifier, Verifier
from trunkline.gateway.events import TurnedAway
from trunkline.gateway.gateway import Gateway


class As(Site):
    """The same gateway, as one principal sees it."""

    def __init__(self, here: Site, made: str) -> None:
        vars(self).update(vars(here))
        self.token = made

    async def send(
        self, body: Any = None, method: str = "POST", path: str = "/mcp", **headers: str | None
    ) -> Reply:
        mine: dict[str, Any] = {"authorization": f"Bearer {self.token}", **headers}
        return await super().send(body, method, path, **mine)


class Guarded:
    """A gateway that asks everybody, and its clock."""

    def __init__(self, here: Site, clock: Clock) -> None:
        self.here = here
        self.clock = clock
        self.told: list[TurnedAway] = []

    def client(self, subject: str = "ada", **claims: Any) -> As:
        return As(self.here, token(sub=subject, **claims))


def nobody(address: str, why: str) -> None:
    """Tell nobody."""


def guard_of(
    clock: Clock, tell: TellAway = nobody, *scopes: str, most: int = 100_000
) -> TokenGuard:
    expected = Expected(issuer=ISSUER, audiences=frozenset((AUDIENCE,)), scopes=frozenset(scopes))
    tokens = JwtVerifier(expected, SharedSecret(secret_key(SECRET)))
    resource = Resource(servers=(ISSUER,), scopes=scopes)
    return TokenGuard(Verifier(tokens, clock=clock), resource, most, tell)


@asynccontextmanager
async def guarded(
    made: Gateway, *servers: Server, scopes: tuple[str, ...] = (), most: int = 100_000, **rules: Any
) -> AsyncGenerator[Guarded]:
    """Put a gateway behind a socket and a guard."""
    async with site(made, *servers, **rules) as here:
        house = Guarded(here, Clock())

        def tell(address: str, why: str) -> None:
            house.told.append(TurnedAway(address, why))

        here.door.guard = guard = guard_of(house.clock, tell, *scopes, most=most)
        here.door.pages = guard.resource.pages()
        yield house


def real_claims(**claims: Any) -> dict[str, Any]:
    """Return claims of now, for gateways whose clock is the real one."""
    now = int(time.time())
    return {"iat": now, "exp": now + 3600, **claims}
