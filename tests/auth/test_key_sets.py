"""The keys of an issuer: a secret, a file, a real server; rotated and broken."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from tests.auth.issuer import Clock, key_of, key_server, key_set, public
from tests.tasks import hang_guard
from trunkline.auth.key_sets import (
    MAX_KEY_AGE,
    MAX_KEY_SET_BYTES,
    MAX_KEYS,
    MIN_FETCH_INTERVAL,
    FileKeySet,
    RemoteKeySet,
    SharedSecret,
    parse_key_set,
)
from trunkline.auth.signatures import TokenHeader, secret_key

A, B = TokenHeader("ES256", "a"), TokenHeader("ES256", "b")


def kids(body: bytes) -> list[str | None]:
    return [each.kid for each in parse_key_set(body)]


async def test_a_shared_secret_ignores_key_ids() -> None:
    source = SharedSecret(secret_key(b"x" * 32))
    (key,) = source.candidate_keys(TokenHeader("HS256", "anything")) or []
    assert isinstance(key, OctKey)
    await source.fetch_now()
    await source.poll()
    assert (source.generation, source.algorithms) == (0, {"HS256"})


# Parsing a key set


def test_public_signature_keys_are_accepted() -> None:
    entries = [public(alg, alg, use="sig") for alg in ("RS256", "ES256", "Ed25519")]
    assert kids(key_set(*entries, public("ES256", "x", key_ops=["verify"]))) == [
        *("RS256", "ES256", "Ed25519", "x")
    ]


@pytest.mark.filterwarnings("ignore:Key size")
def test_all_other_keys_are_ignored() -> None:
    good = public("ES256", "good")
    private: Any = dict(key_of("ES256", "good").as_dict(private=True)) | {"kid": "private"}
    short: Any = RSAKey.generate_key(1024).as_dict(private=False)
    bad: list[Any] = [
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "kid": "secret"},
        private,
        good | {"kid": "encrypts", "use": "enc"},
        good | {"kid": "wraps", "key_ops": ["wrapKey"]},
        good | {"kid": 7},
        good | {"alg": 7},
        good | {"kty": "XX"},
        good | {"kty": ["EC"]},
        good | {"x": "AAAA"},
        good | {"crv": "P-999"},
        short | {"kid": "short"},
        public("RS256", "long") | {"n": "A" * 3000},
        {"kty": "EC"},
        "text",
        7,
        None,
    ]
    assert kids(key_set(*bad, good)) == ["good"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b"<html>",
        b"\xff",
        b"[" * 100_000,
        b" " * (MAX_KEY_SET_BYTES + 1),
    ],
)
def test_an_invalid_key_set_is_rejected(body: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_key_set(body)


def test_a_set_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most 64 keys, got 65"):
        parse_key_set(key_set(*[public("ES256", "a")] * (MAX_KEYS + 1)))
    assert parse_key_set(key_set()) == ()


async def test_a_token_names_its_key_or_only_one_is_usable(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a"), public("RS256", "r"), public("ES256", "b")))
    source = FileKeySet(file)
    assert len(source.candidate_keys(A) or []) == 1
    assert source.candidate_keys(A) != source.candidate_keys(B)
    assert source.candidate_keys(TokenHeader("ES256", "c")) == []
    assert source.candidate_keys(TokenHeader("RS256", "a")) == []  # the id of a key of another type
    assert len(source.candidate_keys(TokenHeader("RS256")) or []) == 1
    assert source.candidate_keys(TokenHeader("ES256")) == []  # ambiguous
    file.write_bytes(key_set(public("ES256", "a") | {"alg": "RS256"}))
    await source.poll()
    assert source.candidate_keys(A) == []  # its own alg differs


@pytest.mark.parametrize(
    "kid", ["../../etc/passwd", "a' OR '1'='1", "http://127.0.0.1:1/", "\0", ""]
)
async def test_a_key_id_is_only_compared(kid: str, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a")))
    assert FileKeySet(file).candidate_keys(TokenHeader("ES256", kid)) == []


# A file


async def test_a_file_is_read_again_when_it_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a")))
    source = FileKeySet(file)
    await source.poll()
    assert source.generation == 0
    file.write_bytes(key_set(public("ES256", "bb")))
    await source.poll()
    assert (source.generation, source.candidate_keys(A)) == (1, [])
    file.write_bytes(b"nonsense")
    await source.poll()
    await source.poll()
    assert (source.generation, len(caplog.records)) == (1, 1)
    assert source.candidate_keys(TokenHeader("ES256", "bb"))
    file.unlink()
    await source.poll()
    assert source.candidate_keys(TokenHeader("ES256", "bb"))
    with pytest.raises(OSError, match="No such file"):
        FileKeySet(file)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
async def test_a_file_that_others_may_write_to_is_not_read(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a")))
    source = FileKeySet(file)
    file.write_bytes(key_set(public("ES256", "theirs")))
    file.chmod(mode)
    await source.poll()
    assert source.candidate_keys(A)
    assert source.candidate_keys(TokenHeader("ES256", "theirs")) == []
    assert f"others may write to it; run chmod go-w {file}" in caplog.text
    with pytest.raises(ValueError, match="others may write to it"):
        FileKeySet(file)
    file.chmod(0o644)  # chmod is enough: the file need not be written again
    await source.poll()
    assert source.candidate_keys(TokenHeader("ES256", "theirs"))


# A server


async def test_concurrent_requests_share_one_fetch() -> None:
    async with hang_guard(), key_server(public("ES256", "a")) as server:
        source = RemoteKeySet(server.url)
        assert source.candidate_keys(A) is None
        server.open.clear()
        waiting = [asyncio.create_task(source.fetch_now()) for _ in range(50)]
        while not server.asked:
            await asyncio.sleep(0)
        waiting[0].cancel()  # cancelling one caller does not affect the others
        server.open.set()
        await asyncio.gather(*waiting[1:])
        assert len(source.candidate_keys(A) or []) == 1
        assert server.asked == 1


async def test_an_unknown_key_causes_one_fetch_per_interval() -> None:
    clock = Clock()
    async with hang_guard(), key_server(public("ES256", "a")) as server:
        source = RemoteKeySet(server.url, clock=clock)
        await source.fetch_now()
        server.body = key_set(public("ES256", "b"))
        for _ in range(100):
            await source.fetch_now()
        assert (server.asked, source.candidate_keys(B)) == (1, [])
        clock.now += MIN_FETCH_INTERVAL
        for _ in range(100):
            await source.fetch_now()
        assert server.asked == 2
        assert len(source.candidate_keys(B) or []) == 1
        assert source.candidate_keys(A) == []  # unpublished keys are dropped
        assert source.generation == 2


async def test_keys_are_fetched_again_after_the_refresh_time() -> None:
    clock = Clock()
    async with hang_guard(), key_server(public("ES256", "a")) as server:
        source = RemoteKeySet(server.url, refresh=60.0, clock=clock)
        await source.poll()
        clock.now += 59
        await source.poll()
        assert (server.asked, source.generation) == (1, 1)
        clock.now += 1
        await source.poll()
        assert (server.asked, source.generation) == (2, 1)  # the keys are the same


FAILURES: dict[str, dict[str, Any]] = {
    "an error": {"status": "500 Internal Server Error"},
    "another status": {"status": "204 No Content", "body": b""},
    "a redirect": {"status": "302 Found", "extra": "location: http://127.0.0.1:1/\r\n"},
    "no JSON": {"body": b"<html>"},
    "too many keys": {"body": key_set(*[public("ES256", "a")] * (MAX_KEYS + 1))},
    "too many bytes": {"body": b" " * (MAX_KEY_SET_BYTES + 1)},
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_the_last_valid_keys_are_kept_when_the_issuer_fails(
    failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with hang_guard(), key_server(public("ES256", "a")) as server:
        source = RemoteKeySet(server.url, refresh=60.0, clock=clock)
        await source.fetch_now()
        good = server.body
        vars(server).update(FAILURES[failure])
        for _ in range(3):
            clock.now += 60
            await source.poll()
        assert server.asked == 4
        assert len(source.candidate_keys(A) or []) == 1
        (record,) = caplog.records  # logged once
        assert "the last keys are kept" in record.getMessage()
        server.status, server.body, server.extra = "200 OK", good, ""
        clock.now += 60
        await source.poll()
        assert source.generation == 1


async def test_keys_expire_after_the_maximum_age(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    async with hang_guard(), key_server(public("ES256", "a")) as server:
        source = RemoteKeySet(server.url, clock=clock)
        await source.fetch_now()
        server.status = "500 Internal Server Error"
        clock.now += MAX_KEY_AGE
        await source.poll()
        assert source.candidate_keys(A)
        clock.now += MIN_FETCH_INTERVAL
        await source.poll()
        assert (source.candidate_keys(A), source.generation) == (None, 2)
        assert "too old" in caplog.text
        server.status = "200 OK"
        clock.now += MIN_FETCH_INTERVAL
        await source.poll()
        assert source.candidate_keys(A)


async def test_a_fetch_times_out(caplog: pytest.LogCaptureFixture) -> None:
    async with hang_guard(), key_server(public("ES256", "a")) as server:
        server.open.clear()
        source = RemoteKeySet(server.url, fetch_timeout=0.05)
        await source.fetch_now()
        assert source.candidate_keys(A) is None
        assert "there are none yet" in caplog.text


async def test_an_unreachable_issuer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = RemoteKeySet("http://127.0.0.1:1/jwks.json")
    async with hang_guard():
        await source.fetch_now()
    assert source.candidate_keys(A) is None
    assert "no keys from http://127.0.0.1:1/jwks.json" in caplog.text


def test_a_key_of_another_curve_is_not_used_for_es256(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    other: Any = ECKey.generate_key("P-384").as_dict(private=False)
    file.write_text(json.dumps({"keys": [other | {"kid": "a"}]}))
    os.utime(file)
    assert FileKeySet(file).candidate_keys(A) == []
