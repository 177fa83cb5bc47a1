"""TokenGuard: asks everybody who comes by HTTP for a token or a key, on every request.

    recognise ──> the same Authorization header as before, and still good: one look-up
    identify ──> one header, `Bearer`, a token ──> Verifier ──> remembered, or a Challenge
    watch ──> keys that were revoked, and issuers that have others: all is forgotten

Refuses to take a token from anywhere but the one header: what stands in a URL ends up in logs.

Rules upheld here:
1. Every request is made sure of. What is remembered is bounded, never outlives its token by the
   wall clock, and is forgotten as soon as anything that it rests on has changed.
2. What was refused is not remembered, so that nobody is kept out for long by mistake; but whoever
   is wrong again and again has to wait, and costs nothing meanwhile.
3. Two Authorization headers are none: whoever stands before us may have read the other one.
4. Those who are turned away are told of, without what they showed, and not more often than they
   may try.
"""

import asyncio
import logging
import math
import re
from collections.abc import Callable

from trunkline.auth.failures import Failures
from trunkline.auth.key_file import KeyFile
from trunkline.auth.key_sets import KeySource
from trunkline.auth.metadata import Resource
from trunkline.auth.proof import Proof, Unproven
from trunkline.auth.verifier import Verifier
from trunkline.mcp.principal import Principal
from trunkline.transports.exchange import HttpRequest
from trunkline.transports.http_guard import Challenge

MAX_KNOWN = 4096
"""How many tokens are remembered."""

LOOK_AGAIN = 1.0
"""How many seconds pass between two looks at what proofs rest on."""

_AUTHORIZATION = b"authorization"
_CREDENTIALS = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)")
_IN_QUERY = re.compile(r"(^|&)access_token=")
_log = logging.getLogger(__name__)

TellAway = Callable[[str, str], None]
"""Takes the address of somebody who was turned away, and why."""


class TokenGuard:
    """Makes sure of whoever comes by HTTP; a Guard."""

    def __init__(
        self, verifier: Verifier, resource: Resource, most_failures: int, tell: TellAway
    ) -> None:
        self.resource = resource
        self._verifier = verifier
        self._now = verifier.clock
        self._failures = Failures(most_failures)
        self._telling = Failures(most_failures)
        self._tell = tell
        self._known: dict[bytes | None, Proof] = {}
        self._edition = verifier.edition
        self._watching: list[asyncio.Task[None]] = []

    def recognise(self, request: HttpRequest) -> Principal | None:
        """Return who sent a request, if the same token was made sure of before, and is good."""
        head = request.head
        known = self._known.get(head.headers.get(_AUTHORIZATION))
        if known is None or known.until <= self._now() or _AUTHORIZATION in head.repeated:
            return None
        return known.principal

    async def identify(self, request: HttpRequest) -> Principal | Challenge:
        """Find out who sent a request, or say what is missing."""
        header = request.headers.get(_AUTHORIZATION)
        if header is None and not _IN_QUERY.search(request.query):
            self._tell_of(request, "no token")
            return self.resource.challenge(
                request, "expected an Authorization header: Bearer TOKEN"
            )
        wait = self._failures.wait(request.address)
        if wait > 0:
            later = (b"retry-after", b"%d" % math.ceil(wait))
            return Challenge(429, "too many tokens that were not good; try again later", (later,))
        try:
            proof = await self._verifier.verify(_token(request))
        except Unproven as why:
            if why.fault != "unavailable":
                self._failures.count(request.address)
            self._tell_of(request, why.why)
            return self.resource.challenge(request, why.why, why.fault)
        finally:
            self._forget_if_changed()
        self._remember(header, proof)
        return proof.principal

    def _remember(self, header: bytes | None, proof: Proof) -> None:
        self._known.pop(header, None)
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[header] = proof

    def _tell_of(self, request: HttpRequest, why: str) -> None:
        if self._telling.wait(request.address) == 0:
            self._telling.count(request.address)
            self._tell(request.address, why)

    # What proofs rest on

    def start(self) -> None:
        """Look from now on whether keys change; needs a running loop."""
        if not self._watching:
            self._watching = [
                asyncio.create_task(self._watch(source)) for source in self._verifier.sources
            ]

    async def _watch(self, source: KeySource | KeyFile) -> None:
        problem = ""
        while True:
            try:
                await source.look()
                problem = ""
            except Exception as why:
                # Whatever is broken is so every second: once is enough to be told.
                if repr(why) != problem:
                    problem = repr(why)
                    _log.exception("cannot look whether keys have changed")
            self._forget_if_changed()
            await asyncio.sleep(LOOK_AGAIN)

    def _forget_if_changed(self) -> None:
        edition = self._verifier.edition
        if edition != self._edition:
            self._edition = edition
            self._known.clear()

    def stop(self) -> None:
        """Look no more, and forget everybody."""
        for task in self._watching:
            task.cancel()
        self._watching = []
        self._known.clear()


def _token(request: HttpRequest) -> str:
    """Return the token of a request; raises Unproven if there is none, or more than one."""
    header = request.headers.get(_AUTHORIZATION)
    if header is None:
        raise Unproven(
            "expected the token in an Authorization header, not in the URL", "invalid_request"
        )
    if _AUTHORIZATION in request.repeated:
        raise Unproven("expected one Authorization header, got several", "invalid_request")
    found = _CREDENTIALS.fullmatch(header)
    if found is None:
        raise Unproven("expected an Authorization header of the form: Bearer TOKEN")
    return found[1].decode("ascii")
