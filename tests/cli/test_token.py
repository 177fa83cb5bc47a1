"""`trunkline token`: tokens of our own, and what is to be thought of any token."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, key_set, public, token
from tests.cli.samples import config, run
from tests.identities import real_claims
from trunkline.auth.key_file import add_key
from trunkline.cli.program import program

AUTH = f'[auth.jwt]\nsecret_env = "SECRET"\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET.decode())


def inspect(file: str, given: str, *options: str) -> Any:
    """Inspect a token from stdin."""
    arguments = ["token", "inspect", "--config", file, *options]
    return CliRunner().invoke(program, arguments, input=given)


@pytest.mark.holds("M10")
def test_what_is_minted_is_good(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    minted = run(
        *("token", "mint", "--sub", "ada", "--role", "dev", "--role", "ops"),
        *("--ttl", "15m", "--scope", "a", "--config", file),
    )
    made = minted.stdout.strip()
    assert (minted.exit_code, made.count(".")) == (0, 2)
    assert SECRET.decode() not in minted.output
    done = inspect(file, f"Bearer {made}\n")
    assert done.exit_code == 0
    assert f"good: jwt:{ISSUER}|ada, subject ada, roles: dev, ops" in done.stdout
    assert "UTC)" in done.stdout
    told = json.loads(inspect(file, made, "--json").stdout)
    assert told["verdict"] == {
        "good": True,
        "id": f"jwt:{ISSUER}|ada",
        "subject": "ada",
        "roles": ["dev", "ops"],
        "scopes": ["a"],
    }
    assert told["claims"]["exp"] - told["claims"]["iat"] == 900
    assert run("token", "inspect", made, "--config", file).exit_code == 0


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (token(exp=1), "the token has expired"),
        (token(**real_claims(aud="x")), "the token is for another audience"),
        (token(**real_claims())[:-6] + "AAAAAA", "the signature of the token is not good"),
        (token("ES256", "a", **real_claims()), "an algorithm that is not accepted here"),
        ("nonsense", "expected a token in three parts"),
        ("", "expected a token in three parts"),
        ("tlk_" + "A" * 43, "keys are not accepted here, but tokens are"),
    ],
)
def test_what_is_not_good_is_told_why_and_not_told_itself(
    made: str, why: str, tmp_path: Path
) -> None:
    done = inspect(config(tmp_path, AUTH), made)
    assert done.exit_code == 1
    assert why in done.stdout
    assert not made or made not in done.output
    assert made.rpartition(".")[2] not in done.output or made in {"", "nonsense"}
    assert SECRET.decode() not in done.output


def test_a_key_is_told_whose_it_is(tmp_path: Path) -> None:
    file = config(tmp_path, '[auth]\nmode = ["key"]\n')
    key = add_key(tmp_path / "keys.json", "ci", "robot", ("dev",), None)
    done = inspect(file, key)
    assert (done.exit_code, key in done.output) == (0, False)
    assert "good: key:ci, subject robot, roles: dev" in done.stdout


@pytest.mark.parametrize("text", ["", '[auth]\nmode = "none"\n'])
def test_where_nobody_is_asked_no_token_is_good(text: str, tmp_path: Path) -> None:
    done = inspect(config(tmp_path, text), token())
    assert (done.exit_code, "the configuration asks nobody" in done.stdout) == (1, True)
    assert "ada" in done.stdout  # what it says is shown all the same


def test_what_a_token_says_moves_no_cursor(tmp_path: Path) -> None:
    done = inspect(config(tmp_path, AUTH), token(sub="\x1b[31mada\n", exp=1))
    assert "\x1b" not in done.output


def test_only_who_has_the_secret_mints(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_bytes(key_set(public("ES256", "a")))
    foreign = f'[auth.jwt]\njwks_file = "jwks.json"\nissuer = "{ISSUER}"\naudience = "a"\n'
    mint = ("token", "mint", "--sub", "a", "--role", "b", "--config")
    done = run(*mint, config(tmp_path, foreign))
    assert (done.exit_code, f"tokens come from {ISSUER}" in done.stderr) == (1, True)
    done = run(*mint, config(tmp_path, ""))
    assert (done.exit_code, "accepts no tokens" in done.stderr) == (1, True)


@pytest.mark.parametrize("options", [("--ttl", "x"), ("--ttl", "0s"), ("--role", "")])
def test_what_would_not_be_good_is_not_minted(options: tuple[str, str], tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    done = run("token", "mint", "--sub", "a", "--role", "b", "--config", file, *options)
    assert (done.exit_code, done.stdout) == (2, "")


def test_a_secret_that_is_not_set_is_told_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SECRET")
    done = run("token", "mint", "--sub", "a", "--role", "b", "--config", config(tmp_path, AUTH))
    assert (done.exit_code, "the variable SECRET is not set" in done.stderr) == (2, True)


def test_a_key_file_that_is_no_good_is_told_plainly(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("nonsense")
    (tmp_path / "keys.json").chmod(0o600)
    done = inspect(config(tmp_path, '[auth]\nmode = ["key"]\n'), "tlk_x")
    assert (done.exit_code, "keys.json" in done.stderr) == (1, True)
