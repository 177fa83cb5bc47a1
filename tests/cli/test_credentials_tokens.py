"""`trunkline token`: mint tokens, and inspect any token."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, key_set, public, token
from tests.cli.samples import config, run
from tests.identities import current_claims
from trunkline.auth.api_keys import add_key
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
def test_a_minted_token_is_valid(tmp_path: Path) -> None:
    file = config(tmp_path, AUTH)
    minted = run(
        *("token", "mint", "--sub", "ada", "--role", "dev", "--role", "ops"),
        *("--ttl", "15m", "--scope", "a", "--config", file),
    )
    jwt = minted.stdout.strip()
    assert (minted.exit_code, jwt.count(".")) == (0, 2)
    assert SECRET.decode() not in minted.output
    result = inspect(file, f"Bearer {jwt}\n")
    assert result.exit_code == 0
    assert f"valid: jwt:{ISSUER}|ada, subject ada, roles: dev, ops" in result.stdout
    assert "UTC)" in result.stdout
    report = json.loads(inspect(file, jwt, "--json").stdout)
    assert report["check"] == {
        "valid": True,
        "id": f"jwt:{ISSUER}|ada",
        "subject": "ada",
        "roles": ["dev", "ops"],
        "scopes": ["a"],
    }
    assert report["claims"]["exp"] - report["claims"]["iat"] == 900
    assert run("token", "inspect", jwt, "--config", file).exit_code == 0


@pytest.mark.parametrize(
    ("jwt", "why"),
    [
        (token(exp=1), "the token has expired"),
        (token(**current_claims(aud="x")), "the token is for another audience"),
        (token(**current_claims())[:-6] + "AAAAAA", "the signature of the token is invalid"),
        (token("ES256", "a", **current_claims()), "algorithm of the token is not accepted here"),
        ("nonsense", "expected a token in three parts"),
        ("", "expected a token in three parts"),
        ("tlk_" + "A" * 43, "API keys are not accepted here, only JWTs"),
    ],
)
def test_an_invalid_token_is_reported_with_the_reason_and_never_printed(
    jwt: str, why: str, tmp_path: Path
) -> None:
    result = inspect(config(tmp_path, AUTH), jwt)
    assert result.exit_code == 1
    assert why in result.stdout
    assert not jwt or jwt not in result.output
    assert jwt.rpartition(".")[2] not in result.output or jwt in {"", "nonsense"}
    assert SECRET.decode() not in result.output


def test_inspect_shows_the_owner_of_an_api_key(tmp_path: Path) -> None:
    file = config(tmp_path, '[auth]\nmode = ["api_key"]\n')
    key = add_key(tmp_path / "keys.json", "ci", "robot", ("dev",), None)
    result = inspect(file, key)
    assert (result.exit_code, key in result.output) == (0, False)
    assert "valid: key:ci, subject robot, roles: dev" in result.stdout


@pytest.mark.parametrize("text", ["", '[auth]\nmode = "none"\n'])
def test_without_auth_inspect_accepts_no_token_but_shows_its_claims(
    text: str, tmp_path: Path
) -> None:
    result = inspect(config(tmp_path, text), token())
    assert (result.exit_code, "tokens are not checked" in result.stdout) == (1, True)
    assert "ada" in result.stdout  # the claims are shown although they are not verified


def test_control_characters_in_a_token_are_escaped(tmp_path: Path) -> None:
    result = inspect(config(tmp_path, AUTH), token(sub="\x1b[31mada\n", exp=1))
    assert "\x1b" not in result.output


def test_mint_requires_the_signing_secret(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_bytes(key_set(public("ES256", "a")))
    foreign = f'[auth.jwt]\njwks_file = "jwks.json"\nissuer = "{ISSUER}"\naudience = "a"\n'
    mint = ("token", "mint", "--sub", "a", "--role", "b", "--config")
    result = run(*mint, config(tmp_path, foreign))
    assert (result.exit_code, f"tokens are issued by {ISSUER}" in result.stderr) == (1, True)
    result = run(*mint, config(tmp_path, ""))
    assert (result.exit_code, "accepts no tokens" in result.stderr) == (1, True)


@pytest.mark.parametrize("options", [("--ttl", "x"), ("--ttl", "0s"), ("--role", "")])
def test_mint_refuses_options_that_would_make_an_invalid_token(
    options: tuple[str, str], tmp_path: Path
) -> None:
    file = config(tmp_path, AUTH)
    result = run("token", "mint", "--sub", "a", "--role", "b", "--config", file, *options)
    assert (result.exit_code, result.stdout) == (2, "")


def test_an_unset_secret_variable_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SECRET")
    result = run("token", "mint", "--sub", "a", "--role", "b", "--config", config(tmp_path, AUTH))
    assert (result.exit_code, "the variable SECRET is not set" in result.stderr) == (2, True)


def test_an_invalid_key_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("nonsense")
    (tmp_path / "keys.json").chmod(0o600)
    result = inspect(config(tmp_path, '[auth]\nmode = ["api_key"]\n'), "tlk_x")
    assert (result.exit_code, "keys.json" in result.stderr) == (1, True)
