"""Tokens of our own, and what any token says."""

import json

import pytest

from tests.auth.issuer import AUDIENCE, ISSUER, NOW, SECRET, Clock, token, unsigned
from trunkline.auth.claims import Expected
from trunkline.auth.key_sets import SharedSecret
from trunkline.auth.minting import Wish, mint, read_unverified
from trunkline.auth.proof import Unproven
from trunkline.auth.signatures import secret_key
from trunkline.auth.verifier import JwtVerifier, Verifier


def expected(role_claim: str = "role", *scopes: str) -> Expected:
    return Expected(
        issuer=ISSUER,
        audiences=frozenset((AUDIENCE,)),
        role_claim=role_claim,
        scopes=frozenset(scopes),
    )


WISH = Wish(subject="ada", roles=("dev", "ops"), lifetime=60, scopes=("a", "b"))


@pytest.mark.parametrize("claim", ["role", "realm_access.roles", "https://x.example/roles"])
async def test_what_is_minted_is_accepted(claim: str) -> None:
    wanted = expected(claim)
    made = mint(WISH, wanted, AUDIENCE, SECRET, NOW)
    clock = Clock()
    verifier = Verifier(JwtVerifier(wanted, SharedSecret(secret_key(SECRET))), clock=clock)
    proof = await verifier.verify(made)
    assert proof.principal.subject == "ada"
    assert proof.principal.roles == ("dev", "ops")
    assert proof.principal.scopes == {"a", "b"}
    assert proof.until == NOW + 60 + 30
    clock.now += 90
    with pytest.raises(Unproven):
        await verifier.verify(made)


def test_every_token_is_another_and_one_role_is_no_list() -> None:
    wish = Wish(subject="ada", roles=("dev",), lifetime=60)
    made = {mint(wish, expected(), AUDIENCE, SECRET, NOW) for _ in range(3)}
    assert len(made) == 3
    assert {str(read_unverified(each)["claims"]["role"]) for each in made} == {"dev"}
    none = mint(Wish(subject="ada", roles=(), lifetime=60), expected(), AUDIENCE, SECRET, NOW)
    assert "role" not in read_unverified(none)["claims"]


@pytest.mark.parametrize(
    "wish",
    [
        Wish(subject="", roles=("dev",), lifetime=60),
        Wish(subject="ada", roles=("",), lifetime=60),
        Wish(subject="ada", roles=("dev",), lifetime=-60),
    ],
)
def test_what_nobody_would_accept_is_not_minted(wish: Wish) -> None:
    with pytest.raises(Unproven):
        mint(wish, expected(), AUDIENCE, SECRET, NOW)


def test_a_token_without_the_scopes_that_are_needed_is_not_minted_either() -> None:
    with pytest.raises(Unproven, match="not issued for c"):
        mint(WISH, expected("role", "c"), AUDIENCE, SECRET, NOW)


def test_a_token_says_what_it_says_and_its_signature_is_not_shown() -> None:
    made = token("ES256", "a")
    found = read_unverified(made)
    assert found["header"] == {"alg": "ES256", "kid": "a"}
    assert found["claims"]["sub"] == "ada"
    assert made.rpartition(".")[2] not in json.dumps(found)
    assert "tlk_x" not in json.dumps(read_unverified("tlk_x"))


@pytest.mark.parametrize("text", ["", "x", unsigned({"alg": "HS256"}, [], b"x"), "e30.e30.e30"])
def test_what_is_no_token_says_nothing(text: str) -> None:
    with pytest.raises(Unproven):
        read_unverified(text)
