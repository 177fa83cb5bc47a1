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
