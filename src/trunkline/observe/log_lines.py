"""Log lines: what an event says, for people and for programs.

    Event ──line_of──> Line ──as_json, as_text──> bytes, of exactly one line

Refuses to tell what was said: no argument, no result, no message of an exception, and of an
address in a resource nothing behind its `?`.

Rules upheld here:
1. One event is one line, whatever a client put into it: nothing in it ends a line, moves a cursor
   or turns text around.
2. What others chose is cut short.
"""

import re
from datetime import UTC, datetime
from pathlib import PurePath
from traceback import StackSummary, walk_tb
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from trunkline.gateway.events import (
    BackendMoved,
    CallEnded,
    Event,
    Reloaded,
    Switched,
    TurnedAway,
    Unchecked,
)
from trunkline.jsonrpc import Incident, RpcError
from trunkline.mcp.meta import Params

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")

MAX_TEXT = 300
"""How much of a text that others chose is shown."""

MAX_FRAMES = 12
"""How many places of a traceback are shown, the innermost first."""

# Ends of lines, whatever controls a terminal, and what turns the direction of text.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_COLOURS = {"debug": "2", "warning": "33", "error": "31"}
_GRAVITY: dict[str, Level] = {
    "idle": "debug",
    "starting": "debug",
    "stopped": "debug",
    "ready": "info",
    "half_open": "info",
}
"""How grave it is that a backend is in a state; all others are a warning."""


class Line(Struct, frozen=True):
    """One thing to say."""

    level: Level
    kind: str
    """What happened, in one word; those of one kind are limited together."""
    text: str
    facts: dict[str, Any] = {}


def visible(text: str) -> str:
    """Return a text of somebody else's, short, and with what is not to be seen made visible."""
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def line_of(event: Event) -> Line:
    """Return what an event says."""
    if isinstance(event, CallEnded):
        return _call(event)
    if isinstance(event, BackendMoved):
        return _moved(event)
    if isinstance(event, Switched):
        what = event.what if event.what in ("all", "pause") else f"{event.what} {event.name}"
        text = f"{visible(what)} {'stopped' if event.off else 'let go on'} by {visible(event.by)}"
        facts = {"what": event.what, "name": visible(event.name), "off": event.off}
        return Line("warning" if event.off else "info", "switch", text, facts)
    if isinstance(event, Reloaded):
        return _reloaded(event)
    if isinstance(event, TurnedAway):
        facts = {"address": visible(event.address), "why": visible(event.why)}
        return Line("info", "turned_away", "turned away {address}: {why}".format(**facts), facts)
    if isinstance(event, Unchecked):
        facts = {"tool": visible(event.name), "backend": event.backend, "why": visible(event.why)}
        text = "the arguments of {tool} are not checked: {why}".format(**facts)
        return Line("warning", "unchecked", text, facts)
    return _incident(event)


def _call(event: CallEnded) -> Line:
    name = visible(event.name.partition("?")[0] if event.method == "resources/read" else event.name)
    facts: dict[str, Any] = {
        "call": event.id,
        "method": event.method,
        "name": name,
        "backend": event.backend,
        "status": event.status,
        "error": event.kind,
        "code": event.code,
        "rule": event.rule,
        "subject": visible(event.principal.subject),
        "client": _client(event),
        "revision": event.revision,
        "ms": round(event.total * 1000, 2),
        "upstream_ms": round(event.upstream * 1000, 2),
        "trace": event.trace,
    }
    level: Level = "debug" if event.status == "success" else "info"
    text = f"{event.method} {name}: {event.status}"
    if event.code is not None:
        text += f" ({event.kind or event.code})"
    text += f" in {facts['ms']:g} ms, for {facts['subject']}, call {event.id}"
    known = {key: value for key, value in facts.items() if value is not None}
    return Line(level, f"call_{event.status}", text, known)


def _client(event: CallEnded) -> str | None:
    """Return what a client calls itself."""
    try:
        return visible(Params(event.client).text("name"))
    except RpcError:
        return None


def _moved(event: BackendMoved) -> Line:
    facts: dict[str, Any] = {"backend": event.name, "state": event.state}
    text = f"server {event.name} is {event.state}"
    if event.error is not None:
        facts["error"] = visible(event.error)
        text += f": {facts['error']}"
    if event.retry_in is not None:
        facts["retry_in"] = event.retry_in
        text += f"; next try in {event.retry_in:g} s"
    level = _GRAVITY.get(event.state, "warning")
    return Line(level, f"backend_{event.state}", text, facts)


def _reloaded(event: Reloaded) -> Line:
    if event.problem is not None:
        problem = visible(event.problem)
        text = f"the configuration was not taken: {problem}"
        return Line("error", "reload_refused", text, {"problem": problem})
    changed = [visible(each) for each in event.changed]
    text = "the configuration was read again: " + (", ".join(changed) or "nothing has changed")
    return Line("info", "reloaded", text, {"changed": changed})


def _incident(incident: Incident) -> Line:
    error = incident.error
    places = places_of(error)
    kinds = " from ".join(type(each).__qualname__ for each in _chain(error))
    method = visible(incident.method)
    text = f"incident {incident.id} in {method or 'the gateway'}: {kinds}"
    if isinstance(error, OSError) and error.strerror:
        text += f" ({visible(error.strerror)})"
    if places:
        text += " at " + " < ".join(places)
    facts = {"incident": incident.id, "method": method, "error": kinds, "places": places}
    return Line("error", "incident", text, facts)


def _chain(error: BaseException) -> list[BaseException]:
    found = [error]
    while len(found) < 4 and (cause := found[-1].__cause__ or found[-1].__context__) is not None:
        found.append(cause)
    return found


def places_of(error: BaseException) -> list[str]:
    """Return where an exception was raised, innermost first; its message may quote anything."""
    frames = StackSummary.extract(walk_tb(error.__traceback__), lookup_lines=False)
    return [
        f"{'/'.join(PurePath(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}"
        for frame in frames[::-1][:MAX_FRAMES]
    ]


def as_json(line: Line, now: float) -> bytes:
    """Write a line for programs."""
    facts = {"time": _moment(now), "level": line.level, "event": line.kind, "message": line.text}
    return msgspec.json.encode(facts | line.facts) + b"\n"


def as_text(line: Line, now: float, coloured: bool = False) -> bytes:
    """Write a line for people: at a terminal they know which day it is."""
    moment = _moment(now)
    if not coloured:
        return f"{moment} {line.level:<7} {line.text}\n".encode("utf-8", "replace")
    text = f"{moment[11:19]} {line.text}"
    colour = _COLOURS.get(line.level)
    shown = text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"
    return f"{shown}\n".encode("utf-8", "replace")


def _moment(now: float) -> str:
    return (
        datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
