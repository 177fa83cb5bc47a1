"""Throttle: counts calls in and out, and refuses those that are too many.

    caller, entry ──> Ledger: which limits ──> Quota: is there room ──> on, or `rate_limited`

Refuses to forget: when the configuration changes, another one takes the new limits and the same
quota, and what has been used of the old ones stays used.
"""

import time
from collections.abc import Callable
from functools import partial

from trunkline.gateway.passage import Passage
from trunkline.jsonrpc import RpcError
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.routing.catalog import Entry
from trunkline.routing.limits import Demands, Ledger, Limits
from trunkline.routing.quota import SECOND, Excess, Quota

_WORDS = {Kind.TOOL: "tool", Kind.PROMPT: "prompt"}


class Throttle:
    """Says how much is too much."""

    def __init__(
        self,
        limits: Limits,
        quota: Quota | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._ledger = Ledger(limits)
        self.quota = Quota() if quota is None else quota
        self._now = clock

    def under(self, limits: Limits) -> "Throttle":
        """Return one with other limits; nobody gets anything back by that."""
        return Throttle(limits, self.quota, self._now)

    def demands(self, caller: Caller, entry: Entry) -> Demands | None:
        """Return the limits that all calls of an offer by a caller come under, if any."""
        demands = self._ledger.demands(caller.principal, entry)
        return demands if demands.all else None

    def enter(self, passage: Passage, entry: Entry, demands: Demands) -> None:
        """Count a call in, and out by `passage.leaving`; raises `rate_limited`."""
        excess = self.quota.enter(demands.all, self._now())
        if excess is not None:
            raise _refusal(excess, entry, passage.caller.version)
        if demands.held:
            passage.leaving += (partial(self.quota.leave, demands.held),)


def _refusal(excess: Excess, entry: Entry, version: str) -> RpcError:
    what = f"{_WORDS.get(entry.kind, 'resource')}: {entry.public}"
    seconds = -(-excess.wait // SECOND)
    if excess.concurrent:
        message, limit = f"Too many calls under way for {what}", f"{excess.key[0]}_concurrent"
    else:
        message, limit = f"Rate limit exceeded for {what}", excess.key[0]
    return refuse(Refusal.RATE_LIMITED, message, version, retryAfter=seconds, limit=limit)
