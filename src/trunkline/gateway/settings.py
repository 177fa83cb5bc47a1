"""The plain data of a gateway and its upstreams: limits, settings, and the state at one moment.

The limits have defaults that apply in every installation; tests pass smaller ones.
"""

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from trunkline.mcp.notifications import MAX_SUBSCRIBED_URIS
from trunkline.mcp.versions import Revision
from trunkline.routing.breaker import HEALTHY_UPTIME, CircuitState


class GatewayLimits(Struct, frozen=True):
    """The fixed timeouts and limits of one gateway; times are in seconds."""

    first_list_timeout: float = 20.0
    """How long after the start clients wait for upstreams that are not ready."""
    list_change_delay: float = 0.1
    """For how long lists must not change before clients are notified of a change."""
    max_list_change_delay: float = 1.0
    """How long after the first of several changes clients are notified at the latest."""
    drain_timeout: float = 60.0
    """How long calls of a retired upstream may go on."""
    close_timeout: float = 1.0
    """How long calls may go on after the client has closed its side."""
    acknowledge_timeout: float = 10.0
    """How long a client waits to learn which subscriptions it got."""
    max_subscribed_uris: int = MAX_SUBSCRIBED_URIS
    """How many resources one session may subscribe to."""


class SubscriptionLimits(NamedTuple):
    """How many subscriptions clients may have.

    Each resource that a client subscribes to counts, and each `subscriptions/listen`.
    """

    max_total: int = 100_000
    max_per_principal: int = 100_000


MAX_SUSPENDED_BYTES = 256 * 1024 * 1024
"""The maximum size of the params and questions of all suspended calls."""


class SuspendedCallLimits(NamedTuple):
    """How many calls may be suspended, and for how long; times are in seconds."""

    input_timeout: float = 600.0
    """How long a call waits for the client's answers."""
    max_calls: int = 10_000
    max_calls_per_principal: int = 2_000
    """How many calls of one principal may be suspended."""
    max_bytes: int = MAX_SUSPENDED_BYTES
    """The maximum size of the params and questions of all suspended calls."""
    max_bytes_per_principal: int = MAX_SUSPENDED_BYTES
    """The maximum size of those of one principal."""
    max_round_bytes: int = 4 * 1024 * 1024
    """The maximum size of all questions of one round."""
    question_delay: float = 0.02
    """How long to wait for more questions before the client gets them."""
    url_elicitation_timeout: float = 20.0
    """How long a retry waits for the server to confirm that a URL was opened."""


class KillSwitchLimits(NamedTuple):
    """How many kill switches operators may set, and how long they wait; times are in seconds."""

    max_switches: int = 1000
    end_timeout: float = 6.0
    """How long `kill` waits for the processes of servers to end; it takes 4 s to kill one."""
    start_timeout: float = 5.0
    """How long `revive` waits for servers to start."""


class UpstreamSettings(NamedTuple):
    """What the configuration says about one upstream."""

    name: str
    prefix: str
    timeout: float = 60.0
    """How many seconds a call may take without progress."""
    max_timeout: float = 3600.0
    """How many seconds a call may take in total; at least `timeout`."""
    start_timeout: float = 60.0
    max_restarts: int | None = None
    max_in_flight: int = 64
    max_sessions: int = 16
    max_queue: int = 1024
    """How many calls may wait, beyond those in flight."""
    breaker_threshold: int = 5
    breaker_recovery: float = 30.0
    ping_interval: float = 30.0
    max_in_flight_per_principal: int | None = None
    """How many calls in flight one principal may have; None for all."""
    max_sessions_per_principal: int | None = None
    """How many of `max_sessions` may belong to one principal; None for all."""
    normalises_schemas: bool = False
    """Whether clients get the schemas of its tools in a form that strict clients can read."""
    title: str | None = None
    """The name for people; None for `name`."""
    instructions: str | None = None
    """The instructions for clients instead of the server's own: "" for none, None for its own."""
    snapshot_key: str = ""
    """A digest of the server's configuration, under which its listing is stored; "" for no
    snapshot.
    """
    session_idle: float = 1800.0
    """After how many seconds without calls a session ends that belongs to no client session."""
    idle_stop: float | None = None
    """After how many seconds without calls its processes end; None for never."""
    healthy_uptime: float = HEALTHY_UPTIME
    """After how many seconds up the back-off resets; no configuration sets it."""


class UpstreamState(StrEnum):
    """The state of an upstream."""

    NOT_STARTED = "not_started"
    STARTING = "starting"
    READY = "ready"
    CIRCUIT_OPEN = "circuit_open"
    HALF_OPEN = "half_open"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"
    DISABLED = "disabled"
    """A kill switch disables it; it has no process and no connection until it is revived."""
    IDLE_STOPPED = "idle_stopped"
    """It has no process because it was idle; the next call starts it (`idle_stop`)."""


CIRCUIT_STATES = {
    CircuitState.CLOSED: UpstreamState.READY,
    CircuitState.OPEN: UpstreamState.CIRCUIT_OPEN,
    CircuitState.HALF_OPEN: UpstreamState.HALF_OPEN,
}
"""The state of an upstream that is ready, by its circuit breaker."""

HEALTHY_STATES = frozenset((UpstreamState.READY, UpstreamState.IDLE_STOPPED))
"""The states of an upstream that takes calls and has no problem."""


class UpstreamSnapshot(NamedTuple):
    """The state of one upstream at one moment, for operators."""

    name: str
    state: UpstreamState
    revision: Revision | None
    restarts: int
    in_flight: int
    feature_count: int
    error: str | None
    retry_in: float | None
    extra_sessions: int = 0
    single_session: str | None = None
    """Why all clients share one session with the server; None if they need not."""
    waiting: int = 0
    """How many of the calls in flight wait for a slot."""
    refused: int = 0
    """How many calls were refused because too many waited."""
    skipped: tuple[str, ...] = ()
    """The features that the gateway dropped from its lists, and why."""
    starts_on_request: bool = False
    """Whether it is starting because a call needs it, after it was stopped while idle."""

    @property
    def takes_calls(self) -> bool:
        """Whether calls reach it, perhaps once it has started for them."""
        return self.state in HEALTHY_STATES or self.starts_on_request
