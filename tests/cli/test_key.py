"""`trunkline key`: given out, listed and revoked."""

import json
from pathlib import Path

import pytest

from tests.cli.samples import config, run
from trunkline.auth.key_file import KeyFile

AUTH = '[auth]\nmode = ["key"]\n'


@pytest.mark.holds("M10")
def test_a_key_is_shown_once_and_listed_without_it(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    done = run("key", "add", "ci", "--role", "dev", "--role", "ops", "--config", file)
    key = done.stdout.strip()
    assert (done.exit_code, key.startswith("tlk_")) == (0, True)
    assert key not in done.stderr
    assert KeyFile(tmp_path / "keys.json").find(key, 0.0).principal.id == "key:ci"
    more = ("--subject", "Ada", "--expires", "30d", "--config", file)
    assert run("key", "add", "laptop", "--role", "dev", *more).exit_code == 0
    listed = run("key", "list", "--config", file)
    assert key not in listed.stdout
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert rows[0] == ["key", "state", "subject", "roles", "created", "expires"]
    assert rows[1][:5] == ["ci", "good", "ci", "dev,", "ops"]
    assert rows[2][:4] == ["laptop", "good", "Ada", "dev"]
    told = json.loads(run("key", "list", "--json", "--config", file).stdout)
    assert [each["id"] for each in told] == ["ci", "laptop"]
    assert "sha256" not in told[0]


@pytest.mark.holds("M10")
def test_a_revoked_key_stays_in_the_list(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    run("key", "add", "ci", "--role", "dev", "--config", file)
    done = run("key", "revoke", "ci", "--config", file)
    assert (done.exit_code, "'ci' of ci is revoked since" in done.stderr) == (0, True)
    assert "revoked" in run("key", "list", "--config", file).stdout
    again = run("key", "add", "ci", "--role", "dev", "--config", file)
    assert (again.exit_code, "choose another name" in again.stderr) == (1, True)


def test_mistakes_are_told_plainly(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    done = run("key", "revoke", "nobody", "--config", file)
    assert (done.exit_code, "there is no key 'nobody'; there are: none" in done.stderr) == (1, True)
    done = run("key", "add", "ci", "--role", "dev", "--expires", "x", "--config", file)
    assert (done.exit_code, "--expires: expected a duration" in done.stderr) == (2, True)
    assert not (tmp_path / "keys.json").exists()
    (tmp_path / "keys.json").write_text("nonsense")
    for command in (("add", "ci", "--role", "a"), ("revoke", "ci"), ("list",)):
        done = run("key", *command, "--config", file)
        assert (done.exit_code, "keys.json" in done.stderr) == (1, True)
    done = run("key", "list", "--config", config(tmp_path, ""))
    assert (done.exit_code, "accepts no keys" in done.stderr) == (1, True)
