"""Sender: the way out of a Connection, bounded in what waits and in how long it may take.

Refuses to know what it sends, and to lose any of it while the channel lasts.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from trunkline.jsonrpc.channel import Channel
from trunkline.jsonrpc.errors import ConnectionLost
from trunkline.jsonrpc.peer import Peer

MAX_BACKLOG = 256
"""How many payloads may wait to be sent before this side stops reading, and callers wait."""


class Sender:
    """Sends what the peer has to say: one payload at a time, by whoever comes first.

    There is no task for it: who flushes first sends what waits by then, so that the usual answer
    leaves from where it was made, without a switch of tasks. Only what is added while it sends, or
    left when it is cancelled, gets a task: nobody shall be kept from its own answer by others.
    """

    def __init__(
        self,
        peer: Peer,
        channel: Channel,
        timeout: float,
        give_up: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._peer = peer
        self._channel = channel
        self._timeout = timeout
        self._give_up = give_up
        self._spawn = spawn
        self._room = asyncio.Event()
        self._sending = False
        self._idle = asyncio.Event()
        """Set when nobody is sending, for those who wait for that."""
        self._idle.set()
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue = peer.queue
        self._offer: Callable[[bytes, int], bool] = getattr(channel, "offer", _refuse)

    def push(self, others: int = 1) -> None:
        """Send all that waits without waiting, as far as the channel takes it; the rest follows.

        `others` are under way, and the more there are, the sooner something may follow.
        """
        if self._sending:
            return
        queue = self._queue
        while queue:
            payload = queue.popleft()
            if not self._offer(payload, others):
                self._peer.hold_back(payload)
                self._spawn(self.flush())
                return

    async def flush(self) -> None:
        """Send all that waits, or leave it to the one who is sending; wait while it is too much."""
        if self._sending:
            if len(self._queue) >= MAX_BACKLOG:
                self._room.clear()
                await self._room.wait()
            return
        share = len(self._queue)
        if not share:
            return
        self._sending = True
        self._idle.clear()
        try:
            while share and (payload := self._peer.outgoing()) is not None:
                share -= 1
                self._watch()
                await self._channel.send(payload)
                if len(self._queue) < MAX_BACKLOG:
                    self._room.set()
        except (ConnectionLost, OSError) as why:
            self._give_up(str(why))
        finally:
            self._sending = False
            self._idle.set()
            if self._queue:
                self._spawn(self.flush())
            else:
                self._room.set()

    async def finish(self) -> None:
        """Wait until nothing is left to send."""
        while self._queue or self._sending:
            await self.flush()
            await self._idle.wait()

    def close(self) -> None:
        """Stop watching, and wake all who wait for room: nothing will be sent any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._room.set()

    def _watch(self) -> None:
        """See to it that a payload is sent in time: one timer for all, since most take no time."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        self._began = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._sending:
            return
        loop = asyncio.get_running_loop()
        left = self._began + self._timeout - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._check)
        else:
            self._give_up(f"the other side has not read for {self._timeout:g} s")


def _refuse(_payload: bytes, _others: int) -> bool:
    """Stand in for a channel that takes nothing without waiting."""
    return False
