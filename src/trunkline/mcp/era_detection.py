"""Era detection: finds out whether a server speaks the session or the stateless protocol.

    an answer to `server/discover`, an error, an HTTP status ──> ProbeResult

    next_step ──> DISCOVER, INITIALIZE ──> send it ──> WAIT ──> record_… what happened ──┐
        ▲                                                                                │
        └────────────────────────────────────────────────────────────────────────────────┘
    an answer to `server/discover` with a supported version, or to `initialize`, ends it

It sends nothing. Answers that do not depend on the era, such as 401 or 503, are UNKNOWN and must
not be cached.

Rules upheld here:
1. `server/discover` comes first, unless the server is known to speak the session protocol.
2. An unanswered `server/discover` is not cancelled: its answer counts until `initialize` succeeds.
3. A timeout alone proves nothing.
4. If a server refuses the version and names another that the gateway knows, that is tried at once.
5. It terminates: no request is sent more than twice, and no server is restarted more than once.
"""

from enum import StrEnum

from msgspec import Struct

from trunkline.jsonrpc import UNSET, RpcError, from_raw, to_raw
from trunkline.mcp.errors import HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION
from trunkline.mcp.negotiation import Discovery
from trunkline.mcp.versions import Era, find_revision


class ProbeTimeouts(Struct, frozen=True, kw_only=True):
    """How many seconds to wait for `server/discover` before the next step."""

    # Before `initialize` is sent as well. A running server answers within milliseconds, so only
    # users of a silent server wait this long. A server that is still starting finds both requests,
    # and answers the first one first.
    usual: float = 1.0
    # For a server that is known to be stateless, or that rejected `initialize`: it is still
    # starting, or there is nothing else to send.
    long: float = 10.0


_DEFAULT_TIMEOUTS = ProbeTimeouts()


# What one answer tells


class ProbeResult(StrEnum):
    """What an answer tells about a server's era."""

    STATELESS = "stateless"
    OTHER_VERSION = "other version"
    """The server is stateless and supports a revision that the gateway knows, but refused the
    request for its version.
    """
    SESSION = "session"
    INCOMPATIBLE = "incompatible"
    """The server speaks only revisions that the gateway does not support."""
    UNKNOWN = "unknown"
    """The answer does not tell. Try again later."""


_INCONCLUSIVE_STATUSES = frozenset((401, 403, 407, 408, 425, 429))
# The codes that only stateless servers use.
_STATELESS_ONLY_CODES = frozenset((HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION))


def classify_discovery(found: Discovery) -> ProbeResult:
    """Classify a successful answer. Only a supported version proves anything."""
    is_stateless = any(revision.is_stateless for revision in found.revisions)
    return ProbeResult.STATELESS if is_stateless else ProbeResult.SESSION


def classify_error(error: RpcError) -> ProbeResult:
    """Classify a JSON-RPC error, over any transport."""
    if error.code in (HEADER_MISMATCH, MISSING_CAPABILITY):
        return ProbeResult.STATELESS  # only stateless servers use these codes
    if error.code != UNSUPPORTED_VERSION:
        return ProbeResult.SESSION
    supported = _supported_versions(error)
    revisions = [revision for revision in map(find_revision, supported) if revision is not None]
    if any(revision.is_stateless for revision in revisions):
        return ProbeResult.OTHER_VERSION
    # Servers with drafts of the stateless protocol sent no list.
    is_session_server = not supported or revisions
    return ProbeResult.SESSION if is_session_server else ProbeResult.INCOMPATIBLE


def classify_initialize_error(error: RpcError) -> ProbeResult:
    """Classify an error that answers `initialize`."""
    return ProbeResult.STATELESS if error.code in _STATELESS_ONLY_CODES else ProbeResult.SESSION


def classify_http_status(status: int, body_result: ProbeResult) -> ProbeResult:
    """Classify an HTTP status whose body indicated `body_result`."""
    is_inconclusive = status < 400 or status in _INCONCLUSIVE_STATUSES or status >= 500
    return ProbeResult.UNKNOWN if is_inconclusive else body_result


def _supported_versions(error: RpcError) -> list[str]:
    if error.data is UNSET:
        return []
    try:
        data = from_raw(to_raw(error.data), dict[str, object])
        return from_raw(to_raw(data.get("supported", [])), list[str])
    except ValueError:
        return []


# The sequence of requests


MAX_PROBES = 2
"""How often `server/discover` is sent to one server."""


class DetectionStep(StrEnum):
    """What to do next."""

    DISCOVER = "server/discover"
    INITIALIZE = "initialize"
    WAIT = "wait"
    """Wait for an outstanding answer, at most `timeout` seconds."""
    RESTART = "restart"
    FAIL = "fail"


class EraDetection:
    """The state of the detection for one server."""

    def __init__(
        self, cached_era: Era | None = None, timeouts: ProbeTimeouts = _DEFAULT_TIMEOUTS
    ) -> None:
        """Start; `cached_era` is the era that was detected before."""
        self._cached_era = cached_era
        self._timeouts = timeouts
        self._probe_count = 0
        self._awaiting_discover = False
        self._discover_result: ProbeResult | None = None
        self._is_certain = False
        self._awaiting_initialize = False
        self._initialize_error: ProbeResult | None = None
        self._timed_out = False
        self._exited = False
        self._exits_when_probed = False

    @property
    def is_conclusive(self) -> bool:
        """Whether a server that completes `initialize` is certainly not stateless."""
        return self._exits_when_probed or self._is_certain

    @property
    def timeout(self) -> float | None:
        """How many seconds to wait for an answer; None for no limit."""
        if self._awaiting_initialize:
            return None
        wait_longer = self._cached_era is Era.STATELESS or self._initialize_error is not None
        return self._timeouts.long if wait_longer else self._timeouts.usual

    @property
    def failed_step(self) -> DetectionStep:
        """The request whose error explains the failure."""
        no_discover = self._discover_result in (None, ProbeResult.SESSION)
        return DetectionStep.INITIALIZE if no_discover else DetectionStep.DISCOVER

    # What happened

    def record_discover_result(self, result: ProbeResult, certain: bool = True) -> None:
        """Record an answer to `server/discover` without a supported version.

        With `certain` false there was no answer, and there will be none.
        """
        self._awaiting_discover, self._discover_result, self._is_certain = False, result, certain
        if result is ProbeResult.OTHER_VERSION and self._probe_count < MAX_PROBES:
            self._discover_result = None  # ask again

    def record_initialize_error(self, result: ProbeResult) -> None:
        """Record an error that answers `initialize`."""
        self._awaiting_initialize, self._initialize_error = False, result
        if result is ProbeResult.STATELESS and self._probe_count < MAX_PROBES:
            self._discover_result = None  # the first classification was wrong

    def record_timeout(self) -> None:
        """Record that no answer arrived within `timeout`."""
        self._timed_out = True

    def record_exit(self) -> None:
        """Record that the server has exited."""
        self._exited = True

    # What follows

    def next_step(self) -> DetectionStep:
        """Return the next step, and record that it is being done."""
        step = self._choose_step()
        if step is DetectionStep.DISCOVER:
            self._probe_count += 1
            self._awaiting_discover, self._timed_out = True, False
        elif step is DetectionStep.INITIALIZE:
            self._awaiting_initialize, self._timed_out = True, False
        elif step is DetectionStep.RESTART:
            self._exits_when_probed, self._exited = True, False
            self._awaiting_discover = self._awaiting_initialize = False
            self._discover_result = self._initialize_error = None
        return step

    def _choose_step(self) -> DetectionStep:
        if self._exited:
            restart = self._probe_count and not self._exits_when_probed
            return DetectionStep.RESTART if restart else DetectionStep.FAIL
        if (
            self._discover_result not in (None, ProbeResult.SESSION)
            or self._initialize_error is ProbeResult.UNKNOWN
        ):
            return DetectionStep.FAIL
        if self._awaiting_initialize:
            return DetectionStep.WAIT
        if self._initialize_error is not None:
            return self._choose_after_initialize_error()
        if self._awaiting_discover:
            return DetectionStep.INITIALIZE if self._timed_out else DetectionStep.WAIT
        is_session_server = self._cached_era is Era.SESSION or self._exits_when_probed
        initialize = self._discover_result or is_session_server
        return DetectionStep.INITIALIZE if initialize else DetectionStep.DISCOVER

    def _choose_after_initialize_error(self) -> DetectionStep:
        if self._awaiting_discover:
            return DetectionStep.FAIL if self._timed_out else DetectionStep.WAIT
        failed = self._discover_result or self._exits_when_probed
        return DetectionStep.FAIL if failed else DetectionStep.DISCOVER
