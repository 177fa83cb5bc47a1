"""Whose a token or a key is, and every way to be somebody else that we know of."""

import asyncio
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
from trunkline.auth.claims import Expected
from trunkline.auth.key_file import KeyFile, add_key
from trunkline.auth.key_sets import MIN_INTERVAL, FileKeys, KeySource, RemoteKeys, SharedSecret
from trunkline.auth.proof import Unproven
from trunkline.auth.signatures import secret_key
from trunkline.auth.verifier import JwtVerifier, Verifier

EXPECTED = Expected(issuer=ISSUER, audiences=frozenset((AUDIENCE,)))


def by(source: KeySource, **more: Any) -> Verifier:
    return Verifier(JwtVerifier(EXPECTED, source), clock=more.pop("clock", Clock()), **more)


def shared_source() -> SharedSecret:
    return SharedSecret(secret_key(SECRET))


def shared() -> Verifier:
    return by(shared_source())


def published(folder: Path, *keys: dict[str, Any]) -> Verifier:
    file = folder / "jwks.json"
    file.write_bytes(key_set(*keys))
    return by(FileKeys(file))


async def refused(verifier: Verifier, given: str) -> Unproven:
    with pytest.raises(Unproven) as caught:
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
    await refused(verifier, token(alg))  # which of the two?


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
async def test_nobody_becomes_somebody_else(attack: str, tmp_path: Path) -> None:
    verifier = published(tmp_path, public("RS256", "a"))
    assert (await verifier.verify(token("RS256", "a"))).principal.subject == "ada"
    await refused(verifier, ATTACKS[attack]())


@pytest.mark.parametrize("alg", ALGORITHMS)
async def test_where_a_secret_is_shared_no_key_of_anybody_counts(alg: str) -> None:
    why = await refused(shared(), token(alg, "a"))
    assert why.why == "the token is signed by an algorithm that is not accepted here"


async def test_two_keys_of_one_name_are_both_tried(tmp_path: Path) -> None:
    other = public("ES256", "b") | {"kid": "a"}
    verifier = published(tmp_path, other, public("ES256", "a"))
    assert (await verifier.verify(token("ES256", "a"))).principal.subject == "ada"
    assert (await refused(verifier, token("ES256", "a", exp=1))).why == "the token has expired"
    forged = signed({"alg": "ES256", "kid": "a"}, key_of("ES256", "mine"), claims())
    assert (await refused(verifier, forged)).why == "the signature of the token is not good"


async def test_keys_that_an_issuer_rotates_are_found() -> None:
    clock = Clock()
    async with asyncio.timeout(20), key_server(public("RS256", "a")) as server:
        verifier = by(RemoteKeys(server.url, clock=clock), clock=clock)
        await verifier.verify(token("RS256", "a"))
        server.body = key_set(public("RS256", "b"))
        await verifier.verify(token("RS256", "a"))  # nobody has looked
        await refused(verifier, token("RS256", "b"))  # it was asked just now
        clock.now += MIN_INTERVAL
        edition = verifier.edition
        await verifier.verify(token("RS256", "b"))
        assert verifier.edition > edition
        await refused(verifier, token("RS256", "a"))
        assert server.asked == 2


async def test_names_of_keys_that_nobody_has_do_not_reach_the_issuer() -> None:
    async with asyncio.timeout(20), key_server(public("ES256", "a")) as server:
        verifier = by(RemoteKeys(server.url))
        for number in range(50):
            await refused(
                verifier,
                signed({"alg": "ES256", "kid": f"x{number}"}, key_of("ES256", "mine"), claims()),
            )
        assert server.asked == 1


async def test_without_any_keys_nobody_can_tell() -> None:
    async with asyncio.timeout(20), key_server() as server:
        server.status = "503 Service Unavailable"
        why = await refused(by(RemoteKeys(server.url)), token("ES256", "a"))
        assert why.fault == "unavailable"


@pytest.mark.holds("M10")
async def test_keys_and_tokens_are_accepted_side_by_side_or_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "ci", "robot", ("dev",), None)
    both = Verifier(JwtVerifier(EXPECTED, shared_source()), KeyFile(path), Clock())
    assert (await both.verify(key)).principal.id == "key:ci"
    assert (await both.verify(token())).principal.subject == "ada"
    assert len(both.sources) == 2
    assert (await refused(shared(), key)).why == "keys are not accepted here, but tokens are"
    alone = Verifier(keys=KeyFile(path), clock=Clock())
    assert (await refused(alone, token())).why.endswith("tokens are not accepted")
    assert len(alone.sources) == 1


async def test_a_subject_that_looks_like_a_key_is_not_one(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add_key(path, "ci", "robot", ("dev",), None)
    both = Verifier(JwtVerifier(EXPECTED, shared_source()), KeyFile(path), Clock())
    proof = await both.verify(token(sub="key:ci"))
    assert proof.principal.id == f"jwt:{ISSUER}|key:ci"
    assert json.loads(path.read_text())["keys"][0]["id"] == "ci"
