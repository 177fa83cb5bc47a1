"""The keys that a configuration names are looked into before anybody needs them."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, key_set, public
from trunkline.assembly.key_material import Material, examine_keys
from trunkline.auth.key_file import add_key, revoke_key
from trunkline.config import AuthSettings, JwtSettings


def keys(path: Path) -> Material:
    (found,) = examine_keys(AuthSettings(keys=path))
    assert (found.setting, found.place) == ("auth.key.file", str(path))
    return found


def jwt(**source: Any) -> tuple[Material, ...]:
    made = JwtSettings(issuer=ISSUER, audiences=(AUDIENCE,), **source)
    return examine_keys(AuthSettings(jwt=made))


def test_without_keys_there_is_nothing_to_look_into() -> None:
    assert examine_keys(None) == examine_keys(AuthSettings()) == ()
    assert jwt(secret=SECRET) == ()


def test_keys_are_counted_by_what_they_are_worth(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    assert keys(path).ok
    assert "`trunkline key add`" in keys(path).told
    for name in ("a", "b", "c"):
        add_key(path, name, "robot", ("dev",), None)
    add_key(path, "old", "robot", (), datetime(2020, 1, 1, tzinfo=UTC))
    revoke_key(path, "c")
    assert keys(path) == Material("auth.key.file", str(path), True, "1 expired, 2 good, 1 revoked")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "input data was truncated; `trunkline key` writes it"),
        ('{"keys": [{"id": 1}]}', "expected `str`, got `int` - at `$.keys[0].id`"),
        ('{"kees": []}', "unknown field `kees`"),
    ],
)
def test_a_bad_file_of_keys_is_told_with_the_place_and_a_remedy(
    text: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    found = keys(path)
    assert not found.ok
    assert why in found.told
    assert "; " in found.told
    assert str(path) not in found.told  # it is told once, as the place


def test_so_is_one_that_cannot_be_read_or_is_anybodys(tmp_path: Path) -> None:
    assert keys(tmp_path).told == "cannot be read: is a directory; check its permissions"
    path = tmp_path / "keys.json"
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o666)
    assert keys(path).told == f"others may write to it; run chmod 600 {path}"


def test_the_keys_of_a_set_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(public("ES256", "a"), public("RS256", "b"), {"kty": "oct", "k": "x"}))
    assert jwt(jwks_file=path) == (
        Material("auth.jwt.jwks_file", str(path), True, "2 that can be used"),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", 'expected a JWKS, a JSON object with "keys": json is malformed'),
        ('{"keys": 1}', 'expected a JWKS, a JSON object with "keys", a list'),
        (json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}), "got none"),
        (json.dumps({"keys": [{}] * 1000}), "keys, got 1000"),
    ],
)
def test_a_bad_set_is_told_with_a_remedy(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(text, encoding="utf-8")
    (found,) = jwt(jwks_file=path)
    assert not found.ok
    assert why in found.told
    assert found.told.endswith("; put the issuer's public keys into it, as a JWKS")


def test_a_set_that_is_anybodys_is_told_with_the_remedy_for_that(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(public("ES256", "a")))
    path.chmod(0o666)
    told = f"others may write to it; run chmod go-w {path}"
    assert jwt(jwks_file=path) == (Material("auth.jwt.jwks_file", str(path), False, told),)


def test_a_set_that_has_gone_is_told(tmp_path: Path) -> None:
    (found,) = jwt(jwks_file=tmp_path / "none")
    assert not found.ok
    assert found.told.startswith("cannot be read: no such file or directory; ")


def test_nobody_is_asked_for_a_set_and_no_password_is_told() -> None:
    (found,) = jwt(jwks_url="https://ada:hunter22@id.example/jwks")
    assert found.ok
    assert found.told.startswith("only its form is checked")
    assert "id.example/jwks" in found.place
    assert "hunter22" not in found.place
