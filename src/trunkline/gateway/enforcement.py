"""The checks that a configuration makes: kill switch, limits, policy, arguments, in this order.

    disabled? ──> over a limit? ──> allowed? ──> ArgumentChecker: do the arguments fit?
                                                 strict · lenient: a note about wrong values · off

Each part may be absent. Some decisions are the same for all calls of a caller: whether a kill
switch is on, which limits apply, and what the policy says without the arguments. `rules_for` makes
them at the first call, and the DecisionCache keeps them until something changes.

Invariants:
1. Lists and calls use the same policy decision: a listed entry is never "unknown" when called.
2. The policy judges the very bytes that are forwarded. If a rule reads arguments, arguments that
   could be read in two ways, such as with duplicate keys, are refused.
3. New limits keep the quota used so far: a changed configuration does not refill buckets.
4. If a rule reads the arguments of a tool, a lenient check of that tool is strict. Otherwise a
   value of another type, such as `"true"`, could evade the rule.
5. A schema that is invalid or too expensive to check is skipped, and reported once while it is
   cached.
"""

import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.decision_cache import CallerCache, CallerRules, DecisionCache, Route
from trunkline.gateway.events import UncheckedTool
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.gateway.pipeline import CallCheck, Decision, Denied
from trunkline.jsonrpc import INVALID_PARAMS, Raw, RpcError, from_raw, read_members, to_raw
from trunkline.mcp.compat import adapt_result
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.features import KIND_NAMES, TOOL, FeatureKind, read_hints
from trunkline.mcp.identity import Caller
from trunkline.mcp.params import Params
from trunkline.mcp.versions import LATEST_SESSION_REVISION
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.conditions import read_strict_arguments
from trunkline.routing.limits import (
    SECOND_NS,
    AppliedLimit,
    AppliedLimits,
    LimitExceeded,
    LimitResolver,
    LimitStore,
    LimitTables,
    MemoryLimitStore,
    combine_limits,
)
from trunkline.routing.policy import (
    ALLOW,
    Policy,
    PolicyDecision,
    PolicyResult,
    Subject,
    Target,
)
from trunkline.routing.schema_validation import (
    ArgumentMode,
    ArgumentValidator,
    UncheckableSchema,
    compile_schema,
)


class PolicyEnforcer:
    """Applies the policy to callers and catalogue entries."""

    def __init__(self, policy: Policy, decisions: DecisionCache | None = None) -> None:
        """Create it; `decisions` caches what the policy says."""
        self.policy = policy
        self._cache = decisions or DecisionCache()
        self._depends_on_subject = "subject" in policy.variables
        self._depends_on_client = "client" in policy.variables

    def visibility_key(self, caller: Caller) -> Hashable:
        """Return a key that is equal for callers whom the policy treats alike."""
        principal = caller.principal
        if not self._depends_on_subject and not self._depends_on_client:
            return principal.roles
        subject = principal.subject if self._depends_on_subject else ""
        client = client_name(caller.client_info) if self._depends_on_client else ""
        return (principal.roles, subject, client)

    def is_visible(self, caller: Caller, entry: CatalogEntry) -> bool:
        """Return whether some call of the entry could be allowed to the caller."""
        return self.decision_for(caller, entry).is_visible

    def hiding_rule(self, caller: Caller, entry: CatalogEntry) -> str | None:
        """Return the rule that hides an entry from a caller, None if it is visible."""
        decision = self.decision_for(caller, entry)
        return None if decision.is_visible else decision.final.rule

    def unconditional_rule(self, caller: Caller, entry: CatalogEntry) -> str | None:
        """Return the rule that allows every call of an entry by a caller, if one does."""
        decision = self.decision_for(caller, entry)
        allows = decision.final.outcome is ALLOW and not decision.conditional
        return decision.final.rule if allows else None

    def reads_arguments(self, entry: CatalogEntry) -> bool:
        """Return whether a rule reads the arguments of an entry, for any caller."""
        return self.policy.reads_arguments(policy_target(entry))

    def check(self, context: CallContext, entry: CatalogEntry) -> Decision:
        """Decide about a call by the policy, and record the rule; raises RpcError."""
        decision = self.decision_for(context.caller, entry)
        if not decision.conditional:
            result = decision.final
        elif not context.method.has_arguments:
            result = _without_arguments(decision)
        elif entry is context.wrapper:  # its own arguments contain those of the tool within
            result = _evaluate(decision, Params(context.request.params).get("arguments"))
        else:
            result = _evaluate(decision, context.arguments)
        context.rule = result.rule
        if result.outcome is not ALLOW:
            raise _not_allowed_error(context.caller, entry, result.explanation)
        return None

    def check_without_arguments(self, caller: Caller, entry: CatalogEntry) -> None:
        """Refuse what is denied regardless of arguments; raises `not_allowed`."""
        result = _without_arguments(self.decision_for(caller, entry))
        if result.outcome is not ALLOW:
            raise _not_allowed_error(caller, entry, result.explanation)

    def decision_for(self, caller: Caller, entry: CatalogEntry) -> PolicyDecision:
        """Return the policy's decision about an entry for a caller, from the cache if possible."""

        def decide() -> PolicyDecision:
            return self.policy.evaluate(_policy_subject(caller), policy_target(entry))

        return self._cache.policy_decision(self.visibility_key(caller), entry, decide)


class _ClientInfo(Struct):
    name: object = ""


def client_name(client: Raw) -> str:
    """Return the `name` in a client's `clientInfo`, an empty string if it has none."""
    try:
        name = from_raw(client, _ClientInfo).name
    except ValueError:
        return ""
    return name if isinstance(name, str) else ""


def _policy_subject(caller: Caller) -> Subject:
    principal = caller.principal
    return Subject(principal.roles, principal.subject, client_name(caller.client_info))


def policy_target(entry: CatalogEntry) -> Target:
    """Return a catalogue entry as policy rules see it."""
    uri = entry.native_name if entry.kind in (FeatureKind.RESOURCE, FeatureKind.TEMPLATE) else ""
    hints = read_hints(entry.definition)
    return Target(entry.kind, entry.public_name, entry.backend, uri, hints)


def _evaluate(decision: PolicyDecision, arguments: Raw | None) -> PolicyResult:
    try:
        return decision.resolve(read_strict_arguments(arguments))
    except ValueError as error:
        text = str(error)
        text = f"{text[:1].lower()}{text[1:]} in 'arguments', which a rule reads"
        raise RpcError.invalid_params(text) from None


def _without_arguments(decision: PolicyDecision) -> PolicyResult:
    """Return the result that holds for any arguments; conditional rules count as allowing."""
    if decision.conditional:
        return PolicyResult(ALLOW, decision.conditional[0].location)
    return decision.final


def _not_allowed_error(caller: Caller, entry: CatalogEntry, explanation: str = "") -> RpcError:
    message = f"Permission denied for {KIND_NAMES[entry.kind]}: {entry.public_name}"
    if explanation:
        message += f": {explanation}"
    return gateway_error(ErrorKind.NOT_ALLOWED, message, caller.revision)


class RateLimiter:
    """Counts calls against rate and concurrency limits."""

    def __init__(
        self,
        limits: LimitTables,
        store: LimitStore | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Create it; `store` keeps the usage so far, also under earlier limits."""
        self._resolver = LimitResolver(limits)
        self._store = MemoryLimitStore() if store is None else store
        self._clock = clock

    def limits_for(self, caller: Caller, entry: CatalogEntry) -> AppliedLimits | None:
        """Return the limits of a caller's calls of an entry; None if there are none."""
        applied = self._resolver.resolve(caller.principal, entry)
        return applied if applied.all else None

    def acquire(
        self, context: CallContext, entry: CatalogEntry, applied: AppliedLimits
    ) -> Awaitable[None] | None:
        """Count a call, until it ends; raises `rate_limited`, at once or when awaited."""
        exceeded = self._store.acquire(applied.all, self._clock())
        if exceeded is not None:
            if isinstance(exceeded, LimitExceeded):
                raise _rate_limit_error(exceeded, context, entry)
            return self._acquire_later(exceeded, context, entry, applied)
        if applied.concurrent:
            context.on_finish += (partial(self._release, applied),)
        return None

    def count_unknown(self, caller: Caller) -> Awaitable[None] | None:
        """Count a call of what does not exist for the caller; raises `rate_limited`."""
        return self._count(caller, self._resolver.resolve_unknown(caller.principal))

    def count_request(self, caller: Caller) -> Awaitable[None] | None:
        """Count a request or notification that is no call; raises `rate_limited`."""
        return self._count(caller, self._resolver.resolve_request(caller.principal))

    def _count(self, caller: Caller, limits: tuple[AppliedLimit, ...]) -> Awaitable[None] | None:
        if not limits:
            return None
        exceeded = self._store.acquire(limits, self._clock())
        if isinstance(exceeded, LimitExceeded):
            raise _request_limit_error(exceeded, caller)
        return None if exceeded is None else self._count_later(exceeded, caller)

    async def _count_later(self, answer: Awaitable[LimitExceeded | None], caller: Caller) -> None:
        exceeded = await answer
        if exceeded is not None:
            raise _request_limit_error(exceeded, caller)

    async def _acquire_later(
        self,
        answer: Awaitable[LimitExceeded | None],
        context: CallContext,
        entry: CatalogEntry,
        applied: AppliedLimits,
    ) -> None:
        exceeded = await answer
        if exceeded is not None:
            raise _rate_limit_error(exceeded, context, entry)
        if applied.concurrent:
            context.on_finish += (partial(self._release, applied),)

    def _release(self, applied: AppliedLimits, *_: object) -> None:
        self._store.release(applied.concurrent)


def _rate_limit_error(
    exceeded: LimitExceeded, context: CallContext, entry: CatalogEntry
) -> RpcError:
    wrapper, kind, owner = context.wrapper, exceeded.key[0], exceeded.key[-1]
    if wrapper is not None and (
        (kind.startswith("tool") and owner == wrapper.public_name)
        or (kind.startswith("server") and owner == wrapper.backend)
    ):
        entry = wrapper
    target = f"{KIND_NAMES[entry.kind]}: {entry.public_name}"
    seconds = -(-exceeded.retry_after_ns // SECOND_NS)
    if exceeded.is_concurrent:
        message, limit = f"Too many calls in flight for {target}", f"{exceeded.key[0]}_concurrent"
    else:
        message, limit = f"Rate limit exceeded for {target}", exceeded.key[0]
    return gateway_error(
        ErrorKind.RATE_LIMITED, message, context.caller.revision, retryAfter=seconds, limit=limit
    )


def _request_limit_error(exceeded: LimitExceeded, caller: Caller) -> RpcError:
    seconds, limit = -(-exceeded.retry_after_ns // SECOND_NS), exceeded.key[0]
    return gateway_error(
        ErrorKind.RATE_LIMITED,
        f"Rate limit exceeded for {_LIMITED_REQUESTS.get(limit, 'calls')}",
        caller.revision,
        retryAfter=seconds,
        limit=limit,
    )


_LIMITED_REQUESTS = {"unknown": "unknown names", "request": "requests"}


MAX_CACHED_SCHEMAS = 4096
"""How many tools and compiled schemas are cached; beyond that, a cache is emptied."""

_SCHEMA_KEY = "inputSchema"


ArgumentCheck: TypeAlias = Callable[[CallContext], Denied | None]
"""Checks the arguments of the calls of one tool."""


class _CachedTool(NamedTuple):
    """The argument check of one definition of a tool; None if there is nothing to check."""

    definition: Raw
    check: ArgumentCheck | None


class _ToolArgumentCheck:
    """Checks the arguments of one tool; reports once if its schema is too expensive."""

    __slots__ = ("_emit", "_entry", "_is_strict", "_is_valid", "_reported", "_validator")

    def __init__(
        self,
        entry: CatalogEntry,
        validator: ArgumentValidator,
        emit: Callable[[UncheckedTool], None],
        is_strict: bool,
    ) -> None:
        self._entry = entry
        self._is_valid = validator.is_valid
        self._validator = validator
        self._is_strict = is_strict
        self._emit = emit
        self._reported = False

    def check(self, context: CallContext) -> Denied | None:
        """Deny a call whose arguments do not fit the schema; if lenient, only for their names.

        Clients of 2025-11-25 and later get a result with `isError`, which models read; earlier
        ones get Invalid params. A missing `arguments` counts as an empty object.
        """
        arguments = context.arguments
        if arguments is not None and self._is_valid(arguments):
            return None
        if not context.method.has_arguments:
            return None
        try:
            problems = self._validator.find_errors(arguments)
            if problems and not self._is_strict:
                note, problems = problems, self._validator.find_name_errors(arguments)
                context.mismatch = None if problems else "; ".join(note)
        except UncheckableSchema as error:
            if not self._reported:
                self._reported = True
                self._emit(UncheckedTool(self._entry.public_name, self._entry.backend, str(error)))
            return None
        return _deny_arguments(context, self._entry, problems) if problems else None


class ArgumentChecker:
    """Checks the arguments of tools against their input schemas."""

    def __init__(
        self,
        emit: Callable[[UncheckedTool], None],
        mode: ArgumentMode = "lenient",
        exceptions: Mapping[str, ArgumentMode] | None = None,
        max_cached: int = MAX_CACHED_SCHEMAS,
    ) -> None:
        """`mode` holds for all backends, except for those with a mode in `exceptions`."""
        self._emit = emit
        self._max_cached = max_cached
        self._mode: ArgumentMode = mode
        self._exceptions = dict(exceptions or {})
        self._tools: dict[tuple[str, bool], _CachedTool] = {}
        """By name, and whether a rule reads the arguments."""
        self._validators: dict[bytes, ArgumentValidator | None] = {}
        """By schema, so that equal schemas are compiled once."""

    def __len__(self) -> int:
        return len(self._tools) + len(self._validators)

    def check_for(self, entry: CatalogEntry, is_read: bool = False) -> "ArgumentCheck | None":
        """Return the argument check of an entry, None if it has none.

        With `is_read`, a policy rule reads the arguments, and a lenient check becomes strict.
        """
        if entry.kind is not TOOL:
            return None
        cached = self._tools.get((entry.public_name, is_read))
        if cached is None or cached.definition is not entry.definition:
            cached = self._add_tool(entry, is_read)
        return cached.check

    def _add_tool(self, entry: CatalogEntry, is_read: bool) -> _CachedTool:
        if len(self._tools) >= self._max_cached:
            self._tools.clear()
        cached = _CachedTool(entry.definition, self._build_check(entry, is_read))
        self._tools[entry.public_name, is_read] = cached
        return cached

    def _build_check(self, entry: CatalogEntry, is_read: bool) -> ArgumentCheck | None:
        mode = self._exceptions.get(entry.backend, self._mode)
        if mode == "off":
            return None
        try:
            validator = self._compile_schema(entry)
        except UncheckableSchema as error:
            self._emit(UncheckedTool(entry.public_name, entry.backend, str(error)))
            return None
        if validator is None:
            return None
        is_strict = is_read or mode == "strict"
        return _ToolArgumentCheck(entry, validator, self._emit, is_strict).check

    def _compile_schema(self, entry: CatalogEntry) -> ArgumentValidator | None:
        schema = input_schema(entry)
        key = bytes(schema)
        if key not in self._validators:
            if len(self._validators) >= self._max_cached:
                self._validators.clear()
            self._validators[key] = compile_schema(schema)
        return self._validators[key]


def input_schema(entry: CatalogEntry) -> Raw:
    """Return the server's input schema of a tool; without one `{}`, which accepts everything."""
    if entry.input_schema is not None:
        return entry.input_schema
    return read_members(entry.definition).get(_SCHEMA_KEY, Raw(b"{}"))


def find_unchecked_tools(entries: Iterable[CatalogEntry]) -> dict[str, str]:
    """Return the tools whose arguments cannot be checked, and why."""
    found: dict[str, str] = {}
    for entry in entries:
        try:
            compile_schema(input_schema(entry))
        except UncheckableSchema as error:
            found[entry.public_name] = str(error)
    return found


def _deny_arguments(context: CallContext, entry: CatalogEntry, problems: tuple[str, ...]) -> Denied:
    context.status, context.mismatch = "invalid_arguments", "; ".join(problems)
    message = f"Invalid arguments for tool {entry.public_name}: {'; '.join(problems)}"
    revision = context.caller.revision
    if not revision.reports_bad_arguments_as_result:
        return Denied(RpcError(INVALID_PARAMS, message))
    result = to_raw({"content": [{"type": "text", "text": message}], "isError": True})
    return Denied(result=adapt_result(context.method, result, LATEST_SESSION_REVISION, revision))


class EnforcementChain:
    """All checks of a configuration; each part may be absent."""

    def __init__(
        self,
        policy_enforcer: PolicyEnforcer | None = None,
        kill_switches: KillSwitchControl | None = None,
        rate_limiter: RateLimiter | None = None,
        argument_checker: ArgumentChecker | None = None,
    ) -> None:
        self.policy_enforcer = policy_enforcer
        self.kill_switches = kill_switches
        self.rate_limiter = rate_limiter
        self.argument_checker = argument_checker

    def rules_for(self, caller: Caller, entry: CatalogEntry) -> CallerRules:
        """Return what holds for all calls of a visible entry by a caller."""
        switches, limiter, policy = self.kill_switches, self.rate_limiter, self.policy_enforcer
        return CallerRules(
            is_disabled=switches is not None and switches.disables(caller, entry),
            limits=None if limiter is None else limiter.limits_for(caller, entry),
            rule=None if policy is None else policy.unconditional_rule(caller, entry),
        )

    def checks_for(
        self,
        entry: CatalogEntry,
        caller_rules: CallerCache[CallerRules],
        *,
        wrapper: Route | None = None,
        is_counted: bool = False,
    ) -> tuple[CallCheck, ...]:
        """Return the checks of all calls of an entry, in order; no limits if `is_counted`.

        With `wrapper`, the checks of both, except that the wrapper's arguments fit already.
        """
        switches, limiter, policy = self.kill_switches, self.rate_limiter, self.policy_enforcer
        governed = [(entry, caller_rules)]
        if wrapper is not None:
            governed.insert(0, (wrapper.entry, wrapper.caller_rules))
        checks: list[CallCheck] = []
        # Calls do not look at inactive kill switches: activating one invalidates the routes.
        if switches is not None and switches.active:
            checks += [partial(_check_switches, switches, *each) for each in governed]
        if limiter is not None and not is_counted:
            if wrapper is None:
                checks.append(partial(_check_limits, limiter, entry, caller_rules))
            else:
                checks.append(
                    partial(_check_both_limits, limiter, entry, caller_rules, wrapper.caller_rules)
                )
        if policy is not None:
            checks += [partial(_check_policy, policy, *each) for each in governed]
        checker = self.argument_checker
        if checker is not None:
            # A rule for `call_tool` may read the arguments of the tool within.
            is_read = policy is not None and any(
                policy.reads_arguments(each) for each, _ in governed
            )
            if (check := checker.check_for(entry, is_read)) is not None:
                checks.append(check)
        return tuple(checks)

    def check_disabled(self, caller: Caller, entry: CatalogEntry) -> None:
        """Refuse a disabled entry; raises RpcError."""
        if self.kill_switches is not None:
            self.kill_switches.check(caller, entry)

    def hiding_rule(self, caller: Caller, entry: CatalogEntry) -> str | None:
        """Return the rule that hides an entry from a caller, None if it is visible."""
        return (
            None
            if self.policy_enforcer is None
            else self.policy_enforcer.hiding_rule(caller, entry)
        )

    def allows_passthrough(self, caller: Caller, backend: str) -> bool:
        """Return whether a request unknown to MCP may be passed on to a backend.

        Not with a policy or limits: they cannot judge a method that they do not know.
        """
        if self.policy_enforcer or self.rate_limiter:
            return False
        return self.may_send(caller, backend)

    def count_unknown(self, caller: Caller) -> Awaitable[None] | None:
        """Count a call of what does not exist for the caller; raises `rate_limited`."""
        return None if self.rate_limiter is None else self.rate_limiter.count_unknown(caller)

    def count_request(self, caller: Caller) -> Awaitable[None] | None:
        """Count a request or notification that is no call; raises `rate_limited`."""
        return None if self.rate_limiter is None else self.rate_limiter.count_request(caller)

    def may_send(self, caller: Caller, backend: str) -> bool:
        """Return whether a caller's notifications may reach a backend."""
        return self.kill_switches is None or self.kill_switches.may_send(caller, backend)

    def may_receive(self, caller: Caller | None, backend: str) -> bool:
        """Return whether a backend's notifications may reach a caller (None: any caller)."""
        return self.kill_switches is None or self.kill_switches.may_receive(caller, backend)

    def check_without_arguments(self, caller: Caller, entry: CatalogEntry) -> None:
        """Check kill switches and policy, without arguments and limits; raises RpcError."""
        if self.kill_switches is not None:
            self.kill_switches.check(caller, entry)
        if self.policy_enforcer is not None:
            self.policy_enforcer.check_without_arguments(caller, entry)


def _check_switches(
    switches: KillSwitchControl,
    entry: CatalogEntry,
    caller_rules: CallerCache[CallerRules],
    context: CallContext,
) -> None:
    if caller_rules.get(context.caller).is_disabled:
        switches.check(context.caller, entry)


def _check_limits(
    limiter: RateLimiter,
    entry: CatalogEntry,
    caller_rules: CallerCache[CallerRules],
    context: CallContext,
) -> Awaitable[None] | None:
    limits = caller_rules.get(context.caller).limits
    return None if limits is None else limiter.acquire(context, entry, limits)


def _check_both_limits(
    limiter: RateLimiter,
    entry: CatalogEntry,
    caller_rules: CallerCache[CallerRules],
    wrapper_rules: CallerCache[CallerRules],
    context: CallContext,
) -> Awaitable[None] | None:
    """Count a call under the limits of `call_tool` and of the tool within; once if they share one.

    Counted separately, a call would wait for the place that it holds itself.
    """
    found = (wrapper_rules.get(context.caller).limits, caller_rules.get(context.caller).limits)
    limits = combine_limits([each for each in found if each is not None])
    return limiter.acquire(context, entry, limits) if limits.all else None


def _check_policy(
    policy: PolicyEnforcer,
    entry: CatalogEntry,
    caller_rules: CallerCache[CallerRules],
    context: CallContext,
) -> Decision:
    rule = caller_rules.get(context.caller).rule
    if rule is None:
        return policy.check(context, entry)
    context.rule = rule
    return None
