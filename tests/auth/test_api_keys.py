"""API keys of the gateway: shown once, stored as digests, revocable at once."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.auth.issuer import NOW
from trunkline.auth.api_keys import (
    KEY_PREFIX,
    ApiKeyFile,
    KeyFileError,
    add_key,
    key_digest,
    read_key_file,
    revoke_key,
)
from trunkline.auth.claims import AuthenticationError


def add(path: Path, id: str = "ci", *roles: str, expires: float | None = None) -> str:
    end = None if expires is None else datetime.fromtimestamp(expires, UTC)
    return add_key(path, id, "robot", roles or ("dev",), end)


def refused(keys: ApiKeyFile, key: str, now: float = NOW) -> str:
    with pytest.raises(AuthenticationError) as caught:
        keys.verify(key, now)
    return caught.value.reason


@pytest.mark.holds("M10")
def test_a_key_authenticates_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.json"
    key = add(path, "ci", "dev", "ops")
    proof = ApiKeyFile(path).verify(key, NOW)
    assert proof.principal.id == "key:ci"
    assert (proof.principal.subject, proof.principal.roles) == ("robot", ("dev", "ops"))
    assert proof.valid_until == float("inf")


def test_a_key_is_random_and_the_file_stores_only_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = [add(path, name) for name in ("a", "b")]
    assert len(set(keys)) == 2
    text = path.read_text()
    for key in keys:
        assert key.startswith(KEY_PREFIX)
        assert len(key) == len(KEY_PREFIX) + 43  # 256 bits
        assert key not in text
        assert key.removeprefix(KEY_PREFIX) not in text
        assert key_digest(key) in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".tmp")] == []


def test_a_nearly_correct_key_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add(path)
    keys = ApiKeyFile(path)
    for almost in (key[:-1], key + "A", key.upper(), KEY_PREFIX, ""):
        assert refused(keys, almost) == "the API key is unknown"


def test_a_key_expires(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add(path, expires=NOW + 10)
    keys = ApiKeyFile(path)
    assert keys.verify(key, NOW + 9).valid_until == NOW + 10
    assert refused(keys, key, NOW + 10) == "the key is expired"


async def test_a_revoked_key_is_rejected_after_the_next_poll(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, other = add(path, "ci"), add(path, "other")
    keys = ApiKeyFile(path)
    first = revoke_key(path, "ci")
    assert keys.verify(key, NOW)  # not polled yet
    await keys.poll()
    assert refused(keys, key) == "the key is revoked"
    assert keys.verify(other, NOW)
    assert revoke_key(path, "ci").revoked == first.revoked  # the first revocation stays
    assert keys.generation == 1


def test_a_key_id_is_never_reused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path)
    revoke_key(path, "ci")
    with pytest.raises(KeyFileError, match="a key 'ci' exists or existed"):
        add(path)
    with pytest.raises(KeyFileError, match="there is no key 'x'; there are: ci"):
        revoke_key(path, "x")


@pytest.mark.parametrize("id", ["", "a b", "-x", "a|b", "x" * 65, "a\nb", "é"])
def test_a_key_id_is_plain(id: str, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        add(tmp_path / "keys.json", id)
    assert not (tmp_path / "keys.json").exists()


@pytest.mark.parametrize("role", ["", " ", "a\nb", "x" * 257])
def test_a_role_is_plain(role: str, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        add_key(tmp_path / "keys.json", "ci", "robot", (role,), None)


def test_concurrent_writers_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, [path] * 24, [f"k{n}" for n in range(24)]))
    assert {each.id for each in read_key_file(path)} == {f"k{n}" for n in range(24)}


def test_a_missing_file_has_no_keys(tmp_path: Path) -> None:
    assert read_key_file(tmp_path / "keys.json") == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"keys": {}}',
        '{"keys": [{"id": "a"}]}',
        '{"kys": []}',
        '{"keys": [{"id":"a","subject":"a","roles":["r"],"sha256":"x","created":"2026-01-01"}]}',
    ],
)
def test_an_invalid_file_is_reported_clearly(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match=r"keys\.json: .*`trunkline key` writes it"):
        ApiKeyFile(path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to_is_not_read(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match="others may write to it; run chmod go-w"):
        read_key_file(path)


def test_a_file_has_unique_ids_and_a_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path)
    whole = json.loads(path.read_text())
    whole["keys"] *= 2
    path.write_text(json.dumps(whole))
    with pytest.raises(KeyFileError, match="the same id"):
        read_key_file(path)
    with pytest.raises(KeyFileError, match="longer than 10 bytes"):
        read_key_file(path, max_bytes=10)
    with pytest.raises(KeyFileError, match="cannot be read"):
        read_key_file(tmp_path)


async def test_the_old_keys_are_kept_when_the_new_file_is_invalid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    key = add(path)
    keys = ApiKeyFile(path)
    path.write_text("nonsense")
    await keys.poll()
    await keys.poll()
    assert keys.verify(key, NOW)
    assert (len(caplog.records), keys.generation) == (1, 0)
    path.unlink()
    await keys.poll()
    assert refused(keys, key) == "the API key is unknown"  # a removed file has no keys


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.json"
    key = add(path)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        add(path, "other")
    assert [each.id for each in read_key_file(path)] == ["ci"]
    assert ApiKeyFile(path).verify(key, NOW)
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}
