"""Conditions: what they see, what is refused when they are read, and what they cost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.routing.test_legible import VALUES
from trunkline.routing.conditions import (
    MAX_LENGTH,
    MAX_VALUES,
    VARIABLES,
    Condition,
    ConditionError,
    ConditionFailed,
)
from trunkline.routing.legible import Arguments

ARGS: dict[str, Any] = {
    "path": "/etc/passwd",
    "n": 3,
    "names": ["a", "b"],
    "deep": {"x": [1.5]},
}
FACTS: dict[str, Any] = {
    "tool": "fs__read",
    "backend": "fs",
    "kind": "tool",
    "subject": "anna",
    "role": "dev",
    "roles": ["dev", "ops"],
    "client": "claude",
    "annotations": {"readOnlyHint": True},
}


def given_args(args: dict[str, Any], size: int = 1) -> Arguments:
    return Arguments(args, size)


@pytest.mark.parametrize(
    ("source", "holds"),
    [
        ("args.path.startsWith('/etc')", True),
        ("args['path'] == '/tmp'", False),
        ("has(args.path) && !has(args.other)", True),
        ("args.n in [1, 2, 3] && args.n + 1 == 4", True),
        ("args.names.all(name, name.size() == 1)", True),
        ("args.deep.x[0] > 1.0", True),
        ("args.path.matches('^/(etc|usr)/')", True),
        ("tool.endsWith('read') && backend == 'fs' && kind == 'tool'", True),
        ("subject == 'anna' && role == 'dev' && 'ops' in roles", True),
        ("client == 'claude' && annotations.readOnlyHint", True),
        ("args.missing == 1 || true", True),
        ("false", False),
    ],
)
def test_a_condition_sees_what_it_is_told(source: str, holds: bool) -> None:
    assert Condition(source).holds(FACTS, given_args(ARGS)) is holds


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("args.path == tool", {"args", "tool"}),
        ("'x' in roles", {"roles"}),
        ("[1].all(args, args == 1)", set[str]()),
        ("subject == client", {"subject", "client"}),
        ("true", set[str]()),
    ],
)
def test_what_it_reads_is_known_before_it_is_asked(source: str, reads: set[str]) -> None:
    assert Condition(source).reads == reads


def test_it_can_ask_about_every_variable() -> None:
    assert Condition(" && ".join(f"{name} == {name}" for name in VARIABLES)).reads == {*VARIABLES}


@pytest.mark.parametrize(
    ("source", "why", "line", "column"),
    [
        ("args.path.startsWith('/etc'", "missing ')' at the end", 1, 28),
        ("true &&\n  args.path ==", "mismatched input the end", 2, 15),
        ("arg.path == 1", "undeclared reference to 'arg.path'", 1, 4),
        ("nothing(1)", "undeclared reference to 'nothing'", 1, 8),
        ("1 + 'a' == 2", "found no matching overload for '_+_' applied to '(int, string)'", 1, 3),
        ("1 + 2", "expected something that is true or false, got int", 1, 1),
        ("args", "expected something that is true or false, got map<string, dyn>", 1, 1),
        ("", "mismatched input the end", 1, 1),
        ("(" * 50 + "true" + ")" * 50, "nested too deeply", 1, 1),
        ("args" + ".a" * 60 + " == 1", "exceeded max recursion depth of 32 when parsing.", 1, 1),
        ("a" * (MAX_LENGTH + 1), "expected at most 2000 characters, got 2001", 1, 1),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(
    source: str, why: str, line: int, column: int
) -> None:
    with pytest.raises(ConditionError) as caught:
        Condition(source)
    assert (caught.value.why, caught.value.line, caught.value.column) == (why, line, column)


def test_what_the_library_says_in_other_words_is_refused_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Moody:
        def compile(self, source: str) -> Any:
            raise RuntimeError("INTERNAL: something else")

    def moody(names: tuple[str, ...]) -> Any:
        return Moody()

    monkeypatch.setattr("trunkline.routing.conditions._environment", moody)
    with pytest.raises(ConditionError, match="cannot be read"):
        Condition("true")


@pytest.mark.parametrize(
    "source",
    [
        "args.missing == 1",
        "args.n.startsWith('x')",
        "args.path > 1",
        "args.path",
        "args.n",
        "args.path.matches('(')",
        "args.n / 0 == 1",
        "args.names[7] == 'x'",
        "annotations.destructiveHint",
    ],
)
def test_what_has_no_answer_fails(source: str) -> None:
    with pytest.raises(ConditionFailed):
        Condition(source).holds(FACTS, given_args(ARGS))


def test_going_through_many_values_fails_and_looking_at_one_of_them_does_not() -> None:
    many = given_args({"xs": list(range(MAX_VALUES + 1))}, MAX_VALUES + 2)
    assert Condition("args.xs[3] == 3").holds(FACTS, many)
    assert Condition("args.xs.all(x, x >= 0)").holds(FACTS, given_args({"xs": [1]}, MAX_VALUES))
    for source in ("args.xs.all(x, x >= 0)", "args.xs.map(x, x) == []", "7 in args.xs"):
        with pytest.raises(ConditionFailed, match="at most 1000 values"):
            Condition(source).holds(FACTS, many)


def test_going_round_without_end_fails() -> None:
    many = given_args({"xs": list(range(900))}, 902)
    with pytest.raises(ConditionFailed, match="budget"):
        Condition("args.xs.all(x, args.xs.all(y, x + y >= 0))").holds({}, many)


@pytest.mark.parametrize("name", ["tool", "client", "subject"])
def test_a_fact_with_a_nul_in_it_fails_since_the_library_would_stop_there(name: str) -> None:
    condition = Condition(f"{name} == 'trusted'")
    assert condition.holds(FACTS | {name: "trusted"})
    with pytest.raises(ConditionFailed, match="NUL"):
        condition.holds(FACTS | {name: "trusted\0evil"})


def test_two_conditions_with_the_same_words_are_one() -> None:
    assert Condition("true") == Condition("true")
    assert len({Condition("true"), Condition("true"), Condition("false")}) == 2
    assert Condition("true") != "true"


@given(st.dictionaries(st.sampled_from(["path", "n", "xs"]), VALUES))
def test_any_arguments_give_an_answer_or_a_failure(args: dict[str, Any]) -> None:
    for source in (
        "args.path.startsWith('/etc')",
        "args.n > 3 && args.xs.exists(x, x == args.n)",
        "size(args) > 0",
    ):
        try:
            answer = Condition(source).holds({}, given_args(args))
        except ConditionFailed:
            continue
        assert isinstance(answer, bool)
        assert Condition(source).holds({}, given_args(args)) is answer


@given(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_are_compared_exactly(given: int, wanted: int) -> None:
    assert Condition(f"args.n == {wanted}").holds({}, given_args({"n": given})) is (given == wanted)
    assert Condition(f"args.n < {wanted}").holds({}, given_args({"n": given})) is (given < wanted)
