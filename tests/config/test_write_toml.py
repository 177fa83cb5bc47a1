"""Writing configuration files back as one trunkline.toml."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.config.backend_settings import command_of, settings_of
from trunkline.backends.builtin import BuiltinSettings
from trunkline.config.load import load_config, read_raw_config
from trunkline.config.model import Config
from trunkline.config.write_toml import to_toml
from trunkline.documents.errors import ConfigErrors

ENVIRON = {"A": "one", "API_KEY": "k", "HOME": "/home/me", "EMPTY": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("import")
    (folder / "old" / ".vscode").mkdir(parents=True)
    (folder / "new").mkdir()
    (folder / "old" / ".vscode" / "token").write_text("from a file")
    return folder


def client_file(folder: Path, tree: Any, name: str = "mcp.json") -> Path:
    path = folder / "old" / ".vscode" / name
    path.write_text(json.dumps(tree), encoding="utf-8")
    return path


def write_and_load(folder: Path, *paths: Path) -> tuple[str, Config]:
    text = to_toml(*map(read_raw_config, paths))
    target = folder / "new" / "trunkline.toml"
    target.write_text(text, encoding="utf-8")
    return text, load_config(target, ENVIRON)


def test_a_written_file_loads_the_same_servers(folder: Path) -> None:
    (folder / "old" / ".env").write_text("E=1")
    tree = {
        "inputs": [{"id": "api-key"}, {"id": "level", "default": "low"}],
        "servers": {
            "My Server": {
                "command": ["npx", "-y", "${workspaceFolder}/x", "pa$$word", "$${A}", "${1}"],
                "env": {"K": "${input:api-key}", "L": "${input:level}", "a b": "ä\n\x7f\t\\"},
                "envFile": "${workspaceFolder}/.env",
                "cwd": "sub",
                "timeout": 30000,
            },
            "web": {
                "url": "https://a.example/${env:A}?q=${NOPE:-x}",
                "headers": {"X-Key": "${file:token}", "Authorization": "Bearer abc"},
            },
            "off": {"command": "${UNSET}", "disabled": True},
        },
    }
    path = client_file(folder, tree)
    text, config = write_and_load(folder, path)
    assert config.servers == load_config(path, ENVIRON).servers
    assert [server.name for server in config.servers] == ["My_Server", "web", "off"]
    assert '"${API_KEY}"' in text
    assert '"${LEVEL:-low}"' in text
    assert '"https://a.example/${A}?q=${NOPE:-x}"' in text
    assert "from a file" not in text


def test_a_variable_that_a_server_sets_in_env_is_not_resolved(folder: Path) -> None:
    tree = {
        "mcpServers": {
            "tracker": {  # as in the README of mcp-remote
                "command": "npx",
                "args": ["mcp-remote", "https://a.example", "--header", "Authorization:${AUTH}"],
                "env": {"AUTH": "Bearer abc", "A": "${A}", "N": 5},
            },
            "shell": {"command": "x", "args": ["${A}", "${B:-b}"], "env": {"A": "${A}", "B": "c"}},
        }
    }
    path = client_file(folder, tree)
    text, config = write_and_load(folder, path)
    for servers in (config.servers, load_config(path, ENVIRON).servers):
        assert command_of(servers[0]).args[-1] == "Authorization:${AUTH}"
        assert command_of(servers[1]).args == (ENVIRON["A"], "b")
    assert '"Authorization:$${AUTH}"' in text


def test_a_secret_is_kept_with_a_hint_to_use_a_variable(folder: Path) -> None:
    tree = {
        "mcpServers": {
            "git": {"command": "x", "env": {"GIT_TOKEN": "abc", "SAFE_KEY": "${A}", "MODE": "a"}},
            "web": {"url": "https://a.example", "headers": {"authorization": "Bearer abc"}},
        }
    }
    text = to_toml(read_raw_config(client_file(folder, tree)))
    assert text.splitlines()[2:] == [
        "[servers.git]",
        'command = "x"',
        "",
        "[servers.git.env]",
        '# could be "${GIT_TOKEN}": then this file has no secret',
        'GIT_TOKEN = "abc"',
        'SAFE_KEY = "${A}"',
        'MODE = "a"',
        "",
        "[servers.web]",
        'url = "https://a.example"',
        "",
        "[servers.web.headers]",
        '# could be "${WEB_AUTHORIZATION}": then this file has no secret',
        'authorization = "Bearer abc"',
    ]


def test_the_written_file_names_its_source_on_one_line(folder: Path) -> None:
    path = client_file(folder, {"mcpServers": {}}, "odd\nname.json")
    assert to_toml(read_raw_config(path)).splitlines() == [f"# from {json.dumps(str(path))}"]


def test_several_files_are_merged_and_equal_servers_written_once(folder: Path) -> None:
    same = {"command": "x", "args": ["1"]}
    one = client_file(folder, {"mcpServers": {"a": same, "b": {"command": "y"}}}, "one.json")
    two = client_file(folder, {"servers": {"a": same, "b": {"command": "z"}}}, "two.json")
    three = client_file(folder, {"servers": {"b": {"command": "z"}, "a": same}}, "three.json")
    _, config = write_and_load(folder, one, two, three)
    assert [(s.name, command_of(s).command) for s in config.servers] == [
        ("a", "x"),
        ("b", "y"),
        ("b_2", "z"),
    ]


def test_a_trunkline_file_can_be_written_back(folder: Path) -> None:
    path = folder / "old" / "trunkline.toml"
    path.write_text(
        "[gateway]\nname = 'x'\nstrict_lifecycle = false\n"
        "[servers.a]\ncommand = '$$ ${A} $HOME $${'\ncwd = '~/x'\nprefix = ''\nmax_restarts = 3\n"
    )
    _, config = write_and_load(folder, path)
    assert config.servers == load_config(path, ENVIRON).servers
    assert config.gateway == load_config(path, ENVIRON).gateway


def test_the_gateway_table_comes_from_the_first_file(folder: Path) -> None:
    paths = [folder / "old" / "one.toml", folder / "old" / "two.toml"]
    for path in paths:
        path.write_text(f"gateway.name = '{path.stem}'")
    assert write_and_load(folder, *paths)[1].gateway.name == "one"


def test_a_reference_that_cannot_be_converted_is_kept(folder: Path) -> None:
    tree = {
        "inputs": [{"id": "odd", "default": "{}"}],
        "servers": {"a": {"command": "x", "args": ["${input:odd}", "${command:y}"]}},
    }
    text = to_toml(read_raw_config(client_file(folder, tree)))
    assert 'args = ["${ODD}", "${command:y}"]' in text
    (folder / "old" / "{}").mkdir(exist_ok=True)
    path = folder / "old" / "{}" / "mcp.json"
    path.write_text('{"servers": {"a": {"command": "${file:x}"}}}')
    assert 'command = "${file:x}"' in to_toml(read_raw_config(path))
    path.write_text('{"servers": {"a": {"command": "${file:~/x}"}}}')
    assert 'command = "${file:~/x}"' in to_toml(read_raw_config(path))


PIECES = st.sampled_from(
    '$ $$ { } ${A} ${env:A} ${NOPE:-$} ${EMPTY:-d} ${1} $A é \\ " ${/} ${userHome} '
    "${workspaceFolder} ${input:api-key} ${file:token}".split()
)
TEXTS = st.lists(PIECES, max_size=6).map("".join) | st.text(st.characters(codec="utf-8"))
ENTRIES = st.fixed_dictionaries(
    {"command": TEXTS},
    optional={
        "args": st.lists(TEXTS, max_size=3),
        "env": st.dictionaries(st.text("A =.é", min_size=1), TEXTS, max_size=3),
        "cwd": st.builds("{}{}".format, st.sampled_from(["/x", "sub/", "~/", "${HOME}"]), TEXTS),
        "disabled": st.booleans(),
        "timeout": st.floats(0.001, 86400) | st.integers(1, 86400),
    },
) | st.fixed_dictionaries(
    {"url": TEXTS.map("https://a.example/{}".format)},
    optional={"headers": st.dictionaries(st.sampled_from(["X-A", "Token"]), TEXTS)},
)


@settings(deadline=None)  # it writes files
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=50), ENTRIES, max_size=3))
@example({"a": {"url": "https://a.example/", "headers": {"X-A": "é${/}"}}})
def test_any_valid_file_loads_the_same_after_writing(folder: Path, servers: dict[str, Any]) -> None:
    path = client_file(folder, {"mcpServers": servers})
    try:
        expected = load_config(path, ENVIRON)
    except ConfigErrors:
        return
    try:
        _, config = write_and_load(folder, path)
    except ConfigErrors:
        # `${/}` is written as "/". A wrong value with it is then a mistake in the file.
        assert any(server.unresolved is not None for server in expected.servers)
        return
    for server, other in zip(config.servers, expected.servers, strict=True):
        # What is unresolved is spelled as in its own file.
        if other.unresolved is None:
            assert server == other
        assert (server.name, server.unresolved is None) == (other.name, other.unresolved is None)


def test_paths_in_the_http_table_are_written_as_absolute(folder: Path) -> None:
    old = folder / "old" / "trunkline.toml"
    for name in ("cert.pem", "key.pem"):
        (folder / "old" / name).touch()
    old.write_text(
        f'[http]\nlisten = "127.0.0.1:1"\nmax_body = 2048\ntls_cert = "cert.pem"\n'
        f'tls_key = "{folder}/old/key.pem"\nallowed_hosts = ["a.example"]'
    )
    _, config = write_and_load(folder, old)
    assert config.http == load_config(old, ENVIRON).http
    assert config.http.tls_cert == str(folder / "old" / "cert.pem")


def test_the_path_of_a_registry_is_written_as_absolute(folder: Path) -> None:
    old = folder / "old" / "trunkline.toml"
    old.write_text('[servers.books]\nbuiltin = "sources"\nregistry = "sub/books.json"')
    _, config = write_and_load(folder, old)
    assert config.servers == load_config(old, ENVIRON).servers
    assert settings_of(config.servers[0], BuiltinSettings).registry == str(
        folder / "old" / "sub" / "books.json"
    )


POLICY_AND_LIMITS = """\
[limits]
default_rpm = 5
[limits.tools]
"a__*" = 60
a__x = { rpm = 30, total_rpm = 300 }
[limits.subjects]

[roles.dev]
permissions = ["tools.read"]
[roles."on call"]

[[policy]]
deny = ["a__*", "b"]
servers = ["a"]
annotations = { readOnlyHint = false }
[[policy]]
allow = "*"
roles = ["dev"]
when = "has(args.x) && args.x == '\\"'"

[servers.a]
command = "x"
"""


def test_policy_and_limits_are_written_back(folder: Path) -> None:
    old = folder / "old" / "trunkline.toml"
    old.write_text(POLICY_AND_LIMITS)
    text, config = write_and_load(folder, old)
    expected = load_config(old, ENVIRON)
    assert config.limits == expected.limits
    assert (config.policy.roles, config.policy.rules) == (
        expected.policy.roles,
        expected.policy.rules,
    )
    assert "a__x = { rpm = 30, total_rpm = 300 }" in text
