"""What a registry of sources says, as frozen values; the keys of its file are their fields.

    SourceRegistry ──> curator: Curator
                   ──> endorsements: Endorsement, registries of others that the curator vouches for
                   ──> categories: Category by slug ──> exactly three of Source, ranked

Refuses to read anything: files and notations end before this module.

Rule upheld here: one set of types says what may stand in a file. The checks of `load` and the JSON
Schema are both read off it, so that neither can know a key that the other does not.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

MAX_CATEGORIES = 2000
MAX_PATTERNS = 50
MAX_ENDORSEMENTS = 32
MAX_QUERY = 300
"""How many characters a pattern may have, or a query."""

_HEX_KEY = "[0-9a-f]{64}"
_ZBASE_KEY = "(pk:)?[13456789a-km-uw-z]{52}"


def _line(longest: int, words: str) -> Meta:
    # One line, with something visible on it: nobody's name can look like the next line of a reply.
    return Meta(
        pattern=r"^(?=.*\S)[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$",
        max_length=longest,
        extra={"expected": f"{words}: one line of 1 to {longest} characters, not blank"},
    )


SemVer = Annotated[
    str,
    Meta(
        pattern=r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
        r"(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$",
        max_length=64,
        extra={"expected": 'a version of three numbers, such as "1.0.0"'},
    ),
]
Date = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z)?$",
        extra={"expected": 'a date, such as "2026-11-16"'},
    ),
]
PublicKey = Annotated[
    str,
    Meta(
        pattern=f"^({_HEX_KEY}|{_ZBASE_KEY})$",
        extra={"expected": "an Ed25519 public key: 64 digits of 0-9a-f, or 52 of z-base-32"},
    ),
]
Signature = Annotated[
    str,
    Meta(
        pattern="^[0-9a-f]{128}$",
        extra={"expected": "an Ed25519 signature: 128 digits of 0-9a-f"},
    ),
]
Slug = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9]+(-[a-z0-9]+)*$",
        max_length=64,
        extra={"expected": "a slug: words of a-z and 0-9 with - between, up to 64 characters"},
    ),
]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s/@?#]+([/?#]\S*)?$",
        max_length=2000,
        extra={"expected": "a URL that begins with http:// or https://, without user names"},
    ),
]
PeerUrl = Annotated[
    str,
    Meta(
        pattern=r"^https://[^\s/@?#]+([/?#]\S*)?$",
        max_length=2000,
        extra={"expected": "a URL that begins with https://, without user names"},
    ),
]
Name = Annotated[str, _line(200, "a name")]
Prose = Annotated[str, _line(2000, "a sentence or a few")]
Pattern = Annotated[str, _line(MAX_QUERY, "what somebody might ask")]
Rank = Annotated[int, Meta(ge=1, le=3)]
SourceType = Literal[
    "documentation",
    "tutorial",
    "video",
    "article",
    "tool",
    "repo",
    "forum",
    "book",
    "course",
    "api",
]


class Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source, and why it is among the three."""

    rank: Annotated[Rank, Meta(description="Which of the three it is: 1 is looked at first.")]
    name: Annotated[Name, Meta(description="What it is called.")]
    url: Annotated[Url, Meta(description="Where it is.")]
    type: Annotated[SourceType, Meta(description="What kind of thing it is.")]
    why: Annotated[Prose, Meta(description="Why it was chosen.")]


class Category(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic, how people ask for it, and its three sources."""

    name: Annotated[Name, Meta(description="The topic's name for people to read.")]
    description: Annotated[Prose, Meta(description="What the topic covers.")]
    query_patterns: Annotated[
        tuple[Pattern, ...],
        Meta(
            min_length=3,
            max_length=MAX_PATTERNS,
            description="How people ask for it; at least three ways.",
        ),
    ]
    sources: Annotated[
        tuple[Source, ...],
        Meta(min_length=3, max_length=3, description="Exactly three, with the ranks 1, 2 and 3."),
    ]


class Curator(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who has chosen the sources."""

    name: Annotated[Name, Meta(description="Who it is, for people to read.")]
    pubkey: Annotated[PublicKey, Meta(description="The key that signs the registry.")]


class Endorsement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A registry of somebody else's that the curator vouches for."""

    pubkey: Annotated[PublicKey, Meta(description="The key of its curator.")]
    url: Annotated[PeerUrl, Meta(description="Where its file is, over https.")]
    name: Annotated[Name | None, Meta(description="Whose it is, for people to read.")] = None
    since: Annotated[Date, Meta(description="Since when the curator vouches for it.")]


class SourceRegistry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole registry."""

    version: Annotated[SemVer, Meta(description="The version of the registry; it only grows.")]
    updated: Annotated[Date, Meta(description="When it was last changed.")]
    curator: Annotated[Curator, Meta(description=Curator.__doc__)]
    categories: Annotated[
        dict[Slug, Category],
        Meta(max_length=MAX_CATEGORIES, description="The topics, by slug."),
    ]
    endorsements: Annotated[
        tuple[Endorsement, ...],
        Meta(max_length=MAX_ENDORSEMENTS, description="Registries of others to vouch for."),
    ] = ()
    signature: Annotated[
        Signature | None,
        Meta(description="The curator's signature; `trunkline sources sign` writes it."),
    ] = None
    schema: Annotated[
        str | None, Meta(description="Where the JSON Schema of this file is, for editors.")
    ] = field(default=None, name="$schema")
