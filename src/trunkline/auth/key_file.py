"""Key file: the keys that this gateway gives out itself, as digests.

    trunkline key add ──> a key, shown once ──> its SHA-256 in the file ──> found again by it

A plain digest is right here, and scrypt would be wrong: a key is 256 random bits, so that nobody
can try all of them however fast that is; slow hashes help those who choose their secrets
themselves, and would make every first request with a key cost as much as an attack.

Rules upheld here:
1. The file has no key in it, and nothing else has either: a key is shown once.
2. A file is replaced as a whole or not at all, is its owner's alone, and two who write wait for
   each other.
3. A name is given once: what belonged to a key that was revoked is nobody else's later.
4. A file that others may write to is not read; one that is not there is one without keys.
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

from trunkline.auth.claims import CONTROL, MAX_NAME, MAX_ROLES
from trunkline.auth.proof import Proof, Unproven
from trunkline.files import Exposed, TooLong, Watched, alone, read_file, replace_file
from trunkline.mcp.principal import Principal

PREFIX = "tlk_"
"""How a key begins: programs that look for leaked secrets can look for that."""

MAX_FILE = 16 * 1024 * 1024
_BITS = 256
_log = logging.getLogger(__name__)

_Name = Annotated[str, Meta(pattern=rf"^[^{CONTROL}]*\S[^{CONTROL}]*$", max_length=MAX_NAME)]
_Time = Annotated[datetime, Meta(tz=True)]


class KeyRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is known of a key: all but the key."""

    id: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    subject: _Name
    roles: Annotated[tuple[_Name, ...], Meta(max_length=MAX_ROLES)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    created: _Time
    expires: _Time | None = None
    revoked: _Time | None = None

    @property
    def principal(self) -> Principal:
        """Whoever has the key."""
        return Principal(f"key:{self.id}", self.subject, self.roles)

    def state(self, now: float) -> str:
        """Say what it is worth: `good`, `revoked` or `expired`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires and self.expires.timestamp() <= now else "good"


class _Whole(Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[KeyRecord, ...] = ()


class BadKeyFile(ValueError):
    """A file that cannot be used: why, and what to do."""


class KeyFile:
    """The keys of a file, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        """Read it; raises BadKeyFile."""
        self.edition = 0
        """How often the keys have been others."""
        self._file = Watched(path)
        self._found = _by_digest(read_keys(path))

    def find(self, key: str, now: float) -> Proof:
        """Return whose a key is; raises Unproven."""
        record = self._found.get(digest_of(key))
        if record is None:
            raise Unproven("the key is not known here")
        state = record.state(now)
        if state != "good":
            raise Unproven(f"the key is {state}")
        until = float("inf") if record.expires is None else record.expires.timestamp()
        return Proof(record.principal, until)

    async def look(self) -> None:
        """Read the file again if it has changed; what is no good is not taken."""
        if not await self._file.has_changed():
            return
        try:
            self._found = _by_digest(await asyncio.to_thread(read_keys, self._file.path))
            self.edition += 1
        except BadKeyFile as why:
            _log.warning("the old keys are kept: %s", why)


def digest_of(key: str) -> str:
    """Return what a key is known by."""
    return sha256(key.encode()).hexdigest()


def _by_digest(records: tuple[KeyRecord, ...]) -> dict[str, KeyRecord]:
    return {record.sha256: record for record in records}


def read_keys(path: Path) -> tuple[KeyRecord, ...]:
    """Return the keys of a file, none if it is not there; raises BadKeyFile."""
    try:
        data = read_file(path, MAX_FILE, own=True)
    except FileNotFoundError:
        return ()
    except Exposed:
        raise BadKeyFile(f"{path}: others may write to it; run chmod 600 {path}") from None
    except TooLong:
        why = f"longer than {MAX_FILE} bytes; is it the right file?"
        raise BadKeyFile(f"{path}: {why}") from None
    except (OSError, ValueError) as why:
        reason = (getattr(why, "strerror", None) or "not a file name").lower()
        raise BadKeyFile(f"{path}: cannot be read: {reason}; check its permissions") from None
    try:
        records = msgspec.json.decode(data, type=_Whole).keys
    except (msgspec.DecodeError, RecursionError) as why:
        raise BadKeyFile(f"{path}: {str(why).lower()}; `trunkline key` writes it") from None
    if len({record.id for record in records}) < len(records):
        raise BadKeyFile(f"{path}: two keys have the same id; take one of them out")
    return records


def add_key(
    path: Path, id: str, subject: str, roles: tuple[str, ...], expires: datetime | None
) -> str:
    """Make a key, and write down what it is known by; return it. Raises BadKeyFile or OSError."""
    key = PREFIX + secrets.token_urlsafe(_BITS // 8)
    record = KeyRecord(
        id=id,
        subject=subject,
        roles=roles,
        sha256=digest_of(key),
        created=_now(),
        expires=expires,
    )
    try:
        msgspec.json.decode(msgspec.json.encode(record), type=KeyRecord)
    except msgspec.ValidationError as why:
        raise BadKeyFile(f"the key {id!r}: {str(why).lower()}; choose another name") from None

    def add(records: tuple[KeyRecord, ...]) -> tuple[KeyRecord, ...]:
        if any(each.id == id for each in records):
            raise BadKeyFile(f"there is a key {id!r} already, or was; choose another name")
        return (*records, record)

    _rewrite(path, add)
    return key


def revoke_key(path: Path, id: str) -> KeyRecord:
    """Make a key worth nothing from now on; raises BadKeyFile or OSError."""
    changed: list[KeyRecord] = []

    def revoke(records: tuple[KeyRecord, ...]) -> tuple[KeyRecord, ...]:
        if id not in {each.id for each in records}:
            known = ", ".join(each.id for each in records) or "none"
            raise BadKeyFile(f"there is no key {id!r}; there are: {known}")
        after = tuple(
            msgspec.structs.replace(each, revoked=each.revoked or _now()) if each.id == id else each
            for each in records
        )
        changed.extend(each for each in after if each.id == id)
        return after

    _rewrite(path, revoke)
    return changed[0]


def _rewrite(path: Path, change: Callable[[tuple[KeyRecord, ...]], tuple[KeyRecord, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path):
        records = change(read_keys(path))
        text = msgspec.json.format(msgspec.json.encode(_Whole(records)), indent=2) + b"\n"
        replace_file(path, text)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
