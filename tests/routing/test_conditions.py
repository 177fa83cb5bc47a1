"""Conditions, and arguments that rules and servers read the same."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, to_raw
from trunkline.routing import conditions
from trunkline.routing.conditions import (
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENT_DEPTH,
    MAX_ARGUMENT_VALUES,
    MAX_CONDITION_LENGTH,
    MAX_ITERATED_VALUES,
    NO_ARGUMENTS,
    VARIABLES,
    Condition,
    ConditionError,
    ConditionFailed,
    ConditionsUnavailable,
    StrictArguments,
    TooExpensive,
    read_strict_arguments,
)

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from("xyz"), VALUES))
def test_arguments_are_read_as_written(value: dict[str, Any]) -> None:
    assert read_strict_arguments(to_raw(value)).members == value
    spelled = json.dumps(value, ensure_ascii=True, indent=1).encode()
    assert read_strict_arguments(Raw(spelled)).members == value


def test_missing_arguments_are_empty() -> None:
    assert read_strict_arguments(None) == NO_ARGUMENTS
    assert read_strict_arguments(Raw(b"{}")).members == {}


@pytest.mark.parametrize(
    ("text", "size"), [("{}", 1), ('{"a": 1}', 2), ('{"a": [1, {"b": "c"}]}', 5)]
)
def test_all_values_are_counted(text: str, size: int) -> None:
    assert read_strict_arguments(Raw(text.encode())).value_count == size


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": 1, "\\u0061": 1}',
        '{"x": {"a": 1, "a": 1}}',
        '{"x": [0, {"y": {"path": "/tmp", "pa\\u0074h": "/etc"}}]}',
        '{"x": {"": 1, "": 1}}',
    ],
)
def test_duplicate_keys_are_rejected_at_every_level(text: str) -> None:
    with pytest.raises(ValueError, match="duplicate member"):
        read_strict_arguments(Raw(text.encode()))


def test_colons_in_texts_are_no_keys() -> None:
    url = Raw(b'{"url": "http://a.example:80/", "::": 1}')
    assert read_strict_arguments(url).members == {"url": "http://a.example:80/", "::": 1}
    with pytest.raises(ValueError, match="duplicate member"):
        read_strict_arguments(Raw(b'{"url": "http://a.example:80/", "a": 1, "a": 2}'))


def test_equal_keys_in_two_objects_are_no_duplicates() -> None:
    assert (
        read_strict_arguments(Raw(b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}')).value_count == 8
    )


@pytest.mark.parametrize(
    "number", [str(2**64), str(-(2**63) - 1), "9" * 30, "9" * 5000, "-" + "9" * 5000]
)
def test_an_integer_beyond_64_bits_is_rejected(number: str) -> None:
    with pytest.raises(ValueError, match=r"64 bits|out of range"):
        read_strict_arguments(Raw(f'{{"n": [{number}]}}'.encode()))


@pytest.mark.parametrize("number", ["1e400", "-1e999"])
def test_a_number_out_of_range_is_rejected(number: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        read_strict_arguments(Raw(f'{{"n": {number}}}'.encode()))


@pytest.mark.parametrize("text", ['{"a": "/tmp\\u0000/../etc"}', '{"pa\\u0000th": 1}'])
def test_a_nul_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="NUL"):
        read_strict_arguments(Raw(text.encode()))


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\udc00": 1}', "[]", '"x"', "{"])
def test_arguments_that_are_no_object_or_have_a_surrogate_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_strict_arguments(Raw(text.encode()))


def test_depth_is_bounded() -> None:
    inside = MAX_ARGUMENT_DEPTH - 1
    assert read_strict_arguments(Raw(b'{"a":' * (inside - 1) + b"{}" + b"}" * (inside - 1)))
    for depth in (MAX_ARGUMENT_DEPTH + 1, 700, 5000, 100_000):
        with pytest.raises(ValueError, match=r"levels|deeply"):
            read_strict_arguments(Raw(b'{"a":' + b"[" * depth + b"]" * depth + b"}"))


def test_the_number_of_values_is_bounded() -> None:
    with pytest.raises(ValueError, match=f"expected at most {MAX_ARGUMENT_VALUES} values"):
        read_strict_arguments(to_raw({"a": [1] * MAX_ARGUMENT_VALUES}))


def test_size_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most 1048576 bytes"):
        read_strict_arguments(to_raw({"a": "x" * MAX_ARGUMENT_BYTES}))


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


def given_args(args: dict[str, Any], size: int = 1) -> StrictArguments:
    return StrictArguments(args, size)


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
def test_a_condition_sees_its_inputs(source: str, holds: bool) -> None:
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
def test_the_variables_of_a_condition_are_known_when_compiled(source: str, reads: set[str]) -> None:
    assert Condition(source).variables == reads


def test_it_can_read_every_variable() -> None:
    assert Condition(" && ".join(f"{name} == {name}" for name in VARIABLES)).variables == {
        *VARIABLES
    }


@pytest.mark.parametrize(
    ("source", "message", "line", "column"),
    [
        ("args.path.startsWith('/etc'", "missing ')' at the end", 1, 28),
        ("true &&\n  args.path ==", "mismatched input the end", 2, 15),
        ("arg.path == 1", "undeclared reference to 'arg.path'", 1, 4),
        ("nothing(1)", "undeclared reference to 'nothing'", 1, 8),
        ("1 + 'a' == 2", "found no matching overload for '_+_' applied to '(int, string)'", 1, 3),
        ("1 + 2", "expected a boolean result, got int", 1, 1),
        ("args", "expected a boolean result, got map<string, dyn>", 1, 1),
        ("", "mismatched input the end", 1, 1),
        ("(" * 50 + "true" + ")" * 50, "nested too deeply", 1, 1),
        ("args" + ".a" * 60 + " == 1", "exceeded max recursion depth of 32 when parsing.", 1, 1),
        ("a" * (MAX_CONDITION_LENGTH + 1), "expected at most 2000 characters, got 2001", 1, 1),
    ],
)
def test_an_invalid_condition_is_rejected_with_its_position(
    source: str, message: str, line: int, column: int
) -> None:
    with pytest.raises(ConditionError) as caught:
        Condition(source)
    assert (caught.value.reason, caught.value.line, caught.value.column) == (message, line, column)


def test_other_errors_of_the_library_are_rejected_too(
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
    ("module", "message"),
    [
        (None, "conditions need the package cel-expr-python, which is not installed"),
        (
            ModuleType("cel_expr_python"),
            "conditions need the package cel-expr-python, which cannot be imported: "
            "cannot import name 'cel' from 'cel_expr_python' (unknown location)",
        ),
    ],
)
def test_without_its_library_a_condition_names_the_missing_package(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | None, message: str
) -> None:
    environments = conditions._environment  # pyright: ignore[reportPrivateUsage]
    environments.cache_clear()  # a cached environment needs no import
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cel_expr_python", module)
        patch.delitem(sys.modules, "cel_expr_python.cel", raising=False)
        for _ in range(2):
            with pytest.raises(ConditionsUnavailable) as caught:
                Condition("true")
            assert str(caught.value) == message
    assert Condition("true").holds({})


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
def test_a_condition_that_cannot_be_evaluated_fails(source: str) -> None:
    with pytest.raises(ConditionFailed):
        Condition(source).holds(FACTS, given_args(ARGS))


def test_iterating_over_many_values_fails_but_reading_one_does_not() -> None:
    many = given_args({"xs": list(range(MAX_ITERATED_VALUES + 1))}, MAX_ITERATED_VALUES + 2)
    assert Condition("args.xs[3] == 3").holds(FACTS, many)
    assert Condition("args.xs.all(x, x >= 0)").holds(
        FACTS, given_args({"xs": [1]}, MAX_ITERATED_VALUES)
    )
    for source in ("args.xs.all(x, x >= 0)", "args.xs.map(x, x) == []", "7 in args.xs"):
        with pytest.raises(ConditionFailed, match="at most 1000 values"):
            Condition(source).holds(FACTS, many)


def test_endless_iteration_fails() -> None:
    many = given_args({"xs": list(range(110))}, 112)
    with pytest.raises(ConditionFailed, match="budget"):
        Condition("args.xs.all(x, args.xs.all(y, true))").holds({}, many)


# Conditions with arguments for which each needed up to 18 s.
EXPENSIVE: dict[str, dict[str, Any]] = {
    "args.a.exists(x, args.b.contains(x))": {"a": ["a" * 500 + "b"] * 900, "b": "a" * 500_000},
    "args.b.contains(args.c)": {"b": "a" * 500_000, "c": "a" * 250_000 + "b"},
    "args.a.map(x, x + args.b).size() > 5": {"a": ["x"] * 990, "b": "a" * 900_000},
    "args.a.map(x, args.a.map(y, y + args.b)).size() > 5": {"a": ["x"] * 990, "b": "a"},
    "args.a.all(x, args.a.all(y, x + y >= 0))": {"a": list(range(900))},
    "args.b.matches('(a|b)*a(a|b){200}c')": {"b": "ab" * 250_000},
    "args['b'].contains(args.c)": {"b": "a" * 500_000, "c": "a" * 250_000 + "b"},
    "subject.contains(client)": {},
    f"[{', '.join(['args.b'] * 150)}].exists(x, x.matches('(a|b)*c'))": {"b": "a" * 30_000},
    f"{[str(each) for each in range(150)]}.exists(x, args.b.contains(x))": {"b": "a" * 60_000},
    "[args.b].all(x, [[args.b, args.b]].all(y, y.all(z, z.contains('b'))))": {"b": "a" * 300_000},
}


@pytest.mark.parametrize("source", EXPENSIVE)
def test_arguments_that_make_a_condition_slow_are_refused_unevaluated(source: str) -> None:
    arguments = read_strict_arguments(to_raw(EXPENSIVE[source]))
    facts = FACTS | {"client": "x" * 100_000} if "client" in source else FACTS
    with pytest.raises(TooExpensive):
        Condition(source).holds(facts, arguments)


@pytest.mark.parametrize(
    ("source", "args"),
    [
        ("args.path.startsWith('/work/') && args.path.contains('w')", {"content": "x" * 1_000_000}),
        ("args.path.matches('^/work/[a-z]*$')", {"content": "x" * 1_000_000}),
        ("args.b.contains('aaab') || true", {"b": "a" * 1_000_000}),
        ("args.paths.all(x, x.startsWith('/work/'))", {"paths": ["/work/" + "x" * 90] * 900}),
        ("args.paths.all(x, x.startsWith(args.path))", {"paths": ["/work/xy"] * 300}),
        ("args.a.all(x, args.b.exists(y, x == y))", {"a": ["tag"] * 60, "b": ["tag"] * 60}),
        ("args.b.matches('^(select|insert) [a-z]+') || true", {"b": "select " * 10_000}),
        ("args['paths'].all(x, x.startsWith('/work/'))", {"paths": ["/work/" + "x" * 90] * 900}),
        ("!['rm ', 'dd ', 'sudo '].exists(x, args.b.contains(x))", {"b": "a" * 30_000}),
        ("args.b in ['read', 'list', 'a'] || args.path in [args.path]", {"b": "b" * 900_000}),
    ],
)
def test_large_arguments_are_fine_where_the_condition_reads_each_once(
    source: str, args: dict[str, Any]
) -> None:
    arguments = read_strict_arguments(to_raw({"path": "/work/x", **args}))
    assert Condition(source).holds(FACTS, arguments)


@pytest.mark.parametrize(
    ("source", "column"),
    [
        ("args.a.matches(args.b)", 8),
        ("true && args.a.matches('x' + args.b)", 16),
        ("matches(args.a, args.b)", 1),
        ("args.a.exists(x, 'y'.matches(x))", 22),
    ],
)
def test_callers_cannot_choose_a_regular_expression(source: str, column: int) -> None:
    with pytest.raises(ConditionError, match="expects a literal text") as raised:
        Condition(source)
    assert (raised.value.line, raised.value.column) == (1, column)


def test_names_in_texts_and_comments_cost_nothing() -> None:
    plain = Condition("args.a == 'x' // args.b.contains(args.c)\n").cost
    assert plain.members == {"a"}
    assert not plain.compares
    assert Condition(r"""args.a == r'\d(' && args.b == "it's (args)" """).cost.members == {"a", "b"}
    assert Condition("size(args) > 3").cost.members is None
    assert Condition("args.a.matches(')')").cost.depth == 0
    assert Condition("args['a'] == {'b': [1, 2]}['b'][0] || ')' == '],'").cost.literal_values == 3


@pytest.mark.parametrize("name", ["tool", "client", "subject"])
def test_an_input_with_a_nul_fails(name: str) -> None:
    condition = Condition(f"{name} == 'trusted'")
    assert condition.holds(FACTS | {name: "trusted"})
    with pytest.raises(ConditionFailed, match="NUL"):
        condition.holds(FACTS | {name: "trusted\0evil"})


def test_conditions_with_equal_sources_are_equal() -> None:
    assert Condition("true") == Condition("true")
    assert len({Condition("true"), Condition("true"), Condition("false")}) == 2
    assert Condition("true") != "true"


@given(st.dictionaries(st.sampled_from(["path", "n", "xs"]), VALUES))
def test_any_arguments_give_a_result_or_a_failure(args: dict[str, Any]) -> None:
    for source in (
        "args.path.startsWith('/etc')",
        "args.n > 3 && args.xs.exists(x, x == args.n)",
        "size(args) > 0",
    ):
        try:
            result = Condition(source).holds({}, given_args(args))
        except ConditionFailed:
            continue
        assert isinstance(result, bool)
        assert Condition(source).holds({}, given_args(args)) is result


@given(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_are_compared_exactly(given: int, wanted: int) -> None:
    assert Condition(f"args.n == {wanted}").holds({}, given_args({"n": given})) is (given == wanted)
    assert Condition(f"args.n < {wanted}").holds({}, given_args({"n": given})) is (given < wanted)
