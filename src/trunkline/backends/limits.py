"""The limits and timeouts of connections to servers that are not configurable.

A connector passes its limits to everything that it creates. Tests pass smaller ones.
"""

from msgspec import Struct

from trunkline.mcp.era_detection import ProbeTimeouts
from trunkline.mcp.tasks import PollIntervals


class StreamLimits(Struct, frozen=True, kw_only=True):
    """Limits of a connection over Streamable HTTP or HTTP+SSE; all times are in seconds."""

    max_event_bytes: int = 16 * 1024 * 1024
    # The delay before a stream is resumed; a server may set another one.
    reconnect_delay: float = 1.0
    # The minimum of a delay that a server sets.
    min_reconnect_delay: float = 0.05
    # The maximum of all delays before a stream is opened again.
    max_reconnect_delay: float = 30.0
    # How long a stream may take to end after its response, to reuse the connection.
    stream_drain_timeout: float = 1.0
    # How many replies may be in flight before reading stops.
    max_outgoing_tasks: int = 256
    # How many requests may wait for an answer of a client before reading stops.
    max_pending_server_requests: int = 16_384
    # How long closing waits for outgoing messages.
    close_drain_timeout: float = 0.5
    # How long closing then waits for the DELETE.
    session_delete_timeout: float = 2.0
    # How long an HTTP+SSE server may take to name its endpoint; some never do.
    endpoint_timeout: float = 10.0


class BackendLimits(Struct, frozen=True, kw_only=True):
    """Limits of everything that a connector creates; all times are in seconds."""

    streams: StreamLimits = StreamLimits()
    probe_timeouts: ProbeTimeouts = ProbeTimeouts()
    poll_intervals: PollIntervals = PollIntervals()
    # How long a server at a URL may take to answer `server/discover`; some never do.
    http_probe_timeout: float = 10.0
    # How long requests of a server may still be answered after its transport is closed.
    answer_drain_timeout: float = 0.5
    session_renewal_timeout: float = 30.0
    # How long a server may take to acknowledge a subscription.
    listen_timeout: float = 10.0
    # The first pause before a lost subscription is renewed; it doubles each time.
    relisten_delay: float = 1.0
    max_relisten_delay: float = 60.0
    # The first pause before a call is repeated that needs no input; it doubles each time.
    min_input_retry_delay: float = 0.05
    max_input_retry_delay: float = 0.25


DEFAULT_LIMITS = BackendLimits()
