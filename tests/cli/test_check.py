"""`trunkline check`, against real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.samples import BROKEN, OPERATOR, child, config, run
from tests.tasks import HANG_TIMEOUT
from trunkline.cli.check import describe_odd_schemas


def test_check_prints_a_table_and_exits_with_zero_if_all_servers_are_ready(tmp_path: Path) -> None:
    disabled = '[servers.off]\ncommand = "x"\ndisabled = true'
    result = run("check", "--config", config(tmp_path, child("small"), OPERATOR, disabled))
    assert result.exit_code == 0, result.output
    heading, columns, small, me, off, *_ = result.stdout.splitlines()
    assert heading == str(tmp_path / "some.toml")
    assert columns.split() == [
        *("server", "state", "revision", "era", "tools", "prompts", "resources", "start", "error")
    ]
    start = ["small", "ready", "2025-11-25", "session", "6", "1", "2", "+", "1"]
    assert small.split()[:9] == start
    assert small.split()[-1] == "s"
    assert me.split()[:5] == ["me", "ready", "2025-11-25", "session", "2"]
    assert off.split() == ["off", "disabled"]
    assert result.stderr == ""


def test_a_server_that_does_not_start_is_shown_with_the_reason_and_exits_with_one(
    tmp_path: Path,
) -> None:
    result = run("check", "--config", config(tmp_path, BROKEN, OPERATOR))
    assert result.exit_code == 1
    assert "me " in result.stdout
    assert "cannot start '/nonexistent/program': there is no such file" in result.stdout


def test_a_server_that_a_kill_switch_disables_is_shown_with_that_reason(tmp_path: Path) -> None:
    switch = '[kill_switch]\nservers = ["small"]'
    file = config(tmp_path, switch, child("small"), OPERATOR)
    result = run("check", "--config", file)
    assert result.exit_code == 0, result.output
    (line,) = (each for each in result.stdout.splitlines() if each.startswith("small "))
    assert line.split()[1] == "disabled"
    assert line.endswith("a kill switch disables it")
    listed = run("tools", "--config", file)
    assert "trunkline: small is disabled: a kill switch disables it" in listed.stderr


def test_name_collisions_are_reported(tmp_path: Path) -> None:
    same = 'prefix = ""'
    file = config(tmp_path, child("a", "echo", more=same), child("b", "echo", more=same))
    result = run("check", "--config", file)
    assert result.exit_code == 0
    assert (
        "collision: tools: echo belongs to a; that of b is renamed to b__echo" in result.stdout
    ), result.stdout


def test_tools_with_uncheckable_schemas_are_reported(tmp_path: Path) -> None:
    file = config(tmp_path, child("a", "odd", "even"))
    result = run("check", "--config", file)
    assert result.exit_code == 0
    why = "its schema refers to another document, which is not fetched"
    assert f"unchecked: a__odd: its arguments are not checked: {why}" in result.stdout
    assert "a__even" not in result.stdout
    report = json.loads(run("check", "--json", "--config", file).stdout)
    assert report["unchecked"] == {"a__odd": why}
    quiet = config(tmp_path, '[gateway]\ncheck_arguments = "off"', child("a", "odd"))
    assert "unchecked" not in run("check", "--config", quiet).stdout


def test_schemas_that_strict_clients_refuse_are_reported_with_the_key_to_set(
    tmp_path: Path,
) -> None:
    file = config(tmp_path, child("a", "listed", "even", "odd"))
    result = run("check", "--config", file)
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith("schemas: ")]
    assert lines == [
        "schemas: a: `type` is a list: a__listed",
        "schemas: a: an array has no `items`: a__listed",
        "schemas: a: some clients refuse all tools because of them;"
        " servers.a.normalise_schemas = true rewrites them",
    ]
    report = json.loads(run("check", "--json", "--config", file).stdout)
    assert report["odd_schemas"] == {
        "a": {"a__listed": ["`type` is a list", "an array has no `items`"]}
    }


def test_with_normalised_schemas_only_those_that_stay_odd_are_reported(tmp_path: Path) -> None:
    more = "normalise_schemas = true"
    result = run("check", "--config", config(tmp_path, child("a", "listed", "odd", more=more)))
    reason = "its schema refers to another document, which is not fetched"
    lines = [line for line in result.stdout.splitlines() if line.startswith("schemas: ")]
    assert lines == [f"schemas: a: not normalised: {reason}: a__odd"]


def test_of_many_odd_schemas_some_are_named() -> None:
    tools = {f"t{number}": ("odd",) for number in range(7)}
    line, _ = describe_odd_schemas("a", tools)
    assert line == "schemas: a: odd: t0, t1, t2, t3, t4 and 2 more"


def test_skipped_tools_are_reported(tmp_path: Path) -> None:
    file = config(tmp_path, child("a", "", "echo", "echo"))
    result = run("check", "--config", file)
    assert result.exit_code == 0
    assert (
        "skipped: a: tools[0]: expected a string as 'name', and not an empty one" in result.stdout
    )
    assert "skipped: a: tools: 'echo' again: the first counts" in result.stdout
    [server] = json.loads(run("check", "--json", "--config", file).stdout)["servers"]
    assert (server["tools"], len(server["skipped"])) == (1, 2)


def test_a_server_that_exits_at_once_is_shown_with_its_stderr_and_masked_secrets(
    tmp_path: Path,
) -> None:
    dying = (
        '[servers.dying]\ncommand = "sh"\nargs = ["-c", "echo my token is $TOKEN >&2"]\n'
        'env = { TOKEN = "hunter22" }'
    )
    result = run("check", "--config", config(tmp_path, dying))
    assert result.exit_code == 1
    assert "dying: stderr: my token is [redacted]" in result.stdout
    assert "hunter22" not in result.output


def test_check_with_json_prints_a_report_without_secrets(tmp_path: Path) -> None:
    file = config(tmp_path, child("small", more='env = { SECRET_TOKEN = "hunter22" }'), BROKEN)
    result = run("check", "--json", "--config", file)
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["ok"], report["config"]) == (False, file)
    small, broken = report["servers"]
    assert (small["tools"], small["prompts"], small["resources"], small["templates"]) == (
        6,
        1,
        2,
        1,
    )
    assert small["stderr"] == "the secret is [redacted]"
    assert 0 < small["seconds"] < 20
    assert broken["state"] == "waiting"
    assert "hunter22" not in result.output


def test_check_waits_no_longer_than_the_timeout(tmp_path: Path) -> None:
    silent = '[servers.silent]\ncommand = "cat"\nargs = ["/dev/zero"]'
    slow = '[servers.slow]\ncommand = "sleep"\nargs = ["60"]'
    result = run("check", "--timeout", "0.3", "--config", config(tmp_path, slow, silent))
    assert result.exit_code == 1
    assert "it was not ready within 0.3 s" in result.stdout


def test_the_notes_of_an_invalid_configuration_are_printed_too(tmp_path: Path) -> None:
    text = "[roles.dev]\npermissions = 1\n[limits.roles]\ndve = 5\n"
    result = run("check", "--config", config(tmp_path, text))
    assert result.exit_code == 2
    error, note = result.stderr.splitlines()
    assert "some.toml:2: roles.dev.permissions: expected a list" in error
    assert note.startswith("trunkline: note: ")
    assert note.endswith('4: limits.roles.dve: there is no [roles."dve"]; did you mean "dev"?')


@pytest.mark.parametrize("command", ["check", "tools", "call x"])
def test_an_invalid_configuration_exits_with_two(command: str, tmp_path: Path) -> None:
    result = run(*command.split(), "--config", config(tmp_path, "nonsense = 1\nmore = 2"))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 2
    assert all(line.startswith("trunkline: ") for line in result.stderr.splitlines())


def test_ctrl_c_ends_check_without_a_traceback_or_leftover_processes(tmp_path: Path) -> None:
    text = "echo $$ > pid; kill -INT $PPID; exec sleep 60"
    file = config(tmp_path, f'[servers.a]\ncommand = "sh"\nargs = ["-c", "{text}"]')
    result = subprocess.run(
        [sys.executable, "-m", "trunkline", "check", "--config", file],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == ""
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_invalid_keys_are_reported_and_exit_with_one(tmp_path: Path) -> None:
    table = '[auth]\nmode = ["api_key", "jwt"]\n'
    table += '[auth.jwt]\nissuer = "https://id.example"\naudience = "x"'
    url = 'jwks_url = "https://id.example/jwks"'
    file = config(tmp_path, table, url, OPERATOR)
    assert run("key", "add", "ci", "--role", "dev", "--config", file).exit_code == 0
    good = run("check", "--config", file)
    keys = tmp_path / "keys.json"
    assert good.exit_code == 0, good.output
    assert f"\nkeys: auth.api_keys.file: {keys}: 1 good\n" in good.stdout
    assert "\nkeys: auth.jwt.jwks_url: https://id.example/jwks: not fetched" in good.stdout
    keys.write_text('{"keys": [{"id": "ci"}]}', encoding="utf-8")
    bad = run("check", "--config", file)
    assert bad.exit_code == 1
    assert f"\nbad keys: auth.api_keys.file: {keys}: object missing required field" in bad.stdout
    report = json.loads(run("check", "--json", "--config", file).stdout)
    assert (report["ok"], [each["ok"] for each in report["keys"]]) == (False, [False, True])
    assert report["servers"][0]["state"] == "ready"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory need Linux")
def test_check_says_how_a_server_is_restricted_and_why_another_one_cannot_be(
    tmp_path: Path,
) -> None:
    limited = child("limited", "echo", more="sandbox = { memory_mib = 512 }")
    refused = child("refused", "echo", more='sandbox = { user = "no-such-user" }')
    file = config(tmp_path, limited, refused, child("free", "echo"))
    result = run("check", "--config", file)
    assert result.exit_code == 1
    how = "no new privileges, 512 MiB per process"
    assert f"sandbox: limited: {how}" in result.stdout, result.stdout
    assert "sandbox.user: there is no user 'no-such-user'; create the user" in result.stdout
    servers = json.loads(run("check", "--json", "--config", file).stdout)["servers"]
    assert [each["state"] for each in servers] == ["ready", "waiting", "ready"]
    assert [each["sandbox"] for each in servers] == [how, None, None]


@pytest.mark.holds("O0.4")
def test_an_unset_variable_stops_its_server_only(tmp_path: Path) -> None:
    broken = child("broken", more='env = { A = "${NOT_SET_ANYWHERE}" }')
    result = run("check", "--config", config(tmp_path, child("small"), broken), "--json")
    assert result.exit_code == 1
    small, broken_report = json.loads(result.stdout)["servers"]
    assert (small["state"], broken_report["state"]) == ("ready", "failed")
    assert "servers.broken.env.A: the variable NOT_SET_ANYWHERE is not" in broken_report["error"]
