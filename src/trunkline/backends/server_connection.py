"""The connection to one server, over any transport, and the reading of its feature lists.

    stdio, HTTP+SSE ──> Transport ──> TransportServerConnection ──┐
                                                                  ├──> SessionServer,
                                                                  │    StatelessServer
    Streamable HTTP ──> StreamableHttpClient ─────────────────────┘

A connection knows nothing of the methods. Messages on a call's own stream go to the handler of that
call; all others go to the connection's handler. Without streams per call, that is every message.

Lists are read page by page. The number of pages and features is limited, and a repeated cursor ends
the list.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from trunkline.backends.limits import DEFAULT_LIMITS
from trunkline.backends.streamable_http import RetryInNewSession
from trunkline.gateway.backend import BackendFeatures
from trunkline.http.exchange import Headers
from trunkline.jsonrpc import (
    METHOD_NOT_FOUND,
    Connection,
    Handler,
    Id,
    IdRemapper,
    Peer,
    PendingResult,
    Raw,
    RpcError,
    Transport,
    read_members,
)
from trunkline.jsonrpc.errors import IncidentReporter, print_incident
from trunkline.jsonrpc.transport import read_end_reason
from trunkline.mcp.cache_hints import CacheHints, merge_cache_hints, read_cache_hints
from trunkline.mcp.features import Feature, FeatureKind, read_feature_page
from trunkline.mcp.identity import cancelled_notification
from trunkline.mcp.versions import Revision


class ServerConnection(Protocol):
    """A connection to one server."""

    @property
    def has_streams(self) -> bool:
        """Whether each call has a stream of its own for the server's messages."""
        ...

    def call(
        self,
        method: str,
        params: Raw,
        *,
        original_id: Id = None,
        handler: Handler | None = None,
        headers: Headers = (),
        retry_in_new_session: RetryInNewSession | None = None,
    ) -> PendingResult:
        """Send a request; raises RpcError or ConnectionLost, at once or when awaited.

        `headers` are for HTTP; `retry_in_new_session` is called if the server has lost the session.
        """
        ...

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification; raises ConnectionLost."""
        ...

    def on_session_opened(self, revision: Revision, handler: Handler) -> None:
        """Note the agreed revision, and the handler of messages outside of calls."""
        ...

    def cancel(self, request_id: object) -> None:
        """Stop answering a request that the server has cancelled."""
        ...

    async def wait_ended(self) -> str | None:
        """Wait until the server cannot be reached any more; return why if that is known."""
        ...

    async def aclose(self) -> None:
        """End the connection and release all resources."""
        ...


class TransportServerConnection:
    """A server behind a transport with one stream for all messages."""

    has_streams = False

    def __init__(
        self,
        transport: Transport,
        name: str,
        remapper: IdRemapper,
        handler: Handler,
        report: IncidentReporter = print_incident,
        *,
        close_timeout: float = DEFAULT_LIMITS.answer_drain_timeout,
    ) -> None:
        """Start to receive; `name` identifies the server in the id map.

        `close_timeout` is how many seconds requests of the server may still be answered after the
        connection is closed.
        """
        peer = Peer(name, remapper, reply_to_violations=False)
        self._transport = transport
        self._connection = Connection(
            transport,
            handler,
            peer,
            cancellation=cancelled_notification,
            report=report,
            close_timeout=close_timeout,
        )
        self._run_task = asyncio.create_task(self._connection.run())

    def call(
        self,
        method: str,
        params: Raw,
        *,
        original_id: Id = None,
        handler: Handler | None = None,
        headers: Headers = (),
        retry_in_new_session: RetryInNewSession | None = None,
    ) -> PendingResult:
        """Send a request."""
        return self._connection.send_request(method, params, original_id=original_id)

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        await self._connection.notify(method, params)

    def on_session_opened(self, revision: Revision, handler: Handler) -> None:
        """Do nothing: all messages go to one handler anyway."""

    def cancel(self, request_id: object) -> None:
        """Stop answering a request that the server has cancelled."""
        self._connection.cancel_request(request_id)

    async def wait_ended(self) -> str | None:
        """Wait until the server has closed the connection; return why if that is known."""
        await self._connection.wait_ended()
        return read_end_reason(self._transport)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.aclose()
        await self._run_task


class FeatureListLimits(NamedTuple):
    """How much of a server's lists is read."""

    max_pages: int = 1000  # how many pages of one list are read
    max_features: int = 10_000  # how many features of one kind are taken
    max_skipped: int = 100  # how many skipped features of one server are reported


DEFAULT_LIST_LIMITS = FeatureListLimits()

RequestPage = Callable[[str, dict[str, Any]], Awaitable[Raw]]  # requests one page from the server


async def read_lists(
    request_page: RequestPage,
    capabilities: dict[str, Any],
    limits: FeatureListLimits = DEFAULT_LIST_LIMITS,
) -> BackendFeatures:
    """List all features of the kinds that a server declared."""
    all_features: list[Feature] = []
    cache_hints: list[CacheHints] = []
    skipped: list[str] = []
    for kind in FeatureKind:
        if kind.capability in capabilities:
            features = await _read_list(request_page, kind, cache_hints, skipped, limits)
            skipped += _duplicates(kind, features)
            all_features += features
    merged = merge_cache_hints(cache_hints)
    return BackendFeatures(tuple(all_features), merged, tuple(skipped[: limits.max_skipped]))


def _duplicates(kind: FeatureKind, features: list[Feature]) -> list[str]:
    count = Counter(feature.key for feature in features)
    return [f"{kind.value}: {key!r} again: the first counts" for key in count if count[key] > 1]


async def _read_list(
    request_page: RequestPage,
    kind: FeatureKind,
    cache_hints: list[CacheHints],
    skipped: list[str],
    limits: FeatureListLimits,
) -> list[Feature]:
    features: list[Feature] = []
    cursor: str | None = None
    seen_cursors: set[str | None] = set()
    for _ in range(limits.max_pages):
        # Some servers return the same cursor again instead of none.
        if cursor in seen_cursors or len(features) >= limits.max_features:
            break
        seen_cursors.add(cursor)
        try:
            result = await request_page(kind.method, {} if cursor is None else {"cursor": cursor})
            page = read_feature_page(kind, result)
        except (RpcError, ValueError) as error:
            # Many servers with resources have no templates, and some declare too much.
            unknown = isinstance(error, RpcError) and error.code == METHOD_NOT_FOUND
            if unknown or kind is FeatureKind.TEMPLATE:
                return features
            raise
        cache_hints.append(read_cache_hints(read_members(result)))
        features += page.features
        skipped += page.skipped[: limits.max_skipped]
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    return features[: limits.max_features]
