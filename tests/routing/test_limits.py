"""Which limits a call comes under."""

import pytest

from trunkline.jsonrpc import Raw
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing import limits as module
from trunkline.routing.catalog import Entry
from trunkline.routing.limits import Ledger, Limit, Limits
from trunkline.routing.quota import Demand

ANN = Principal("key:ann", "ann", ("dev", "ops", "dev"))


def entry(name: str = "fs__read", kind: Kind = Kind.TOOL, backend: str = "fs") -> Entry:
    return Entry(kind, name, backend, name, Raw(b"{}"))


def demands(limits: Limits, principal: Principal = ANN, of: Entry | None = None) -> set[Demand]:
    return set(Ledger(limits).demands(principal, of or entry()).all)


def test_without_limits_nothing_is_counted() -> None:
    assert demands(Limits()) == set()


@pytest.mark.holds("O0.10")
def test_every_subject_and_tool_has_the_default_unless_the_tool_has_its_own() -> None:
    limits = Limits(default_rpm=1000, tools={"fs__write": Limit(5)})
    assert demands(limits) == {Demand(("tool", "key:ann", "fs__read"), 1000)}
    assert demands(limits, of=entry("fs__write")) == {Demand(("tool", "key:ann", "fs__write"), 5)}


def test_a_tool_that_is_only_limited_in_another_way_keeps_the_default() -> None:
    limits = Limits(default_rpm=1000, tools={"fs__*": Limit(concurrent=1)})
    assert demands(limits) == {Demand(("tool", "key:ann", "fs__read"), 1000, 1)}


def test_an_exact_name_comes_first_then_the_first_pattern() -> None:
    table = {"*": Limit(1), "fs__*": Limit(2), "fs__read": Limit(3)}
    limits = Limits(tools=table)
    assert demands(limits) == {Demand(("tool", "key:ann", "fs__read"), 3)}
    assert demands(limits, of=entry("fs__stat")) == {Demand(("tool", "key:ann", "fs__stat"), 1)}


def test_all_tables_hold_at_once_for_each_and_for_all_together() -> None:
    limits = Limits(
        tools={"fs__read": Limit(1, 2, 3, 4)},
        servers={"f?": Limit(5, 6, 7, 8)},
        subjects={"a*": Limit(9, 10)},
        roles={"dev": Limit(11, 12, 13, 14), "ops": Limit(total_rpm=15), "boss": Limit(16)},
    )
    found = Ledger(limits).demands(ANN, entry())
    assert set(found.all) == {
        Demand(("tool", "key:ann", "fs__read"), 1, 2),
        Demand(("tool_total", "fs__read"), 3, 4),
        Demand(("server", "key:ann", "fs"), 5, 6),
        Demand(("server_total", "fs"), 7, 8),
        Demand(("subject", "key:ann"), 9, 10),
        Demand(("role", "key:ann", "dev"), 11, 12),
        Demand(("role_total", "dev"), 13, 14),
        Demand(("role_total", "ops"), 15),
    }
    assert set(found.held) == {each for each in found.all if each.concurrent is not None}


def test_a_subject_may_have_more_under_way_than_others() -> None:
    limits = Limits(max_concurrent=2, subjects={"ann": Limit(concurrent=50)})
    assert demands(limits) == {Demand(("subject", "key:ann"), None, 50)}
    assert demands(limits, Principal("bob")) == {Demand(("subject", "bob"), None, 2)}


def test_prompts_are_counted_by_name_and_resources_by_server() -> None:
    limits = Limits(default_rpm=7, tools={"*": Limit(1)})
    prompt = entry("fs__ask", Kind.PROMPT)
    assert demands(limits, of=prompt) == {Demand(("tool", "key:ann", "prompt fs__ask"), 7)}
    for kind, uri in ((Kind.RESOURCE, "file:///a"), (Kind.TEMPLATE, "file:///{name}")):
        found = demands(limits, of=entry(uri, kind))
        assert found == {Demand(("tool", "key:ann", "resources fs"), 7)}


def test_what_was_looked_up_is_kept_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    ledger = Ledger(Limits(default_rpm=1))
    first = ledger.demands(ANN, entry("a"))
    assert ledger.demands(ANN, entry("a")) is first
    ledger.demands(ANN, entry("b"))
    ledger.demands(ANN, entry("c"))
    assert ledger.demands(ANN, entry("a")) == first
    assert ledger.demands(ANN, entry("a")) is not first


def test_roles_that_change_are_looked_up_again() -> None:
    ledger = Ledger(Limits(roles={"dev": Limit(1)}))
    assert ledger.demands(ANN, entry()).all
    assert not ledger.demands(Principal("key:ann", "ann", ("guest",)), entry()).all
