"""`trunkline key`: add, list and revoke API keys."""

import json
from pathlib import Path

import pytest

from tests.cli.samples import config, run
from trunkline.auth.api_keys import ApiKeyFile

AUTH = '[auth]\nmode = ["api_key"]\n'


@pytest.mark.holds("M10")
def test_a_key_is_printed_once_and_never_listed(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    result = run("key", "add", "ci", "--role", "dev", "--role", "ops", "--config", file)
    key = result.stdout.strip()
    assert (result.exit_code, key.startswith("tlk_")) == (0, True)
    assert key not in result.stderr
    assert ApiKeyFile(tmp_path / "keys.json").verify(key, 0.0).principal.id == "key:ci"
    more = ("--subject", "Ada", "--expires", "30d", "--config", file)
    assert run("key", "add", "laptop", "--role", "dev", *more).exit_code == 0
    listed = run("key", "list", "--config", file)
    assert key not in listed.stdout
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert rows[0] == ["key", "state", "subject", "roles", "created", "expires"]
    assert rows[1][:5] == ["ci", "good", "ci", "dev,", "ops"]
    assert rows[2][:4] == ["laptop", "good", "Ada", "dev"]
    keys = json.loads(run("key", "list", "--json", "--config", file).stdout)
    assert [key_entry["id"] for key_entry in keys] == ["ci", "laptop"]
    assert "sha256" not in keys[0]


@pytest.mark.holds("M10")
def test_a_revoked_key_stays_in_the_list(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    run("key", "add", "ci", "--role", "dev", "--config", file)
    result = run("key", "revoke", "ci", "--config", file)
    assert (result.exit_code, "'ci' of ci revoked" in result.stderr) == (0, True)
    assert "revoked" in run("key", "list", "--config", file).stdout
    again = run("key", "add", "ci", "--role", "dev", "--config", file)
    assert (again.exit_code, "choose another name" in again.stderr) == (1, True)


def test_invalid_key_commands_are_reported_with_the_reason(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    result = run("key", "revoke", "nobody", "--config", file)
    assert (result.exit_code, "there is no key 'nobody'; there are: none" in result.stderr) == (
        1,
        True,
    )
    result = run("key", "add", "ci", "--role", "dev", "--expires", "x", "--config", file)
    assert (result.exit_code, "--expires: expected a duration" in result.stderr) == (2, True)
    assert not (tmp_path / "keys.json").exists()
    (tmp_path / "keys.json").write_text("nonsense")
    for command in (("add", "ci", "--role", "a"), ("revoke", "ci"), ("list",)):
        result = run("key", *command, "--config", file)
        assert (result.exit_code, "keys.json" in result.stderr) == (1, True)
    result = run("key", "list", "--config", config(tmp_path, ""))
    assert (result.exit_code, "accepts no keys" in result.stderr) == (1, True)
    assert 'add "api_key" to mode' in result.stderr


ROLES = '[roles.dev]\npermissions = ["*"]\n[[policy]]\nallow = "*"\nroles = ["guest"]\n'


def test_a_key_with_an_unknown_role_is_created_with_a_warning(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH, ROLES)
    result = run("key", "add", "ci", "--role", "dve", "--role", "dev", "--config", file)
    assert (result.exit_code, result.stdout.startswith("tlk_")) == (0, True)
    (warning,) = [each for each in result.stderr.splitlines() if "warning" in each]
    assert warning == ('warning: there is no role "dve" in the configuration; did you mean "dev"?')
    result = run("key", "add", "b", "--role", "guest", "--role", "x", "--config", file)
    assert 'no role "x" in the configuration; roles are dev, guest\n' in result.stderr
    report = run("check", "--config", file)
    assert report.exit_code == 0
    assert 'note: key ci: there is no role "dve" in the configuration' in report.stdout
    assert '"dev"?' in report.stdout
    run("key", "revoke", "ci", "--config", file)
    assert "dve" not in run("check", "--config", file).stdout


def test_without_roles_in_the_configuration_every_role_is_accepted(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    assert "warning" not in run("key", "add", "ci", "--role", "x", "--config", file).stderr
