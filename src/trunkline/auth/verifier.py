"""Verifier: whose a token or a key is, by whatever the configuration trusts.

    tlk_… ──> KeyFile ──────────────────────────────┐
    a.b.c ──> header ──> KeySource ──> signature ──> claims ──> Proof, or Unproven

Refuses to know how a token came: by HTTP, in a variable, or on a command line.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from trunkline.auth.claims import Expected
from trunkline.auth.key_file import PREFIX, KeyFile
from trunkline.auth.key_sets import KeySource
from trunkline.auth.proof import Forged, Proof, Unproven
from trunkline.auth.signatures import check, read_header


class JwtVerifier:
    """Tells whose a JWT is."""

    def __init__(self, expected: Expected, source: KeySource) -> None:
        self.source = source
        self._expected = expected

    async def verify(self, token: str, clock: Callable[[], float]) -> Proof:
        """Return what a token proves; raises Unproven."""
        header = read_header(token)
        if header.alg not in self.source.algorithms:
            raise Unproven("the token is signed by an algorithm that is not accepted here")
        keys = self.source.find(header)
        if not keys:
            await self.source.seek()
            keys = self.source.find(header)
        if keys is None:
            raise Unproven("the keys of the issuer cannot be had right now", "unavailable")
        if not keys:
            raise Unproven("the token is signed by a key that the issuer does not have")
        for key in keys:
            with suppress(Forged):
                return self._expected.judge(check(token, key, header.alg), clock())
        raise Forged


class Verifier:
    """Tells whose a token or a key is."""

    def __init__(
        self,
        tokens: JwtVerifier | None = None,
        keys: KeyFile | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tokens = tokens
        self._keys = keys
        self.clock = clock

    @property
    def sources(self) -> list[KeySource | KeyFile]:
        """All that may be different later."""
        found = (self._tokens and self._tokens.source, self._keys)
        return [each for each in found if each is not None]

    @property
    def edition(self) -> int:
        """Another number as soon as what was proven before may not hold any more."""
        return sum(source.edition for source in self.sources)

    async def verify(self, token: str) -> Proof:
        """Return what a token or a key proves; raises Unproven."""
        if token.startswith(PREFIX):
            if self._keys is None:
                raise Unproven("keys are not accepted here, but tokens are")
            return self._keys.find(token, self.clock())
        if self._tokens is None:
            raise Unproven("the key is not known here; tokens are not accepted")
        return await self._tokens.verify(token, self.clock)
