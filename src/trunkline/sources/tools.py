"""Tools: the registry over MCP, a backend of our own.

    get_sources · list_categories · get_provenance · get_endorsements · get_federated_sources

Refuses to write: what is in a registry is decided by its curator, in its file.

Rules upheld here:
1. A question that means no topic is answered with isError, the closest topic, and all there are.
2. What peers say never stands where our own registry speaks: it is marked, and comes after.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

from msgspec import Meta

from trunkline.backends.functions import Answer, Functions
from trunkline.sources.matching import EmptyQuery, NoMatch, OnlyStopWords
from trunkline.sources.model import MAX_QUERY, Curator
from trunkline.sources.peers import Peer, PeerRegistry, Peers
from trunkline.sources.replies import (
    CategoriesReply,
    EndorsementsReply,
    FederatedMatch,
    FederatedReply,
    ProvenanceReply,
    SourcesReply,
    available,
    categories_answer,
    endorsements_answer,
    federated_answer,
    match_reply,
    no_match,
    provenance_answer,
    sources_reply,
    sources_text,
)
from trunkline.sources.shelf import Shelf, Shelved

Query = Annotated[
    str,
    Meta(
        max_length=MAX_QUERY,
        description="The topic, in a few words of your own.",
        examples=["learn rust", "how do I secure a linux server"],
    ),
]
Threshold = Annotated[
    float,
    Meta(
        ge=0,
        le=1,
        description="How well a topic must fit, from 0 to 1; as configured unless given.",
    ),
]


class SourcesBackend(Functions):
    """The tools of a registry, and the task that asks its peers."""

    def __init__(self, shelf: Shelf, peers: Peers) -> None:
        super().__init__()
        self._shelf = shelf
        self._peers = peers
        self._polling: asyncio.Task[None] | None = None
        hints = {"readOnlyHint": True, "idempotentHint": True}
        for name, function, output, is_open in (
            ("get_sources", self.sources, SourcesReply, False),
            ("list_categories", self.categories, CategoriesReply, False),
            ("get_provenance", self.provenance, ProvenanceReply, False),
            ("get_endorsements", self.endorsements, EndorsementsReply, False),
            ("get_federated_sources", self.federated_sources, FederatedReply, True),
        ):
            self.tool(name, output=output, openWorldHint=is_open, **hints)(function)

    async def start(self) -> None:
        """Read the registry, and begin to ask its peers; raises ConfigErrors."""
        await self._shelf.open()
        await self._fresh()
        self._polling = asyncio.create_task(self._peers.run())

    async def aclose(self) -> None:
        """End, and ask nobody any more."""
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
        await super().aclose()

    async def sources(self, query: Query, threshold: Threshold | None = None) -> Answer:
        """Find exactly three vetted sources on a topic, chosen and ranked by people.

        Ask here before searching the web for how to learn, build, secure or fix something: the
        answer names three sources in the order to look at them, and why each was chosen.

        Examples: {"query": "learn rust"}, {"query": "password manager", "threshold": 0.5}
        """
        shelved = await self._fresh()
        try:
            if shelved.finder.is_large:
                found = await asyncio.to_thread(shelved.finder.find, query, threshold)
            else:
                found = shelved.finder.find(query, threshold)
        except NoMatch as none:
            return no_match(query, none.closest, shelved.loaded.registry.categories)
        except (EmptyQuery, OnlyStopWords) as why:
            return _unasked(why, shelved)
        reply = sources_reply(shelved.loaded, found)
        return Answer(sources_text(reply), reply)

    async def categories(self) -> Answer:
        """List all topics that there are sources on, with what each covers.

        Example: {}
        """
        return categories_answer((await self._fresh()).loaded)

    async def provenance(self) -> Answer:
        """Say who curates the registry, its version, and whether its signature and log hold.

        Example: {}
        """
        return provenance_answer(await self._fresh(), self._shelf.is_behind)

    async def endorsements(self) -> Answer:
        """List the registries of others that the curator vouches for, and how they are.

        Example: {}
        """
        await self._fresh()
        return endorsements_answer(self._peers.all, asyncio.get_running_loop().time())

    async def federated_sources(self, query: Query, threshold: Threshold | None = None) -> Answer:
        """Find vetted sources in this registry and in those that its curator vouches for.

        Each match says where it is from: direct is this registry, endorsed is somebody else's.
        [STALE] means that its registry could not be asked for an hour or more.

        Example: {"query": "run my own mail server"}
        """
        shelved = await self._fresh()
        now = asyncio.get_running_loop().time()
        # In a thread, since nobody knows how large the registries of others are.
        return await asyncio.to_thread(_federated, shelved, self._peers.all, now, query, threshold)

    async def _fresh(self) -> Shelved:
        shelved = await self._shelf.fresh()
        registry = shelved.loaded.registry
        self._peers.endorse(registry.endorsements, registry.curator.pubkey)
        return shelved


def _federated(
    shelved: Shelved, peers: tuple[Peer, ...], now: float, query: str, threshold: float | None
) -> Answer:
    """Ask all registries; of peers the fresh ones come first, and then the best."""
    own, known = shelved.loaded.registry, [(peer, peer.registry) for peer in peers]
    found: list[FederatedMatch] = []
    try:
        closest = next(iter(shelved.finder.rank(query)), None)
        with suppress(NoMatch):
            reply = sources_reply(shelved.loaded, shelved.finder.find(query, threshold))
            mine = own.curator
            found.append(FederatedMatch("direct", mine.name, mine.pubkey, False, reply))
        theirs = [
            match
            for peer, registry in known
            if registry is not None
            for match in _endorsed(peer, registry, peer.state(now) == "stale", query, threshold)
        ]
    except (EmptyQuery, OnlyStopWords) as why:
        return _unasked(why, shelved)
    theirs.sort(key=lambda each: (each.stale, -each.match.score, each.match.slug, each.pubkey))
    found += theirs
    if found:
        return federated_answer(found)
    slugs = set(own.categories).union(*(registry.categories for _, registry in known if registry))
    return no_match(query, closest, slugs)


def _endorsed(
    peer: Peer, registry: PeerRegistry, is_stale: bool, query: str, threshold: float | None
) -> Iterator[FederatedMatch]:
    """Yield the match in the registry of a peer, if there is one."""
    with suppress(NoMatch):
        found = registry.finder.find(query, threshold)
        pubkey = peer.endorsement.pubkey
        curator = Curator(name=registry.curator or peer.name, pubkey=pubkey)
        said = (registry.version, curator, registry.is_signed)
        reply = match_reply(found, registry.categories[found.slug], said)
        yield FederatedMatch("endorsed", peer.name, pubkey, is_stale, reply)


def _unasked(why: ValueError, shelved: Shelved) -> Answer:
    said = str(why)
    topics = available(shelved.loaded.registry.categories)
    return Answer(f"{said[:1].upper()}{said[1:]}. {topics}", is_error=True)
