"""The keys of a TOML text, found without reading its values."""

import tomllib
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trunkline.documents.lines import KeyPath
from trunkline.documents.toml_lines import scan_toml

EXAMPLE = '''\
title = "a"               # line 1
"quoted key".'x' = 1

[servers.fs]              # line 4
command = """
[not.a.header]
key = "no key"
""" # line 8
args = [                  # line 9
  "-y",
  # a comment with ]
  [1, { deep = true }],
]
env = { A = "1", B.C = '#' }
headers."X-Key" = "a"     # line 15

[[policy]]                # line 17
deny = "x"
[policy.when]
a = 1979-05-27 07:32:00
[[policy]]
[[policy.inner]]          # line 22
z = \'\'\'
=\'\'\'\'
deny = 2                  # line 25
'''

EXPECTED: list[tuple[KeyPath, int]] = [
    (("title",), 1),
    (("quoted key",), 2),
    (("quoted key", "x"), 2),
    (("servers",), 4),
    (("servers", "fs"), 4),
    (("servers", "fs", "command"), 5),
    (("servers", "fs", "args"), 9),
    (("servers", "fs", "args", 0), 10),
    (("servers", "fs", "args", 1), 12),
    (("servers", "fs", "args", 1, 1, "deep"), 12),
    (("servers", "fs", "env", "A"), 14),
    (("servers", "fs", "env", "B", "C"), 14),
    (("servers", "fs", "headers"), 15),
    (("servers", "fs", "headers", "X-Key"), 15),
    (("policy",), 17),
    (("policy", 0), 17),
    (("policy", 0, "deny"), 18),
    (("policy", 0, "when"), 19),
    (("policy", 0, "when", "a"), 20),
    (("policy", 1), 21),
    (("policy", 1, "inner", 0), 22),
    (("policy", 1, "inner", 0, "z"), 23),
    (("policy", 1, "inner", 0, "deny"), 25),
]


@pytest.mark.parametrize(("path", "line"), EXPECTED, ids=str)
def test_every_notation_has_its_line(path: KeyPath, line: int) -> None:
    offset = scan_toml(EXAMPLE).places[path]
    assert EXAMPLE[:offset].count("\n") + 1 == line


def test_nothing_inside_of_a_string_or_a_comment_is_a_key() -> None:
    tree = tomllib.loads(EXAMPLE)
    assert set(scan_toml(EXAMPLE).places) == set(paths_of(tree))


@pytest.mark.parametrize(
    ("text", "path", "again", "first"),
    [
        ("a = 1\na = 2", ("a",), 6, 0),
        ("[a]\n[b]\n[a]", ("a",), 8, 0),
        ("a = { x = 1, x = 2 }", ("a", "x"), 13, 6),
        ("a.b = 1\n'a'.\"b\" = 2", ("a", "b"), 8, 0),
    ],
)
def test_a_key_given_twice_is_found(text: str, path: KeyPath, again: int, first: int) -> None:
    assert scan_toml(text).twice == [(path, again, first)]


def test_a_table_spoken_of_before_it_is_given_is_not_given_twice() -> None:
    index = scan_toml("[a.b]\n[a]\nc.d = 1\nc.e = 2")
    assert index.twice == []
    assert index.places[("a",)] == 6


@pytest.mark.parametrize(
    "text",
    ["a", "a =", "= 1", "[a", 'a = ["1" 2]', "a = {b}", '"\\q" = 1', 'a = "', "a = '''x", "a = ["],
)
def test_where_it_is_lost_it_keeps_what_it_has(text: str) -> None:
    index = scan_toml(f"x = 1\n{text}\ny = 2")
    assert index.places[("x",)] == 0
    assert ("y",) not in index.places


def test_a_key_without_end_is_not_followed() -> None:
    assert scan_toml(".".join("a" * 5000) + " = 1").places == {}


def test_a_value_without_end_is_not_followed() -> None:
    assert scan_toml("x = 1\na = " + "[" * 100_000).places[("x",)] == 0


KEYS = st.sampled_from(["a", "b", "-1", '"a b"', "'c'", '"\\u0064"', "a . b", "b.a.c"])
STRINGS = st.sampled_from(
    ['"x"', "'x # ]'", '""', '"\\""', '"""\n"quotes""""', "'''\n[a]\n'''", '"""\\"""""""', "''''''"]
)
SCALARS = STRINGS | st.sampled_from(
    ["1", "-0.5e3", "true", "inf", "1979-05-27T07:32:00Z", "07:32:00"]
)
GAPS = st.sampled_from(["", " ", "\n", " # ]}\n", "\n\n\t"])


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    items = draw(st.lists(inner, max_size=3))
    comma = draw(st.sampled_from(["", ","])) if items else ""
    return "[" + ",".join(draw(GAPS) + item + draw(GAPS) for item in items) + comma + "\n]"


@st.composite
def inline_tables(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    pairs = draw(st.dictionaries(KEYS, inner, max_size=3))
    return "{" + ", ".join(f"{key} = {value}" for key, value in pairs.items()) + "}"


VALUES = st.recursive(SCALARS, lambda inner: arrays(inner) | inline_tables(inner), max_leaves=5)
STATEMENTS = st.one_of(
    st.builds("{} = {}".format, KEYS, VALUES),
    st.builds("[{}]".format, KEYS),
    st.builds("[[{}]]".format, KEYS),
    st.sampled_from(["", "# a = 1", "  "]),
)
DOCUMENTS = st.lists(STATEMENTS, max_size=8).map("\n".join)


def paths_of(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    inner: Any = ()
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        inner = enumerate(cast("list[Any]", value))
    found = [path] if path else []
    for key, item in inner:
        found += paths_of(item, (*path, key))
    return found


def at(tree: Any, path: KeyPath) -> Any:
    for key in path:
        tree = tree[key]
    return tree


@given(DOCUMENTS)
def test_every_key_that_tomllib_reads_has_its_place_and_no_other_has(text: str) -> None:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
        return
    index = scan_toml(text)
    assert set(index.places) == set(paths_of(tree))
    assert index.twice == []


@given(DOCUMENTS)
def test_every_statement_says_what_stands_at_its_path(text: str) -> None:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
        return
    table: KeyPath = ()
    for start, end, path, is_header in scan_toml(text).statements:
        if is_header:
            table = path
            assert text[start] == "["
        else:
            alone = tomllib.loads(text[start:end])
            assert repr(at(alone, path[len(table) :])) == repr(at(tree, path))


@given(st.text() | st.text(alphabet="[]{}=.,\"'#\\\na1 "))
def test_any_text_gives_an_index(text: str) -> None:
    places = scan_toml(text).places
    assert all(0 <= offset < len(text) for offset in places.values())
