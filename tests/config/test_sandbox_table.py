"""Loading and validating `[servers.NAME.sandbox]`."""

import json
from pathlib import Path

import pytest

from tests.config.backend_settings import command_of
from tests.config.test_oauth_table import errors_of, read
from trunkline.config.diff import compare_configs
from trunkline.config.load import load_config, read_raw_config
from trunkline.config.write_toml import to_toml
from trunkline.stdio.sandbox import SandboxSettings

SERVER = '[servers.fs]\ncommand = "fs"\n'
SANDBOX = "[servers.fs.sandbox]\n"


def sandbox_of(folder: Path, text: str, **environ: str) -> SandboxSettings | None:
    (server,) = read(folder, SERVER + text, **environ).servers
    return command_of(server).sandbox


def test_without_the_table_there_is_no_sandbox(tmp_path: Path) -> None:
    assert sandbox_of(tmp_path, "") is None
    assert sandbox_of(tmp_path, SANDBOX) == SandboxSettings()


def test_paths_are_relative_to_the_file_and_may_have_references(tmp_path: Path) -> None:
    lists = 'read_only = ["a/../b", "~/c", "${DATA}/d"]\nwritable = ["/e/", "."]\nuser = "${WHO}"'
    found = sandbox_of(tmp_path, SANDBOX + lists, HOME="/home/me", DATA="/data", WHO="mcp")
    assert found is not None
    assert found.read_only == (f"{tmp_path}/b", "/home/me/c", "/data/d")
    assert found.writable == ("/e", str(tmp_path))
    assert found.user == "mcp"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('reed_only = ["/a"]', 'sandbox.reed_only: unknown key; did you mean "read_only"?'),
        ("memory_mib = 1", "sandbox.memory_mib: expected at least 32"),
        ("processes = 0", "sandbox.processes: expected at least 1"),
        ('user = "a b"', "sandbox.user: expected a user, by name or number"),
        ('read_only = "/a"', "sandbox.read_only: expected a list, got text"),
        ('writable = [" "]', "sandbox.writable[0]: it is blank"),
        (
            'read_only = ["/a"]\nwritable = ["/b", "/a/"]',
            "sandbox.writable[1]: the same path is listed before; keep one of the two",
        ),
        (
            "no_new_privs = false\nnetwork = false",
            "sandbox.no_new_privs: network cannot be enforced for programs that gain privileges",
        ),
        ("no_new_privs = false\nwritable = []", "sandbox.no_new_privs: writable cannot be"),
    ],
)
def test_mistakes_are_reported(line: str, message: str, tmp_path: Path) -> None:
    (error,) = errors_of(tmp_path, SERVER + SANDBOX + line)
    assert message in error


def test_only_a_command_has_a_sandbox(tmp_path: Path) -> None:
    text = '[servers.web]\nurl = "https://a.example/mcp"\n[servers.web.sandbox]\n'
    (error,) = errors_of(tmp_path, text)
    assert "servers.web.sandbox: belongs to a server with a command; leave it out" in error


def test_a_changed_sandbox_restarts_the_server(tmp_path: Path) -> None:
    old, new = (read(tmp_path, SERVER + SANDBOX + f"memory_mib = {n}") for n in (64, 65))
    assert compare_configs(old, new).restarted == {"fs": ("sandbox",)}


def test_a_written_sandbox_has_absolute_paths(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    sandbox = SANDBOX + 'read_only = ["data", "~/x", "${DATA}/y"]\nnetwork = false\n'
    file.write_text(SERVER + sandbox + '[servers.empty]\ncommand = "e"\n[servers.empty.sandbox]\n')
    (tmp_path / "new").mkdir()
    copy = tmp_path / "new" / "trunkline.toml"
    copy.write_text(to_toml(read_raw_config(file)))
    environ = {"HOME": "/home/me", "DATA": "/data"}
    assert load_config(copy, environ).servers == load_config(file, environ).servers


def test_the_sandbox_of_a_client_is_noted_and_ignored(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"servers": {"fs": {"command": "fs", "sandbox": {"x": 1}}}}))
    config = load_config(file, {})
    assert command_of(config.servers[0]).sandbox is None
    assert "servers.fs.sandbox: ignored; write [servers.NAME.sandbox]" in config.notes[0]
