"""Events of the gateway as JSON-RPC notifications for webhooks.

    event ──> EventMessages ──> EventMessage: name, server, body ──> each target that wants it

The name of the event is the method of the notification. Its params are the fields of the log line
of the event, with the time, the gateway and the text. The names are a promise to receivers.

Invariants:
1. A message has no arguments, results, tokens or configured secrets: it is made of the log line.
2. Events that clients can cause at will are sent at most once per THROTTLE_INTERVAL for each
   source; the next one says how many were left out.
"""

from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
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
)
from trunkline.jsonrpc import Incident, Notification
from trunkline.telemetry.log_lines import LogLine, event_line, mask_line

THROTTLE_INTERVAL = 60.0

_THROTTLED = frozenset(("auth.rejected", "limit.exceeded", "incident"))

_MAX_SOURCES = 1024
"""How many sources of throttled events are told apart; further ones count as one."""

_DOWN_STATES = frozenset(("waiting", "failed", "circuit_open"))


class EventMessage(NamedTuple):
    """An event as a notification, before it has an id."""

    event: str
    server: str | None
    """The server that it is about, None if it is about no server."""
    body: bytes


class _Source(NamedTuple):
    """When a throttled event of one source was sent, and how many were left out since."""

    sent_at: float
    omitted: int


class EventMessages:
    """Makes messages of the events of one gateway."""

    def __init__(self, gateway: str, mask: Callable[[str], str] = str) -> None:
        """Start with all servers up; `mask` removes secrets from texts."""
        self._gateway = gateway
        self._mask = mask
        self._down: set[str] = set()
        self._sources: dict[tuple[str, str], _Source] = {}

    def to_message(self, event: GatewayEvent, now: float) -> EventMessage | None:
        """Return the message of an event, None if receivers are not told of it."""
        name = self._name(event)
        if name is None:
            return None
        line = mask_line(event_line(event), self._mask)
        omitted = 0
        if name in _THROTTLED:
            source = str(line.fields.get("subject") or line.fields.get("address") or "")
            if (found := self._admit((name, source), now)) is None:
                return None
            omitted = found
        return self._message(name, line, now, omitted)

    def test_message(self, now: float) -> EventMessage:
        """Return the message that an operator sends to try a target."""
        line = LogLine("info", "webhook_test", "a test message of trunkline webhooks test")
        return self._message("webhook.test", line, now)

    def _message(self, name: str, line: LogLine, now: float, omitted: int = 0) -> EventMessage:
        params: dict[str, Any] = {
            "time": round(now, 3),
            "gateway": self._gateway,
            "message": line.text,
            **line.fields,
        }
        if omitted:
            params["omitted"] = omitted
        server = line.fields.get("backend")
        return EventMessage(
            name, server if isinstance(server, str) else None, Notification(name, params).encode()
        )

    def _name(self, event: GatewayEvent) -> str | None:
        match event:
            case CallSummary():
                return "limit.exceeded" if event.status == "rate_limited" else None
            case BackendStateChanged():
                return self._state_name(event)
            case KillSwitchChanged(kind, _, disabled):
                names = ("pause", "resume") if kind == PAUSE else ("kill", "revive")
                return names[0] if disabled else names[1]
            case ConfigReloaded(problem):
                return "config.reloaded" if problem is None else "config.rejected"
            case AuditStateChanged(problem):
                return "audit.recovered" if problem is None else "audit.problem"
            case CatalogChanged(lists):
                return "tools.changed" if "tools" in lists else None
            case _:
                return _NAMES.get(type(event))

    def _state_name(self, event: BackendStateChanged) -> str | None:
        """Return `server.down` once until the server is up again."""
        if event.state in _DOWN_STATES and event.name not in self._down:
            self._down.add(event.name)
            return "server.down"
        if event.state == "ready" and event.name in self._down:
            self._down.discard(event.name)
            return "server.up"
        return None

    def _admit(self, source: tuple[str, str], now: float) -> int | None:
        """Return how many messages were left out before this one, None to leave it out too."""
        if source not in self._sources and len(self._sources) >= _MAX_SOURCES:
            self._sources = {
                key: found
                for key, found in self._sources.items()
                if now - found.sent_at < THROTTLE_INTERVAL
            }
            if len(self._sources) >= _MAX_SOURCES:
                source = (source[0], "")
        found = self._sources.get(source)
        if found is not None and now - found.sent_at < THROTTLE_INTERVAL:
            self._sources[source] = found._replace(omitted=found.omitted + 1)
            return None
        self._sources[source] = _Source(now, 0)
        return 0 if found is None else found.omitted


_NAMES: dict[type[object], str] = {
    AuditSizeExceeded: "audit.problem",
    AuthRejected: "auth.rejected",
    Incident: "incident",
    LimitReached: "limit.exceeded",
    SessionEvicted: "server.sessions",
    SessionSharing: "server.sessions",
    SkippedFeatures: "server.features",
    StrayOutput: "server.output",
    UncheckedTool: "tool.unchecked",
}


def matches(message: EventMessage, events: Collection[str], servers: Collection[str]) -> bool:
    """Return whether a target wants a message: by patterns of events and, if any, of servers.

    With patterns of servers, messages that are about no server are not wanted.
    """
    if not any(fnmatchcase(message.event, pattern) for pattern in events):
        return False
    if not servers:
        return True
    server = message.server
    return server is not None and any(fnmatchcase(server, pattern) for pattern in servers)
