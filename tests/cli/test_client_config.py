"""`trunkline client-config`: the configuration snippet, and the file it belongs in."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import OPERATOR, config, run
from tests.config.backend_settings import command_of, url_of
from trunkline.cli.client_apps import CLIENTS, serve_command, settings_path, settings_paths_on
from trunkline.config import ServerSettings, load_config

HOME = Path("/home/u")


def loaded(name: str, text: str, folder: Path) -> tuple[ServerSettings, ...]:
    """Return the servers in settings of a client."""
    client = CLIENTS[name]
    tree = tomllib.loads(text) if client.format == "toml" else json.loads(text)
    file = folder / "client.json"
    inputs = {"inputs": tree["inputs"]} if "inputs" in tree else {}
    file.write_text(json.dumps({"mcpServers": tree[client.member], **inputs}))
    return load_config(file, {"TRUNKLINE_TOKEN": "x"}).servers


@pytest.mark.holds("O4.3")
@pytest.mark.parametrize("name", CLIENTS)
def test_the_snippet_of_every_client_loads_as_a_configuration(name: str, tmp_path: Path) -> None:
    file = config(tmp_path, OPERATOR)
    result = run("client-config", name, "--config", file)
    assert result.exit_code == 0
    assert str(settings_path(CLIENTS[name])) in result.stderr
    (server,) = loaded(name, result.stdout, tmp_path)
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


def entry_of(name: str, stdout: str) -> dict[str, Any]:
    """Return the entry in a printed snippet."""
    client = CLIENTS[name]
    tree = tomllib.loads(stdout) if client.format == "toml" else json.loads(stdout)
    return tree[client.member]["trunkline"]


def entry(stdout: str) -> dict[str, Any]:
    return entry_of("cursor", stdout)


URL = "http://127.0.0.1:8080/here"
HAVE_URLS = [name for name, client in CLIENTS.items() if client.url_key is not None]


@pytest.mark.holds("O4.3")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claude-code", {"type": "http", "url": URL}),
        ("cursor", {"url": URL}),
        ("vscode", {"type": "http", "url": URL}),
        ("windsurf", {"serverUrl": URL}),
        ("zed", {"url": URL}),
        ("codex", {"url": URL}),
        ("gemini-cli", {"httpUrl": URL}),
        ("cline", {"type": "streamableHttp", "url": URL}),
        ("roo-code", {"type": "streamable-http", "url": URL}),
    ],
)
def test_the_snippet_for_a_listening_gateway_has_its_url(
    name: str, expected: dict[str, str], tmp_path: Path
) -> None:
    file = config(tmp_path, HTTP, OPERATOR)
    result = run("client-config", name, "--config", file)
    assert entry_of(name, result.stdout) == expected
    assert "`trunkline serve` must be running at http://127.0.0.1:8080/here" in result.stderr
    (server,) = loaded(name, result.stdout, tmp_path)
    assert url_of(server).url == URL
    result = run("client-config", name, "--config", file, "--stdio")
    assert entry_of(name, result.stdout)["args"][-4:] == ["serve", "--stdio", "--config", file]


def test_every_client_with_urls_is_tested() -> None:
    assert sorted(HAVE_URLS) == sorted(set(CLIENTS) - {"claude-desktop"})


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


MAC = "/home/u/Library/Application Support"


@pytest.mark.parametrize(
    ("platform", "name", "environ", "path"),
    [
        ("linux", "vscode", {}, "/home/u/.config/Code/User/mcp.json"),
        ("linux", "vscode", {"XDG_CONFIG_HOME": "/x"}, "/x/Code/User/mcp.json"),
        ("linux", "claude-code", {}, "/home/u/.claude.json"),
        ("linux", "claude-code", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json"),
        ("linux", "codex", {}, "/home/u/.codex/config.toml"),
        ("linux", "codex", {"CODEX_HOME": "/c"}, "/c/config.toml"),
        ("linux", "gemini-cli", {}, "/home/u/.gemini/settings.json"),
        ("linux", "zed", {"XDG_CONFIG_HOME": "/x"}, "/x/zed/settings.json"),
        ("darwin", "zed", {"XDG_CONFIG_HOME": "/x"}, "/home/u/.config/zed/settings.json"),
        ("win32", "zed", {"APPDATA": "/a"}, "/a/Zed/settings.json"),
        ("linux", "cline", {}, "/home/u/.cline/data/settings/cline_mcp_settings.json"),
        (
            "darwin",
            "roo-code",
            {},
            f"{MAC}/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        ),
        ("win32", "claude-desktop", {"APPDATA": "/a"}, "/a/Claude/claude_desktop_config.json"),
        ("win32", "windsurf", {}, "/home/u/.codeium/windsurf/mcp_config.json"),
        ("darwin", "claude-desktop", {}, f"{MAC}/Claude/claude_desktop_config.json"),
    ],
)
def test_each_platform_has_its_own_settings_paths(
    platform: str, name: str, environ: dict[str, str], path: str
) -> None:
    assert settings_paths_on(platform, CLIENTS[name], HOME, environ)[0] == Path(path)


def test_of_several_settings_files_the_first_that_exists_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    first, second = settings_paths_on("linux", CLIENTS["cline"], tmp_path, {})
    monkeypatch.setattr("sys.platform", "linux")
    assert settings_path(CLIENTS["cline"]) == first
    second.parent.mkdir(parents=True)
    second.touch()
    assert settings_path(CLIENTS["cline"]) == second


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


SET = "Set TRUNKLINE_TOKEN to a token or key where"
PASTE = "Replace PASTE-A-KEY-HERE by a token or key"


@pytest.mark.parametrize(
    ("name", "token", "help_text"),
    [
        ("claude-desktop", "PASTE-A-KEY-HERE", PASTE),
        ("claude-code", "${TRUNKLINE_TOKEN}", f"{SET} Claude Code runs"),
        ("cursor", "${env:TRUNKLINE_TOKEN}", f"{SET} Cursor runs"),
        ("windsurf", "${env:TRUNKLINE_TOKEN}", f"{SET} Windsurf runs"),
        ("vscode", "${input:trunkline-token}", "VS Code asks for a token or key"),
        ("zed", "PASTE-A-KEY-HERE", PASTE),
        ("gemini-cli", "${TRUNKLINE_TOKEN}", f"{SET} Gemini CLI runs"),
        ("cline", "${env:TRUNKLINE_TOKEN}", f"{SET} Cline runs"),
        ("roo-code", "PASTE-A-KEY-HERE", PASTE),
        ("codex", None, f"{SET} Codex runs"),
    ],
)
def test_with_auth_the_entry_has_a_token(
    name: str, token: str | None, help_text: str, tmp_path: Path
) -> None:
    file = config(tmp_path, HTTP, AUTH)
    if name in HAVE_URLS:
        result = run("client-config", name, "--config", file)
        found = entry_of(name, result.stdout)
        if token is None:
            assert found["bearer_token_env_var"] == "TRUNKLINE_TOKEN"
        else:
            assert found["headers"] == {"Authorization": f"Bearer {token}"}
        assert help_text in result.stderr
        assert ("trunkline-token" in result.stdout) is (name == "vscode")
        assert not loaded(name, result.stdout, tmp_path)[0].disabled
    result = run("client-config", name, "--config", file, "--stdio")
    found = entry_of(name, result.stdout)
    if token is None:
        assert found["env_vars"] == ["TRUNKLINE_TOKEN"]
    else:
        assert found["env"] == {"TRUNKLINE_TOKEN": token}
    assert help_text in result.stderr
    assert "`trunkline key add NAME --role ROLE` creates a key" in result.stderr


def test_with_tokens_only_the_help_names_no_keys(tmp_path: Path) -> None:
    jwt = '[auth.jwt]\nsecret_env = "SECRET"\n[http]\nlisten = "127.0.0.1:8080"\n'
    result = run("client-config", "cursor", "--config", config(tmp_path, jwt))
    assert "`trunkline token mint`, or your issuer, creates a token" in result.stderr
    assert "key add" not in result.stderr


def test_the_help_names_every_client() -> None:
    words = run("client-config", "--help").stdout.replace(",", " ").replace(".", " ").split()
    assert [name for name in CLIENTS if name not in words] == []


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
