"""Governance: the Governor that a configuration makes, of parts that may each be missing.

    disabled? (switches) ──> too many? (throttle) ──> allowed? (authority) ──> arguments?

Refuses to know how any part decides; it upholds their order, which is that of the design.
"""

from collections.abc import Hashable
from typing import Protocol

from trunkline.gateway.authority import Authority
from trunkline.gateway.passage import Passage
from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.routing.catalog import Entry


class Switches(Protocol):
    """Says what is stopped."""

    def stops(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether an offer is stopped, for a caller or for everybody."""
        ...

    def check(self, caller: Caller, entry: Entry) -> None:
        """Refuse what is stopped; raises `disabled`."""
        ...


class Throttle(Protocol):
    """Says how much is too much."""

    def enter(self, passage: Passage, entry: Entry) -> None:
        """Count a call in, and out by `passage.leaving`; raises `rate_limited`."""
        ...


class Arguments(Protocol):
    """Says which arguments a tool takes."""

    def check(self, passage: Passage, entry: Entry, params: Params) -> Raw | None:
        """Refuse what a tool does not take, as the caller's revision has it.

        Returns the result that says so, or raises Invalid params.
        """
        ...


class Governance:
    """Who may do what, how much of it, and whether at all."""

    def __init__(
        self,
        authority: Authority | None = None,
        switches: Switches | None = None,
        throttle: Throttle | None = None,
        arguments: Arguments | None = None,
    ) -> None:
        self.authority = authority
        self.switches = switches
        self.throttle = throttle
        self.arguments = arguments

    @property
    def idle(self) -> bool:
        """Tell whether there is nothing that could refuse a call: then nobody needs to be asked."""
        parts = (self.authority, self.switches, self.throttle, self.arguments)
        return all(part is None for part in parts)

    def key(self, caller: Caller) -> Hashable:
        """Return what callers have in common who see the same lists."""
        # A switch may stop one subject alone, so with switches every subject has lists of its own.
        subject = None if self.switches is None else caller.principal.subject
        return (subject, None if self.authority is None else self.authority.key(caller))

    def sees(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether an offer exists for a caller."""
        return self.authority is None or self.authority.sees(caller, entry)

    def lists(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether an offer is on a caller's lists: what is stopped is not."""
        stopped = self.switches is not None and self.switches.stops(caller, entry)
        return not stopped and self.sees(caller, entry)

    def admit(self, passage: Passage, entry: Entry, params: Params) -> Raw | None:
        """Let a call pass; raises RpcError, or returns the answer that it gets instead."""
        if self.switches is not None:
            self.switches.check(passage.caller, entry)
        if self.throttle is not None:
            self.throttle.enter(passage, entry)
        if self.authority is not None:
            self.authority.check(passage, entry, params)
        return None if self.arguments is None else self.arguments.check(passage, entry, params)

    def readmit(self, caller: Caller, entry: Entry) -> None:
        """Let a call go on that was interrupted to ask something; raises RpcError."""
        if self.switches is not None:
            self.switches.check(caller, entry)
        if self.authority is not None:
            self.authority.recheck(caller, entry)
