"""The interface of a kind of backend: its keys below `[servers.NAME]`, and how it connects.

    [servers.NAME] ── the key of a kind ──> BackendSettings ── connector ──> ConnectBackend
                                                                 └── ConnectContext, of the app

A kind is one file with a subclass of `BackendSettings`, and one line in the table `BACKEND_KINDS`
of `config.server_table`. Everything else, such as the JSON Schema of its keys, follows from that.

The configuration imports all kinds. So a kind imports its transport only when it connects.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, TypeAlias

from msgspec import Meta, Struct

from trunkline.gateway.backend import Backend, BackendOwner, ConnectBackend
from trunkline.jsonrpc import Transport

if TYPE_CHECKING:
    from trunkline.backends.builtin import BuiltinSettings
    from trunkline.backends.connect import ClientIdentity
    from trunkline.backends.era_cache import EraCache
    from trunkline.backends.limits import BackendLimits
    from trunkline.stdio.sandbox import SandboxSettings

ProtocolSetting: TypeAlias = Literal["auto", "session", "stateless"]

# The key `protocol` of kinds that speak MCP
ProtocolKey = Annotated[
    ProtocolSetting,
    Meta(description="session (to 2025-11-25), stateless (2026-07-28), or auto to probe."),
]


class ConnectContext(Protocol):
    """What the app supplies to connect one server: everything but the server's own settings."""

    @property
    def folder(self) -> Path | None:
        """The folder in which commands run unless they set another; None for the current one."""
        ...

    @property
    def limits(self) -> "BackendLimits":
        """The limits and timeouts that are not configurable."""
        ...

    def era_cache(self, *target: str) -> "EraCache":
        """Return the cached protocol of the program or address `target`."""
        ...

    def client_identity(
        self, owner: BackendOwner, *, has_later_sessions: bool = False
    ) -> "ClientIdentity":
        """Return how the gateway presents itself to an MCP server.

        With `has_later_sessions`, the first session may be told of no client features, because
        another session can be opened for each client that has some.
        """
        ...

    async def start_child(
        self,
        command: list[str],
        env: dict[str, str],
        folder: Path | None,
        sandbox: "SandboxSettings | None",
    ) -> Transport:
        """Start a program; raises ChildStartError."""
        ...

    async def start_builtin(self, settings: "BuiltinSettings") -> Backend:
        """Start a server that is part of Trunkline; raises ConnectionLost."""
        ...


class BackendSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of one kind of backend; the first one, which has no default, selects the kind."""

    # The keys whose values are paths relative to the configuration file
    PATH_KEYS: ClassVar[tuple[str, ...]] = ()

    def connector(self, context: ConnectContext) -> ConnectBackend:
        """Return a function that connects, as often as needed."""
        raise NotImplementedError

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that are masked in what the backend reports."""
        return ()

    @property
    def span_attributes(self) -> dict[str, str | int]:
        """The OpenTelemetry attributes of the transport."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"
