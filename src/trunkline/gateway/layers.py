"""Layers: what every call passes through before a backend carries it out, and at its end.

    found ──> carry: disabled? too many? allowed? arguments? ──> sent ──> answered
    unknown, or not there yet ──> begin ──> end, or carry

Refuses to judge: a Governor does, if there is one. It makes sure that every call is judged, and
that every call that began has ended once, in front of those who listen.

Rules upheld here:
1. What does not exist for a caller is unknown to it before anything else is looked at.
2. A call that is refused reaches nobody, and gives back what was taken for it.
3. Every call that began ends exactly once.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol

from trunkline.gateway.client import Client
from trunkline.gateway.events import Events
from trunkline.gateway.passage import Passage
from trunkline.gateway.route import Check, Route, Routes
from trunkline.jsonrpc import Due, Raw, RpcError
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.routing.call import Call
from trunkline.routing.catalog import Entry

_SMALL = 8192
"""Results of so many bytes are kept until it is found out how their calls ended."""


class Governor(Protocol):
    """Whoever says who may do what, how much of it, and whether at all."""

    def checks(self, entry: Entry) -> tuple[Check, ...]:
        """Return what is to be asked of each call of an offer, in this order.

        It is asked for once, and holds until routes are forgotten.
        """
        ...

    def readmit(self, caller: Caller, entry: Entry) -> None:
        """Let a call go on that was interrupted to ask something; raises RpcError."""
        ...

    def check_stopped(self, caller: Caller, entry: Entry) -> None:
        """Refuse what is stopped, although nothing else of it is known yet; raises RpcError."""
        ...

    def hidden_by(self, caller: Caller, entry: Entry) -> str | None:
        """Return the rule that hides an offer from a caller; None if it is not hidden."""
        ...

    def passes_unknown(self, caller: Caller, backend: str) -> bool:
        """Tell whether a request that only a backend may understand is passed on to it."""
        ...

    def hears(self, caller: Caller | None, backend: str) -> bool:
        """Tell whether what a backend says by itself reaches a caller, or with None anybody."""
        ...


class Tracer(Protocol):
    """Whoever records calls as parts of traces."""

    def begin(self, passage: Passage, client: Client | None) -> None:
        """Give a call its span, if it is to be recorded; never raises."""
        ...


class Layers:
    """All that is done to a call beside carrying it out."""

    def __init__(self, events: Events | None = None, routes: Routes | None = None) -> None:
        """Begin; without a governor everything is let pass."""
        self.events = events or Events()
        self._governor: Governor | None = None
        self._routes = routes or Routes()
        self.tracer: Tracer | None = None
        self._door: Callable[[Passage], None] | None = None
        self.under_way: dict[Passage, Due | None] = {}
        """The calls that have begun and not ended, for those who count or stop them.

        With each, what is waited for once it is with its backend: to cancel that is to stop it.
        """

    @property
    def governor(self) -> Governor | None:
        """Whoever judges calls."""
        return self._governor

    @governor.setter
    def governor(self, governor: Governor | None) -> None:
        self._governor = governor
        self._routes.forget()

    @property
    def door(self) -> Callable[[Passage], None] | None:
        """Whoever may refuse any call that exists, whatever it is; raises RpcError."""
        return self._door

    @door.setter
    def door(self, door: Callable[[Passage], None] | None) -> None:
        self._door = door
        self._routes.forget()

    def checks(self, entry: Entry) -> tuple[Check, ...]:
        """Return what is to be asked of each call of an offer, until routes are forgotten."""
        checks = () if self._governor is None else self._governor.checks(entry)
        return checks if self._door is None else (partial(self._ask, self._door), *checks)

    def _ask(self, door: Callable[[Passage], None], passage: Passage, entry: Entry) -> None:
        self.under_way[passage] = None  # who counts those under way counts this one, too
        door(passage)

    def begin(self, passage: Passage, client: Client | None) -> Passage:
        """Note that a call has come that is not carried out, or not yet; return it."""
        if self.tracer is not None:
            self.tracer.begin(passage, client)
        self.under_way[passage] = None
        return passage

    def carry(self, passage: Passage, route: Route, params: Params, client: Client) -> Due:
        """Have a call carried out, if it may be, or answered in its place; raises RpcError."""
        # In one go, with as few steps as can be: every call passes here.
        if self.tracer is not None and passage not in self.under_way:  # or else it has begun before
            self.tracer.begin(passage, client)
        try:
            for check in route.checks:
                instead = check(passage, route.entry)
                if instead is not None:
                    self._end(passage, instead)
                    return Due.settled(instead)
            if passage.span is not None:
                passage.span.carry(params)
            if not params.usual and passage.request.method == "tools/call":
                params.drop("task")  # which nobody is offered; the server would take it for ours
            if route.prepare is not None:
                route.prepare(params)
            if passage.stopped is not None:
                raise passage.stopped
            passage.revision = route.upstream.revision
            request = passage.request
            call = Call(passage.caller, request.id, request.method, params)
            answer = route.upstream.call(call, client)
        except BaseException as why:
            self._end(passage, error=why)
            raise
        self.under_way[passage] = answer
        answer.then(partial(self._answered, passage, monotonic()))
        if route.finish is not None:
            answer.then(route.finish)
        return answer

    def _answered(self, passage: Passage, sent: float, answer: Due) -> None:
        del self.under_way[passage]
        if passage.leaving:
            passage.leave()
        if answer.error is None and passage.span is None:
            # Most calls: what is to be known of their ends is found out for many at once.
            if not self.events.hears_calls:
                return
            result = answer.result
            if type(result) is Raw and len(result) <= _SMALL:
                self.events.tell_later((passage, result, sent, monotonic()))
                return
        passage.sent, passage.answered = sent, (now := monotonic())
        self._tell(passage, answer.result, answer.error, now)

    def end(
        self, passage: Passage, result: object = None, error: BaseException | None = None
    ) -> None:
        """Note that a call that has begun is over; what comes later is no news."""
        if passage in self.under_way:
            self._end(passage, result, error)

    def _end(
        self, passage: Passage, result: object = None, error: BaseException | None = None
    ) -> None:
        self.under_way.pop(passage, None)
        if passage.leaving:
            passage.leave()
        self._tell(passage, result, error, monotonic())

    def _tell(
        self, passage: Passage, result: object, error: BaseException | None, now: float
    ) -> None:
        """Have those told of how a call ended who want to know."""
        failed = error is not None or passage.status is not None
        heard = self.events.hears_failures if failed else self.events.hears_calls
        if not heard and passage.span is None:
            return
        ended = passage.ended(now, result, error)
        if passage.span is not None:
            passage.span.end(ended)
        if heard:
            self.events.tell_later(ended)

    def readmit(self, caller: Caller, entry: Entry) -> None:
        """Let a call go on that was interrupted to ask something; raises RpcError."""
        if self.governor is not None:
            self.governor.readmit(caller, entry)

    def check_stopped(self, caller: Caller, entry: Entry) -> None:
        """Refuse what is stopped, although nothing else of it is known yet; raises RpcError."""
        if self.governor is not None:
            self.governor.check_stopped(caller, entry)

    def hidden_by(self, caller: Caller, entry: Entry) -> str | None:
        """Return the rule that hides an offer from a caller; None if it is not hidden."""
        return None if self.governor is None else self.governor.hidden_by(caller, entry)

    def passes_unknown(self, caller: Caller, backend: str) -> bool:
        """Tell whether a request that only a backend may understand is passed on to it."""
        return self.governor is None or self.governor.passes_unknown(caller, backend)

    def hears(self, caller: Caller | None, backend: str) -> bool:
        """Tell whether what a backend says by itself reaches a caller, or with None anybody."""
        return self.governor is None or self.governor.hears(caller, backend)

    def stop(self, concerns: Callable[[Passage], bool], why: Callable[[Passage], RpcError]) -> int:
        """Stop the calls under way that something concerns; return how many there were."""
        stopped = [passage for passage in self.under_way if concerns(passage)]
        for passage in stopped:
            passage.stopped = reason = why(passage)
            doing = self.under_way.get(passage)
            if doing is not None:
                doing.cancel(reason)
        return len(stopped)
