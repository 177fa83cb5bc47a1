"""Telling: what has happened, in plain words, the same for the log and for whoever asks.

    CallEnded ──brief──> Ended ──┐
    any other event ─────────────┴──words──> "server fs is waiting: it ended; next try in 2 s"

Refuses to tell what was said: of a call it tells who, what and how it ended, of an address neither
who asks there, with which password, nor anything behind its `?` or `#`, and of what nobody foresaw
no more than a client is told.
"""

from collections.abc import Callable
from typing import NamedTuple

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
from trunkline.gateway.switches import PAUSE
from trunkline.jsonrpc import Incident
from trunkline.routing.userinfo import beginning, without_user

_LOOKED_AT = 512
"""How many characters of an address are looked at; nobody shows as many."""

_NAMED = ("tools/call", "prompts/get")
"""What asks for something by a name, which is no address unless it looks like one."""

Show = Callable[[str], str]
"""Makes what others chose fit to be shown."""


class Ended(NamedTuple):
    """What is told of a call: not the event, which has all that was asked."""

    subject: str
    method: str
    name: str
    status: str
    why: str | int | None
    """The kind of the refusal, or else the code of the error."""
    seconds: float


def target(event: CallEnded, longest: int | None = None) -> str:
    """Return what a call was for, of an address only what is not confidential; cut if too long."""
    name = event.name
    if event.method not in _NAMED or "://" in name:
        name = _place(name)
    return name[:longest]


def _place(address: str) -> str:
    """Return where something is, and neither who asks nor for what."""
    place = without_user(beginning(address, _LOOKED_AT), any_name=True)
    return place.partition("?")[0].partition("#")[0][:_LOOKED_AT]


def brief(event: CallEnded, longest: int | None = None) -> Ended:
    """Return what is told of a call, with names of so many characters at most."""
    why = None if event.code is None else event.kind or event.code
    subject = event.principal.subject[:longest]
    name = target(event, longest)
    return Ended(subject, event.method, name, event.status, why, event.total)


def words(event: Event | Ended, show: Show = str) -> str:
    """Say what has happened."""
    match event:
        case CallEnded():
            return words(brief(event), show)
        case Ended():
            return _ended(event, show)
        case BackendMoved(name, state, error, retry):
            why = f": {show(error)}" if error else ""
            again = "" if retry is None else f"; next try in {retry:g} s"
            return f"server {show(name)} is {state}{why}{again}"
        case Switched():
            return _switched(event, show)
        case Reloaded(None, changed):
            what = ", ".join(map(show, changed)) or "nothing has changed"
            return f"the configuration was read again: {what}"
        case Reloaded(problem):
            said = " | ".join(str(problem).splitlines())
            return f"the configuration was not taken: {show(said)}"
        case TurnedAway(address, why):
            return f"{show(address)} was turned away: {show(why)}"
        case Unchecked(name, _, why):
            return f"the arguments of {show(name)} are not checked: {show(why)}"
        case LeftOut(backend, why):
            first, *others = map(show, why)
            more = f", and {len(others)} more" if others else ""
            return f"left out of what server {show(backend)} lists: {first}{more}"
        case Incident(id, method):
            return f"incident {id} in {show(method) or 'the gateway'}"


def _ended(call: Ended, show: Show) -> str:
    did = "called" if call.method == "tools/call" else f"asked {call.method} of"
    why = "" if call.why is None else f" ({call.why})"
    milliseconds = round(call.seconds * 1000, 2)
    end = f"{call.status}{why} in {milliseconds:g} ms"
    return f"{show(call.subject)} {did} {show(call.name) or '?'}: {end}"


def _switched(event: Switched, show: Show) -> str:
    by = show(event.by)
    if event.what == PAUSE:
        return f"the gateway is {'paused' if event.off else 'resumed'} by {by}"
    thing = f"{event.what} {show(event.name)}" if event.name else event.what
    return f"{thing} is {'stopped' if event.off else 'revived'} by {by}"
