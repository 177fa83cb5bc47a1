"""Building verifiers and authenticators from the settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, key_set, public, token
from tests.endpoints.exchanges import make_request
from tests.identities import current_claims
from trunkline.app.auth import (
    build_authenticator,
    build_verifier,
    identify_stdio,
)
from trunkline.auth.api_keys import add_key
from trunkline.auth.claims import AuthenticationError
from trunkline.auth.key_sets import RemoteKeySet
from trunkline.config import AuthSettings, HttpSettings, JwtSettings
from trunkline.config.auth_table import TOKEN_VARIABLE
from trunkline.endpoints.auth import Challenge
from trunkline.mcp.identity import Principal


def settings(**changes: Any) -> AuthSettings:
    jwt: dict[str, Any] = {"issuer": ISSUER, "audiences": (AUDIENCE,), "secret": SECRET}
    return AuthSettings(jwt=JwtSettings(**(jwt | changes)))


@pytest.mark.holds("O0.8", "C30")
async def test_a_stdio_client_is_identified_by_token_or_api_key(tmp_path: Path) -> None:
    jwt = token(**current_claims())
    principal = await identify_stdio(settings(), {TOKEN_VARIABLE: f" {jwt}\n"})
    assert (principal.subject, principal.roles) == ("ada", ("dev",))
    path = tmp_path / "keys.json"
    key = add_key(path, "ci", "robot", ("dev",), None)
    assert (await identify_stdio(AuthSettings(api_keys=path), {TOKEN_VARIABLE: key})).id == "key:ci"


@pytest.mark.holds("O0.8", "C30")
@pytest.mark.parametrize("kind", [None, "", " ", "nonsense", "old", "tlk_x"])
async def test_an_invalid_token_is_reported_with_a_remedy_and_never_shown(kind: str | None) -> None:
    credential = token(exp=1) if kind == "old" else kind
    environ = {} if credential is None else {TOKEN_VARIABLE: credential}
    with pytest.raises(ValueError, match="put a good token or key into the variable") as raised:
        await identify_stdio(settings(), environ)
    assert not credential or not credential.strip() or credential not in str(raised.value)


async def test_the_jwt_settings_reach_the_verifier(tmp_path: Path) -> None:
    jwt = token(**current_claims(role=None, groups={"mcp": ["ops"]}, aud="second", scope="a"))
    changed = settings(audiences=("first", "second"), role_claim="groups.mcp")
    proof = await build_verifier(changed).verify(jwt)
    assert proof.principal.roles == ("ops",)
    scoped = AuthSettings(jwt=changed.jwt, required_scopes=("b",))
    with pytest.raises(AuthenticationError) as raised:
        await build_verifier(scoped).verify(jwt)
    assert raised.value.code == "insufficient_scope"
    expired = token(**current_claims(exp=int(current_claims()["iat"]) - 100))
    with pytest.raises(AuthenticationError):
        await build_verifier(settings()).verify(expired)
    assert await build_verifier(settings(clock_skew=300.0)).verify(expired)


async def test_public_keys_are_read_from_a_file_or_fetched(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a")))
    verifier = build_verifier(settings(secret=None, jwks_file=file))
    assert (
        await verifier.verify(token("ES256", "a", **current_claims()))
    ).principal.subject == "ada"
    file.write_text("nonsense")
    with pytest.raises(ValueError, match=r"jwks\.json: expected a JWKS"):
        build_verifier(settings(secret=None, jwks_file=file))
    (source,) = build_verifier(settings(secret=None, jwks_url="http://127.0.0.1:1/")).key_sources
    assert isinstance(source, RemoteKeySet)


async def test_the_auth_settings_reach_the_authenticator() -> None:
    rejections: list[str] = []
    auth = AuthSettings(
        jwt=settings(authorization_servers=("https://as.example",)).jwt,
        resource="https://gw.example/here",
        required_scopes=("a",),
        max_failures=1,
    )
    authenticator = build_authenticator(
        auth, HttpSettings(path="/here"), lambda address, why: rejections.append(why)
    )
    metadata = json.loads(authenticator.resource.metadata_page(make_request()).body)
    assert metadata["authorization_servers"] == ["https://as.example"]
    assert (metadata["resource"], metadata["scopes_supported"]) == (
        "https://gw.example/here",
        ["a"],
    )
    valid = make_request(authorization=f"Bearer {token(**current_claims(scope='a'))}")
    assert isinstance(await authenticator.authenticate(valid), Principal)
    invalid = make_request(authorization="Bearer x")
    results = [await authenticator.authenticate(invalid) for _ in range(2)]
    assert [each.status for each in results if isinstance(each, Challenge)] == [401, 429]
    assert len(rejections) == 1
    secure = HttpSettings(tls_cert="c", tls_key="k")
    assert build_authenticator(settings(), secure, lambda address, why: None).resource.secure
