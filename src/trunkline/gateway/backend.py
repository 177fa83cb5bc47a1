"""Backend: anything that answers calls, and Listener: whoever hears what it says besides.

They are declared here, where they are used; what they are in fact is nobody's concern here.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from trunkline.gateway.client import Asker, Client
from trunkline.jsonrpc import Due, Raw
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.offer import Offer
from trunkline.routing.call import Call


class Listener(Protocol):
    """Whoever hears what a backend says outside of any call."""

    def offers_changed(self, capability: str) -> None:
        """Learn that the backend offers other tools, prompts or resources."""
        ...

    def session_renewed(self) -> None:
        """Learn that the conversation has begun anew: the backend knows nothing of the old one."""
        ...

    async def told(self, method: str, params: Any) -> None:
        """Learn what the backend tells everybody."""
        ...

    async def asked(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Answer what the backend asks of nobody in particular."""
        ...


class Backend(Protocol):
    """Anything that answers calls."""

    @property
    def version(self) -> str:
        """The revision it speaks."""
        ...

    @property
    def capabilities(self) -> dict[str, Any]:
        """What it declared."""
        ...

    @property
    def declared(self) -> frozenset[str] | None:
        """What it was told that it may ask; None, if it never asks on the way."""
        ...

    @property
    def tells_calls_apart(self) -> bool:
        """Tell whether it is known of every question which call it belongs to."""
        ...

    def waits_since(self, client: Client) -> float | None:
        """Return since when it waits for a client to answer what it asked; None if it does not.

        By the clock of the running loop; what it asked last counts.
        """
        ...

    @property
    def freshness(self) -> Freshness:
        """For how long, and by whom, its lists may be kept."""
        ...

    @property
    def left_out(self) -> tuple[str, ...]:
        """What nobody could use of what it last listed, and why."""
        ...

    async def offers(self) -> tuple[Offer, ...]:
        """List all that it offers."""
        ...

    def call(self, call: Call, client: Client) -> Due:
        """Carry out a call; raises RpcError or ConnectionLost, or that is what comes of it."""
        ...

    async def tell(self, method: str, params: Any) -> None:
        """Pass on a notification."""
        ...

    async def ping(self) -> None:
        """Find out whether it is there; raises RpcError or ConnectionLost."""
        ...

    async def follow(self, uri: str) -> None:
        """Have it tell whenever a resource changes; raises RpcError if it will not."""
        ...

    async def unfollow(self, uri: str) -> None:
        """Have it tell no more of a resource."""
        ...

    async def set_level(self, level: str) -> None:
        """Have it log what is at least so grave."""
        ...

    async def wait_ended(self) -> None:
        """Wait until it has ended."""
        ...

    async def aclose(self) -> None:
        """End it, and leave nothing behind."""
        ...


class Owner(Listener, Protocol):
    """Whoever opens a backend."""

    @property
    def declares(self) -> dict[str, Any] | None:
        """What the backend is told that clients can be asked; None for whatever it is by now."""
        ...


Connect: TypeAlias = Callable[[Owner], Awaitable[Backend]]
"""Starts a backend and shakes hands with it."""
