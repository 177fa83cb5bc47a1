"""Refusals: let the first of each caller have records of their own, and count all others.

    refused calls, rejected logins ──admit──> the first ones: a record each
                                      └─────> all others: one record per caller, reason and method

Anyone who may connect can cause thousands of refusals per second. With a record each, they would
fill the queue, the store and the disk, and hide what else happened. So a caller gets records for
its first refusals in an interval. Further ones are counted until the interval ends.

The event loop calls `admit` and `admit_rejection`, the writer thread `take`.

Invariants:
1. Every refusal is recorded or counted, once.
2. The number of counts, and of records per interval, is limited. When the table is full, callers
   share one count per reason and method.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from trunkline.audit.records import AuditEntry, RecordEncoder
from trunkline.gateway.call_context import COMPLETED_STATUSES, CallSummary

REFUSAL_INTERVAL = 60.0  # for how many seconds refusals are counted before they are recorded
MAX_SINGLE_RECORDS = 10  # how many refusals of a caller get a record each, per interval
MAX_ALL_SINGLE_RECORDS = 500  # how many of all callers
MAX_COUNTS = 500  # how many combinations of caller, reason and method are counted separately
OTHERS = "others"  # the subject or address in a record about many callers

_REJECTION = ""  # stands for the method of a rejected login


class RefusalCount(Struct):
    """The refusals of one caller for one reason."""

    caller: str
    reason: str
    method: str
    since: float
    until: float
    name: str = ""
    """What was asked for last."""
    count: int = 0


class RefusalCounter:
    """Decides which refusals are recorded, and counts the others."""

    def __init__(
        self, interval: float = REFUSAL_INTERVAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._lock = threading.Lock()
        self._interval_end: float | None = None
        """When the counts are due; None before the first refusal of an interval."""
        self._single_records: Counter[str] = Counter()
        self._counts: dict[tuple[str, str, str], RefusalCount] = {}

    def admit(self, call: CallSummary) -> bool:
        """Return whether a call gets a record of its own, else count it."""
        context, status = call.context, call.status
        if status in COMPLETED_STATUSES or context.sent_at is not None:
            return True  # a server got it
        principal = call.principal
        return self._admit(
            (principal.id, status, call.method), principal.label, call.wall_time, context.name
        )

    def admit_rejection(self, address: str, reason: str, at: float) -> bool:
        """Return whether a rejected login gets a record of its own, else count it."""
        return self._admit((address, reason, _REJECTION), address, at, "")

    def _admit(self, key: tuple[str, str, str], caller: str, at: float, name: str) -> bool:
        identity, reason, method = key
        with self._lock:
            if self._interval_end is None:
                self._interval_end = self._clock() + self._interval
            singles = self._single_records
            if singles[identity] < MAX_SINGLE_RECORDS and singles.total() < MAX_ALL_SINGLE_RECORDS:
                singles[identity] += 1
                return True
            if key not in self._counts and len(self._counts) >= MAX_COUNTS:
                caller, reason = OTHERS, "" if method == _REJECTION else reason
                key = (OTHERS, reason, method)
            found = self._counts.get(key)
            if found is None:
                found = self._counts[key] = RefusalCount(caller, reason, method, at, at)
            found.count += 1
            found.since, found.until = min(found.since, at), max(found.until, at)
            found.name = name
        return False

    def take(self, *, is_closing: bool = False) -> list[RefusalCount]:
        """Return the counts of an interval that has ended, or all when closing; else nothing."""
        if self._interval_end is None or (not is_closing and self._clock() < self._interval_end):
            return []
        with self._lock:
            counts, self._counts = self._counts, {}
            self._single_records = Counter()
            self._interval_end = None
        return list(counts.values())


def encode_count(encoder: RecordEncoder, refused: RefusalCount) -> AuditEntry:
    """Return the record of counted refusals."""
    is_rejection = refused.method == _REJECTION
    about = (
        {"name": refused.caller}
        if is_rejection
        else {
            "subject": refused.caller,
            "method": refused.method,
            "name": encoder.unknown_name(refused.name),
        }
    )
    return encoder.encode_note(
        refused.until,
        "auth_rejected" if is_rejection else "refused",
        status=refused.reason,
        count=refused.count,
        since=refused.since,
        until=refused.until,
        **about,
    )
