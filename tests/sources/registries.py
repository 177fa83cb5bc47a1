"""Registries for tests: the ten topics of the reference scores, as in a file."""

import copy
import json
from pathlib import Path
from typing import Any

from tests.sources.scored_topics import TOPICS
from trunkline.sources.signing import REGISTRY_KIND, RegistrySigner

PUBKEY = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
"""The public key of the first test vector of RFC 8032, 7.1."""


def category(slug: str, name: str, patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return a topic with three sources."""
    return {
        "name": name,
        "description": f"All about {name}.",
        "query_patterns": list(patterns),
        "sources": [
            {
                "rank": rank,
                "name": f"{name} {rank}",
                "url": f"https://{slug}.example/{rank}",
                "type": "documentation",
                "why": f"It is number {rank}.",
            }
            for rank in (1, 2, 3)
        ],
    }


TREE: dict[str, Any] = {
    "version": "1.2.3",
    "updated": "2026-11-16",
    "curator": {"name": "Ada", "pubkey": PUBKEY},
    "endorsements": [],
    "categories": {topic.slug: category(*topic) for topic in TOPICS},
}


def tree(**changes: Any) -> dict[str, Any]:
    """Return a changed copy of the registry."""
    return copy.deepcopy(TREE) | changes


def write(path: Path, value: object) -> Path:
    """Write a registry as JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
    return path


def signed(signer: RegistrySigner, **changes: Any) -> dict[str, Any]:
    """Return a registry that this signer signed."""
    unsigned = tree(curator={"name": "Ada", "pubkey": signer.pubkey}, **changes)
    return signer.sign(REGISTRY_KIND, unsigned)
