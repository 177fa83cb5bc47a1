"""Text to tables, and what is said about text that is none."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.documents.test_toml_lines import DOCUMENTS
from tests.jsonrpc.test_raw import JSON
from trunkline.documents.errors import ConfigErrors
from trunkline.documents.parse import Parsed, parse_json, parse_toml

LONG = "1" * 5000
"""More digits than Python reads."""


def errors_of(parsed: Parsed) -> list[str]:
    try:
        parsed.report.check()
    except ConfigErrors as caught:
        return str(caught).splitlines()
    return []


def test_good_text_gives_tables_and_no_errors() -> None:
    parsed = parse_toml('a = 1\r\nb = """x\r\ny"""', "f")
    assert (parsed.tree, parsed.done, errors_of(parsed)) == ({"a": 1, "b": "x\ny"}, True, [])
    parsed = parse_json('{"a": 1,} // x', "f")
    assert (parsed.tree, parsed.done, errors_of(parsed)) == ({"a": 1}, True, [])


@pytest.mark.parametrize(
    ("text", "place", "remedy"),
    [
        ("a = 1\nb = npx", "f:2:5", "put text in quotes"),
        ("a = 1\r\nb = x", "f:2:5", "put text in quotes"),
        ("a", "f:1:2", "write key = value"),
        ("[a\n", "f:1:3", "close the bracket"),
        ('a = "x\n', "f:1:7", "close the quotes"),
        ('a = "C:\\Users"', "f:1:10", "single quotes"),
        ('a = "\\q"', "f:1:8", "single quotes"),
        ("a = ", "f:1:5", "put text in quotes"),
        ("é = 1", "f:1:1", "toml.io"),
        ("a = " + "[" * 5000, "f:1:1", "fewer brackets"),
        ("# no\na = 1\n\n  # yes\nb = " + "[" * 5000 + "]" * 5000 + "\nd = 1", "f:5:1", "brackets"),
        (f"a = {LONG}", "f:1:1", "fewer digits"),
        (f"a = 1\n[t]\nb = '''\n'''\nc = {LONG}\nd = 1", "f:5:1", "fewer digits"),
    ],
)
def test_what_is_not_toml_is_refused_with_line_column_and_remedy(
    text: str, place: str, remedy: str
) -> None:
    parsed = parse_toml(text, "f")
    (error,) = errors_of(parsed)
    assert error.startswith(f"{place}: ")
    assert remedy in error
    assert not parsed.done


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\na = 2", ["f:2:1: a: given twice, first on line 1; keep one of the two"]),
        ("a = [1]\na = [2]", ["f:2:1: a: given twice, first on line 1; keep one of the two"]),
        ("[s.x]\n[t]\n[s.x]", ["f:3:1: s.x: given twice, first on line 1; keep one of the two"]),
        ("a.b = 1\n[a]", ["f:2:1: a: given twice, in two notations; keep one of the two"]),
        (
            "a = { x = 1, x = 2, x = 3 }",
            [
                "f:1:14: a.x: given twice, first on line 1; keep one of the two",
                "f:1:21: a.x: given twice, first on line 1; keep one of the two",
            ],
        ),
        (
            'a = """\n"""\na = """\n"""\n\nb = 1\nb = 2',
            [
                "f:3:1: a: given twice, first on line 1; keep one of the two",
                "f:7:1: b: given twice, first on line 6; keep one of the two",
            ],
        ),
    ],
)
def test_every_toml_key_given_twice_is_an_error(text: str, expected: list[str]) -> None:
    assert errors_of(parse_toml(text, "f")) == expected


def test_a_key_given_twice_hides_nothing_of_the_rest() -> None:
    parsed = parse_toml("a = 1\na = 2\n[t]\nx = 1\n[t]\ny = 2\n[u]\nz = 3", "f")
    assert parsed.tree == {"a": 1, "t": {"x": 1}, "u": {"z": 3}}
    assert parsed.done
    parsed = parse_toml("a = 1\na = 2\nb = x", "f")
    assert [error.split(": ")[0] for error in errors_of(parsed)] == ["f:2:1", "f:3:5"]


def test_a_hundred_repetitions_are_enough() -> None:
    parsed = parse_toml("a = 1\n" * 500, "f")
    assert len(errors_of(parsed)) == 100
    assert not parsed.done


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', "f:3:3"),
        ('// x\n{"a": }', "f:2:7"),
        ("", "f:1:1"),
        ("{'a': 1}", "f:1:2"),
        ("[NaN]", "f:1:2"),
        ('{"NaN": "NaN",\n"a": [1, -Infinity, NaN]}', "f:2:10"),
        ("[" * 100_000, "f:1:100000"),
        ("[[],\n" + "[" * 5000 + "]" * 5000 + ",\n[]]", "f:2:5000"),
        (LONG, "f:1:1"),
        (f'{{"a": "{LONG}",\n"b": [1.{LONG},\n-{LONG}]}}', "f:3:1"),
    ],
)
def test_what_is_not_json_is_refused_with_line_and_column(text: str, place: str) -> None:
    parsed = parse_json(text, "f")
    (error,) = errors_of(parsed)
    assert error.startswith(f"{place}: ")
    assert not parsed.done


def test_every_json_key_given_twice_is_an_error_but_not_what_is_inside_of_it() -> None:
    parsed = parse_json('{"a": {"x": 1},\n"a": {"x": 1, "y": 1,\n"y": 2}}', "f")
    assert errors_of(parsed) == [
        "f:2:1: a: given twice, first on line 1; keep one of the two",
    ]
    assert parsed.tree == {"a": {"x": 1, "y": 2}}
    deep = '{"a":' * 100 + '{"b":1,"b":2}' + "}" * 100
    assert errors_of(parse_json(deep, "f")) == [
        "f: a key, deep inside, is given twice; keep one of the two"
    ]


@given(DOCUMENTS)
def test_what_tomllib_reads_is_read_and_what_it_refuses_is_an_error(text: str) -> None:
    parsed = parse_toml(text, "f")
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert errors_of(parsed)
    else:
        assert repr(parsed.tree) == repr(tree)
        assert errors_of(parsed) == []


@given(JSON)
def test_json_is_read_as_python_reads_it(value: Any) -> None:
    parsed = parse_json(json.dumps(value), "f")
    assert parsed.tree == value
    assert errors_of(parsed) == []


@given(st.text() | st.text(alphabet="[]{}=.,:/*\"'#\\\na1 "))
def test_any_text_gives_tables_or_errors(text: str) -> None:
    for parsed in (parse_toml(text, "f"), parse_json(text, "f")):
        assert parsed.done or errors_of(parsed)
