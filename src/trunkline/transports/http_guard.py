"""Guard: who makes sure of those who come by HTTP, as the door sees it.

    request ──recognise──> a Principal, at once      ──identify──> a Principal, or a Challenge

Refuses to know what proves anything: tokens and keys are those of whoever implements it.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from msgspec import Struct

from trunkline.mcp.principal import LOCAL, Principal
from trunkline.transports.exchange import Fields, HttpRequest


class Challenge(Struct, frozen=True):
    """Why somebody is not let in, and what would help: 401, or 403 for one who may not."""

    status: int
    why: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Guard(Protocol):
    """Makes sure of who is asking."""

    def recognise(self, request: HttpRequest) -> Principal | None:
        """Return who sent a request, if that is known already; on the path of every call."""
        ...

    async def identify(self, request: HttpRequest) -> Principal | Challenge:
        """Find out who sent a request, however long that takes within its own limits."""
        ...


class Open:
    """A guard that asks nobody who they are."""

    def recognise(self, request: HttpRequest) -> Principal | None:
        """Take everybody for the same one."""
        return LOCAL

    async def identify(self, request: HttpRequest) -> Principal | Challenge:
        """Take everybody for the same one."""
        return LOCAL


class Page(Struct, frozen=True):
    """What is to be read at one path, beside MCP."""

    status: int
    headers: Fields
    body: bytes


Pages: TypeAlias = dict[str, Callable[[HttpRequest], Page]]
"""What is to be read at which path, by whoever comes: such as what a resource needs as a token."""
