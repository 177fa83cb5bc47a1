"""Events of the gateway, the bus that delivers them, and their text for logs and operators.

    calls, upstreams, kill switches, configuration ──emit──> audit log, metrics, log, admin

Listeners record an event and return. Calls are delivered in batches, after their answers were
sent: a batch takes a fraction of the time.

Invariants:
1. A listener that fails is reported; the others still get the event.
2. Each listener gets all events in the order in which they happened.
3. Event text never contains arguments or results, nor credentials, query or fragment of a URL.
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
from trunkline.printable import clip_text, redact_userinfo

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


SystemEvent: TypeAlias = (
    BackendStateChanged
    | KillSwitchChanged
    | ConfigReloaded
    | AuthRejected
    | AuditSizeExceeded
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


# Events as text

_MAX_ADDRESS_CHARS = 512
"""How many characters of a URI are looked at; no consumer shows as many."""

Sanitize = Callable[[str], str]
"""Makes foreign text printable."""


class CallBrief(NamedTuple):
    """The facts about a call that logs and operators see; unlike its summary, no arguments."""

    subject: str
    method: str
    name: str
    status: str
    reason: str | int | None
    """The kind of the error, else its code."""
    seconds: float


def call_target(event: CallSummary, max_length: int | None = None) -> str:
    """Return the name or URI of a call, without secrets in a URI, cut to `max_length`."""
    name = event.name
    # A name is a URI only if it looks like one.
    if event.context.method.target != "name" or "://" in name:
        name = _public_address(name)
    return name[:max_length]


def _public_address(address: str) -> str:
    """Return a URI without user info, query and fragment."""
    place = redact_userinfo(clip_text(address, _MAX_ADDRESS_CHARS), any_name=True)
    return place.partition("?")[0].partition("#")[0][:_MAX_ADDRESS_CHARS]


def brief_call(event: CallSummary, max_length: int | None = None) -> CallBrief:
    """Return the facts about a call, with names cut to `max_length`."""
    reason = None if event.error_code is None else event.error_kind or event.error_code
    subject = event.principal.label[:max_length]
    name = call_target(event, max_length)
    return CallBrief(subject, event.method, name, event.status, reason, event.duration)


def describe_event(event: GatewayEvent | CallBrief, sanitize: Sanitize = str) -> str:
    """Return an event as one line of text."""
    match event:
        case CallSummary():
            return describe_event(brief_call(event), sanitize)
        case CallBrief():
            return _describe_call(event, sanitize)
        case BackendStateChanged(name, state, error, retry_in, stderr):
            reason = f": {sanitize(error)}" if error else ""
            written = f"; stderr: {' | '.join(map(sanitize, stderr))}" if stderr else ""
            return f"server {sanitize(name)} {state_clause(state, retry_in)}{reason}{written}"
        case KillSwitchChanged():
            return _describe_switch(event, sanitize)
        case ConfigReloaded():
            return _describe_reload(event, sanitize)
        case AuthRejected(address, reason):
            return f"request from {sanitize(address)} rejected: {sanitize(reason)}"
        case AuditSizeExceeded() | LimitReached():
            return _describe_excess(event, sanitize)
        case UncheckedTool(name, _, reason):
            return f"the arguments of {sanitize(name)} are not checked: {sanitize(reason)}"
        case SkippedFeatures() | StrayOutput():
            return _describe_mistake(event, sanitize)
        case SessionEvicted() | SessionSharing():
            return _describe_session(event, sanitize)
        case Incident(id, method):
            return f"incident {id} in {sanitize(method) or 'the gateway'}"


def describe_state(state: str, retry_in: float | None = None) -> str:
    """Return the state of a server in words, such as `failed, retrying in 5.7 s`."""
    when = "" if retry_in is None else f" in {retry_in:g} s"
    match state:
        case "waiting":
            return f"failed, retrying{when}"
        case "failed":
            return "failed, not retried"
        case "circuit_open":
            return f"failing, next trial call{when}"
        case "half_open":
            return "failing, on trial"
        case "not_started":
            return "not started"
        case "idle_stopped":
            return "stopped while idle"
        case _:
            return state


def state_clause(state: str, retry_in: float | None = None) -> str:
    """Return the state of a server as a predicate: `is ready`, `failed, not retried`."""
    words = describe_state(state, retry_in)
    return words if words.startswith(("failed", "stopped while")) else f"is {words}"


def _describe_call(call: CallBrief, sanitize: Sanitize) -> str:
    action = "called" if call.method == "tools/call" else f"called {call.method} of"
    reason = "" if call.reason is None else f" ({call.reason})"
    milliseconds = round(call.seconds * 1000, 2)
    end = f"{call.status}{reason} in {milliseconds:g} ms"
    return f"{sanitize(call.subject)} {action} {sanitize(call.name) or '?'}: {end}"


def _describe_switch(event: KillSwitchChanged, sanitize: Sanitize) -> str:
    by = sanitize(event.by)
    if event.kind == PAUSE:
        return f"the gateway is {'paused' if event.disabled else 'resumed'} by {by}"
    target = f"{event.kind} {sanitize(event.name)}" if event.name else event.kind
    return f"{target} is {'disabled' if event.disabled else 'revived'} by {by}"


def _describe_mistake(event: SkippedFeatures | StrayOutput, sanitize: Sanitize) -> str:
    server = f"server {sanitize(event.backend)}"
    if isinstance(event, StrayOutput):
        count = "" if event.lines == 1 else f" ({event.lines} lines)"
        what = "writes text to stdout, which is for JSON-RPC only"
        return f"{server} {what}{count}: {sanitize(event.sample)}"
    first, *others = map(sanitize, event.reasons)
    more = f", and {len(others)} more" if others else ""
    return f"{server} lists unusable features: {first}{more}"


def _describe_session(event: SessionEvicted | SessionSharing, sanitize: Sanitize) -> str:
    server = f"server {sanitize(event.backend)}"
    if isinstance(event, SessionEvicted):
        return (
            f"{server}: the session of an idle client was closed to make room for another client, "
            f"and its state is lost (max_sessions = {event.max_sessions})"
        )
    if event.reason is None:
        return f"{server} can have several sessions again"
    return (
        f"{server} cannot have a second session: {sanitize(event.reason)}; all clients share the "
        "first one, and it can ask them nothing (max_sessions = 0 lets it ask)"
    )


def _describe_excess(event: AuditSizeExceeded | LimitReached, sanitize: Sanitize) -> str:
    if isinstance(event, LimitReached):
        ended = "its longest idle session has ended"
        effect = ended if event.session_ended else "a request is refused"
        return f"{sanitize(event.subject)} has reached {event.limit}: {effect}"
    mebibytes = event.excess_bytes / 1024 / 1024
    return (
        f"the audit log is {mebibytes:.1f} MiB larger than audit.max_mib = {event.max_mib:g}: "
        f"records younger than audit.min_days = {event.min_days:g} are kept; "
        "find out what is recorded so often, or raise audit.max_mib"
    )


def _describe_reload(event: ConfigReloaded, sanitize: Sanitize) -> str:
    if event.problem is not None:
        problems = " | ".join(event.problem.splitlines())
        return f"configuration not reloaded: {sanitize(problems)}"
    changes = ", ".join(map(sanitize, event.changed)) or "nothing has changed"
    return f"configuration reloaded: {changes}"
