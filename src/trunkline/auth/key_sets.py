"""The keys that verify an issuer's tokens: a shared secret, a JWKS file, or a JWKS URL.

    candidate_keys ──> the keys that may have signed a token, None while there is no key set
    fetch_now ──> fetch for a waiting request: the token names an unknown key, or there are no keys
    poll ──> fetch because time has passed
    generation ──> changes whenever the keys change

An issuer is asked at most once per MIN_FETCH_INTERVAL, even if many tokens name unknown keys.

Invariants:
1. Valid keys are used until newer valid keys arrive, but no longer than MAX_KEY_AGE.
2. Only public signature keys are accepted: no secrets, no private keys, no weak keys.
3. Reading is bounded in bytes, keys and time. Redirects are not followed.
4. A file that others may write to is not read: they could add their own keys.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from msgspec import Struct

from trunkline.auth.signatures import (
    MIN_RSA_BITS,
    PUBLIC_KEY_ALGORITHMS,
    SYMMETRIC_ALGORITHMS,
    TokenHeader,
    key_supports,
)
from trunkline.files import WatchedFile, read_file
from trunkline.http.client import ClientLimits, HttpClient
from trunkline.jsonrpc import ConnectionLost

# How many seconds pass at least between two fetches from an issuer.
MIN_FETCH_INTERVAL = 10.0

# For how many seconds keys are used while newer ones cannot be fetched.
MAX_KEY_AGE = 86400.0

MAX_KEY_SET_BYTES = 256 * 1024
MAX_KEYS = 64
MAX_RSA_BITS = 8192
# How many keys are tried for one token.
MAX_CANDIDATE_KEYS = 4

# How many seconds an issuer has to respond.
FETCH_TIMEOUT = 5.0

_KEY_TYPES: dict[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
_log = logging.getLogger(__name__)


class PublicKey(Struct, frozen=True):
    """One key of a JWKS."""

    key: Key
    kid: str | None
    alg: str | None


class KeySource(Protocol):
    """Supplies the keys that verify tokens."""

    @property
    def algorithms(self) -> frozenset[str]:
        """The algorithms that its keys may be used with."""
        ...

    def candidate_keys(self, header: TokenHeader) -> list[Key] | None:
        """Return the keys that may have signed a token, None while there is no key set."""
        ...

    async def fetch_now(self) -> None:
        """Fetch newer keys, unless the last fetch was too recent."""
        ...

    @property
    def generation(self) -> int:
        """How often the keys have changed; what older keys verified may not hold any more."""
        ...

    async def poll(self) -> None:
        """Check for newer keys if it is time to."""
        ...


class SharedSecret:
    """A secret shared with the issuer."""

    algorithms = SYMMETRIC_ALGORITHMS
    generation = 0

    def __init__(self, key: OctKey) -> None:
        self._key = key

    def candidate_keys(self, header: TokenHeader) -> list[Key] | None:
        """Return the secret; the key id in a token makes no difference."""
        return [self._key]

    async def fetch_now(self) -> None:
        """Do nothing: there is one secret."""

    async def poll(self) -> None:
        """Do nothing: the secret does not change."""


class FileKeySet:
    """A JWKS file, read again when it changes."""

    algorithms = PUBLIC_KEY_ALGORITHMS

    def __init__(self, path: Path) -> None:
        """Read the file; raises ValueError or OSError."""
        self.generation = 0
        self._file = WatchedFile(path)
        self._keys = read_key_set(path)

    def candidate_keys(self, header: TokenHeader) -> list[Key] | None:
        """Return the keys that may have signed a token."""
        return _matching_keys(self._keys, header)

    async def fetch_now(self) -> None:
        """Do nothing: `poll` checks the file every second."""

    async def poll(self) -> None:
        """Read the file again if it has changed; an invalid file changes nothing."""
        if not await self._file.has_changed():
            return
        path = self._file.path
        try:
            self._keys = await asyncio.to_thread(read_key_set, path)
            self.generation += 1
        except (OSError, ValueError) as error:
            _log.warning("%s: invalid, so the old keys are kept: %s", path, error)


class RemoteKeySet:
    """The JWKS at an issuer's URL."""

    algorithms = PUBLIC_KEY_ALGORITHMS

    def __init__(
        self,
        url: str,
        refresh: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        fetch_timeout: float = FETCH_TIMEOUT,
    ) -> None:
        """Start without keys; fetched keys are refreshed after `refresh` seconds."""
        self.generation = 0
        self._url = url
        self._refresh = refresh
        self._now = clock
        self._fetch_timeout = fetch_timeout
        self._keys: tuple[PublicKey, ...] | None = None
        self._body = b""
        self._valid_at = self._fetched_at = float("-inf")
        self._fetch_task: asyncio.Task[None] | None = None
        self._last_problem = ""

    def candidate_keys(self, header: TokenHeader) -> list[Key] | None:
        """Return the keys that may have signed a token, None while there is no key set."""
        return None if self._keys is None else _matching_keys(self._keys, header)

    async def fetch_now(self) -> None:
        """Fetch the keys, unless that was done just now; concurrent callers share one fetch."""
        if self._fetch_task is None and self._now() - self._fetched_at >= MIN_FETCH_INTERVAL:
            self._fetch_task = asyncio.create_task(self._fetch())
        if self._fetch_task is not None:
            # Shielded: a request that is cancelled must not cancel the fetch for all others.
            await asyncio.shield(self._fetch_task)

    async def poll(self) -> None:
        """Fetch the keys if they are old; drop them when they exceed MAX_KEY_AGE."""
        if self._now() - self._valid_at < self._refresh:
            return
        await self.fetch_now()
        if self._keys is not None and self._now() - self._valid_at > MAX_KEY_AGE:
            # Otherwise an attacker who blocks the issuer could keep a stolen key valid.
            self._set_keys(None)
            self._warn_once("the last keys are too old")

    async def _fetch(self) -> None:
        # Set before the fetch: a failed fetch counts, too, for MIN_FETCH_INTERVAL.
        self._fetched_at = self._now()
        try:
            body = await fetch_key_set(self._url, self._fetch_timeout)
            # Unchanged keys must not change the generation: that would clear the cache of
            # identities.
            if body != self._body or self._keys is None:
                self._set_keys(parse_key_set(body))
                self._body = body
            self._valid_at, self._last_problem = self._now(), ""
        except (OSError, ValueError, ConnectionLost) as error:  # a timeout is an OSError
            self._warn_once(str(error) or "no response in time")
        finally:
            self._fetch_task = None

    def _set_keys(self, keys: tuple[PublicKey, ...] | None) -> None:
        self._keys = keys
        self.generation += 1

    def _warn_once(self, problem: str) -> None:
        if problem != self._last_problem:
            self._last_problem = problem
            kept = "there are none yet" if self._keys is None else "the last keys are kept"
            _log.warning("no keys from %s, %s: %s", self._url, kept, problem)


async def fetch_key_set(url: str, timeout: float = FETCH_TIMEOUT) -> bytes:
    """Return the document at a URL; raises ValueError, ConnectionLost or OSError."""
    limits = ClientLimits(
        connect_timeout=timeout,
        head_timeout=timeout,
        idle_timeout=timeout,
        max_body=MAX_KEY_SET_BYTES,
    )
    client = HttpClient(url, ((b"accept", b"application/json"),), limits)
    try:
        async with asyncio.timeout(timeout):
            response = await client.request("GET", idempotent=True)
            body = await response.read()
    finally:
        await client.aclose()
    if response.status != 200:
        raise ValueError(f"expected status 200, got {response.status}")
    return body


def read_key_set(path: Path) -> tuple[PublicKey, ...]:
    """Return the keys of a JWKS file, as `parse_key_set` does; raises OSError or ValueError.

    A file that others may write to is a ValueError.
    """
    return parse_key_set(read_file(path, MAX_KEY_SET_BYTES, owner_only=True))


def parse_key_set(body: bytes) -> tuple[PublicKey, ...]:
    """Return the usable keys of a JWKS, ignoring all others; raises ValueError."""
    if len(body) > MAX_KEY_SET_BYTES:
        raise ValueError(f"expected at most {MAX_KEY_SET_BYTES} bytes")
    try:
        keys = msgspec.json.decode(body, type=dict[str, Any]).get("keys")
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(
            f'expected a JWKS, a JSON object with "keys": {str(error).lower()}'
        ) from None
    if not isinstance(keys, list):
        raise ValueError('expected a JWKS, a JSON object with "keys", a list')  # noqa: TRY004
    entries = cast("list[object]", keys)
    if len(entries) > MAX_KEYS:
        raise ValueError(f"expected at most {MAX_KEYS} keys, got {len(entries)}")
    read = (_read_key(cast("dict[str, Any]", each)) for each in entries if isinstance(each, dict))
    return tuple(key for key in read if key is not None)


def _read_key(entry: dict[str, Any]) -> PublicKey | None:
    """Return a key; None if it is weak, private or not for verification."""
    kid, alg = entry.get("kid"), entry.get("alg")
    key_type, operations = _KEY_TYPES.get(str(entry.get("kty"))), entry.get("key_ops", ["verify"])
    are_names = isinstance(kid, str | None) and isinstance(alg, str | None)
    if key_type is None or not are_names or "d" in entry or entry.get("use", "sig") != "sig":
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    size = len(str(entry.get("n", "")))  # base64, 6 bits each: checked before any arithmetic
    if key_type is RSAKey and not MIN_RSA_BITS // 6 <= size <= MAX_RSA_BITS // 6 + 1:
        return None
    try:
        key = key_type.import_key(entry)
        _ = key.public_key  # fails for a point that is not on the curve
    except Exception:  # one bad key must not disable the others
        return None
    return PublicKey(key, kid, alg)


def _matching_keys(keys: Iterable[PublicKey], header: TokenHeader) -> list[Key]:
    """Return the keys with the token's `kid`; without one, the key if only one is usable."""
    usable = [
        each
        for each in keys
        if each.alg in {None, header.alg} and key_supports(each.key, header.alg)
    ]
    if header.kid is None:
        return [usable[0].key] if len(usable) == 1 else []
    return [each.key for each in usable if each.kid == header.kid][:MAX_CANDIDATE_KEYS]
