"""The encrypted `requestState` that a client returns with a retry.

    RequestState ──> StateCipher.encrypt ──> "v1.…", the requestState of an input_required result
    the requestState of a retry ──> StateCipher.decrypt ──> RequestState, if it is for this call

A state either resumes a call that the gateway suspended, or contains the state of a stateless
server. The server gets its own state back byte for byte; the client cannot read or change it.

The module keeps no list of used states. `suspended_calls` knows which states are still valid.

Invariants:
1. A state opens only for the principal and the call that it was made for, and before it expires.
   All other cases get the same error, which does not say why.
2. Exactly one text opens: changing any bit of it makes it invalid, also bits that base64 decoders
   ignore.
3. There is no default key: without configured keys, a random one is made at the start, and states
   become invalid when the process ends.
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

from trunkline.jsonrpc import INVALID_PARAMS, Raw, RpcError, read_members
from trunkline.mcp.params import Params

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MIN_KEY_BYTES = 32  # the minimum length of a key
STATE_PREFIX = "v1."  # the prefix of each encrypted state
_PURPOSE = b"trunkline requestState v1"
_NONCE_BYTES = 12
_IGNORED_MEMBERS = {"_meta", "inputResponses", "requestState"}


class StateBinding(Struct, frozen=True, array_like=True):
    """The one call that a state is valid for."""

    principal: str
    backend: str
    digest: bytes  # the digest of method and params: see `call_digest`


class RequestState(Struct, frozen=True, array_like=True):
    """The content of an encrypted state."""

    binding: StateBinding
    call_id: str = ""  # the id of the suspended call; "" if the server keeps the state itself
    round: int = 0
    expires_at: float = 0.0  # in seconds, on the clock whose time is given to `decrypt`
    upstream_state: bytes | None = None  # the server's own requestState, as its exact JSON bytes


class KeyRing:
    """The keys: the first one encrypts, all of them decrypt, so that keys can be rotated."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Take keys of at least 32 bytes; raises ValueError."""
        if not keys:
            raise ValueError("expected at least one key")
        for number, key in enumerate(keys, 1):
            if len(key) < MIN_KEY_BYTES:
                raise ValueError(f"key {number}: {_key_too_short(len(key))}")
        self.keys = tuple(keys)

    @classmethod
    def generate(cls) -> Self:
        """Make a random key that ends with the process."""
        return cls([os.urandom(MIN_KEY_BYTES)])

    @classmethod
    def from_base64(cls, keys: Mapping[str, str]) -> Self:
        """Read keys in base64, by name; raises ValueError that names the bad key, not its value."""
        decoded: list[bytes] = []
        for name, text in keys.items():
            try:
                key = base64.b64decode(text, validate=True)
            except ValueError:
                raise ValueError(f"{name}: expected base64") from None
            if len(key) < MIN_KEY_BYTES:
                raise ValueError(f"{name}: {_key_too_short(len(key))}")
            decoded.append(key)
        return cls(decoded)


class StateCipher:
    """Encrypts states, and decrypts its own."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    @cached_property
    def _ciphers(self) -> "tuple[AESGCM, ...]":
        # Imported on first use: it takes long, and most gateways never suspend a call.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        def derive(key: bytes) -> bytes:
            """Return a key for this purpose only: the configured ones may serve others."""
            return HKDF(algorithm=SHA256(), length=MIN_KEY_BYTES, salt=None, info=_PURPOSE).derive(
                key
            )

        return tuple(AESGCM(derive(key)) for key in self._keys.keys)

    def encrypt(self, state: RequestState) -> str:
        """Return the state as a text of letters, digits, `-`, `_` and one dot."""
        nonce = os.urandom(_NONCE_BYTES)
        encrypted = self._ciphers[0].encrypt(nonce, msgspec.msgpack.encode(state), _PURPOSE)
        return STATE_PREFIX + base64.urlsafe_b64encode(nonce + encrypted).decode().rstrip("=")

    def decrypt(self, text: str, binding: StateBinding, now: float) -> RequestState:
        """Return the state if it is for this call and not expired; raises Invalid params."""
        state = self._decrypt_any(text)
        if state is None or state.binding != binding or now >= state.expires_at:
            raise RpcError(INVALID_PARAMS, "Invalid or expired requestState")
        return state

    def _decrypt_any(self, text: str) -> RequestState | None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        encrypted = _decode_state(text)
        for cipher in self._ciphers if len(encrypted) > _NONCE_BYTES else ():
            try:
                decrypted = cipher.decrypt(
                    encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], _PURPOSE
                )
                return msgspec.msgpack.decode(decrypted, type=RequestState)
            except (InvalidTag, ValueError):
                continue
        return None


def call_digest(method: str, params: Params) -> bytes:
    """Return a digest of a call that ignores its formatting and its answers.

    Key order and white space make no difference. Any other change does, also a repeated key.
    """
    param_members = read_members(params.encode())
    try:
        call = sorted(
            (key, _canonical(param_members[key])) for key in param_members.keys() - _IGNORED_MEMBERS
        )
        return _hash([method, call]).digest()
    except RecursionError:
        raise RpcError.invalid_params("nested too deeply") from None


def _canonical(raw: Raw) -> str:
    """Return the same text for the same JSON value, and different ones for different values."""
    return json.dumps(_decode_json(bytes(raw).decode()))


def _hash_object(pairs: list[tuple[str, Any]]) -> dict[str, str]:
    # The decoder reports objects inside out: hashing each one keeps the remaining value flat.
    return {"object": _hash(sorted(pairs, key=itemgetter(0))).hexdigest()}


def _hash(value: Any) -> Any:
    return sha256(json.dumps(value).encode())


def _keep_number(text: str) -> dict[str, str]:
    # As it was written: no number is too large, and 1.0 differs from 1.
    return {"number": text}


_decode_json = json.JSONDecoder(
    object_pairs_hook=_hash_object, parse_int=_keep_number, parse_float=_keep_number
).decode


def _decode_state(text: str) -> bytes:
    """Decode a text to bytes; returns none if it is not in the form that `encrypt` writes."""
    body = text.removeprefix(STATE_PREFIX)
    try:
        encrypted = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except (binascii.Error, ValueError):
        return b""
    canonical = STATE_PREFIX + base64.urlsafe_b64encode(encrypted).decode().rstrip("=")
    return encrypted if canonical == text else b""


def _key_too_short(length: int) -> str:
    return f"expected a key of at least {MIN_KEY_BYTES} bytes, got {length}"
