"""Layers: what every call passes through before a backend carries it out, and at its end.

    begin ──> found, or unknown ──> admit: disabled? too many? allowed? arguments? ──> sent ──> end

Refuses to judge: a Governor does, if there is one. It makes sure that every call is judged, and
that every call that began has ended once, in front of those who listen.

Rules upheld here:
1. What does not exist for a caller is unknown to it before anything else is looked at.
2. A call that is refused reaches nobody, and gives back what was taken for it.
3. Every call that began ends exactly once.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol
from uuid import uuid4

from trunkline.gateway.events import Events
from trunkline.gateway.passage import Passage, trace_of
from trunkline.jsonrpc import Due, Raw, Request, RpcError
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params, peek
from trunkline.routing.catalog import Entry


class Governor(Protocol):
    """Whoever says who may do what, how much of it, and whether at all."""

    @property
    def judges(self) -> bool:
        """Whether anybody may be refused for who they are, or for how much they ask."""
        ...

    def sees(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether an offer exists for a caller."""
        ...

    def admit(self, passage: Passage, entry: Entry, params: Params) -> Raw | None:
        """Let a call pass; raises RpcError, or returns the answer that it gets instead.

        What it takes for the call it gives back by `passage.leaving`.
        """
        ...

    def readmit(self, caller: Caller, entry: Entry) -> None:
        """Let a call go on that was interrupted to ask something; raises RpcError."""
        ...


class Layers:
    """All that is done to a call beside carrying it out."""

    def __init__(
        self,
        events: Events | None = None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], float] = time.time,
    ) -> None:
        """Begin; without a governor everything is let pass."""
        self.events = events or Events()
        self.governor: Governor | None = None
        self.under_way: set[Passage] = set()
        """The calls that have begun and not ended, for those who count or stop them."""
        self._now = clock
        self._today = today

    @property
    def judged(self) -> bool:
        """Whether calls are judged by more than what they say."""
        return self.governor is not None and self.governor.judges

    def begin(self, request: Request, params: Params, caller: Caller) -> Passage | None:
        """Note that a call has come; None if nobody wants to know, and nobody judges."""
        if self.governor is None and not self.events:
            return None
        name = params.get("name") or params.get("uri")
        passage = Passage(
            uuid4().hex, caller, request, _text(name), self._today(), self._now(), leaving=[]
        )
        passage.trace = trace_of(params)
        self.under_way.add(passage)
        return passage

    def admit(self, passage: Passage | None, entry: Entry, params: Params) -> Raw | None:
        """Let a call pass; raises RpcError, or returns the answer that it gets instead."""
        if passage is None:
            return None
        passage.entry = entry
        passage.arguments = params.get("arguments")
        return None if self.governor is None else self.governor.admit(passage, entry, params)

    def send(self, passage: Passage | None, answer: Due) -> None:
        """Note that a call is with its backend."""
        if passage is not None:
            passage.sent = self._now()
            passage.due = answer
            answer.then(partial(self._answered, passage))

    def _answered(self, passage: Passage, answer: Due) -> None:
        passage.answered = self._now()
        self.end(passage, answer.result, answer.error)

    def end(
        self, passage: Passage | None, result: object = None, error: BaseException | None = None
    ) -> None:
        """Note that a call has ended; what comes later is no news."""
        if passage is None or passage not in self.under_way:
            return
        self.under_way.discard(passage)
        passage.leave()
        if self.events:
            self.events.tell(passage.ended(self._now(), result, error))

    def readmit(self, caller: Caller, entry: Entry) -> None:
        """Let a call go on that was interrupted to ask something; raises RpcError."""
        if self.governor is not None:
            self.governor.readmit(caller, entry)

    def stop(self, concerns: Callable[[Passage], bool], why: Callable[[Passage], RpcError]) -> int:
        """Stop the calls under way that something concerns; return how many there were."""
        stopped = [passage for passage in self.under_way if concerns(passage)]
        for passage in stopped:
            passage.stop(why(passage))
        return len(stopped)


def _text(raw: Raw | None) -> str:
    """Return what a call names, as far as it names anything."""
    value = None if raw is None else peek(raw)
    return value if isinstance(value, str) else ""
