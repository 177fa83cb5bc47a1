"""The checks that every call passes before a backend gets it, and the end of every call.

    routed ──> execute: kill switch, limits, policy, arguments ──> sent ──> answered
    unknown, or not routed yet ──> register ──> finish, or execute

A Route holds what is the same for all calls of one catalogue entry. A CallEnforcer decides; the
pipeline makes sure that it is asked, and that every call ends exactly once.

Invariants:
1. A cached route is valid as long as nothing changes that went into it. Any change of the
   catalogue, of visibility, of the enforcer or of a kill switch clears the route cache first.
2. Only catalogue entries have cached routes, so that the catalogue bounds the cache.
3. A refused call reaches no backend, and releases what was taken for it.
4. Every registered call ends exactly once.
"""

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Protocol, TypeAlias

from msgspec import Struct

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient
from trunkline.gateway.events import EventBus
from trunkline.gateway.upstream import Upstream
from trunkline.jsonrpc import PendingResult, Raw, RpcError
from trunkline.mcp.identity import Call, Caller
from trunkline.mcp.params import Params
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.visibility import VisibilityCache

CallCheck: TypeAlias = Callable[[CallContext, CatalogEntry], Raw | None]
"""Lets a call pass, raises RpcError, or returns the result that the caller gets instead.

A check that acquires something releases it by a hook in `context.on_finish`.
"""


class Route(Struct, frozen=True):
    """Where calls of one catalogue entry go, and what they must pass."""

    entry: CatalogEntry
    upstream: Upstream
    checks: tuple[CallCheck, ...] = ()
    visibility: VisibilityCache | None = None
    """Decides which callers see the entry; None if all do."""
    is_call_tool: bool = False
    prepare: Callable[[Params], None] | None = None
    """Rewrites the params for the owner of the entry; None if they can stay."""
    finish: Callable[[PendingResult], None] | None = None
    """Rewrites the answer for the client; None if it can stay."""


class RouteCache:
    """Routes by method and name."""

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str, Route]] = {"tools/call": {}, "prompts/get": {}}

    def clear(self) -> None:
        """Drop all routes; they are built again on demand."""
        for routes in self.by_name.values():
            routes.clear()


_MAX_DEFERRED_RESULT_BYTES = 8192
"""Results up to this size are kept until their calls are summarized in a batch."""


class CallEnforcer(Protocol):
    """Decides which calls are allowed, and how many."""

    def checks_for(self, entry: CatalogEntry) -> tuple[CallCheck, ...]:
        """Return the checks of all calls of an entry, in order; cached with the route."""
        ...

    def recheck(self, caller: Caller, entry: CatalogEntry) -> None:
        """Check a suspended call again before it goes on; raises RpcError."""
        ...

    def check_disabled(self, caller: Caller, entry: CatalogEntry) -> None:
        """Refuse a disabled entry whose upstream is not ready; raises RpcError."""
        ...

    def hiding_rule(self, caller: Caller, entry: CatalogEntry) -> str | None:
        """Return the rule that hides an entry from a caller, None if it is visible."""
        ...

    def allows_passthrough(self, caller: Caller, backend: str) -> bool:
        """Return whether a request unknown to MCP may be passed on to a backend."""
        ...

    def may_receive(self, caller: Caller | None, backend: str) -> bool:
        """Return whether a backend's notifications may reach a caller (None: any caller)."""
        ...


class TracingHook(Protocol):
    """Starts the trace spans of calls."""

    def start_span(self, context: CallContext, client: DownstreamClient | None) -> None:
        """Give a call its span, if it is to be recorded; never raises."""
        ...


class Pipeline:
    """Runs the checks of calls, sends them to backends, and reports how they ended."""

    def __init__(self, events: EventBus | None = None, routes: RouteCache | None = None) -> None:
        """Without an enforcer every call is allowed."""
        self.events = events or EventBus()
        self._enforcer: CallEnforcer | None = None
        self._routes = routes or RouteCache()
        self.tracer: TracingHook | None = None
        self._admission_check: Callable[[CallContext], None] | None = None
        self.in_flight: dict[CallContext, PendingResult | None] = {}
        """Calls that have not ended, each with its pending result once it was sent: cancelling that
        cancels the call.
        """

    @property
    def enforcer(self) -> CallEnforcer | None:
        """Decides about calls; setting it clears the route cache."""
        return self._enforcer

    @enforcer.setter
    def enforcer(self, enforcer: CallEnforcer | None) -> None:
        self._enforcer = enforcer
        self._routes.clear()

    @property
    def admission_check(self) -> Callable[[CallContext], None] | None:
        """Runs before all other checks, on every call; raises RpcError."""
        return self._admission_check

    @admission_check.setter
    def admission_check(self, admission_check: Callable[[CallContext], None] | None) -> None:
        self._admission_check = admission_check
        self._routes.clear()

    def checks_for(self, entry: CatalogEntry) -> tuple[CallCheck, ...]:
        """Return the checks of all calls of an entry, cached with its route."""
        checks = () if self._enforcer is None else self._enforcer.checks_for(entry)
        return (
            checks
            if self._admission_check is None
            else (partial(self._check_admission, self._admission_check), *checks)
        )

    def _check_admission(
        self,
        admission_check: Callable[[CallContext], None],
        context: CallContext,
        entry: CatalogEntry,
    ) -> None:
        self.in_flight[context] = None  # so that the audit queue counts this call as well
        admission_check(context)

    def register(self, context: CallContext, client: DownstreamClient | None) -> CallContext:
        """Register a call that is not sent yet, if ever, and return it."""
        if self.tracer is not None:
            self.tracer.start_span(context, client)
        self.in_flight[context] = None
        return context

    def execute(
        self, context: CallContext, route: Route, params: Params, client: DownstreamClient
    ) -> PendingResult:
        """Check a call and send it; raises RpcError if it is refused."""
        # One function without helpers: every call runs through it.
        if self.tracer is not None and context not in self.in_flight:  # else it was registered
            self.tracer.start_span(context, client)
        try:
            for check in route.checks:
                replacement = check(context, route.entry)
                if replacement is not None:
                    self._finish(context, replacement)
                    return PendingResult.from_result(replacement)
            if context.span is not None:
                context.span.inject(params)
            if not params.has_only_standard_members and context.request.method == "tools/call":
                params.drop("task")  # tasks are not offered; the server would create one for us
            if route.prepare is not None:
                route.prepare(params)
            if context.stop_error is not None:
                raise context.stop_error
            context.backend_revision = route.upstream.revision
            request = context.request
            call = Call(context.caller, request.id, request.method, params)
            answer = route.upstream.call(call, client)
        except BaseException as error:
            self._finish(context, error=error)
            raise
        self.in_flight[context] = answer
        answer.add_callback(partial(self._on_answer, context, monotonic()))
        if route.finish is not None:
            answer.add_callback(route.finish)
        return answer

    def _on_answer(self, context: CallContext, sent: float, answer: PendingResult) -> None:
        del self.in_flight[context]
        if context.on_finish:
            context.finish()
        if answer.error is None and context.span is None:
            # Most calls end here: their summaries are made later, in batches (EventBus.emit_call).
            if not self.events.wants_calls:
                return
            result = answer.result
            if type(result) is Raw and len(result) <= _MAX_DEFERRED_RESULT_BYTES:
                self.events.emit_call((context, result, sent, monotonic()))
                return
        context.sent_at, context.answered_at = sent, (now := monotonic())
        self._emit(context, answer.result, answer.error, now)

    def finish(
        self, context: CallContext, result: object = None, error: BaseException | None = None
    ) -> None:
        """End a registered call; does nothing if it has ended already."""
        if context in self.in_flight:
            self._finish(context, result, error)

    def _finish(
        self, context: CallContext, result: object = None, error: BaseException | None = None
    ) -> None:
        self.in_flight.pop(context, None)
        if context.on_finish:
            context.finish()
        self._emit(context, result, error, monotonic())

    def _emit(
        self, context: CallContext, result: object, error: BaseException | None, now: float
    ) -> None:
        failed = error is not None or context.status is not None
        wanted = self.events.wants_failures if failed else self.events.wants_calls
        if not wanted and context.span is None:
            return
        summary = context.summarize(now, result, error)
        if context.span is not None:
            context.span.end(summary)
        if wanted:
            self.events.emit_call(summary)

    def recheck(self, caller: Caller, entry: CatalogEntry) -> None:
        """Check a suspended call again before it goes on; raises RpcError."""
        if self.enforcer is not None:
            self.enforcer.recheck(caller, entry)

    def check_disabled(self, caller: Caller, entry: CatalogEntry) -> None:
        """Refuse a disabled entry whose upstream is not ready; raises RpcError."""
        if self.enforcer is not None:
            self.enforcer.check_disabled(caller, entry)

    def hiding_rule(self, caller: Caller, entry: CatalogEntry) -> str | None:
        """Return the rule that hides an entry from a caller, None if it is visible."""
        return None if self.enforcer is None else self.enforcer.hiding_rule(caller, entry)

    def allows_passthrough(self, caller: Caller, backend: str) -> bool:
        """Return whether a request unknown to MCP may be passed on to a backend."""
        return self.enforcer is None or self.enforcer.allows_passthrough(caller, backend)

    def may_receive(self, caller: Caller | None, backend: str) -> bool:
        """Return whether a backend's notifications may reach a caller (None: any caller)."""
        return self.enforcer is None or self.enforcer.may_receive(caller, backend)

    def cancel_matching(
        self, matches: Callable[[CallContext], bool], error_for: Callable[[CallContext], RpcError]
    ) -> int:
        """Cancel the calls in flight that match; return how many there were."""
        matching = [context for context in self.in_flight if matches(context)]
        for context in matching:
            context.stop_error = error = error_for(context)
            pending = self.in_flight.get(context)
            if pending is not None:
                pending.cancel(error)
        return len(matching)
