"""What may be said about one server, as frozen values; `entry` checks it, `settle` fills it in.

Rule upheld here: printing a server never shows what it was given: by now its values are secrets.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from trunkline.config.forms import DAY, EnvName, HeaderName, Seconds, Share, Text, form
from trunkline.config.oauth_table import OAuthSettings

MAX_NAME = 40

ServerName = Annotated[
    str, form("^[A-Za-z0-9_-]+$", f"1 to {MAX_NAME} letters, digits, _ or -", MAX_NAME)
]
Prefix = Annotated[
    str, form("^[A-Za-z0-9_-]*$", f'"" or up to {MAX_NAME} letters, digits, _ or -', MAX_NAME)
]
CuratorKey = Annotated[
    str,
    form(
        "^([0-9a-f]{64}|(pk:)?[13456789a-km-uw-z]{52})$",
        "an Ed25519 public key: 64 digits of 0-9a-f, or 52 of z-base-32",
    ),
]
Kind = Literal["child", "http", "builtin"]
Era = Literal["auto", "handshake", "envelope"]


class ServerTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be said about one server; exactly one of command, url and builtin must be."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        "type": "leave it out: command or url says what the server is",
        "envFile": 'write "env_file"',
        "serverUrl": 'write "url"',
        "httpUrl": 'write "url"',
        "environment": 'write "env"',
        "enabled": 'write "disabled", which means the opposite',
        "autoApprove": "leave it out: approving calls is the client's affair",
        "alwaysAllow": "leave it out: approving calls is the client's affair",
    }
    """What to write for keys of a server that clients know and we do not."""

    title: Annotated[str | None, Meta(description="The server's name for people to read.")] = None
    command: Annotated[
        Text | None, Meta(description="The program to start; it speaks MCP on stdin and stdout.")
    ] = None
    args: Annotated[tuple[str, ...], Meta(description="The arguments of the command.")] = ()
    env: Annotated[
        dict[EnvName, str],
        Meta(description="Variables for the command, beside a small inherited allow-list."),
    ] = field(default_factory=dict[str, str])
    env_file: Annotated[
        Text | None, Meta(description="A file of KEY=VALUE lines; what env says goes before it.")
    ] = None
    cwd: Annotated[
        Text | None, Meta(description="Where the command runs, seen from the config file.")
    ] = None
    url: Annotated[
        Text | None, Meta(description="Where the server answers: http:// or https://.")
    ] = None
    headers: Annotated[
        dict[HeaderName, str], Meta(description="Headers to send with every request to the url.")
    ] = field(default_factory=dict[str, str])
    oauth: Annotated[
        OAuthSettings | None,
        Meta(description="How the gateway gets tokens of its own for the url."),
    ] = None
    builtin: Annotated[
        Literal["sources", "search", "operator"] | None,
        Meta(description="A server that is part of Trunkline."),
    ] = None
    registry: Annotated[
        Text | None,
        Meta(description="The file of a sources server; the embedded one unless set."),
    ] = None
    curator_key: Annotated[
        CuratorKey | None, Meta(description="The key that must have signed the registry.")
    ] = None
    scoring: Annotated[
        Literal["classic", "best"],
        Meta(description="How a sources server finds the topic that is meant."),
    ] = "classic"
    threshold: Annotated[
        Share | None,
        Meta(description="What a topic must score to be meant; as the scoring has it unless set."),
    ] = None
    fuzzy_weight: Annotated[
        Share, Meta(description="How much likeness counts in classic scores.")
    ] = 0.7
    keyword_weight: Annotated[
        Share, Meta(description="How much the words of the slug count in classic scores.")
    ] = 0.3
    operator_tools: Annotated[
        Literal["read", "all"],
        Meta(
            description="Which tools an operator server offers: those that look, or also those "
            "that stop and revive."
        ),
    ] = "read"
    prefix: Annotated[
        Prefix | None,
        Meta(
            description="What stands before the server's names; its own name unless set, and "
            'with "" they are offered as they are.'
        ),
    ] = None
    era: Annotated[
        Era, Meta(description="Which MCP the server speaks: up to 2025-11-25, or from 2026-07-28.")
    ] = "auto"
    timeout: Annotated[Seconds, Meta(description="Seconds that one call may take.")] = 60.0
    start_timeout: Annotated[
        Seconds, Meta(description="Seconds until the server must have answered for the first time.")
    ] = 60.0
    max_in_flight: Annotated[
        int, Meta(ge=1, le=65536, description="Calls that may be under way at a time.")
    ] = 64
    max_queue: Annotated[
        int, Meta(ge=0, le=65536, description="Calls that may wait beside those under way.")
    ] = 1024
    breaker_threshold: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Failures in a row after which the server is left alone for a while; "
            "0 is never.",
        ),
    ] = 5
    breaker_recovery: Annotated[
        Seconds, Meta(description="Seconds that it is left alone before one call finds out.")
    ] = 30.0
    ping_interval: Annotated[
        Annotated[float, Meta(ge=0, le=DAY)],
        Meta(description="Seconds without an answer after which it is asked for one; 0 is never."),
    ] = 30.0
    max_conversations: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Conversations beside the first, so that questions of the server reach the "
            "client whose call they are about; each of a command is one more process.",
        ),
    ] = 4
    max_restarts: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(description="How often a server that dies is started again; unlimited unless set."),
    ] = None
    disabled: Annotated[bool, Meta(description="Leave the server out, but keep it here.")] = False


class ServerSettings(ServerTable, frozen=True, kw_only=True):
    """One server, with everything filled in: no references are left in its values.

    Those of a disabled server are filled in as far as they can be. The variables of `env_file` are
    in `env` already. `prefix` is None where the server's name is its prefix.
    """

    name: str

    @property
    def shown_prefix(self) -> str:
        """What the names of its tools begin with, "" for nothing."""
        return self.name if self.prefix is None else self.prefix

    @property
    def kind(self) -> Kind:
        """What it is: the one of command, url and builtin that is set."""
        if self.command is not None:
            return "child"
        return "http" if self.url is not None else "builtin"

    def __repr__(self) -> str:
        return f"ServerSettings({self.name!r}, {self.kind}, …)"
