"""Servers with `builtin`. They are part of Trunkline, and their tools are Python functions.

Other packages define these functions; the app builds and starts the servers.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta

from trunkline.backends.kind import BackendSettings, ConnectContext
from trunkline.documents.formats import Fraction, NonBlankText, text_format
from trunkline.gateway.backend import Backend, BackendOwner, ConnectBackend

BuiltinName: TypeAlias = Literal["sources", "search", "operator"]

CuratorKey = Annotated[
    str,
    text_format(
        "^([0-9a-f]{64}|(pk:)?[13456789a-km-uw-z]{52})$",
        "an Ed25519 public key: 64 digits of 0-9a-f, or 52 of z-base-32",
    ),
]


class BuiltinSettings(BackendSettings, frozen=True, kw_only=True):
    """The keys of the built-in servers."""

    PATH_KEYS: ClassVar = ("registry",)

    builtin: Annotated[BuiltinName, Meta(description="A server that is part of Trunkline.")]
    registry: Annotated[
        NonBlankText | None,
        Meta(description="The registry file of a sources server. Default: the embedded one."),
    ] = None
    curator_key: Annotated[
        CuratorKey | None,
        Meta(
            description=(
                "The public key that must have signed the registry. "
                "Default: any registry is served."
            )
        ),
    ] = None
    scoring: Annotated[
        Literal["classic", "best"],
        Meta(description="How a sources server matches topics."),
    ] = "classic"
    threshold: Annotated[
        Fraction | None,
        Meta(description="The minimum score of a match. Default: 0.4 for classic, 0.25 for best."),
    ] = None
    fuzzy_weight: Annotated[
        Fraction, Meta(description="The weight of edit distance in classic scores.")
    ] = 0.7
    keyword_weight: Annotated[
        Fraction, Meta(description="The weight of slug words in classic scores.")
    ] = 0.3
    operator_tools: Annotated[
        Literal["read", "all"],
        Meta(description="The tools of an operator server: only those that read, or all."),
    ] = "read"

    rank_by_use: Annotated[
        bool,
        Meta(description="Tools that a caller used after earlier searches come first for it."),
    ] = True

    def connector(self, context: ConnectContext) -> ConnectBackend:
        """Return a function that starts the server."""

        async def connect(_owner: BackendOwner) -> Backend:
            return await context.start_builtin(self)

        return connect


# The keys of one built-in server
BUILTIN_KEY_OWNERS: Mapping[str, BuiltinName] = {
    "registry": "sources",
    "curator_key": "sources",
    "scoring": "sources",
    "threshold": "sources",
    "fuzzy_weight": "sources",
    "keyword_weight": "sources",
    "operator_tools": "operator",
    "rank_by_use": "search",
}
