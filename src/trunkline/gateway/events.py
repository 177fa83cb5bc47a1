"""Events of the gateway, and the bus that delivers them; `event_text` puts them into words.

    calls, upstreams, kill switches, configuration ──emit──> audit log, metrics, log, admin

Listeners record an event and return. Calls are delivered in batches, after their answers were
sent: a batch takes a fraction of the time.

Invariants:
1. A listener that fails is reported; the others still get the event.
2. Each listener gets all events in the order in which they happened.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from trunkline.gateway.call_context import CallEnd, CallSummary, summarize_calls
from trunkline.jsonrpc import Incident
from trunkline.jsonrpc.errors import (
    IncidentReporter,
    print_incident,
    report_incident,
    to_rpc_error,
)

_T = TypeVar("_T")

PAUSE = "pause"
"""The `kind` of a KillSwitchChanged that pauses or resumes the whole gateway."""

STATUSES = (
    "success",
    "tool_error",
    "error",
    "unknown",
    "disabled",
    "rate_limited",
    "denied",
    "invalid_arguments",
    "unavailable",
    "timeout",
    "cancelled",
)
"""How a call can end. `tool_error`: the tool itself reported failure, with `isError`."""


class BackendStateChanged(Struct, frozen=True):
    """The state of an upstream has changed."""

    name: str
    state: str
    error: str | None
    retry_in: float | None
    stderr: tuple[str, ...] = ()
    """If it has failed, the last lines that it wrote to stderr, for operators only."""


class KillSwitchChanged(Struct, frozen=True):
    """A kill switch was set or released."""

    kind: str
    """`tool`, `server`, `subject`, `all`, or `pause` for the gateway as a whole."""
    name: str
    disabled: bool
    by: str


class ConfigReloaded(Struct, frozen=True):
    """The configuration was reloaded; if that failed, `problem` says why."""

    problem: str | None
    changed: tuple[str, ...] = ()


class AuthRejected(Struct, frozen=True):
    """A request was rejected by authentication."""

    address: str
    reason: str


class AuditStateChanged(Struct, frozen=True):
    """The audit log cannot be written, or can be written again."""

    problem: str | None
    """Why it cannot be written; None if it can."""


class AuditSizeExceeded(Struct, frozen=True):
    """The audit log is larger than it should be; emitted once until it is small enough again."""

    excess_bytes: int
    max_mib: float
    min_days: float
    """Younger records are kept, even above `max_mib`."""


class LimitReached(Struct, frozen=True):
    """One principal, or all principals together, reached a limit on resources."""

    subject: str
    """The principal whose request it was."""
    limit: str
    """The key in the configuration, such as `http.max_sessions_per_principal`."""
    session_ended: bool = False
    """Whether the principal's longest idle session ended; otherwise, the request was refused."""


class UncheckedTool(Struct, frozen=True):
    """A tool's arguments cannot be checked against its schema; emitted once per tool."""

    name: str
    backend: str
    reason: str


class SkippedFeatures(Struct, frozen=True):
    """A backend lists features that cannot be used; emitted once per change."""

    backend: str
    reasons: tuple[str, ...]


class StrayOutput(Struct, frozen=True):
    """A server writes text to stdout, which is for JSON-RPC; emitted at most once a minute."""

    backend: str
    sample: str
    """The start of the latest line, without secrets."""
    lines: int
    """How many such lines it has written since the last event."""


class SessionEvicted(Struct, frozen=True):
    """The idle session of a client with a server was closed to make room for another client's."""

    backend: str
    max_sessions: int


class SessionSharing(Struct, frozen=True):
    """A server cannot have a second session, or can have one again."""

    backend: str
    reason: str | None
    """Why all clients share one session; None if they no longer do."""


class CatalogChanged(Struct, frozen=True):
    """The lists of the gateway have changed and settled."""

    lists: tuple[str, ...]
    """Which ones, such as `tools`."""


class WebhookFinished(Struct, frozen=True):
    """A webhook message was delivered or failed, or its target was switched off."""

    target: str
    event: str
    """The event that the message is about."""
    id: str
    outcome: str
    """`delivered`, `retrying` (once, after the first failed attempt), `dead` or `off`."""
    attempts: int
    problem: str | None


SystemEvent: TypeAlias = (
    BackendStateChanged
    | KillSwitchChanged
    | ConfigReloaded
    | AuthRejected
    | AuditStateChanged
    | AuditSizeExceeded
    | CatalogChanged
    | WebhookFinished
    | LimitReached
    | UncheckedTool
    | SkippedFeatures
    | StrayOutput
    | SessionEvicted
    | SessionSharing
    | Incident
)
"""All events but calls; they are delivered at once."""

GatewayEvent: TypeAlias = CallSummary | SystemEvent

EventListener: TypeAlias = Callable[[GatewayEvent], None]
BatchListener: TypeAlias = Callable[[Sequence[CallSummary]], None]
"""Receives the summaries of calls that ended, in batches."""

CallFilter: TypeAlias = Literal["all", "failed", "none"]
"""Which calls a listener gets; `failed` leaves out those in COMPLETED_STATUSES."""


CALL_EVENT_DELAY = 0.005
"""For how many seconds summaries of calls are collected before they are delivered."""

CALL_EVENT_BATCH = 128
"""If so many calls are collected, they are delivered in the next turn of the event loop."""

MAX_PENDING_CALL_EVENTS = 1024
"""If so many calls are collected, they are delivered at once."""


class _Subscriber(NamedTuple):
    listener: EventListener
    call_filter: CallFilter
    batch_listener: BatchListener | None


class EventBus:
    """Delivers events to listeners."""

    def __init__(self, report: IncidentReporter = print_incident) -> None:
        self._subscribers: tuple[_Subscriber, ...] = ()
        self.wants_calls = False
        """Whether any listener wants all calls. If not, successful calls need no event."""
        self.wants_failures = False
        """Whether any listener wants calls that failed."""
        self.schedule: Callable[[float, Callable[[], None]], object] | None = None
        """Runs a callback after some seconds (loop.call_later); without it, nothing is delayed."""
        self._pending: list[CallEnd] = []
        self._flush_scheduled = False
        """Whether a flush after CALL_EVENT_DELAY is scheduled."""
        self._flush_threshold = 1
        """At how many pending calls `emit_call` has something to do."""
        self._report = report

    def __bool__(self) -> bool:
        """Return whether there are listeners: without any, no events need be made."""
        return bool(self._subscribers)

    @property
    def pending_count(self) -> int:
        """How many calls have ended and were not delivered yet."""
        return len(self._pending)

    def add_listener(
        self,
        listener: EventListener,
        call_filter: CallFilter = "all",
        batch_listener: BatchListener | None = None,
    ) -> Callable[[], None]:
        """Add a listener for the calls that match `call_filter`; return a function that removes it.

        `batch_listener`, if given, gets calls in batches instead of `listener`.
        """
        subscriber = _Subscriber(listener, call_filter, batch_listener)
        self._subscribers = (*self._subscribers, subscriber)
        self._update_filters()
        return lambda: self._remove_listener(subscriber)

    def _remove_listener(self, subscriber: _Subscriber) -> None:
        self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)
        self._update_filters()

    def _update_filters(self) -> None:
        self.wants_calls = any(subscriber.call_filter == "all" for subscriber in self._subscribers)
        self.wants_failures = any(
            subscriber.call_filter != "none" for subscriber in self._subscribers
        )

    def emit_call(self, call: CallEnd) -> None:
        """Collect a call that ended, to be delivered with others after their answers were sent.

        For a call that succeeded, context, result and times suffice: its summary is made later.
        `flush` delivers the collected events, for consumers that need them at once.
        """
        pending = self._pending
        pending.append(call)
        if len(pending) >= self._flush_threshold:
            self._schedule_flush(len(pending))

    def _schedule_flush(self, count: int) -> None:
        """Deliver pending calls at once, in the next loop turn, or after the delay."""
        if self.schedule is None or count >= MAX_PENDING_CALL_EVENTS:
            self._deliver_pending()
        elif count >= CALL_EVENT_BATCH:
            self._flush_threshold = MAX_PENDING_CALL_EVENTS
            self.schedule(0.0, self._flush_pending)
        else:
            self._flush_scheduled, self._flush_threshold = True, CALL_EVENT_BATCH
            self.schedule(CALL_EVENT_DELAY, self.flush)

    def flush(self) -> None:
        """Deliver all pending calls now."""
        self._flush_scheduled, self._flush_threshold = False, 1
        self._flush_pending()

    def _flush_pending(self) -> None:
        if self._pending:
            self._deliver_pending()

    def _deliver_pending(self) -> None:
        pending, self._pending = self._pending, []
        self._flush_threshold = CALL_EVENT_BATCH if self._flush_scheduled else 1
        summaries, failed = summarize_calls(pending)
        selected = {"all": summaries, "failed": failed, "none": []}
        for subscriber in self._subscribers:
            calls = selected[subscriber.call_filter]
            if not calls:
                continue
            if subscriber.batch_listener is not None:
                self._deliver(subscriber.batch_listener, calls, "CallSummary")
            else:
                for call in calls:
                    self._deliver(subscriber.listener, call, "CallSummary")

    def emit(self, event: SystemEvent) -> None:
        """Deliver an event now, after all pending calls."""
        self._flush_pending()
        for subscriber in self._subscribers:
            self._deliver(subscriber.listener, event, type(event).__name__)

    def report_failure(self, failure: BaseException, method: str) -> None:
        """Report an exception that must not change the answer of a call."""
        report_incident(failure, method, self._report)

    def _deliver(self, listener: Callable[[_T], None], event: _T, name: str) -> None:
        try:
            listener(event)
        except Exception as error:
            if not isinstance(event, Incident):  # reporting a failed report would never end
                to_rpc_error(error, name, self._report)
