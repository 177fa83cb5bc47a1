"""Journal: takes note of every call, from the event loop, and has it written down.

    Events ──listener──> Inbox ──> Writer, a thread ──> Ledger ──> Store
                └── Sheets: what is little is written down at once

Refuses to make a call wait. With `when_full = "block"` no call is carried out that could not be
recorded: when too many records wait, calls are refused at the door, at once and clearly.
"""

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from trunkline.gateway.events import CallEnded, Event, LeftOut, Unchecked
from trunkline.gateway.layers import Layers
from trunkline.gateway.passage import Passage
from trunkline.journal.inbox import Inbox, WhenFull
from trunkline.journal.ledger import Ledger, Retention
from trunkline.journal.process import born
from trunkline.journal.record import Scribe
from trunkline.journal.redact import Redactor, Rules
from trunkline.journal.sheet import Sheets
from trunkline.journal.store import Presence
from trunkline.journal.writer import Writer
from trunkline.jsonrpc import Incident
from trunkline.mcp.refusal import Refusal, refuse

PATIENCE = 3.0
"""How many seconds the end of the gateway waits for the last records to be written."""

_log = logging.getLogger(__name__)


class Terms(Struct, frozen=True):
    """What may change while the journal is written."""

    rules: Rules = Rules()
    retention: Retention = Retention()
    queue: int = 10_000
    when_full: WhenFull = "drop"


class JournalStatus(Struct, frozen=True):
    """How the journal of a gateway is."""

    url: str
    queue: int
    """How many events wait to be written."""
    queue_limit: int
    """How many may, beside the batch that is being written."""
    written: int
    dropped: int
    """How many had no room."""
    error: str | None
    """Why it cannot be written; None while it can."""


class Journal:
    """The journal of one gateway."""

    def __init__(
        self, name: str, url: str, open_ledger: Callable[[Scribe], Ledger], terms: Terms
    ) -> None:
        """Prepare; nothing is opened before it is started, or something happens."""
        self._url = url
        self._inbox = Inbox(terms.queue, terms.when_full)
        self._layers: Layers | None = None
        self._scribe = Scribe(label(name), Redactor(terms.rules))
        self._sheets = Sheets(Scribe(self._scribe.gateway, Redactor(terms.rules)))
        """Write where calls end; the scribe alone belongs to the thread that writes."""
        self._writer = Writer(
            self._inbox,
            lambda: open_ledger(self._scribe),
            _presence(self._scribe.gateway),
            self._under_way,
            terms.retention,
            pid=os.getpid(),
        )
        self._closed = False

    def _under_way(self) -> Collection[Passage]:
        return () if self._layers is None else self._layers.under_way

    def attach(self, layers: Layers) -> None:
        """Take note of all that happens there from now on."""
        self._layers = layers
        layers.door = self._admit if self._inbox.when_full == "block" else None
        layers.events.listen(self.note, many=self.note_calls)

    def adopt(self, terms: Terms) -> None:
        """Go on under other terms."""
        self._inbox.limit, self._inbox.when_full = terms.queue, terms.when_full
        self._writer.retention = terms.retention
        self._scribe.redactor = Redactor(terms.rules)
        self._sheets.scribe.redactor = Redactor(terms.rules)
        if self._layers is not None:
            self._layers.door = self._admit if terms.when_full == "block" else None

    def start(self) -> None:
        """Begin to write, and write down that we have."""
        if not self._closed:
            self._writer.start()

    def note(self, event: Event) -> None:
        """Take note of an event."""
        if type(event) is CallEnded:
            self._inbox.put(event, event.at)
        elif not isinstance(event, Incident | LeftOut | Unchecked):
            self._inbox.put(event, time.time())
        if not self._writer.started:
            self.start()

    def note_calls(self, calls: Sequence[CallEnded]) -> None:
        """Take note of calls that have ended."""
        self._inbox.put_calls(calls, self._sheets.write)
        if not self._writer.started:
            self.start()

    def _admit(self, passage: Passage) -> None:
        """Refuse a call whose record would have no room; raises RpcError."""
        untold = 0 if self._layers is None else self._layers.events.untold
        if not self._inbox.is_open(len(self._under_way()) + untold):
            raise refuse(
                Refusal.UPSTREAM_UNAVAILABLE,
                "the journal has no room for another record; calls are refused until it has",
                passage.caller.version,
            )

    def status(self) -> JournalStatus:
        """Tell how it is."""
        progress = self._writer.progress
        return JournalStatus(
            self._url,
            self._writer.waiting,
            self._inbox.limit,
            progress.written,
            self._inbox.dropped,
            progress.error,
        )

    async def aclose(self) -> None:
        """Write what is left, but not for ever; what could not be written is said aloud."""
        if self._closed:
            return
        if self._layers is not None:
            self._layers.events.tell_now()  # of what was put off, and ended while all else did
        self._closed = True
        lost = await asyncio.to_thread(self._writer.close, PATIENCE)
        if lost:
            error = self._writer.progress.error or f"{self._url} does not answer"
            _log.warning("trunkline: %d records of the journal are lost: %s", lost, error)


def label(name: str) -> str:
    """Return how records name the gateway that wrote them."""
    return f"{name}:{os.getpid()}@{socket.gethostname()}"


def _presence(gateway: str) -> Presence:
    return Presence(uuid.uuid4().hex, gateway, os.getpid(), born(os.getpid()))
