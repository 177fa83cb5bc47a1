"""Writer: a thread of its own that takes events and has them in the ledger, batch by batch.

    Inbox ──take──> Scribe ──> Ledger;  what fails is kept, and tried again after a while

Refuses to stop anybody: whatever becomes of the store, calls go on. What it cannot write waits in
the bounded inbox; it says once that it fails and once that it works again, and the state is there
for whoever asks.

Rules upheld here:
1. Whatever fails is tried again, less and less often, until it works.
2. Nobody waits long for the interpreter because of us: work is done in small slices.
3. Calls under way are noted, at most a second late, so that those lost with a process are known.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from heapq import nsmallest

import msgspec
from msgspec import Struct

from trunkline.gateway.passage import Passage
from trunkline.journal.inbox import Inbox, Losses
from trunkline.journal.ledger import Ledger, Retention
from trunkline.journal.record import Entry, Scribe
from trunkline.journal.store import Presence, StoreError
from trunkline.routing import backoff

BATCH = 5000
"""How many records are in one transaction at most."""

INTERVAL = 0.1
"""How many seconds a batch waits for more."""

LOOK = 1.0
"""How many seconds pass between two looks at the calls under way."""

QUIET = 0.25
"""How many seconds after its start a gateway is left alone: a client is waiting for it."""

SHORTEST, LONGEST = 0.2, 15.0
"""How many seconds pass between attempts."""

PRUNE_EVERY = 60.0
PRUNE_AFTER = 5000
"""After how many seconds, or records, it is looked whether something is to go."""

MAX_CALLS = 50
"""How many calls under way are noted by name: those that have been so for longest."""

_SLICE = 64
_BREATH = 0.0002
_log = logging.getLogger(__name__)


class Progress(Struct):
    """How the writer is."""

    written: int = 0
    failures: int = 0
    """How often it failed since it last worked."""
    error: str | None = None
    """Why it fails; None while it works."""
    given_up: int = 0
    """How many records there was no time left to write, in the end."""


class Writer:
    """Writes down what is in an inbox."""

    def __init__(
        self,
        inbox: Inbox,
        open_ledger: Callable[[], Ledger],
        presence: Presence,
        under_way: Callable[[], Collection[Passage]],
        retention: Retention,
        **told: object,
    ) -> None:
        """Prepare; `told` is what the record of the start says."""
        self.retention = retention
        self.progress = Progress()
        self._inbox = inbox
        self._open_ledger = open_ledger
        self._presence = presence
        self._under_way = under_way
        self._told = told
        self._thread = threading.Thread(target=self._run, name="trunkline-journal", daemon=True)
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._ledger: Ledger | None = None
        self._broken = False
        self._entries: list[Entry] = []
        self._prune_at = 0.0
        self._since_prune = 0

    @property
    def started(self) -> bool:
        """Whether it has been started."""
        return self._thread.ident is not None

    @property
    def waiting(self) -> int:
        """How many records are not written yet: also those that were tried, and are tried again."""
        return _count(self._entries) + len(self._inbox)

    def start(self) -> None:
        """Begin to write."""
        if not self.started:
            self._thread.start()

    def close(self, patience: float) -> int:
        """Write what is left, and end; return how many records there was no time for."""
        if not self.started:
            return 0
        self._deadline = time.monotonic() + patience
        self._closing.set()
        self._inbox.wake.set()
        self._inbox.hurry.set()
        self._thread.join(patience + INTERVAL)
        if self._thread.is_alive():  # it waits for a store that does not answer
            self.progress.given_up = self.waiting
        return self.progress.given_up

    def _run(self) -> None:
        self._inbox.wake.wait(QUIET)
        while True:
            try:
                if self._turn():
                    return
            except Exception as why:  # a mistake of ours must not end the journal either
                if self._fail(why):
                    return

    def _turn(self) -> bool:
        """Write what there is, and wait for more; tell whether it is over."""
        closing = self._closing.is_set()
        ledger = self._ready()
        self._fill()
        presence = self._seen()
        if self._entries or presence is not None:
            ledger.append(self._entries, presence or self._presence)
            count = _count(self._entries)
            self.progress.written += count
            self._since_prune += count
            self._entries = []
        self._heal()
        if closing:
            return self._finish(ledger)
        if not self._prune(ledger) and self._inbox.wait(LOOK):
            self._inbox.hurry.wait(INTERVAL)
        return False

    def _ready(self) -> Ledger:
        if self._ledger is None:
            ledger = self._open_ledger()
            ledger.begin(self._presence, time.time(), **self._told)
            self._ledger = ledger
        elif self._broken:
            self._ledger.reopen(self._now())
        self._broken = False
        return self._ledger

    def _fill(self) -> None:
        """Have entries to write; those of the last attempt first."""
        if self._entries or self._ledger is None:
            return
        scribe, entries = self._ledger.scribe, list[Entry]()
        losses = self._inbox.take_losses()
        if losses is not None:
            entries.append(_lost(scribe, losses, self._inbox.when_full))
        events = self._inbox.take(BATCH)
        for start in range(0, len(events), _SLICE):
            part = events[start : start + _SLICE]
            entries += scribe.write(part)
            if self._closing.is_set() or all(type(each) is Entry for each in part):
                continue  # of which nothing was to be written
            time.sleep(_BREATH)  # a thread of our own: it lets go of the interpreter, rule 2
        self._entries = entries

    # The calls under way

    def _seen(self) -> Presence | None:
        """Return how we are now, if that is not what was noted last."""
        before, now = self._presence, self._now()
        is_noted = (before.in_flight, before.calls) == (now.in_flight, now.calls)
        return None if is_noted else now

    def _now(self) -> Presence:
        under_way = self._under_way()
        try:
            calls = list(under_way)
        except RuntimeError:  # it has changed while we looked: how many there are is known
            calls = []
        shown = [
            {"id": each.id, "at": each.at, "name": each.name[:128], "backend": _backend(each)}
            for each in nsmallest(MAX_CALLS, calls, key=_began)
        ]
        self._presence = msgspec.structs.replace(
            self._presence,
            at=time.time(),
            in_flight=len(calls) or len(under_way),
            calls=msgspec.json.encode(shown).decode(),
        )
        return self._presence

    # What is kept no longer

    def _prune(self, ledger: Ledger) -> bool:
        """Take out what is too old or too much, some of it at a time; tell whether it did."""
        now = time.monotonic()
        if now < self._prune_at and self._since_prune < PRUNE_AFTER:
            return False
        if ledger.prune(self.retention, time.time()):
            return True
        self._prune_at, self._since_prune = now + PRUNE_EVERY, 0
        return False

    # When it fails, and when it is over

    def _fail(self, why: Exception) -> bool:
        """Wait before the next attempt; tell whether there is to be none."""
        progress = self.progress
        known = isinstance(why, StoreError)
        reason = str(why) if known else f"{type(why).__name__}: {why}"
        if progress.error is None:
            _log.warning(
                "trunkline: the journal cannot be written: %s; calls go on, and up to %d records "
                "wait until it can be",
                reason,
                self._inbox.limit,
                exc_info=None if known else why,
            )
        progress.error = reason
        progress.failures += 1
        self._broken = True
        if self._ledger is not None:
            self._ledger.store.close()
        chance = random.random()  # noqa: S311  nobody gains anything by knowing it
        pause = backoff.delay(progress.failures, chance, SHORTEST, LONGEST)
        left = self._deadline - time.monotonic()
        if self._closing.is_set():
            if left <= pause:
                progress.given_up = self.waiting
                return True
            time.sleep(pause)  # a thread of our own, with nothing left to be woken by
        else:
            self._closing.wait(pause)
        return False

    def _heal(self) -> None:
        if self.progress.error is not None:
            _log.warning("trunkline: the journal can be written again")
            self.progress.error, self.progress.failures = None, 0

    def _finish(self, ledger: Ledger) -> bool:
        """Write down the end, once all is written; tell whether it is."""
        if len(self._inbox):
            return False
        ledger.end(self._presence, time.time(), in_flight=len(self._under_way()))
        return True


def _count(entries: Sequence[Entry]) -> int:
    """Return how many records that are."""
    return sum(entry.records for entry in entries)


def _lost(scribe: Scribe, losses: Losses, when_full: str) -> Entry:
    """Write down what was not: how many, and between when and when."""
    return scribe.note(
        losses.until,
        "dropped",
        status=when_full,
        count=losses.count,
        since=losses.since,
        until=losses.until,
    )


def _began(passage: Passage) -> float:
    return passage.at


def _backend(passage: Passage) -> str | None:
    return None if passage.entry is None else passage.entry.backend
