"""`trunkline import`: find client configurations and write them as one file."""

import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import run
from tests.config.backend_settings import command_of, url_of
from trunkline.cli import import_files
from trunkline.config import load_config

FS = {"command": "fs-server", "args": ["/data"], "env": {"API_TOKEN": "hunter22"}}
SELF = {"command": "/opt/bin/trunkline", "args": ["serve", "--stdio"]}


def client_file(path: Path, **servers: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    project = tmp_path / "project"
    folder.mkdir()
    project.mkdir()
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "TRUNKLINE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.chdir(project)
    return folder


def test_import_writes_the_servers_of_all_clients_into_one_valid_file(
    home: Path, tmp_path: Path
) -> None:
    client_file(home / ".cursor" / "mcp.json", fs=FS)
    client_file(tmp_path / "project" / ".mcp.json", web={"url": "https://example.org/mcp"})
    result = run("import", "--write", "trunkline.toml")
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    assert "Cursor: " in result.stderr
    assert "wrote trunkline.toml, 2 servers" in result.stderr
    assert "hunter22" not in result.stderr
    target = tmp_path / "project" / "trunkline.toml"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    fs, web = load_config(target, {}).servers
    assert (fs.name, command_of(fs).env, url_of(web).url) == (
        "fs",
        FS["env"],
        "https://example.org/mcp",
    )
    assert [path.name for path in target.parent.iterdir() if "trunkline" in path.name] == [
        "trunkline.toml"
    ]


def test_equal_servers_are_imported_once(home: Path, tmp_path: Path) -> None:
    client_file(home / ".cursor" / "mcp.json", fs=FS)
    client_file(tmp_path / "project" / ".mcp.json", fs=FS)
    assert "wrote trunkline.toml, 1 server;" in run("import", "--write", "trunkline.toml").stderr


def test_without_a_target_the_configuration_is_printed(home: Path, tmp_path: Path) -> None:
    result = run("import", str(client_file(tmp_path / "c.json", fs=FS)))
    assert result.exit_code == 0
    (tmp_path / "new.toml").write_text(result.stdout)
    (fs,) = load_config(tmp_path / "new.toml", {}).servers
    assert command_of(fs).env == FS["env"]


def test_on_a_terminal_secret_values_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    import_files.run_import(client_file(tmp_path / "c.json", fs=FS), None, force=False)
    assert 'API_TOKEN = "…"' in terminal.getvalue()
    assert "hunter22" not in terminal.getvalue() + capsys.readouterr().err


OWN_CONFIG = """
[servers.a]
url = "https://x.example/mcp?token=hunter22"
[servers.a.oauth]
token_url = "https://id.example/token"
client_id = "me"
client_secret = "hunter22"
[servers.b]
command = "b"
args = ["--api-key=hunter22", "/data"]
[audit]
url = "postgresql://me:hunter22@db.example/j"
[traces]
endpoint = "http://127.0.0.1:4318"
headers = { authorization = "Bearer hunter22" }
[auth]
mode = "jwt"
[auth.jwt]
issuer = "i"
audience = "a"
secret_env = "SECRET_IS_HERE"
"""


def test_on_a_terminal_secrets_of_trunkline_files_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    source = tmp_path / "trunkline.toml"
    source.write_text(OWN_CONFIG)
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    import_files.run_import(source, None, force=False)
    shown = terminal.getvalue()
    assert "hunter22" not in shown
    for expected in (
        "x.example/mcp",
        "id.example/token",
        '"/data"',
        "SECRET_IS_HERE",
        "db.example",
    ):
        assert expected in shown
    assert "hunter22" in run("import", str(source)).stdout


def test_import_overwrites_an_existing_file_only_with_force(home: Path, tmp_path: Path) -> None:
    source = str(client_file(tmp_path / "c.json", fs=FS))
    target = tmp_path / "t.toml"
    target.write_text("mine")
    result = run("import", source, "--write", str(target))
    assert result.exit_code == 1
    assert f"{target} already exists; --force overwrites it" in result.stderr
    assert target.read_text() == "mine"
    assert run("import", source, "--write", str(target), "--force").exit_code == 0
    assert len(load_config(target, {}).servers) == 1


def test_import_keeps_a_file_that_was_created_after_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t.toml"
    target.write_text("mine")

    def always_missing(path: Path) -> bool:
        return False

    monkeypatch.setattr(Path, "exists", always_missing)
    with pytest.raises(SystemExit):
        import_files.write_config(target, "ours", force=False)
    assert target.read_text() == "mine"


def test_an_unwritable_target_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        import_files.write_config(tmp_path / "nowhere" / "t.toml", "x", force=False)
    assert error.value.code == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_import_leaves_out_the_gateway_itself(home: Path, tmp_path: Path) -> None:
    result = run("import", str(client_file(tmp_path / "c.json", us=SELF, fs=FS)))
    assert "left out: us, which is Trunkline itself: its command is this program" in result.stderr
    assert "[servers.us]" not in result.stdout
    assert "[servers.fs]" in result.stdout


@pytest.mark.parametrize(
    ("command", "is_own"),
    [
        (["trunkline", "serve"], True),
        (["uvx", "trunkline", "serve", "--stdio"], True),
        (["python", "-m", "trunkline", "serve"], True),
        (["trunkline", "check"], False),
        (["serve", "trunkline"], False),
    ],
)
def test_a_serve_command_is_recognised_as_the_gateway_itself(
    command: list[str], is_own: bool
) -> None:
    table = {"command": command[0], "args": command[1:]}
    assert (import_files.own_entry_reason("us", table, ()) is not None) is is_own


OWN: tuple[dict[str, str], ...] = (
    {},
    {"listen": "127.0.0.1:7000", "public_url": "https://home.example/tools", "ws_path": "/w"},
)


@pytest.mark.parametrize(
    ("name", "url", "is_own"),
    [
        ("any", "https://home.example/tools/mcp", True),  # the configured public address
        ("any", "https://home.example/other/mcp", False),
        ("trunkline", "http://127.0.0.1:8080/mcp", True),
        ("Trunkline", "http://localhost:9000/mcp", True),
        ("trunkline", "http://[::1]:8080/sse", True),
        ("any", "http://localhost:7000/elsewhere", True),  # the configured listen address
        ("other", "http://127.0.0.1:8080/mcp", False),
        ("trunkline", "http://127.0.0.1:8080/other", False),
        ("trunkline", "https://gateway.example/mcp", False),
        ("trunkline", "http://127.0.0.1:x/mcp", False),
    ],
)
def test_a_url_of_the_gateway_itself_is_recognised(name: str, url: str, is_own: bool) -> None:
    why = import_files.own_entry_reason(name, {"url": url}, OWN)
    assert (why is not None) is is_own


def test_the_entry_that_serve_prints_is_not_imported(home: Path) -> None:
    pasted = {"url": "http://127.0.0.1:8080/mcp"}
    client_file(home / ".cursor" / "mcp.json", trunkline=pasted, fs=FS)
    result = run("import")
    assert (
        "left out: trunkline, which is Trunkline itself: it has the name and url" in result.stderr
    )
    assert ("8080" in result.stdout, "[servers.fs]" in result.stdout) == (False, True)


@pytest.mark.parametrize("config_text", ["[http]\nlisten = '127.0.0.1:7000'", "nonsense"])
def test_a_url_at_the_configured_listen_address_is_not_imported(
    config_text: str, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "project" / "trunkline.toml").write_text(config_text)
    own_entry = {"url": "http://localhost:7000/mcp"}
    result = run("import", str(client_file(tmp_path / "c.json", me=own_entry, fs=FS)))
    assert result.exit_code == 0
    assert ("left out: me, which is Trunkline itself" in result.stderr) is (
        config_text != "nonsense"
    )


def test_an_unreadable_client_file_is_skipped_with_the_reason(home: Path) -> None:
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text("{")
    client_file(home / ".codeium" / "windsurf" / "mcp_config.json", fs=FS)
    result = run("import")
    assert result.exit_code == 0
    assert "mcp.json: left out" in result.stderr
    assert "[servers.fs]" in result.stdout


def test_a_server_with_errors_is_left_out_and_the_others_are_imported(home: Path) -> None:
    client_file(
        home / ".cursor" / "mcp.json", bad={"command": 3}, odd=1, kind={"type": "ws"}, fs=FS
    )
    result = run("import")
    assert result.exit_code == 0, result.stderr
    for place in ("bad.command: ", "odd: ", "kind.type: "):
        assert f"mcp.json:1: mcpServers.{place}" in result.stderr
    assert "[servers.fs]" in result.stdout
    assert result.stdout.count("[servers.") == 2  # and its env


def test_the_servers_of_codex_are_imported(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CODEX_HOME", raising=False)
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        """
model = "gpt-5"
[mcp_servers.fs]
command = "fs-server"
env_vars = ["API_TOKEN"]
[mcp_servers."my web"]
url = "https://web.example/mcp"
bearer_token_env_var = "WEB_TOKEN"
required = true
[projects."/p"]
trust_level = "trusted"
"""
    )
    result = run("import", "--write", "trunkline.toml")
    assert result.exit_code == 0, result.stderr
    assert "Codex: " in result.stderr
    assert 'config.toml:9: mcp_servers."my web".required: unknown key, ignored' in result.stderr
    environ = {"API_TOKEN": "a", "WEB_TOKEN": "w"}
    fs, web = load_config(tmp_path / "project" / "trunkline.toml", environ).servers
    assert command_of(fs).env == {"API_TOKEN": "a"}
    assert (web.name, url_of(web).headers) == ("my_web", {"Authorization": "Bearer w"})


def test_import_without_any_servers_exits_with_one(home: Path) -> None:
    result = run("import")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "trunkline: no servers were found in the files of MCP clients;"
        " name one with `trunkline import FILE`\n"
    )


def test_a_named_file_without_servers_is_named(tmp_path: Path) -> None:
    result = run("import", str(client_file(tmp_path / "c.json")))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(f"trunkline: no servers were found in {tmp_path / 'c.json'}\n")


@pytest.mark.parametrize("name", ["profile.yaml", "catalog.YML"])
def test_yaml_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("servers:\n  - type: image\n")
    result = run("import", str(tmp_path / name))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"trunkline: {tmp_path / name}: YAML cannot be read;"
        " export it as JSON, or write a trunkline.toml\n"
    )


def test_an_export_of_another_gateway_becomes_a_configuration(tmp_path: Path) -> None:
    export = {"entities": {"gateways": [{"name": "east", "url": "https://e.example/mcp"}]}}
    (tmp_path / "export.json").write_text(json.dumps(export))
    target = tmp_path / "trunkline.toml"
    assert run("import", str(tmp_path / "export.json"), "--write", str(target)).exit_code == 0
    (east,) = load_config(target, {}).servers
    assert (east.name, url_of(east).url) == ("east", "https://e.example/mcp")


def test_an_invalid_named_file_exits_with_two(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"mcpServers": {"a": {"command": 3}}}')
    result = run("import", str(bad))
    assert (result.exit_code, result.stdout) == (2, "")
    assert str(bad) in result.stderr
    result = run("import", "nofile")
    assert result.stderr == "trunkline: nofile: there is no such file; check the name\n"


def test_import_lists_the_variables_that_the_servers_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_HERE", "x")
    monkeypatch.delenv("NOT_HERE", raising=False)
    entry = {"command": "x", "args": ["${NOT_HERE}", "${OWN}"], "env": {"OWN": "1", "B": "${B:-}"}}
    web = {"url": "https://a.example", "headers": {"A": "${env:SET_HERE}", "C": "${input:a-key}"}}
    file = tmp_path / "client.json"
    servers = {"one": entry, "two": web, "three": {**web, "headers": {"X": "${NOT_HERE}"}}}
    inputs = [{"id": "a-key"}]
    file.write_text(json.dumps({"servers": servers, "inputs": inputs}))
    result = run("import", str(file))
    assert result.stderr.splitlines()[-4:] == [
        "set these variables before you start the gateway:",
        "  NOT_HERE, for one, three; not set here",
        "  SET_HERE, for two",
        "  A_KEY, for two; not set here",
    ]
