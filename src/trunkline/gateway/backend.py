"""The interfaces between an upstream and its backend.

A `Backend` answers calls: an MCP server, or functions of the gateway. A `BackendListener` receives
what the backend sends outside of calls. The implementations are in the package `backends`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient, Requester
from trunkline.jsonrpc import PendingResult, Raw
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
    def announced_features(self) -> frozenset[str] | None:
        """The client features that it was told of; None if it sends no requests during calls."""
        ...

    @property
    def has_per_call_streams(self) -> bool:
        """Whether each request that it sends is known to belong to one call."""
        ...

    def awaiting_client_since(self, client: DownstreamClient) -> float | None:
        """Return when it sent the request that this client has not answered yet, or None.

        The time is that of the running loop's clock. With several open requests, the latest counts.
        """
        ...

    @property
    def cache_hints(self) -> CacheHints:
        """For how long, and by whom, its lists may be cached."""
        ...

    @property
    def skipped_features(self) -> tuple[str, ...]:
        """The features of its last lists that could not be used, each with the reason."""
        ...

    async def list_features(self) -> tuple[Feature, ...]:
        """List all its features."""
        ...

    def call(self, context: CallContext) -> PendingResult:
        """Start a call; the call, or its result, raises RpcError or ConnectionLost."""
        ...

    async def notify(self, method: str, params: Any) -> None:
        """Pass on a notification of a client."""
        ...

    async def ping(self) -> None:
        """Check that it responds; raises RpcError or ConnectionLost."""
        ...

    async def subscribe(self, uri: str) -> None:
        """Subscribe to changes of a resource; raises RpcError if it refuses."""
        ...

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource."""
        ...

    async def set_log_level(self, level: str) -> None:
        """Set the least severe level of the log messages that it sends."""
        ...

    async def wait_ended(self) -> None:
        """Wait until its connection has ended."""
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


# Connects to a backend and completes its initialization
ConnectBackend: TypeAlias = Callable[[BackendOwner], Awaitable[Backend]]
