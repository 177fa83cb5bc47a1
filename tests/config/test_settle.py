"""From a table to what a server starts with."""

from pathlib import Path
from typing import Any

import pytest

from trunkline.config.entry import Entry
from trunkline.config.settle import fill, settings
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import key_text
from trunkline.documents.lines import KeyPath


def filled(
    table: dict[str, Any], folder: Path = Path("/etc"), **environ: str
) -> tuple[dict[str, Any], list[str]]:
    found: list[str] = []

    def complain(path: KeyPath, why: str, fix: str) -> None:
        found.append(f"{key_text(path)}: {why}; {fix}")

    around = Surroundings(environ, folder)
    return fill(Entry("fs", table, ("servers", "fs")), around, complain), found


def test_references_are_resolved_in_every_text_that_a_server_starts_with() -> None:
    table = {
        "command": "${A}",
        "args": ["${A}", "x${A}"],
        "env": {"${A}": "${A}"},
        "cwd": "/${A}",
        "title": "${A}",
        "prefix": "${A}",
    }
    assert filled(table, A="1") == (
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
    assert filled(table, A="1") == ({"url": "https://1/", "headers": {"X": "1"}}, [])


def test_every_reference_to_nothing_names_its_key() -> None:
    table = {"command": "${A}", "args": ["x", "${B}"], "env": {"E": "${C} ${D}"}}
    assert [each.split(";")[0] for each in filled(table)[1]] == [
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
def test_a_url_that_leads_nowhere_is_refused_and_not_shown(url: str) -> None:
    for found in (filled({"url": url})[1], filled({"url": "${URL}"}, URL=url)[1]):
        assert found == [
            "servers.fs.url: expected http:// or https:// and a host; write the whole address"
        ]


@pytest.mark.parametrize(
    "url", ["https://u:s3cr3t@a/mcp", "http://s3cr3t@a", "http://:s3cr3t@a:1/"]
)
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    for found in (filled({"url": url})[1], filled({"url": "${URL}"}, URL=url)[1]):
        assert found == [
            "servers.fs.url: a name or a password is in it, which is never sent; put them into "
            "headers, as Authorization, by ${VAR}, or have tokens got by oauth"
        ]
    assert filled({"url": url, "disabled": True})[1] == []


@pytest.mark.parametrize("url", ["http://a", "https://a.example:8/mcp?x=y", "HTTPS://[::1]:80/"])
def test_a_url_with_a_host_is_good(url: str) -> None:
    assert filled({"url": url})[1] == []


@pytest.mark.parametrize(
    ("table", "key", "why"),
    [
        ({"command": "${V}"}, "command", "a NUL or half a character is in it"),
        ({"args": ["${V}"]}, "args[0]", "a NUL or half a character is in it"),
        ({"env": {"E": "${V}"}}, "env.E", "a NUL or half a character is in it"),
        ({"headers": {"H": "${W}"}}, "headers.H", "no HTTP header can carry it"),
        ({"headers": {"H": "é"}}, "headers.H", "no HTTP header can carry it"),
        ({"command": "${EMPTY}"}, "command", "it is blank"),
        ({"cwd": " ${EMPTY}"}, "cwd", "it is blank"),
    ],
)
def test_a_value_that_could_not_be_used_is_refused_and_not_shown(
    table: dict[str, Any], key: str, why: str
) -> None:
    _, (found,) = filled(table, V="s3cr3t\0", W="s3cr3t\r\nX: y", EMPTY="")
    assert found.startswith(f"servers.fs.{key}: {why}; ")
    assert "s3cr3t" not in found


def test_paths_are_seen_from_the_config_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("")
    table, _ = filled({"command": "x", "cwd": "sub", "env_file": ".env"}, tmp_path)
    assert table["cwd"] == str(tmp_path / "sub")
    assert table["env_file"] == str(tmp_path / ".env")
    assert filled({"cwd": "~/x"}, HOME="/home/me")[0]["cwd"] == "/home/me/x"
    assert filled({"cwd": "/abs"})[0]["cwd"] == "/abs"


def test_what_env_says_goes_before_what_its_file_says(tmp_path: Path) -> None:
    (tmp_path / "my.env").write_text("A=file\nB=${A}\n")
    table, found = filled({"env_file": "${F}.env", "env": {"A": "table"}}, tmp_path, F="my")
    assert (table["env"], found) == ({"A": "table", "B": "${A}"}, [])
    assert filled({"env_file": "my.env"}, tmp_path)[0]["env"] == {"A": "file", "B": "${A}"}


def test_what_is_wrong_with_an_env_file_is_told_at_its_key(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("s3cr3t\n")
    assert filled({"env_file": ".env"}, tmp_path)[1] == [
        'servers.fs.env_file: line 1 of ".env" is not KEY=VALUE; mend it, or put # before it'
    ]
    (found,) = filled({"env_file": "nope"}, tmp_path)[1]
    assert found.startswith('servers.fs.env_file: the file "nope" cannot be read: no such file')
    (found,) = filled({"env_file": "${NOPE}"}, tmp_path)[1]
    assert found.startswith("servers.fs.env_file: the variable NOPE is not set")


def test_a_disabled_server_lacks_nothing() -> None:
    table = {"disabled": True, "command": "${NOPE}", "args": ["${A}"], "env_file": "nope"}
    assert filled(table, A="1") == (
        {"disabled": True, "command": "${NOPE}", "args": ["1"], "env_file": "/etc/nope"},
        [],
    )


def test_what_is_of_the_wrong_type_is_left_to_others() -> None:
    table = {"command": 3, "args": "${A}", "env": ["${A}", {"x": None}], "env_file": 1, "cwd": []}
    expected = table | {"args": "1", "env": ["1", {"x": None}]}
    assert filled(table, A="1") == (expected, [])


def test_a_filled_table_becomes_settings() -> None:
    entry = Entry("fs", {"command": "npx", "args": ["-y"], "timeout": 5}, ("servers", "fs"))
    server = settings(entry, entry.table)
    assert (server.name, server.command, server.args, server.timeout) == ("fs", "npx", ("-y",), 5.0)
    assert isinstance(server.timeout, float)


def test_a_registry_is_a_file_seen_from_the_config_file() -> None:
    table = {"builtin": "sources", "registry": "${A}.json"}
    assert filled(table, A="mine")[0]["registry"] == "/etc/mine.json"
    assert filled({"builtin": "sources", "registry": " "})[1] == [
        "servers.fs.registry: it is blank; give it a value, or leave the key out"
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
def test_weights_make_one_together(weights: dict[str, Any], wrong: str | None) -> None:
    reason = "the two weights do not make 1; set both, such as 0.7 and 0.3"
    expected = [] if wrong is None else [f"servers.fs.{wrong}: {reason}"]
    assert filled({"builtin": "sources"} | weights)[1] == expected
