"""The events of session protocol streams, stored for clients that resume them."""

from collections import OrderedDict

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage

_KEPT = 1000


class Events(EventStore):
    """The last events of all streams, numbered by their ids."""

    def __init__(self) -> None:
        self._events: OrderedDict[int, tuple[str, JSONRPCMessage | None]] = OrderedDict()
        self._last = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store an event and drop the oldest one."""
        self._last += 1
        self._events[self._last] = (stream_id, message)
        if len(self._events) > _KEPT:
            self._events.popitem(last=False)
        return str(self._last)

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Send the events after this one on the same stream."""
        last = int(last_event_id) if last_event_id.isdecimal() else 0
        if last not in self._events:
            return None
        stream = self._events[last][0]
        for number, (where, message) in list(self._events.items()):
            if number > last and where == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
