"""What every call is asked, also those of callers who are known by now."""

from typing import Any

import pytest

from tests.gateway.governed import NO_ETC, allow, deny
from tests.gateway.test_passage import ENTRY
from trunkline.gateway.authority import Authority
from trunkline.gateway.gate import Gate
from trunkline.gateway.passage import Passage
from trunkline.gateway.throttle import Throttle
from trunkline.jsonrpc import Raw, Request, RpcError, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.principal import Principal
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.routing.known_callers import MOST
from trunkline.routing.limits import Limits
from trunkline.routing.policy import Policy, Role


class Stop:
    """Switches that stop whatever they are told to, and count who asks."""

    def __init__(self) -> None:
        self.stops = False
        self.asked = 0

    def check(self, *_: Any) -> None:
        self.asked += 1
        if self.stops:
            raise refuse(Refusal.DISABLED, "stopped")


def somebody(name: str = "anna", *roles: str) -> Caller:
    return Caller(Principal(name, roles=roles), "2025-11-25", {}, Raw(b"{}"))


def passage(caller: Caller, **arguments: Any) -> Passage:
    request = Request(7, "tools/call", Raw(b'{"name":"a__b"}'))
    return Passage(caller, request, entry=ENTRY, arguments=to_raw(arguments))


def outcome(gate: Gate, caller: Caller, **arguments: Any) -> str | None:
    """Return the rule that lets a call pass, or why none does."""
    call = passage(caller, **arguments)
    try:
        gate.check(call, ENTRY)
    except RpcError as why:
        data: Any = why.data
        return str(data["type"])
    return call.rule


def gate(rules: Policy | None = None, **limits: Any) -> Gate:
    throttle = Throttle(Limits(**limits), clock=lambda: 0) if limits else None
    return Gate(None, throttle, None if rules is None else Authority(rules))


def test_every_call_of_a_caller_is_counted_and_each_under_its_own_name() -> None:
    made, anna, otto = gate(default_rpm=2), somebody(), somebody("otto")
    found = [outcome(made, who) for who in (anna, anna, anna, otto, otto, otto, anna)]
    assert found == [None, None, "rate_limited", None, None, "rate_limited", "rate_limited"]


def test_a_caller_that_comes_anew_has_used_what_it_has_used() -> None:
    made = gate(default_rpm=2)
    assert [outcome(made, somebody()) for _ in range(3)] == [None, None, "rate_limited"]


def test_what_is_allowed_whatever_the_arguments_is_noted_each_time() -> None:
    made, anna = gate(Policy([allow(place="first")])), somebody()
    assert [outcome(made, anna) for _ in range(2)] == ["first"] * 2


def test_arguments_are_judged_each_time() -> None:
    made = gate(Policy([deny(condition=NO_ETC, place="first"), allow(place="second")]))
    anna = somebody()
    paths = ("/tmp/x", "/etc/x", "/tmp/y", "/etc/y")
    found = [outcome(made, anna, path=path) for path in paths]
    assert found == ["second", "not_allowed", "second", "not_allowed"]


def test_who_has_other_roles_by_now_is_judged_by_those() -> None:
    roles = {"dev": Role(frozenset({"*"})), "viewer": Role(frozenset({"tools.read"}))}
    made, dev, viewer = gate(Policy(roles=roles)), somebody("a", "dev"), somebody("a", "viewer")
    found = [outcome(made, who) for who in (dev, viewer, dev, viewer)]
    assert found == ["role dev: *", "not_allowed"] * 2


def test_what_is_refused_for_being_too_much_has_no_rule() -> None:
    made, call = gate(Policy([allow(place="first")]), default_rpm=1), passage(somebody())
    made.check(call, ENTRY)
    again = passage(call.caller)
    with pytest.raises(RpcError):
        made.check(again, ENTRY)
    assert (call.rule, again.rule) == ("first", None)


def test_who_is_stopped_is_never_known_and_uses_up_nothing() -> None:
    stop: Any = Stop()
    made, anna = Gate(stop, Throttle(Limits(default_rpm=1), clock=lambda: 0), None), somebody()
    stop.stops = True
    assert [outcome(made, anna) for _ in range(3)] == ["disabled"] * 3
    stop.stops = False
    assert [outcome(made, anna) for _ in range(2)] == [None, "rate_limited"]
    assert stop.asked == 4


def test_of_many_callers_each_is_judged_for_itself() -> None:
    roles = {"dev": Role(frozenset({"*"})), "viewer": Role(frozenset({"tools.read"}))}
    made = gate(Policy(roles=roles))
    callers = [somebody(str(n), "dev" if n % 2 else "viewer") for n in range(2 * MOST)]
    expected = ["role dev: *" if n % 2 else "not_allowed" for n in range(2 * MOST)]
    for _ in range(2):
        assert [outcome(made, each) for each in callers] == expected
