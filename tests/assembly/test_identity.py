"""Who is asked for what, as the settings have it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, key_set, public, token
from tests.identities import real_claims
from tests.transports.exchanges import asked
from trunkline.assembly.identity import VARIABLE, guard_of, identify_stdio, verifier_of
from trunkline.auth.key_file import add_key
from trunkline.auth.key_sets import RemoteKeys
from trunkline.auth.proof import Unproven
from trunkline.config import AuthSettings, HttpSettings, JwtSettings
from trunkline.mcp.principal import Principal
from trunkline.transports.http_guard import Challenge


def settings(**changes: Any) -> AuthSettings:
    jwt: dict[str, Any] = {"issuer": ISSUER, "audiences": (AUDIENCE,), "secret": SECRET}
    return AuthSettings(jwt=JwtSettings(**(jwt | changes)))


@pytest.mark.holds("O0.8", "C30")
async def test_whoever_started_us_shows_a_token_or_a_key(tmp_path: Path) -> None:
    made = token(**real_claims())
    who = await identify_stdio(settings(), {VARIABLE: f" {made}\n"})
    assert (who.subject, who.roles) == ("ada", ("dev",))
    path = tmp_path / "keys.json"
    key = add_key(path, "ci", "robot", ("dev",), None)
    assert (await identify_stdio(AuthSettings(keys=path), {VARIABLE: key})).id == "key:ci"


@pytest.mark.holds("O0.8", "C30")
@pytest.mark.parametrize("given", [None, "", " ", "nonsense", "old", "tlk_x"])
async def test_a_bad_token_is_told_with_a_remedy_and_without_itself(given: str | None) -> None:
    made = token(exp=1) if given == "old" else given
    environ = {} if made is None else {VARIABLE: made}
    with pytest.raises(ValueError, match="put a good token or key into the variable") as caught:
        await identify_stdio(settings(), environ)
    assert not made or not made.strip() or made not in str(caught.value)


async def test_the_settings_reach_what_verifies(tmp_path: Path) -> None:
    made = token(**real_claims(role=None, groups={"mcp": ["ops"]}, aud="second", scope="a"))
    changed = settings(audiences=("first", "second"), role_claim="groups.mcp")
    proof = await verifier_of(changed).verify(made)
    assert proof.principal.roles == ("ops",)
    scoped = AuthSettings(jwt=changed.jwt, required_scopes=("b",))
    with pytest.raises(Unproven) as caught:
        await verifier_of(scoped).verify(made)
    assert caught.value.fault == "insufficient_scope"
    late = token(**real_claims(exp=int(real_claims()["iat"]) - 100))
    with pytest.raises(Unproven):
        await verifier_of(settings()).verify(late)
    assert await verifier_of(settings(clock_skew=300.0)).verify(late)


async def test_public_keys_are_read_from_a_file_or_fetched(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a")))
    verifier = verifier_of(settings(secret=None, jwks_file=file))
    assert (await verifier.verify(token("ES256", "a", **real_claims()))).principal.subject == "ada"
    file.write_text("nonsense")
    with pytest.raises(ValueError, match=r"jwks\.json: expected a JWKS"):
        verifier_of(settings(secret=None, jwks_file=file))
    (source,) = verifier_of(settings(secret=None, jwks_url="http://127.0.0.1:1/")).sources
    assert isinstance(source, RemoteKeys)


async def test_the_settings_reach_the_guard() -> None:
    told: list[str] = []
    auth = AuthSettings(
        jwt=settings(authorization_servers=("https://as.example",)).jwt,
        resource="https://gw.example/here",
        required_scopes=("a",),
        max_failures=1,
    )
    guard = guard_of(auth, HttpSettings(path="/here"), lambda address, why: told.append(why))
    page = json.loads(guard.resource.page(asked()).body)
    assert page["authorization_servers"] == ["https://as.example"]
    assert (page["resource"], page["scopes_supported"]) == ("https://gw.example/here", ["a"])
    good = asked(authorization=f"Bearer {token(**real_claims(scope='a'))}")
    assert isinstance(await guard.identify(good), Principal)
    bad = asked(authorization="Bearer x")
    found = [await guard.identify(bad) for _ in range(2)]
    assert [each.status for each in found if isinstance(each, Challenge)] == [401, 429]
    assert len(told) == 1
    secure = HttpSettings(certificate="c", key="k")
    assert guard_of(settings(), secure, lambda address, why: None).resource.secure
