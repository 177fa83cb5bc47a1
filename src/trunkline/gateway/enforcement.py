"""The checks that a configuration makes: kill switch, limits, policy, arguments, in this order.

    EntryGuard: disabled? ──> over a limit? ──> allowed? ──> ArgumentChecker: do arguments fit?

Each part may be absent. What is the same for all calls of a caller (no kill switch, which limits,
what the policy says regardless of arguments) is decided at its first call and cached with the
route; changing any of it clears the route cache.

Invariants:
1. Lists and calls use the same policy decision: a listed entry is never "unknown" when called.
2. The policy judges the very bytes that are forwarded. Arguments that could be read in two ways,
   such as with duplicate keys, are refused.
3. Cached decisions are bounded, and belong to a definition: a changed definition is judged again.
4. New limits keep the quota used so far: a changed configuration does not refill buckets.
5. A schema that is invalid or too expensive to check is skipped, and reported once per tool.
"""

import time
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.events import UncheckedTool
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.gateway.pipeline import CallCheck
from trunkline.jsonrpc import INVALID_PARAMS, Raw, RpcError, from_raw, read_members, to_raw
from trunkline.mcp.compat import adapt_result
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.features import TOOL, FeatureKind, read_hints
from trunkline.mcp.identity import Caller
from trunkline.mcp.versions import V2025_11_25
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.conditions import read_strict_arguments
from trunkline.routing.limits import (
    SECOND_NS,
    AppliedLimits,
    LimitExceeded,
    LimitResolver,
    LimitTables,
    Quota,
)
from trunkline.routing.policy import (
    ALLOW,
    KIND_NAMES,
    Policy,
    PolicyDecision,
    PolicyResult,
    Subject,
    Target,
)
from trunkline.routing.schema_validation import ArgumentValidator, UncheckableSchema, compile_schema
from trunkline.routing.visibility import CallerCache

MAX_CACHED_DECISIONS = 20_000
"""How many policy decisions are cached; beyond that, the cache is emptied."""

MAX_CACHED_NAME = 256
"""Decisions about longer names, in characters, are not cached: mostly made-up URIs."""

_CachedDecisions: TypeAlias = dict[tuple[FeatureKind, str, str], tuple[Raw, PolicyDecision]]


class PolicyEnforcer:
    """Applies the policy to callers and catalogue entries, and caches its decisions."""

    def __init__(self, policy: Policy, max_cached: int = MAX_CACHED_DECISIONS) -> None:
        self.policy = policy
        self._max_cached = max_cached
        self._depends_on_subject = "subject" in policy.variables
        self._depends_on_client = "client" in policy.variables
        self._decisions: dict[Hashable, _CachedDecisions] = {}
        self._count = 0

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

    def check(self, context: CallContext, entry: CatalogEntry) -> None:
        """Refuse a call that the policy denies, and record the rule; raises `not_allowed`."""
        decision = self.decision_for(context.caller, entry)
        if not decision.conditional:
            result = decision.final
        elif context.request.method == "completion/complete":
            result = _without_arguments(decision)
        else:
            result = _evaluate(decision, context.arguments)
        context.rule = result.rule
        if result.outcome is not ALLOW:
            raise _not_allowed_error(context.caller, entry)

    def recheck(self, caller: Caller, entry: CatalogEntry) -> None:
        """Refuse what is denied regardless of arguments; raises `not_allowed`."""
        if _without_arguments(self.decision_for(caller, entry)).outcome is not ALLOW:
            raise _not_allowed_error(caller, entry)

    def decision_for(self, caller: Caller, entry: CatalogEntry) -> PolicyDecision:
        """Return the policy's decision about an entry for a caller, from the cache if possible."""
        key = self.visibility_key(caller)
        cached = self._decisions.get(key)
        name = (entry.kind, entry.public_name, entry.backend)
        if cached is not None:
            found = cached.get(name)
            if found is not None and found[0] is entry.definition:
                return found[1]
        decision = self.policy.evaluate(_policy_subject(caller), policy_target(entry))
        self._store(key, name, (entry.definition, decision))
        return decision

    def _store(
        self, key: Hashable, name: tuple[FeatureKind, str, str], found: tuple[Raw, PolicyDecision]
    ) -> None:
        if len(name[1]) > MAX_CACHED_NAME:
            return  # most likely a made-up URI
        if self._count >= self._max_cached:
            self._decisions, self._count = {}, 0
        cached = self._decisions.setdefault(key, {})
        self._count += name not in cached
        cached[name] = found


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


def _not_allowed_error(caller: Caller, entry: CatalogEntry) -> RpcError:
    message = f"Permission denied for {KIND_NAMES[entry.kind]}: {entry.public_name}"
    return gateway_error(ErrorKind.NOT_ALLOWED, message, caller.version)


_KIND_LABELS = {FeatureKind.TOOL: "tool", FeatureKind.PROMPT: "prompt"}


class RateLimiter:
    """Counts calls against rate and concurrency limits."""

    def __init__(
        self,
        limits: LimitTables,
        quota: Quota | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._resolver = LimitResolver(limits)
        self.quota = Quota() if quota is None else quota
        self._clock = clock

    def with_limits(self, limits: LimitTables) -> "RateLimiter":
        """Return a limiter with other limits that keeps the quota used so far."""
        return RateLimiter(limits, self.quota, self._clock)

    def limits_for(self, caller: Caller, entry: CatalogEntry) -> AppliedLimits | None:
        """Return the limits that calls of an entry by a caller fall under, None if none do."""
        applied = self._resolver.resolve(caller.principal, entry)
        return applied if applied.all else None

    def acquire(self, context: CallContext, entry: CatalogEntry, applied: AppliedLimits) -> None:
        """Count a call, until it ends; raises `rate_limited`."""
        exceeded = self.quota.acquire(applied.all, self._clock())
        if exceeded is not None:
            raise _rate_limit_error(exceeded, entry, context.caller.version)
        if applied.concurrent:
            context.on_finish += (partial(self.quota.release, applied.concurrent),)


def _rate_limit_error(exceeded: LimitExceeded, entry: CatalogEntry, version: str) -> RpcError:
    target = f"{_KIND_LABELS.get(entry.kind, 'resource')}: {entry.public_name}"
    seconds = -(-exceeded.retry_after_ns // SECOND_NS)
    if exceeded.is_concurrent:
        message, limit = f"Too many calls under way for {target}", f"{exceeded.key[0]}_concurrent"
    else:
        message, limit = f"Rate limit exceeded for {target}", exceeded.key[0]
    return gateway_error(ErrorKind.RATE_LIMITED, message, version, retryAfter=seconds, limit=limit)


MAX_CACHED_SCHEMAS = 4096
"""How many tools and compiled schemas are cached; beyond that, a cache is emptied."""

_SCHEMA_KEY = "inputSchema"


class _CachedTool(NamedTuple):
    """The argument check of one definition of a tool; None if there is nothing to check."""

    definition: Raw
    check: CallCheck | None


class _ToolArgumentCheck:
    """Checks the arguments of one tool; reports once if its schema is too expensive."""

    __slots__ = ("_emit", "_find_errors", "_is_valid", "_reported")

    def __init__(self, validator: ArgumentValidator, emit: Callable[[UncheckedTool], None]) -> None:
        self._is_valid = validator.is_valid
        self._find_errors = validator.find_errors
        self._emit = emit
        self._reported = False

    def check(self, context: CallContext, entry: CatalogEntry) -> Raw | None:
        """Refuse arguments that do not fit the schema.

        Clients of 2025-11-25 and later get a result with `isError`, which models read; earlier
        ones get Invalid params. A missing `arguments` counts as an empty object.
        """
        arguments = context.arguments
        if arguments is not None and self._is_valid(arguments):
            return None
        try:
            problems = self._find_errors(arguments)
        except UncheckableSchema as error:
            if not self._reported:
                self._reported = True
                self._emit(UncheckedTool(entry.public_name, entry.backend, str(error)))
            return None
        return _argument_error(context, entry, problems) if problems else None


class ArgumentChecker:
    """Checks the arguments of tools against their input schemas."""

    def __init__(
        self,
        emit: Callable[[UncheckedTool], None],
        builtin: Iterable[str] = (),
        max_cached: int = MAX_CACHED_SCHEMAS,
    ) -> None:
        """`builtin` names the backends that check their arguments themselves."""
        self._emit = emit
        self._max_cached = max_cached
        self._builtin = frozenset(builtin)
        self._tools: dict[str, _CachedTool] = {}
        self._validators: dict[bytes, ArgumentValidator | None] = {}
        """By schema, so that equal schemas are compiled once."""

    def __len__(self) -> int:
        return len(self._tools) + len(self._validators)

    def check_for(self, entry: CatalogEntry) -> CallCheck | None:
        """Return the argument check of an entry, None if it has none."""
        if entry.kind is not TOOL:
            return None
        cached = self._tools.get(entry.public_name)
        if cached is None or cached.definition is not entry.definition:
            cached = self._add_tool(entry)
        return cached.check

    def _add_tool(self, entry: CatalogEntry) -> _CachedTool:
        if len(self._tools) >= self._max_cached:
            self._tools.clear()
        check = None if entry.backend in self._builtin else self._build_check(entry)
        cached = self._tools[entry.public_name] = _CachedTool(entry.definition, check)
        return cached

    def _build_check(self, entry: CatalogEntry) -> CallCheck | None:
        try:
            validator = self._compile_schema(entry)
        except UncheckableSchema as error:
            self._emit(UncheckedTool(entry.public_name, entry.backend, str(error)))
            return None
        return None if validator is None else _ToolArgumentCheck(validator, self._emit).check

    def _compile_schema(self, entry: CatalogEntry) -> ArgumentValidator | None:
        schema = input_schema(entry)
        key = bytes(schema)
        if key not in self._validators:
            if len(self._validators) >= self._max_cached:
                self._validators.clear()
            self._validators[key] = compile_schema(schema)
        return self._validators[key]


def input_schema(entry: CatalogEntry) -> Raw:
    """Return the input schema of a tool; `{}`, which accepts everything, if it has none."""
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


def _argument_error(context: CallContext, entry: CatalogEntry, problems: tuple[str, ...]) -> Raw:
    context.status = "invalid_arguments"
    message = f"Invalid arguments for tool {entry.public_name}: {'; '.join(problems)}"
    version = context.caller.version
    if version < V2025_11_25:
        raise RpcError(INVALID_PARAMS, message)
    result = to_raw({"content": [{"type": "text", "text": message}], "isError": True})
    return adapt_result("tools/call", result, V2025_11_25, version)


_CallerTerms: TypeAlias = tuple[AppliedLimits | None, str | None]
"""The limits of a caller, and the rule that allows all of its calls, if one does."""


class EntryGuard:
    """Checks calls of one entry: kill switch, limits, policy."""

    __slots__ = ("_cache", "_kill_switches", "_policy_enforcer", "_rate_limiter")

    def __init__(
        self,
        kill_switches: KillSwitchControl | None,
        rate_limiter: RateLimiter | None,
        policy_enforcer: PolicyEnforcer | None,
    ) -> None:
        self._kill_switches = kill_switches
        self._rate_limiter = rate_limiter
        self._policy_enforcer = policy_enforcer
        self._cache = CallerCache[_CallerTerms]()

    def check(self, context: CallContext, entry: CatalogEntry) -> None:
        """Refuse a call that is disabled, over a limit or not allowed; raises RpcError."""
        caller = context.caller
        cached = self._cache.get(id(caller)) or self._resolve(caller, entry)
        applied, rule = cached[0]
        if applied is not None and self._rate_limiter is not None:
            self._rate_limiter.acquire(context, entry, applied)
        if rule is not None:
            context.rule = rule
        elif self._policy_enforcer is not None:
            self._policy_enforcer.check(context, entry)

    def _resolve(self, caller: Caller, entry: CatalogEntry) -> tuple[_CallerTerms, Caller]:
        """Decide and cache what holds for all calls of a caller; raises `disabled`, uncached."""
        if self._kill_switches is not None:
            self._kill_switches.check(caller, entry)
        applied = (
            None if self._rate_limiter is None else self._rate_limiter.limits_for(caller, entry)
        )
        rule = (
            None
            if self._policy_enforcer is None
            else self._policy_enforcer.unconditional_rule(caller, entry)
        )
        return self._cache.store(caller, (applied, rule))


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

    def checks_for(self, entry: CatalogEntry) -> tuple[CallCheck, ...]:
        """Return the checks of all calls of an entry, in order."""
        checks: list[CallCheck] = []
        # Calls do not look at inactive kill switches: activating one clears the route cache.
        is_switching = self.kill_switches is not None and self.kill_switches.active
        if is_switching or self.rate_limiter is not None or self.policy_enforcer is not None:
            checks.append(
                EntryGuard(self.kill_switches, self.rate_limiter, self.policy_enforcer).check
            )
        if (
            self.argument_checker is not None
            and (check := self.argument_checker.check_for(entry)) is not None
        ):
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
        return self.kill_switches is None or self.kill_switches.allows_passthrough(caller, backend)

    def may_receive(self, caller: Caller | None, backend: str) -> bool:
        """Return whether a backend's notifications may reach a caller (None: any caller)."""
        return self.kill_switches is None or self.kill_switches.may_receive(caller, backend)

    def recheck(self, caller: Caller, entry: CatalogEntry) -> None:
        """Check a suspended call again, without counting it; raises RpcError."""
        if self.kill_switches is not None:
            self.kill_switches.check(caller, entry)
        if self.policy_enforcer is not None:
            self.policy_enforcer.recheck(caller, entry)
