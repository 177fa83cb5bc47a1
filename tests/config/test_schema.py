"""The JSON Schema of trunkline.toml: up to date, consistent with the loader, and documented."""

from pathlib import Path
from typing import Any

import jsonschema
import msgspec.inspect
from hypothesis import given
from hypothesis import strategies as st

import trunkline.config
from tests.json_values import JSON
from tests.reference import config_keys
from trunkline.config.model import (
    SCHEMA_FILE,
    ConfigTable,
    config_schema,
    schema_text,
    shipped_schema,
)
from trunkline.config.server_table import check_server, read_servers
from trunkline.documents.errors import KeyPath
from trunkline.documents.validation import validate

VALIDATOR: Any = jsonschema.Draft202012Validator(config_schema())
ROOT_TYPE = msgspec.inspect.type_info(ConfigTable)


def test_the_shipped_schema_matches_the_types(update: bool) -> None:
    shipped = Path(trunkline.config.__file__).with_name(SCHEMA_FILE)
    if update:
        shipped.write_text(schema_text(), encoding="utf-8")
    assert shipped.read_text(encoding="utf-8") == schema_text(), "run `make update`"
    assert shipped_schema() == config_schema()


def test_the_schema_is_valid_and_without_null() -> None:
    jsonschema.Draft202012Validator.check_schema(config_schema())
    assert "null" not in schema_text()
    assert "ConfigTable" not in schema_text()


def is_valid(tree: dict[str, Any]) -> bool:
    found: list[KeyPath] = []

    def report(path: KeyPath, why: str, fix: str) -> None:
        found.append(path)

    validate({key: tree[key] for key in tree if key != "servers"}, ROOT_TYPE, (), report)
    for entry in read_servers(tree.get("servers", {}), report):
        check_server(entry, report)
    return not found


# A JSON Schema cannot distinguish some values, so they are left out: 1.0 counts as an integer, a
# trailing newline is ignored, and two headers may differ only in case.
VALUES: st.SearchStrategy[Any] = JSON.filter(
    lambda value: not isinstance(value, float)
) | st.sampled_from(
    [
        *("npx", "auto", "search", "", "a" * 41, "127.0.0.1:80", "/mcp", "https://a.example"),
        *(1, 0, 90000, 0.5, True, ["x"], ["https://a.example"], {"A": "b"}, {"A=B": ""}),
        *("none", ["jwt"], ["api_key", "jwt"], {"issuer": "x"}, {"audience": ["a"]}, {"file": "x"}),
        {"token_url": "https://a.example", "client_id": "g", "client_secret_env": "S"},
        {"token_url": "https://a.example", "client_id": "g"},
        *({"no_new_privs": False}, {"read_only": ["/a"], "network": False}, {"user": "a b"}),
        *({"no_new_privs": False, "network": False}, {"no_new_privs": False, "writable": []}),
        *("*", ["*"], ["tool"], ["tools.read"], {"readOnlyHint": True}, {"readOnly": True}),
    ]
)
TABLES = st.dictionaries(
    st.sampled_from([key.rpartition(".")[2] for key in config_keys()] + ["comand"]),
    VALUES,
    max_size=3,
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


def is_distinguishable(value: Any) -> bool:
    return not any(text in repr(value) for text in ("\\n'", '\\n"', "\\ud", "None"))


@given(TREES.filter(is_distinguishable))
def test_schema_and_loader_agree_on_what_is_valid(tree: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(tree) == is_valid(tree)
