"""Inbox: events on their way from the event loop to the thread that writes them down.

    loop ──put──> Inbox, bounded ──take──> writer
      └── put_calls: written down already, if they are little

Refuses to make the loop wait: `put` takes note, or counts what it could not take.

Rules upheld here:
1. There are never more than so many events in it, nor more bytes of what clients sent. The calls
   on a sheet are counted one by one.
2. What was not taken is counted, with when it began and when it was last so.
3. Where nothing may go unrecorded, a call is let begin only if there will be room for its record.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from trunkline.gateway.events import CallEnded
from trunkline.journal.record import Entry, Happening, Noted
from trunkline.jsonrpc import Raw, Request, to_raw

WhenFull = Literal["block", "drop"]
Write: TypeAlias = Callable[[Sequence[CallEnded]], list[Entry]]

MAX_BYTES = 32 * 1024 * 1024
"""How many bytes of requests may be held; beyond that, arguments are not kept."""

LITTLE = 2000
"""Calls with more bytes of params are left to the writer: to redact them takes a while."""

HURRY = 4000
"""How many events are not kept waiting for others; half of all that may be there, if less."""

ROWS = 1000
"""How many of them are taken at once, however many calls they are: others want to write, too."""

_bytes_in: Callable[[CallEnded], int] = attrgetter("bytes_in")
_LEFT_OUT = Raw(b'{"\xe2\x80\xa6":"left out: too much was waiting to be written"}')


class Losses(Struct):
    """What was not taken: how many, from when until when."""

    count: int = 0
    since: float = 0.0
    until: float = 0.0

    def add(self, at: float) -> None:
        """Count one more."""
        self.since = self.since if self.count else at
        self.until = max(self.until, at)
        self.count += 1


class Inbox:
    """Holds events for a while."""

    def __init__(self, limit: int = 10_000, when_full: WhenFull = "drop") -> None:
        self.limit = limit
        self.when_full: WhenFull = when_full
        self.wake = threading.Event()
        """Set when there is something to take."""
        self.hurry = threading.Event()
        """Set when there is so much that nobody should wait for more."""
        self.dropped = 0
        """How many there were in all that had no room."""
        self._queue: deque[Noted] = deque()
        # What came and what was taken are counted apart: each by one thread alone.
        self._came = 0
        self._taken = 0
        self._bytes_in = 0
        self._bytes_out = 0
        self._awake = False
        self._lock = threading.Lock()
        self._losses = Losses()

    def __len__(self) -> int:
        return self._came - self._taken

    def put(self, event: Happening, at: float) -> None:
        """Take an event of a time, or count it."""
        queue = self._queue
        count = len(self)
        if count >= self.limit and not self._must_take(event):
            self._drop(at)
            return
        self._came += 1  # before it can be taken
        if isinstance(event, CallEnded):
            size = event.bytes_in
            if self._bytes_in - self._bytes_out + size > MAX_BYTES:
                event, size = _lighten(event), 0
            self._bytes_in += size
            queue.append(event)
        else:
            queue.append((at, event))
        self._call_for(count, count + 1)

    def put_calls(self, calls: Sequence[CallEnded], write: Write) -> None:
        """Take calls that have ended, or count those that have no room.

        They are written down by `write` at once: whoever has just dealt with a call has it at hand,
        and a thousand that are kept until the writer comes to them are in everybody's way. That
        only if there is room for all of them, and for those that take no while.
        """
        count = len(self)
        if count + len(calls) > self.limit or self._bytes_in - self._bytes_out > MAX_BYTES // 2:
            large = calls
        else:
            large, little = (), calls
            if max(map(_bytes_in, calls)) > LITTLE:  # hardly ever
                large = [call for call in calls if call.bytes_in > LITTLE]
                little = [call for call in calls if call.bytes_in <= LITTLE]
            for entry in write(little):
                self._bytes_in += len(entry.body)
                self._came += entry.records
                self._queue.append(entry)
        for call in large:
            self.put(call, call.at)
        self._call_for(count, len(self))

    def _call_for(self, before: int, now: int) -> None:
        """Wake whoever writes, or have them hurry."""
        if not self._awake:
            self._awake = True
            self.wake.set()
        elif before <= min(HURRY, self.limit // 2) < now:
            self.hurry.set()

    def _must_take(self, event: Happening) -> bool:
        """Tell whether an event is to be taken however many there are: a call was let begin."""
        # There is an end to these: nobody is let begin once so many wait.
        return self.when_full == "block" and isinstance(event, CallEnded) and event.upstream > 0

    def is_open(self, under_way: int) -> bool:
        """Tell whether there will be room for the record of a call that is about to begin."""
        return self.when_full == "drop" or len(self) + under_way <= self.limit

    def _drop(self, at: float) -> None:
        with self._lock:
            self._losses.add(at)
            self.dropped += 1

    # By the thread that writes

    def take(self, most: int) -> list[Noted]:
        """Return what came first, up to so many: calls as they are, others with their times.

        A sheet is taken whole, even if that is too many.
        """
        queue, taken = self._queue, list[Noted]()
        while queue and most > 0 and len(taken) < ROWS:
            noted = queue.popleft()
            count = noted.records if isinstance(noted, Entry) else 1
            self._taken += count
            self._bytes_out += _size(noted)
            taken.append(noted)
            most -= count
        return taken

    def take_losses(self) -> Losses | None:
        """Return what was lost since the last time; None if nothing was."""
        if not self._losses.count:
            return None
        with self._lock:
            taken, self._losses = self._losses, Losses()
        return taken

    def wait(self, seconds: float) -> bool:
        """Wait until there is something; tell whether there is."""
        if not self._queue:
            self._awake = False
            if not self._queue:  # else it came before whoever put it could know that we wait
                self.wake.wait(seconds)
        self._awake = True
        self.wake.clear()
        self.hurry.clear()
        return bool(self._queue)


def _size(noted: Noted) -> int:
    """Return how many bytes of what a client sent are held, or were written down."""
    if isinstance(noted, Entry):
        return len(noted.body)
    if isinstance(noted, CallEnded) and noted.passage.arguments is not _LEFT_OUT:
        return noted.bytes_in
    return 0


def _lighten(event: CallEnded) -> CallEnded:
    """Return an event that holds nothing of what the client sent, but for what it asked for."""
    passage = event.passage
    named = to_raw({"name": passage.name})
    light = replace(
        passage,
        caller=replace(passage.caller, client=Raw(bytes(passage.caller.client))),
        request=Request(passage.request.id, passage.request.method, named),
        trace=event.trace,
        arguments=_LEFT_OUT,
    )
    return replace(event, passage=light)
