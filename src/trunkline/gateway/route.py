"""Route: where a name leads, and what is still to be asked of each call that goes there.

    name ──> who offers it, what it is called there, who judges it ──kept──> every call of it

Refuses to decide for all what depends on who asks: `view` and `checks` are asked by every call, and
keep what they find out with the Caller, which never changes.

Rules upheld here:
1. A route is kept for as long as all is the same that decided where it leads. Whoever changes what
   is offered, by whom, who sees it, who judges it or what is stopped has all routes forgotten
   before anything else.
2. Only what is in the catalogue has a route that is kept: there are never more than that.
"""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from trunkline.gateway.passage import Passage
from trunkline.gateway.upstream import Upstream
from trunkline.jsonrpc import Due, Raw
from trunkline.mcp.meta import Params
from trunkline.routing.catalog import Entry
from trunkline.routing.view import Onlookers

Check: TypeAlias = Callable[[Passage, Entry], Raw | None]
"""Lets a call pass; raises RpcError, or returns the answer that it gets instead.

What it takes for the call it gives back by `passage.leaving`.
"""


class Route(Struct, frozen=True):
    """The way of all calls of one offer."""

    entry: Entry
    upstream: Upstream
    checks: tuple[Check, ...] = ()
    """What is asked of each call."""
    view: Onlookers | None = None
    """Who knows whether a caller may see it; None if everybody may."""
    wraps: bool = False
    """Whether it is the tool that calls another."""
    prepare: Callable[[Params], None] | None = None
    """Makes params what its owner knows; None if they are that as they come."""
    finish: Callable[[Due], None] | None = None
    """Makes an answer what its caller knows; None if it is that as it comes."""


class Routes:
    """The routes that are known by now."""

    def __init__(self) -> None:
        self.named: dict[str, dict[str, Route]] = {"tools/call": {}, "prompts/get": {}}
        """By the method, and the name that is called."""

    def forget(self) -> None:
        """Find all of them anew."""
        for known in self.named.values():
            known.clear()
