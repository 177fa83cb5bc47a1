"""Events: what has happened in the gateway, told to whoever listens.

    calls, backends, switches, configuration ──tell──> journal, metrics, log, what operators ask

Refuses to make anybody wait: a listener takes note and returns; one that fails is reported, and
the others are told all the same.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from trunkline.gateway.passage import CallEnded
from trunkline.jsonrpc import Incident
from trunkline.jsonrpc.incident import Report, answer_for, print_incident

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
"""All ends that a call can have. A tool that says itself that it failed is a `tool_error`."""

CARRIED_OUT = ("success", "tool_error")
"""Those of calls that a backend has carried out, whatever it says of that itself."""


class BackendMoved(Struct, frozen=True):
    """A backend is in another state."""

    name: str
    state: str
    error: str | None
    retry_in: float | None


class Switched(Struct, frozen=True):
    """Something was stopped, or let go on."""

    what: str
    """`tool`, `server`, `subject`, `all`, or `pause` for the gateway as a whole."""
    name: str
    off: bool
    by: str


class Reloaded(Struct, frozen=True):
    """The configuration was read again; `problem` says why it was not taken, None if it was."""

    problem: str | None
    changed: tuple[str, ...] = ()


class TurnedAway(Struct, frozen=True):
    """Somebody was not let in."""

    address: str
    why: str


class Unchecked(Struct, frozen=True):
    """The arguments of a tool are not checked against its schema; told once for each."""

    name: str
    backend: str
    why: str


class LeftOut(Struct, frozen=True):
    """Of what a backend lists nobody can use this; told once for as long as it is the same."""

    backend: str
    why: tuple[str, ...]


Event: TypeAlias = (
    CallEnded | BackendMoved | Switched | Reloaded | TurnedAway | Unchecked | LeftOut | Incident
)

Listener: TypeAlias = Callable[[Event], None]
Calls: TypeAlias = Literal["all", "failed", "none"]
"""Which calls somebody wants to hear of; those that were carried out have not failed."""


MAX_UNTOLD = 64
"""How many events may have been put off before all of them are told."""


class Events:
    """Tells those who listen, of everything in its order."""

    def __init__(self, report: Report = print_incident) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._of_calls: tuple[Listener, ...] = ()
        self._of_failures: tuple[Listener, ...] = ()
        """Those who are told of calls that were not carried out; of all calls some of them are."""
        self.hears_calls = False
        """Whether anybody listens to calls: most events are those."""
        self.hears_failures = False
        """Whether anybody listens to those that were not carried out."""
        self.later: Callable[[Callable[[], None]], object] | None = None
        """Has something done when what is being done is done; without it, all is told at once."""
        self._untold: list[Event] = []
        self._report = report

    def __bool__(self) -> bool:
        """Tell whether anybody listens: nobody needs to make events for nobody."""
        return bool(self._listeners)

    def listen(self, listener: Listener, calls: Calls = "all") -> Callable[[], None]:
        """Have `listener` told from now on, and of which calls; return what ends that.

        Nobody looks into the results of calls for those who only want the failed ones.
        """
        self._listeners = (*self._listeners, listener)
        if calls == "all":
            self._of_calls = (*self._of_calls, listener)
        if calls != "none":
            self._of_failures = (*self._of_failures, listener)
        self._count()
        return lambda: self._forget(listener)

    def _forget(self, listener: Listener) -> None:
        self._listeners = tuple(each for each in self._listeners if each is not listener)
        self._of_calls = tuple(each for each in self._of_calls if each is not listener)
        self._of_failures = tuple(each for each in self._of_failures if each is not listener)
        self._count()

    def _count(self) -> None:
        self.hears_calls = bool(self._of_calls)
        self.hears_failures = bool(self._of_failures)

    def tell_later(self, event: Event) -> None:
        """Tell everybody when what is being done is done, of all that was put off by then.

        Clients have their answers first; and to tell of many calls at once takes half the time.
        """
        untold = self._untold
        untold.append(event)
        if self.later is None or len(untold) >= MAX_UNTOLD:
            self.tell_now()
        elif len(untold) == 1:
            self.later(self.tell_now)

    def tell_now(self) -> None:
        """Tell everybody of what was put off."""
        untold, self._untold = self._untold, []
        for event in untold:
            self._tell(event)

    def tell(self, event: Event) -> None:
        """Tell everybody, of what was put off before it as well."""
        if self._untold:
            self.tell_now()
        self._tell(event)

    def _tell(self, event: Event) -> None:
        if type(event) is not CallEnded:
            listeners = self._listeners
        else:
            listeners = self._of_calls if event.status in CARRIED_OUT else self._of_failures
        for listener in listeners:
            try:
                listener(event)
            except Exception as why:
                if type(event) is not Incident:  # of which telling would have no end
                    answer_for(why, type(event).__name__, self._report)
