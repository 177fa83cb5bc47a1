"""Channel: the waist of everything. It carries whole payloads, and that is all it does.

stdio, a TCP connection, a WebSocket, one HTTP exchange: each is a Channel once it can receive, send
and close. So is a `pipe()`, whose two ends are joined in memory: for tests, and for programs whose
two halves speak JSON-RPC without a network between them.
"""

import asyncio
from collections import deque
from typing import Protocol

from trunkline.jsonrpc.errors import ConnectionLost

PIPE_CAPACITY = 64
"""How many payloads an end of a pipe accepts before `send` waits for the other end to read."""


class Channel(Protocol):
    """Carries payloads both ways, whole and in order.

    One that can often take a payload without waiting may also have `offer(payload, others)`, which
    takes it and returns True, or returns False and has done nothing: then it is sent. `others` says
    how many calls are under way beside it: without any it need not wait for what may follow.

    One that need not be asked whether something has come may have `deliver(take)`: from then on it
    calls `take` with each payload before which nothing waits to be received. That returns True, or
    returns False and has done nothing: then the payload is received.
    """

    async def receive(self) -> bytes | None:
        """Return the next payload, or None when no more will come.

        Raises RemoteProtocolError for what is no payload (a line too long, say) if the channel is
        still good afterwards, and ConnectionLost if it is not.
        """
        ...

    async def send(self, payload: bytes) -> None:
        """Take a payload at once, then wait until there is room for another.

        Cancelling it cancels the waiting, never the payload. Raises ConnectionLost.
        """
        ...

    async def aclose(self) -> None:
        """Release everything; a `receive` that waits returns None. May be called twice."""
        ...


def pipe(capacity: int = PIPE_CAPACITY) -> tuple[Channel, Channel]:
    """Return two channels: what one sends, the other receives."""
    there, back = _Lane(capacity), _Lane(capacity)
    return _PipeEnd(back, there), _PipeEnd(there, back)


class _Lane:
    """One direction of a pipe."""

    def __init__(self, capacity: int) -> None:
        self._payloads: deque[bytes] = deque()
        self._capacity = capacity
        self._closed = False
        self._changed = asyncio.Event()

    async def put(self, payload: bytes) -> None:
        if self._closed:
            raise ConnectionLost("the pipe is closed")
        self._payloads.append(payload)
        self._change()
        while len(self._payloads) > self._capacity and not self._closed:
            await self._changed.wait()

    async def take(self) -> bytes | None:
        while not self._payloads and not self._closed:
            await self._changed.wait()
        payload = self._payloads.popleft() if self._payloads else None
        self._change()
        return payload

    def close(self, drop: bool) -> None:
        self._closed = True
        if drop:
            self._payloads.clear()
        self._change()

    def _change(self) -> None:
        """Wake all who wait; those who come later wait for the next change."""
        self._changed.set()
        self._changed = asyncio.Event()


class _PipeEnd:
    """One end of a pipe."""

    def __init__(self, inbound: _Lane, outbound: _Lane) -> None:
        self._inbound = inbound
        self._outbound = outbound

    async def receive(self) -> bytes | None:
        return await self._inbound.take()

    async def send(self, payload: bytes) -> None:
        await self._outbound.put(payload)

    async def aclose(self) -> None:
        # What was sent before can still be read at the other end; what was not read here is gone.
        self._outbound.close(drop=False)
        self._inbound.close(drop=True)
