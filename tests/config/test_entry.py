"""One server's table: what types cannot say about it."""

from typing import Any

import pytest

from trunkline.config.entry import Entry, check_entry
from trunkline.documents.errors import key_text
from trunkline.documents.lines import KeyPath


def complaints(table: dict[str, Any], moved: dict[KeyPath, KeyPath] | None = None) -> list[str]:
    found: list[str] = []

    def complain(path: KeyPath, why: str, fix: str) -> None:
        found.append(f"{key_text(path)}: {why}; {fix}")

    check_entry(Entry("fs", table, ("servers", "fs"), moved or {}), complain)
    return found


@pytest.mark.parametrize(
    "table",
    [
        {"command": "npx", "args": [], "env": {}, "cwd": "/", "env_file": ".env"},
        {"url": "https://a.example", "headers": {"A": "b", "B": "c"}},
        {"builtin": "sources", "prefix": ""},
        {"builtin": "sources", "registry": "a.json", "scoring": "best", "threshold": 0.5},
    ],
)
def test_one_kind_with_its_own_keys_is_good(table: dict[str, Any]) -> None:
    assert complaints(table) == []


def test_a_server_without_a_kind_is_told_which_there_are() -> None:
    (found,) = complaints({"args": ["x"]})
    assert found.startswith("servers.fs: no command and no url; add command =")


def test_who_misspelt_command_hears_of_nothing_else() -> None:
    assert complaints({"comand": "npx", "args": ["-y"]}) == [
        'servers.fs.comand: unknown key; did you mean "command"?'
    ]


def test_two_kinds_are_one_too_many() -> None:
    found = complaints({"url": "https://a.example", "command": "npx", "builtin": "search"})
    assert [each.split(";")[0] for each in found] == [
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
    ],
)
def test_a_key_of_another_kind_does_not_belong(table: dict[str, Any], key: str, owner: str) -> None:
    assert complaints(table) == [
        f"servers.fs.{key}: belongs to a server with a {owner}; leave it out"
    ]


@pytest.mark.parametrize("table", [{"builtin": "operator"}, {"command": "npx"}])
def test_a_key_of_the_registry_belongs_to_the_registry(table: dict[str, Any]) -> None:
    assert complaints(table | {"registry": "a.json"}) == [
        'servers.fs.registry: belongs to a server with builtin = "sources"; leave it out'
    ]


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Accept-Encoding", "Accept", "Mcp-Session-Id", "Mcp-Param-A"]
)
def test_a_header_that_the_gateway_sends_is_not_given(name: str) -> None:
    (found,) = complaints({"url": "https://a.example", "headers": {name: "x"}})
    assert found == f"servers.fs.headers.{name}: this one is ours to send; leave it out"


def test_headers_that_differ_in_case_alone_are_the_same() -> None:
    (found,) = complaints({"url": "https://a.example", "headers": {"X-A": "", "x-a": ""}})
    assert found.startswith("servers.fs.headers.x-a: given twice, in another spelling")


def test_a_complaint_names_the_key_as_the_file_has_it() -> None:
    moved: dict[KeyPath, KeyPath] = {("url",): ("serverUrl",), ("args", 0): ("command", 1)}
    found = complaints({"url": 1, "args": [1, 2], "command": "x"}, moved)
    assert [each.split(": ")[0] for each in found] == [
        "servers.fs.serverUrl",
        "servers.fs.command[1]",
        "servers.fs.args[1]",
        "servers.fs.serverUrl",
    ]
