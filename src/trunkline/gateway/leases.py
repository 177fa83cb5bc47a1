"""Leases: whose question it is, where a server cannot say which call it asks about.

    a call in whose course a server may ask ──> a conversation that is its party's alone
                                            ──> … another one, opened for it, if there may be more
                                            ──> … or the queue, until one is free

A server of the handshake era asks on the one line that it has. So in a conversation in which it was
told that it may ask something, there are only calls of one party at a time. All clients that cannot
be asked anything are one party: whatever a server asks about their calls is refused.

Where a server can say which call it asks about, a conversation is for all who can be asked the
same: it was told the truth about each of them. They never wait for long: if there are too many
kinds of them, some have the first conversation, in which the server was told of others.

Refuses to know what a conversation is: it is given ways to open and to close one.

Rules upheld here:
1. In a conversation in which something may be asked there are calls of one party at a time.
2. Whoever waits is served in turn; of those that need another kind of conversation, too.
3. What cannot be begun in a conversation since that has ended is begun in another one.
4. What a server was answered and may keep, such as roots, nobody else's calls come to know.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from trunkline.gateway.client import Client
from trunkline.jsonrpc import ConnectionLost, Due, LineEnded, due

T = TypeVar("T")

IDLE = 60.0
"""How long, in seconds, a conversation that nobody needs is kept."""

PAUSE = 5.0
"""How long, in seconds, none is opened after one could not be."""

CROWDED = "all conversations with it wait for answers of other clients (see max_conversations)"


class Kind(NamedTuple):
    """For whom a conversation is: for those who can be asked the same."""

    can: frozenset[str]
    """What they can be asked."""
    owner: Client | str | None = None
    """Whose it is, where a server may keep what it was answered: a client, or a principal's id."""


NOBODY = object()
"""The party of all who cannot be asked anything."""

ANYBODY = object()
"""The party of all, where a server can say which call it asks about."""


class Crowded(ConnectionLost):
    """It was not the server who took so long."""

    excused = True


class Room(Generic[T]):
    """One conversation, and the party that has it."""

    def __init__(self, held: T, kind: Kind, *, first: bool = False) -> None:
        self.held = held
        self.kind = kind
        """What the server was told that it may ask, and of whom."""
        self.first = first
        self.party: object | None = None
        self.calls = 0
        self.free_since = 0.0

    def suits(self, party: object, kind: Kind) -> bool:
        """Tell whether it is meant for such calls.

        The first one is there for all, unless no question at all may be asked in it: then it is
        left to those who cannot be asked any.
        """
        if self.first and party is not ANYBODY:
            return bool(self.kind.can) or party is NOBODY
        return self.kind == kind

    def fits(self, party: object, kind: Kind) -> bool:
        """Tell whether a party may use it now."""
        return (self.party is None or self.party is party) and self.suits(party, kind)


class _Waiting(NamedTuple):
    party: object
    kind: Kind
    begin: Callable[[Any], Awaitable[Any]]


class Leases(Generic[T]):
    """The conversations with one server."""

    def __init__(
        self,
        most: int,
        open: Callable[[Kind], Awaitable[T]],
        close: Callable[[T], Awaitable[None]],
    ) -> None:
        """Begin without any; `most` is how many there may be beside the first one."""
        self._most = most
        self._open = open
        self._close = close
        self._rooms: list[Room[T]] = []
        self._queue: dict[Due, _Waiting] = {}
        self._opening: asyncio.Task[None] | None = None
        self._pause_until = 0.0
        self._keeper: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> list[T]:
        """All conversations, the first one among them."""
        return [room.held for room in self._rooms]

    def held_for(self, owner: Client) -> list[T]:
        """Return the first conversation, and those that are one client's own."""
        return [room.held for room in self._rooms if room.first or room.kind.owner is owner]

    @property
    def extra(self) -> int:
        """How many conversations there are beside the first."""
        return sum(not room.first for room in self._rooms)

    def adopt(self, most: int) -> None:
        """Let there be more conversations, or less: those that nobody needs are closed."""
        self._most = most
        while self.extra > most and self._close_one():
            pass
        if self._queue:
            self._next()

    def settle_in(self, first: T, kind: Kind) -> None:
        """Take the first conversation."""
        self._rooms.insert(0, Room(first, kind, first=True))

    def take(
        self, party: object, kind: Kind, begin: Callable[[T], Awaitable[Any]], *, urgent: bool
    ) -> Due:
        """Have a call begun in a conversation that is `party`'s alone, now or later.

        Whoever has a conversation may go on to use it, unless others wait; what is `urgent` need
        not care: the end of another call depends on it.
        """
        party = self._party(party, kind)
        for room in list(self._rooms):
            if room.fits(party, kind) and (urgent or room.party is None or not self._queue):
                try:
                    return self._begin(room, party, begin)
                except ConnectionLost:
                    if room.first:
                        raise  # the others end with it
                    self._leave(room)  # it has ended, and nothing was begun
        if party is ANYBODY and not self._may_open():
            return self._begin(self._rooms[0], party, begin)
        turn = Due()
        self._queue[turn] = _Waiting(party, kind, begin)
        turn.then(self._left)
        self._open_another()
        return turn

    def _party(self, party: object, kind: Kind) -> object:
        """Return as whom a call is made: nobody is asked where nobody ever could be."""
        if party is ANYBODY or any(room.suits(party, kind) for room in self._rooms):
            return party
        paused = asyncio.get_running_loop().time() < self._pause_until
        return NOBODY if paused or not self._most else party

    def _begin(self, room: Room[T], party: object, begin: Callable[[T], Awaitable[Any]]) -> Due:
        doing: Due = due(begin(room.held))
        room.party = party
        room.calls += 1
        doing.then(lambda _: self._ended(room))
        return doing

    def _left(self, turn: Due) -> None:
        if self._queue.pop(turn, None) is not None and isinstance(turn.error, TimeoutError):
            turn.error = Crowded(CROWDED)

    def _ended(self, room: Room[T]) -> None:
        room.calls -= 1
        if not room.calls:
            room.party = None
            room.free_since = asyncio.get_running_loop().time()
            self._next()
            self._keep_house()

    def _next(self) -> None:
        """Let those begin for whom there is a conversation now, in their order."""
        longest = next(iter(self._queue.values()), None)
        if longest and not any(room.suits(longest.party, longest.kind) for room in self._rooms):
            self._open_another()  # first: or others would take what is to make room for it
        for turn in list(self._queue):
            waiting = self._queue.get(turn)
            if waiting is not None and self._free_for(waiting) is not None:
                self._begin_queued(turn, waiting)
        if self._queue:
            self._open_another()

    def _free_for(self, waiting: _Waiting) -> Room[T] | None:
        room = next((r for r in self._rooms if r.fits(waiting.party, waiting.kind)), None)
        if room is None and waiting.party is ANYBODY and not self._may_open():
            return self._rooms[0]
        return room

    def _begin_queued(self, turn: Due, waiting: _Waiting) -> None:
        """Begin what has waited; from now on to stop it is to stop what is being done."""
        del self._queue[turn]
        while (room := self._free_for(waiting)) is not None:
            try:
                doing = self._begin(room, waiting.party, waiting.begin)
            except Exception as why:
                if room.first or not isinstance(why, ConnectionLost):
                    turn.fail(why)
                    return
                self._leave(room)
            else:
                turn.stop_by(partial(_stop, doing))
                doing.then(turn.follow)
                return
        self._queue = {turn: waiting, **self._queue}  # it has waited longest

    # Opening and closing

    async def prepare(self, kind: Kind) -> None:
        """Open a conversation for those who can be asked this, unless there is one, or too many.

        One that has no owner is there to be looked at, where only owners have use for one.
        """
        while self._opening is not None:
            await asyncio.wait({self._opening})
        loop = asyncio.get_running_loop()
        if not self._rooms or len(self._rooms) > self._most or loop.time() < self._pause_until:
            return
        if not any(room.suits(None, kind) or room.kind.can == kind.can for room in self._rooms):
            opening = self._opening = loop.create_task(self._open_room(kind))
            await asyncio.wait({opening})

    def _may_open(self) -> bool:
        """Tell whether one more may be opened, now or after the one that is being opened."""
        if not self._rooms or self._opening is not None:
            return True
        if asyncio.get_running_loop().time() < self._pause_until:
            return False
        free = any(not room.first and room.party is None for room in self._rooms)
        return free or len(self._rooms) <= self._most

    def _open_another(self) -> None:
        """Open a conversation for whoever waits longest, if there may be one more."""
        loop = asyncio.get_running_loop()
        if self._opening is not None or not self._rooms or loop.time() < self._pause_until:
            return
        while len(self._rooms) > self._most:
            if not self._close_one():
                return
        kind = next(iter(self._queue.values())).kind
        self._opening = loop.create_task(self._open_room(kind))

    async def _open_room(self, kind: Kind) -> None:
        try:
            room = Room(await self._open(kind), kind)
            room.free_since = asyncio.get_running_loop().time()
            self._rooms.append(room)
        except Exception:
            # Some can be started only once: better that they ask nobody than that nobody calls.
            self._pause_until = asyncio.get_running_loop().time() + PAUSE
            for turn, waiting in self._queue.items():
                party = self._party(waiting.party, waiting.kind)
                self._queue[turn] = waiting._replace(party=party)
        finally:
            self._opening = None
        self._next()
        self._keep_house()

    def _close_one(self) -> bool:
        """Close a conversation that nobody needs; tell whether there was one."""
        room = next((room for room in self._rooms if not room.first and room.party is None), None)
        if room is not None:
            self._leave(room)
        return room is not None

    def lost(self, held: T) -> None:
        """Take note that a conversation has ended; what was going on there has been told."""
        for room in self._rooms:
            if room.held is held:
                self._rooms.remove(room)
                break

    def _keep_house(self) -> None:
        """Close what nobody has needed for a while, now and as long as there is something."""
        loop = asyncio.get_running_loop()
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        free = [room for room in self._rooms if not room.first and room.party is None]
        for room in free:
            if loop.time() - room.free_since >= IDLE:
                self._leave(room)
        if free:
            self._keeper = loop.call_later(IDLE, self._keep_house)

    def _leave(self, room: Room[T]) -> None:
        self._rooms.remove(room)
        task = asyncio.get_running_loop().create_task(self._close_quietly(room.held))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_quietly(self, held: T) -> None:
        with suppress(Exception):
            await self._close(held)

    def dismiss(self, why: BaseException) -> None:
        """Let nobody wait any longer."""
        for turn in list(self._queue):
            turn.fail(why)

    async def aclose(self) -> None:
        """Close all but the first, which is its owner's; those who wait learn that it has ended."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
            self._opening = None  # it may never have begun, and those who prepare wait for this
        self.dismiss(LineEnded("it ended"))
        for room in list(self._rooms):
            if not room.first:
                self._leave(room)
        self._rooms.clear()
        await asyncio.gather(*self._closing)


def _stop(doing: Due, turn: Due) -> None:
    doing.cancel(turn.why)
