"""Where an issuer's keys come from: a secret, a file, a real server; rotated and broken."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from tests.auth.issuer import Clock, key_of, key_server, key_set, public
from trunkline.auth import key_sets
from trunkline.auth.key_sets import (
    MAX_AGE,
    MAX_KEYS,
    MAX_SIZE,
    MIN_INTERVAL,
    FileKeys,
    RemoteKeys,
    SharedSecret,
    parse_key_set,
)
from trunkline.auth.signatures import Header, secret_key

A, B = Header("ES256", "a"), Header("ES256", "b")


def kids(body: bytes) -> list[str | None]:
    return [each.kid for each in parse_key_set(body)]


async def test_a_secret_is_the_same_whatever_a_token_calls_it() -> None:
    source = SharedSecret(secret_key(b"x" * 32))
    (key,) = source.find(Header("HS256", "anything")) or []
    assert isinstance(key, OctKey)
    await source.seek()
    await source.look()
    assert (source.edition, source.algorithms) == (0, {"HS256"})


# What is taken from a set


def test_public_keys_for_signatures_are_taken() -> None:
    entries = [public(alg, alg, use="sig") for alg in ("RS256", "ES256", "Ed25519")]
    assert kids(key_set(*entries, public("ES256", "x", key_ops=["verify"]))) == [
        *("RS256", "ES256", "Ed25519", "x")
    ]


@pytest.mark.filterwarnings("ignore:Key size")
def test_all_others_are_left_out() -> None:
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
    [b"", b"[]", b"{}", b'{"keys": {}}', b"<html>", b"\xff", b"[" * 100_000, b" " * (MAX_SIZE + 1)],
)
def test_what_is_no_set_is_none(body: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_key_set(body)


def test_a_set_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most 64 keys, got 65"):
        parse_key_set(key_set(*[public("ES256", "a")] * (MAX_KEYS + 1)))
    assert parse_key_set(key_set()) == ()


async def test_a_token_names_its_key_or_leaves_no_doubt(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a"), public("RS256", "r"), public("ES256", "b")))
    source = FileKeys(file)
    assert len(source.find(A) or []) == 1
    assert source.find(A) != source.find(B)
    assert source.find(Header("ES256", "c")) == []
    assert source.find(Header("RS256", "a")) == []  # that is the name of another
    assert len(source.find(Header("RS256")) or []) == 1
    assert source.find(Header("ES256")) == []  # which of the two?
    file.write_bytes(key_set(public("ES256", "a") | {"alg": "RS256"}))
    await source.look()
    assert source.find(A) == []  # it says itself what it is for


@pytest.mark.parametrize(
    "kid", ["../../etc/passwd", "a' OR '1'='1", "http://127.0.0.1:1/", "\0", ""]
)
async def test_a_name_is_only_compared(kid: str, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a")))
    assert FileKeys(file).find(Header("ES256", kid)) == []


# A file


async def test_a_file_is_read_again_when_it_has_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a")))
    source = FileKeys(file)
    await source.look()
    assert source.edition == 0
    file.write_bytes(key_set(public("ES256", "bb")))
    await source.look()
    assert (source.edition, source.find(A)) == (1, [])
    file.write_bytes(b"nonsense")
    await source.look()
    await source.look()
    assert (source.edition, len(caplog.records)) == (1, 1)
    assert source.find(Header("ES256", "bb"))
    file.unlink()
    await source.look()
    assert source.find(Header("ES256", "bb"))
    with pytest.raises(OSError, match="No such file"):
        FileKeys(file)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
async def test_a_file_that_others_may_write_to_is_not_read(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(public("ES256", "a")))
    source = FileKeys(file)
    file.write_bytes(key_set(public("ES256", "theirs")))
    file.chmod(mode)
    await source.look()
    assert source.find(A)
    assert source.find(Header("ES256", "theirs")) == []
    assert f"others may write to it; run chmod go-w {file}" in caplog.text
    with pytest.raises(ValueError, match="others may write to it"):
        FileKeys(file)
    file.chmod(0o644)  # the remedy is enough: nobody has to write the file again
    await source.look()
    assert source.find(Header("ES256", "theirs"))


# A server


async def test_keys_are_fetched_once_and_shared_by_all_who_wait() -> None:
    async with asyncio.timeout(20), key_server(public("ES256", "a")) as server:
        source = RemoteKeys(server.url)
        assert source.find(A) is None
        server.open.clear()
        waiting = [asyncio.create_task(source.seek()) for _ in range(50)]
        while not server.asked:
            await asyncio.sleep(0)
        waiting[0].cancel()  # one who goes does not take the answer away from the others
        server.open.set()
        await asyncio.gather(*waiting[1:])
        assert len(source.find(A) or []) == 1
        assert server.asked == 1


async def test_an_unknown_key_is_looked_for_once_however_often_it_is_named() -> None:
    clock = Clock()
    async with asyncio.timeout(20), key_server(public("ES256", "a")) as server:
        source = RemoteKeys(server.url, clock=clock)
        await source.seek()
        server.body = key_set(public("ES256", "b"))
        for _ in range(100):
            await source.seek()
        assert (server.asked, source.find(B)) == (1, [])
        clock.now += MIN_INTERVAL
        for _ in range(100):
            await source.seek()
        assert server.asked == 2
        assert len(source.find(B) or []) == 1
        assert source.find(A) == []  # what is not published any more is worth nothing
        assert source.edition == 2


async def test_keys_are_asked_for_again_after_a_while() -> None:
    clock = Clock()
    async with asyncio.timeout(20), key_server(public("ES256", "a")) as server:
        source = RemoteKeys(server.url, refresh=60.0, clock=clock)
        await source.look()
        clock.now += 59
        await source.look()
        assert (server.asked, source.edition) == (1, 1)
        clock.now += 1
        await source.look()
        assert (server.asked, source.edition) == (2, 1)  # they are the same


FAILURES: dict[str, dict[str, Any]] = {
    "an error": {"status": "500 Internal Server Error"},
    "another status": {"status": "204 No Content", "body": b""},
    "a redirect": {"status": "302 Found", "extra": "location: http://127.0.0.1:1/\r\n"},
    "no JSON": {"body": b"<html>"},
    "too many keys": {"body": key_set(*[public("ES256", "a")] * (MAX_KEYS + 1))},
    "too many bytes": {"body": b" " * (MAX_SIZE + 1)},
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_the_last_good_keys_are_kept_when_the_server_fails(
    failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with asyncio.timeout(20), key_server(public("ES256", "a")) as server:
        source = RemoteKeys(server.url, refresh=60.0, clock=clock)
        await source.seek()
        good = server.body
        vars(server).update(FAILURES[failure])
        for _ in range(3):
            clock.now += 60
            await source.look()
        assert server.asked == 4
        assert len(source.find(A) or []) == 1
        (record,) = caplog.records  # said once
        assert "the last ones are kept" in record.getMessage()
        server.status, server.body, server.extra = "200 OK", good, ""
        clock.now += 60
        await source.look()
        assert source.edition == 1


async def test_keys_are_not_kept_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    async with asyncio.timeout(20), key_server(public("ES256", "a")) as server:
        source = RemoteKeys(server.url, clock=clock)
        await source.seek()
        server.status = "500 Internal Server Error"
        clock.now += MAX_AGE
        await source.look()
        assert source.find(A)
        clock.now += MIN_INTERVAL
        await source.look()
        assert (source.find(A), source.edition) == (None, 2)
        assert "too old" in caplog.text
        server.status = "200 OK"
        clock.now += MIN_INTERVAL
        await source.look()
        assert source.find(A)


async def test_a_server_that_does_not_answer_does_not_keep_us(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_sets, "_WITHIN", 0.05)
    async with asyncio.timeout(20), key_server(public("ES256", "a")) as server:
        server.open.clear()
        source = RemoteKeys(server.url)
        await source.seek()
        assert source.find(A) is None
        assert "there are none yet" in caplog.text


async def test_a_server_that_is_not_there_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = RemoteKeys("http://127.0.0.1:1/jwks.json")
    async with asyncio.timeout(20):
        await source.seek()
    assert source.find(A) is None
    assert "no keys from http://127.0.0.1:1/jwks.json" in caplog.text


def test_a_key_of_another_curve_is_not_for_es256(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    other: Any = ECKey.generate_key("P-384").as_dict(private=False)
    file.write_text(json.dumps({"keys": [other | {"kid": "a"}]}))
    os.utime(file)
    assert FileKeys(file).find(A) == []
