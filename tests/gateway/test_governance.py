"""Governance: the order of its parts, and what is on lists."""

from typing import Any

import pytest

from tests.gateway.governed import allow
from trunkline.gateway.authority import Authority
from trunkline.gateway.governance import Governance
from trunkline.gateway.passage import Passage
from trunkline.jsonrpc import Raw, Request, RpcError, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.catalog import Entry
from trunkline.routing.policy import Policy, Role

ENTRY = Entry(Kind.TOOL, "fs__read", "fs", "read", Raw(b"{}"))
PARAMS = Params(to_raw({"name": "fs__read"}))
VIEWER = Authority(Policy(roles={"viewer": Role(frozenset({"tools.read"}))}))
EVERYBODY = Authority(Policy([allow()]))


def caller(name: str = "anna") -> Caller:
    return Caller(Principal(name, roles=("viewer",)), "2025-11-25", {}, Raw(b"{}"))


def passage() -> Passage:
    request = Request(1, "tools/call", to_raw({}))
    return Passage("1", caller(), request, "fs__read", 0.0, 0.0, leaving=[])


class Part:
    """A part that takes down when it was asked, and refuses if it is to."""

    def __init__(self, name: str, asked: list[str], refuses: bool = False) -> None:
        self.name, self.asked, self.refuses = name, asked, refuses

    def _ask(self) -> None:
        self.asked.append(self.name)
        if self.refuses:
            raise RpcError(-1, self.name)

    def stops(self, caller: Caller, entry: Entry) -> bool:
        return self.refuses

    def check(self, *_: Any) -> Any:
        self._ask()

    def enter(self, passage: Passage, entry: Entry) -> None:
        self._ask()


def parts(authority: Authority, refusing: str = "") -> tuple[Any, list[str]]:
    asked: list[str] = []
    made = {
        name: Part(name, asked, name == refusing) for name in ("switches", "throttle", "arguments")
    }
    governance: Any = Governance
    return governance(authority, **made), asked


@pytest.mark.holds("M9")
@pytest.mark.parametrize(
    ("refusing", "asked"),
    [
        ("switches", ["switches"]),
        ("throttle", ["switches", "throttle"]),
        ("arguments", ["switches", "throttle", "arguments"]),
    ],
)
def test_the_parts_are_asked_in_their_order_and_none_after_a_refusal(
    refusing: str, asked: list[str]
) -> None:
    governance, order = parts(EVERYBODY, refusing)
    with pytest.raises(RpcError, match=refusing):
        governance.admit(passage(), ENTRY, PARAMS)
    assert order == asked


def test_who_may_not_is_refused_after_the_throttle_and_before_the_arguments() -> None:
    governance, order = parts(VIEWER)
    with pytest.raises(RpcError, match="Permission denied"):
        governance.admit(passage(), ENTRY, PARAMS)
    assert order == ["switches", "throttle"]
    with pytest.raises(RpcError, match="Permission denied"):
        governance.readmit(caller(), ENTRY)


def test_what_is_stopped_is_there_and_not_on_lists() -> None:
    governance, _ = parts(EVERYBODY, "switches")
    assert governance.sees(caller(), ENTRY)
    assert not governance.lists(caller(), ENTRY)
    assert parts(EVERYBODY)[0].lists(caller(), ENTRY)


def test_with_switches_every_subject_has_lists_of_its_own() -> None:
    governance, _ = parts(EVERYBODY)
    assert governance.key(caller("anna")) != governance.key(caller("bert"))
    alone = Governance(EVERYBODY)
    assert alone.key(caller("anna")) == alone.key(caller("bert"))


def test_without_parts_everything_passes() -> None:
    governance = Governance()
    assert governance.admit(passage(), ENTRY, PARAMS) is None
    governance.readmit(caller(), ENTRY)
