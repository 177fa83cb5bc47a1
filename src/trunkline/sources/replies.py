"""Replies: what the tools of the registry say, as text for people and as structure for programs.

Refuses markdown: models and people read the same plain lines.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from trunkline.backends.functions import Answer
from trunkline.sources.load import Loaded
from trunkline.sources.matching import Scored
from trunkline.sources.model import Category, Curator, Source
from trunkline.sources.peers import Peer, State
from trunkline.sources.shelf import LogState, Shelved

_DECIMALS = 4


class SourcesReply(Struct):
    """The three sources of the topic that was meant."""

    slug: str
    name: str
    description: str
    score: float
    sources: tuple[Source, ...]
    version: str
    curator: Curator
    signed: bool


class Topic(Struct):
    """A topic as it is listed."""

    slug: str
    name: str
    description: str


class CategoriesReply(Struct):
    """All topics, by slug."""

    count: int
    categories: tuple[Topic, ...]


class ProvenanceReply(Struct):
    """Who vouches for the registry, and what can be checked."""

    version: str
    updated: str
    curator: Curator
    signed: bool
    digest: str
    categories: int
    behind: bool
    log: LogState | None = None


class EndorsementReply(Struct):
    """A registry of somebody else's, and how it is."""

    name: str
    pubkey: str
    url: str
    since: str
    state: State
    problem: str | None = None


class EndorsementsReply(Struct):
    """All registries of others that the curator vouches for."""

    count: int
    endorsements: tuple[EndorsementReply, ...]


class FederatedMatch(Struct):
    """The three sources of one registry for what was asked."""

    origin: Literal["direct", "endorsed"]
    """Our own registry, or one of somebody else's."""
    registry: str
    pubkey: str
    stale: bool
    match: SourcesReply


class FederatedReply(Struct):
    """What all registries have to say, our own first."""

    count: int
    matches: tuple[FederatedMatch, ...]


def sources_reply(loaded: Loaded, found: Scored) -> SourcesReply:
    """Return the structure of a match in our own registry."""
    registry = loaded.registry
    category = registry.categories[found.slug]
    said = (registry.version, registry.curator, loaded.is_signed)
    return match_reply(found, category, said)


def match_reply(found: Scored, category: Category, said: tuple[str, Curator, bool]) -> SourcesReply:
    """Return the structure of a match; `said` is version, curator and whether it is signed."""
    version, curator, signed = said
    return SourcesReply(
        slug=found.slug,
        name=category.name,
        description=category.description,
        score=round(found.score, _DECIMALS),
        sources=tuple(sorted(category.sources, key=lambda source: source.rank)),
        version=version,
        curator=curator,
        signed=signed,
    )


def sources_text(reply: SourcesReply) -> str:
    """Say what the three sources of a topic are."""
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


def no_match(query: str, closest: Scored | None, slugs: Iterable[str]) -> Answer:
    """Say that no topic is meant, which was closest, and which there are."""
    text = f"No matching category found for query '{query}'."
    if closest is not None and closest.score > 0:  # else nothing is close
        text += f" Closest match: {closest.slug} (score: {closest.score:.2f})."
    return Answer(f"{text} {available(slugs)}", is_error=True)


def available(slugs: Iterable[str]) -> str:
    """Say which topics there are."""
    return f"Available categories: {', '.join(sorted(slugs)) or 'none'}"


def categories_answer(loaded: Loaded) -> Answer:
    """Say which topics there are, and what they cover."""
    topics = tuple(
        Topic(slug, category.name, category.description)
        for slug, category in sorted(loaded.registry.categories.items())
    )
    lines = [f"{each.slug}: {each.name}\n   {each.description}\n" for each in topics]
    text = f"Categories ({len(topics)}):\n\n" + "".join(lines)
    return Answer(text, CategoriesReply(len(topics), topics))


def provenance_answer(shelved: Shelved, is_behind: bool) -> Answer:
    """Say who vouches for the registry, and what was checked."""
    loaded, registry, log = shelved.loaded, shelved.loaded.registry, shelved.log
    reply = ProvenanceReply(
        version=registry.version,
        updated=registry.updated,
        curator=registry.curator,
        signed=loaded.is_signed,
        digest=f"sha256:{loaded.digest}",
        categories=len(registry.categories),
        behind=is_behind,
        log=log,
    )
    signature = "valid, Ed25519, by the curator's key" if reply.signed else "none"
    if log is None:
        chain = "none"
    elif log.problem is None:
        chain = f"{log.entries} entries, chain and signatures valid, ends with {log.head}"
    else:
        chain = f"DOES NOT HOLD: {log.problem}"
    text = (
        f"Registry Version: {reply.version}\nUpdated: {reply.updated}\n"
        f"Curator: {reply.curator.name} ({reply.curator.pubkey})\n"
        f"Signature: {signature}\nDigest: {reply.digest}\n"
        f"Change Log: {chain}\nCategories: {reply.categories}\n"
    )
    if is_behind:
        text += "Note: a newer file is there, but it is not good; this is the last good one.\n"
    return Answer(text, reply)


def endorsements_answer(peers: Iterable[Peer], now: float) -> Answer:
    """Say whom the curator vouches for, and how their registries are."""
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
    return Answer(text, EndorsementsReply(len(found), found))


def federated_answer(matches: Iterable[FederatedMatch]) -> Answer:
    """Say what all registries have, our own first."""
    found = tuple(matches)
    parts: list[str] = []
    for each in found:
        mark = f"[{each.origin}] {each.registry}{' [STALE]' if each.stale else ''}"
        parts.append(f"{mark}\n{sources_text(each.match)}")
    return Answer("\n".join(parts), FederatedReply(len(found), found))
