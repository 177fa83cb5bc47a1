"""API keys that this gateway issues, stored in a file as SHA-256 digests.

    trunkline key add ──> the key, shown once ──> its digest in the file ──> looked up by digest

A plain digest is enough: a key has 256 random bits, so it cannot be guessed at any speed. A slow
hash such as scrypt protects secrets that people choose, and would slow every first request here.

Invariants:
1. A key is shown once, when it is created. Only its digest is stored.
2. The file is replaced as a whole or not at all, belongs to its owner alone, and concurrent writers
   wait for each other.
3. A key id is never reused, not even after the key was revoked.
4. A file that others may write to is not read. A missing file has no keys.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from trunkline.auth.claims import (
    CONTROL_CHARACTERS,
    MAX_NAME_CHARS,
    MAX_ROLES,
    AuthenticationError,
    VerifiedIdentity,
)
from trunkline.files import (
    FileTooLarge,
    WatchedFile,
    WritableByOthers,
    file_lock,
    read_file,
    replace_file,
)
from trunkline.mcp.identity import Principal

# The prefix of every key, so that secret scanners can find leaked ones.
KEY_PREFIX = "tlk_"

MAX_KEY_FILE_BYTES = 16 * 1024 * 1024
_KEY_BITS = 256
_log = logging.getLogger(__name__)

_Name = Annotated[
    str,
    Meta(
        pattern=rf"^[^{CONTROL_CHARACTERS}]*\S[^{CONTROL_CHARACTERS}]*$", max_length=MAX_NAME_CHARS
    ),
]
_Time = Annotated[datetime, Meta(tz=True)]


class ApiKeyRecord(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the file stores about a key."""

    id: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    subject: _Name
    roles: Annotated[tuple[_Name, ...], Meta(max_length=MAX_ROLES)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    created: _Time
    expires: _Time | None = None
    revoked: _Time | None = None

    @property
    def principal(self) -> Principal:
        """The principal of the key's owner."""
        return Principal(f"key:{self.id}", self.subject, self.roles)

    def state(self, now: float) -> str:
        """Return `good`, `revoked` or `expired`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires and self.expires.timestamp() <= now else "good"


class _KeyFileContent(Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[ApiKeyRecord, ...] = ()


class KeyFileError(ValueError):
    """A key file cannot be used or changed; the message says why and what to do."""


class ApiKeyFile:
    """The API keys of a file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        """Read the file; raises KeyFileError."""
        # How often the keys have changed.
        self.generation = 0
        self._file = WatchedFile(path)
        self._records = _by_digest(read_key_file(path))

    def verify(self, key: str, now: float) -> VerifiedIdentity:
        """Return the identity of a key's owner; raises AuthenticationError."""
        record = self._records.get(key_digest(key))
        if record is None:
            raise AuthenticationError("the API key is unknown")
        state = record.state(now)
        if state != "good":
            raise AuthenticationError(f"the key is {state}")
        valid_until = float("inf") if record.expires is None else record.expires.timestamp()
        return VerifiedIdentity(record.principal, valid_until)

    async def poll(self) -> None:
        """Read the file again if it has changed; an invalid file changes nothing."""
        if not await self._file.has_changed():
            return
        try:
            self._records = _by_digest(await asyncio.to_thread(read_key_file, self._file.path))
            self.generation += 1
        except KeyFileError as error:
            # An editor may have written half of the file: wait for the next change.
            _log.warning("the old keys are kept: %s", error)


def key_digest(key: str) -> str:
    """Return the digest under which a key is stored."""
    return sha256(key.encode()).hexdigest()


def _by_digest(records: tuple[ApiKeyRecord, ...]) -> dict[str, ApiKeyRecord]:
    return {record.sha256: record for record in records}


def read_key_file(path: Path, max_bytes: int = MAX_KEY_FILE_BYTES) -> tuple[ApiKeyRecord, ...]:
    """Return the keys of a file, none if it is missing; raises KeyFileError."""
    try:
        data = read_file(path, max_bytes, owner_only=True)
    except FileNotFoundError:
        return ()
    except WritableByOthers as error:
        raise KeyFileError(f"{path}: {error}") from None
    except FileTooLarge:
        error = f"longer than {max_bytes} bytes; is it the right file?"
        raise KeyFileError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not a file name").lower()
        raise KeyFileError(f"{path}: cannot be read: {reason}; check its permissions") from None
    try:
        records = msgspec.json.decode(data, type=_KeyFileContent).keys
    except (msgspec.DecodeError, RecursionError) as error:
        hint = "`trunkline key` writes it, and a newer version may write other fields"
        raise KeyFileError(f"{path}: {str(error).lower()}; {hint}") from None
    if len({record.id for record in records}) < len(records):
        raise KeyFileError(f"{path}: two keys have the same id; take one of them out")
    return records


def add_key(
    path: Path, id: str, subject: str, roles: tuple[str, ...], expires: datetime | None
) -> str:
    """Create a key, store its digest and return it; raises KeyFileError or OSError."""
    key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BITS // 8)
    record = ApiKeyRecord(
        id=id,
        subject=subject,
        roles=roles,
        sha256=key_digest(key),
        created=_now(),
        expires=expires,
    )
    # msgspec checks constraints only when it decodes.
    try:
        msgspec.json.decode(msgspec.json.encode(record), type=ApiKeyRecord)
    except msgspec.ValidationError as error:
        raise KeyFileError(f"the key {id!r}: {str(error).lower()}; choose another name") from None

    def add(records: tuple[ApiKeyRecord, ...]) -> tuple[ApiKeyRecord, ...]:
        if any(each.id == id for each in records):
            raise KeyFileError(f"a key {id!r} exists or existed; choose another name")
        return (*records, record)

    _rewrite(path, add)
    return key


def revoke_key(path: Path, id: str) -> ApiKeyRecord:
    """Revoke a key and return its record; raises KeyFileError or OSError."""
    changed: list[ApiKeyRecord] = []

    def revoke(records: tuple[ApiKeyRecord, ...]) -> tuple[ApiKeyRecord, ...]:
        if id not in {each.id for each in records}:
            known = ", ".join(each.id for each in records) or "none"
            raise KeyFileError(f"there is no key {id!r}; there are: {known}")
        # A revoked key stays in the file, so that its id is never used again.
        after = tuple(
            msgspec.structs.replace(each, revoked=each.revoked or _now()) if each.id == id else each
            for each in records
        )
        changed.extend(each for each in after if each.id == id)
        return after

    _rewrite(path, revoke)
    return changed[0]


def _rewrite(
    path: Path, change: Callable[[tuple[ApiKeyRecord, ...]], tuple[ApiKeyRecord, ...]]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Read and replace under one lock: two commands at a time must not lose a key.
    with file_lock(path):
        records = change(read_key_file(path))
        text = msgspec.json.format(msgspec.json.encode(_KeyFileContent(records)), indent=2) + b"\n"
        replace_file(path, text)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
