"""The enforcement chain: the order of its checks, each of which may be missing."""

from typing import Any

import pytest

from tests.gateway.test_call_context import ENTRY, make_context
from trunkline.gateway.decision_cache import CallerCache
from trunkline.gateway.enforcement import EnforcementChain
from trunkline.gateway.pipeline import CallCheck
from trunkline.jsonrpc import Raw, RpcError


class FakeCheck:
    """A check that records its calls, and fails if its name is `refuses`."""

    def __init__(self, name: str, order: list[str], refuses: str = "") -> None:
        self._name, self._order, self._refuses = name, order, refuses

    def _run(self, *_: Any) -> None:
        self._order.append(self._name)
        if self._name == self._refuses:
            raise RpcError(1, self._name)

    def check_for(self, _: Any, is_read: bool) -> Any:
        assert not is_read
        return self._run

    def reads_arguments(self, _: Any) -> bool:
        return False

    def limits_for(self, *_: Any) -> Any:
        return object()

    def unconditional_rule(self, *_: Any) -> None:
        return None

    def disables(self, *_: Any) -> bool:
        return True

    active = True
    check = acquire = check_without_arguments = _run


def make_chain(order: list[str], refuses: str = "") -> EnforcementChain:
    parts = [FakeCheck(name, order, refuses) for name in ("policy", "switches", "limits", "last")]
    chain: Any = EnforcementChain(*parts)  # pyright: ignore[reportArgumentType]
    return chain


def checks_of(chain: EnforcementChain, *, is_counted: bool = False) -> tuple[CallCheck, ...]:
    """Return the checks of the entry."""
    caller_rules = CallerCache(lambda caller: chain.rules_for(caller, ENTRY))
    return chain.checks_for(ENTRY, caller_rules, is_counted=is_counted)


def run_checks(chain: EnforcementChain, *, is_counted: bool = False) -> object:
    """Return the first decision other than to allow the call."""
    checks = checks_of(chain, is_counted=is_counted)
    return next(filter(None, (check(make_context()) for check in checks)), None)


def test_checks_run_in_the_designed_order() -> None:
    order: list[str] = []
    assert run_checks(make_chain(order)) is None
    assert order == ["switches", "limits", "policy", "last"]


@pytest.mark.parametrize("refuses", ["switches", "limits", "policy", "last"])
def test_no_check_runs_after_a_refusal(refuses: str) -> None:
    order: list[str] = []
    with pytest.raises(RpcError, match=refuses):
        run_checks(make_chain(order, refuses))
    assert order[-1] == refuses


def test_a_check_without_arguments_runs_switches_and_policy_but_no_limits() -> None:
    order: list[str] = []
    make_chain(order).check_without_arguments(make_context().caller, ENTRY)
    assert order == ["switches", "policy"]


def test_a_second_check_runs_all_but_the_limits() -> None:
    order: list[str] = []
    assert run_checks(make_chain(order), is_counted=True) is None
    assert order == ["switches", "policy", "last"]
    assert run_checks(EnforcementChain(), is_counted=True) is None


def test_check_disabled_runs_only_the_kill_switches() -> None:
    order: list[str] = []
    make_chain(order).check_disabled(make_context().caller, ENTRY)
    assert order == ["switches"]


def test_inactive_checks_are_not_run_for_each_call() -> None:
    class Idle(FakeCheck):
        active = False

        def check_for(self, _: Any, is_read: bool) -> Any:
            return None

    idle: Any = Idle("", [])
    assert checks_of(EnforcementChain(kill_switches=idle, argument_checker=idle)) == ()


def test_an_empty_chain_allows_everything() -> None:
    chain, caller = EnforcementChain(), make_context().caller
    chain.check_disabled(caller, ENTRY)
    assert checks_of(chain) == ()
    chain.check_without_arguments(caller, ENTRY)


def test_the_argument_check_may_answer_instead_of_the_call() -> None:
    class Fixed(FakeCheck):
        def check_for(self, _: Any, is_read: bool) -> Any:
            return self._answer

        def _answer(self, *_: Any) -> Raw:
            return Raw(b"{}")

    chain = EnforcementChain(argument_checker=Fixed("last", []))  # pyright: ignore[reportArgumentType]
    assert run_checks(chain) is not None


def test_unknown_methods_pass_only_if_no_check_but_the_kill_switches_is_set() -> None:
    class Open(FakeCheck):
        def allows_passthrough(self, *_: Any) -> bool:
            return self._name != self._refuses

        may_receive = may_send = allows_passthrough

    caller = make_context().caller
    assert EnforcementChain().allows_passthrough(caller, "fs")
    assert EnforcementChain().may_receive(caller, "fs")
    for refuses, allowed in (("", True), ("switch", False)):
        chain = EnforcementChain(kill_switches=Open("switch", [], refuses))  # pyright: ignore[reportArgumentType]
        assert chain.allows_passthrough(caller, "fs") is allowed
        assert chain.may_receive(None, "fs") is allowed
    assert not make_chain([]).allows_passthrough(caller, "fs")
