"""The tools of a registry, as a backend of the gateway's own, and their results.

    get_sources · list_categories · get_provenance · get_endorsements · get_federated_sources

Results are plain text for people and models, without markdown, and a structure for programs. The
tools only read: a registry changes when its curator changes the file.

Invariants upheld here:
1. A query that means no topic gets isError, with the closest topic and all existing topics.
2. Results of peers are marked, and come after those of the own registry.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Literal

from msgspec import Meta, Struct

from trunkline.backends.functions import FunctionBackend, ToolResult
from trunkline.sources.federation import PeerPoller, PeerRegistry, PeerState, RegistryPeer
from trunkline.sources.model import MAX_QUERY, Category, Curator, Source
from trunkline.sources.registry_cache import CachedRegistry, ChangeLogStatus, RegistryCache
from trunkline.sources.registry_file import LoadedRegistry
from trunkline.sources.topics import EmptyQuery, NoMatch, OnlyStopWords, TopicScore

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
        description="The score that a topic must reach, from 0 to 1; default: as configured.",
    ),
]

_SCORE_DECIMALS = 4


class SourcesReply(Struct):
    """The three sources of the topic that the query means."""

    slug: str
    name: str
    description: str
    score: float
    sources: tuple[Source, ...]
    version: str
    curator: Curator
    signed: bool


class TopicSummary(Struct):
    """A topic without its sources."""

    slug: str
    name: str
    description: str


class CategoriesReply(Struct):
    """All topics, by slug."""

    count: int
    categories: tuple[TopicSummary, ...]


class ProvenanceReply(Struct):
    """The curator of the registry, and what was verified."""

    version: str
    updated: str
    curator: Curator
    signed: bool
    digest: str
    categories: int
    behind: bool
    log: ChangeLogStatus | None = None


class EndorsementReply(Struct):
    """The registry of another curator, and its state."""

    name: str
    pubkey: str
    url: str
    since: str
    state: PeerState
    problem: str | None = None


class EndorsementsReply(Struct):
    """All registries that the curator vouches for."""

    count: int
    endorsements: tuple[EndorsementReply, ...]


class FederatedMatch(Struct):
    """The three sources of one registry for the query."""

    # Our own registry, or an endorsed one.
    origin: Literal["direct", "endorsed"]
    registry: str
    pubkey: str
    stale: bool
    match: SourcesReply


class FederatedReply(Struct):
    """The matches of all registries, our own first."""

    count: int
    matches: tuple[FederatedMatch, ...]


class SourcesBackend(FunctionBackend):
    """The tools of a registry, and the task that polls its peers."""

    def __init__(self, cache: RegistryCache, peers: PeerPoller) -> None:
        super().__init__()
        self._cache = cache
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
        """Read the registry and start to poll its peers; raises ConfigErrors."""
        await self._cache.open()
        await self._current_registry()
        self._polling = asyncio.create_task(self._peers.run())

    async def aclose(self) -> None:
        """Stop polling and close."""
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
        await super().aclose()

    # The docstrings of these functions are the descriptions of the tools.

    async def sources(self, query: Query, threshold: Threshold | None = None) -> ToolResult:
        """Find exactly three vetted sources on a topic, chosen and ranked by people.

        Ask here before searching the web for how to learn, build, secure or fix something. The
        answer names three sources in the order to look at them, and why each was chosen.

        Examples: {"query": "learn rust"}, {"query": "password manager", "threshold": 0.5}
        """
        cached = await self._current_registry()
        try:
            # Only a large registry is worth a thread: the search would block the event loop.
            if cached.finder.is_large:
                found = await asyncio.to_thread(cached.finder.find, query, threshold)
            else:
                found = cached.finder.find(query, threshold)
        except NoMatch as exc:
            return no_match_result(query, exc.closest, cached.loaded.registry.categories)
        except (EmptyQuery, OnlyStopWords) as exc:
            return _invalid_query(exc, cached)
        reply = sources_reply(cached.loaded, found)
        return ToolResult(format_sources(reply), reply)

    async def categories(self) -> ToolResult:
        """List all topics that have sources, with what each covers.

        Example: {}
        """
        return categories_result((await self._current_registry()).loaded)

    async def provenance(self) -> ToolResult:
        """Say who curates the registry, its version, and whether its signature and log are valid.

        Example: {}
        """
        return provenance_result(await self._current_registry(), self._cache.is_outdated)

    async def endorsements(self) -> ToolResult:
        """List the registries of other curators that this curator vouches for, and their state.

        Example: {}
        """
        await self._current_registry()
        return endorsements_result(self._peers.all, asyncio.get_running_loop().time())

    async def federated_sources(
        self, query: Query, threshold: Threshold | None = None
    ) -> ToolResult:
        """Find vetted sources in this registry and in those that its curator vouches for.

        Each match names its origin: direct means this registry, endorsed that of another curator.
        [STALE] means that the registry has not been reachable for an hour or more.

        Example: {"query": "run my own mail server"}
        """
        cached = await self._current_registry()
        now = asyncio.get_running_loop().time()
        # In a thread, because the registries of peers may be large.
        return await asyncio.to_thread(
            _search_federated, cached, self._peers.all, now, query, threshold
        )

    async def _current_registry(self) -> CachedRegistry:
        cached = await self._cache.current()
        registry = cached.loaded.registry
        self._peers.set_endorsements(registry.endorsements, registry.curator.pubkey)
        return cached


def _search_federated(
    cached: CachedRegistry,
    peers: tuple[RegistryPeer, ...],
    now: float,
    query: str,
    threshold: float | None,
) -> ToolResult:
    """Search all registries; fresh peers come before stale ones, then the best match first."""
    own, registries = cached.loaded.registry, [(peer, peer.registry) for peer in peers]
    matches: list[FederatedMatch] = []
    try:
        closest = next(iter(cached.finder.rank(query)), None)
        with suppress(NoMatch):
            reply = sources_reply(cached.loaded, cached.finder.find(query, threshold))
            name, pubkey = own.curator.name, own.curator.pubkey
            matches.append(FederatedMatch("direct", name, pubkey, False, reply))
        peer_matches = [
            match
            for peer, registry in registries
            if registry is not None
            for match in _peer_match(peer, registry, peer.state(now) == "stale", query, threshold)
        ]
    except (EmptyQuery, OnlyStopWords) as exc:
        return _invalid_query(exc, cached)
    peer_matches.sort(
        key=lambda each: (each.stale, -each.match.score, each.match.slug, each.pubkey)
    )
    matches += peer_matches
    if matches:
        return federated_result(matches)
    # The error lists the topics of all registries, since all were searched.
    slugs = set(own.categories).union(*(found.categories for _, found in registries if found))
    return no_match_result(query, closest, slugs)


def _peer_match(
    peer: RegistryPeer, registry: PeerRegistry, is_stale: bool, query: str, threshold: float | None
) -> Iterator[FederatedMatch]:
    with suppress(NoMatch):
        found = registry.finder.find(query, threshold)
        pubkey = peer.endorsement.pubkey
        curator = Curator(name=registry.curator or peer.name, pubkey=pubkey)
        provenance = (registry.version, curator, registry.is_signed)
        reply = match_reply(found, registry.categories[found.slug], provenance)
        yield FederatedMatch("endorsed", peer.name, pubkey, is_stale, reply)


def _invalid_query(exc: ValueError, cached: CachedRegistry) -> ToolResult:
    message = str(exc)
    topics = format_topics(cached.loaded.registry.categories)
    return ToolResult(f"{message[:1].upper()}{message[1:]}. {topics}", is_error=True)


def sources_reply(loaded: LoadedRegistry, found: TopicScore) -> SourcesReply:
    """Return the structure of a match in our own registry."""
    registry = loaded.registry
    provenance = (registry.version, registry.curator, loaded.is_signed)
    return match_reply(found, registry.categories[found.slug], provenance)


def match_reply(
    found: TopicScore, category: Category, provenance: tuple[str, Curator, bool]
) -> SourcesReply:
    """Return the structure of a match; `provenance` is version, curator and "is it signed?"."""
    version, curator, signed = provenance
    return SourcesReply(
        slug=found.slug,
        name=category.name,
        description=category.description,
        score=round(found.score, _SCORE_DECIMALS),
        sources=tuple(sorted(category.sources, key=lambda source: source.rank)),
        version=version,
        curator=curator,
        signed=signed,
    )


def format_sources(reply: SourcesReply) -> str:
    """Return the three sources of a topic as text."""
    head = (
        f"Category: {reply.name}\nSlug: {reply.slug}\nDescription: {reply.description}\n\n"
        f"Registry Version: {reply.version}\n"
        f"Curator: {reply.curator.name} ({reply.curator.pubkey})\n\nSources:\n"
    )
    return head + "".join(
        f"\n{source.rank}. {source.name}\n"
        f"   URL: {source.url}\n   Type: {source.type}\n   Why: {source.why}\n"
        for source in reply.sources
    )


def no_match_result(query: str, closest: TopicScore | None, slugs: Iterable[str]) -> ToolResult:
    """Return the error for a query that means no topic."""
    text = f"No matching category found for query '{query}'."
    if closest is not None and closest.score > 0:  # at 0 no topic is close
        text += f" Closest match: {closest.slug} (score: {closest.score:.2f})."
    return ToolResult(f"{text} {format_topics(slugs)}", is_error=True)


def format_topics(slugs: Iterable[str]) -> str:
    """Return the list of topics as text."""
    return f"Available categories: {', '.join(sorted(slugs)) or 'none'}"


def categories_result(loaded: LoadedRegistry) -> ToolResult:
    """Return all topics with their descriptions."""
    topics = tuple(
        TopicSummary(slug, category.name, category.description)
        for slug, category in sorted(loaded.registry.categories.items())
    )
    lines = [f"{each.slug}: {each.name}\n   {each.description}\n" for each in topics]
    text = f"Categories ({len(topics)}):\n\n" + "".join(lines)
    return ToolResult(text, CategoriesReply(len(topics), topics))


def provenance_result(cached: CachedRegistry, is_outdated: bool) -> ToolResult:
    """Return the curator of the registry and what was verified."""
    loaded, registry, log = cached.loaded, cached.loaded.registry, cached.log
    reply = ProvenanceReply(
        version=registry.version,
        updated=registry.updated,
        curator=registry.curator,
        signed=loaded.is_signed,
        digest=f"sha256:{loaded.digest}",
        categories=len(registry.categories),
        behind=is_outdated,
        log=log,
    )
    signature = "valid, Ed25519, by the curator's key" if reply.signed else "none"
    if log is None:
        chain = "none"
    elif log.problem is None:
        chain = f"{log.entries} entries, chain and signatures valid, ends with {log.head}"
    else:
        chain = f"NOT VALID: {log.problem}"
    text = (
        f"Registry Version: {reply.version}\nUpdated: {reply.updated}\n"
        f"Curator: {reply.curator.name} ({reply.curator.pubkey})\n"
        f"Signature: {signature}\nDigest: {reply.digest}\n"
        f"Change Log: {chain}\nCategories: {reply.categories}\n"
    )
    if is_outdated:
        text += "Note: the file has changed and is not valid; this is the last valid registry.\n"
    return ToolResult(text, reply)


def endorsements_result(peers: Iterable[RegistryPeer], now: float) -> ToolResult:
    """Return the endorsed registries and their states."""
    found = tuple(
        EndorsementReply(
            peer.name,
            peer.endorsement.pubkey,
            peer.endorsement.url,
            peer.endorsement.since,
            peer.state(now),
            peer.problem,
        )
        for peer in peers
    )
    text = f"Endorsements ({len(found)}):\n"
    for each in found:
        problem = f" ({each.problem})" if each.problem else ""
        text += (
            f"\n{each.name}\n   Key: {each.pubkey}\n   URL: {each.url}\n"
            f"   Since: {each.since}\n   State: {each.state}{problem}\n"
        )
    return ToolResult(text, EndorsementsReply(len(found), found))


def federated_result(matches: Iterable[FederatedMatch]) -> ToolResult:
    """Return the matches of all registries, in the given order."""
    found = tuple(matches)
    parts: list[str] = []
    for each in found:
        mark = f"[{each.origin}] {each.registry}{' [STALE]' if each.stale else ''}"
        parts.append(f"{mark}\n{format_sources(each.match)}")
    return ToolResult("\n".join(parts), FederatedReply(len(found), found))
