"""Keys of the gateway's own: given out once, known by their digests, revoked at once."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.auth.issuer import NOW
from trunkline.auth import key_file
from trunkline.auth.key_file import (
    PREFIX,
    BadKeyFile,
    KeyFile,
    add_key,
    digest_of,
    read_keys,
    revoke_key,
)
from trunkline.auth.proof import Unproven


def add(path: Path, id: str = "ci", *roles: str, expires: float | None = None) -> str:
    end = None if expires is None else datetime.fromtimestamp(expires, UTC)
    return add_key(path, id, "robot", roles or ("dev",), end)


def refused(keys: KeyFile, key: str, now: float = NOW) -> str:
    with pytest.raises(Unproven) as caught:
        keys.find(key, now)
    return caught.value.why


@pytest.mark.holds("M10")
def test_a_key_proves_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.json"
    key = add(path, "ci", "dev", "ops")
    proof = KeyFile(path).find(key, NOW)
    assert proof.principal.id == "key:ci"
    assert (proof.principal.subject, proof.principal.roles) == ("robot", ("dev", "ops"))
    assert proof.until == float("inf")


def test_a_key_is_long_and_random_and_its_file_has_only_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = [add(path, name) for name in ("a", "b")]
    assert len(set(keys)) == 2
    text = path.read_text()
    for key in keys:
        assert key.startswith(PREFIX)
        assert len(key) == len(PREFIX) + 43  # 256 bits
        assert key not in text
        assert key.removeprefix(PREFIX) not in text
        assert digest_of(key) in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".tmp")] == []


def test_almost_a_key_is_none(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add(path)
    keys = KeyFile(path)
    for almost in (key[:-1], key + "A", key.upper(), PREFIX, ""):
        assert refused(keys, almost) == "the key is not known here"


def test_a_key_ends_when_it_should(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add(path, expires=NOW + 10)
    keys = KeyFile(path)
    assert keys.find(key, NOW + 9).until == NOW + 10
    assert refused(keys, key, NOW + 10) == "the key is expired"


async def test_a_revoked_key_is_worth_nothing_as_soon_as_somebody_looks(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, other = add(path, "ci"), add(path, "other")
    keys = KeyFile(path)
    first = revoke_key(path, "ci")
    assert keys.find(key, NOW)  # nobody has looked yet
    await keys.look()
    assert refused(keys, key) == "the key is revoked"
    assert keys.find(other, NOW)
    assert revoke_key(path, "ci").revoked == first.revoked  # it was then, and stays so
    assert keys.edition == 1


def test_a_name_is_given_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path)
    revoke_key(path, "ci")
    with pytest.raises(BadKeyFile, match="there is a key 'ci' already, or was"):
        add(path)
    with pytest.raises(BadKeyFile, match="there is no key 'x'; there are: ci"):
        revoke_key(path, "x")


@pytest.mark.parametrize("id", ["", "a b", "-x", "a|b", "x" * 65, "a\nb", "é"])
def test_a_name_is_plain(id: str, tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile):
        add(tmp_path / "keys.json", id)
    assert not (tmp_path / "keys.json").exists()


@pytest.mark.parametrize("role", ["", " ", "a\nb", "x" * 257])
def test_so_is_a_role(role: str, tmp_path: Path) -> None:
    with pytest.raises(BadKeyFile):
        add_key(tmp_path / "keys.json", "ci", "robot", (role,), None)


def test_many_who_write_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, [path] * 24, [f"k{n}" for n in range(24)]))
    assert {each.id for each in read_keys(path)} == {f"k{n}" for n in range(24)}


def test_a_file_that_is_not_there_has_no_keys(tmp_path: Path) -> None:
    assert read_keys(tmp_path / "keys.json") == ()


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
def test_a_file_that_is_no_good_is_told_plainly(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(BadKeyFile, match=r"keys\.json: .*`trunkline key` writes it"):
        KeyFile(path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to_is_not_read(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path)
    path.chmod(mode)
    with pytest.raises(BadKeyFile, match="others may write to it; run chmod 600"):
        read_keys(path)


def test_a_file_has_no_id_twice_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    add(path)
    whole = json.loads(path.read_text())
    whole["keys"] *= 2
    path.write_text(json.dumps(whole))
    with pytest.raises(BadKeyFile, match="the same id"):
        read_keys(path)
    monkeypatch.setattr(key_file, "MAX_FILE", 10)
    with pytest.raises(BadKeyFile, match="longer than 10 bytes"):
        read_keys(path)
    with pytest.raises(BadKeyFile, match="cannot be read"):
        read_keys(tmp_path)


async def test_the_old_keys_are_kept_when_the_new_file_is_no_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    key = add(path)
    keys = KeyFile(path)
    path.write_text("nonsense")
    await keys.look()
    await keys.look()
    assert keys.find(key, NOW)
    assert (len(caplog.records), keys.edition) == (1, 0)
    path.unlink()
    await keys.look()
    assert refused(keys, key) == "the key is not known here"  # without a file there are none


def test_a_disk_that_is_full_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    key = add(path)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        add(path, "other")
    assert [each.id for each in read_keys(path)] == ["ci"]
    assert KeyFile(path).find(key, NOW)
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}
