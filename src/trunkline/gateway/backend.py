"""The interfaces between an upstream and its backend.

A `Backend` answers calls: an MCP server, or functions of the gateway. `BackendAbilities` has the
functions that only some backends have; an absent one is None. A `BackendListener` receives messages
that the backend sends outside of calls. The implementations are in the package `backends`.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol, TypeAlias

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient, Requester
from trunkline.jsonrpc import ConnectionLost, PendingResult, Raw
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.features import Feature
from trunkline.mcp.versions import Revision


class BackendListener(Protocol):
    """Receives what a backend sends outside of any call."""

    def on_features_changed(self, capability: str) -> None:
        """Note that the backend's tools, prompts or resources have changed."""
        ...

    def on_session_renewed(self) -> None:
        """Note that the backend has a new session, and has lost all state of the old one."""
        ...

    async def on_notification(self, method: str, params: Any) -> None:
        """Handle a notification that concerns no call."""
        ...

    async def on_request(self, method: str, params: Any, requester: Requester | None = None) -> Raw:
        """Answer a request of the backend that concerns no call."""
        ...


class BackendFeatures(NamedTuple):
    """The features that a backend offers."""

    features: tuple[Feature, ...] = ()
    # For how long, and by whom, the lists may be cached
    cache_hints: CacheHints = CacheHints()
    # The features that could not be used, each with the reason
    skipped: tuple[str, ...] = ()
    # What it tells models about its use
    instructions: str | None = None
    # The protocol extensions that it declares, with their settings
    extensions: dict[str, Any] | None = None


class ResourceSubscriptions(Protocol):
    """The ability to report changes of resources."""

    async def subscribe(self, uri: str) -> None:
        """Subscribe to changes of a resource; raises RpcError if the backend refuses."""
        ...

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource."""
        ...


class ServerRequestMode(NamedTuple):
    """How a backend sends requests to clients during calls."""

    # The client features that it was told of
    announced_features: frozenset[str]
    # Whether each request that it sends is known to belong to one call
    has_per_call_streams: bool


class BackendAbilities(NamedTuple):
    """The optional functions of a backend; None for each that is absent."""

    # Checks that it responds; raises RpcError or ConnectionLost
    ping: Callable[[], Coroutine[Any, Any, None]] | None = None
    # Passes on a notification of a client: method and params
    notify: Callable[[str, Any], Coroutine[Any, Any, None]] | None = None
    # Sets the least severe level of the log messages that it sends
    set_log_level: Callable[[str], Coroutine[Any, Any, None]] | None = None
    subscriptions: ResourceSubscriptions | None = None
    # None if it sends no requests during calls
    server_requests: ServerRequestMode | None = None
    # Returns when a client got the question that it has not answered yet, or None, in the
    # time of the running loop. With several open questions, the latest counts.
    awaiting_client_since: Callable[[DownstreamClient], float | None] | None = None
    # Waits until its requests outside of calls are answered; returns whether it sent any
    wait_answered: Callable[[], Coroutine[Any, Any, bool]] | None = None
    # Returns whether it was given an answer of a client that it may keep, such as roots
    is_unfit_for_others: Callable[[], bool] | None = None
    # Refuses its requests until it has processed the cancellation of a call, which may still ask
    refuse_requests: Callable[[], None] | None = None


class Backend(Protocol):
    """Anything that answers calls."""

    @property
    def revision(self) -> Revision:
        """The protocol revision that it speaks."""
        ...

    @property
    def capabilities(self) -> dict[str, Any]:
        """The capabilities that it declared."""
        ...

    @property
    def abilities(self) -> BackendAbilities:
        """The optional functions of this backend."""
        ...

    async def list_features(self) -> BackendFeatures:
        """List all its features."""
        ...

    def call(self, context: CallContext) -> PendingResult:
        """Start a call; the call, or its result, raises RpcError or ConnectionLost."""
        ...

    async def wait_ended(self) -> str | None:
        """Wait until its connection has ended; return why if that is known."""
        ...

    async def aclose(self) -> None:
        """End the connection and release all resources."""
        ...


class BackendOwner(BackendListener, Protocol):
    """The listener that connects a backend."""

    @property
    def client_capabilities(self) -> dict[str, Any] | None:
        """The client capabilities to announce to the backend; None for the current ones."""
        ...


# `data.type` of the errors with which a gateway refuses to run below itself
NESTED_GATEWAY_ERROR = "nested_gateway"


class UnusableBackend(ConnectionLost):
    """The backend cannot work with this configuration, so connecting again is of no use."""


# Connects to a backend and completes its initialization
ConnectBackend: TypeAlias = Callable[[BackendOwner], Awaitable[Backend]]
