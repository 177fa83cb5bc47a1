"""Log lines: turn an event into one log line, as text for people or JSON for programs.

    GatewayEvent ──event_line──> LogLine ──format_json, format_text──> bytes, exactly one line

Lines contain no arguments, results or exception messages. Addresses are shown without user names,
queries and fragments.

Invariants:
1. One event is one line: nothing that a client sent can end a line, move the cursor or reverse the
   text direction.
2. Text from clients and servers is cut.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import PurePath
from traceback import StackSummary, walk_tb
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from trunkline.gateway.call_context import COMPLETED_STATUSES
from trunkline.gateway.event_text import brief_call, describe_event
from trunkline.gateway.events import (
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
from trunkline.jsonrpc import Incident, RpcError
from trunkline.mcp.params import Params
from trunkline.printable import printable

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

LOG_LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")

MAX_TEXT_LENGTH = 300  # length limit of text from clients and servers
MAX_FRAMES = 12  # number of traceback locations shown, innermost first

_COLOURS = {"debug": "2", "warning": "33", "error": "31"}
# The level of backend states; all others are warnings.
_STATE_LEVELS: dict[str, LogLevel] = {
    "not_started": "debug",
    "starting": "debug",
    "stopped": "debug",
    "ready": "info",
    "half_open": "info",
    "disabled": "info",
    "idle_stopped": "info",
}


class LogLine(Struct, frozen=True):
    """A line of the log, not formatted yet."""

    level: LogLevel
    kind: str  # kind of event; lines of one kind share a rate limit
    text: str
    fields: dict[str, Any] = {}


def mask_line(line: LogLine, mask: Callable[[str], str]) -> LogLine:
    """Return a line with its text and the texts in its fields masked."""
    fields = {key: _mask_field(value, mask) for key, value in line.fields.items()}
    return LogLine(line.level, line.kind, mask(line.text), fields)


def _mask_field(value: object, mask: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list):
        return [_mask_field(each, mask) for each in cast("list[object]", value)]
    return value


def clean_text(text: str) -> str:
    """Escape control characters in text from clients and servers, and cut it."""
    return printable(text, MAX_TEXT_LENGTH)


def event_line(event: GatewayEvent) -> LogLine:
    """Return the line for an event."""
    if isinstance(event, CallSummary):
        return _call_line(event)
    return _LINES[type(event)](event, describe_event(event, clean_text))


def _switch_line(event: KillSwitchChanged, text: str) -> LogLine:
    name, by = clean_text(event.name), clean_text(event.by)
    fields = {"kind": event.kind, "name": name, "disabled": event.disabled, "by": by}
    return LogLine("warning" if event.disabled else "info", "switch", text, fields)


def _rejected_line(event: AuthRejected, text: str) -> LogLine:
    fields = {"address": clean_text(event.address), "reason": clean_text(event.reason)}
    return LogLine("info", "auth_rejected", text, fields)


def _audit_state_line(event: AuditStateChanged, text: str) -> LogLine:
    fields = {} if event.problem is None else {"problem": clean_text(event.problem)}
    # Debug: the writer of the audit log has already logged it, with details.
    return LogLine("debug", "audit_state", text, fields)


def _audit_size_line(event: AuditSizeExceeded, text: str) -> LogLine:
    fields = {
        "excess_bytes": event.excess_bytes,
        "max_mib": event.max_mib,
        "min_days": event.min_days,
    }
    return LogLine("warning", "audit_size_exceeded", text, fields)


def _lists_line(event: CatalogChanged, text: str) -> LogLine:
    return LogLine("debug", "lists_changed", text, {"lists": list(event.lists)})


def _limit_line(event: LimitReached, text: str) -> LogLine:
    fields = {
        "subject": clean_text(event.subject),
        "limit": event.limit,
        "session_ended": event.session_ended,
    }
    return LogLine("warning", "limit_reached", text, fields)


def _unchecked_line(event: UncheckedTool, text: str) -> LogLine:
    fields = {
        "tool": clean_text(event.name),
        "backend": event.backend,
        "reason": clean_text(event.reason),
    }
    return LogLine("warning", "tool_unchecked", text, fields)


def _skipped_line(event: SkippedFeatures, text: str) -> LogLine:
    reasons = [clean_text(reason) for reason in event.reasons]
    fields = {"backend": event.backend, "reasons": reasons}
    return LogLine("warning", "features_skipped", text, fields)


def _stray_line(event: StrayOutput, text: str) -> LogLine:
    sample = clean_text(event.sample)
    fields = {"backend": event.backend, "sample": sample, "lines": event.lines}
    return LogLine("warning", "stray_output", text, fields)


def _webhook_line(event: WebhookFinished, text: str) -> LogLine:
    fields: dict[str, Any] = {
        "target": event.target,
        "about": event.event,
        "id": event.id,
        "attempts": event.attempts,
    }
    if event.problem is not None:
        fields["problem"] = clean_text(event.problem)
    level: LogLevel = "debug" if event.outcome == "delivered" else "warning"
    return LogLine(level, f"webhook_{event.outcome}", text, fields)


def _session_line(event: SessionEvicted | SessionSharing, text: str) -> LogLine:
    if isinstance(event, SessionEvicted):
        fields = {"backend": event.backend, "max_sessions": event.max_sessions}
        return LogLine("warning", "session_evicted", text, fields)
    if event.reason is None:
        return LogLine("info", "session_sharing", text, {"backend": event.backend})
    fields = {"backend": event.backend, "reason": clean_text(event.reason)}
    return LogLine("warning", "session_sharing", text, fields)


def _call_line(event: CallSummary) -> LogLine:
    summary = brief_call(event)
    fields: dict[str, Any] = {
        "call": event.id,
        "method": event.method,
        "name": clean_text(summary.name),
        "backend": event.backend,
        "status": event.status,
        "error": event.error_kind,
        "code": event.error_code,
        "rule": event.rule,
        "subject": clean_text(summary.subject),
        "client": _client_name(event),
        "address": clean_text(event.address) or None,
        "revision": event.revision.date,
        "ms": round(event.duration * 1000, 2),
        "upstream_ms": round(event.upstream_duration * 1000, 2),
        "trace": event.traceparent,
    }
    level: LogLevel = "debug" if event.status in COMPLETED_STATUSES else "info"
    present = {key: value for key, value in fields.items() if value is not None}
    text = f"{describe_event(summary, clean_text)}, call {event.id}"
    return LogLine(level, f"call_{event.status}", text, present)


def _client_name(event: CallSummary) -> str | None:
    try:
        return clean_text(Params(event.client).require_text("name"))
    except RpcError:
        return None


def _backend_line(event: BackendStateChanged, text: str) -> LogLine:
    fields: dict[str, Any] = {"backend": event.name, "state": event.state}
    if event.error is not None:
        fields["error"] = clean_text(event.error)
    if event.retry_in is not None:
        fields["retry_in"] = event.retry_in
    if event.stderr:
        fields["stderr"] = [clean_text(line) for line in event.stderr]
    level = _STATE_LEVELS.get(event.state, "warning")
    return LogLine(level, f"backend_{event.state}", text, fields)


def _reload_line(event: ConfigReloaded, text: str) -> LogLine:
    if event.problem is not None:
        return LogLine("error", "reload_rejected", text, {"problem": clean_text(event.problem)})
    changed = [clean_text(each) for each in event.changed]
    return LogLine("info", "reloaded", text, {"changed": changed})


def _incident_line(incident: Incident, text: str) -> LogLine:
    error = incident.error
    locations = exception_locations(error)
    types = exception_types(error)
    text += f": {types}"
    if isinstance(error, OSError) and error.strerror:
        text += f" ({clean_text(error.strerror)})"
    if locations:
        text += " at " + " < ".join(locations)
    fields = {
        "incident": incident.id,
        "method": clean_text(incident.method),
        "error": types,
        "locations": locations,
    }
    return LogLine("error", "incident", text, fields)


_LINES: dict[type[object], Callable[[Any, str], LogLine]] = {
    BackendStateChanged: _backend_line,
    KillSwitchChanged: _switch_line,
    ConfigReloaded: _reload_line,
    AuthRejected: _rejected_line,
    AuditStateChanged: _audit_state_line,
    AuditSizeExceeded: _audit_size_line,
    CatalogChanged: _lists_line,
    LimitReached: _limit_line,
    UncheckedTool: _unchecked_line,
    SkippedFeatures: _skipped_line,
    StrayOutput: _stray_line,
    SessionEvicted: _session_line,
    SessionSharing: _session_line,
    WebhookFinished: _webhook_line,
    Incident: _incident_line,
}
"""The line of each event but calls, which gets the event and its text."""


def trace_delivery_line(error: str | None) -> LogLine:
    """Return the line about failing or recovered trace delivery."""
    if error is None:
        return LogLine("info", "traces", "traces are delivered again")
    return LogLine("warning", "traces", f"traces are not delivered: {clean_text(error)}")


def dropped_line(count: int) -> LogLine:
    """Return the line about lines that found no room in the queue."""
    text = f"{count} log lines were dropped: stderr was not read in time"
    return LogLine("warning", "dropped", text, {"count": count})


def exception_types(error: BaseException) -> str:
    """Return the types of an exception and of its causes."""
    return " from ".join(type(each).__qualname__ for each in _exception_chain(error))


def _exception_chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    # Bounded, since causes may form a cycle.
    while len(chain) < 4 and (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    return chain


def exception_locations(error: BaseException) -> list[str]:
    """Return where an exception was raised, innermost first.

    Its message is not shown, because it may quote data of a client.
    """
    frames = StackSummary.extract(walk_tb(error.__traceback__), lookup_lines=False)
    return [
        f"{'/'.join(PurePath(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}"
        for frame in frames[::-1][:MAX_FRAMES]
    ]


def format_json(line: LogLine, now: float) -> bytes:
    """Return a line as JSON."""
    fields = {
        "time": _format_time(now),
        "level": line.level,
        "event": line.kind,
        "message": line.text,
    }
    return msgspec.json.encode(fields | line.fields) + b"\n"


def format_text(line: LogLine, now: float, coloured: bool = False) -> bytes:
    """Return a line as text; with colours, for a terminal, without the date."""
    time_text = _format_time(now)
    if not coloured:
        return f"{time_text} {line.level:<7} {line.text}\n".encode("utf-8", "replace")
    text = f"{time_text[11:19]} {line.text}"
    colour = _COLOURS.get(line.level)
    styled = text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"
    return f"{styled}\n".encode("utf-8", "replace")


def _format_time(now: float) -> str:
    text = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
