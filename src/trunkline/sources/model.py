"""The types of a registry of sources, as frozen values; the keys of its file are their fields.

    SourceRegistry ──> curator: Curator
                   ──> endorsements: Endorsement, registries of other curators
                   ──> categories: Category by slug ──> exactly three of Source, ranked

It reads no files.

Invariant upheld here: one set of types says what may be in a file. The checks of `registry_file`
and the JSON Schema are both derived from it, so they know the same keys.
"""

import json
from importlib.resources import files
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from trunkline.documents.validation import drop_null

MAX_CATEGORIES = 2000
MAX_PATTERNS = 50
MAX_ENDORSEMENTS = 32
# How many characters a pattern or a query may have.
MAX_QUERY = 300

_HEX_KEY = "[0-9a-f]{64}"
_ZBASE_KEY = "(pk:)?[13456789a-km-uw-z]{52}"


def _line(max_length: int, words: str) -> Meta:
    # One line that is not blank, so that no name can look like another line of a tool result.
    return Meta(
        pattern=r"^(?=.*\S)[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$",
        max_length=max_length,
        extra={"expected": f"{words}: one line of 1 to {max_length} characters, not blank"},
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
Pattern = Annotated[str, _line(MAX_QUERY, "a query")]
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
    """One source, and why it is one of the three."""

    rank: Annotated[Rank, Meta(description="The rank among the three; read number 1 first.")]
    name: Annotated[Name, Meta(description="The name of the source.")]
    url: Annotated[Url, Meta(description="The address of the source.")]
    type: Annotated[SourceType, Meta(description="The kind of source.")]
    why: Annotated[Prose, Meta(description="Why the curator chose it.")]


class Category(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic, the ways to ask for it, and its three sources."""

    name: Annotated[Name, Meta(description="The topic's name for people to read.")]
    description: Annotated[Prose, Meta(description="What the topic covers.")]
    query_patterns: Annotated[
        tuple[Pattern, ...],
        Meta(
            min_length=3,
            max_length=MAX_PATTERNS,
            description="Ways to ask for the topic; at least three.",
        ),
    ]
    sources: Annotated[
        tuple[Source, ...],
        Meta(min_length=3, max_length=3, description="Exactly three, with the ranks 1, 2 and 3."),
    ]


class Curator(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The person or group that chose the sources."""

    name: Annotated[Name, Meta(description="The name of the curator.")]
    pubkey: Annotated[PublicKey, Meta(description="The key that signs the registry.")]


class Endorsement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A registry of another curator that this curator vouches for."""

    pubkey: Annotated[PublicKey, Meta(description="The public key of its curator.")]
    url: Annotated[PeerUrl, Meta(description="The https address of its file.")]
    name: Annotated[Name | None, Meta(description="The name of its owner.")] = None
    since: Annotated[Date, Meta(description="The date of the endorsement.")]


class SourceRegistry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole registry."""

    version: Annotated[SemVer, Meta(description="The version of the registry; it never decreases.")]
    updated: Annotated[Date, Meta(description="The date of the last change.")]
    curator: Annotated[Curator, Meta(description=Curator.__doc__)]
    categories: Annotated[
        dict[Slug, Category],
        Meta(max_length=MAX_CATEGORIES, description="The topics, by slug."),
    ]
    endorsements: Annotated[
        tuple[Endorsement, ...],
        Meta(max_length=MAX_ENDORSEMENTS, description="Registries of other curators."),
    ] = ()
    signature: Annotated[
        Signature | None,
        Meta(description="The curator's signature; `trunkline sources sign` writes it."),
    ] = None
    schema: Annotated[
        str | None, Meta(description="The address of the JSON Schema of this file, for editors.")
    ] = field(default=None, name="$schema")


SCHEMA_FILE = "sources.schema.json"


def registry_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a registry.

    A schema cannot express some rules: that ranks differ, that nothing occurs twice, that a date
    exists, that the signature is the curator's.
    """
    _, found = msgspec.json.schema_components([SourceRegistry], ref_template="#/$defs/{name}")
    definitions = {name: drop_null(definition) for name, definition in found.items()}
    registry = definitions.pop(SourceRegistry.__name__)
    registry["title"] = "A registry of sources"
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    # Through text and back, because msgspec returns tuples and JSON has none.
    return json.loads(json.dumps(dialect | registry | {"$defs": definitions}))


def schema_text() -> str:
    """Return the schema as it is shipped, in `sources.schema.json`."""
    return json.dumps(registry_schema(), indent=2) + "\n"


def shipped_schema() -> dict[str, Any]:
    """Read the schema that is shipped with this package."""
    return json.loads(files("trunkline.sources").joinpath(SCHEMA_FILE).read_text(encoding="utf-8"))
