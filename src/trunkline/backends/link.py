"""Link: a way to speak to one server, whatever carries it.

    stdio, HTTP+SSE … ──> Channel ──> ChannelLink ──┐
                                                    ├──> Remote, EnvelopeRemote
    Streamable HTTP ──────────────> Streamable ─────┘

Refuses to know what is said. What the server says on a call's own stream goes to the handler of
that call; what it says elsewhere, to the link's: where calls have no streams, that is everything.
"""

import asyncio
from typing import Any, Protocol

from trunkline.jsonrpc import Channel, Connection, Due, Handler, Id, IdRemapper, Peer, Raw
from trunkline.jsonrpc.incident import Report, print_incident
from trunkline.routing.call import withdrawal
from trunkline.transports.exchange import Headers
from trunkline.transports.http_asked import Anew

GRACE = 0.5
"""How long, in seconds, what the server asked may still be answered when the conversation ends."""


class Link(Protocol):
    """A way to ask and to tell one server."""

    @property
    def has_streams(self) -> bool:
        """Tell whether what the server says in the course of a call can be told from the rest."""
        ...

    def call(
        self,
        method: str,
        params: Raw,
        *,
        original_id: Id = None,
        handler: Handler | None = None,
        headers: Headers = (),
        anew: Anew | None = None,
    ) -> Due:
        """Ask; `headers` are for whoever carries it by HTTP, and `anew` if sessions can be lost.

        Raises RpcError or ConnectionLost, at once or when awaited.
        """
        ...

    async def notify(self, method: str, params: Any) -> None:
        """Tell; raises ConnectionLost."""
        ...

    def opened(self, version: str, handler: Handler) -> None:
        """Learn that a session has begun, and who hears what comes outside of its calls."""
        ...

    def cancel(self, request_id: object) -> None:
        """Stop answering what the server asked, since it does not want to know any more."""
        ...

    async def wait_ended(self) -> None:
        """Wait until the server cannot be spoken to any more."""
        ...

    async def aclose(self) -> None:
        """End it, and leave nothing behind."""
        ...


class ChannelLink:
    """A server behind a Channel: everything that it says comes the same way."""

    has_streams = False

    def __init__(
        self,
        channel: Channel,
        name: str,
        remapper: IdRemapper,
        handler: Handler,
        report: Report = print_incident,
    ) -> None:
        """Begin to listen; `name` is what the remapper knows the server by."""
        peer = Peer(name, remapper, answer_violations=False)
        self._connection = Connection(
            channel, handler, peer, withdrawal=withdrawal, report=report, grace=GRACE
        )
        self._running = asyncio.create_task(self._connection.run())

    def call(
        self,
        method: str,
        params: Raw,
        *,
        original_id: Id = None,
        handler: Handler | None = None,
        headers: Headers = (),
        anew: Anew | None = None,
    ) -> Due:
        """Ask."""
        return self._connection.ask(method, params, original_id=original_id)

    async def notify(self, method: str, params: Any) -> None:
        """Tell."""
        await self._connection.notify(method, params)

    def opened(self, version: str, handler: Handler) -> None:
        """Nothing changes by that."""

    def cancel(self, request_id: object) -> None:
        """Stop answering what the server asked, since it does not want to know any more."""
        self._connection.cancel(request_id)

    async def wait_ended(self) -> None:
        """Wait until the server has ended the conversation."""
        await self._connection.wait_ended()

    async def aclose(self) -> None:
        """End the conversation."""
        await self._connection.aclose()
        await self._running
