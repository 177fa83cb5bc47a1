"""Records: what is written down of an event, as one line of JSON.

    CallEnded, BackendMoved, Switched, Reloaded, TurnedAway ──> Scribe ──> Entry: columns and body

Refuses to judge what is worth knowing. Text of others is cut, so that a record is never long.

Rules upheld here:
1. There is a record for every event, even for one that cannot be written down whole.
2. A body is one line of JSON in UTF-8, without NUL.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from trunkline.gateway.events import (
    BackendMoved,
    CallEnded,
    Reloaded,
    Switched,
    TurnedAway,
)
from trunkline.journal.redact import Redactor, shorten, without_credentials
from trunkline.jsonrpc import Id, from_raw
from trunkline.jsonrpc.raw import write
from trunkline.routing.userinfo import beginning

MAX_NAME = 512
MAX_LABEL = 128
MAX_WHO = 256
"""How long a subject or a role is, at most: whoever is let in is found by it, none is cut."""

_LOOKED = 2 * MAX_NAME
"""How many characters of a URI are looked at."""

_MAX_PARTS = 16
"""How many addresses, or changes, are told of one by one."""

_MAX_CLIENTS = 256
_MAX_LABELS = 1024

Other = BackendMoved | Switched | Reloaded | TurnedAway
Happening = CallEnded | Other
"""What is written down."""


class Entry(NamedTuple):
    """One record, not yet in a chain; what can be searched for stands beside the body.

    A sheet stands for many, in one body: see `sheet`.
    """

    at: float
    kind: str
    name: str
    subject: str
    backend: str
    status: str
    body: bytes
    records: int = 1
    """How many records that are."""


Noted = Entry | CallEnded | tuple[float, Other]
"""What is on its way: written down already, or with when it came to be known."""


class Call(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="call", gc=False):
    """The record of a call: its fields are those of the manual."""

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
    verdict: str | None = None
    rule: str | None = None
    error: str | None = None
    code: int | None = None
    arguments: Raw | None = None


class _Client(Struct, frozen=True):
    name: object = ""
    version: object = ""


class Scribe:
    """Writes down what happened, for one gateway."""

    def __init__(self, gateway: str, redactor: Redactor) -> None:
        """Begin; `gateway` is how records name who wrote them."""
        self.gateway = gateway
        self.redactor = redactor
        self._clients: dict[bytes, tuple[str, str]] = {}
        self._labels: dict[str, str] = {}
        self._encode = msgspec.json.Encoder().encode

    def write(self, events: Iterable[Noted]) -> list[Entry]:
        """Return the records of events.

        Those who were turned away are counted: whoever knocks a thousand times has one record.
        """
        entries: list[Entry] = []
        turned_away: Counter[tuple[str, str]] = Counter()
        last = 0.0
        for noted in events:
            if isinstance(noted, Entry):
                entries.append(noted)
                continue
            if isinstance(noted, CallEnded):
                entries.append(self.call(noted))
                continue
            at, event = noted
            if isinstance(event, TurnedAway):
                turned_away[event.address, event.why] += 1
                last = at
            else:
                entries.append(self._other(at, event))
        if turned_away:
            entries += self._turned_away(last, turned_away)
        return entries

    def call(self, event: CallEnded) -> Entry:
        """Return the record of a call."""
        try:
            call = self.in_full(event)
            body = self._encode(call)
        except Exception as why:
            return self.note(
                event.at, "call", id=event.id, status=event.status, problem=type(why).__name__
            )
        backend = call.backend or ""
        return Entry(call.at, "call", call.name, call.subject, backend, call.status, body)

    def in_full(self, event: CallEnded) -> Call:
        """Return what is written down of a call; raises whatever its parts raise."""
        passage, status, upstream = event.passage, event.status, event.upstream
        caller, request, entry = passage.caller, passage.request, passage.entry
        principal, rule, name = caller.principal, passage.rule, passage.name
        if len(name) > MAX_NAME or "\0" in name or ":" in name:
            name = _name(name)
        client, version = self._client(caller.client)
        return Call(
            passage.at,
            self.gateway,
            passage.id,
            request_id(request.id),
            self._label(principal.subject),
            client,
            version,
            caller.version,
            request.method,
            name,
            status,
            int((event.total - upstream) * 1e6) / 1e3,  # `round` would take ten times as long
            int(upstream * 1e6) / 1e3,
            event.bytes_in,
            event.bytes_out,
            self._label(principal.roles[0]) if principal.roles else None,
            event.trace,
            None if entry is None else entry.backend,
            passage.revision,
            _verdict(status, rule),
            None if rule is None else self._label(rule),
            event.kind,
            event.code,
            self.redactor.keep(passage.arguments),
        )

    def _label(self, text: str) -> str:
        """Return who asked, or which rule decided: said again and again, and cut once."""
        known = self._labels.get(text)
        if known is None:
            if len(self._labels) >= _MAX_LABELS:
                self._labels.clear()
            known = self._labels[text] = cut(text, MAX_WHO)
        return known

    def _client(self, said: Raw) -> tuple[str, str]:
        """Return what a client calls itself, and its version."""
        key = bytes(said)
        known = self._clients.get(key)
        if known is None:
            try:
                found = from_raw(said, _Client)
            except ValueError:
                found = _Client()
            known = (cut(str(found.name)), cut(str(found.version)))
            if len(self._clients) >= _MAX_CLIENTS:
                self._clients.clear()
            if len(key) <= MAX_NAME:
                self._clients[key] = known
        return known

    def _other(self, at: float, event: BackendMoved | Switched | Reloaded) -> Entry:
        if isinstance(event, BackendMoved):
            error = None if event.error is None else shorten(event.error)
            return self.note(
                at, "backend", backend=event.name, status=event.state, error=error or None
            )
        if isinstance(event, Switched):
            off = "off" if event.off else "on"
            return self.note(
                at, "switched", what=event.what, name=event.name, subject=event.by, status=off
            )
        status = "taken" if event.problem is None else "refused"
        problem = None if event.problem is None else shorten(event.problem)
        changed = [cut(each) for each in event.changed[:_MAX_PARTS]]
        return self.note(at, "reloaded", status=status, problem=problem, changed=changed)

    def _turned_away(self, at: float, found: Counter[tuple[str, str]]) -> list[Entry]:
        most = found.most_common(_MAX_PARTS)
        entries = [
            self.note(at, "turned_away", name=address, status=why, count=count)
            for (address, why), count in most
        ]
        rest = found.total() - sum(count for _, count in most)
        if rest:
            entries.append(self.note(at, "turned_away", name="others", status="", count=rest))
        return entries

    def note(self, at: float, kind: str, **fields: Any) -> Entry:
        """Return a record of anything but a whole call."""
        told = {key: _told(value) for key, value in fields.items() if value is not None}
        body = write({"kind": kind, "at": round(at, 6), "gateway": self.gateway, **told})
        name, subject, backend, status = (
            str(told.get(key, "")) for key in ("name", "subject", "backend", "status")
        )
        return Entry(round(at, 6), kind, name, subject, backend, status, body)


def columns_of(body: bytes) -> tuple[float, str, str, str, str, str]:
    """Return what stands beside a body, as the body itself has it; raises ValueError."""
    found = from_raw(body, _Columns)
    return (found.at, found.kind, found.name, found.subject, found.backend, found.status)


class _Columns(Struct, frozen=True):
    at: float
    kind: str
    name: str = ""
    subject: str = ""
    backend: str = ""
    status: str = ""


def cut(text: str, longest: int = MAX_LABEL) -> str:
    """Return a text that is not too long, and that every database can hold."""
    text = text[:longest].replace("\0", "\ufffd")
    return text.encode("utf-8", "replace").decode()


def _name(name: str) -> str:
    """Return what was asked for; of a URI, nothing that looks like a credential."""
    if "://" in name:
        name = without_credentials(beginning(name, _LOOKED))
    return cut(name, MAX_NAME)


def _verdict(status: str, rule: str | None) -> str | None:
    """Return what the policy said of a call; None if it was not asked, or came to no end."""
    if status == "denied" or (rule is not None and status == "unknown"):
        return "deny"
    return None if rule is None else "allow"


def _told(value: Any) -> Any:
    return cut(value, MAX_NAME) if isinstance(value, str) else value


def request_id(id: Id) -> str | int | None:
    """Return the client's name for a call, as far as it is kept."""
    if id is None or type(id) is int:
        return id
    return cut(id) if type(id) is str else cut(repr(id))
