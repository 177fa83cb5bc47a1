"""Loading a file into a Config, or into the list of all its errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.backend_settings import command_of
from tests.documents.test_parser import DOCUMENTS
from tests.json_values import JSON
from tests.test_docs import blocks
from trunkline.backends.builtin import BuiltinSettings
from trunkline.backends.command import CommandSettings
from trunkline.backends.url import UrlSettings
from trunkline.config.gateway_tables import GatewaySettings
from trunkline.config.load import (
    MAX_CLIENT_FILE_BYTES,
    MAX_CONFIG_BYTES,
    load_config,
    read_raw_config,
)
from trunkline.config.model import Config
from trunkline.config.server_table import ServerSettings
from trunkline.documents.errors import ConfigErrors

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"

GOOD = """\
[gateway]
name = "home"
instructions = "Be kind."
strict_lifecycle = false

[servers.tracker]
url = "https://tracker.example/mcp"
headers = { Authorization = "Bearer ${TRACKER_TOKEN}" }
timeout = 5

[servers.fs]
command = "npx"
args = ["-y", "server-filesystem", "${DATA:-/data}"]
env.NODE_ENV = "production"
prefix = ""
protocol = "session"
max_restarts = 3

[servers.sources]
builtin = "sources"
disabled = true
"""

BAD = """\
[gateway]
nam = "home"

[servers.fs]
comand = "npx"
args = ["-y", 3]

[servers.tracker]
url = "tracker.example"
timeout = -1
headers.Authorization = "Bearer ${TRACKER_TOKEN}"
url = "https://tracker.example"

[servers.both]
command = "${ALSO_UNSET}"
url = "https://a.example"

[servers."no name"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


def write(folder: Path, text: str | bytes, name: str = "trunkline.toml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def errors_of(path: Path, **environ: str) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        load_config(path, environ)
    return [line.removeprefix(f"{path.parent}/") for line in str(raised.value).splitlines()]


def test_without_a_file_the_defaults_apply() -> None:
    assert load_config(None, {}) == Config()


def test_a_valid_file_is_loaded_with_its_servers_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    config = load_config(path, {"TRACKER_TOKEN": "abc"})
    assert config.gateway == GatewaySettings(
        name="home", instructions="Be kind.", strict_lifecycle=False
    )
    assert config.servers == (
        ServerSettings(
            name="tracker",
            backend=UrlSettings(
                url="https://tracker.example/mcp", headers={"Authorization": "Bearer abc"}
            ),
            timeout=5.0,
        ),
        ServerSettings(
            name="fs",
            backend=CommandSettings(
                command="npx",
                args=("-y", "server-filesystem", "/data"),
                env={"NODE_ENV": "production"},
                protocol="session",
            ),
            prefix="",
            max_restarts=3,
        ),
        ServerSettings(name="sources", backend=BuiltinSettings(builtin="sources"), disabled=True),
    )
    assert (config.source, config.notes) == (path, ())


@pytest.mark.holds("O0.4")
def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    assert errors_of(write(tmp_path, BAD)) == [
        'trunkline.toml:2: gateway.nam: unknown key; did you mean "name"?',
        'trunkline.toml:5: servers.fs.comand: unknown key; did you mean "command"?',
        "trunkline.toml:6: servers.fs.args[1]: expected text, got a whole number; put it in quotes",
        "trunkline.toml:9: servers.tracker.url: expected http:// or https:// and a host; "
        "write the whole address",
        "trunkline.toml:10: servers.tracker.timeout: expected more than 0 and at most 86400; "
        "choose another",
        "trunkline.toml:11: servers.tracker.headers.Authorization: the variable TRACKER_TOKEN is "
        "not set; set it, or write ${TRACKER_TOKEN:-default}",
        "trunkline.toml:12:1: servers.tracker.url: given twice, first on line 9; "
        "keep one of the two",
        "trunkline.toml:15: servers.both.command: the variable ALSO_UNSET is not set; "
        "set it, or write ${ALSO_UNSET:-default}",
        "trunkline.toml:16: servers.both.url: command and url are both given; "
        "keep one: they are different kinds of server",
        'trunkline.toml:18: servers."no name": expected 1 to 40 letters, digits, _ or -; '
        "choose another",
        'trunkline.toml:18: servers."no name": no command and no url; add command = "…" for a '
        'program, or url = "https://…" for a remote server',
    ]


@pytest.mark.holds("O0.4")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("command = 'x'", "1: command: unknown key; put it below [servers.NAME]"),
        ("[server.fs]", '1: server: unknown key; did you mean "servers"?'),
        ("[htp]", '1: htp: unknown key; did you mean "http"?'),
        (
            "[web]",
            "1: web: unknown key; known keys are gateway, http, kill_switch, auth, audit, "
            "limits, servers, metrics, traces, log, webhooks, roles, policy",
        ),
        ("servers = 3", "1: servers: expected a table; write [servers.NAME]"),
        ("[servers]\nfs = 3", "2: servers.fs: expected a table; write [servers.NAME]"),
        ("[[servers]]", "1: servers: expected a table; write [servers.NAME]"),
        (
            "gateway = 3",
            "1: gateway: expected a table, got a whole number; give it keys of its own",
        ),
        ("a = \n", "1:5: not TOML: invalid value; put text in quotes"),
        (b"\xff\xfe", "1: not UTF-8; save it as UTF-8"),
        (b"# fine\n# \xe9", "2: not UTF-8; save it as UTF-8"),
    ],
)
def test_an_error_is_reported_with_its_line_and_remedy(
    tmp_path: Path, text: str | bytes, error: str
) -> None:
    assert errors_of(write(tmp_path, text)) == [f"trunkline.toml:{error}"]


@pytest.mark.holds("O0.4")
def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    assert errors_of(tmp_path / "nope.toml") == [
        "nope.toml: there is no such file; check the name, or leave it out to start without servers"
    ]
    (tmp_path / "dir.toml").mkdir()
    assert errors_of(tmp_path / "dir.toml") == [
        "dir.toml: cannot be read: is a directory; check its name and its permissions"
    ]
    assert "not a file name" in errors_of(Path("a\0b"))[0]


def test_a_file_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    load_config(write(tmp_path, "#" * MAX_CONFIG_BYTES), {})
    assert errors_of(write(tmp_path, "#" * (MAX_CONFIG_BYTES + 1))) == [
        f"trunkline.toml: longer than {MAX_CONFIG_BYTES} bytes; is it the right file?"
    ]
    load_config(write(tmp_path, "{}" + " " * MAX_CONFIG_BYTES, ".claude.json"), {})
    assert len(errors_of(write(tmp_path, " " * (MAX_CLIENT_FILE_BYTES + 1), "x.json"))) == 1


def test_a_byte_order_mark_and_windows_line_endings_are_accepted(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf[servers.a]\r\ncommand = 'x'\r\nfoo = 1\r\n"
    (error,) = errors_of(write(tmp_path, text))
    assert error.startswith("trunkline.toml:3: servers.a.foo: unknown key")


@pytest.mark.parametrize("name", ["mcp.json", "MCP.JSON", "mcp.jsonc", "mcp.conf", "mcp"])
def test_a_client_file_is_recognised_by_its_name_or_content(tmp_path: Path, name: str) -> None:
    text = ' {"mcpServers": {"fs": {"command": "npx",}}} // x'
    config = load_config(write(tmp_path, text, name), {})
    assert config.servers == (ServerSettings(name="fs", backend=CommandSettings(command="npx")),)


def test_a_trunkline_file_may_have_any_name(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "[servers.fs]\ncommand = 'x'", "gateway.conf"), {})
    assert [server.name for server in config.servers] == ["fs"]


def test_a_vscode_file_loads_unchanged(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".env").write_text("FROM_FILE=1\n")
    text = """{
      // what VS Code writes
      "inputs": [{ "type": "promptString", "id": "api-key", "password": true },],
      "servers": {
        "My Files": {
          "type": "stdio",
          "command": "npx",
          "args": ["-y", "server", "${workspaceFolder}", "${userHome}/x"],
          "envFile": "${workspaceFolder}/.env",
          "env": { "KEY": "${input:api-key}", "PORT": 80 },
          "dev": { "watch": "src" }
        },
        "web": { "type": "http", "url": "https://a.example", "headers": { "X": "${env:X}" } },
      },
    }"""
    path = write(tmp_path / ".vscode", text, "mcp.json")
    config = load_config(path, {"API_KEY": "k", "HOME": "/home/me", "X": "x$$y"})
    assert config.servers == (
        ServerSettings(
            name="My_Files",
            backend=CommandSettings(
                command="npx",
                args=("-y", "server", str(tmp_path), "/home/me/x"),
                env_file=str(tmp_path / ".env"),
                env={"FROM_FILE": "1", "KEY": "k", "PORT": "80"},
            ),
            title="My Files",
        ),
        ServerSettings(
            name="web", backend=UrlSettings(url="https://a.example", headers={"X": "x$$y"})
        ),
    )
    assert config.notes == (f'{path}:11: servers."My Files".dev: unknown key, ignored',)


@pytest.mark.holds("O0.4")
def test_errors_in_a_client_file_use_its_own_key_names(tmp_path: Path) -> None:
    text = """{
      "mcpServers": {
        "a b": { "serverUrl": "ftp://x", "envFile": 3 },
        "c": { "command": ["x", "${NOPE}", 3] },
        "d": {},
        "d": { "command": 3 }
      }
    }"""
    assert [error.split(";")[0] for error in errors_of(write(tmp_path, text, "m.json"))] == [
        'm.json:3: mcpServers."a b".serverUrl: expected http:// or https:// and a host',
        "m.json:4: mcpServers.c.command[2]: expected text, got a whole number",
        "m.json:4: mcpServers.c.command[1]: the variable NOPE is not set",
        "m.json:6:9: mcpServers.d: given twice, first on line 5",
        "m.json:6: mcpServers.d.command: expected text, got a whole number",
    ]


def test_substituted_values_are_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cr3t\nX: y")
    text = """
    [servers.a]
    url = "${S}"
    headers = { A = "${file:token}", B = "${S} ${NOPE} ${file:nope}" }
    """
    (server,) = load_config(write(tmp_path, text), {"S": "s3cr3t"}).servers
    assert len((server.unresolved or "").split("; ")) == 8
    assert "s3cr3t" not in (server.unresolved or "")
    errors = errors_of(write(tmp_path, text + "[a]\n"), S="s3cr3t")
    assert len(errors) == 5
    assert "s3cr3t" not in "".join(errors)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ('command = "${NOPE}"', "command: the variable NOPE is not set"),
        ('url = "${NOPE}"', "url: the variable NOPE is not set"),
        ('url = "${HERE}"', "url: expected http:// or https:// and a host"),
        ('url = "https://a/"\nheaders = { A = "${NOPE}" }', "headers.A: the variable NOPE is not"),
        ('url = "https://a/"\nheaders = { A = "${file:no}" }', 'headers.A: the file "no" cannot'),
        ('command = "x"\nenv_file = "no.env"', 'env_file: the file "no.env" cannot be read'),
        (
            'command = "x"\nsandbox = { writable = ["${NOPE}"] }',
            "sandbox.writable[0]: the variable",
        ),
        (
            'command = "x"\nsandbox = { writable = ["${BLANK}"] }',
            "sandbox.writable[0]: it is blank",
        ),
    ],
)
def test_what_the_environment_lacks_concerns_one_server_only(
    lines: str, reason: str, tmp_path: Path
) -> None:
    file = write(tmp_path, f'[servers.a]\n{lines}\n[servers.b]\ncommand = "b"\n')
    broken, fine = load_config(file, {"HERE": "here", "BLANK": " "}).servers
    assert f"servers.a.{reason}" in (broken.unresolved or "")
    assert (broken.unresolved or "").startswith(f"{file}:")
    assert (fine.unresolved, command_of(fine).command) == (None, "b")


def test_every_reason_is_named_and_a_mistake_in_the_file_is_an_error(tmp_path: Path) -> None:
    text = '[servers.a]\ncommand = "${A}"\nargs = ["${B}"]\n'
    (server,) = load_config(write(tmp_path, text), {}).servers
    assert all(f"the variable {name} is not set" in (server.unresolved or "") for name in "AB")
    malformed = text.replace("${B}", "${B} ${")
    assert "expected ${VAR}" in "".join(errors_of(write(tmp_path, malformed)))
    (server,) = load_config(write(tmp_path, text + "disabled = true"), {}).servers
    assert server.unresolved is None


def test_a_raw_configuration_keeps_its_references(tmp_path: Path) -> None:
    raw_config = read_raw_config(write(tmp_path, GOOD))
    assert raw_config.tables["gateway"]["name"] == "home"
    assert raw_config.entries[0].table["headers"] == {"Authorization": "Bearer ${TRACKER_TOKEN}"}
    with pytest.raises(ConfigErrors):
        read_raw_config(write(tmp_path, BAD))
    client = {"mcpServers": {"a": {"command": "x", "odd": 1}}}
    assert len(read_raw_config(write(tmp_path, json.dumps(client), "m.json")).notes) == 1


def test_the_toml_examples_of_the_manual_load(tmp_path: Path) -> None:
    # tests/test_reference.py loads the example of each key.
    page = re.sub(
        r"^### `[\w.]+`\n.*?^(?=##)", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    (tmp_path / "tables.md").write_text(page)
    examples = blocks(tmp_path / "tables.md", "toml")
    assert len(examples) >= 8
    for line, text in examples:
        names = re.findall(r"\$\{([A-Z_]+)\}|_env = \"([A-Z_]+)\"", text)
        (tmp_path / ".env").touch()
        (tmp_path / "token").touch()
        config = load_config(write(tmp_path, text), dict.fromkeys(map("".join, names), "x" * 40))
        assert config.notes == (), line


def test_the_json_examples_of_the_manual_load(tmp_path: Path) -> None:
    for _, text in blocks(PAGE, "json"):
        config = load_config(write(tmp_path, text, "mcp.json"), {"API_KEY": "k"})
        assert config.servers


@pytest.mark.parametrize("key", ["command", "args", "env", "headers", "disabled", "x"])
def test_a_deeply_nested_value_is_an_ordinary_error(tmp_path: Path, key: str) -> None:
    for brackets in ("[]", "{}"):
        opening = '{"a":' if brackets == "{}" else "["
        value = opening * 900 + "1" + brackets[1] * 900
        text = f'{{"mcpServers": {{"a": {{"url": "http://a", "{key}": {value}}}}}}}'
        load_or_errors(write(tmp_path, text, "x.json"))


def load_or_errors(path: Path) -> Config | ConfigErrors:
    try:
        return load_config(path, {"A": "1"})
    except ConfigErrors as errors:
        assert errors.errors
        assert len(str(errors).splitlines()) == len(errors.errors)
        return errors


@settings(deadline=None)  # it writes files
@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_load_as_a_config_or_errors(folder: Path, data: bytes) -> None:
    for name in ("x.toml", "x.json", "x"):
        load_or_errors(write(folder, data, name))


@settings(deadline=None)  # it writes files
@given(st.sampled_from([GOOD, BAD]), st.integers(0), st.text(max_size=3), st.integers(0, 9))
def test_a_file_with_a_typo_loads_as_a_config_or_errors(
    folder: Path, text: str, at: int, new: str, cut: int
) -> None:
    at %= len(text)
    load_or_errors(write(folder, (text[:at] + new + text[at + cut :]).encode("utf-8", "replace")))


KEYS = st.sampled_from("command args env env_file cwd url headers prefix era timeout x".split())
VALUES = JSON | st.sampled_from(["${A}", "${", "$$", "http://a", ["${A}"], {"A": "${B}"}])
SERVERS = st.dictionaries(
    st.sampled_from(["a", "b c", ""]), st.dictionaries(KEYS, VALUES) | JSON, max_size=2
)


@settings(deadline=None)  # it writes files
@given(SERVERS, JSON)
def test_any_client_file_loads_as_a_config_or_errors(
    folder: Path, servers: dict[str, Any], inputs: Any
) -> None:
    tree = {"servers": servers, "inputs": inputs}
    load_or_errors(write(folder, json.dumps(tree), "x.json"))


@settings(deadline=None)  # it writes files
@given(DOCUMENTS.map(lambda text: re.sub(r"\ba\b", "servers", text)))
def test_any_toml_loads_as_a_config_or_errors(folder: Path, text: str) -> None:
    load_or_errors(write(folder, text))
