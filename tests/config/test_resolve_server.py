"""Resolving the table of a server: references, paths and environment files."""

from pathlib import Path
from typing import Any

import pytest

from trunkline.backends.command import CommandSettings
from trunkline.config.references import ResolveContext
from trunkline.config.server_table import ServerEntry, resolve_server, server_settings
from trunkline.documents.errors import KeyPath, format_key_path


def resolve(
    table: dict[str, Any], folder: Path = Path("/etc"), **environ: str
) -> tuple[dict[str, Any], list[str]]:
    found: list[str] = []

    def report(path: KeyPath, why: str, fix: str) -> None:
        found.append(f"{format_key_path(path)}: {why}; {fix}")

    context = ResolveContext(environ, folder)
    entry = ServerEntry("fs", table, ("servers", "fs"))
    return resolve_server(entry, context, report, report), found


def test_references_are_resolved_in_every_key_that_starts_a_server() -> None:
    table = {
        "command": "${A}",
        "args": ["${A}", "x${A}"],
        "env": {"${A}": "${A}"},
        "cwd": "/${A}",
        "title": "${A}",
        "prefix": "${A}",
    }
    assert resolve(table, A="1") == (
        {
            "command": "1",
            "args": ["1", "x1"],
            "env": {"${A}": "1"},
            "cwd": "/1",
            "title": "${A}",
            "prefix": "${A}",
        },
        [],
    )
    table = {"url": "https://${A}/", "headers": {"X": "${A}"}}
    assert resolve(table, A="1") == ({"url": "https://1/", "headers": {"X": "1"}}, [])


def test_every_unset_variable_is_reported_with_its_key() -> None:
    table = {"command": "${A}", "args": ["x", "${B}"], "env": {"E": "${C} ${D}"}}
    assert [error.split(";")[0] for error in resolve(table)[1]] == [
        "servers.fs.command: the variable A is not set",
        "servers.fs.args[1]: the variable B is not set",
        "servers.fs.env.E: the variable C is not set",
        "servers.fs.env.E: the variable D is not set",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example",
        "a.example/mcp",
        "//a.example",
        "http://",
        "http:///x",
        "http://[::1",
        "http://a:b/",
        "http://a:99999/",
        "http://a b/",
        "http://a/\nx",
        "",
    ],
)
def test_an_invalid_url_is_refused_and_not_shown(url: str) -> None:
    for found in (resolve({"url": url})[1], resolve({"url": "${URL}"}, URL=url)[1]):
        assert found == [
            "servers.fs.url: expected http:// or https:// and a host; write the whole address"
        ]


@pytest.mark.parametrize(
    "url", ["https://u:s3cr3t@a/mcp", "http://s3cr3t@a", "http://:s3cr3t@a:1/"]
)
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    for found in (resolve({"url": url})[1], resolve({"url": "${URL}"}, URL=url)[1]):
        assert found == [
            "servers.fs.url: it contains a user name or password, which is never sent; "
            "set headers.Authorization with ${VAR}, or use oauth"
        ]
    assert resolve({"url": url, "disabled": True})[1] == []


@pytest.mark.parametrize("url", ["http://a", "https://a.example:8/mcp?x=y", "HTTPS://[::1]:80/"])
def test_a_url_with_a_host_is_valid(url: str) -> None:
    assert resolve({"url": url})[1] == []


@pytest.mark.parametrize(
    ("table", "key", "why"),
    [
        ({"command": "${V}"}, "command", "it contains a NUL or half of a surrogate pair"),
        ({"args": ["${V}"]}, "args[0]", "it contains a NUL or half of a surrogate pair"),
        ({"env": {"E": "${V}"}}, "env.E", "it contains a NUL or half of a surrogate pair"),
        ({"headers": {"H": "${W}"}}, "headers.H", "invalid header value"),
        ({"headers": {"H": "é"}}, "headers.H", "invalid header value"),
        ({"command": "${EMPTY}"}, "command", "it is blank"),
        ({"cwd": " ${EMPTY}"}, "cwd", "it is blank"),
    ],
)
def test_an_unusable_value_is_refused_and_not_shown(
    table: dict[str, Any], key: str, why: str
) -> None:
    _, (found,) = resolve(table, V="s3cr3t\0", W="s3cr3t\r\nX: y", EMPTY="")
    assert found.startswith(f"servers.fs.{key}: {why}; ")
    assert "s3cr3t" not in found


def test_relative_paths_start_at_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("")
    table, _ = resolve({"command": "x", "cwd": "sub", "env_file": ".env"}, tmp_path)
    assert table["cwd"] == str(tmp_path / "sub")
    assert table["env_file"] == str(tmp_path / ".env")
    assert resolve({"cwd": "~/x"}, HOME="/home/me")[0]["cwd"] == "/home/me/x"
    assert resolve({"cwd": "/abs"})[0]["cwd"] == "/abs"


def test_env_overrides_env_file(tmp_path: Path) -> None:
    (tmp_path / "my.env").write_text("A=file\nB=${A}\n")
    table, found = resolve({"env_file": "${F}.env", "env": {"A": "table"}}, tmp_path, F="my")
    assert (table["env"], found) == ({"A": "table", "B": "${A}"}, [])
    assert resolve({"env_file": "my.env"}, tmp_path)[0]["env"] == {"A": "file", "B": "${A}"}


def test_errors_in_an_env_file_are_reported_at_its_key(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("s3cr3t\n")
    assert resolve({"env_file": ".env"}, tmp_path)[1] == [
        'servers.fs.env_file: line 1 of ".env" is not KEY=VALUE; fix it, or put # before it'
    ]
    (found,) = resolve({"env_file": "nope"}, tmp_path)[1]
    assert found.startswith('servers.fs.env_file: the file "nope" cannot be read: no such file')
    (found,) = resolve({"env_file": "${NOPE}"}, tmp_path)[1]
    assert found.startswith("servers.fs.env_file: the variable NOPE is not set")


def test_a_disabled_server_may_have_unset_variables() -> None:
    table = {"disabled": True, "command": "${NOPE}", "args": ["${A}"], "env_file": "nope"}
    assert resolve(table, A="1") == (
        {"disabled": True, "command": "${NOPE}", "args": ["1"], "env_file": "/etc/nope"},
        [],
    )


def test_values_of_the_wrong_type_are_kept_unchanged() -> None:
    table = {"command": 3, "args": "${A}", "env": ["${A}", {"x": None}], "env_file": 1, "cwd": []}
    expected = table | {"args": "1", "env": ["1", {"x": None}]}
    assert resolve(table, A="1") == (expected, [])


def test_a_resolved_table_becomes_settings() -> None:
    entry = ServerEntry("fs", {"command": "npx", "args": ["-y"], "timeout": 5}, ("servers", "fs"))
    server = server_settings(entry, entry.table)
    assert (server.name, server.timeout) == ("fs", 5.0)
    assert server.backend == CommandSettings(command="npx", args=("-y",))
    assert isinstance(server.timeout, float)


def test_a_relative_registry_path_starts_at_the_configuration_file() -> None:
    table = {"builtin": "sources", "registry": "${A}.json"}
    assert resolve(table, A="mine")[0]["registry"] == "/etc/mine.json"
    assert resolve({"builtin": "sources", "registry": " "})[1] == [
        "servers.fs.registry: it is blank; set a value, or remove the key"
    ]


@pytest.mark.holds("O1.6")
@pytest.mark.parametrize(
    ("weights", "wrong"),
    [
        ({}, None),
        ({"fuzzy_weight": 1, "keyword_weight": 0}, None),
        ({"fuzzy_weight": 0.5, "keyword_weight": 0.505}, None),
        ({"fuzzy_weight": 0.5}, "fuzzy_weight"),
        ({"keyword_weight": 0.5}, "keyword_weight"),
        ({"fuzzy_weight": 0.5, "keyword_weight": 0.6}, "keyword_weight"),
        ({"fuzzy_weight": "x"}, None),
    ],
)
def test_the_search_weights_must_add_up_to_one(weights: dict[str, Any], wrong: str | None) -> None:
    reason = "the two weights do not add up to 1; set both, such as 0.7 and 0.3"
    expected = [] if wrong is None else [f"servers.fs.{wrong}: {reason}"]
    assert resolve({"builtin": "sources"} | weights)[1] == expected
