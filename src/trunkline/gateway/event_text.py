"""The text of events, for logs, operators and webhooks.

Invariant: it never contains arguments or results, nor credentials, query or fragment of a URL.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from trunkline.gateway.events import (
    PAUSE,
    AuditSizeExceeded,
    AuditStateChanged,
    AuthRejected,
    BackendStateChanged,
    CallSummary,
    CatalogChanged,
    ConfigReloaded,
    GatewayEvent,
    KillSwitchChanged,
    LimitReached,
    SessionEvicted,
    SessionSharing,
    SkippedFeatures,
    StrayOutput,
    UncheckedTool,
    WebhookFinished,
)
from trunkline.jsonrpc import Incident
from trunkline.printable import clip_text, redact_userinfo

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
    return _DESCRIBE[type(event)](event, sanitize)


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


def _describe_backend(event: BackendStateChanged, sanitize: Sanitize) -> str:
    reason = f": {sanitize(event.error)}" if event.error else ""
    written = f"; stderr: {' | '.join(map(sanitize, event.stderr))}" if event.stderr else ""
    state = state_clause(event.state, event.retry_in)
    return f"server {sanitize(event.name)} {state}{reason}{written}"


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


def _describe_webhook(event: WebhookFinished, sanitize: Sanitize) -> str:
    target, problem = sanitize(event.target), sanitize(event.problem or "")
    if event.outcome == "off":
        return (
            f"webhook {target} is switched off: {problem}; "
            f"its messages are kept until you run trunkline webhooks retry {target}"
        )
    attempts = "1 attempt" if event.attempts == 1 else f"{event.attempts} attempts"
    if event.outcome == "delivered":
        return f"webhook {target}: {event.event} delivered after {attempts}"
    later = ", tried again later" if event.outcome == "retrying" else ""
    return f"webhook {target}: {event.event} not delivered after {attempts}{later}: {problem}"


def _describe_reload(event: ConfigReloaded, sanitize: Sanitize) -> str:
    if event.problem is not None:
        problems = " | ".join(event.problem.splitlines())
        return f"configuration not reloaded: {sanitize(problems)}"
    changes = ", ".join(map(sanitize, event.changed)) or "nothing has changed"
    return f"configuration reloaded: {changes}"


def _describe_audit_state(event: AuditStateChanged, sanitize: Sanitize) -> str:
    if event.problem is None:
        return "the audit log can be written again"
    return f"the audit log cannot be written: {sanitize(event.problem)}"


_DESCRIBE: dict[type[object], Callable[[Any, Sanitize], str]] = {
    CallSummary: lambda event, sanitize: _describe_call(brief_call(event), sanitize),
    CallBrief: _describe_call,
    BackendStateChanged: _describe_backend,
    KillSwitchChanged: _describe_switch,
    ConfigReloaded: _describe_reload,
    AuthRejected: lambda event, sanitize: (
        f"request from {sanitize(event.address)} rejected: {sanitize(event.reason)}"
    ),
    AuditStateChanged: _describe_audit_state,
    AuditSizeExceeded: _describe_excess,
    LimitReached: _describe_excess,
    UncheckedTool: lambda event, sanitize: (
        f"the arguments of {sanitize(event.name)} are not checked: {sanitize(event.reason)}"
    ),
    SkippedFeatures: _describe_mistake,
    StrayOutput: _describe_mistake,
    SessionEvicted: _describe_session,
    SessionSharing: _describe_session,
    CatalogChanged: lambda event, _: f"the lists have changed: {', '.join(event.lists)}",
    WebhookFinished: _describe_webhook,
    Incident: lambda event, sanitize: (
        f"incident {event.id} in {sanitize(event.method) or 'the gateway'}"
    ),
}
"""The text of each event."""
