"""The checks of one catalogue entry: every call is checked, also of cached callers."""

from typing import Any
from unittest.mock import Mock

import pytest

from tests.gateway.governed import NO_ETC, allow, deny
from tests.gateway.test_call_context import ENTRY
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.decision_cache import MAX_CACHED_CALLERS, CallerCache
from trunkline.gateway.enforcement import EnforcementChain, PolicyEnforcer, RateLimiter
from trunkline.jsonrpc import Raw, Request, RpcError, to_raw
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2025_11_25
from trunkline.routing.limits import LimitTables
from trunkline.routing.policy import Policy, Role

pytestmark = pytest.mark.at_once


class FakeSwitches:
    """Kill switches that disable everything while `stops` is set."""

    active = True
    stops = False

    def disables(self, *_: Any) -> bool:
        return self.stops

    def check(self, *_: Any) -> None:
        raise gateway_error(ErrorKind.DISABLED, "disabled")


class EntryChecks:
    """The checks of one entry, with what was decided about its callers."""

    def __init__(self, chain: EnforcementChain) -> None:
        self.caller_rules = CallerCache(lambda caller: chain.rules_for(caller, ENTRY))
        self.checks = chain.checks_for(ENTRY, self.caller_rules)

    def check(self, call: CallContext) -> None:
        for check in self.checks:
            assert check(call) is None


def make_caller(name: str = "anna", *roles: str) -> Caller:
    return Caller(Principal(name, roles=roles), V2025_11_25, {}, Raw(b"{}"))


def make_context(caller: Caller, **arguments: Any) -> CallContext:
    request = Request(7, "tools/call", Raw(b'{"name":"a__b"}'))
    client, params = Mock(caller=caller), Params(Raw(b"{}"))
    method = CLIENT_REQUESTS["tools/call"]
    return CallContext(
        caller, request, method, params, client, entry=ENTRY, arguments=to_raw(arguments)
    )


def outcome(guard: EntryChecks, caller: Caller, **arguments: Any) -> str | None:
    """Return the rule that allows a call, or the type of the error."""
    call = make_context(caller, **arguments)
    try:
        guard.check(call)
    except RpcError as why:
        data: Any = why.data
        return str(data["type"])
    return call.rule


def make_guard(rules: Policy | None = None, **limits: Any) -> EntryChecks:
    limiter = RateLimiter(LimitTables(**limits), clock=lambda: 0) if limits else None
    policy = None if rules is None else PolicyEnforcer(rules)
    return EntryChecks(EnforcementChain(policy, rate_limiter=limiter))


def test_every_call_is_counted_for_its_own_caller() -> None:
    guard, anna, otto = make_guard(default_rpm=2), make_caller(), make_caller("otto")
    outcomes = [outcome(guard, caller) for caller in (anna, anna, anna, otto, otto, otto, anna)]
    assert outcomes == [None, None, "rate_limited", None, None, "rate_limited", "rate_limited"]


def test_a_new_caller_object_of_the_same_principal_keeps_its_count() -> None:
    guard = make_guard(default_rpm=2)
    assert [outcome(guard, make_caller()) for _ in range(3)] == [None, None, "rate_limited"]


def test_an_unconditional_rule_is_recorded_for_each_call() -> None:
    guard, anna = make_guard(Policy([allow(location="first")])), make_caller()
    assert [outcome(guard, anna) for _ in range(2)] == ["first"] * 2


def test_arguments_are_evaluated_for_each_call() -> None:
    guard = make_guard(Policy([deny(condition=NO_ETC, location="first"), allow(location="second")]))
    anna = make_caller()
    paths = ("/tmp/x", "/etc/x", "/tmp/y", "/etc/y")
    outcomes = [outcome(guard, anna, path=path) for path in paths]
    assert outcomes == ["second", "not_allowed", "second", "not_allowed"]


def test_a_call_is_checked_with_the_current_roles() -> None:
    roles = {"dev": Role(frozenset({"*"})), "viewer": Role(frozenset({"tools.read"}))}
    guard, dev, viewer = (
        make_guard(Policy(roles=roles)),
        make_caller("a", "dev"),
        make_caller("a", "viewer"),
    )
    outcomes = [outcome(guard, caller) for caller in (dev, viewer, dev, viewer)]
    assert outcomes == ["role dev: *", "not_allowed"] * 2


def test_a_rate_limited_call_records_no_rule() -> None:
    guard, call = (
        make_guard(Policy([allow(location="first")]), default_rpm=1),
        make_context(make_caller()),
    )
    guard.check(call)
    second_call = make_context(call.caller)
    with pytest.raises(RpcError):
        guard.check(second_call)
    assert (call.rule, second_call.rule) == ("first", None)


def test_a_stopped_call_uses_no_quota() -> None:
    switches: Any = FakeSwitches()
    limiter = RateLimiter(LimitTables(default_rpm=1), clock=lambda: 0)
    chain, anna = EnforcementChain(kill_switches=switches, rate_limiter=limiter), make_caller()
    switches.stops = True
    stopped = EntryChecks(chain)
    assert [outcome(stopped, anna) for _ in range(3)] == ["disabled"] * 3
    switches.stops = False
    revived = EntryChecks(chain)  # reviving invalidates what was decided
    assert [outcome(revived, anna) for _ in range(2)] == [None, "rate_limited"]


def test_each_of_many_callers_gets_its_own_decision() -> None:
    roles = {"dev": Role(frozenset({"*"})), "viewer": Role(frozenset({"tools.read"}))}
    guard = make_guard(Policy(roles=roles))
    callers = [
        make_caller(str(n), "dev" if n % 2 else "viewer") for n in range(2 * MAX_CACHED_CALLERS)
    ]
    expected = ["role dev: *" if n % 2 else "not_allowed" for n in range(2 * MAX_CACHED_CALLERS)]
    for _ in range(2):
        assert [outcome(guard, caller) for caller in callers] == expected
