"""Key sets: the keys by which an issuer's tokens are known, and where they come from.

    find ──> the keys that may have signed a token, None while there are none to look among
    seek ──> look again, for somebody waits: a token of a new key, or no keys at all
    look ──> look again, since time has passed
    edition ──> another number as soon as the keys are others

Refuses to hurry: an issuer is asked at most once in `MIN_INTERVAL` seconds, however many tokens
name keys that nobody has.

Rules upheld here:
1. What was good is used until something else is good, but no longer than `MAX_AGE`.
2. Only public keys for signatures are taken: no secrets, no private keys, nothing weak.
3. What is read is bounded, in bytes, in keys and in time. Redirects are not followed.
4. A file that others may write to is not read: its keys could be theirs.
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

from trunkline.auth.signatures import MIN_RSA, PUBLIC, SHARED, Header, fits
from trunkline.files import Watched, read_file
from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.http_client import ClientLimits, HttpClient

MIN_INTERVAL = 10.0
"""How many seconds pass at least between two questions to an issuer."""

MAX_AGE = 86400.0
"""For how many seconds keys are used when no newer ones can be had."""

MAX_SIZE = 256 * 1024
MAX_KEYS = 64
MAX_RSA = 8192
MAX_TRIED = 4
"""How many keys are tried for one token, at most."""

_WITHIN = 5.0
"""How many seconds an issuer has to answer."""

_KINDS: dict[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
_log = logging.getLogger(__name__)


class PublicKey(Struct, frozen=True):
    """One key of a set."""

    key: Key
    kid: str | None
    alg: str | None


class KeySource(Protocol):
    """Where keys come from."""

    @property
    def algorithms(self) -> frozenset[str]:
        """The algorithms for which its keys may be used."""
        ...

    def find(self, header: Header) -> list[Key] | None:
        """Return the keys that may have signed a token; None while there are none at all."""
        ...

    async def seek(self) -> None:
        """Look for more, if it is not too soon."""
        ...

    @property
    def edition(self) -> int:
        """How often there have been others: what was proven by an earlier one may not hold."""
        ...

    async def look(self) -> None:
        """Look whether there are others by now, if it is time."""
        ...


class SharedSecret:
    """A secret that the issuer has as well."""

    algorithms = SHARED
    edition = 0

    def __init__(self, key: OctKey) -> None:
        self._key = key

    def find(self, header: Header) -> list[Key] | None:
        """Return the secret, however a token calls it."""
        return [self._key]

    async def seek(self) -> None:
        """Do nothing: there is no other."""

    async def look(self) -> None:
        """Do nothing: it stays the same."""


class FileKeys:
    """A set in a file, read again when it has changed."""

    algorithms = PUBLIC

    def __init__(self, path: Path) -> None:
        """Read it; raises ValueError or OSError."""
        self.edition = 0
        self._file = Watched(path)
        self._keys = read_key_set(path)

    def find(self, header: Header) -> list[Key] | None:
        """Return the keys of the set that may have signed a token."""
        return _matching(self._keys, header)

    async def seek(self) -> None:
        """Do nothing: `look` does, every second."""

    async def look(self) -> None:
        """Read the file again if it has another stamp; what is no good is not taken."""
        if not await self._file.has_changed():
            return
        path = self._file.path
        try:
            self._keys = await asyncio.to_thread(read_key_set, path)
            self.edition += 1
        except (OSError, ValueError) as why:
            _log.warning("%s: no good, so that the old keys are kept: %s", path, why)


class RemoteKeys:
    """A set that an issuer publishes."""

    algorithms = PUBLIC

    def __init__(
        self, url: str, refresh: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without keys; they are asked for again after `refresh` seconds."""
        self.edition = 0
        self._url = url
        self._refresh = refresh
        self._now = clock
        self._keys: tuple[PublicKey, ...] | None = None
        self._body = b""
        self._good = self._asked = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._problem = ""

    def find(self, header: Header) -> list[Key] | None:
        """Return the keys of the set that may have signed a token; None without a set."""
        return None if self._keys is None else _matching(self._keys, header)

    async def seek(self) -> None:
        """Ask the issuer, unless it was asked just now; many who wait share one question."""
        if self._asking is None and self._now() - self._asked >= MIN_INTERVAL:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.shield(self._asking)

    async def look(self) -> None:
        """Ask the issuer if the keys are old, unless it was asked just now."""
        if self._now() - self._good < self._refresh:
            return
        await self.seek()
        if self._keys is not None and self._now() - self._good > MAX_AGE:
            self._take(None)
            self._complain("the last ones are too old")

    async def _ask(self) -> None:
        self._asked = self._now()
        try:
            body = await fetch_key_set(self._url)
            if body != self._body or self._keys is None:
                self._take(parse_key_set(body))
                self._body = body
            self._good, self._problem = self._now(), ""
        except (OSError, ValueError, ConnectionLost) as why:  # a timeout is an OSError
            self._complain(str(why) or "no answer in time")
        finally:
            self._asking = None

    def _take(self, keys: tuple[PublicKey, ...] | None) -> None:
        self._keys = keys
        self.edition += 1

    def _complain(self, why: str) -> None:
        """Say what is wrong, once."""
        if why != self._problem:
            self._problem = why
            kept = "there are none yet" if self._keys is None else "the last ones are kept"
            _log.warning("no keys from %s, %s: %s", self._url, kept, why)


async def fetch_key_set(url: str) -> bytes:
    """Return what is at a url; raises ValueError, ConnectionLost or OSError."""
    limits = ClientLimits(
        connect_timeout=_WITHIN, head_timeout=_WITHIN, idle_timeout=_WITHIN, max_body=MAX_SIZE
    )
    client = HttpClient(url, ((b"accept", b"application/json"),), limits)
    try:
        async with asyncio.timeout(_WITHIN):
            response = await client.request("GET", idempotent=True)
            body = await response.read()
    finally:
        await client.aclose()
    if response.status != 200:
        raise ValueError(f"expected status 200, got {response.status}")
    return body


def read_key_set(path: Path) -> tuple[PublicKey, ...]:
    """Return the keys of a JWKS in a file, as `parse_key_set` does; raises OSError or ValueError.

    The latter is Exposed if others may write to it.
    """
    return parse_key_set(read_file(path, MAX_SIZE, own=True))


def parse_key_set(body: bytes) -> tuple[PublicKey, ...]:
    """Return the keys of a JWKS that can be used, leaving out the others; raises ValueError."""
    if len(body) > MAX_SIZE:
        raise ValueError(f"expected at most {MAX_SIZE} bytes")
    try:
        found = msgspec.json.decode(body, type=dict[str, Any]).get("keys")
    except (msgspec.DecodeError, RecursionError) as why:
        raise ValueError(
            f'expected a JWKS, a JSON object with "keys": {str(why).lower()}'
        ) from None
    if not isinstance(found, list):
        raise ValueError('expected a JWKS, a JSON object with "keys", a list')  # noqa: TRY004
    entries = cast("list[object]", found)
    if len(entries) > MAX_KEYS:
        raise ValueError(f"expected at most {MAX_KEYS} keys, got {len(entries)}")
    read = (_read_key(cast("dict[str, Any]", each)) for each in entries if isinstance(each, dict))
    return tuple(key for key in read if key is not None)


def _read_key(entry: dict[str, Any]) -> PublicKey | None:
    """Return a key, None for one that is for something else, or should not be where it is."""
    kid, alg = entry.get("kid"), entry.get("alg")
    kind, operations = _KINDS.get(str(entry.get("kty"))), entry.get("key_ops", ["verify"])
    are_names = isinstance(kid, str | None) and isinstance(alg, str | None)
    if kind is None or not are_names or "d" in entry or entry.get("use", "sig") != "sig":
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    size = len(str(entry.get("n", "")))  # six bits each: looked at before any arithmetic is done
    if kind is RSAKey and not MIN_RSA // 6 <= size <= MAX_RSA // 6 + 1:
        return None
    try:
        key = kind.import_key(entry)
        _ = key.public_key  # which may be a point that is on no curve
    except Exception:  # one that is strange must not take the others with it
        return None
    return PublicKey(key, kid, alg)


def _matching(keys: Iterable[PublicKey], header: Header) -> list[Key]:
    """Return the keys that a token names; one that names none must leave no doubt."""
    fitting = [
        each for each in keys if each.alg in {None, header.alg} and fits(each.key, header.alg)
    ]
    if header.kid is None:
        return [fitting[0].key] if len(fitting) == 1 else []
    return [each.key for each in fitting if each.kid == header.kid][:MAX_TRIED]
