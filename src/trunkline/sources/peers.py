"""Peers: registries of others that ours endorses, fetched over HTTPS and kept for a while.

    endorsements ── every five minutes ──> fetch ──> lenient reading ──> Peer, fresh for an hour
                                             └─ fails: keep what there is, stale after that hour

Refuses redirects, addresses that are not on the public internet, and to ask the peers of peers: an
endorsement is not passed on.

Rules upheld here:
1. What a peer says counts only as that of the key that was endorsed: a signature is that key's, or
   the answer is refused. Without a signature it is HTTPS alone that vouches, and that is said.
2. One bad peer is one bad peer; one bad topic of a peer is left out.
3. Nobody endorses themselves.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeAlias

import msgspec
import msgspec.inspect
from msgspec import Struct

from trunkline.documents.fit import fit
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import as_table
from trunkline.jsonrpc import ConnectionLost
from trunkline.sources.keys import REGISTRY, is_same_key, is_signed_by
from trunkline.sources.matching import Matching, TopicFinder
from trunkline.sources.model import (
    MAX_CATEGORIES,
    Category,
    Endorsement,
    Name,
    SemVer,
    Slug,
    Source,
)
from trunkline.transports.http_address import is_public
from trunkline.transports.http_client import ClientLimits, HttpClient

POLL = 300.0
"""How many seconds pass between two times that a peer is asked."""

TIMEOUT = 10.0
"""How many seconds a peer has to answer."""

STALE = 3600.0
"""After how many seconds without a new answer an old one is stale."""

MAX_BODY = 2 * 1024 * 1024
"""How long the registry of a peer may be, in bytes."""

State: TypeAlias = Literal["fresh", "stale", "pending", "unreachable"]
Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Returns what is at a url; raises PeerRefused, ConnectionLost or ValueError."""


class PeerRefused(ValueError):
    """An answer that is not what it should be."""


class PeerRegistry(Struct, frozen=True):
    """As much of a peer's registry as could be used."""

    version: str
    curator: str
    is_signed: bool
    categories: dict[str, Category]
    finder: TopicFinder


class Peer:
    """An endorsed registry, and what came of asking for it."""

    def __init__(self, endorsement: Endorsement) -> None:
        self.endorsement = endorsement
        self.registry: PeerRegistry | None = None
        self.fetched = float("-inf")
        self.problem: str | None = None

    @property
    def name(self) -> str:
        """Whose it is, for people."""
        known = self.registry.curator if self.registry else None
        return self.endorsement.name or known or self.endorsement.pubkey

    def state(self, now: float) -> State:
        """Tell how old what we have of it is."""
        if self.registry is None:
            return "pending" if self.problem is None else "unreachable"
        return "stale" if now - self.fetched > STALE else "fresh"


class Peers:
    """All endorsed registries, asked again and again."""

    def __init__(self, matching: Matching, fetch: "Fetch | None" = None) -> None:
        self._matching = matching
        self._fetch = fetch or fetch_over_https
        self._peers: dict[Endorsement, Peer] = {}
        self._changed = asyncio.Event()

    @property
    def all(self) -> tuple[Peer, ...]:
        """The peers, in the order of their endorsements."""
        return tuple(self._peers.values())

    def endorse(self, endorsements: Iterable[Endorsement], own_key: str) -> None:
        """Have these peers, and no others; what is known of them stays."""
        wanted = [each for each in endorsements if not is_same_key(each.pubkey, own_key)]
        if wanted != list(self._peers):
            self._peers = {each: self._peers.get(each) or Peer(each) for each in wanted}
            self._changed.set()

    async def run(self) -> None:
        """Ask all peers, now and every POLL seconds, and at once when there are others."""
        while True:
            self._changed.clear()
            await self.poll()
            try:
                async with asyncio.timeout(POLL):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def poll(self) -> None:
        """Ask all peers once, side by side."""
        await asyncio.gather(*map(self._ask, self.all))

    async def _ask(self, peer: Peer) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                data = await self._fetch(peer.endorsement.url)
            peer.registry = await asyncio.to_thread(
                read_peer, data, peer.endorsement.pubkey, self._matching
            )
        except TimeoutError:
            peer.problem = f"no answer within {TIMEOUT:g} s"
        except (ConnectionLost, ValueError) as why:
            peer.problem = str(why)
        else:
            peer.problem = None
            peer.fetched = asyncio.get_running_loop().time()


async def fetch_over_https(url: str, allow: Callable[[str], bool] = is_public) -> bytes:
    """Return what is at a url on the public internet; raises PeerRefused, ConnectionLost."""
    limits = ClientLimits(connect_timeout=TIMEOUT, max_connections=1, max_body=MAX_BODY)
    client = HttpClient(url, ((b"accept", b"application/json"),), limits, allow=allow)
    try:
        response = await client.request("GET")
        if response.status != 200:
            response.close()
            raise PeerRefused(f"expected status 200, got {response.status}")
        return await response.read()
    finally:
        await client.aclose()


def read_peer(data: bytes, pubkey: str, matching: Matching) -> PeerRegistry:
    """Return what can be used of a peer's registry; raises PeerRefused."""
    try:
        tree = as_table(json.loads(data))
    except (ValueError, RecursionError):
        tree = None
    if tree is None:
        raise PeerRefused("expected a registry in JSON")
    curator = as_table(tree.get("curator")) or {}
    key = curator.get("pubkey")
    if not isinstance(key, str) or not is_same_key(key, pubkey):
        raise PeerRefused("expected the registry of the key that is endorsed")
    is_signed = tree.get("signature") is not None
    if is_signed and not is_signed_by(pubkey, REGISTRY, tree):
        raise PeerRefused("expected a signature of the key that is endorsed")
    categories = dict(_usable(as_table(tree.get("categories")) or {}))
    version, name = tree.get("version"), curator.get("name")
    return PeerRegistry(
        str(version) if _fits(version, SemVer) else "",
        str(name) if _fits(name, Name) else "",
        is_signed,
        categories,
        TopicFinder(categories, matching),
    )


def _usable(categories: dict[str, Any]) -> Iterable[tuple[str, Category]]:
    """Yield the topics that keep the rules, whatever else is in them."""
    for slug, value in list(categories.items())[:MAX_CATEGORIES]:
        table = _known(value, Category)
        if isinstance(table.get("sources"), list):
            table["sources"] = [_known(each, Source) for each in table["sources"]]
        if not (_fits(slug, Slug) and _fits(table, Category)):
            continue
        category = msgspec.convert(table, Category)
        if {source.rank for source in category.sources} == {1, 2, 3}:
            yield slug, category


def _fits(value: object, kind: Any) -> bool:
    wrong: list[str] = []

    def complain(_path: KeyPath, why: str, _fix: str) -> None:
        wrong.append(why)

    fit(value, msgspec.inspect.type_info(kind), (), complain)
    return not wrong


def _known(value: object, kind: type[Struct]) -> dict[str, Any]:
    table = as_table(value) or {}
    return {key: table[key] for key in kind.__struct_fields__ if key in table}
