"""Seals: what a client is given to bring back, so that nobody else can use it, or change it.

    Facts ──> Seal.seal ──> "v1.…", the requestState of a result that asks
    the requestState of a call ──> Seal.open ──> Facts, if they are about this very call

Refuses to remember: whether a seal was used before is for whoever gave it out to know.

Rules upheld here:
1. A seal is opened by whom it was given to, for the call it was given for, and in time; every other
   case gets one and the same answer, which says nothing about why.
2. One text opens: no bit of it can be changed, not even one that decoders ignore.
3. There is no key that anybody could know: without given ones a key is made up at the start, and
   seals end with the process.
"""

import base64
import binascii
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct

from trunkline.jsonrpc import INVALID_PARAMS, Raw, RpcError, members
from trunkline.mcp.meta import Params

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MIN_KEY = 32
"""The shortest key that is taken, in bytes."""

SEALED = "v1."
"""How a seal begins."""

_PURPOSE = b"trunkline requestState v1"
_NONCE = 12
_IGNORED = {"_meta", "inputResponses", "requestState"}


class Binding(Struct, frozen=True, array_like=True):
    """The one call that a seal is good for."""

    principal: str
    backend: str
    digest: bytes
    """Of the method and the params: see `digest`."""


class Facts(Struct, frozen=True, array_like=True):
    """What is sealed."""

    binding: Binding
    exchange: str
    """The id of what goes on while the client is away."""
    round: int
    expires: float
    """In seconds, on the clock that `open` is told the time of."""
    state: bytes | None = None
    """A server's own requestState, as JSON, to the byte."""


class KeyRing:
    """The keys: the first one seals, all of them open, so that keys can be replaced."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Take keys of at least 32 bytes; raises ValueError."""
        if not keys:
            raise ValueError("expected at least one key")
        for place, key in enumerate(keys, 1):
            if len(key) < MIN_KEY:
                raise ValueError(f"key {place}: {_too_short(len(key))}")
        self.keys = tuple(keys)

    @classmethod
    def random(cls) -> Self:
        """Make up a key that nobody knows, and that is gone with the process."""
        return cls([os.urandom(MIN_KEY)])

    @classmethod
    def read(cls, keys: Mapping[str, str]) -> Self:
        """Read keys in base64, by name; raises ValueError that names a bad one, and shows none."""
        found: list[bytes] = []
        for name, text in keys.items():
            try:
                key = base64.b64decode(text, validate=True)
            except ValueError:
                raise ValueError(f"{name}: expected base64") from None
            if len(key) < MIN_KEY:
                raise ValueError(f"{name}: {_too_short(len(key))}")
            found.append(key)
        return cls(found)


class Seal:
    """Seals facts, and opens what it sealed."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    @cached_property
    def _ciphers(self) -> "tuple[AESGCM, ...]":
        # Imported with the first seal: most gateways are asked nothing, and none at the start.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        def derive(key: bytes) -> bytes:
            """Return a key for this purpose alone: given ones may serve others as well."""
            return HKDF(algorithm=SHA256(), length=MIN_KEY, salt=None, info=_PURPOSE).derive(key)

        return tuple(AESGCM(derive(key)) for key in self._keys.keys)

    def seal(self, facts: Facts) -> str:
        """Return a text of letters, digits, `-`, `_` and a dot, for the client to bring back."""
        nonce = os.urandom(_NONCE)
        sealed = self._ciphers[0].encrypt(nonce, msgspec.msgpack.encode(facts), _PURPOSE)
        return SEALED + base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def open(self, text: str, binding: Binding, now: float) -> Facts:
        """Return the facts if they are about this call, and not too old; raises Invalid params."""
        facts = self._read(text)
        if facts is None or facts.binding != binding or now >= facts.expires:
            raise RpcError(INVALID_PARAMS, "Invalid or expired requestState")
        return facts

    def _read(self, text: str) -> Facts | None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        sealed = _decode(text)
        for cipher in self._ciphers if len(sealed) > _NONCE else ():
            try:
                opened = cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _PURPOSE)
                return msgspec.msgpack.decode(opened, type=Facts)
            except (InvalidTag, ValueError):
                continue
        return None


def digest(method: str, params: Params) -> bytes:
    """Return what tells a call from others, however it is written, and whatever it answers.

    The order of keys and white space make no difference; anything else does, a repeated key too.
    """
    found = members(params.encode())
    try:
        call = sorted((key, _canonical(found[key])) for key in found.keys() - _IGNORED)
        return _hash([method, call]).digest()
    except RecursionError:
        raise RpcError.invalid_params("nested too deeply") from None


def _canonical(written: Raw) -> str:
    """Return a text that is the same for what is the same, and for nothing else."""
    return json.dumps(_read_json(bytes(written).decode()))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, str]:
    # Objects are reported inside out: a hash of each keeps what is left to write flat.
    return {"object": _hash(sorted(pairs, key=itemgetter(0))).hexdigest()}


def _hash(value: Any) -> Any:
    return sha256(json.dumps(value).encode())


def _number(text: str) -> dict[str, str]:
    # As it was written: no number is too large to be compared.
    return {"number": text}


_read_json = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_number, parse_float=_number
).decode


def _decode(text: str) -> bytes:
    """Read the bytes of a seal, none if it is not written as we write them."""
    body = text.removeprefix(SEALED)
    try:
        sealed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except (binascii.Error, ValueError):
        return b""
    written = SEALED + base64.urlsafe_b64encode(sealed).decode().rstrip("=")
    return sealed if written == text else b""


def _too_short(length: int) -> str:
    return f"expected a key of at least {MIN_KEY} bytes, got {length}"
