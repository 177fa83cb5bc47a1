"""Validating the table of one server, beyond its types."""

from typing import Any

import pytest

from trunkline.config.server_table import ServerEntry, check_server
from trunkline.documents.errors import KeyPath, format_key_path


def errors_of(table: dict[str, Any], moved: dict[KeyPath, KeyPath] | None = None) -> list[str]:
    found: list[str] = []

    def report(path: KeyPath, why: str, fix: str) -> None:
        found.append(f"{format_key_path(path)}: {why}; {fix}")

    check_server(ServerEntry("fs", table, ("servers", "fs"), moved or {}), report)
    return found


@pytest.mark.parametrize(
    "table",
    [
        {"command": "npx", "args": [], "env": {}, "cwd": "/", "env_file": ".env"},
        {"url": "https://a.example", "headers": {"A": "b", "B": "c"}, "protocol": "session"},
        {"builtin": "sources", "prefix": ""},
        {"builtin": "sources", "registry": "a.json", "scoring": "best", "threshold": 0.5},
    ],
)
def test_a_server_with_the_keys_of_its_kind_is_valid(table: dict[str, Any]) -> None:
    assert errors_of(table) == []


def test_a_server_without_a_kind_is_reported_with_the_possible_kinds() -> None:
    (found,) = errors_of({"args": ["x"]})
    assert found.startswith("servers.fs: no command and no url; add command =")


def test_a_misspelt_command_is_the_only_error() -> None:
    assert errors_of({"comand": "npx", "args": ["-y"]}) == [
        'servers.fs.comand: unknown key; did you mean "command"?'
    ]


def test_a_server_has_only_one_kind() -> None:
    found = errors_of({"url": "https://a.example", "command": "npx", "builtin": "search"})
    assert [error.split(";")[0] for error in found] == [
        "servers.fs.url: command and url are both given",
        "servers.fs.builtin: command and builtin are both given",
    ]


@pytest.mark.parametrize(
    ("table", "key", "owner"),
    [
        ({"url": "https://a.example", "args": []}, "args", "command"),
        ({"url": "https://a.example", "env": {}}, "env", "command"),
        ({"builtin": "search", "cwd": "/"}, "cwd", "command"),
        ({"command": "npx", "headers": {}}, "headers", "url"),
        ({"builtin": "search", "protocol": "auto"}, "protocol", "command or url"),
    ],
)
def test_a_key_of_another_kind_is_refused(table: dict[str, Any], key: str, owner: str) -> None:
    assert errors_of(table) == [
        f"servers.fs.{key}: belongs to a server with a {owner}; leave it out"
    ]


@pytest.mark.parametrize("table", [{"builtin": "operator"}, {"command": "npx"}])
def test_a_registry_key_is_refused_for_other_servers(table: dict[str, Any]) -> None:
    assert errors_of(table | {"registry": "a.json"}) == [
        'servers.fs.registry: belongs to a server with builtin = "sources"; leave it out'
    ]


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Accept-Encoding", "Accept", "Mcp-Session-Id", "Mcp-Param-A"]
)
def test_a_header_that_the_gateway_sends_itself_is_refused(name: str) -> None:
    (found,) = errors_of({"url": "https://a.example", "headers": {name: "x"}})
    assert found == f"servers.fs.headers.{name}: the gateway sends this header itself; leave it out"


def test_headers_that_differ_only_in_case_are_duplicates() -> None:
    (found,) = errors_of({"url": "https://a.example", "headers": {"X-A": "", "x-a": ""}})
    assert found.startswith("servers.fs.headers.x-a: given twice, in different case")


def test_an_error_names_the_key_as_written_in_the_file() -> None:
    moved: dict[KeyPath, KeyPath] = {("url",): ("serverUrl",), ("args", 0): ("command", 1)}
    found = errors_of({"url": 1, "args": [1, 2], "command": "x"}, moved)
    assert [error.split(": ")[0] for error in found] == [
        "servers.fs.serverUrl",
        "servers.fs.command[1]",
        "servers.fs.args[1]",
        "servers.fs.serverUrl",
    ]
