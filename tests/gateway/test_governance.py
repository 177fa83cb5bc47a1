"""The order in which a call is judged, with parts that may each be missing."""

from typing import Any

import pytest

from tests.gateway.test_passage import ENTRY, passage
from trunkline.gateway.governance import Governance
from trunkline.jsonrpc import Raw, RpcError


class Part:
    """Any part, which notes that it was asked, and refuses if it is told to."""

    def __init__(self, name: str, order: list[str], refuses: str = "") -> None:
        self._name, self._order, self._refuses = name, order, refuses

    def _asked(self, *_: Any) -> None:
        self._order.append(self._name)
        if self._name == self._refuses:
            raise RpcError(1, self._name)

    def check_of(self, _: Any) -> Any:
        return self._asked

    def demands(self, *_: Any) -> Any:
        return object()

    def settled(self, *_: Any) -> None:
        return None

    active = True
    check = enter = recheck = _asked


def governed(order: list[str], refuses: str = "") -> Governance:
    parts = [Part(name, order, refuses) for name in ("authority", "switches", "throttle", "last")]
    made: Any = Governance(*parts)  # pyright: ignore[reportArgumentType]
    return made


def judged(made: Governance) -> Raw | None:
    """Return what a call is answered with in its place."""
    return next(filter(None, (check(passage(), ENTRY) for check in made.checks(ENTRY))), None)


def test_the_order_is_that_of_the_design() -> None:
    order: list[str] = []
    assert judged(governed(order)) is None
    assert order == ["switches", "throttle", "authority", "last"]


@pytest.mark.parametrize("refuses", ["switches", "throttle", "authority", "last"])
def test_what_is_refused_is_not_judged_further(refuses: str) -> None:
    order: list[str] = []
    with pytest.raises(RpcError, match=refuses):
        judged(governed(order, refuses))
    assert order[-1] == refuses


def test_what_goes_on_is_judged_again_but_costs_nothing_more() -> None:
    order: list[str] = []
    governed(order).readmit(passage().caller, ENTRY)
    assert order == ["switches", "authority"]


def test_what_is_not_there_yet_is_asked_of_the_switches_alone() -> None:
    order: list[str] = []
    governed(order).check_stopped(passage().caller, ENTRY)
    assert order == ["switches"]


def test_who_has_nothing_to_say_of_an_offer_is_not_asked_for_each_of_its_calls() -> None:
    class Idle(Part):
        active = False

        def check_of(self, _: Any) -> Any:
            return None

    idle: Any = Idle("", [])
    assert Governance(switches=idle, arguments=idle).checks(ENTRY) == ()


def test_without_parts_everything_passes() -> None:
    made, caller = Governance(), passage().caller
    made.check_stopped(caller, ENTRY)
    assert made.checks(ENTRY) == ()
    made.readmit(caller, ENTRY)


def test_arguments_may_be_answered_in_place_of_the_call() -> None:
    class Fixed(Part):
        def check_of(self, _: Any) -> Any:
            return self._answer

        def _answer(self, *_: Any) -> Raw:
            return Raw(b"{}")

    made = Governance(arguments=Fixed("last", []))  # pyright: ignore[reportArgumentType]
    assert judged(made) is not None


def test_what_nobody_could_judge_passes_only_where_nobody_but_the_switches_judges() -> None:
    class Open(Part):
        def passes_unknown(self, *_: Any) -> bool:
            return self._name != self._refuses

        hears = passes_unknown

    caller = passage().caller
    assert Governance().passes_unknown(caller, "fs")
    assert Governance().hears(caller, "fs")
    for refuses, passes in (("", True), ("it", False)):
        made = Governance(switches=Open("it", [], refuses))  # pyright: ignore[reportArgumentType]
        assert made.passes_unknown(caller, "fs") is passes
        assert made.hears(None, "fs") is passes
    assert not governed([]).passes_unknown(caller, "fs")
