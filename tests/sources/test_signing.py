"""Keys, signatures, and the signed change log."""

import copy
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.registries import PUBKEY, TREE, category, signed
from trunkline.sources.signing import (
    CHANGE_KIND,
    GENESIS_HASH,
    REGISTRY_KIND,
    EntryStamp,
    InvalidChangeLog,
    RegistrySigner,
    UnusableKey,
    canonical_bytes,
    content_digest,
    decode_public_key,
    entry_hash,
    extend_log,
    is_same_key,
    is_signed_by,
    parse_log,
    render_log,
    verify_log,
)

SIGNER = RegistrySigner(Ed25519PrivateKey.from_private_bytes(bytes(32)))
ZBASE = "ybndrfg8ejkmcpqxot1uwisza345h769"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TREES = st.dictionaries(st.text(), VALUES, max_size=4)


@given(TREES)
def test_any_signed_tree_verifies_in_any_layout(tree: dict[str, Any]) -> None:
    signed = SIGNER.sign(REGISTRY_KIND, tree)
    turned = dict(reversed(signed.items()))
    assert is_signed_by(SIGNER.pubkey, REGISTRY_KIND, turned)
    assert canonical_bytes(turned) == canonical_bytes(tree | {"signature": "another"})


@pytest.mark.holds("O1.12")
@given(TREES, st.text(), st.integers())
def test_a_change_anywhere_breaks_the_signature(tree: dict[str, Any], key: str, value: int) -> None:
    signed = SIGNER.sign(REGISTRY_KIND, tree)
    changed = signed | {key: value}
    same = key == "signature" or content_digest(changed) == content_digest(signed)
    assert is_signed_by(SIGNER.pubkey, REGISTRY_KIND, changed) is (same and key != "signature")


def test_a_signature_is_valid_for_one_kind_and_key_only() -> None:
    signed = SIGNER.sign(REGISTRY_KIND, {"a": 1})
    assert not is_signed_by(SIGNER.pubkey, CHANGE_KIND, signed)
    assert not is_signed_by(PUBKEY, REGISTRY_KIND, signed)


@pytest.mark.parametrize("signature", [None, "", "zz", "ab", 3, "0" * 128, ["x"]])
def test_an_invalid_signature_does_not_verify(signature: object) -> None:
    assert not is_signed_by(SIGNER.pubkey, REGISTRY_KIND, {"signature": signature})


def test_an_invalid_key_does_not_verify() -> None:
    signed = SIGNER.sign(REGISTRY_KIND, {})
    assert not is_signed_by("nobody", REGISTRY_KIND, signed)
    assert not is_signed_by("l" * 52, REGISTRY_KIND, signed)


@given(st.binary(min_size=32, max_size=32))
def test_a_key_is_the_same_in_both_notations(key: bytes) -> None:
    number = int.from_bytes(key, "big") << 4
    text = "".join(ZBASE[number >> shift & 31] for shift in range(255, -5, -5))
    assert (
        decode_public_key(text)
        == decode_public_key(f"pk:{text}")
        == decode_public_key(key.hex())
        == key
    )
    assert is_same_key(text, key.hex())


@pytest.mark.parametrize("text", ["", "y" * 51, "y" * 51 + "b", "l" * 52, "g" * 64])
def test_an_invalid_public_key_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a public key|substring|non-hexadecimal"):
        decode_public_key(text)
    assert not is_same_key(text, text)


def test_a_generated_key_is_readable_by_its_owner_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key"
    old = os.umask(0)
    try:
        made = RegistrySigner.generate(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert RegistrySigner.load(path).pubkey == made.pubkey
    secret = path.read_text().splitlines()[1]
    assert secret not in repr(made)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(FileExistsError):
        RegistrySigner.generate(path)


def pem(key: Any, encryption: Any = NoEncryption()) -> bytes:  # noqa: B008
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"secret",
        b"-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n",
        pem(generate_private_key(SECP256R1())),
        pem(Ed25519PrivateKey.generate(), BestAvailableEncryption(b"secret")),
    ],
)
def test_an_invalid_private_key_is_rejected_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UnusableKey, match="expected an Ed25519 private key") as caught:
        RegistrySigner.load(path)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_private_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    RegistrySigner.generate(path)
    path.chmod(0o640)
    with pytest.raises(UnusableKey, match="run chmod 600"):
        RegistrySigner.load(path)


@pytest.mark.parametrize("name", ["nothing", ".", "\0"])
def test_an_unreadable_key_is_reported(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnusableKey, match="cannot be read"):
        RegistrySigner.load(tmp_path / name)


NUMBERS = count()
STAMP = EntryStamp("2026-11-16T00:00:00Z", lambda: str(next(NUMBERS)))
TWO = {slug: TREE["categories"][slug] for slug in ("rust-learning", "linux-hardening")}
FIRST = signed(SIGNER, categories=TWO)


def logged(*trees: dict[str, Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for each in trees:
        entries += extend_log(entries, each, SIGNER, STAMP)
    return entries


@pytest.mark.holds("O1.12")
def test_the_first_signature_logs_everything() -> None:
    entries = logged(FIRST)
    assert [entry["action"] for entry in entries] == [
        *("category_added", "source_added", "source_added", "source_added") * 2,
        "registry_signed",
    ]
    assert entries[0]["previous_hash"] == GENESIS_HASH
    assert entries[1]["previous_hash"] == entry_hash(entries[0])
    assert {entry["actor"] for entry in entries} == {SIGNER.pubkey}
    assert len({entry["id"] for entry in entries}) == len(entries)
    assert verify_log(entries, FIRST) == entry_hash(entries[-1])


def test_no_change_gives_no_entry() -> None:
    assert extend_log(logged(FIRST), FIRST, SIGNER, STAMP) == []


def change(what: str) -> dict[str, Any]:
    categories = copy.deepcopy(TWO)
    rust = categories["rust-learning"]
    match what:
        case "category_removed":
            del categories["linux-hardening"]
        case "category_added":
            categories["new"] = category("new", "New", ("a", "b", "c"))
        case "category_updated":
            rust["query_patterns"].append("more")
        case "source_updated":
            rust["sources"][0]["why"] = "Better."
        case _:
            rust["sources"][0]["url"] = "https://other.example"
    return signed(SIGNER, categories=categories)


@pytest.mark.holds("O1.12")
@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("category_removed", 1),
        ("category_added", 4),
        ("category_updated", 1),
        ("source_updated", 1),
        ("source_removed", 2),
    ],
)
def test_each_kind_of_change_is_logged(what: str, count: int) -> None:
    new = change(what)
    entries = logged(FIRST)
    added = extend_log(entries, new, SIGNER, STAMP)
    assert (added[0]["action"], added[-1]["action"]) == (what, "registry_signed")
    assert len(added) == count + 1
    verify_log(entries + added, new)
    with pytest.raises(InvalidChangeLog, match="not the version that was signed last"):
        verify_log(entries + added, FIRST)


def test_a_new_version_alone_is_signed_too() -> None:
    newer = signed(SIGNER, categories=TWO, version="2.0.0")
    (added,) = extend_log(logged(FIRST), newer, SIGNER, STAMP)
    assert added["data"]["version"] == "2.0.0"


def test_a_log_survives_being_written() -> None:
    entries = logged(FIRST, change("source_updated"))
    assert parse_log(render_log(entries)) == entries


@pytest.mark.holds("O1.12")
@given(st.data())
def test_no_entry_can_be_left_out_moved_or_changed(data: st.DataObject) -> None:
    new = change("source_updated")
    entries = logged(FIRST, new)
    place = data.draw(st.integers(0, len(entries) - 1))
    how = data.draw(st.sampled_from(["left out", "moved", "changed", "ends early"]))
    broken = copy.deepcopy(entries)
    if how == "left out":
        del broken[place]
    elif how == "moved":
        broken.insert(len(broken) - 1 - place, broken.pop(place))
        if broken == entries:
            return
    elif how == "changed":
        key = data.draw(st.sampled_from(["id", "timestamp", "action", "actor", "previous_hash"]))
        broken[place][key] = "1" * 64
    else:
        broken = broken[:place]
    with pytest.raises(InvalidChangeLog):
        verify_log(broken, new)


@pytest.mark.parametrize(
    ("action", "category", "data"),
    [
        ("category_added", "rust-learning", {}),
        ("category_updated", "nothing", {}),
        ("category_updated", "rust-learning", {}),
        ("category_removed", "nothing", {}),
        ("source_added", "rust-learning", {"url": "https://rust-learning.example/1"}),
        ("source_updated", "rust-learning", {"url": "https://nowhere.example"}),
        ("source_removed", "rust-learning", {"url": "https://nowhere.example"}),
        ("source_removed", "rust-learning", {"url": ["x"]}),
        ("vote_cast", "", {}),
    ],
)
def test_a_signed_entry_that_does_not_apply_is_rejected(
    action: str, category: str, data: dict[str, Any]
) -> None:
    entries = logged(FIRST)
    entry = entries[-1] | {"action": action, "category": category, "data": data}
    entry["previous_hash"] = entry_hash(entries[-1])
    with pytest.raises(
        InvalidChangeLog, match="line 10: about something that does not exist, or exists already"
    ):
        verify_log([*entries, SIGNER.sign(CHANGE_KIND, entry)], FIRST)


def test_entries_that_lead_to_other_topics_are_rejected() -> None:
    entries = logged(FIRST)
    removed = entries[-1] | {"action": "category_removed", "category": "linux-hardening"}
    removed["previous_hash"] = entry_hash(entries[-1])
    removed = SIGNER.sign(CHANGE_KIND, removed)
    last = SIGNER.sign(CHANGE_KIND, entries[-1] | {"previous_hash": entry_hash(removed)})
    with pytest.raises(InvalidChangeLog, match="do not lead to the topics"):
        verify_log([*entries, removed, last], FIRST)


def test_the_log_of_another_key_is_rejected() -> None:
    other = FIRST | {"curator": {"name": "Eve", "pubkey": PUBKEY}}
    with pytest.raises(InvalidChangeLog, match="line 1: by another key than the curator's"):
        verify_log(logged(FIRST), other)


def test_an_empty_log_does_not_verify() -> None:
    with pytest.raises(InvalidChangeLog, match="the last entry is missing"):
        verify_log([], FIRST)


ENTRY = '{"id": "1", "timestamp": "", "action": "", "data": %s, "actor": "", "previous_hash": ""}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON"),
        ("[]", "line 1: not an entry"),
        ("{}", "line 1: not an entry"),
        (ENTRY % "{}", "line 1: not an entry"),
        (ENTRY.replace("}", ', "signature": ""}') % "[]", "line 1: not an entry"),
    ],
)
def test_text_that_is_not_a_log_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(InvalidChangeLog, match=reason):
        parse_log(text)
