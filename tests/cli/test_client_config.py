"""`trunkline client-config`: the configuration snippet, and the file it belongs in."""

import json
from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, config, run
from tests.config.backend_settings import command_of, url_of
from trunkline.cli import client_config
from trunkline.cli.client_config import CLIENTS, serve_command, settings_path_on
from trunkline.config import load_config

HOME = Path("/home/u")


@pytest.mark.holds("O4.3")
@pytest.mark.parametrize("name", CLIENTS)
def test_the_snippet_of_every_client_loads_as_a_configuration(name: str, tmp_path: Path) -> None:
    file = config(tmp_path, OPERATOR)
    result = run("client-config", name, "--config", file)
    assert result.exit_code == 0
    assert str(client_config.settings_path(CLIENTS[name])) in result.stderr
    (tmp_path / "client.json").write_text(result.stdout)
    (server,) = load_config(tmp_path / "client.json", {}).servers
    assert server.name == "trunkline"
    settings = command_of(server)
    command = [settings.command, *settings.args]
    assert command == serve_command(Path(file))
    assert command[-4:] == ["serve", "--stdio", "--config", file]
    assert Path(settings.command).is_absolute()


def test_vs_code_uses_its_own_keys(tmp_path: Path) -> None:
    result = run("client-config", "vscode", "--config", config(tmp_path))
    assert json.loads(result.stdout)["servers"]["trunkline"]["type"] == "stdio"


HTTP = '[http]\nlisten = "127.0.0.1:8080"\npath = "/here"'


def entry(stdout: str) -> dict[str, str]:
    ((_, servers),) = json.loads(stdout).items()
    return servers["trunkline"]


@pytest.mark.holds("O4.3")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claude-code", {"type": "http", "url": "http://127.0.0.1:8080/here"}),
        ("cursor", {"url": "http://127.0.0.1:8080/here"}),
        ("vscode", {"type": "http", "url": "http://127.0.0.1:8080/here"}),
        ("windsurf", {"serverUrl": "http://127.0.0.1:8080/here"}),
    ],
)
def test_the_snippet_for_a_listening_gateway_has_its_url(
    name: str, expected: dict[str, str], tmp_path: Path
) -> None:
    file = config(tmp_path, HTTP, OPERATOR)
    result = run("client-config", name, "--config", file)
    assert entry(result.stdout) == expected
    assert "`trunkline serve` must be running at http://127.0.0.1:8080/here" in result.stderr
    (tmp_path / "client.json").write_text(result.stdout)
    (server,) = load_config(tmp_path / "client.json", {}).servers
    assert url_of(server).url == "http://127.0.0.1:8080/here"
    result = run("client-config", name, "--config", file, "--stdio")
    assert entry(result.stdout)["args"][-4:] == ["serve", "--stdio", "--config", file]


def test_claude_desktop_always_starts_the_gateway_over_stdio(tmp_path: Path) -> None:
    file = config(tmp_path, HTTP, OPERATOR)
    result = run("client-config", "claude-desktop", "--config", file)
    assert entry(result.stdout)["args"][-4:] == ["serve", "--stdio", "--config", file]
    result = run("client-config", "claude-desktop", "--http", "http://127.0.0.1:8080/mcp")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot contain a url" in result.stderr


def test_the_http_option_sets_the_url(tmp_path: Path) -> None:
    url = "https://gateway.example/mcp"
    result = run("client-config", "cursor", "--config", config(tmp_path, HTTP), "--http", url)
    assert entry(result.stdout) == {"url": url}
    result = run("client-config", "cursor", "--http", url, "--stdio")
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("url", ["notaurl", "127.0.0.1:8080", "ws://127.0.0.1:8080/ws", "http://"])
def test_an_invalid_url_is_refused(url: str) -> None:
    result = run("client-config", "cursor", "--http", url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("trunkline: --http: expected http:// or https:// and a host; ")


def test_with_port_zero_the_snippet_has_a_command_instead_of_a_url(tmp_path: Path) -> None:
    result = run("client-config", "cursor", "--config", config(tmp_path, HTTP.replace("8080", "0")))
    assert "command" in entry(result.stdout)


def test_with_a_certificate_the_url_is_https(tmp_path: Path) -> None:
    web = '[http]\nlisten = "[::1]:1"\ntls_cert = "a"\ntls_key = "b"'
    result = run("client-config", "cursor", "--config", config(tmp_path, web))
    assert entry(result.stdout) == {"url": "https://[::1]:1/mcp"}


def test_an_invalid_configuration_exits_with_two_and_lists_every_error(tmp_path: Path) -> None:
    result = run("client-config", "cursor", "--config", config(tmp_path, "a = 1\nb = 2"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 2


def test_without_a_configuration_the_default_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRUNKLINE_CONFIG", raising=False)
    result = run("client-config", "cursor")
    assert json.loads(result.stdout)["mcpServers"]["trunkline"]["args"][-2:] == ["serve", "--stdio"]


def test_an_unknown_client_is_refused_with_the_known_ones() -> None:
    result = run("client-config", "emacs")
    assert (result.exit_code, result.stdout) == (2, "")
    for name in CLIENTS:
        assert name in result.stderr


def test_a_missing_configuration_file_exits_with_two() -> None:
    result = run("client-config", "cursor", "--config", "/nonexistent.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "/nonexistent.toml: there is no such file" in result.stderr


@pytest.mark.parametrize(
    ("platform", "name", "environ", "path"),
    [
        ("linux", "vscode", {}, "/home/u/.config/Code/User/mcp.json"),
        ("linux", "vscode", {"XDG_CONFIG_HOME": "/x"}, "/x/Code/User/mcp.json"),
        ("linux", "claude-code", {}, "/home/u/.claude.json"),
        ("linux", "claude-code", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json"),
        ("win32", "claude-desktop", {"APPDATA": "/a"}, "/a/Claude/claude_desktop_config.json"),
        ("win32", "windsurf", {}, "/home/u/.codeium/windsurf/mcp_config.json"),
        (
            "darwin",
            "claude-desktop",
            {},
            "/home/u/Library/Application Support/Claude/claude_desktop_config.json",
        ),
    ],
)
def test_each_platform_has_its_own_settings_paths(
    platform: str, name: str, environ: dict[str, str], path: str
) -> None:
    assert settings_path_on(platform, CLIENTS[name], HOME, environ) == Path(path)


def test_the_snippet_names_the_path_the_program_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").touch(mode=0o755)
    (tmp_path / "trunkline").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["./trunkline"])
    assert serve_command(None) == [str(tmp_path / "trunkline"), "serve", "--stdio"]


def test_without_an_installed_program_the_snippet_runs_the_python_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = str(tmp_path / "python")
    monkeypatch.setattr("sys.argv", ["/x/trunkline/__main__.py"])
    monkeypatch.setattr("sys.executable", python)
    assert serve_command(None) == [python, "-m", "trunkline", "serve", "--stdio"]


AUTH = '[auth]\nmode = ["api_key"]\n'
OPEN = '[http]\nlisten = "0.0.0.0:8080"\ntls_cert = "a"\ntls_key = "b"'


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("claude-code", "${TRUNKLINE_TOKEN}"),
        ("cursor", "${env:TRUNKLINE_TOKEN}"),
        ("windsurf", "${env:TRUNKLINE_TOKEN}"),
        ("vscode", "${input:trunkline-token}"),
    ],
)
def test_with_auth_the_entry_has_a_token(name: str, token: str, tmp_path: Path) -> None:
    file = config(tmp_path, HTTP, AUTH)
    found = json.loads(run("client-config", name, "--config", file).stdout)
    servers = found.get("mcpServers") or found["servers"]
    assert servers["trunkline"]["headers"] == {"Authorization": f"Bearer {token}"}
    assert [each["id"] for each in found.get("inputs", [])] == (
        ["trunkline-token"] if name == "vscode" else []
    )
    result = run("client-config", name, "--config", file, "--stdio")
    found = json.loads(result.stdout)
    servers = found.get("mcpServers") or found["servers"]
    assert servers["trunkline"]["env"] == {"TRUNKLINE_TOKEN": token}
    assert "`trunkline key add NAME --role ROLE` creates a key" in result.stderr


def test_claude_desktop_needs_the_key_itself(tmp_path: Path) -> None:
    result = run("client-config", "claude-desktop", "--config", config(tmp_path, AUTH))
    assert entry(result.stdout)["env"] == {"TRUNKLINE_TOKEN": "PASTE-A-KEY-HERE"}
    assert "Replace PASTE-A-KEY-HERE by a token or key" in result.stderr


def test_the_url_is_one_that_clients_can_reach(tmp_path: Path) -> None:
    resource = AUTH + 'resource = "https://gateway.example/mcp"\n'
    public = 'public_url = "https://public.example/tools/"\npath = "/m"'
    for tables, url in (
        ((OPEN, AUTH), "https://127.0.0.1:8080/mcp"),
        ((OPEN.replace("0.0.0.0", "[::]"), AUTH), "https://[::1]:8080/mcp"),
        ((OPEN, resource), "https://gateway.example/mcp"),
        ((f"{OPEN}\n{public}", resource), "https://public.example/tools/m"),
        ((f"[http]\n{public}",), "https://public.example/tools/m"),  # mounted: no `listen`
    ):
        result = run("client-config", "cursor", "--config", config(tmp_path, *tables))
        assert json.loads(result.stdout)["mcpServers"]["trunkline"]["url"] == url
