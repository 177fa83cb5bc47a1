"""`trunkline client-config`: the snippet, and the place for it."""

import json
from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, config, run
from trunkline.cli import client_config
from trunkline.cli.client_config import CLIENTS, command_line, path_on
from trunkline.config import load

HOME = Path("/home/u")


@pytest.mark.parametrize("name", CLIENTS)
def test_the_snippet_of_every_client_is_a_configuration_that_we_read(
    name: str, tmp_path: Path
) -> None:
    file = config(tmp_path, OPERATOR)
    done = run("client-config", name, "--config", file)
    assert done.exit_code == 0
    assert str(client_config.config_path(CLIENTS[name])) in done.stderr
    (tmp_path / "client.json").write_text(done.stdout)
    (server,) = load(tmp_path / "client.json", {}).servers
    assert server.name == "trunkline"
    words = [server.command, *server.args]
    assert words == command_line(Path(file))
    assert words[-4:] == ["serve", "--stdio", "--config", file]
    assert Path(str(server.command)).is_absolute()


def test_vs_code_has_its_own_words(tmp_path: Path) -> None:
    done = run("client-config", "vscode", "--config", config(tmp_path))
    assert json.loads(done.stdout)["servers"]["trunkline"]["type"] == "stdio"


HTTP = '[http]\nlisten = "127.0.0.1:8080"\npath = "/here"'


def entry(stdout: str) -> dict[str, str]:
    ((_, servers),) = json.loads(stdout).items()
    return servers["trunkline"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("claude-code", {"type": "http", "url": "http://127.0.0.1:8080/here"}),
        ("cursor", {"url": "http://127.0.0.1:8080/here"}),
        ("vscode", {"type": "http", "url": "http://127.0.0.1:8080/here"}),
        ("windsurf", {"serverUrl": "http://127.0.0.1:8080/here"}),
    ],
)
def test_a_gateway_that_listens_is_come_to_by_its_url(
    name: str, said: dict[str, str], tmp_path: Path
) -> None:
    file = config(tmp_path, HTTP, OPERATOR)
    done = run("client-config", name, "--config", file)
    assert entry(done.stdout) == said
    assert "`trunkline serve` must be running at http://127.0.0.1:8080/here" in done.stderr
    (tmp_path / "client.json").write_text(done.stdout)
    assert [server.url for server in load(tmp_path / "client.json", {}).servers] == [
        "http://127.0.0.1:8080/here"
    ]
    done = run("client-config", name, "--config", file, "--stdio")
    assert entry(done.stdout)["args"][-4:] == ["serve", "--stdio", "--config", file]


def test_claude_desktop_starts_it_in_any_case(tmp_path: Path) -> None:
    file = config(tmp_path, HTTP, OPERATOR)
    done = run("client-config", "claude-desktop", "--config", file)
    assert entry(done.stdout)["args"][-4:] == ["serve", "--stdio", "--config", file]
    done = run("client-config", "claude-desktop", "--http", "http://127.0.0.1:8080/mcp")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "has no place for a url" in done.stderr


def test_a_url_can_be_given(tmp_path: Path) -> None:
    url = "https://gateway.example/mcp"
    done = run("client-config", "cursor", "--config", config(tmp_path, HTTP), "--http", url)
    assert entry(done.stdout) == {"url": url}
    done = run("client-config", "cursor", "--http", url, "--stdio")
    assert (done.exit_code, done.stdout) == (2, "")


@pytest.mark.parametrize("url", ["notaurl", "127.0.0.1:8080", "ws://127.0.0.1:8080/ws", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    done = run("client-config", "cursor", "--http", url)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("trunkline: --http: expected http:// or https:// and a host; ")


def test_a_port_that_is_not_known_before_is_no_url(tmp_path: Path) -> None:
    done = run("client-config", "cursor", "--config", config(tmp_path, HTTP.replace("8080", "0")))
    assert "command" in entry(done.stdout)


def test_with_a_certificate_the_url_is_https(tmp_path: Path) -> None:
    web = '[http]\nlisten = "[::1]:1"\ncertificate = "a"\nkey = "b"'
    done = run("client-config", "cursor", "--config", config(tmp_path, web))
    assert entry(done.stdout) == {"url": "https://[::1]:1/mcp"}


def test_a_bad_configuration_ends_with_two_and_all_that_is_wrong(tmp_path: Path) -> None:
    done = run("client-config", "cursor", "--config", config(tmp_path, "a = 1\nb = 2"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 2


def test_without_a_configuration_the_default_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRUNKLINE_CONFIG", raising=False)
    done = run("client-config", "cursor")
    assert json.loads(done.stdout)["mcpServers"]["trunkline"]["args"][-2:] == ["serve", "--stdio"]


def test_an_unknown_client_is_answered_with_those_that_are_known() -> None:
    done = run("client-config", "emacs")
    assert (done.exit_code, done.stdout) == (2, "")
    for name in CLIENTS:
        assert name in done.stderr


def test_a_configuration_that_is_not_there_ends_with_two() -> None:
    done = run("client-config", "cursor", "--config", "/nonexistent.toml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "/nonexistent.toml: there is no such file" in done.stderr


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
def test_every_system_has_its_places(
    platform: str, name: str, environ: dict[str, str], path: str
) -> None:
    assert path_on(platform, CLIENTS[name], HOME, environ) == Path(path)


def test_the_program_is_named_by_the_path_that_it_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").touch(mode=0o755)
    (tmp_path / "trunkline").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["./trunkline"])
    assert command_line(None) == [str(tmp_path / "trunkline"), "serve", "--stdio"]


def test_a_python_without_the_program_beside_it_runs_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = str(tmp_path / "python")
    monkeypatch.setattr("sys.argv", ["/x/trunkline/__main__.py"])
    monkeypatch.setattr("sys.executable", python)
    assert command_line(None) == [python, "-m", "trunkline", "serve", "--stdio"]
