"""Editing the JSON settings of clients in their text."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.config.edit_json import append_item, remove_member, set_member
from trunkline.config.edit_toml import EditError
from trunkline.documents.parser import parse_json

FILE = """\
// settings of the editor
{
  "theme": "dark", // at night
  "mcpServers": {
    // files
    "fs": {
      "command": "npx" // a comment inside
    },

    /* issues,
       of the team */
    "tracker": { "url": "https://tracker.example/mcp" } // the last
  },
  "after": [1, 2.50, 1e3] // as it was
}
"""


def parse(text: str) -> Any:
    parsed = parse_json(text, "")
    assert parsed.is_complete, text
    return parsed.tree


def test_a_member_is_added_below_the_others() -> None:
    edited = set_member(FILE, ("mcpServers", "new"), {"command": "é"})
    before, after = FILE.split(" } // the last\n")
    new = '    "new": {\n      "command": "é"\n    }\n'
    assert edited == f"{before} }}, // the last\n{new}{after}"


def test_a_removed_member_takes_its_comments_along() -> None:
    edited = remove_member(FILE, ("mcpServers", "fs"))
    start, end = FILE.index("    // files"), FILE.index("\n    /* issues")
    assert edited == FILE[:start] + FILE[end:]
    edited = remove_member(FILE, ("mcpServers", "tracker"))
    start, end = FILE.index("    /* issues"), FILE.index('  },\n  "after')
    assert edited == FILE[:start].replace("},\n\n", "}\n\n") + FILE[end:]


def test_a_changed_member_stays_in_its_place() -> None:
    edited = set_member(FILE, ("mcpServers", "fs"), {"command": "npx", "args": ["a"]})
    new = '{\n      "command": "npx",\n      "args": [\n        "a"\n      ]\n    }'
    old = '{\n      "command": "npx" // a comment inside\n    }'
    assert edited == FILE.replace(old, new)


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        (" \n", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("{}", '{\n  "a": {\n    "b": 1\n  }\n}'),
        ('{"a":{}}', '{"a":{\n  "b": 1\n}}'),
        ('{"a":{"c":2}}', '{"a":{"c":2, "b": 1}}'),
        ('{"a":{"c":2,}}', '{"a":{"c":2, "b": 1}}'),
        ('{"x":0}', '{"x":0, "a": {"b": 1}}'),
        ('{\n\t"x": 0\n}', '{\n\t"x": 0,\n\t"a": {\n\t\t"b": 1\n\t}\n}'),
        ('{\n "x": 0,\n}\n', '{\n "x": 0,\n "a": {\n  "b": 1\n },\n}\n'),
        ('{\r\n  "a": {}\r\n}\r\n', '{\r\n  "a": {\r\n    "b": 1\r\n  }\r\n}\r\n'),
        ('{\n  "a": { // none\n  }\n}', '{\n  "a": { // none\n    "b": 1\n  }\n}'),
        ('{\n  "a": {"c": 2 // c\n  }\n}', None),
        ('{\n  "a": {\n    "c": 2 /* a\n b */ }\n}', None),
        ('{\n  "a": {\n    "c": 2}\n}', '{\n  "a": {\n    "c": 2,\n    "b": 1}\n}'),
        ('{"a": {"c": "}, // {"}}', '{"a": {"c": "}, // {", "b": 1}}'),
    ],
)
def test_a_member_is_added_in_any_notation(text: str, edited: str | None) -> None:
    result = set_member(text, ("a", "b"), 1)
    expected: dict[str, Any] = parse(text) if text.strip() else {}
    expected.setdefault("a", {})["b"] = 1
    assert parse(result) == expected
    assert edited is None or result == edited
    assert set_member(result, ("a", "b"), 1) == result


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ('{"a":{"b":1}}', '{"a":{}}'),
        ('{"a":{"b":1,"c":2}}', '{"a":{"c":2}}'),
        ('{"a":{"c":2, "b":1}}', '{"a":{"c":2}}'),
        ('{"a":{"c":2, "b":1,}}', '{"a":{"c":2, }}'),
        ('{"a":{\n  "b":1\n}}', '{"a":{}}'),
        ('{"a":{\n  // b\n  "b":1 // b\n}}', '{"a":{}}'),
        ('{"a":{\n  // all\n\n  "b":1 // b\n}}', '{"a":{\n  // all\n\n}}'),
        ('{"a":{\n  "c":2,\n  "b":1\n}}', '{"a":{\n  "c":2\n}}'),
        ('{"a":{\r\n  "b":1,\r\n  "c":2\r\n}}', '{"a":{\r\n  "c":2\r\n}}'),
        ('{"a":{\n  "b":1, "c":2\n}}', '{"a":{\n  "c":2\n}}'),
        ('{"a":{\n  "c":2, // two\n  "b":1,\n}}', '{"a":{\n  "c":2, // two\n}}'),
    ],
)
def test_a_member_is_removed_in_any_notation(text: str, edited: str) -> None:
    assert remove_member(text, ("a", "b")) == edited


def test_an_element_is_appended_to_a_list_that_may_be_missing() -> None:
    assert append_item('{"l": [1]}', ("l",), 2) == '{"l": [1, 2]}'
    assert append_item('{"l": []}', ("l",), 2) == '{"l": [\n  2\n]}'
    assert (
        append_item('{\n  "l": [\n    1\n  ]\n}', ("l",), 2) == '{\n  "l": [\n    1,\n    2\n  ]\n}'
    )
    assert append_item("{}", ("l",), 2) == '{\n  "l": [\n    2\n  ]\n}'


def test_what_cannot_be_edited_safely_is_refused() -> None:
    for text in ('{"a": 1}', '{"a": [1]}', "[1]", "{nonsense"):
        with pytest.raises(EditError, match="edit the file by hand"):
            set_member(text, ("a", "b"), 1)
    for text in ('{"l": {}}', '{"l": null}'):
        with pytest.raises(EditError, match="edit the file by hand"):
            append_item(text, ("l",), 1)
    with pytest.raises(EditError, match="edit the file by hand"):
        remove_member('{"a": {}} // }', ("a", "b", "c"))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3)
    ),
    max_leaves=8,
)
_GAPS = st.sampled_from(["", " ", "\n", "\n\t", "\r\n", " // x\n", "/* }, */", '\n// {"\n\n'])


@st.composite
def documents(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """Return servers, and a text with them that has gaps and comments anywhere."""
    tree = draw(st.dictionaries(st.text(max_size=4), _VALUES, min_size=1, max_size=4))

    def write(value: Any) -> str:
        if isinstance(value, dict) and value:
            members = cast("dict[str, Any]", value).items()
            pairs = [f"{json.dumps(k)}{draw(_GAPS)}:{draw(_GAPS)}{write(v)}" for k, v in members]
        elif isinstance(value, list) and value:
            pairs = [write(each) for each in cast("list[Any]", value)]
        else:
            return json.dumps(value)
        inner = ",".join(f"{draw(_GAPS)}{each}{draw(_GAPS)}" for each in pairs)
        inner += draw(st.sampled_from(["", ","])) + draw(_GAPS)
        return f"{{{inner}}}" if isinstance(value, dict) else f"[{inner}]"

    return tree, draw(_GAPS) + write({"x": 1, "s": tree}) + draw(_GAPS)


@given(documents(), st.data())
def test_an_edit_changes_what_it_should_and_nothing_else(
    document: tuple[dict[str, Any], str], data: st.DataObject
) -> None:
    servers, text = document
    assert parse(text) == {"x": 1, "s": servers}
    name = data.draw(st.sampled_from([*servers, "new name"]))
    changed = set_member(text, ("s", name), {"command": "x"})
    assert parse(changed) == {"x": 1, "s": servers | {name: {"command": "x"}}}
    assert set_member(changed, ("s", name), {"command": "x"}) == changed
    removed = data.draw(st.sampled_from(list(servers)))
    expected = {key: value for key, value in servers.items() if key != removed}
    assert parse(remove_member(text, ("s", removed))) == {"x": 1, "s": expected}
