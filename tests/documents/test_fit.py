"""Tables against types: every place that does not fit, and no other."""

import datetime
from typing import Annotated, Any

import msgspec
import msgspec.inspect
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jsonrpc.test_raw import JSON
from trunkline.config.model import ConfigTable
from trunkline.config.server_table import ServerTable
from trunkline.documents.errors import key_text
from trunkline.documents.fit import fit, remedy_for
from trunkline.documents.lines import KeyPath

WHOLE = msgspec.inspect.type_info(ConfigTable)
SERVER = msgspec.inspect.type_info(ServerTable)


def complaints(value: object, kind: msgspec.inspect.Type = SERVER, root: KeyPath = ()) -> list[str]:
    found: list[str] = []

    def complain(path: KeyPath, why: str, fix: str) -> None:
        found.append(f"{key_text(path)}: {why}; {fix}")

    fit(value, kind, root, complain)
    return found


def test_a_list_of_tables_may_say_how_its_header_is_written() -> None:
    fix = "write [[x]], in double brackets"
    kind = msgspec.inspect.type_info(
        Annotated[tuple[ServerTable, ...], msgspec.Meta(extra={"tables": fix})]
    )
    assert complaints({}, kind, ("x",)) == [f"x: expected a list of tables; {fix}"]
    assert complaints(1, kind, ("x",)) == [
        "x: expected a list, got a whole number; put it in brackets: [ … ]"
    ]
    assert complaints([{"command": "x"}], kind, ("x",)) == []


def test_what_fits_is_not_complained_of() -> None:
    table = {
        "command": "npx",
        "args": ["-y", ""],
        "env": {"A": "1"},
        "prefix": "",
        "era": "envelope",
        "timeout": 5,
        "start_timeout": 0.5,
        "max_in_flight": 1,
        "max_restarts": 0,
        "disabled": True,
    }
    assert complaints(table) == []


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"command": 3}, "command: expected text, got a whole number; put it in quotes"),
        ({"command": " "}, "command: expected text that is not blank; choose another"),
        ({"command": None}, "command: expected text, got null; put it in quotes"),
        ({"args": "-y"}, "args: expected a list, got text; put it in brackets: [ … ]"),
        ({"args": ["-y", 1]}, "args[1]: expected text, got a whole number; put it in quotes"),
        ({"env": ["A"]}, "env: expected a table, got a list; give it keys of its own"),
        ({"env": {"A": True}}, "env.A: expected text, got true or false; put it in quotes"),
        (
            {"env": {"A=B": ""}},
            'env."A=B": expected the name of a variable, without =; choose another',
        ),
        (
            {"headers": {"X Y": ""}},
            'headers."X Y": expected the name of an HTTP header; choose another',
        ),
        ({"prefix": "a.b"}, 'prefix: expected "" or up to 40 letters, digits, _ or -;'),
        ({"prefix": "a\n"}, 'prefix: expected "" or up to 40 letters, digits, _ or -;'),
        ({"era": "handshak"}, 'era: expected "auto", "envelope" or "handshake"; did you mean "h'),
        ({"era": 1}, 'era: expected "auto", "envelope" or "handshake"; choose one'),
        ({"timeout": 0}, "timeout: expected more than 0 and at most 86400; choose another"),
        ({"timeout": float("nan")}, "timeout: expected more than 0 and at most 86400;"),
        ({"timeout": 10**400}, "timeout: expected more than 0 and at most 86400;"),
        ({"timeout": True}, "timeout: expected a number, got true or false; write one, without"),
        ({"timeout": "60"}, "timeout: expected a number, got text; write one, without quotes"),
        ({"max_in_flight": 0}, "max_in_flight: expected at least 1 and at most 65536;"),
        (
            {"max_in_flight": 2.0},
            "max_in_flight: expected a whole number, got a number; write digits alone",
        ),
        ({"disabled": "yes"}, "disabled: expected true or false, got text; write one of the two,"),
        ({"disabled": 1}, "disabled: expected true or false, got a whole number; write one of"),
        ({"cwd": datetime.date(2026, 1, 1)}, "cwd: expected text, got a date; put it in quotes"),
        ({"cwd": datetime.time(1)}, "cwd: expected text, got a time; put it in quotes"),
        ({"title": "\ud800"}, "title: half a character is in it; take it out"),
        ({"comand": ""}, 'comand: unknown key; did you mean "command"?'),
    ],
)
def test_what_does_not_fit_is_named_with_reason_and_remedy(
    table: dict[str, Any], expected: str
) -> None:
    (found,) = complaints(table)
    assert found.startswith(expected)


def test_everything_is_complained_of_at_once() -> None:
    tree = {
        "gateway": {"name": "", "strict": 1},
        "servers": {"a b": {"args": [1, 2], "era": ""}, "c": 3},
        "serves": {},
    }
    assert [found.split(": ")[0] for found in complaints(tree, WHOLE)] == [
        "gateway.name",
        "gateway.strict",
        'servers."a b"',
        'servers."a b".args[0]',
        'servers."a b".args[1]',
        'servers."a b".era',
        "servers.c",
        "serves",
    ]


def test_a_wrong_value_is_never_shown() -> None:
    secret = "s3cr3t"
    table = {"command": [secret], "args": secret, "era": secret, "prefix": secret + "!"}
    assert secret not in "".join(complaints(table))


@pytest.mark.parametrize("key", ServerTable.INSTEAD)
def test_a_key_that_a_table_knows_of_has_its_own_remedy(key: str) -> None:
    assert complaints({key: ""}) == [f"{key}: unknown key; {ServerTable.INSTEAD[key]}"]
    assert remedy_for(key, {"name": None}) != ServerTable.INSTEAD[key]


class Shelf(msgspec.Struct):
    name: str
    books: Annotated[tuple[str, ...], msgspec.Meta(min_length=2, max_length=2)]
    notes: Annotated[tuple[str, ...], msgspec.Meta(max_length=1)] = ()
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=1)] = {}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"books": ["a", "b"]}, ['shelf: "name" is missing; add it']),
        ({"nam": "x", "books": ["a", "b"]}, ['shelf.nam: unknown key; did you mean "name"?']),
        ({"name": "x", "books": []}, ["shelf.books: expected exactly 2, got 0; add some"]),
        (
            {"name": "x", "books": ["a"] * 3},
            ["shelf.books: expected exactly 2, got 3; take some out"],
        ),
        (
            {"name": "x", "books": ["a", "b"], "notes": ["a", "b"], "labels": {"a": "", "b": ""}},
            [
                "shelf.notes: expected at most 1, got 2; take some out",
                "shelf.labels: expected at most 1, got 2; take some out",
            ],
        ),
    ],
)
def test_what_is_missing_too_few_or_too_many_is_complained_of(
    table: dict[str, Any], expected: list[str]
) -> None:
    assert complaints(table, msgspec.inspect.type_info(Shelf), ("shelf",)) == expected


VALUES = JSON | st.sampled_from(["npx", "auto", 1, 0.5, True, ["x"], {"A": "b"}, {"A": 1}])
TABLES = st.dictionaries(
    st.sampled_from([*ServerTable.__struct_fields__, "comand"]), VALUES, max_size=6
)


@given(TABLES)
def test_what_passes_is_converted_and_what_msgspec_refuses_does_not_pass(
    table: dict[str, Any],
) -> None:
    found = complaints(table)
    try:
        msgspec.convert(table, ServerTable)
    except msgspec.ValidationError:
        assert found
    else:
        # We are stricter in these alone: nulls, which TOML lacks; halves of characters; and
        # newlines that the "$" of a pattern forgives.
        odd = ("half a character", "choose another")
        assert None in table.values() or all(any(word in each for word in odd) for each in found)
