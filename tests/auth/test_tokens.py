"""Tokens and API keys: verified, issued and decoded."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.auth.issuer import (
    ALGORITHMS,
    AUDIENCE,
    ISSUER,
    NOW,
    SECRET,
    Clock,
    claims,
    key_of,
    key_server,
    key_set,
    public,
    signed,
    token,
    unsigned,
)
from tests.tasks import hang_guard
from trunkline.auth.api_keys import ApiKeyFile, add_key
from trunkline.auth.claims import AuthenticationError, ClaimsValidator
from trunkline.auth.key_sets import (
    MIN_FETCH_INTERVAL,
    FileKeySet,
    KeySource,
    RemoteKeySet,
    SharedSecret,
)
from trunkline.auth.signatures import secret_key
from trunkline.auth.tokens import (
    JwtVerifier,
    TokenRequest,
    TokenVerifier,
    decode_unverified,
    issue_token,
)

EXPECTED = ClaimsValidator(issuer=ISSUER, audiences=frozenset((AUDIENCE,)))


def by(source: KeySource, **more: Any) -> TokenVerifier:
    return TokenVerifier(JwtVerifier(EXPECTED, source), clock=more.pop("clock", Clock()), **more)


def shared_source() -> SharedSecret:
    return SharedSecret(secret_key(SECRET))


def shared() -> TokenVerifier:
    return by(shared_source())


def published(folder: Path, *keys: dict[str, Any]) -> TokenVerifier:
    file = folder / "jwks.json"
    file.write_bytes(key_set(*keys))
    return by(FileKeySet(file))


async def refused(verifier: TokenVerifier, given: str) -> AuthenticationError:
    with pytest.raises(AuthenticationError) as caught:
        await verifier.verify(given)
    assert given == "" or given not in str(caught.value)
    return caught.value


@pytest.mark.holds("O0.8", "M10")
async def test_a_token_by_a_shared_secret() -> None:
    proof = await shared().verify(token())
    assert proof.principal.id == f"jwt:{ISSUER}|ada"


@pytest.mark.parametrize("alg", ALGORITHMS)
async def test_a_token_by_a_published_key(alg: str, tmp_path: Path) -> None:
    verifier = published(tmp_path, public(alg, "a"), public(alg, "b"))
    assert (await verifier.verify(token(alg, "b"))).principal.subject == "ada"
    await refused(verifier, token(alg, "c"))
    await refused(verifier, token(alg))  # ambiguous


ATTACKS: dict[str, Any] = {
    "forged": lambda: signed({"alg": "RS256", "kid": "a"}, key_of("RS256", "mine"), claims()),
    "expired": lambda: token("RS256", "a", exp=int(NOW) - 31),
    "never expires": lambda: token("RS256", "a", exp=None),
    "another issuer": lambda: token("RS256", "a", iss="https://evil.example"),
    "another audience": lambda: token("RS256", "a", aud="other"),
    "no subject": lambda: token("RS256", "a", sub=""),
    "not yet": lambda: token("RS256", "a", nbf=int(NOW) + 31),
    "alg none": lambda: unsigned({"alg": "none", "kid": "a"}, claims(), b"x"),
    "alg none, nothing signed": lambda: unsigned({"alg": "none"}, claims()),
    "a secret of ours": lambda: token("HS256"),
    "a public key as secret": lambda: unsigned({"alg": "HS256", "kid": "a"}, claims(), b"x" * 32),
    "another alg for the key": lambda: signed(
        {"alg": "ES256", "kid": "a"}, key_of("ES256", "a"), claims()
    ),
    "the key in the header": lambda: signed(
        {"alg": "RS256", "jwk": key_of("RS256", "mine").as_dict(private=False)},
        key_of("RS256", "mine"),
        claims(),
    ),
    "a path for a name": lambda: signed(
        {"alg": "RS256", "kid": "../../../dev/null"}, key_of("RS256", "mine"), claims()
    ),
    "an empty name": lambda: signed({"alg": "RS256", "kid": ""}, key_of("RS256", "mine"), claims()),
    "nothing": lambda: "",
    "five parts": lambda: "a.b.c.d.e",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_attack_yields_another_identity(attack: str, tmp_path: Path) -> None:
    verifier = published(tmp_path, public("RS256", "a"))
    assert (await verifier.verify(token("RS256", "a"))).principal.subject == "ada"
    await refused(verifier, ATTACKS[attack]())


@pytest.mark.parametrize("alg", ALGORITHMS)
async def test_with_a_shared_secret_no_public_key_counts(alg: str) -> None:
    why = await refused(shared(), token(alg, "a"))
    assert why.reason == "the signature algorithm of the token is not accepted here"


async def test_two_keys_with_the_same_id_are_both_tried(tmp_path: Path) -> None:
    other = public("ES256", "b") | {"kid": "a"}
    verifier = published(tmp_path, other, public("ES256", "a"))
    assert (await verifier.verify(token("ES256", "a"))).principal.subject == "ada"
    assert (await refused(verifier, token("ES256", "a", exp=1))).reason == "the token has expired"
    forged = signed({"alg": "ES256", "kid": "a"}, key_of("ES256", "mine"), claims())
    assert (await refused(verifier, forged)).reason == "the signature of the token is invalid"


async def test_rotated_keys_are_fetched() -> None:
    clock = Clock()
    async with hang_guard(), key_server(public("RS256", "a")) as server:
        verifier = by(RemoteKeySet(server.url, clock=clock), clock=clock)
        await verifier.verify(token("RS256", "a"))
        server.body = key_set(public("RS256", "b"))
        await verifier.verify(token("RS256", "a"))  # not polled yet
        await refused(verifier, token("RS256", "b"))  # fetched just now
        clock.now += MIN_FETCH_INTERVAL
        edition = verifier.generation
        await verifier.verify(token("RS256", "b"))
        assert verifier.generation > edition
        await refused(verifier, token("RS256", "a"))
        assert server.asked == 2


async def test_unknown_key_ids_do_not_flood_the_issuer() -> None:
    async with hang_guard(), key_server(public("ES256", "a")) as server:
        verifier = by(RemoteKeySet(server.url))
        for number in range(50):
            await refused(
                verifier,
                signed({"alg": "ES256", "kid": f"x{number}"}, key_of("ES256", "mine"), claims()),
            )
        assert server.asked == 1


async def test_without_keys_verification_is_unavailable() -> None:
    async with hang_guard(), key_server() as server:
        server.status = "503 Service Unavailable"
        why = await refused(by(RemoteKeySet(server.url)), token("ES256", "a"))
        assert why.code == "unavailable"


@pytest.mark.holds("M10")
async def test_api_keys_and_jwts_are_accepted_together_or_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "ci", "robot", ("dev",), None)
    both = TokenVerifier(JwtVerifier(EXPECTED, shared_source()), ApiKeyFile(path), Clock())
    assert (await both.verify(key)).principal.id == "key:ci"
    assert (await both.verify(token())).principal.subject == "ada"
    assert len(both.key_sources) == 2
    assert (await refused(shared(), key)).reason == "API keys are not accepted here, only JWTs"
    alone = TokenVerifier(api_keys=ApiKeyFile(path), clock=Clock())
    assert (await refused(alone, token())).reason.endswith("JWTs are not accepted here")
    assert len(alone.key_sources) == 1


async def test_a_subject_that_looks_like_an_api_key_is_not_one(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add_key(path, "ci", "robot", ("dev",), None)
    both = TokenVerifier(JwtVerifier(EXPECTED, shared_source()), ApiKeyFile(path), Clock())
    proof = await both.verify(token(sub="key:ci"))
    assert proof.principal.id == f"jwt:{ISSUER}|key:ci"
    assert json.loads(path.read_text())["keys"][0]["id"] == "ci"


def expected(role_claim: str = "role", *scopes: str) -> ClaimsValidator:
    return ClaimsValidator(
        issuer=ISSUER,
        audiences=frozenset((AUDIENCE,)),
        role_claim=role_claim,
        scopes=frozenset(scopes),
    )


REQUEST = TokenRequest(subject="ada", roles=("dev", "ops"), lifetime=60, scopes=("a", "b"))


@pytest.mark.parametrize("claim", ["role", "realm_access.roles", "https://x.example/roles"])
async def test_an_issued_token_is_accepted(claim: str) -> None:
    wanted = expected(claim)
    made = issue_token(REQUEST, wanted, AUDIENCE, SECRET, NOW)
    clock = Clock()
    verifier = TokenVerifier(JwtVerifier(wanted, SharedSecret(secret_key(SECRET))), clock=clock)
    proof = await verifier.verify(made)
    assert proof.principal.subject == "ada"
    assert proof.principal.roles == ("dev", "ops")
    assert proof.principal.scopes == {"a", "b"}
    assert proof.valid_until == NOW + 60 + 30
    clock.now += 90
    with pytest.raises(AuthenticationError):
        await verifier.verify(made)


def test_every_token_is_unique_and_a_single_role_is_a_string() -> None:
    token_request = TokenRequest(subject="ada", roles=("dev",), lifetime=60)
    made = {issue_token(token_request, expected(), AUDIENCE, SECRET, NOW) for _ in range(3)}
    assert len(made) == 3
    assert {str(decode_unverified(each)["claims"]["role"]) for each in made} == {"dev"}
    none = issue_token(
        TokenRequest(subject="ada", roles=(), lifetime=60), expected(), AUDIENCE, SECRET, NOW
    )
    assert "role" not in decode_unverified(none)["claims"]


@pytest.mark.parametrize(
    "token_request",
    [
        TokenRequest(subject="", roles=("dev",), lifetime=60),
        TokenRequest(subject="ada", roles=("",), lifetime=60),
        TokenRequest(subject="ada", roles=("dev",), lifetime=-60),
    ],
)
def test_an_unacceptable_token_is_not_issued(token_request: TokenRequest) -> None:
    with pytest.raises(AuthenticationError):
        issue_token(token_request, expected(), AUDIENCE, SECRET, NOW)


def test_a_token_without_the_required_scopes_is_not_issued() -> None:
    with pytest.raises(AuthenticationError, match="lacks the scope c"):
        issue_token(REQUEST, expected("role", "c"), AUDIENCE, SECRET, NOW)


def test_decoding_shows_header_and_claims_but_no_signature() -> None:
    made = token("ES256", "a")
    found = decode_unverified(made)
    assert found["header"] == {"alg": "ES256", "kid": "a"}
    assert found["claims"]["sub"] == "ada"
    assert made.rpartition(".")[2] not in json.dumps(found)
    assert "tlk_x" not in json.dumps(decode_unverified("tlk_x"))


@pytest.mark.parametrize("text", ["", "x", unsigned({"alg": "HS256"}, [], b"x"), "e30.e30.e30"])
def test_decoding_rejects_what_is_not_a_token(text: str) -> None:
    with pytest.raises(AuthenticationError):
        decode_unverified(text)
