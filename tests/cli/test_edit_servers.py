"""`trunkline add | remove | enable | disable | list`."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, SERVER, config, run
from tests.cli.test_gateways_reload import started, trunkline
from tests.tasks import HANG_TIMEOUT
from trunkline.config import load_config
from trunkline.files import folder_lock

WORDS = ("--", sys.executable, str(SERVER), "echo", "fail")


def test_add_starts_the_server_says_what_it_offers_and_writes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    result = run("add", "fs", "--env", "KIND=a=b", "--config", str(file), *WORDS)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "fs offers 2 tools, 1 prompt, 2 resources, 1 template (2025-11-25)",
        *("  fs__echo", "  fs__fail"),
        f"added fs to {file}",
    ]
    assert file.stat().st_mode & 0o777 == 0o600
    args = json.dumps([str(SERVER), "echo", "fail"])
    assert file.read_text() == (
        f"[servers.fs]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n\n"
        '[servers.fs.env]\nKIND = "a=b"\n'
    )
    assert [each.name for each in tmp_path.iterdir()] == ["new.toml"]  # no lock, no copy


def test_add_keeps_comments_mode_and_link(tmp_path: Path) -> None:
    file, link = Path(config(tmp_path, "# mine", OPERATOR)), tmp_path / "link.toml"
    file.chmod(0o640)
    link.symlink_to(file)
    assert run("add", "fs", "--config", str(link), *WORDS).exit_code == 0
    assert file.read_text().startswith(f"# mine\n{OPERATOR}")
    assert (file.stat().st_mode & 0o777, link.is_symlink()) == (0o640, True)
    assert [server.name for server in load_config(file, {}).servers] == ["me", "fs"]


def test_a_server_that_does_not_start_is_added_only_with_force(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    arguments = ("add", "bad", "--config", str(file), "--", "/nonexistent/program", "-x")
    result = run(*arguments)
    assert (result.exit_code, result.stdout, file.exists()) == (1, "", False)
    assert "bad does not start: cannot start '/nonexistent/program'" in result.stderr
    assert "bad was not added; --force adds it anyway" in result.stderr
    result = run("add", "--force", *arguments[1:])
    assert (result.exit_code, result.stdout) == (0, f"added bad to {file}\n")
    assert [server.name for server in load_config(file, {}).servers] == ["bad"]


def test_a_url_is_added_with_its_headers_and_an_unset_variable_is_named(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    url = "https://127.0.0.1:1/mcp"
    result = run("add", "web", url, "-H", "Authorization: ${NOT_SET_HERE}", "--config", str(file))
    assert (result.exit_code, file.exists()) == (1, False)
    assert "the variable NOT_SET_HERE is not set" in result.stderr
    result = run("add", "web", url, "-H", "X-Kind:a: b", "--config", str(file), "--force")
    assert result.exit_code == 0
    expected = f'[servers.web]\nurl = "{url}"\n\n[servers.web.headers]\nX-Kind = "a: b"\n'
    assert file.read_text() == expected


def test_a_dry_run_shows_the_change_and_changes_nothing(tmp_path: Path) -> None:
    file = Path(config(tmp_path, OPERATOR))
    before = file.read_text()
    for command, line in (
        (("add", "fs", "/nonexistent/program"), '+command = "/nonexistent/program"'),
        (("remove", "me"), '-builtin = "operator"'),
        (("disable", "me"), "+disabled = true"),
        (("enable", "me"), None),
    ):
        result = run(*command, "--config", str(file), "--dry-run")
        assert result.exit_code == 0, result.output
        assert (line in result.stdout.splitlines()) if line else result.stdout == ""
    assert file.read_text() == before


def test_secrets_on_the_command_line_are_warned_about(tmp_path: Path) -> None:
    arguments = ("--config", str(tmp_path / "a.toml"), "--dry-run")
    result = run("add", "a", "-e", "API_KEY=s3cr3t", "-e", "KIND=x", *arguments, "--", "x")
    assert "servers.a.env.API_KEY is a secret in the file" in result.stderr
    assert "safer: --env 'API_KEY=${API_KEY}'" in result.stderr
    assert "KIND" not in result.stderr
    assert "s3cr3t" not in result.stderr
    header = "Authorization: Bearer s3cr3t"
    result = run("add", "a", "https://a.example", "-H", header, *arguments)
    assert "safer: --header 'Authorization: ${AUTHORIZATION}'" in result.stderr
    result = run("add", "a", *arguments, "--", "x", "--api-key", "s3cr3t-123456")
    assert "the arguments seem to have a secret" in result.stderr
    result = run("add", "a", "-e", "API_KEY=${K:-x}", *arguments, "--", "x")
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("a b", "--", "x"), "the name 'a b' is not valid; try 'a_b'"),
        (("a", "-e", "s3cr3t", "--", "x"), "expected --env KEY=VALUE"),
        (("a", "https://a.example", "-H", "s3cr3t"), "expected --header 'NAME: VALUE'"),
        (("a", "https://a.example", "more"), "a server with a URL takes no arguments"),
        (("a", "-e", "A=1", "https://a.example"), "a server with a URL takes no arguments"),
        (("a", "-H", "A: 1", "--", "x"), "--header is for a server with a URL"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    result = run("add", "--config", str(tmp_path / "a.toml"), *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert "s3cr3t" not in result.stderr


def test_a_server_that_would_be_this_gateway_is_refused(tmp_path: Path) -> None:
    file = str(tmp_path / "a.toml")
    result = run("add", "me", "--config", file, "--", "trunkline", "serve", "--config", file)
    assert (result.exit_code, Path(file).exists()) == (1, False)
    assert "it starts this gateway again" in result.stderr


def test_a_name_that_is_taken_and_names_that_are_unknown_are_refused(tmp_path: Path) -> None:
    file = config(tmp_path, OPERATOR)
    result = run("add", "me", "--config", file, "--", "x")
    assert (result.exit_code, "there is a server 'me' already" in result.stderr) == (1, True)
    for command in ("remove", "enable", "disable"):
        result = run(command, "you", "--config", file)
        assert result.exit_code == 1
        assert "there is no server 'you'; servers in the file: me" in result.stderr


def test_a_file_with_mistakes_is_not_written_and_they_are_named(tmp_path: Path) -> None:
    for text in ("[gateway\n", "[gateway]\nnome = 1\n"):
        file = config(tmp_path, text)
        result = run("add", "a", "--config", file, "--", "x")
        assert (result.exit_code, Path(file).read_text()) == (2, text)
        assert result.stderr.startswith(f"trunkline: {file}:")


def test_the_file_of_a_client_is_refused(tmp_path: Path) -> None:
    result = run("remove", "a", "--config", str(tmp_path / "a.json"))
    assert (result.exit_code, "trunkline import " in result.stderr) == (2, True)


def test_servers_are_disabled_enabled_and_removed(tmp_path: Path) -> None:
    file = config(tmp_path, OPERATOR, "[servers.two]\ncommand = 'x'\n")
    assert run("disable", "two", "--config", file).stdout == f"disabled two in {file}\n"
    assert load_config(Path(file), {}).servers[1].disabled
    assert run("enable", "two", "--config", file).stdout == f"enabled two in {file}\n"
    assert not load_config(Path(file), {}).servers[1].disabled
    assert run("remove", "two", "--config", file).stdout == f"removed two from {file}\n"
    assert Path(file).read_text() == OPERATOR


def test_list_shows_the_servers_without_starting_them(tmp_path: Path) -> None:
    secret = "[servers.web]\nurl = 'https://a.example/?token=s3cr3t-1234567'\ndisabled = true\n"
    file = config(tmp_path, OPERATOR, secret, "[servers.x]\ncommand = 'x'\nargs = ['${NO}']")
    result = run("list", "--config", file)
    heading, _, me, web, other = result.stdout.splitlines()
    assert heading == file
    assert me.split() == ["me", "enabled", "builtin", "operator"]
    assert web.split()[:3] == ["web", "disabled", "url"]
    assert "s3cr3t" not in result.stdout
    assert other.split() == ["x", "enabled", "command", "x", "${NO}"]
    servers = json.loads(run("list", "--config", file, "--json").stdout)
    assert [each["state"] for each in servers] == ["enabled", "disabled", "enabled"]


def test_list_without_a_configuration_shows_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRUNKLINE_CONFIG", raising=False)
    assert run("list").stdout.splitlines()[0] == "embedded default"
    assert run("add", "me", "--force", "--", "/nonexistent/x").exit_code == 0
    assert (tmp_path / "trunkline.toml").exists()


def test_commands_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    file = config(tmp_path, OPERATOR)
    command = [sys.executable, "-m", "trunkline", "add", "--force", "--config", file]
    processes = [
        subprocess.Popen([*command, name, "--", "/nonexistent/x"], stdout=subprocess.DEVNULL)
        for name in ("a", "b", "c")
    ]
    assert [process.wait(HANG_TIMEOUT) for process in processes] == [0, 0, 0]
    servers = load_config(Path(file), {}).servers
    assert sorted(server.name for server in servers) == ["a", "b", "c", "me"]


def test_a_change_waits_for_the_lock_and_reads_the_file_after_it(tmp_path: Path) -> None:
    file = Path(config(tmp_path, OPERATOR))
    with folder_lock(tmp_path):
        thread = threading.Thread(target=run, args=("disable", "me", "--config", str(file)))
        thread.start()
        file.write_text(f"{OPERATOR}# new\n")
    thread.join()
    assert file.read_text() == f"{OPERATOR}disabled = true\n# new\n"


async def test_a_running_gateway_takes_the_change_over_at_once(tmp_path: Path) -> None:
    async with started(tmp_path, OPERATOR) as gateway:
        pid, file = gateway.process.pid, str(tmp_path / "some.toml")
        code, out, err = await trunkline(tmp_path, "add", "two", "--config", file, *WORDS)
        assert (code, err) == (0, "")
        assert out.splitlines()[-1] == f"the running gateway {pid}: servers.two: added"
        await gateway.wait_for_tool("two__echo")
        code, out, _ = await trunkline(tmp_path, "list", "--config", file)
        assert (code, out.splitlines()[-1].split()[:2]) == (0, ["two", "ready"])
        code, out, _ = await trunkline(tmp_path, "remove", "two", "--config", file)
        assert out.splitlines()[-1] == f"the running gateway {pid}: servers.two: removed"


def test_a_file_that_cannot_be_written_exits_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_replace(*_: object) -> None:
        raise OSError(30, os.strerror(30))

    file = config(tmp_path, OPERATOR)
    monkeypatch.setattr("trunkline.cli.edit_servers.rewrite_file", fail_to_replace)
    result = run("remove", "me", "--config", file)
    assert (result.exit_code, Path(file).read_text()) == (1, OPERATOR)
    assert f"cannot write {file}: " in result.stderr
    Path(file).write_bytes(b"\xff")
    assert "not UTF-8" in run("remove", "me", "--config", file).stderr
