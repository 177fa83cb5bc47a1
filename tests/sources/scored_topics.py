"""The ten topics that the reference scores are about.

Slugs, and two names, are those of the reference. Its patterns are not known: ours were chosen so
that the scores come out; "audit a public computer" and "pubky flutter plugin" were searched for,
for the two queries that match nothing. Independent of our choice are the scores that slug or name
give alone: those of "bitcoin node", "password manager", "Self-Hosted Email" and "Privacy-Respecting
Home Automation".
"""

from trunkline.sources.topics import ScoredTopic

TOPICS = (
    ScoredTopic(
        "bitcoin-node-setup",
        "Bitcoin Node Setup",
        (
            "how to run a bitcoin node at home",
            "bitcoin full node guide",
            "set up a bitcoin core node",
        ),
    ),
    ScoredTopic(
        "self-hosted-email",
        "Self-Hosted Email",
        ("run my own mail server", "self hosted email server guide", "host email on my own domain"),
    ),
    ScoredTopic(
        "rust-learning",
        "Rust Learning",
        ("learn rust programming", "learn rust for beginners", "best rust course"),
    ),
    ScoredTopic(
        "home-automation-private",
        "Privacy-Respecting Home Automation",
        ("smart home without the cloud", "local home automation", "private smart home"),
    ),
    ScoredTopic(
        "password-management",
        "Password Management",
        ("best password vault for a family", "store passwords safely", "keep my logins safe"),
    ),
    ScoredTopic(
        "linux-hardening",
        "Linux Hardening",
        ("secure a linux server", "harden linux", "audit a public computer"),
    ),
    ScoredTopic(
        "threat-modeling",
        "Threat Modeling",
        ("how to threat model", "security threat analysis", "find threats to my system"),
    ),
    ScoredTopic(
        "nostr-development",
        "Nostr Development",
        ("build a nostr client", "nostr protocol guide", "nostr relay implementation"),
    ),
    ScoredTopic(
        "pubky-development",
        "Pubky Development",
        ("build on pubky", "pubky flutter plugin", "pubky sdk tutorial"),
    ),
    ScoredTopic(
        "mcp-development",
        "MCP Development",
        ("build an mcp server", "model context protocol tutorial", "mcp client sdk"),
    ),
)

SCORES = (
    ("learn rust", "rust-learning", 0.5),
    ("bitcoin node", "bitcoin-node-setup", 0.6667),
    ("email server", "self-hosted-email", 0.6133),
    ("rust programming", "rust-learning", 0.6591),
    ("password manager", "password-management", 0.7026),
    ("learn rust programming", "rust-learning", 0.85),
    ("Self-Hosted Email", "self-hosted-email", 0.9588),
    ("Privacy-Respecting Home Automation", "home-automation-private", 0.8794),
    ("quantum physics supercollider", None, 0.2655),
    ("trust", "rust-learning", 0.3688),
    ("xyzzy plugh foobar", None, 0.175),
)
"""Queries, the topic that must be best if it is known, and its score within 1e-4."""
