"""Examining the configured keys before a client uses them."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, key_set, public
from trunkline.app.auth import KeyMaterial, examine_keys
from trunkline.auth.api_keys import add_key, revoke_key
from trunkline.config import AuthSettings, JwtSettings


def examine_api_keys(path: Path) -> KeyMaterial:
    (found,) = examine_keys(AuthSettings(api_keys=path))
    assert (found.setting, found.location) == ("auth.api_keys.file", str(path))
    return found


def examine_jwt(**source: Any) -> tuple[KeyMaterial, ...]:
    jwt_settings = JwtSettings(issuer=ISSUER, audiences=(AUDIENCE,), **source)
    return examine_keys(AuthSettings(jwt=jwt_settings))


def test_without_key_files_nothing_is_examined() -> None:
    assert examine_keys(None) == examine_keys(AuthSettings()) == ()
    assert examine_jwt(secret=SECRET) == ()


def test_api_keys_are_counted_by_state(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    assert examine_api_keys(path).ok
    assert "`trunkline key add`" in examine_api_keys(path).detail
    for name in ("a", "b", "c"):
        add_key(path, name, "robot", ("dev",), None)
    add_key(path, "old", "robot", (), datetime(2020, 1, 1, tzinfo=UTC))
    revoke_key(path, "c")
    assert examine_api_keys(path) == KeyMaterial(
        "auth.api_keys.file", str(path), True, "1 expired, 2 good, 1 revoked"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "{",
            "input data was truncated; `trunkline key` writes it, and a newer version may write "
            "other fields",
        ),
        ('{"keys": [{"id": 1}]}', "expected `str`, got `int` - at `$.keys[0].id`"),
        ('{"kees": []}', "unknown field `kees`"),
    ],
)
def test_an_invalid_key_file_is_reported_with_location_and_remedy(
    text: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    found = examine_api_keys(path)
    assert not found.ok
    assert why in found.detail
    assert "; " in found.detail
    assert str(path) not in found.detail  # the location already names it


def test_an_unreadable_or_writable_key_file_is_reported(tmp_path: Path) -> None:
    assert (
        examine_api_keys(tmp_path).detail == "cannot be read: is a directory; check its permissions"
    )
    path = tmp_path / "keys.json"
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o666)
    assert examine_api_keys(path).detail == f"others may write to it; run chmod go-w {path}"


def test_the_keys_of_a_jwks_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(public("ES256", "a"), public("RS256", "b"), {"kty": "oct", "k": "x"}))
    assert examine_jwt(jwks_file=path) == (
        KeyMaterial("auth.jwt.jwks_file", str(path), True, "2 usable"),
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
def test_an_invalid_jwks_is_reported_with_a_remedy(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(text, encoding="utf-8")
    (found,) = examine_jwt(jwks_file=path)
    assert not found.ok
    assert why in found.detail
    assert found.detail.endswith("; put the issuer's public keys into it, as a JWKS")


def test_a_jwks_that_others_may_write_is_reported_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(public("ES256", "a")))
    path.chmod(0o666)
    detail = f"others may write to it; run chmod go-w {path}"
    assert examine_jwt(jwks_file=path) == (
        KeyMaterial("auth.jwt.jwks_file", str(path), False, detail),
    )


def test_a_missing_jwks_file_is_reported(tmp_path: Path) -> None:
    (found,) = examine_jwt(jwks_file=tmp_path / "none")
    assert not found.ok
    assert found.detail.startswith("cannot be read: no such file or directory; ")


def test_a_jwks_url_is_not_fetched_and_its_password_not_shown() -> None:
    (found,) = examine_jwt(jwks_url="https://ada:hunter22@id.example/jwks")
    assert found.ok
    assert found.detail.startswith("not fetched")
    assert "id.example/jwks" in found.location
    assert "hunter22" not in found.location
