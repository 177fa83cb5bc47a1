"""TOML and JSON to tables, with the positions of keys and of errors."""

import json
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.json_values import JSON
from trunkline.documents.errors import MAX_KEY_DEPTH, ConfigErrors, KeyPath
from trunkline.documents.parser import (
    MAX_JSON_DEPTH,
    ParsedDocument,
    blank_comments,
    parse_json,
    parse_toml,
    read_text,
    scan_json,
    scan_toml,
)

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
def test_keys_in_every_notation_have_their_line(path: KeyPath, line: int) -> None:
    offset = scan_toml(EXAMPLE).offsets[path]
    assert EXAMPLE[:offset].count("\n") + 1 == line


def test_nothing_inside_of_a_string_or_a_comment_is_a_key() -> None:
    tree = tomllib.loads(EXAMPLE)
    assert set(scan_toml(EXAMPLE).offsets) == set(paths_of(tree))


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
    assert scan_toml(text).repeated == [(path, again, first)]


def test_a_table_implied_before_its_header_is_not_repeated() -> None:
    index = scan_toml("[a.b]\n[a]\nc.d = 1\nc.e = 2")
    assert index.repeated == []
    assert index.offsets[("a",)] == 6


@pytest.mark.parametrize(
    "text",
    ["a", "a =", "= 1", "[a", 'a = ["1" 2]', "a = {b}", '"\\q" = 1', 'a = "', "a = '''x", "a = ["],
)
def test_a_lost_scanner_keeps_what_it_has(text: str) -> None:
    index = scan_toml(f"x = 1\n{text}\ny = 2")
    assert index.offsets[("x",)] == 0
    assert ("y",) not in index.offsets


def test_a_key_without_end_is_not_followed() -> None:
    assert scan_toml(".".join("a" * 5000) + " = 1").offsets == {}


def test_a_value_without_end_is_not_followed() -> None:
    assert scan_toml("x = 1\na = " + "[" * 100_000).offsets[("x",)] == 0


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
def test_exactly_the_keys_that_tomllib_reads_have_positions(text: str) -> None:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
        return
    index = scan_toml(text)
    assert set(index.offsets) == set(paths_of(tree))
    assert index.repeated == []


@given(DOCUMENTS)
def test_every_statement_contains_the_value_of_its_path(text: str) -> None:
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
def test_any_toml_text_gives_an_index(text: str) -> None:
    offsets = scan_toml(text).offsets
    assert all(0 <= offset < len(text) for offset in offsets.values())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2,]", [1, 2]),
        ('{"a": 1, /* x */ }', {"a": 1}),
        ('{"a": 1, // x\n }', {"a": 1}),
        ('// x\n{"u": "https://x/*y*/,}"}', {"u": "https://x/*y*/,}"}),
        ('["\\"//", ",]"]', ['"//', ",]"]),
        ("/* * / */ 1", 1),
    ],
)
def test_comments_and_trailing_commas_are_blanked(text: str, value: Any) -> None:
    assert json.loads(blank_comments(text)) == value


@pytest.mark.parametrize("text", ["[1,,]", "[1 /* 2]", '{"a": 1 // }'])
def test_blanking_comments_does_not_make_invalid_json_valid(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(blank_comments(text))


@given(st.text() | st.text(alphabet='/*",]}\n\\a '))
def test_blanking_comments_keeps_positions(text: str) -> None:
    plain = blank_comments(text)
    assert len(plain) == len(text)
    assert all(new in (old, " ") for old, new in zip(text, plain, strict=True))
    assert plain.count("\n") == text.count("\n")


@given(JSON)
def test_json_without_comments_is_unchanged(value: Any) -> None:
    text = json.dumps(value)
    assert blank_comments(text) == text


@given(JSON, st.sampled_from([None, 1]))
def test_every_member_and_element_has_its_position(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    index = scan_json(text)
    assert set(index.offsets) == set(paths_of(value))
    decode = json.JSONDecoder().raw_decode
    for path, offset in index.offsets.items():
        found, end = decode(text, offset)
        if isinstance(path[-1], str):
            assert found == path[-1]
            found, _ = decode(text, text.index(": ", end) + 2)
        assert found == at(value, path)


def test_a_repeated_member_is_found_however_it_is_escaped() -> None:
    index = scan_json('{"a": [{"b": 1, "\\u0062": 2}]}')
    assert [key.path for key in index.repeated] == [("a", 0, "b")]


def test_positions_are_kept_down_to_the_maximum_depth() -> None:
    index = scan_json("[" * 500 + "]" * 500)
    assert max(map(len, index.offsets)) == MAX_KEY_DEPTH


@given(st.text() | st.text(alphabet='{}[]:,"\\a1 \n'))
def test_any_json_text_gives_an_index(text: str) -> None:
    offsets: dict[KeyPath, int] = scan_json(text).offsets
    assert all(0 <= offset < len(text) for offset in offsets.values())


def test_a_file_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"\xef\xbb\xbfhello")
    assert read_text(file, 8) == "hello"


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a", b"123456789", "a: longer than 8 bytes; is it the right file?"),
        ("a", b"1\n2\xff", "a:2: not UTF-8; save it as UTF-8"),
        ("a", None, "a: there is no such file; make one"),
        (".", None, ": cannot be read: is a directory; check its name and its permissions"),
        ("\0", None, "\0: cannot be read: not a file name; check its name and its permissions"),
    ],
)
def test_an_unreadable_file_is_reported(
    tmp_path: Path, name: str, data: bytes | None, expected: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigErrors) as caught:
        read_text(tmp_path / name, 8, "make one")
    assert str(caught.value).endswith(expected)


LONG = "1" * 5000  # more digits than Python converts


def errors_of(parsed: ParsedDocument) -> list[str]:
    try:
        parsed.errors.raise_if_any()
    except ConfigErrors as caught:
        return str(caught).splitlines()
    return []


def test_good_text_gives_tables_and_no_errors() -> None:
    parsed = parse_toml('a = 1\r\nb = """x\r\ny"""', "f")
    assert (parsed.tree, parsed.is_complete, errors_of(parsed)) == ({"a": 1, "b": "x\ny"}, True, [])
    parsed = parse_json('{"a": 1,} // x', "f")
    assert (parsed.tree, parsed.is_complete, errors_of(parsed)) == ({"a": 1}, True, [])


@pytest.mark.parametrize(
    ("text", "place", "fix"),
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
def test_invalid_toml_is_reported_with_line_column_and_fix(text: str, place: str, fix: str) -> None:
    parsed = parse_toml(text, "f")
    (error,) = errors_of(parsed)
    assert error.startswith(f"{place}: ")
    assert fix in error
    assert not parsed.is_complete


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
    assert parsed.is_complete
    parsed = parse_toml("a = 1\na = 2\nb = x", "f")
    assert [error.split(": ")[0] for error in errors_of(parsed)] == ["f:2:1", "f:3:5"]


def test_reported_repetitions_are_bounded() -> None:
    parsed = parse_toml("a = 1\n" * 500, "f")
    assert len(errors_of(parsed)) == 100
    assert not parsed.is_complete


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
def test_invalid_json_is_reported_with_line_and_column(text: str, place: str) -> None:
    parsed = parse_json(text, "f")
    (error,) = errors_of(parsed)
    assert error.startswith(f"{place}: ")
    assert not parsed.is_complete


def test_json_is_read_down_to_the_maximum_depth_on_every_python() -> None:
    for opening, closing, depth in (("[", "]", 1), ('{"a":[', "]}", 2)):
        count = MAX_JSON_DEPTH // depth
        assert parse_json(opening * count + closing * count, "f").is_complete
        deeper = f"[{opening * count}{closing * count}]"
        assert errors_of(parse_json(deeper, "f"))[0].endswith(
            "nested too deeply; use fewer brackets"
        )
    siblings = "[" + "[]," * MAX_JSON_DEPTH + '"[[["]'
    assert parse_json(siblings, "f").is_complete


def test_every_repeated_json_key_is_an_error_but_not_keys_inside_of_it() -> None:
    parsed = parse_json('{"a": {"x": 1},\n"a": {"x": 1, "y": 1,\n"y": 2}}', "f")
    assert errors_of(parsed) == [
        "f:2:1: a: given twice, first on line 1; keep one of the two",
    ]
    assert parsed.tree == {"a": {"x": 1, "y": 2}}
    deep = '{"a":' * 100 + '{"b":1,"b":2}' + "}" * 100
    assert errors_of(parse_json(deep, "f")) == [
        "f: a deeply nested key is given twice; keep one of the two"
    ]


@given(DOCUMENTS)
def test_toml_is_accepted_exactly_where_tomllib_accepts_it(text: str) -> None:
    parsed = parse_toml(text, "f")
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert errors_of(parsed)
    else:
        assert repr(parsed.tree) == repr(tree)
        assert errors_of(parsed) == []


@given(JSON)
def test_json_is_accepted_as_the_json_module_accepts_it(value: Any) -> None:
    parsed = parse_json(json.dumps(value), "f")
    assert parsed.tree == value
    assert errors_of(parsed) == []


@given(st.text() | st.text(alphabet="[]{}=.,:/*\"'#\\\na1 "))
def test_any_text_gives_tables_or_errors(text: str) -> None:
    for parsed in (parse_toml(text, "f"), parse_json(text, "f")):
        assert parsed.is_complete or errors_of(parsed)
