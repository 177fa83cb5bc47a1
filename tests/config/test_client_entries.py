"""Reading the configuration files of MCP clients."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_values import JSON
from trunkline.config.client_files import ClientServers, parse_client_servers, unique_names
from trunkline.config.server_table import ServerEntry
from trunkline.documents.errors import ConfigErrors, ErrorCollector
from trunkline.documents.parser import parse_json


def parse_tree(tree: Any) -> tuple[ClientServers, ErrorCollector]:
    parsed = parse_json(json.dumps(tree), "f")
    return parse_client_servers(parsed.tree, parsed.errors), parsed.errors


def entry_of(entry: Any) -> tuple[ServerEntry, list[str]]:
    (servers, _), collector = parse_tree({"mcpServers": {"fs": entry}})
    collector.raise_if_any()
    return servers[0], [note.removeprefix("f:1: mcpServers.fs.") for note in collector.notes()]


def errors_of(tree: Any) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        parse_tree(tree)[1].raise_if_any()
    return str(raised.value).splitlines()


@pytest.mark.parametrize(
    "tree",
    [
        {"mcpServers": {"fs": {"command": "npx"}}, "numStartups": 3, "projects": {"/p": {}}},
        {"servers": {"fs": {"command": "npx"}}, "inputs": []},
        {"mcp": {"servers": {"fs": {"command": "npx"}}}, "editor.tabSize": 2},
        {"fs": {"command": "npx"}},
        {"context_servers": {"fs": {"command": "npx", "source": "custom"}}, "theme": "One"},
    ],
)
def test_servers_are_found_in_the_format_of_every_client(tree: Any) -> None:
    (entries, inputs), collector = parse_tree(tree)
    collector.raise_if_any()
    assert [(entry.name, entry.table) for entry in entries] == [("fs", {"command": "npx"})]
    assert (inputs, collector.notes()) == ({}, ())


def test_an_extension_of_zed_is_ignored_with_a_note() -> None:
    entry: Any = {"source": "extension", "enabled": True, "settings": {}}
    (entries, _), collector = parse_tree({"context_servers": {"github": entry}})
    assert entries == []
    assert collector.notes() == (
        "f:1: context_servers.github: ignored; its command is in an extension of Zed",
    )


@pytest.mark.parametrize(("count", "servers"), [(1, "1 server"), (3, "3 servers")])
def test_servers_of_single_projects_are_ignored_with_a_note(count: int, servers: str) -> None:
    local = {f"s{number}": {"command": "npx"} for number in range(count)}
    projects: Any = {"/a": {"mcpServers": local}, "/b": {"mcpServers": {}}, "/c": None}
    (entries, _), collector = parse_tree({"mcpServers": {}, "projects": projects})
    assert entries == []
    assert collector.notes() == (
        f"f:1: projects: {servers} of single projects ignored;"
        " add them with `claude mcp add --scope user`",
    )


def test_a_file_without_servers_is_valid_and_noted() -> None:
    trees: list[Any] = [{}, {"mcpServers": None}, {"mcp": 1}, {"disabledMcpServers": []}]
    # Settings of a program that happen to have a command.
    trees.append({"editor": {"command": "vi"}, "colour": "blue"})
    for tree in trees:
        (entries, _), collector = parse_tree(tree)
        collector.raise_if_any()
        assert entries == []
        assert collector.notes() == ('f:1: no servers; expected "mcpServers" or "servers"',)
    assert parse_tree({"mcpServers": {}})[1].notes() == ()


@pytest.mark.parametrize(
    ("tree", "error"),
    [
        ([], 'f:1: expected an object; begin with { "mcpServers": { … } }'),
        (None, 'f:1: expected an object; begin with { "mcpServers": { … } }'),
        ({"mcp_servers": {}}, 'f:1: mcp_servers: unknown key; did you mean "mcpServers"?'),
        ({"mcpServers": []}, "f:1: mcpServers: expected an object; give it a member for each"),
        ({"servers": {"a": 1}}, 'f:1: servers.a: expected an object; give it a "command" or'),
        ({"servers": {}, "inputs": {}}, "f:1: inputs: expected a list; put the inputs in"),
        ({"mcp": {"servers": {}, "inputs": 1}}, "f:1: mcp.inputs: expected a list;"),
        (
            {"servers": {"a": {"type": "ws", "url": "x"}}},
            'f:1: servers.a.type: unknown type; known are "stdio", "local", "http"',
        ),
        ({"servers": {"a": {"type": 1, "url": "x"}}}, "f:1: servers.a.type: unknown type;"),
        ({"servers": {"a": {"transport": "ws", "url": "x"}}}, "f:1: servers.a.transport: unknown"),
    ],
)
def test_an_invalid_client_file_is_an_error(tree: Any, error: str) -> None:
    (found,) = errors_of(tree)
    assert found.startswith(error)


@pytest.mark.parametrize(
    ("entry", "table"),
    [
        ({"type": "stdio", "command": "a", "args": ["b"]}, {"command": "a", "args": ["b"]}),
        ({"type": "local", "command": ["a", "b"]}, {"command": "a", "args": ["b"]}),
        ({"command": ["a", "b"], "args": ["c"]}, {"command": "a", "args": ["b", "c"]}),
        ({"type": "http", "url": "u", "headers": {"A": "b"}}, {"url": "u", "headers": {"A": "b"}}),
        ({"type": "sse", "url": "u"}, {"url": "u"}),
        ({"type": "streamable-http", "url": "u"}, {"url": "u"}),
        ({"type": "streamableHttp", "url": "u"}, {"url": "u"}),
        ({"type": "STREAMABLE_HTTP", "url": "u", "description": "d"}, {"url": "u"}),
        ({"type": "STDIO", "command": "a"}, {"command": "a"}),
        ({"transportType": "stdio", "command": "a", "icon": "i"}, {"command": "a"}),
        ({"transport": "http", "url": "u", "tools": {}}, {"url": "u"}),
        ({"transport": "sse", "type": None, "url": "u"}, {"url": "u"}),
        ({"url": "u", "bearerToken": "t"}, {"url": "u", "headers": {"Authorization": "Bearer t"}}),
        (
            {"url": "u", "auth": "t", "headers": {"X": "y"}},
            {"url": "u", "headers": {"X": "y", "Authorization": "Bearer t"}},
        ),
        ({"url": "u", "auth": None, "bearerToken": ""}, {"url": "u"}),
        (
            {"command": "a", "env": {"A": "b"}, "env_vars": ["B", {"name": "C"}]},
            {"command": "a", "env": {"A": "b", "B": "${B}", "C": "${C}"}},
        ),
        (
            {"url": "u", "bearer_token_env_var": "T", "env_http_headers": {"X-Key": "K"}},
            {"url": "u", "headers": {"Authorization": "Bearer ${T}", "X-Key": "${K}"}},
        ),
        (
            {"url": "u", "http_headers": {"X": "y"}, "tool_timeout_sec": 5},
            {"url": "u", "headers": {"X": "y"}, "timeout": 5},
        ),
        ({"command": "a", "startup_timeout_sec": 20}, {"command": "a", "start_timeout": 20}),
        ({"serverUrl": "u"}, {"url": "u"}),
        ({"httpUrl": "u"}, {"url": "u"}),
        ({"command": "a", "envFile": ".env"}, {"command": "a", "env_file": ".env"}),
        ({"command": "a", "environment": {"A": "b"}}, {"command": "a", "env": {"A": "b"}}),
        ({"command": "a", "disabled": True}, {"command": "a", "disabled": True}),
        ({"command": "a", "enabled": False}, {"command": "a", "disabled": True}),
        ({"command": "a", "enabled": True}, {"command": "a"}),
        ({"command": "a", "timeout": 3600}, {"command": "a", "timeout": 3600}),
        ({"command": "a", "timeout": 10**400}, {"command": "a", "timeout": 10**400}),
        ({"command": "a", "cwd": None, "env": None, "url": None}, {"command": "a"}),
        (
            {"command": "a", "env": {"P": 80, "T": True, "F": 0.5, "N": None, "S": "s"}},
            {"command": "a", "env": {"P": "80", "T": "true", "F": "0.5", "S": "s"}},
        ),
        (
            {"command": "a", "prefix": "", "protocol": "auto"},
            {"command": "a", "prefix": "", "protocol": "auto"},
        ),
        ({"url": "u", "args": [], "env": {}}, {"url": "u"}),
    ],
)
def test_an_entry_is_converted_without_notes(entry: dict[str, Any], table: dict[str, Any]) -> None:
    found, notes = entry_of(entry)
    assert found.table == table
    assert notes == []


@pytest.mark.parametrize(
    ("entry", "table", "note"),
    [
        (
            {"command": "a", "autoApprove": ["x"]},
            {"command": "a"},
            "autoApprove: ignored; clients approve calls",
        ),
        (
            {"command": "a", "alwaysAllow": []},
            {"command": "a"},
            "alwaysAllow: ignored; clients approve calls",
        ),
        (
            {"command": "a", "disabledTools": ["rm"], "includeTools": []},
            {"command": "a"},
            "disabledTools: ignored; all tools are listed; limit them with [[policy]]",
        ),
        ({"command": "a", "gallery": 1}, {"command": "a"}, "gallery: unknown key, ignored"),
        (
            {"url": "https://a.example", "oauth": {"clientId": "x"}},
            {"url": "https://a.example"},
            "oauth: ignored; write [servers.NAME.oauth] in a trunkline.toml",
        ),
        (
            {"url": "u", "auth": "oauth"},
            {"url": "u"},
            "auth: ignored; write headers or [servers.NAME.oauth]",
        ),
        (
            {"url": "u", "headers": {"authorization": "a"}, "bearerToken": "t"},
            {"url": "u", "headers": {"authorization": "a"}},
            "bearerToken: ignored, because headers has a token too; keep one of the two",
        ),
        (
            {"command": "a", "authentication": {}},
            {"command": "a"},
            "authentication: ignored; write headers or [servers.NAME.oauth] in a trunkline.toml",
        ),
        (
            {"command": "a", "include_tags": ["x"], "exclude_tags": []},
            {"command": "a"},
            "include_tags: ignored; all tools are listed; limit them with [[policy]]",
        ),
        (
            {"command": "a", "argss": []},
            {"command": "a"},
            'argss: unknown key, ignored; did you mean "args"?',
        ),
        (
            {"command": "a", "timeout": 30000},
            {"command": "a", "timeout": 30.0},
            "timeout: read as milliseconds; write seconds",
        ),
        (
            {"type": "http", "url": "u", "command": ""},
            {"url": "u"},
            "command: ignored because of the type; leave it out",
        ),
        (
            {"url": "u", "serverUrl": "v"},
            {"url": "u"},
            "serverUrl: ignored, because url is given too; keep one of the two",
        ),
        (
            {"serverUrl": "u", "httpUrl": "v"},
            {"url": "u"},
            "httpUrl: ignored, because serverUrl is given too; keep one of the two",
        ),
        (
            {"url": "u", "environment": {"A": "b"}},
            {"url": "u"},
            "environment: ignored; it belongs to a server with a command",
        ),
    ],
)
def test_an_ignored_key_is_noted(entry: dict[str, Any], table: dict[str, Any], note: str) -> None:
    found, notes = entry_of(entry)
    assert found.table == table
    assert notes == [note]


def test_headers_that_the_gateway_sends_itself_are_ignored() -> None:
    headers = {"Content-Type": "application/json", "X": "y", "accept": "*/*"}
    found, notes = entry_of({"url": "u", "headers": headers})
    assert found.table == {"url": "u", "headers": {"X": "y"}}
    assert notes == [
        f"headers.{name}: ignored; the gateway sends it itself"
        for name in ("Content-Type", "accept")
    ]


def test_a_converted_key_keeps_its_original_path() -> None:
    entry, _ = entry_of({"command": ["a", "b"], "args": ["c"], "envFile": "x"})
    original_paths = [
        entry.original_path(p)[2:] for p in (("command",), ("args", 0), ("args", 1), ("env_file",))
    ]
    assert original_paths == [("command", 0), ("command", 1), ("args", 0), ("envFile",)]


def test_an_invalid_server_name_is_replaced_and_kept_as_the_title() -> None:
    (entries, _), collector = parse_tree(
        {"mcpServers": {"My Server": {"command": "a"}, "x": {"command": "a", "title": "X"}}}
    )
    collector.raise_if_any()
    assert [entry.name for entry in entries] == ["My_Server", "x"]
    assert [entry.table["title"] for entry in entries] == ["My Server", "X"]
    assert entries[0].root == ("mcpServers", "My Server")


@pytest.mark.parametrize(
    ("originals", "names"),
    [
        (["fs", "a-b_C9"], ["fs", "a-b_C9"]),
        (["@scope/server-x", "Größe"], ["scope_server-x", "Gr_e"]),
        (["my server", "my_server", "my.server"], ["my_server_2", "my_server", "my_server_3"]),
        (["", "☃"], ["server", "server_2"]),
        (["x" * 41, "x" * 42], ["x" * 40, "x" * 38 + "_2"]),
    ],
)
def test_server_names_are_made_valid_and_unique(originals: list[str], names: list[str]) -> None:
    assert list(map(unique_names(originals).get, originals)) == names


@given(st.lists(st.text() | st.text(alphabet="a _2", max_size=45), unique=True))
def test_no_two_servers_get_the_same_name(originals: list[str]) -> None:
    names = unique_names(originals)
    assert set(names) == set(originals)
    assert len(set(names.values())) == len(originals)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name) for name in names.values())


def test_vscode_inputs_are_read_with_their_defaults() -> None:
    (_, inputs), collector = parse_tree(
        {
            "servers": {},
            "inputs": [
                {"type": "promptString", "id": "key", "password": True},
                {"type": "pickString", "id": "level", "default": "low"},
                {"id": "odd", "default": 3},
                {"id": "half", "default": "\ud800"},
                {"type": "promptString"},
                7,
            ],
        }
    )
    collector.raise_if_any()
    assert inputs == {"key": None, "level": "low", "odd": None, "half": None}
    assert collector.notes() == (
        "f:1: inputs[4]: an input without an id, ignored; give it one",
        "f:1: inputs[5]: an input without an id, ignored; give it one",
    )


KEYS = st.sampled_from(
    "type command args env envFile url serverUrl headers timeout cwd disabled enabled what".split()
)
ENTRIES = st.dictionaries(KEYS, JSON | st.sampled_from(["stdio", "http", ["a"], {"A": 1}]))


@given(st.dictionaries(st.text(), ENTRIES | JSON, max_size=3), JSON)
def test_any_entry_becomes_a_table_or_an_error(servers: Any, inputs: Any) -> None:
    (entries, _), collector = parse_tree({"servers": servers, "inputs": inputs})
    assert len(entries) <= len(servers)
    assert collector.locator
