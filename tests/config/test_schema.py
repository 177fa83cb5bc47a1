"""The JSON Schema of trunkline.toml: fresh, of one mind with the loader, and in the manual."""

from pathlib import Path
from typing import Any

import jsonschema
import msgspec.inspect
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline.config
from tests.jsonrpc.test_raw import JSON
from tests.test_docs import headings
from trunkline.config.entry import Entry, check_entry
from trunkline.config.model import ConfigTable
from trunkline.config.schema import FILE, config_schema, schema_text, shipped_schema
from trunkline.documents.fit import fit
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import as_table

VALIDATOR: Any = jsonschema.Draft202012Validator(config_schema())
WHOLE = msgspec.inspect.type_info(ConfigTable)


def keys() -> list[str]:
    definitions = config_schema()["$defs"]
    names = ("gateway", "http", "kill_switch", "auth", "auth.jwt", "auth.key", "journal", "limits")
    tables = {name: name for name in names}
    tables |= {"servers.NAME": "server", "servers.NAME.oauth": "oauth"}
    tables |= {"roles.NAME": "role", "policy": "rule"}
    return [
        f"{table}.{key}"
        for table, definition in tables.items()
        for key in definitions[definition]["properties"]
        if f"{table}.{key}" not in tables
    ]


def test_the_shipped_schema_is_the_one_of_the_types(update: bool) -> None:
    shipped = Path(trunkline.config.__file__).with_name(FILE)
    if update:
        shipped.write_text(schema_text(), encoding="utf-8")
    assert shipped.read_text(encoding="utf-8") == schema_text(), "run `make update`"
    assert shipped_schema() == config_schema()


def test_the_schema_is_a_schema_without_null() -> None:
    jsonschema.Draft202012Validator.check_schema(config_schema())
    assert "null" not in schema_text()
    assert "ConfigTable" not in schema_text()


@pytest.mark.parametrize("key", keys())
def test_every_key_says_what_it_is(key: str) -> None:
    named = {"servers.NAME": "server", "servers.NAME.oauth": "oauth", "roles.NAME": "role"}
    table = key.rpartition(".")[0]
    table = "rule" if table == "policy" else named.get(table, table)
    entry = config_schema()["$defs"][table]["properties"][key.rpartition(".")[2]]
    assert entry["description"].endswith(".")


@pytest.mark.parametrize("key", keys())
def test_every_key_has_its_heading_in_the_manual(key: str) -> None:
    assert f"### `{key}`" in headings("reference/config.md").splitlines()


def is_valid(tree: dict[str, Any]) -> bool:
    found: list[KeyPath] = []

    def complain(path: KeyPath, why: str, fix: str) -> None:
        found.append(path)

    fit(tree, WHOLE, (), complain)
    for name, table in (as_table(tree.get("servers")) or {}).items():
        if as_table(table) is not None:
            check_entry(Entry(name, table, ("servers", name)), complain)
    return not found


# What a schema cannot tell apart, it is not asked about: 1.0 is an integer to it, a newline at the
# end passes for nothing, and two headers may differ in case alone.
VALUES: st.SearchStrategy[Any] = JSON.filter(
    lambda value: not isinstance(value, float)
) | st.sampled_from(
    [
        *("npx", "auto", "search", "", "a" * 41, "127.0.0.1:80", "/mcp", "https://a.example"),
        *(1, 0, 90000, 0.5, True, ["x"], ["https://a.example"], {"A": "b"}, {"A=B": ""}),
        *("none", ["jwt"], ["key", "jwt"], {"issuer": "x"}, {"audience": ["a"]}, {"file": "x"}),
        {"token_url": "https://a.example", "client_id": "g", "client_secret_env": "S"},
        {"token_url": "https://a.example", "client_id": "g"},
        *("*", ["*"], ["tool"], ["tools.read"], {"readOnlyHint": True}, {"readOnly": True}),
    ]
)
TABLES = st.dictionaries(
    st.sampled_from([key.rpartition(".")[2] for key in keys()] + ["comand"]), VALUES, max_size=3
)
KINDS = st.sampled_from(
    [{"command": "npx"}, {"url": "https://a.example"}, {"builtin": "sources"}, {}]
)
SERVERS = st.builds(dict[str, Any].__or__, TABLES, KINDS) | VALUES
LIMIT = st.dictionaries(
    st.sampled_from(["rpm", "concurrent", "total_rpm", "total_concurrent", "rpn"]), VALUES
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        table: st.dictionaries(st.sampled_from(["a*", "b c", " d"]), LIMIT | VALUES, max_size=2)
        for table in ("tools", "servers", "subjects", "roles")
    },
)
TREES = st.fixed_dictionaries(
    {},
    optional={
        "gateway": TABLES | VALUES,
        "servers": st.dictionaries(st.sampled_from(["a", "b c", "d" * 41]), SERVERS, max_size=2),
        "http": TABLES | VALUES,
        "auth": TABLES | VALUES,
        "limits": TABLES | LIMITS | VALUES,
        "roles": st.dictionaries(st.sampled_from(["dev", ""]), TABLES | VALUES, max_size=2),
        "policy": st.lists(TABLES | VALUES, max_size=2) | VALUES,
    },
)


def is_askable(value: Any) -> bool:
    return not any(text in repr(value) for text in ("\\n'", '\\n"', "\\ud", "None"))


@given(TREES.filter(is_askable))
def test_schema_and_loader_agree_on_what_is_valid(tree: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(tree) == is_valid(tree)
