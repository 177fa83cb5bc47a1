"""The checks that every call passes before a backend gets it, and the end of every call.

    routed ──> execute: admission, kill switch, limits, policy, arguments ──> sent ──> answered
                           └── a check that must wait delays only this call
    unknown, or not routed yet ──> register ──> finish, or execute

A Route holds the facts that are the same for all calls of one catalogue entry. A CallEnforcer
decides; the pipeline makes sure that it is asked, and that every call ends exactly once.

Invariants:
1. A refused call reaches no backend, and releases everything that it acquired.
2. Every registered call ends exactly once: its finish hooks run, then it is reported.
3. If something changed while a check waited, the call is routed again and passes the checks of its
   new route. It skips the limits, because they have counted it. Those checks may wait, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from time import monotonic
from typing import Protocol, TypeAlias

from msgspec import Struct

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.decision_cache import CallerCache, CallerRules, DecisionCache, Route
from trunkline.gateway.events import EventBus
from trunkline.gateway.upstream import Upstream
from trunkline.jsonrpc import PendingResult, Raw, RpcError
from trunkline.mcp.identity import Caller
from trunkline.routing.catalog import CatalogEntry

CHECK_TIMEOUT = 30.0
"""How many seconds an awaited check may take."""


class Denied(Struct, frozen=True):
    """The call ends here, with an error or with a result in place of the backend's."""

    error: RpcError | None = None
    result: Raw | None = None


class Deferred(Struct, frozen=True):
    """The decision comes later, for example from a person."""

    decision: "Awaitable[Decision]"
    timeout: float
    """For how many seconds the call waits for it."""


Decision: TypeAlias = Denied | Deferred | None
"""The decision about a call: None allows it."""

CallCheck: TypeAlias = Callable[[CallContext], Decision | Awaitable[Decision]]
"""Decides about a call. An RpcError that it raises denies the call.

A check that acquires something releases it by a hook in `context.on_finish`.
"""


_MAX_KEPT_RESULT_BYTES = 8192
"""Results up to this size are kept until their calls are summarized in a batch."""


class CallEnforcer(Protocol):
    """Decides which calls are allowed, and how many."""

    def rules_for(self, caller: Caller, entry: CatalogEntry) -> CallerRules:
        """Return what holds for all calls of a visible entry by a caller; cached."""
        ...

    def checks_for(
        self,
        entry: CatalogEntry,
        caller_rules: CallerCache[CallerRules],
        *,
        wrapper: Route | None = None,
        is_counted: bool = False,
    ) -> tuple[CallCheck, ...]:
        """Return the checks of all calls of an entry, in order; cached with the route.

        With `wrapper`, also the checks of the `call_tool` that calls the entry. With `is_counted`,
        those for a call that the limits have counted already.
        """
        ...

    def check_without_arguments(self, caller: Caller, entry: CatalogEntry) -> None:
        """Check kill switches and policy, without arguments and limits; raises RpcError."""
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

    def count_unknown(self, caller: Caller) -> Awaitable[None] | None:
        """Count a call of what does not exist for the caller; raises `rate_limited`."""
        ...

    def count_request(self, caller: Caller) -> Awaitable[None] | None:
        """Count a request or notification that is no call; raises `rate_limited`."""
        ...

    def may_send(self, caller: Caller, backend: str) -> bool:
        """Return whether a caller's notifications may reach a backend."""
        ...

    def may_receive(self, caller: Caller | None, backend: str) -> bool:
        """Return whether a backend's notifications may reach a caller (None: any caller)."""
        ...


class TracingHook(Protocol):
    """Starts the trace spans of calls."""

    def start_span(self, context: CallContext) -> None:
        """Give a call its span if the call is traced; never raises."""
        ...


class Pipeline:
    """Runs the checks of calls, sends them to backends, and reports how they ended."""

    def __init__(
        self,
        events: EventBus | None = None,
        decisions: DecisionCache | None = None,
        check_timeout: float = CHECK_TIMEOUT,
    ) -> None:
        """Without an enforcer every call is allowed."""
        self.events = events or EventBus()
        self.decisions = decisions or DecisionCache()
        self.check_timeout = check_timeout
        """For how many seconds a check that is awaited may take."""
        self._enforcer: CallEnforcer | None = None
        self._admission_check: CallCheck | None = None
        self.tracer: TracingHook | None = None
        self.refresh_route: Callable[[CallContext, Route], Route] = _keep_route
        """Returns the current route of a call that has waited; raises RpcError if it has none."""
        self.in_flight: set[CallContext] = set()
        """The calls that have not ended."""

    @property
    def enforcer(self) -> CallEnforcer | None:
        """Decides about calls; None allows every call."""
        return self._enforcer

    @enforcer.setter
    def enforcer(self, enforcer: CallEnforcer | None) -> None:
        self._enforcer = enforcer
        self.decisions.invalidate()

    @property
    def admission_check(self) -> CallCheck | None:
        """Runs before all other checks, on every call."""
        return self._admission_check

    @admission_check.setter
    def admission_check(self, admission_check: CallCheck | None) -> None:
        self._admission_check = admission_check
        self.decisions.invalidate()

    def rules_for(self, caller: Caller, entry: CatalogEntry) -> CallerRules:
        """Return what holds for all calls of a visible entry by a caller."""
        return CallerRules() if self._enforcer is None else self._enforcer.rules_for(caller, entry)

    def checks_for(
        self,
        entry: CatalogEntry,
        caller_rules: CallerCache[CallerRules],
        wrapper: Route | None = None,
    ) -> tuple[CallCheck, ...]:
        """Return the checks of all calls of an entry, with those of its `wrapper`."""
        enforcer = self._enforcer
        checks = (
            () if enforcer is None else enforcer.checks_for(entry, caller_rules, wrapper=wrapper)
        )
        return checks if self._admission_check is None else (self._admission_check, *checks)

    def register(self, context: CallContext) -> None:
        """Register a call, once; `execute` does it too."""
        if context not in self.in_flight:
            self.in_flight.add(context)
            if self.tracer is not None:
                self.tracer.start_span(context)

    def execute(self, context: CallContext, route: Route) -> PendingResult:
        """Check a call and send it; raises RpcError if it is refused at once."""
        self.register(context)
        checks = iter(route.checks)
        try:
            for check in checks:
                decision = check(context)
                if decision is not None:
                    if not isinstance(decision, Denied):
                        return self._execute_later(context, route, decision, checks)
                    return PendingResult.from_result(self._refuse(context, decision))
            return self._send(context, route)
        except BaseException as error:
            self.finish(context, error=error)
            raise

    def check_unrouted(
        self, context: CallContext, checks: Iterable[CallCheck]
    ) -> Awaitable[None] | None:
        """Check a registered call that has no route; raises RpcError, at once or when awaited.

        Returns None, or an awaitable if a check must wait. A refused call has ended.
        """
        remaining = iter(checks)
        try:
            for check in remaining:
                decision = check(context)
                if decision is not None:
                    return self._check_unrouted_later(context, decision, remaining)
        except BaseException as error:
            self.finish(context, error=error)
            raise
        return None

    async def _check_unrouted_later(
        self,
        context: CallContext,
        decision: Decision | Awaitable[Decision],
        checks: Iterator[CallCheck],
    ) -> None:
        try:
            denied = await self._run_checks(context, decision, checks)
            if denied is not None:
                raise denied.error or RpcError.internal_error("a check denied the call")
        except BaseException as error:
            self.finish(context, error=error)
            raise

    def pass_through(self, context: CallContext, upstream: Upstream) -> PendingResult:
        """Send a request that MCP does not define: it is neither checked nor reported."""
        self.in_flight.add(context)
        try:
            context.answer = answer = upstream.call(context)
        except BaseException as error:
            self.release(context, None, error)
            raise
        answer.add_callback(lambda a: self.release(context, a.result, a.error))
        return answer

    def _refuse(self, context: CallContext, denied: Denied) -> Raw:
        """End a call with the result of a check; raises the error if there is no result."""
        if denied.result is None:
            raise denied.error or RpcError.internal_error("a check denied the call")
        self.finish(context, denied.result)
        return denied.result

    def _execute_later(
        self,
        context: CallContext,
        route: Route,
        decision: Deferred | Awaitable[Decision],
        checks: Iterator[CallCheck],
    ) -> PendingResult:
        """Go on with a call in a task, since one of its checks must wait."""
        waiting = self._wait_and_execute(context, route, decision, checks)
        context.answer = PendingResult.from_awaitable(waiting)
        return context.answer

    async def _wait_and_execute(
        self,
        context: CallContext,
        route: Route,
        decision: Decision | Awaitable[Decision],
        checks: Iterator[CallCheck],
    ) -> Raw:
        try:
            while True:
                denied = await self._run_checks(context, decision, checks)
                if denied is not None:
                    return self._refuse(context, denied)
                current = self.refresh_route(context, route)
                if current is route:
                    break
                route, decision, checks = current, None, self._second_checks(current)
            answer = self._send(context, route)
        except BaseException as error:
            self.finish(context, error=context.disabled_error or error)
            raise
        return await answer

    async def _run_checks(
        self,
        context: CallContext,
        decision: Decision | Awaitable[Decision],
        checks: Iterator[CallCheck],
    ) -> Denied | None:
        """Wait for a decision, then run the remaining checks; return what denies the call."""
        denied = await self._wait_for(decision)
        while denied is None and (check := next(checks, None)) is not None:
            denied = await self._wait_for(check(context))
        return denied

    def _second_checks(self, route: Route) -> Iterator[CallCheck]:
        """Return the checks of a call that has been routed again after it waited."""
        checks: tuple[CallCheck, ...] = ()
        if self._enforcer is not None:
            checks = self._enforcer.checks_for(
                route.entry, route.caller_rules, wrapper=route.wrapper, is_counted=True
            )
        # Its upstream may have been stopped while it waited for another check.
        return iter(checks if route.start_check is None else (*checks, route.start_check))

    async def _wait_for(self, decision: Decision | Awaitable[Decision]) -> Denied | None:
        """Wait until a decision allows or denies; raises RpcError if it takes too long."""
        while decision is not None and not isinstance(decision, Denied):
            timeout = self.check_timeout
            if isinstance(decision, Deferred):
                timeout, decision = decision.timeout, decision.decision
            deadline = asyncio.timeout(timeout)
            try:
                async with deadline:
                    decision = await decision
            except TimeoutError:
                if not deadline.expired():
                    raise  # the check's own
                text = f"the call was not allowed within {timeout:g} s"
                raise RpcError.internal_error(text) from None
        return decision

    def _send(self, context: CallContext, route: Route) -> PendingResult:
        """Send a call that has passed its checks."""
        params = context.params
        if context.span is not None:
            context.span.inject(params)
        if not params.has_only_standard_members and context.method.may_be_task:
            params.drop("task")  # tasks are not offered; the server would create one for us
        if route.rewrite_params is not None:
            route.rewrite_params(params)
        if context.disabled_error is not None:
            raise context.disabled_error
        context.backend_revision = route.upstream.revision
        context.answer = answer = route.upstream.call(context)
        sent = monotonic()
        if route.rewrite_answer is not None:
            answer.add_callback(route.rewrite_answer)
        answer.add_callback(partial(self._on_answer, context, sent))
        return answer

    def _on_answer(self, context: CallContext, sent: float, answer: PendingResult) -> None:
        self.release(context, answer.result, answer.error)
        if answer.error is None and context.span is None:
            # Most calls end here: their summaries are made later, in batches (EventBus.emit_call).
            if not self.events.wants_calls:
                return
            result = answer.result
            if type(result) is Raw and len(result) <= _MAX_KEPT_RESULT_BYTES:
                self.events.emit_call((context, result, sent, monotonic()))
                return
        context.sent_at, context.answered_at = sent, (now := monotonic())
        self._emit(context, answer.result, answer.error, now)

    def finish(
        self, context: CallContext, result: object = None, error: BaseException | None = None
    ) -> None:
        """End a registered call; does nothing if it has ended already."""
        if context in self.in_flight:
            self.release(context, result, error)
            self._emit(context, result, error, monotonic())

    def release(self, context: CallContext, result: object, error: BaseException | None) -> None:
        """Run the finish hooks of a call; an exception in one of them is reported."""
        self.in_flight.discard(context)
        if not context.on_finish:
            return
        for failure in context.finish(result, error):
            # The outcome of the call stands, so the client gets it.
            self.events.report_failure(failure, context.request.method)
            if not isinstance(failure, (Exception, asyncio.CancelledError)):
                raise failure  # KeyboardInterrupt or SystemExit: the process ends

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

    def check_without_arguments(self, caller: Caller, route: Route) -> None:
        """Check kill switches and policy, without arguments and limits; raises RpcError."""
        if self.enforcer is not None:
            if route.wrapper is not None:
                self.enforcer.check_without_arguments(caller, route.wrapper.entry)
            self.enforcer.check_without_arguments(caller, route.entry)

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

    def count_unknown(self, context: CallContext) -> Awaitable[None] | None:
        """Count a call of what does not exist for its caller; raises `rate_limited`."""
        return None if self.enforcer is None else self.enforcer.count_unknown(context.caller)

    def count_request(self, caller: Caller) -> Awaitable[None] | None:
        """Count a request or notification that is no call; raises `rate_limited`."""
        return None if self.enforcer is None else self.enforcer.count_request(caller)

    def may_send(self, caller: Caller, backend: str) -> bool:
        """Return whether a caller's notifications may reach a backend."""
        return self.enforcer is None or self.enforcer.may_send(caller, backend)

    def may_receive(self, caller: Caller | None, backend: str) -> bool:
        """Return whether a backend's notifications may reach a caller (None: any caller)."""
        return self.enforcer is None or self.enforcer.may_receive(caller, backend)

    def cancel_matching(
        self, matches: Callable[[CallContext], bool], error_for: Callable[[CallContext], RpcError]
    ) -> int:
        """Cancel the calls in flight that match; return how many there were."""
        matching = [context for context in self.in_flight if matches(context)]
        for context in matching:
            context.disabled_error = error = error_for(context)
            if context.answer is not None:
                context.answer.cancel(error)
        return len(matching)


def _keep_route(_: CallContext, route: Route) -> Route:
    return route
