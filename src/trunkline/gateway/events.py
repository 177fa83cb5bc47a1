"""Events: what has happened in the gateway, told to whoever listens.

    calls, backends, switches, configuration ──tell──> journal, metrics, log, what operators ask

Refuses to make anybody wait: a listener takes note and returns; one that fails is reported, and
the others are told all the same.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from trunkline.gateway.passage import CallEnded, Ended, ends_of
from trunkline.jsonrpc import Incident
from trunkline.jsonrpc.incident import Report, answer_for, print_incident

_T = TypeVar("_T")

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


News: TypeAlias = BackendMoved | Switched | Reloaded | TurnedAway | Unchecked | LeftOut | Incident
"""Whatever happens beside calls; it is told at once."""

Event: TypeAlias = CallEnded | News

Listener: TypeAlias = Callable[[Event], None]
HearsMany: TypeAlias = Callable[[Sequence[CallEnded]], None]
"""Takes note of calls that ended one after the other, all of them at once."""

Calls: TypeAlias = Literal["all", "failed", "none"]
"""Which calls somebody wants to hear of; those that were carried out have not failed."""


WHILE = 0.005
"""How many seconds a call that has ended waits to be told of together with others."""

MANY = 128
"""How many calls wait no longer than until the answers have left that are under way."""

MAX_UNTOLD = 1024
"""How many calls may have been put off at most."""


class _Ear(NamedTuple):
    """Somebody who listens."""

    listener: Listener
    calls: Calls
    many: HearsMany | None


class Events:
    """Tells those who listen, each of everything in its order."""

    def __init__(self, report: Report = print_incident) -> None:
        self._ears: tuple[_Ear, ...] = ()
        self.hears_calls = False
        """Whether anybody listens to calls: most events are those."""
        self.hears_failures = False
        """Whether anybody listens to those that were not carried out."""
        self.later: Callable[[float, Callable[[], None]], object] | None = None
        """Has something done after so many seconds; without it, all is told at once."""
        self._untold: list[Ended] = []
        self._awaited = False
        """Whether calls that were put off will be told by themselves."""
        self._enough = 1
        """How many calls are put off without anything to be done about it, and one more."""
        self._report = report

    def __bool__(self) -> bool:
        """Tell whether anybody listens: nobody needs to make events for nobody."""
        return bool(self._ears)

    @property
    def untold(self) -> int:
        """How many calls have ended of which nobody was told yet."""
        return len(self._untold)

    def listen(
        self, listener: Listener, calls: Calls = "all", many: HearsMany | None = None
    ) -> Callable[[], None]:
        """Have `listener` told from now on, and of which calls; return what ends that.

        Nobody looks into the results of calls for those who only want the failed ones. Whoever has
        a quicker way to take note of many calls is told of those by `many` instead.
        """
        ear = _Ear(listener, calls, many)
        self._ears = (*self._ears, ear)
        self._count()
        return lambda: self._forget(ear)

    def _forget(self, ear: _Ear) -> None:
        self._ears = tuple(each for each in self._ears if each is not ear)
        self._count()

    def _count(self) -> None:
        self.hears_calls = any(ear.calls == "all" for ear in self._ears)
        self.hears_failures = any(ear.calls != "none" for ear in self._ears)

    def tell_later(self, call: Ended) -> None:
        """Tell everybody in a while, of all calls that were put off by then.

        Clients have their answers first; and to tell of many calls at once takes a fraction of
        the time. Whoever shows what was told has it told first. Of a call that went
        well it is enough to say which, with what result and when: how it ended is then found out
        in a while, too.
        """
        untold = self._untold
        untold.append(call)
        if len(untold) >= self._enough:
            self._see_to_it(len(untold))

    def _see_to_it(self, count: int) -> None:
        """Have calls told that were put off: now, or as soon as their answers have left."""
        if self.later is None or count >= MAX_UNTOLD:
            self._tell_untold()
        elif count >= MANY:
            self._enough = MAX_UNTOLD
            self.later(0.0, self._tell_many)
        else:
            self._awaited, self._enough = True, MANY
            self.later(WHILE, self.tell_now)

    def tell_now(self) -> None:
        """Tell everybody of what was put off."""
        self._awaited, self._enough = False, 1
        self._tell_many()

    def _tell_many(self) -> None:
        if self._untold:
            self._tell_untold()

    def _tell_untold(self) -> None:
        put_off, self._untold = self._untold, []
        self._enough = MANY if self._awaited else 1
        untold, failed = ends_of(put_off)
        for ear in self._ears:
            calls = untold if ear.calls == "all" else failed if ear.calls == "failed" else ()
            if not calls:
                continue
            if ear.many is not None:
                self._hand(ear.many, calls, "CallEnded")
            else:
                for call in calls:
                    self._hand(ear.listener, call, "CallEnded")

    def tell(self, news: News) -> None:
        """Tell everybody, of calls that were put off before it as well."""
        self._tell_many()
        for ear in self._ears:
            self._hand(ear.listener, news, type(news).__name__)

    def _hand(self, listener: Callable[[_T], None], told: _T, name: str) -> None:
        try:
            listener(told)
        except Exception as why:
            if not isinstance(told, Incident):  # of which telling would have no end
                answer_for(why, name, self._report)
