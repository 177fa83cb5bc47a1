"""Tables against types, with every mismatch reported; JSON Schemas without null."""

import datetime
from typing import Annotated, Any, Literal

import msgspec
import msgspec.inspect
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_values import JSON
from trunkline.backends.command import CommandSettings
from trunkline.config.model import ConfigTable
from trunkline.config.server_table import ServerTable, server_type
from trunkline.documents.errors import KeyPath, format_key_path
from trunkline.documents.validation import drop_null, suggest_key, validate

WHOLE = msgspec.inspect.type_info(ConfigTable)
SERVER = server_type()


def errors_of(value: object, kind: msgspec.inspect.Type = SERVER, root: KeyPath = ()) -> list[str]:
    found: list[str] = []

    def add_error(path: KeyPath, reason: str, fix: str) -> None:
        found.append(f"{format_key_path(path)}: {reason}; {fix}")

    validate(value, kind, root, add_error)
    return found


def test_a_list_of_tables_may_suggest_its_header() -> None:
    fix = "write [[x]], in double brackets"
    kind = msgspec.inspect.type_info(
        Annotated[tuple[CommandSettings, ...], msgspec.Meta(extra={"tables": fix})]
    )
    assert errors_of({}, kind, ("x",)) == [f"x: expected a list of tables; {fix}"]
    assert errors_of(1, kind, ("x",)) == [
        "x: expected a list, got a whole number; put it in brackets: [ … ]"
    ]
    assert errors_of([{"command": "x"}], kind, ("x",)) == []


def test_values_that_fit_have_no_errors() -> None:
    table = {
        "command": "npx",
        "args": ["-y", ""],
        "env": {"A": "1"},
        "prefix": "",
        "protocol": "stateless",
        "timeout": 5,
        "start_timeout": 0.5,
        "max_in_flight": 1,
        "max_restarts": 0,
        "disabled": True,
    }
    assert errors_of(table) == []


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
        (
            {"protocol": "sesion"},
            'protocol: expected "auto", "session" or "stateless"; did you mean "s',
        ),
        ({"protocol": 1}, 'protocol: expected "auto", "session" or "stateless"; choose one'),
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
        ({"title": "\ud800"}, "title: it contains half of a surrogate pair; remove that character"),
        ({"comand": ""}, 'comand: unknown key; did you mean "command"?'),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_reason_and_fix(
    table: dict[str, Any], expected: str
) -> None:
    (found,) = errors_of(table)
    assert found.startswith(expected)


def test_all_errors_are_reported_at_once() -> None:
    tree = {
        "gateway": {"name": "", "strict": 1},
        "http": {"allowed_hosts": [1, 2]},
        "servers": {"a b": {"title": 1, "prefix": "é"}, "c": 3},
        "serves": {},
    }
    assert [found.split(": ")[0] for found in errors_of(tree, WHOLE)] == [
        "gateway.name",
        "gateway.strict",
        "http.allowed_hosts[0]",
        "http.allowed_hosts[1]",
        'servers."a b"',
        'servers."a b".title',
        'servers."a b".prefix',
        "servers.c",
        "serves",
    ]


def test_a_wrong_value_is_never_shown() -> None:
    secret = "s3cr3t"
    table = {"command": [secret], "args": secret, "protocol": secret, "prefix": secret + "!"}
    assert secret not in "".join(errors_of(table))


@pytest.mark.parametrize("key", ServerTable.KEY_FIXES)
def test_a_replaced_key_has_its_own_fix(key: str) -> None:
    assert errors_of({key: ""}) == [f"{key}: unknown key; {ServerTable.KEY_FIXES[key]}"]
    assert suggest_key(key, {"name": None}) != ServerTable.KEY_FIXES[key]


class Bookcase(msgspec.Struct):
    name: str
    books: Annotated[tuple[str, ...], msgspec.Meta(min_length=2, max_length=2)]
    notes: Annotated[tuple[str, ...], msgspec.Meta(max_length=1)] = ()
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=1)] = {}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"books": ["a", "b"]}, ['bookcase: "name" is missing; add it']),
        ({"nam": "x", "books": ["a", "b"]}, ['bookcase.nam: unknown key; did you mean "name"?']),
        ({"name": "x", "books": []}, ["bookcase.books: expected exactly 2, got 0; add some"]),
        (
            {"name": "x", "books": ["a"] * 3},
            ["bookcase.books: expected exactly 2, got 3; take some out"],
        ),
        (
            {"name": "x", "books": ["a", "b"], "notes": ["a", "b"], "labels": {"a": "", "b": ""}},
            [
                "bookcase.notes: expected at most 1, got 2; take some out",
                "bookcase.labels: expected at most 1, got 2; take some out",
            ],
        ),
    ],
)
def test_missing_keys_and_wrong_counts_are_reported(
    table: dict[str, Any], expected: list[str]
) -> None:
    assert errors_of(table, msgspec.inspect.type_info(Bookcase), ("bookcase",)) == expected


VALUES = JSON | st.sampled_from(["npx", "auto", 1, 0.5, True, ["x"], {"A": "b"}, {"A": 1}])
COMMANDS = st.fixed_dictionaries(
    {"command": VALUES},
    optional=dict.fromkeys([*CommandSettings.__struct_fields__[1:], "comand"], VALUES),
)
COMMAND = msgspec.inspect.type_info(CommandSettings)
TABLES = st.dictionaries(st.sampled_from([*ServerTable.__struct_fields__, "titel"]), VALUES)
TABLE = msgspec.inspect.type_info(ServerTable)


@given(st.tuples(COMMANDS, st.just(COMMAND)) | st.tuples(TABLES, st.just(TABLE)))
def test_validation_passes_exactly_what_msgspec_converts(
    case: tuple[dict[str, Any], msgspec.inspect.StructType],
) -> None:
    table, kind = case
    found = errors_of(table, kind)
    try:
        msgspec.convert(table, kind.cls)
    except msgspec.ValidationError:
        assert found
    else:
        # Validation is stricter about nulls, which TOML lacks, about lone surrogates, and about
        # newlines that the "$" of a pattern accepts.
        odd = ("half of a surrogate pair", "choose another")
        assert None in table.values() or all(any(word in each for word in odd) for each in found)


class Table(msgspec.Struct):
    name: Annotated[str | None, msgspec.Meta(description="A name.")] = None
    kind: Literal["a", "b"] | None = None
    count: int = 0


def test_an_optional_key_is_never_null_in_the_schema() -> None:
    _, found = msgspec.json.schema_components([Table])
    schema = drop_null(found["Table"])
    assert schema["properties"] == {
        "name": {"description": "A name.", "type": "string"},
        "kind": {"enum": ["a", "b"]},
        "count": {"type": "integer", "default": 0},
    }
