"""Federation: fetch the registries that ours endorses over HTTPS, and keep them in memory.

    endorsements ── every 5 minutes ──> fetch ──> lenient reading ──> PeerRegistry, fresh for 1 h
                                         └─ fails: keep the last registry, stale after that

Redirects and addresses outside of the public internet are refused. Endorsements are not transitive:
the peers of a peer are not asked.

Invariants upheld here:
1. A peer is trusted only with the endorsed key: a response with another key or signature is
   refused. A response without a signature relies on HTTPS, and `is_signed` is false.
2. A peer that fails does not affect other peers; an invalid topic is left out.
3. A curator's endorsement of its own key is ignored.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec
import msgspec.inspect
from msgspec import Struct

from trunkline.documents.errors import KeyPath
from trunkline.documents.parser import as_table, check_json_depth
from trunkline.documents.validation import validate
from trunkline.http.address import is_public_address
from trunkline.http.client import ClientLimits, HttpClient
from trunkline.jsonrpc import ConnectionLost
from trunkline.sources.model import (
    MAX_CATEGORIES,
    Category,
    Endorsement,
    Name,
    SemVer,
    Slug,
    Source,
)
from trunkline.sources.signing import REGISTRY_KIND, is_same_key, is_signed_by
from trunkline.sources.topics import MatchSettings, TopicFinder

# After how many seconds without a new response a registry is stale.
STALE_AFTER = 3600.0

PeerState: TypeAlias = Literal["fresh", "stale", "pending", "unreachable"]
# Fetches a URL; raises PeerRejected, ConnectionLost or ValueError.
FetchFunction: TypeAlias = Callable[[str], Awaitable[bytes]]


class PeerLimits(Struct, frozen=True):
    """Limits towards peers; times are in seconds."""

    poll_interval: float = 300.0
    timeout: float = 10.0
    max_bytes: int = 2 * 1024 * 1024
    max_categories: int = MAX_CATEGORIES


_DEFAULT_LIMITS = PeerLimits()


class PeerRejected(ValueError):
    """The response of a peer cannot be used."""


class PeerRegistry(Struct, frozen=True):
    """The usable part of a peer's registry."""

    version: str
    curator: str
    is_signed: bool
    categories: dict[str, Category]
    finder: TopicFinder


class RegistryPeer:
    """An endorsed registry, and the outcome of the last fetch."""

    def __init__(self, endorsement: Endorsement) -> None:
        self.endorsement = endorsement
        self.registry: PeerRegistry | None = None
        self.fetched_at = float("-inf")
        self.problem: str | None = None

    @property
    def name(self) -> str:
        """The name to show."""
        curator = self.registry.curator if self.registry else None
        return self.endorsement.name or curator or self.endorsement.pubkey

    def state(self, now: float) -> PeerState:
        """Return whether there is a registry, and how old it is."""
        if self.registry is None:
            return "pending" if self.problem is None else "unreachable"
        return "stale" if now - self.fetched_at > STALE_AFTER else "fresh"


class PeerPoller:
    """Fetches all endorsed registries again and again."""

    def __init__(
        self,
        settings: MatchSettings,
        fetch: FetchFunction | None = None,
        limits: PeerLimits = _DEFAULT_LIMITS,
    ) -> None:
        self._settings = settings
        self._fetch = fetch or partial(fetch_over_https, limits=limits)
        self._limits = limits
        self._peers: dict[Endorsement, RegistryPeer] = {}
        self._changed = asyncio.Event()

    @property
    def all(self) -> tuple[RegistryPeer, ...]:
        """The peers, in the order of their endorsements."""
        return tuple(self._peers.values())

    def set_endorsements(self, endorsements: Iterable[Endorsement], own_key: str) -> None:
        """Replace the set of peers; peers that remain keep their registries."""
        # Our own registry is searched already.
        endorsed = [each for each in endorsements if not is_same_key(each.pubkey, own_key)]
        if endorsed != list(self._peers):
            self._peers = {each: self._peers.get(each) or RegistryPeer(each) for each in endorsed}
            self._changed.set()

    async def run(self) -> None:
        """Poll all peers now, in every interval, and when the set of peers changes."""
        while True:
            self._changed.clear()
            await self.poll()
            try:
                async with asyncio.timeout(self._limits.poll_interval):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def poll(self) -> None:
        """Fetch all peers once, concurrently."""
        await asyncio.gather(*map(self._poll_peer, self.all))

    async def _poll_peer(self, peer: RegistryPeer) -> None:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.timeout):
                data = await self._fetch(peer.endorsement.url)
            # In a thread: verifying and indexing a large registry would block the event loop.
            peer.registry = await asyncio.to_thread(
                read_peer, data, peer.endorsement.pubkey, self._settings, limits.max_categories
            )
        except TimeoutError:
            peer.problem = f"no answer within {limits.timeout:g} s"
        except (ConnectionLost, ValueError) as exc:
            peer.problem = str(exc)
        else:
            peer.problem = None
            peer.fetched_at = asyncio.get_running_loop().time()


async def fetch_over_https(
    url: str,
    allow: Callable[[str], bool] = is_public_address,
    limits: PeerLimits = _DEFAULT_LIMITS,
) -> bytes:
    """Fetch a URL on the public internet; raises PeerRejected or ConnectionLost."""
    client_limits = ClientLimits(
        connect_timeout=limits.timeout, max_connections=1, max_body=limits.max_bytes
    )
    # `allow` checks the address that is connected to, so that a name cannot lead into the local
    # network.
    client = HttpClient(url, ((b"accept", b"application/json"),), client_limits, allow=allow)
    try:
        response = await client.request("GET")
        if response.status != 200:
            response.close()
            raise PeerRejected(f"expected status 200, got {response.status}")
        return await response.read()
    finally:
        await client.aclose()


def read_peer(
    data: bytes, pubkey: str, settings: MatchSettings, max_categories: int = MAX_CATEGORIES
) -> PeerRegistry:
    """Return the usable part of a peer's registry; raises PeerRejected."""
    try:
        # As json.loads decodes bytes; the depth is checked before, because the parser is recursive.
        text = data.decode(json.detect_encoding(data), "surrogatepass")
        check_json_depth(text)
        tree = as_table(json.loads(text))
    except (ValueError, RecursionError):
        tree = None
    if tree is None:
        raise PeerRejected("expected a registry in JSON")
    curator = as_table(tree.get("curator")) or {}
    key = curator.get("pubkey")
    if not isinstance(key, str) or not is_same_key(key, pubkey):
        raise PeerRejected("expected the registry of the key that is endorsed")
    is_signed = tree.get("signature") is not None
    if is_signed and not is_signed_by(pubkey, REGISTRY_KIND, tree):
        raise PeerRejected("expected a signature of the key that is endorsed")
    table = as_table(tree.get("categories")) or {}
    categories = dict(_valid_categories(list(table.items())[:max_categories]))
    version, name = tree.get("version"), curator.get("name")
    return PeerRegistry(
        str(version) if _is_valid(version, SemVer) else "",
        str(name) if _is_valid(name, Name) else "",
        is_signed,
        categories,
        TopicFinder(categories, settings),
    )


def _valid_categories(items: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Category]]:
    """Yield the valid topics; unknown members in them are ignored."""
    # Lenient, unlike our own file: a peer may use a newer version of the format.
    for slug, value in items:
        table = _known_fields(value, Category)
        if isinstance(table.get("sources"), list):
            table["sources"] = [_known_fields(each, Source) for each in table["sources"]]
        if not (_is_valid(slug, Slug) and _is_valid(table, Category)):
            continue
        category = msgspec.convert(table, Category)
        if {source.rank for source in category.sources} == {1, 2, 3}:
            yield slug, category


def _is_valid(value: object, kind: Any) -> bool:
    reasons: list[str] = []

    def add_error(_path: KeyPath, reason: str, _fix: str) -> None:
        reasons.append(reason)

    validate(value, msgspec.inspect.type_info(kind), (), add_error)
    return not reasons


def _known_fields(value: object, kind: type[Struct]) -> dict[str, Any]:
    table = as_table(value) or {}
    return {key: table[key] for key in kind.__struct_fields__ if key in table}
