"""Records: encode an event of the gateway as one audit record, a line of JSON.

    calls, backend states, kill switches, reloads, rejections ──> RecordEncoder ──> AuditEntry

It records every event it is given. Text from clients and servers is cut, so records stay short.

Invariants:
1. Every event yields a record, even if it cannot be encoded completely.
2. A body is one line of JSON in UTF-8, without NUL.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from trunkline.audit.redaction import Redactor, redact_text, redact_uri
from trunkline.gateway.events import (
    AuditSizeExceeded,
    AuthRejected,
    BackendStateChanged,
    CallSummary,
    ConfigReloaded,
    KillSwitchChanged,
    WebhookFinished,
)
from trunkline.jsonrpc import Id, from_raw
from trunkline.jsonrpc.raw_json import encode_json
from trunkline.mcp.identity import Principal
from trunkline.printable import clip_text

MAX_NAME_LENGTH = 512
MAX_LABEL_LENGTH = 128
# The length limit of subjects and roles; authentication refuses longer ones.
MAX_SUBJECT_LENGTH = 256
MAX_ID_LENGTH = 1024  # of a principal: a kind, an issuer and a subject

# The number of characters of a URI that are searched for credentials
_SCANNED_URI_LENGTH = 2 * MAX_NAME_LENGTH
_MAX_LISTED = 16  # number of addresses, or of changes, that are listed one by one
_MAX_CACHED_CLIENTS = 256
_MAX_CACHED_LABELS = 1024

RareEvent = (
    BackendStateChanged
    | KillSwitchChanged
    | ConfigReloaded
    | AuthRejected
    | AuditSizeExceeded
    | WebhookFinished
)
RecordedEvent = CallSummary | RareEvent  # all events that have records


class AuditEntry(NamedTuple):
    """A record that is not in a chain yet: its body, and its searchable columns.

    A batch of calls is one entry with many records in one body; see `call_batch`.
    """

    at: float
    kind: str
    name: str
    subject: str
    backend: str
    status: str
    body: bytes
    records: int = 1  # number of records in the body


# An item for the writer: an encoded entry, a call, or another event with its time
QueuedItem = AuditEntry | CallSummary | tuple[float, RareEvent]


class CallRecord(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="call", gc=False):
    """The record of a call; docs/reference/audit.md describes the fields."""

    at: float
    gateway: str
    id: str
    request_id: str | int | None
    subject: str
    client: str
    client_version: str
    revision: str
    method: str
    name: str
    status: str
    gateway_ms: float
    upstream_ms: float
    bytes_in: int
    bytes_out: int
    role: str | None = None
    trace: str | None = None
    backend: str | None = None
    backend_revision: str | None = None
    decision: str | None = None
    rule: str | None = None
    error: str | None = None
    code: int | None = None
    arguments: Raw | None = None
    wrapper: str | None = None
    mismatch: str | None = None
    failure: str | None = None
    principal: str | None = None
    address: str | None = None
    surface: str | None = None
    found: tuple[str, ...] | None = None


class _ClientInfo(Struct, frozen=True):
    name: object = ""
    version: object = ""


class RecordEncoder:
    """Encodes the events of one gateway."""

    def __init__(self, gateway: str, redactor: Redactor) -> None:
        """Prepare; `gateway` names the writer in every record."""
        self.gateway = gateway
        self.redactor = redactor
        self._clients: dict[bytes, tuple[str, str]] = {}
        self._labels: dict[str, str] = {}
        self._to_json = msgspec.json.Encoder().encode

    def encode(self, events: Iterable[QueuedItem]) -> list[AuditEntry]:
        """Return the entries of queued items; rejected logins are grouped by address and reason."""
        entries: list[AuditEntry] = []
        rejections: Counter[tuple[str, str]] = Counter()
        last = 0.0
        for item in events:
            if isinstance(item, AuditEntry):
                entries.append(item)
                continue
            if isinstance(item, CallSummary):
                entries.append(self.encode_call(item))
                continue
            at, event = item
            if isinstance(event, AuthRejected):
                rejections[event.address, event.reason] += 1
                last = at
            else:
                entries.append(self._encode_rare(at, event))
        if rejections:
            entries += self._encode_rejections(last, rejections)
        return entries

    def encode_call(self, event: CallSummary) -> AuditEntry:
        """Return the entry of a call."""
        try:
            call = self.call_record(event)
            body = self._to_json(call)
        except Exception as error:
            # A record without details is better than none: invariant 1.
            return self.encode_note(
                event.wall_time,
                "call",
                id=event.id,
                status=event.status,
                problem=type(error).__name__,
            )
        backend = call.backend or ""
        return AuditEntry(call.at, "call", call.name, call.subject, backend, call.status, body)

    def call_record(self, event: CallSummary) -> CallRecord:
        """Return the record of a call; may raise any exception that its parts raise."""
        context, status, upstream = event.context, event.status, event.upstream_duration
        caller, request, entry = context.caller, context.request, context.entry
        principal, rule, name = caller.principal, context.rule, context.name
        # Most names are short and have no colon: skip the search for credentials.
        if len(name) > MAX_NAME_LENGTH or "\0" in name or ":" in name:
            name = _clean_name(self.redactor.mask_text(name))
        if entry is None and len(name) > MAX_LABEL_LENGTH:
            name = self.unknown_name(name)
        client, version = self._client_info(caller.client_info)
        search = context.search
        return CallRecord(
            context.wall_time,
            self.gateway,
            context.id,
            clean_request_id(request.id),
            self._short_label(principal.label),
            client,
            version,
            caller.revision.date,
            request.method,
            name,
            status,
            int((event.duration - upstream) * 1e6) / 1e3,  # `round` takes ten times as long
            int(upstream * 1e6) / 1e3,
            event.request_bytes,
            event.response_bytes,
            self._short_label(principal.roles[0]) if principal.roles else None,
            event.traceparent,
            event.backend,
            None if context.backend_revision is None else context.backend_revision.date,
            _policy_decision(status, rule),
            None if rule is None else self._short_label(rule),
            event.error_kind,
            event.error_code,
            self.redactor.redact(context.arguments),
            event.wrapper,
            None if context.mismatch is None else self._clean_text(context.mismatch),
            None if event.failure is None else self._clean_text(event.failure),
            recorded_principal(principal),
            event.address or None,
            None if search is None else search.surface,
            None if search is None else search.found,
        )

    def _clean_text(self, text: str) -> str:
        """Return a note about arguments, or of a failure, cut. It is only masked."""
        return truncate(self.redactor.mask_text(text), MAX_NAME_LENGTH)

    def unknown_name(self, name: str) -> str:
        """Return a name that a client may have made up, cut more than others."""
        return truncate(_clean_name(name))

    def _short_label(self, text: str) -> str:
        """Return a subject, role or rule, cut; cached, since few are repeated by many calls."""
        label = self._labels.get(text)
        if label is None:
            if len(self._labels) >= _MAX_CACHED_LABELS:
                self._labels.clear()
            label = self._labels[text] = truncate(text, MAX_SUBJECT_LENGTH)
        return label

    def _client_info(self, raw: Raw) -> tuple[str, str]:
        key = bytes(raw)
        info = self._clients.get(key)
        if info is None:
            try:
                found = from_raw(raw, _ClientInfo)
            except ValueError:
                found = _ClientInfo()
            info = (truncate(str(found.name)), truncate(str(found.version)))
            if len(self._clients) >= _MAX_CACHED_CLIENTS:
                self._clients.clear()
            if len(key) <= MAX_NAME_LENGTH:
                self._clients[key] = info
        return info

    def _encode_rare(
        self,
        at: float,
        event: BackendStateChanged
        | KillSwitchChanged
        | ConfigReloaded
        | AuditSizeExceeded
        | WebhookFinished,
    ) -> AuditEntry:
        if isinstance(event, WebhookFinished):
            return self.encode_note(
                at,
                "webhook",
                name=event.target,
                status=event.outcome,
                about=event.event,
                id=event.id,
                attempts=event.attempts,
                problem=None if event.problem is None else redact_text(event.problem),
            )
        if isinstance(event, AuditSizeExceeded):
            return self.encode_note(
                at,
                "oversized",
                excess_bytes=event.excess_bytes,
                max_mib=event.max_mib,
                min_days=event.min_days,
            )
        if isinstance(event, BackendStateChanged):
            error = None if event.error is None else redact_text(event.error)
            return self.encode_note(
                at,
                "backend",
                backend=event.name,
                status=event.state,
                error=error or None,
                stderr=[redact_text(line) for line in event.stderr] or None,
            )
        if isinstance(event, KillSwitchChanged):
            state = "off" if event.disabled else "on"
            return self.encode_note(
                at, "switched", target=event.kind, name=event.name, subject=event.by, status=state
            )
        status = "applied" if event.problem is None else "rejected"
        problem = None if event.problem is None else redact_text(event.problem)
        changed = [truncate(each) for each in event.changed[:_MAX_LISTED]]
        return self.encode_note(at, "reloaded", status=status, problem=problem, changed=changed)

    def _encode_rejections(
        self, at: float, rejections: Counter[tuple[str, str]]
    ) -> list[AuditEntry]:
        frequent = rejections.most_common(_MAX_LISTED)
        entries = [
            self.encode_note(at, "auth_rejected", name=address, status=reason, count=count)
            for (address, reason), count in frequent
        ]
        rest = rejections.total() - sum(count for _, count in frequent)
        if rest:
            entries.append(
                self.encode_note(at, "auth_rejected", name="others", status="", count=rest)
            )
        return entries

    def encode_note(self, at: float, kind: str, **fields: Any) -> AuditEntry:
        """Return the entry of an event that is not a call."""
        kept = {key: _truncate_text(value) for key, value in fields.items() if value is not None}
        body = encode_json({"kind": kind, "at": round(at, 6), "gateway": self.gateway, **kept})
        name, subject, backend, status = (
            str(kept.get(key, "")) for key in ("name", "subject", "backend", "status")
        )
        return AuditEntry(round(at, 6), kind, name, subject, backend, status, body)


def read_columns(body: bytes) -> tuple[float, str, str, str, str, str]:
    """Return the columns that belong to a body; raises ValueError."""
    found = from_raw(body, _RecordColumns)
    return (found.at, found.kind, found.name, found.subject, found.backend, found.status)


class _RecordColumns(Struct, frozen=True):
    at: float
    kind: str
    name: str = ""
    subject: str = ""
    backend: str = ""
    status: str = ""


def recorded_principal(principal: Principal) -> str | None:
    """Return the id of a principal for its records; None if it equals the subject."""
    return None if principal.id == principal.label else truncate(principal.id, MAX_ID_LENGTH)


def truncate(text: str, max_length: int = MAX_LABEL_LENGTH) -> str:
    """Cut a text, and replace characters that a database cannot store."""
    text = text[:max_length].replace("\0", "\ufffd")
    return text.encode("utf-8", "replace").decode()


def _clean_name(name: str) -> str:
    """Return the name that a call asked for, cut; a URI without credentials."""
    if "://" in name:
        name = redact_uri(clip_text(name, _SCANNED_URI_LENGTH))
    return truncate(name, MAX_NAME_LENGTH)


def _policy_decision(status: str, rule: str | None) -> str | None:
    """Return the decision of the policy; None if the policy was not evaluated."""
    if status == "denied":
        return "deny"
    return None if rule is None else "allow"


def _truncate_text(value: Any) -> Any:
    return truncate(value, MAX_NAME_LENGTH) if isinstance(value, str) else value


def clean_request_id(id: Id) -> str | int | None:
    """Return the request id of a client; cut, if it is a long text."""
    if id is None or type(id) is int:
        return id
    return truncate(id) if type(id) is str else truncate(repr(id))
