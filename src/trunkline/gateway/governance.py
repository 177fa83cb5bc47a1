"""Governance: the Governor that a configuration makes, of parts that may each be missing.

    Gate: disabled? (switches) ──> too many? (throttle) ──> allowed? (authority) ──> arguments?

Refuses to know how any part decides; it upholds their order, which is that of the design.
"""

from trunkline.gateway.arguments import Arguments
from trunkline.gateway.authority import Authority
from trunkline.gateway.gate import Gate
from trunkline.gateway.route import Check
from trunkline.gateway.switches import Switches
from trunkline.gateway.throttle import Throttle
from trunkline.mcp.caller import Caller
from trunkline.routing.catalog import Entry


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

    def checks(self, entry: Entry) -> tuple[Check, ...]:
        """Return what is to be asked of each call of an offer, in this order."""
        found: list[Check] = []
        # While nothing is stopped nobody is asked: whoever stops something has routes forgotten.
        stops = self.switches is not None and self.switches.active
        if stops or self.throttle is not None or self.authority is not None:
            found.append(Gate(self.switches, self.throttle, self.authority).check)
        if self.arguments is not None and (check := self.arguments.check_of(entry)) is not None:
            found.append(check)
        return tuple(found)

    def check_stopped(self, caller: Caller, entry: Entry) -> None:
        """Refuse what is stopped, although nothing else of it is known yet; raises RpcError."""
        if self.switches is not None:
            self.switches.check(caller, entry)

    def hidden_by(self, caller: Caller, entry: Entry) -> str | None:
        """Return the rule that hides an offer from a caller; None if it is not hidden."""
        return None if self.authority is None else self.authority.hidden_by(caller, entry)

    def passes_unknown(self, caller: Caller, backend: str) -> bool:
        """Tell whether a request that only a backend may understand is passed on to it.

        Nobody but the switches could judge it: where others have a say it is not.
        """
        if self.authority or self.throttle:
            return False
        return self.switches is None or self.switches.passes_unknown(caller, backend)

    def hears(self, caller: Caller | None, backend: str) -> bool:
        """Tell whether what a backend says by itself reaches a caller, or with None anybody."""
        return self.switches is None or self.switches.hears(caller, backend)

    def readmit(self, caller: Caller, entry: Entry) -> None:
        """Let a call go on that was interrupted to ask something; raises RpcError."""
        if self.switches is not None:
            self.switches.check(caller, entry)
        if self.authority is not None:
            self.authority.recheck(caller, entry)
