"""`trunkline client-config --write`: the settings file of a client, changed in place."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import OPERATOR, config, run
from trunkline.cli import client_settings
from trunkline.cli.client_apps import CLIENTS
from trunkline.cli.client_config import find_replaced_servers
from trunkline.cli.client_settings import merge_entry
from trunkline.config import read_raw_config

GATEWAY = """\
[http]
listen = "127.0.0.1:8080"
[servers.fs]
command = "npx"
args = ["-y", "server-filesystem", "/data"]
[servers.gh]
command = "uvx"
args = ["gh-server", "--token=${GH}"]
env = { ACCOUNT = "${ACCOUNT}" }
[servers.linear]
url = "https://mcp.linear.app/mcp"
[servers.off]
command = "off"
disabled = true
"""
AUTH = '[auth]\nmode = ["api_key"]\n'
URL = "http://127.0.0.1:8080/mcp"

FS = {"command": "npx", "args": ["-y", "server-filesystem", "/data"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home, which is the working folder, too."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "TRUNKLINE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder


def settings(home: Path, content: object, name: str = ".cursor/mcp.json") -> Path:
    file = home / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((content if isinstance(content, str) else json.dumps(content)).encode())
    return file


def servers(file: Path, member: str = "mcpServers") -> dict[str, Any]:
    return json.loads(file.read_text())[member]


def backups(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}.*.bak"))


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("stdio", [False, True])
def test_what_is_written_is_what_is_printed_and_a_second_run_changes_nothing(
    name: str, stdio: bool, home: Path, tmp_path: Path
) -> None:
    gateway, client = config(tmp_path, GATEWAY, AUTH), CLIENTS[name]
    options = ["--stdio"] if stdio else []
    printed = run("client-config", name, "--config", gateway, *options).stdout
    result = run("client-config", name, "--config", gateway, "--write", *options)
    assert result.exit_code == 0, result.output
    (file,) = (path for path in home.rglob("*") if path.is_file())
    assert result.stdout == f"added trunkline in {file}\n"
    parse = tomllib.loads if client.format == "toml" else json.loads
    assert parse(file.read_text()) == parse(printed)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    result = run("client-config", name, "--config", gateway, "--write", *options)
    assert (result.exit_code, result.stdout) == (0, f"{file} is up to date\n")
    assert "Restart" not in result.stderr
    assert (file.read_bytes(), backups(file)) == (before, [])


VS_CODE = """\
// my servers
{
\t"inputs": [
\t\t{ "id": "mine", "type": "promptString" }, // asked
\t],
\t"servers": {
\t\t// files
\t\t"fs": { "command": "npx", "args": ["-y", "server-filesystem", "/data"] },
\t\t/* kept */
\t\t"other": { "command": "x" }, // as it is
\t\t"gh": { "command": "uvx", "args": ["gh-server", "--token=s3cr3t-value"] }
\t}
}
"""


def test_everything_else_stays_and_old_entries_are_removed(home: Path, tmp_path: Path) -> None:
    gateway = config(tmp_path, GATEWAY, AUTH)
    file = settings(home, VS_CODE, ".config/Code/User/mcp.json")
    file.chmod(0o640)
    result = run("client-config", "vscode", "--config", gateway, "--write")
    (backup,) = backups(file)
    assert result.stdout.splitlines() == [
        f"added trunkline in {file}",
        "removed fs: servers.fs of the gateway has the same command",
        "removed gh: servers.gh of the gateway has the same command",
        f"backup: {backup}; to undo, copy it back",
    ]
    assert "Restart VS Code." in result.stderr
    assert "VS Code asks for a token or key" in result.stderr
    assert (
        file.read_text()
        == """\
// my servers
{
\t"inputs": [
\t\t{ "id": "mine", "type": "promptString" }, // asked
\t\t{
\t\t\t"type": "promptString",
\t\t\t"id": "trunkline-token",
\t\t\t"description": "Key of Trunkline",
\t\t\t"password": true
\t\t},
\t],
\t"servers": {
\t\t/* kept */
\t\t"other": { "command": "x" }, // as it is
\t\t"trunkline": {
\t\t\t"type": "http",
\t\t\t"url": "http://127.0.0.1:8080/mcp",
\t\t\t"headers": {
\t\t\t\t"Authorization": "Bearer ${input:trunkline-token}"
\t\t\t}
\t\t}
\t}
}
"""
    )
    assert (backup.read_text(), stat.S_IMODE(backup.stat().st_mode)) == (VS_CODE, 0o600)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_toml_settings_are_edited_too(home: Path, tmp_path: Path) -> None:
    text = (
        'model = "m" # mine\n\n# files\n[mcp_servers.fs]\ncommand = "npx"\n'
        'args = ["-y", "server-filesystem", "/data"]\n\n'
        '[mcp_servers.other] # kept\ncommand = "x"\n\n[tui]\ntheme = "dark"\n'
    )
    file = settings(home, text, ".codex/config.toml")
    gateway = config(tmp_path, GATEWAY, AUTH)
    assert run("client-config", "codex", "--config", gateway, "--write").exit_code == 0
    written = (
        'model = "m" # mine\n\n[mcp_servers.other] # kept\ncommand = "x"\n\n'
        f'[mcp_servers.trunkline]\nurl = "{URL}"\nbearer_token_env_var = "TRUNKLINE_TOKEN"\n\n'
        '[tui]\ntheme = "dark"\n'
    )
    assert file.read_text() == written
    settings(
        home, written.replace("url =", "startup_timeout_sec = 20\nurl ="), ".codex/config.toml"
    )
    result = run("client-config", "codex", "--config", gateway, "--write", "--stdio")
    assert result.stdout.startswith(f"updated trunkline in {file}\nit was: {URL}\nbackup: ")
    entry = tomllib.loads(file.read_text())["mcp_servers"]["trunkline"]
    assert (entry["startup_timeout_sec"], entry["env_vars"]) == (20, ["TRUNKLINE_TOKEN"])
    assert "url" not in entry
    assert len(backups(file)) == 2


def test_a_dry_run_shows_the_change_without_secrets_and_changes_nothing(
    home: Path, tmp_path: Path
) -> None:
    gh = {"command": "uvx", "args": ["gh-server", "--token=s3cr3t-value"]}
    headers = {"Authorization": "Bearer s3cr3t-header"}
    other = {"url": "https://other.example", "headers": headers}
    text = json.dumps({"mcpServers": {"gh": gh, "other": other}}, indent=2)
    file = settings(home, text)
    for options in (["--dry-run"], ["--write", "--dry-run"]):
        result = run("client-config", "cursor", "--config", config(tmp_path, GATEWAY), *options)
        assert result.exit_code == 0
        assert '-    "gh": {' in result.stdout
        assert '+    "trunkline": {' in result.stdout
        assert "s3cr3t" not in result.output
    assert (file.read_text(), backups(file)) == (text, [])


def test_old_entries_are_named_by_the_command_that_only_prints(home: Path, tmp_path: Path) -> None:
    file = settings(home, {"mcpServers": {"files": FS, "other": {"command": "x"}}})
    project = settings(home, {"mcpServers": {"files": FS}}, "p/.cursor/mcp.json")
    os.chdir(project.parents[1])
    gateway = config(tmp_path, GATEWAY)
    result = run("client-config", "cursor", "--config", gateway)
    for each in (file, project):
        assert f"Remove these entries from {each}, or their servers run twice:" in result.stderr
    assert result.stderr.count("  files: servers.fs of the gateway has the same command\n") == 2
    assert "other" not in result.stderr
    result = run("client-config", "cursor", "--config", gateway, "--write")
    assert "removed files:" in result.stdout
    # The project may be shared with others.
    assert f"Remove these entries from {project}, or" in result.stderr
    assert servers(project) == {"files": FS}
    assert find_replaced_servers(read_raw_config(Path(gateway))) == {}


def test_keep_leaves_the_old_entries_in_the_file(home: Path, tmp_path: Path) -> None:
    file = settings(home, {"mcpServers": {"fs": FS}})
    gateway = config(tmp_path, GATEWAY)
    result = run("client-config", "cursor", "--config", gateway, "--write", "--keep")
    assert servers(file) == {"fs": FS, "trunkline": {"url": URL}}
    assert f"Remove these entries from {file}, or" in result.stderr
    assert find_replaced_servers(read_raw_config(Path(gateway))) == {"cursor": ["fs"]}


@pytest.mark.parametrize(
    ("entry", "is_old"),
    [
        (FS, True),
        ({**FS, "env": {"X": "1"}}, True),
        ({**FS, "args": [*FS["args"], "/more"]}, False),
        ({**FS, "args": ["-y", "server-filesystem", "/home"]}, False),
        ({**FS, "disabled": True}, False),
        ({"command": "uvx", "args": ["gh-server", "--token=abc"]}, True),
        ({"command": "uvx", "args": ["gh-server", "--token=${env:GH}"]}, True),
        ({"command": "uvx", "args": ["gh-server", "--tok=abc"]}, False),
        ({"url": "https://mcp.linear.app/mcp/"}, True),
        ({"url": "https://mcp.linear.app/sse"}, False),
        ({"command": "off"}, False),  # disabled in the gateway
        ({"url": URL}, True),
        ({"command": "trunkline", "args": ["serve", "--config", "GATEWAY"]}, True),
        ({"command": "trunkline", "args": ["serve", "--config", "/other.toml"]}, False),
        ({"command": "trunkline", "args": ["serve", "--stdio"]}, False),
        ({"command": ["a", 1]}, False),
        ({}, False),
        ("x", False),
    ],
)
def test_an_entry_is_old_if_the_gateway_runs_the_same_server(
    entry: Any, is_old: bool, home: Path, tmp_path: Path
) -> None:
    gateway = config(tmp_path, GATEWAY)
    text = json.dumps({"mcpServers": {"each": entry}}).replace("GATEWAY", gateway)
    file = settings(home, text)
    result = run("client-config", "cursor", "--config", gateway, "--write")
    assert result.exit_code == 0, result.output
    assert ("each" not in servers(file)) is is_old


def test_two_accounts_of_one_service_are_two_servers(home: Path, tmp_path: Path) -> None:
    table = '[servers.work]\ncommand = "gh"\nenv = { TOKEN_NAME = "work" }\n'
    work, mine = ({"command": "gh", "env": {"TOKEN_NAME": each}} for each in ("work", "mine"))
    file = settings(home, {"mcpServers": {"work": work, "mine": mine}})
    run("client-config", "cursor", "--config", config(tmp_path, table), "--write")
    assert sorted(servers(file)) == ["mine", "trunkline"]


def test_what_import_made_of_the_entries_is_recognised(home: Path, tmp_path: Path) -> None:
    text = {
        "mcpServers": {
            "My files": {
                "command": "./bin/fs",
                "args": ["${workspaceFolder}/x"],
                "env": {"A": "1"},
            },
            "web": {"url": "https://web.example/mcp", "headers": {"X": "${env:X}"}},
        }
    }
    file = settings(home, text)
    target = tmp_path / "imported.toml"
    assert run("import", str(file), "--write", str(target)).exit_code == 0
    result = run("client-config", "cursor", "--config", str(target), "--write")
    assert list(servers(file)) == ["trunkline"], result.output


def test_servers_of_projects_in_the_settings_of_claude_code(home: Path, tmp_path: Path) -> None:
    projects: dict[str, Any] = {
        "/a": {"mcpServers": {"files": FS}, "history": [1]},
        "/b": {"mcpServers": {}},
    }
    file = settings(home, {"projects": projects, "numStartups": 3}, ".claude.json")
    gateway = config(tmp_path, GATEWAY)
    result = run("client-config", "claude-code", "--config", gateway, "--write")
    assert "removed files in the project /a: servers.fs of the gateway" in result.stdout
    assert json.loads(file.read_text()) == {
        "projects": {"/a": {"mcpServers": {}, "history": [1]}, "/b": {"mcpServers": {}}},
        "numStartups": 3,
        "mcpServers": {"trunkline": {"type": "http", "url": URL}},
    }


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (
            "cursor",
            '{\n  "a": 1\n  "b": 2\n}',
            ":3:3: not JSON: expecting ',' ",
        ),
        ("cursor", '{"a": 1, "a": 2}', ":1:10: a: given twice"),
        ("cursor", "[]", ":1: expected an object; put the settings in braces"),
        ("cursor", '{"mcpServers": []}', ":1: mcpServers: expected an object"),
        ("codex", "a = 1\nb =\n", ":2:"),
        ("codex", "mcp_servers = 1\n", ":1: mcp_servers: expected an object"),
    ],
)
def test_settings_that_are_not_valid_are_refused_and_not_touched(
    name: str, text: str, why: str, home: Path, tmp_path: Path
) -> None:
    file = settings(home, text, ".codex/config.toml" if name == "codex" else ".cursor/mcp.json")
    gateway = config(tmp_path, GATEWAY)
    result = run("client-config", name, "--config", gateway, "--write")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{file}{why}" in result.stderr
    assert (file.read_text(), backups(file)) == (text, [])
    assert run("client-config", name, "--config", gateway).exit_code == 0


def test_a_file_that_is_not_text_is_refused(home: Path, tmp_path: Path) -> None:
    file = settings(home, "")
    file.write_bytes(b'{"a": "\xff"}')
    result = run("client-config", "cursor", "--config", config(tmp_path, GATEWAY), "--write")
    assert (result.exit_code, file.read_bytes()) == (1, b'{"a": "\xff"}')
    assert f"{file}:1: not UTF-8" in result.stderr


def test_a_link_stays_a_link_and_line_ends_and_the_byte_order_mark_stay(
    home: Path, tmp_path: Path
) -> None:
    real = settings(home, '\ufeff{\r\n  "theme": "dark"\r\n}\r\n', "dotfiles/mcp.json")
    link = home / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to(real)
    result = run("client-config", "cursor", "--config", config(tmp_path, OPERATOR), "--write")
    assert result.exit_code == 0
    assert link.is_symlink()
    assert backups(real)
    written = real.read_bytes()
    assert written.startswith('\ufeff{\r\n  "theme": "dark",\r\n  "mcpServers": {\r\n'.encode())
    assert written.count(b"\n") == written.count(b"\r\n")


def test_a_link_to_itself_is_refused(home: Path, tmp_path: Path) -> None:
    link = home / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to(link)
    result = run("client-config", "cursor", "--config", config(tmp_path, OPERATOR), "--write")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"cannot change {link}: " in result.stderr


def test_another_settings_file_can_be_named(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    arguments = ("--config", config(tmp_path, GATEWAY), "--file", str(file))
    assert str(file) in run("client-config", "cursor", *arguments).stderr
    assert run("client-config", "cursor", *arguments, "--write").exit_code == 0
    assert servers(file) == {"trunkline": {"url": URL}}
    assert list(home.iterdir()) == []


def test_settings_that_the_client_writes_meanwhile_are_not_lost(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = settings(home, {"mcpServers": {}})
    edit = client_settings.edit_settings

    def edit_and_write(*arguments: Any) -> str:
        file.write_text('{"new": true}')
        return edit(*arguments)

    monkeypatch.setattr("trunkline.cli.client_config.edit_settings", edit_and_write)
    result = run("client-config", "cursor", "--config", config(tmp_path, GATEWAY), "--write")
    assert result.exit_code == 1
    assert "the client has just written it; close the client, and try again" in result.stderr
    assert (file.read_text(), backups(file)) == ('{"new": true}', [])


def test_two_backups_in_one_second_have_different_names(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fixed(_: str) -> str:
        return "20260101-000000"

    monkeypatch.setattr("trunkline.cli.client_settings.time.strftime", fixed)
    file = settings(home, {})
    for options in ([], ["--stdio"], []):
        arguments = ("--config", config(tmp_path, GATEWAY), "--write", *options)
        assert run("client-config", "cursor", *arguments).exit_code == 0
    names = [backup.name.removeprefix("mcp.json.20260101-000000") for backup in backups(file)]
    assert names == ["-2.bak", "-3.bak", ".bak"]


KEPT = {"Authorization": "Bearer tlk_mine"}
ASKED = {"Authorization": "Bearer ${env:TRUNKLINE_TOKEN}"}


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [
        ({"url": "a", "timeout": 5}, {"url": "b"}, {"url": "b", "timeout": 5}),
        ({"serverUrl": "a"}, {"url": "b"}, {"url": "b"}),
        (
            {"url": "a", "headers": KEPT},
            {"url": "b", "headers": ASKED},
            {"url": "b", "headers": KEPT},
        ),
        ({"url": "a", "headers": KEPT}, {"url": "b"}, {"url": "b", "headers": KEPT}),
        (
            {"url": "a", "headers": {"authorization": "x", "Y": "1"}},
            {"url": "b", "headers": ASKED},
            {"url": "b", "headers": {"authorization": "x", "Y": "1"}},
        ),
        (
            {"url": "a", "headers": {"Authorization": "Bearer PASTE-A-KEY-HERE"}},
            {"url": "b", "headers": ASKED},
            {"url": "b", "headers": ASKED},
        ),
        (
            {"url": "a", "headers": KEPT, "autoApprove": ["x"]},
            {"command": "t", "args": [], "env": {"TRUNKLINE_TOKEN": "${T}"}},
            {"autoApprove": ["x"], "command": "t", "args": [], "env": {"TRUNKLINE_TOKEN": "${T}"}},
        ),
        (
            {"command": "t", "env": {"TRUNKLINE_TOKEN": "tlk_mine", "A": "1"}, "cwd": "/x"},
            {"command": "t", "args": ["a"], "env": {"TRUNKLINE_TOKEN": "${T}"}},
            {
                "command": "t",
                "env": {"TRUNKLINE_TOKEN": "tlk_mine", "A": "1"},
                "cwd": "/x",
                "args": ["a"],
            },
        ),
        (
            {"command": "t", "env_vars": ["A"]},
            {"command": "t", "args": [], "env_vars": ["TRUNKLINE_TOKEN"]},
            {"command": "t", "env_vars": ["A", "TRUNKLINE_TOKEN"], "args": []},
        ),
        (
            {"command": "t", "env_vars": "ABC"},
            {"command": "t", "args": [], "env_vars": ["TRUNKLINE_TOKEN"]},
            {"command": "t", "env_vars": ["TRUNKLINE_TOKEN"], "args": []},
        ),
        (
            {"url": "a", "bearer_token_env_var": "MINE"},
            {"url": "a", "bearer_token_env_var": "TRUNKLINE_TOKEN"},
            {"url": "a", "bearer_token_env_var": "MINE"},
        ),
        (
            {"url": "a", "http_headers": {"Authorization": "x"}},
            {"url": "a", "bearer_token_env_var": "TRUNKLINE_TOKEN"},
            {"url": "a", "http_headers": {"Authorization": "x"}},
        ),
    ],
)
def test_an_updated_entry_keeps_its_token_and_the_keys_of_the_user(
    old: dict[str, Any], new: dict[str, Any], merged: dict[str, Any]
) -> None:
    found = merge_entry(old, new)
    assert found == merged
    assert list(found) == list(merged)
    assert merge_entry(found, new) == found
