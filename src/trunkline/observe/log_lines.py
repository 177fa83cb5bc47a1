"""Log lines: what an event says, for people and for programs.

    Event ──line_of──> Line ──as_json, as_text──> bytes, of exactly one line

Refuses to tell what was said: no argument, no result, no message of an exception, and of an
address neither who asks there nor anything behind its `?` or `#`.

Rules upheld here:
1. One event is one line, whatever a client put into it: nothing in it ends a line, moves a cursor
   or turns text around.
2. What others chose is cut short.
"""

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
    LeftOut,
    Reloaded,
    Switched,
    TurnedAway,
    Unchecked,
)
from trunkline.gateway.passage import CARRIED_OUT
from trunkline.gateway.telling import brief, words
from trunkline.jsonrpc import Incident, RpcError
from trunkline.mcp.meta import Params
from trunkline.visible import visible

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")

MAX_TEXT = 300
"""How much of a text that others chose is shown."""

MAX_FRAMES = 12
"""How many places of a traceback are shown, the innermost first."""

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


def shown(text: str) -> str:
    """Return a text of somebody else's as it may stand in a line."""
    return visible(text, MAX_TEXT)


def line_of(event: Event) -> Line:
    """Return what an event says."""
    if isinstance(event, CallEnded):
        return _call(event)
    if isinstance(event, BackendMoved):
        return _moved(event)
    text = words(event, shown)
    if isinstance(event, Switched):
        name, by = shown(event.name), shown(event.by)
        facts = {"what": event.what, "name": name, "off": event.off, "by": by}
        return Line("warning" if event.off else "info", "switch", text, facts)
    if isinstance(event, Reloaded):
        return _reloaded(event, text)
    if isinstance(event, TurnedAway):
        facts = {"address": shown(event.address), "why": shown(event.why)}
        return Line("info", "turned_away", text, facts)
    if isinstance(event, Unchecked):
        facts = {"tool": shown(event.name), "backend": event.backend, "why": shown(event.why)}
        return Line("warning", "unchecked", text, facts)
    if isinstance(event, LeftOut):
        facts = {"backend": event.backend, "why": [shown(why) for why in event.why]}
        return Line("warning", "left_out", text, facts)
    return _incident(event, text)


def _call(event: CallEnded) -> Line:
    told = brief(event)
    facts: dict[str, Any] = {
        "call": event.id,
        "method": event.method,
        "name": shown(told.name),
        "backend": event.backend,
        "status": event.status,
        "error": event.kind,
        "code": event.code,
        "rule": event.rule,
        "subject": shown(told.subject),
        "client": _client(event),
        "revision": event.revision,
        "ms": round(event.total * 1000, 2),
        "upstream_ms": round(event.upstream * 1000, 2),
        "trace": event.trace,
    }
    level: Level = "debug" if event.status in CARRIED_OUT else "info"
    known = {key: value for key, value in facts.items() if value is not None}
    return Line(level, f"call_{event.status}", f"{words(told, shown)}, call {event.id}", known)


def _client(event: CallEnded) -> str | None:
    """Return what a client calls itself."""
    try:
        return shown(Params(event.client).text("name"))
    except RpcError:
        return None


def _moved(event: BackendMoved) -> Line:
    facts: dict[str, Any] = {"backend": event.name, "state": event.state}
    if event.error is not None:
        facts["error"] = shown(event.error)
    if event.retry_in is not None:
        facts["retry_in"] = event.retry_in
    level = _GRAVITY.get(event.state, "warning")
    return Line(level, f"backend_{event.state}", words(event, shown), facts)


def _reloaded(event: Reloaded, text: str) -> Line:
    if event.problem is not None:
        return Line("error", "reload_refused", text, {"problem": shown(event.problem)})
    return Line("info", "reloaded", text, {"changed": [shown(each) for each in event.changed]})


def _incident(incident: Incident, text: str) -> Line:
    error = incident.error
    places = places_of(error)
    kinds = kinds_of(error)
    text += f": {kinds}"
    if isinstance(error, OSError) and error.strerror:
        text += f" ({shown(error.strerror)})"
    if places:
        text += " at " + " < ".join(places)
    facts = {
        "incident": incident.id,
        "method": shown(incident.method),
        "error": kinds,
        "places": places,
    }
    return Line("error", "incident", text, facts)


def line_of_traces(problem: str | None) -> Line:
    """Return that traces are not delivered, and why, or that they are again."""
    if problem is None:
        return Line("info", "traces", "traces are delivered again")
    return Line("warning", "traces", f"traces are not delivered: {shown(problem)}")


def kinds_of(error: BaseException) -> str:
    """Return what an exception is, and what it came from."""
    return " from ".join(type(each).__qualname__ for each in _chain(error))


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
