"""`trunkline import`: what is found, what is written, and what is never overwritten."""

import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import run
from trunkline.cli import import_files
from trunkline.config import load

FS = {"command": "fs-server", "args": ["/data"], "env": {"API_TOKEN": "hunter22"}}
US = {"command": "/opt/bin/trunkline", "args": ["serve", "--stdio"]}


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


def test_what_the_clients_have_becomes_one_file_that_loads(home: Path, tmp_path: Path) -> None:
    client_file(home / ".cursor" / "mcp.json", fs=FS)
    client_file(tmp_path / "project" / ".mcp.json", web={"url": "https://example.org/mcp"})
    done = run("import", "--write", "trunkline.toml")
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert "Cursor: " in done.stderr
    assert "wrote trunkline.toml, 2 servers" in done.stderr
    assert "hunter22" not in done.stderr
    target = tmp_path / "project" / "trunkline.toml"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    fs, web = load(target, {}).servers
    assert (fs.name, fs.env, web.url) == ("fs", FS["env"], "https://example.org/mcp")
    assert [path.name for path in target.parent.iterdir() if "trunkline" in path.name] == [
        "trunkline.toml"
    ]


def test_servers_that_are_equal_are_counted_once(home: Path, tmp_path: Path) -> None:
    client_file(home / ".cursor" / "mcp.json", fs=FS)
    client_file(tmp_path / "project" / ".mcp.json", fs=FS)
    assert "wrote trunkline.toml, 1 server;" in run("import", "--write", "trunkline.toml").stderr


def test_without_a_target_it_is_printed(home: Path, tmp_path: Path) -> None:
    done = run("import", "--from", str(client_file(tmp_path / "c.json", fs=FS)))
    assert done.exit_code == 0
    (tmp_path / "new.toml").write_text(done.stdout)
    (fs,) = load(tmp_path / "new.toml", {}).servers
    assert fs.env == FS["env"]


def test_on_a_terminal_no_value_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    import_files.import_files(client_file(tmp_path / "c.json", fs=FS), None, force=False)
    assert 'API_TOKEN = "…"' in terminal.getvalue()
    assert "hunter22" not in terminal.getvalue() + capsys.readouterr().err


OURS = """
[servers.a]
url = "https://x.example/mcp?token=hunter22"
[servers.a.oauth]
token_url = "https://id.example/token"
client_id = "me"
client_secret = "hunter22"
[servers.b]
command = "b"
args = ["--api-key=hunter22", "/data"]
[journal]
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


def test_on_a_terminal_no_secret_of_our_own_files_is_shown_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    source = tmp_path / "trunkline.toml"
    source.write_text(OURS)
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    import_files.import_files(source, None, force=False)
    shown = terminal.getvalue()
    assert "hunter22" not in shown
    for seen in ("x.example/mcp", "id.example/token", '"/data"', "SECRET_IS_HERE", "db.example"):
        assert seen in shown
    assert "hunter22" in run("import", "--from", str(source)).stdout


def test_a_file_that_is_there_is_kept_unless_forced(home: Path, tmp_path: Path) -> None:
    source = str(client_file(tmp_path / "c.json", fs=FS))
    target = tmp_path / "t.toml"
    target.write_text("mine")
    done = run("import", "--from", source, "--write", str(target))
    assert done.exit_code == 1
    assert f"{target} is there already; --force overwrites it" in done.stderr
    assert target.read_text() == "mine"
    assert run("import", "--from", source, "--write", str(target), "--force").exit_code == 0
    assert len(load(target, {}).servers) == 1


def test_a_file_that_appears_meanwhile_is_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t.toml"
    target.write_text("mine")

    def nowhere(path: Path) -> bool:
        return False

    monkeypatch.setattr(Path, "exists", nowhere)
    with pytest.raises(SystemExit):
        import_files.write(target, "ours", force=False)
    assert target.read_text() == "mine"


def test_a_place_where_nothing_can_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        import_files.write(tmp_path / "nowhere" / "t.toml", "x", force=False)
    assert caught.value.code == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_the_gateway_is_not_put_behind_itself(home: Path, tmp_path: Path) -> None:
    done = run("import", "--from", str(client_file(tmp_path / "c.json", us=US, fs=FS)))
    assert "left out: us, which is Trunkline itself: its command is this program" in done.stderr
    assert "[servers.us]" not in done.stdout
    assert "[servers.fs]" in done.stdout


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["trunkline", "serve"], True),
        (["uvx", "trunkline", "serve", "--stdio"], True),
        (["python", "-m", "trunkline", "serve"], True),
        (["trunkline", "check"], False),
        (["serve", "trunkline"], False),
    ],
)
def test_we_know_ourselves(words: list[str], ours: bool) -> None:
    table = {"command": words[0], "args": words[1:]}
    assert (import_files.why_ours("us", table, ()) is not None) is ours


@pytest.mark.parametrize(
    ("name", "url", "ours"),
    [
        ("trunkline", "http://127.0.0.1:8080/mcp", True),
        ("Trunkline", "http://localhost:9000/mcp", True),
        ("trunkline", "http://[::1]:8080/sse", True),
        ("any", "http://localhost:7000/elsewhere", True),  # where we are configured to listen
        ("other", "http://127.0.0.1:8080/mcp", False),
        ("trunkline", "http://127.0.0.1:8080/other", False),
        ("trunkline", "https://gateway.example/mcp", False),
        ("trunkline", "http://127.0.0.1:x/mcp", False),
    ],
)
def test_we_know_our_addresses_and_nobody_else_s(name: str, url: str, ours: bool) -> None:
    why = import_files.why_ours(name, {"url": url}, (None, "127.0.0.1:7000"))
    assert (why is not None) is ours


def test_what_serve_has_people_paste_is_not_imported(home: Path) -> None:
    pasted = {"url": "http://127.0.0.1:8080/mcp"}
    client_file(home / ".cursor" / "mcp.json", trunkline=pasted, fs=FS)
    done = run("import")
    assert "left out: trunkline, which is Trunkline itself: its name and its url" in done.stderr
    assert ("8080" in done.stdout, "[servers.fs]" in done.stdout) == (False, True)


@pytest.mark.parametrize("usual", ["[http]\nlisten = '127.0.0.1:7000'", "nonsense"])
def test_where_the_configuration_that_is_there_listens_is_not_imported(
    usual: str, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "project" / "trunkline.toml").write_text(usual)
    ours = {"url": "http://localhost:7000/mcp"}
    done = run("import", "--from", str(client_file(tmp_path / "c.json", me=ours, fs=FS)))
    assert done.exit_code == 0
    assert ("left out: me, which is Trunkline itself" in done.stderr) is (usual != "nonsense")


def test_a_file_that_cannot_be_read_is_left_out_with_the_reason(home: Path) -> None:
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text("{")
    client_file(home / ".codeium" / "windsurf" / "mcp_config.json", fs=FS)
    done = run("import")
    assert done.exit_code == 0
    assert "mcp.json: left out" in done.stderr
    assert "[servers.fs]" in done.stdout


def test_nothing_to_import_ends_with_one(home: Path) -> None:
    done = run("import")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "trunkline: no servers were found; name a file with --from FILE\n"


def test_a_bad_file_that_was_named_ends_with_two(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"mcpServers": {"a": {"command": 3}}}')
    done = run("import", "--from", str(bad))
    assert (done.exit_code, done.stdout) == (2, "")
    assert str(bad) in done.stderr
    done = run("import", "--from", "nofile")
    assert done.stderr == "trunkline: nofile: there is no such file; check the name\n"
