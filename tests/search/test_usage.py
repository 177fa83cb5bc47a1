"""Usage: calls after searches are counted per caller, decay, and are bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.search.usage import (
    HALF_LIFE,
    MAX_PRINCIPALS,
    MAX_RETURNED,
    MAX_SURFACES,
    MAX_TOOLS,
    SEARCH_WINDOW,
    Searcher,
    UsageHistory,
)

ANNA, BOB = Searcher("anna", ""), Searcher("bob", "")
START = 1_700_000_000.0


def use(history: UsageHistory, searcher: Searcher, tool: str, at: float = START) -> None:
    history.add_search(searcher, [tool], at)
    history.add_call(searcher.principal, tool, at)


def shares(history: UsageHistory, searcher: Searcher = ANNA) -> dict[str, float]:
    return history.snapshot().shares(searcher)


def test_a_call_of_a_tool_that_a_search_returned_counts() -> None:
    history = UsageHistory()
    history.add_search(ANNA, ["read", "write"], START)
    history.add_call("anna", "read", START + 60)
    assert shares(history) == {"read": 0.5}


def test_a_call_without_a_search_does_not_count() -> None:
    history = UsageHistory()
    history.add_call("anna", "read", START)
    history.add_search(ANNA, ["write"], START)
    history.add_call("anna", "read", START)
    assert shares(history) == {}


def test_a_call_long_after_the_search_does_not_count() -> None:
    history = UsageHistory()
    history.add_search(ANNA, ["read", "write"], START)
    history.add_call("anna", "write", START + SEARCH_WINDOW)
    history.add_call("anna", "read", START + SEARCH_WINDOW + 1)
    assert shares(history).keys() == {"write"}
    history.add_search(ANNA, ["copy"], START + SEARCH_WINDOW + 1)
    history.add_call("anna", "write", START + SEARCH_WINDOW + 1)
    assert shares(history).keys() == {"write"}


def test_a_search_counts_once_for_each_tool_that_it_led_to() -> None:
    history = UsageHistory()
    history.add_search(ANNA, ["read", "write"], START)
    for _ in range(100):
        history.add_call("anna", "read", START)
    history.add_call("anna", "write", START)
    assert shares(history) == {"read": 0.5, "write": 0.5}


def test_frequent_use_approaches_one() -> None:
    history = UsageHistory()
    for _ in range(3):
        use(history, ANNA, "read")
    assert shares(history)["read"] == pytest.approx(3 / 4)
    for _ in range(997):
        use(history, ANNA, "read")
    assert shares(history)["read"] == pytest.approx(1000 / 1001)


def test_a_use_has_half_its_weight_after_the_half_life() -> None:
    history = UsageHistory()
    use(history, ANNA, "read", START)
    use(history, ANNA, "write", START + HALF_LIFE)
    assert shares(history) == pytest.approx({"read": 0.5 / 1.5, "write": 0.5})
    use(history, ANNA, "read", START + HALF_LIFE)
    assert shares(history) == pytest.approx({"read": 1.5 / 2.5, "write": 0.5})


def test_a_record_of_any_time_is_counted_without_harm() -> None:
    history = UsageHistory()
    for at in (START, 1e300, -1e300, START):
        use(history, ANNA, "read", at)
    found = shares(history)
    assert found.keys() == {"read"}
    assert 0 < found["read"] <= 1


def test_one_principal_does_not_move_the_shares_of_another() -> None:
    history = UsageHistory()
    history.add_search(ANNA, ["read"], START)
    history.add_call("bob", "read", START)
    use(history, BOB, "write")
    assert shares(history) == {}
    assert shares(history, BOB) == {"write": 0.5}


def test_surfaces_of_one_principal_are_separate() -> None:
    history, other = UsageHistory(), Searcher("anna", "admin")
    history.add_search(other, ["delete"], START)
    history.add_search(ANNA, ["read"], START)
    history.add_call("anna", "delete", START)
    assert (shares(history), shares(history, other)) == ({}, {"delete": 0.5})


def test_a_snapshot_does_not_change() -> None:
    history = UsageHistory()
    use(history, ANNA, "read")
    before = history.snapshot()
    use(history, ANNA, "write")
    use(history, BOB, "write")
    assert before.shares(ANNA) == {"read": 0.5}
    assert before.shares(BOB) == {}


def test_the_principal_that_has_not_searched_for_longest_is_forgotten() -> None:
    history = UsageHistory()
    use(history, ANNA, "read")
    use(history, BOB, "read")
    use(history, ANNA, "read")
    for number in range(MAX_PRINCIPALS - 1):
        use(history, Searcher(f"p{number}", ""), "read")
    found = history.snapshot()
    assert len(found.used) == MAX_PRINCIPALS
    assert (BOB in found.used, ANNA in found.used) == (False, True)


def test_a_principal_with_many_surfaces_forgets_its_own_only() -> None:
    history = UsageHistory()
    use(history, BOB, "read")
    for number in range(100):
        use(history, Searcher("anna", str(number)), "read")
    found = history.snapshot()
    assert [each.surface for each in found.used] == ["", "98", "99"]
    assert len(found.used) == MAX_SURFACES + 1


def test_the_tool_with_the_least_weight_is_forgotten() -> None:
    history = UsageHistory()
    use(history, ANNA, "often", START)
    use(history, ANNA, "often", START)
    use(history, ANNA, "once", START)
    for number in range(MAX_TOOLS - 1):
        use(history, ANNA, f"t{number}", START + 1)
    found = shares(history)
    assert len(found) == MAX_TOOLS
    assert ("often" in found, "once" in found) == (True, False)


def test_the_tools_that_were_returned_first_are_forgotten() -> None:
    history = UsageHistory()
    history.add_search(ANNA, ["first", "again"], START)
    history.add_search(ANNA, ["again", *(f"t{n}" for n in range(MAX_RETURNED - 1))], START)
    history.add_call("anna", "first", START)
    history.add_call("anna", "again", START)
    assert shares(history).keys() == {"again"}


_RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["search", "call"]),
        st.sampled_from([ANNA, BOB]),
        st.sampled_from(["read", "write", "copy"]),
        st.floats(0, 10 * HALF_LIFE),
    ),
    max_size=30,
)


def fold(records: list[tuple[str, Searcher, str, float]]) -> UsageHistory:
    history = UsageHistory()
    for kind, searcher, tool, at in records:
        if kind == "search":
            history.add_search(searcher, [tool], at)
        else:
            history.add_call(searcher.principal, tool, at)
    return history


@given(_RECORDS)
def test_equal_records_give_equal_shares_which_depend_on_the_own_records_only(
    records: list[tuple[str, Searcher, str, float]],
) -> None:
    found = fold(records).snapshot()
    assert found == fold(records).snapshot()
    own = fold([record for record in records if record[1] == ANNA]).snapshot()
    assert found.used.get(ANNA) == own.used.get(ANNA)
    assert all(0 < share <= 1 for share in found.shares(ANNA).values())
