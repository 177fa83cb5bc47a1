"""Transport: carries whole payloads in both directions, and does nothing else.

stdio, a TCP connection, a WebSocket and one HTTP request are each a Transport. Each end of a
memory_pipe() is one too, for tests and for programs whose two halves speak JSON-RPC without a
network.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from trunkline.jsonrpc.errors import ConnectionLost

# How many unread payloads an end of a pipe accepts before `send` waits.
PIPE_CAPACITY = 64


class Transport(Protocol):
    """Carries whole payloads both ways and in order.

    A transport may have three more methods. The first two save the connection a task switch:

    - `try_send(payload, in_flight) -> bool` takes a payload without waiting and returns True, or
      does nothing and returns False. `in_flight` is the number of other calls in flight; at 0 the
      transport has no reason to delay the payload and combine it with the next.
    - `set_receiver(receiver)` makes the transport call `receiver(payload)` for each payload that
      arrives while no earlier one waits. If that returns False, the payload waits for `receive`.
    - `end_reason() -> str | None` returns why the stream has ended, if that is known; the errors of
      lost calls say it.
    """

    async def receive(self) -> bytes | None:
        """Return the next payload, or None at the end of the stream.

        Raises RemoteProtocolError for input that is not a payload (such as a line that is too long)
        if the transport can go on, and ConnectionLost if it cannot.
        """
        ...

    async def send(self, payload: bytes) -> None:
        """Take a payload immediately, then wait until there is room for another.

        Cancelling it cancels the wait, never the payload. Raises ConnectionLost.
        """
        ...

    async def aclose(self) -> None:
        """Release everything; a waiting `receive` returns None. May be called twice."""
        ...


def read_end_reason(transport: Transport) -> str | None:
    """Return why the stream of a transport has ended, if it knows."""
    end_reason: Callable[[], str | None] | None = getattr(transport, "end_reason", None)
    return None if end_reason is None else end_reason()


def memory_pipe(capacity: int = PIPE_CAPACITY) -> tuple[Transport, Transport]:
    """Return two transports; each receives what the other sends."""
    forward, backward = _PayloadQueue(capacity), _PayloadQueue(capacity)
    return _PipeEnd(backward, forward), _PipeEnd(forward, backward)


class _PayloadQueue:
    def __init__(self, capacity: int) -> None:
        self._payloads: deque[bytes] = deque()
        self._capacity = capacity
        self._closed = False
        self._changed = asyncio.Event()

    async def put(self, payload: bytes) -> None:
        if self._closed:
            raise ConnectionLost("the pipe is closed")
        self._payloads.append(payload)
        self._wake_waiters()
        while len(self._payloads) > self._capacity and not self._closed:
            await self._changed.wait()

    async def get(self) -> bytes | None:
        while not self._payloads and not self._closed:
            await self._changed.wait()
        payload = self._payloads.popleft() if self._payloads else None
        self._wake_waiters()
        return payload

    def close(self, drop: bool) -> None:
        self._closed = True
        if drop:
            self._payloads.clear()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        # A new event: tasks that wait later must wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()


class _PipeEnd:
    def __init__(self, inbound: _PayloadQueue, outbound: _PayloadQueue) -> None:
        self._inbound = inbound
        self._outbound = outbound

    async def receive(self) -> bytes | None:
        return await self._inbound.get()

    async def send(self, payload: bytes) -> None:
        await self._outbound.put(payload)

    async def aclose(self) -> None:
        # The other end can still read what was sent; unread input of this end is dropped.
        self._outbound.close(drop=False)
        self._inbound.close(drop=True)
