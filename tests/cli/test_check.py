"""`trunkline check`, against real processes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.samples import BROKEN, OPERATOR, child, config, run


def test_all_ready_ends_with_zero_and_a_table(tmp_path: Path) -> None:
    disabled = '[servers.off]\ncommand = "x"\ndisabled = true'
    done = run("check", "--config", config(tmp_path, child("small"), OPERATOR, disabled))
    assert done.exit_code == 0, done.output
    heading, columns, small, me, off, *_ = done.stdout.splitlines()
    assert heading == str(tmp_path / "some.toml")
    assert columns.split() == [
        *("server", "state", "revision", "era", "tools", "prompts", "resources", "start", "error")
    ]
    start = ["small", "ready", "2025-11-25", "handshake", "6", "1", "2", "+", "1"]
    assert small.split()[:9] == start
    assert small.split()[-1] == "s"
    assert me.split()[:5] == ["me", "ready", "2025-11-25", "handshake", "2"]
    assert off.split() == ["off", "disabled"]
    assert done.stderr == ""


def test_one_that_does_not_start_is_shown_with_the_reason_and_ends_with_one(
    tmp_path: Path,
) -> None:
    done = run("check", "--config", config(tmp_path, BROKEN, OPERATOR))
    assert done.exit_code == 1
    assert "me " in done.stdout
    assert "cannot start '/nonexistent/program': there is no such file" in done.stdout


def test_collisions_and_notes_are_told(tmp_path: Path) -> None:
    same = 'prefix = ""'
    file = config(tmp_path, child("a", "echo", more=same), child("b", "echo", more=same))
    done = run("check", "--config", file)
    assert done.exit_code == 0
    assert "collision: tools: echo is that of a; that of b is called b__echo" in done.stdout, (
        done.stdout
    )


def test_tools_that_cannot_be_checked_are_told(tmp_path: Path) -> None:
    file = config(tmp_path, child("a", "odd", "even"))
    done = run("check", "--config", file)
    assert done.exit_code == 0
    why = "its schema refers to another document, and nothing is fetched"
    assert f"unchecked: a__odd: its arguments are not checked: {why}" in done.stdout
    assert "a__even" not in done.stdout
    report = json.loads(run("check", "--json", "--config", file).stdout)
    assert report["unchecked"] == {"a__odd": why}
    quiet = config(tmp_path, "[gateway]\ncheck_arguments = false", child("a", "odd"))
    assert "unchecked" not in run("check", "--config", quiet).stdout


def test_what_nobody_can_use_is_told(tmp_path: Path) -> None:
    file = config(tmp_path, child("a", "", "echo", "echo"))
    done = run("check", "--config", file)
    assert done.exit_code == 0
    assert "left out: a: tools[0]: expected a string as 'name', and not an empty one" in done.stdout
    assert "left out: a: tools: 'echo' again: the first counts" in done.stdout
    [server] = json.loads(run("check", "--json", "--config", file).stdout)["servers"]
    assert (server["tools"], len(server["left_out"])) == (1, 2)


def test_one_that_ends_at_once_is_shown_with_its_last_words_and_without_its_secrets(
    tmp_path: Path,
) -> None:
    dying = (
        '[servers.dying]\ncommand = "sh"\nargs = ["-c", "echo my token is $TOKEN >&2"]\n'
        'env = { TOKEN = "hunter22" }'
    )
    done = run("check", "--config", config(tmp_path, dying))
    assert done.exit_code == 1
    assert "dying last said: my token is …" in done.stdout
    assert "hunter22" not in done.output


def test_programs_get_json(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", more='env = { SECRET_TOKEN = "hunter22" }'), BROKEN)
    done = run("check", "--json", "--config", file)
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert (report["ok"], report["config"]) == (False, file)
    small, broken = report["servers"]
    assert (small["tools"], small["prompts"], small["resources"], small["templates"]) == (
        6,
        1,
        2,
        1,
    )
    assert small["stderr"] == "the secret is …"
    assert 0 < small["seconds"] < 20
    assert broken["state"] == "waiting"
    assert "hunter22" not in done.output


def test_nobody_waits_longer_than_the_timeout(tmp_path: Path) -> None:
    silent = '[servers.silent]\ncommand = "cat"\nargs = ["/dev/zero"]'
    slow = '[servers.slow]\ncommand = "sleep"\nargs = ["60"]'
    done = run("check", "--timeout", "0.3", "--config", config(tmp_path, slow, silent))
    assert done.exit_code == 1
    assert "it was not ready within 0.3 s" in done.stdout


@pytest.mark.parametrize("command", ["check", "tools", "call x"])
def test_a_bad_configuration_ends_with_two(command: str, tmp_path: Path) -> None:
    done = run(*command.split(), "--config", config(tmp_path, "nonsense = 1\nmore = 2"))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
    assert all(line.startswith("trunkline: ") for line in done.stderr.splitlines())


def test_ctrl_c_ends_it_without_a_traceback_and_with_nothing_left(tmp_path: Path) -> None:
    text = "echo $$ > pid; kill -INT $PPID; exec sleep 60"
    file = config(tmp_path, f'[servers.a]\ncommand = "sh"\nargs = ["-c", "{text}"]')
    done = subprocess.run(
        [sys.executable, "-m", "trunkline", "check", "--config", file],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == ""
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_bad_keys_are_told_and_end_with_one(tmp_path: Path) -> None:
    table = (
        '[auth]\nmode = ["key", "jwt"]\n[auth.jwt]\nissuer = "https://id.example"\naudience = "x"'
    )
    url = 'jwks_url = "https://id.example/jwks"'
    file = config(tmp_path, table, url, OPERATOR)
    assert run("key", "add", "ci", "--role", "dev", "--config", file).exit_code == 0
    good = run("check", "--config", file)
    keys = tmp_path / "keys.json"
    assert good.exit_code == 0, good.output
    assert f"\nkeys: auth.key.file: {keys}: 1 good\n" in good.stdout
    assert "\nkeys: auth.jwt.jwks_url: https://id.example/jwks: only its form is" in good.stdout
    keys.write_text('{"keys": [{"id": "ci"}]}', encoding="utf-8")
    bad = run("check", "--config", file)
    assert bad.exit_code == 1
    assert f"\nbad keys: auth.key.file: {keys}: object missing required field" in bad.stdout
    report = json.loads(run("check", "--json", "--config", file).stdout)
    assert (report["ok"], [each["ok"] for each in report["keys"]]) == (False, [False, True])
    assert report["servers"][0]["state"] == "ready"
