"""Keys, Ed25519 signatures, and the signed change log of a registry.

    tree ── without its signature, keys sorted, no white space ──> canonical bytes ──> signature
    category_added ─previous_hash─> source_added ─> … ─> registry_signed {version, digest}

A signature covers what a document says, not its layout: a file may be reformatted, or converted
from JSON to TOML, and its signature still holds.

A log entry has an id, timestamp, action, category, data, actor, previous_hash and signature, as in
the founding brief. Here the signature covers all other members, the hash and the id included.
Files are left to `registry_file`; the functions for logs work on their text.

Invariants upheld here:
1. A private key is in a file that only its owner can read: it is created so, and refused otherwise.
   Nothing here prints, returns or quotes a private key.
2. A signature of one kind of document is invalid for another: the kind is signed too.
3. A document that cannot be verified counts as not signed; no exception is raised.
4. A log is valid if every entry is signed by the curator and has the hash of the entry before.
5. Replaying a valid log gives the topics of the registry, and its last entry has the digest of the
   registry. So a change or truncation of either file is detected by comparing them.
6. A log has no entry without a change.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

Table: TypeAlias = dict[str, Any]

# The kinds of documents that are signed.
REGISTRY_KIND = "trunkline sources: registry"
CHANGE_KIND = "trunkline sources: change"

# The previous_hash of the first log entry.
GENESIS_HASH = "0" * 64

SIGNED_ACTION = "registry_signed"

_ZBASE32_ALPHABET = "ybndrfg8ejkmcpqxot1uwisza345h769"
_MAX_KEY_FILE_BYTES = 16 * 1024

_ENTRY_KEYS = {"id", "timestamp", "action", "data", "actor", "previous_hash", "signature"}
_CATEGORY_KEYS = ("name", "description", "query_patterns")


class UnusableKey(ValueError):
    """A private key cannot be used; the message says why and what to do."""


class InvalidChangeLog(ValueError):
    """A change log is not valid: the line, if one line is at fault, and the reason."""

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(f"line {line}: {reason}" if line else reason)
        self.line = line
        self.reason = reason


class RegistryChange(NamedTuple):
    """One change of a registry, not yet signed."""

    action: str
    # The slug of the topic, or "" for a change of the whole registry.
    category: str
    data: Table


class EntryStamp(NamedTuple):
    """The inputs of a log entry that come from outside: the time, and a source of new ids."""

    timestamp: str
    new_id: Callable[[], str]


class RegistrySigner:
    """Signs documents with a private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.pubkey = key.public_key().public_bytes_raw().hex()

    @classmethod
    def generate(cls, path: Path) -> "RegistrySigner":
        """Create a key in a new file; raises FileExistsError, or another OSError."""
        key = Ed25519PrivateKey.generate()
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        # The mode is set at creation: other users can never read the key.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        return cls(key)

    @classmethod
    def load(cls, path: Path) -> "RegistrySigner":
        """Read a key from its file; raises UnusableKey."""
        try:
            with path.open("rb") as file:
                # Of the open file: the path may lead to another file by now.
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(_MAX_KEY_FILE_BYTES)
        except (OSError, ValueError) as exc:  # ValueError: a NUL in the name
            reason = (getattr(exc, "strerror", None) or "not a file name").lower()
            raise UnusableKey(f"{path}: cannot be read: {reason}; check its name") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UnusableKey(f"{path}: others may read this private key; run chmod 600 {path}")
        try:
            key = load_pem_private_key(text, None)
        except (ValueError, TypeError):  # dropped, because the message quotes the key
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise UnusableKey(
                f"{path}: expected an Ed25519 private key in PEM, without a password; "
                "`trunkline sources keygen` makes one"
            )
        return cls(key)

    def sign(self, kind: str, tree: Table) -> Table:
        """Return `tree` with its signature."""
        return tree | {"signature": self._key.sign(_signed_bytes(kind, tree)).hex()}

    def __repr__(self) -> str:
        return f"RegistrySigner({self.pubkey})"


def canonical_bytes(tree: Table) -> bytes:
    """Return the bytes that are signed and hashed: all of `tree` except its signature."""
    rest = {key: value for key, value in tree.items() if key != "signature"}
    # Sorted and without white space: the same content always gives the same bytes.
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def content_digest(tree: Table) -> str:
    """Return the hash of the canonical bytes."""
    return sha256(canonical_bytes(tree)).hexdigest()


def is_signed_by(pubkey: str, kind: str, tree: Table) -> bool:
    """Return whether the signature in `tree` is valid and of `pubkey`."""
    try:
        signature = bytes.fromhex(str(tree.get("signature")))
        key = Ed25519PublicKey.from_public_bytes(decode_public_key(pubkey))
        key.verify(signature, _signed_bytes(kind, tree))
    except (InvalidSignature, ValueError, RecursionError):
        return False
    return True


def decode_public_key(pubkey: str) -> bytes:
    """Decode a public key in hex, or in z-base-32 as PKARR writes it; raises ValueError."""
    text = pubkey.removeprefix("pk:")
    if len(text) == 64:
        return bytes.fromhex(text)
    number = 0
    for character in text:
        number = number << 5 | _ZBASE32_ALPHABET.index(character)
    if len(text) != 52 or number & 0b1111:  # 52 digits have four bits more than a key
        raise ValueError("expected a public key of 64 digits in hex, or 52 in z-base-32")
    return (number >> 4).to_bytes(32, "big")


def is_same_key(one: str, other: str) -> bool:
    """Return whether two public keys are equal, in either notation."""
    try:
        return decode_public_key(one) == decode_public_key(other)
    except ValueError:
        return False


def _signed_bytes(kind: str, tree: Table) -> bytes:
    return kind.encode() + b"\n" + canonical_bytes(tree)


def entry_hash(entry: Table) -> str:
    """Return the hash of a whole log entry, its signature included."""
    # Nested, because canonical_bytes() leaves out a signature at the top.
    return sha256(canonical_bytes({"entry": entry})).hexdigest()


def parse_log(text: str) -> list[Table]:
    """Return the entries of a log, not verified; raises InvalidChangeLog."""
    entries: list[Table] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidChangeLog(number, "not JSON") from None
        if not _is_entry(entry):
            raise InvalidChangeLog(number, "not an entry of a change log")
        entries.append(entry)
    return entries


def render_log(entries: Iterable[Table]) -> str:
    """Return entries as the lines of a log."""
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def verify_log(entries: list[Table], tree: Table) -> str:
    """Verify a log against its registry; return the hash of its last entry.

    Raises InvalidChangeLog.
    """
    curator = tree["curator"]["pubkey"]
    state = _replay(entries, curator)
    if not entries or entries[-1]["action"] != SIGNED_ACTION:
        reason = "the last entry is missing: expected a registry_signed entry"
        raise InvalidChangeLog(None, reason)
    if entries[-1]["data"].get("digest") != content_digest(tree):
        reason = "the registry is not the version that was signed last"
        raise InvalidChangeLog(len(entries), reason)
    if state != _state_of(tree):
        raise InvalidChangeLog(None, "the entries do not lead to the topics of the registry")
    return entry_hash(entries[-1])


def extend_log(
    entries: list[Table], tree: Table, signer: RegistrySigner, stamp: EntryStamp
) -> list[Table]:
    """Return the entries to append when the registry is signed; raises InvalidChangeLog."""
    state = _replay(entries, signer.pubkey)
    changes = [*_differences(state, _state_of(tree))]
    data = {"version": tree["version"], "digest": content_digest(tree)}
    if changes or not entries or entries[-1]["data"] != data:
        changes.append(RegistryChange(SIGNED_ACTION, "", data))
    previous = entry_hash(entries[-1]) if entries else GENESIS_HASH
    added: list[Table] = []
    for change in changes:
        entry: Table = {"id": stamp.new_id(), "timestamp": stamp.timestamp, "action": change.action}
        if change.category:
            entry["category"] = change.category
        entry |= {"data": change.data, "actor": signer.pubkey, "previous_hash": previous}
        added.append(signer.sign(CHANGE_KIND, entry))
        previous = entry_hash(added[-1])
    return added


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    entry = cast("Table", value)
    texts = _ENTRY_KEYS - {"data"}
    return (
        set(entry) - {"category"} == _ENTRY_KEYS
        and all(isinstance(entry[key], str) for key in texts)
        and isinstance(entry.get("category", ""), str)
        and isinstance(entry["data"], dict)
    )


def _replay(entries: list[Table], pubkey: str) -> Table:
    """Verify a log entry by entry and return the topics it leads to; raises InvalidChangeLog."""
    state: Table = {}
    previous = GENESIS_HASH
    for number, entry in enumerate(entries, 1):
        if entry["previous_hash"] != previous:
            raise InvalidChangeLog(number, "the entry before it is missing, or was changed")
        if not is_same_key(entry["actor"], pubkey):
            raise InvalidChangeLog(number, "by another key than the curator's")
        if not is_signed_by(pubkey, CHANGE_KIND, entry):
            raise InvalidChangeLog(number, "not signed by its actor, or changed since")
        change = RegistryChange(entry["action"], entry.get("category", ""), entry["data"])
        try:
            _apply(state, change)
        except (KeyError, TypeError):
            reason = "about something that does not exist, or exists already"
            raise InvalidChangeLog(number, reason) from None
        previous = entry_hash(entry)
    return state


def _state_of(tree: Table) -> Table:
    """Return the topics of a registry in the form that `_replay` builds."""
    return {
        slug: {key: category[key] for key in _CATEGORY_KEYS}
        | {"sources": {source["url"]: source for source in category["sources"]}}
        for slug, category in tree["categories"].items()
    }


def _differences(old: Table, new: Table) -> Iterator[RegistryChange]:
    # Sorted, so that the same difference always gives the same entries in the same order.
    for slug in sorted(old.keys() - new.keys()):
        yield RegistryChange("category_removed", slug, {})
    for slug, category in sorted(new.items()):
        before = old.get(slug)
        data = {key: category[key] for key in _CATEGORY_KEYS}
        if before is None:
            yield RegistryChange("category_added", slug, data)
        elif data != {key: before[key] for key in _CATEGORY_KEYS}:
            yield RegistryChange("category_updated", slug, data)
        yield from _source_differences(slug, before["sources"] if before else {}, category)


def _source_differences(slug: str, old: Table, category: Table) -> Iterator[RegistryChange]:
    new = category["sources"]
    for url in sorted(old.keys() - new.keys()):
        yield RegistryChange("source_removed", slug, {"url": url})
    for url, source in new.items():
        if url not in old:
            yield RegistryChange("source_added", slug, source)
        elif source != old[url]:
            yield RegistryChange("source_updated", slug, source)


def _apply(state: Table, change: RegistryChange) -> None:
    """Apply a change to `state`; raises KeyError if it does not fit."""
    action, slug, data = change
    match action:
        case "category_added" if slug not in state:
            state[slug] = {key: data[key] for key in _CATEGORY_KEYS} | {"sources": {}}
        case "category_updated":
            state[slug] |= {key: data[key] for key in _CATEGORY_KEYS}
        case "category_removed":
            del state[slug]
        case "source_added" if data["url"] not in state[slug]["sources"]:
            state[slug]["sources"][data["url"]] = data
        case "source_updated" if data["url"] in state[slug]["sources"]:
            state[slug]["sources"][data["url"]] = data
        case "source_removed":
            del state[slug]["sources"][data["url"]]
        case _ if action == SIGNED_ACTION:
            return
        case _:
            raise KeyError(action)
