"""The events of the handshake era's streams, kept for clients that come back for them."""

from collections import OrderedDict

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage

_KEPT = 1000


class Events(EventStore):
    """The last events of all streams; their ids are their numbers."""

    def __init__(self) -> None:
        self._events: OrderedDict[int, tuple[str, JSONRPCMessage | None]] = OrderedDict()
        self._last = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event, and forget the oldest one."""
        self._last += 1
        self._events[self._last] = (stream_id, message)
        if len(self._events) > _KEPT:
            self._events.popitem(last=False)
        return str(self._last)

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Send what came after an event on the same stream."""
        last = int(last_event_id) if last_event_id.isdecimal() else 0
        if last not in self._events:
            return None
        stream = self._events[last][0]
        for number, (where, message) in list(self._events.items()):
            if number > last and where == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
