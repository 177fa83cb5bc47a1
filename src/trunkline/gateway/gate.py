"""Gate: what every call of one offer is asked, but for its arguments.

    disabled? (switches) ──> too many? (throttle) ──> allowed? (authority)

What holds for all calls of a caller is found out at its first one, and kept: that nothing stops
them, which limits they come under, and what the policy says whatever the arguments.

Refuses to notice changes: a gate is forgotten with its route, and whoever changes what is offered
or stopped has routes forgotten; other limits and another policy come with another Governor.
"""

from typing import TypeAlias

from trunkline.gateway.authority import Authority
from trunkline.gateway.passage import Passage
from trunkline.gateway.switches import Switches
from trunkline.gateway.throttle import Throttle
from trunkline.mcp.caller import Caller
from trunkline.routing.catalog import Entry
from trunkline.routing.known_callers import KnownCallers
from trunkline.routing.limits import Demands

_Terms: TypeAlias = tuple[Demands | None, str | None]
"""The limits of a caller, and the rule that lets all of its calls pass."""


class Gate:
    """Lets calls of one offer pass, or refuses them."""

    __slots__ = ("_authority", "_known", "_switches", "_throttle")

    def __init__(
        self, switches: Switches | None, throttle: Throttle | None, authority: Authority | None
    ) -> None:
        self._switches = switches
        self._throttle = throttle
        self._authority = authority
        self._known = KnownCallers[_Terms]()

    def check(self, passage: Passage, entry: Entry) -> None:
        """Refuse what is stopped, too much, or not allowed; raises RpcError."""
        caller = passage.caller
        known = self._known.get(id(caller)) or self._meet(caller, entry)
        demands, rule = known[0]
        if demands is not None and self._throttle is not None:
            self._throttle.enter(passage, entry, demands)
        if rule is not None:
            passage.rule = rule
        elif self._authority is not None:
            self._authority.check(passage, entry)

    def _meet(self, caller: Caller, entry: Entry) -> tuple[_Terms, Caller]:
        """Find out what holds for all calls of a caller; raises `disabled`, each time anew."""
        if self._switches is not None:
            self._switches.check(caller, entry)
        demands = None if self._throttle is None else self._throttle.demands(caller, entry)
        rule = None if self._authority is None else self._authority.settled(caller, entry)
        return self._known.keep(caller, (demands, rule))
