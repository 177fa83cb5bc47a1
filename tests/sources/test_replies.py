"""What the tools say, word for word."""

import json

import pytest

from tests.sources.registries import PUBKEY, TREE, tree
from tests.sources.test_peers import endorsement
from trunkline.sources.load import Loaded, parse
from trunkline.sources.matching import Matching, Scored, TopicFinder
from trunkline.sources.peers import Peer
from trunkline.sources.replies import (
    FederatedMatch,
    categories_answer,
    endorsements_answer,
    federated_answer,
    no_match,
    provenance_answer,
    sources_reply,
    sources_text,
)
from trunkline.sources.shelf import LogState, Shelved

LOADED = parse(json.dumps(TREE), "a.json")


@pytest.mark.holds("O1.5")
def test_sources_are_told_in_the_order_of_their_ranks() -> None:
    turned = tree()
    turned["categories"]["rust-learning"]["sources"].reverse()
    loaded = parse(json.dumps(turned), "a.json")
    reply = sources_reply(loaded, Scored("rust-learning", 0.123456))
    assert reply.score == 0.1235
    assert sources_text(reply) == (
        "Category: Rust Learning\n"
        "Slug: rust-learning\n"
        "Description: All about Rust Learning.\n"
        "\n"
        "Registry Version: 1.2.3\n"
        f"Curator: Ada ({PUBKEY})\n"
        "\n"
        "Sources:\n"
        "\n"
        "1. Rust Learning 1\n"
        "   URL: https://rust-learning.example/1\n"
        "   Type: documentation\n"
        "   Why: It is number 1.\n"
        "\n"
        "2. Rust Learning 2\n"
        "   URL: https://rust-learning.example/2\n"
        "   Type: documentation\n"
        "   Why: It is number 2.\n"
        "\n"
        "3. Rust Learning 3\n"
        "   URL: https://rust-learning.example/3\n"
        "   Type: documentation\n"
        "   Why: It is number 3.\n"
    )


@pytest.mark.holds("O1.5")
def test_no_match_names_the_closest_and_all_topics() -> None:
    answer = no_match("q", Scored("b", 0.321), ["c", "a", "b"])
    assert answer.is_error
    assert answer.structure is None
    assert answer.text == (
        "No matching category found for query 'q'. Closest match: b (score: 0.32). "
        "Available categories: a, b, c"
    )
    for nothing in (None, Scored("a", 0.0)):
        text = no_match("q", nothing, []).text
        assert text == "No matching category found for query 'q'. Available categories: none"


@pytest.mark.holds("O1.5")
def test_categories_are_told_by_slug() -> None:
    answer = categories_answer(LOADED)
    assert answer.text.startswith(
        "Categories (10):\n\nbitcoin-node-setup: Bitcoin Node Setup\n   All about Bitcoin Node"
    )
    slugs = [each.slug for each in answer.structure.categories]
    assert slugs == sorted(TREE["categories"])


def shelved(log: LogState | None = None, loaded: Loaded = LOADED) -> Shelved:
    return Shelved(loaded, TopicFinder({}, Matching()), log)


def test_provenance_tells_what_was_checked_and_what_was_not() -> None:
    text = provenance_answer(shelved(), is_behind=False).text
    assert f"Curator: Ada ({PUBKEY})\nSignature: none\nDigest: sha256:" in text
    assert "Change Log: none\nCategories: 10\n" in text
    good = provenance_answer(shelved(LogState(3, "abc")), is_behind=True).text
    assert "Change Log: 3 entries, chain and signatures valid, ends with abc\n" in good
    assert "a newer file is there, but it is not good" in good
    bad = provenance_answer(shelved(LogState(problem="line 2: no")), is_behind=False).text
    assert "Change Log: DOES NOT HOLD: line 2: no\n" in bad


def test_endorsements_are_told_with_their_state() -> None:
    assert endorsements_answer([], 0.0).text == "Endorsements (0):\n"
    peer = Peer(endorsement(name="Bob"))
    peer.problem = "no answer"
    answer = endorsements_answer([peer], 0.0)
    assert answer.text == (
        f"Endorsements (1):\n\nBob\n   Key: {PUBKEY}\n   URL: https://peer.example/r.json\n"
        "   Since: 2026-01-01\n   State: unreachable (no answer)\n"
    )
    assert answer.structure.endorsements[0].state == "unreachable"


@pytest.mark.holds("O1.13")
def test_matches_of_several_registries_are_marked() -> None:
    reply = sources_reply(LOADED, Scored("rust-learning", 0.5))
    answer = federated_answer(
        [
            FederatedMatch("direct", "Ada", PUBKEY, False, reply),
            FederatedMatch("endorsed", "Bob", PUBKEY, True, reply),
        ]
    )
    assert answer.text.startswith("[direct] Ada\nCategory: Rust Learning\n")
    assert "\n\n[endorsed] Bob [STALE]\nCategory: Rust Learning\n" in answer.text
    assert answer.structure.count == 2
