"""Circuit breaker and health checks of one upstream.

    admit ──> permit ──> the call ──> record: a success, a failure, or neither
          ──> CircuitOpen, at once

    no call for `interval` seconds ──> ping ──> record_ping

`routing.breaker` decides when a circuit opens; this module classifies results and errors for it. It
makes no calls but pings.

A failure is a timeout, a lost connection, a malformed response or HTTP 5xx. A success is a result,
whatever it contains, or an error that the server itself returned. A call that the client or the
gateway cancelled is neither. A timeout does not count if the server has responded to anything since
the call was made, because then one tool hangs and not the server.

Invariants:
1. A connection that ends under many calls counts as one failure.
2. A successful ping makes up for failed pings, but never for failed calls.
3. An upstream with active or recent calls is not pinged.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import (
    ConnectionLost,
    MalformedResponse,
    PendingResult,
    RpcError,
    SharedConnectionLost,
)
from trunkline.routing.breaker import Breaker

PING_TIMEOUT = 10.0  # how long, in seconds, a ping may take


class CircuitOpen(ConnectionLost):
    """The call was not made: the upstream has failed too often."""

    peer_not_at_fault = True

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.retry_after = round(retry_after, 1)


class CircuitBreaker:
    """Decides whether calls may reach one backend, from the outcomes of earlier calls."""

    def __init__(self, breaker: Breaker, on_changed: Callable[[], None]) -> None:
        """Start with a closed circuit; `on_changed` is called when the circuit changes."""
        self.breaker = breaker
        self.last_error: str | None = None  # the text of the last failure
        self.active = False  # whether a call was answered since the last `reset_activity`
        # Whether a call was answered and none has failed since. While it is true, further successes
        # change nothing and need not be recorded.
        self.healthy = False
        self.responded_at = -math.inf
        """When a call was last answered. Callers that skip `record` for a success set it."""
        self._on_changed = on_changed
        self._now = _loop_time
        self._lost_connection: object = None
        self._failed_pings = 0  # how many of the failures in a row were pings

    def admit(self) -> int:
        """Return a permit for a call to a backend that has failed; raises CircuitOpen.

        A backend without failures admits all calls, so callers need not ask.
        """
        breaker = self.breaker
        permit = breaker.admit(self._now())
        if permit is None:
            raise self.open_error()
        if not breaker.is_closed:
            self._on_changed()
        return permit

    def open_error(self) -> CircuitOpen:
        """Return the error for calls that are not admitted."""
        reason = f"circuit open: {self.last_error}" if self.last_error else "circuit open"
        return CircuitOpen(reason, self.breaker.retry_in(self._now()))

    def reset_activity(self) -> None:
        """Start a new observation period for `active` and `healthy`."""
        self.active = self.healthy = False

    def record(self, permit: int, connection: object, answer: PendingResult) -> None:
        """Record the outcome of a call that was made over `connection`."""
        error = answer.error
        if error is None:
            self._record_answer(permit)
        elif error is answer.cancel_reason and not isinstance(error, TimeoutError):
            self.release(permit)  # cancelled by the client or the gateway
        else:
            self.record_error(permit, error, connection)

    def record_error(self, permit: int, error: BaseException, connection: object) -> None:
        """Record that a call failed."""
        if is_failure(error):
            if isinstance(error, SharedConnectionLost) and connection is self._lost_connection:
                # The first of its calls has counted the loss of the connection.
                self.release(permit)
                return
            self._lost_connection = connection if isinstance(error, SharedConnectionLost) else None
            self._record_failure(permit, error)
        elif isinstance(error, RpcError):
            # Any answer, also an error, proves that the server is up.
            self._record_answer(permit)
        else:
            self.release(permit)

    def has_lost(self, connection: object) -> bool:
        """Return whether the last failure was the end of this connection."""
        return connection is self._lost_connection

    def release(self, permit: int) -> None:
        """Return a permit whose call had no outcome."""
        self.breaker.release(permit, self._now())

    def _record_answer(self, permit: int) -> None:
        self.active = True
        self.responded_at = self._now()
        self._record_success(permit)

    def _record_success(self, permit: int) -> None:
        changed = self.breaker.record_success(permit)
        self.healthy = self.active and not self.breaker.failures
        if changed:
            self._on_changed()

    def _record_failure(self, permit: int, error: BaseException, pings: int = 0) -> None:
        self._failed_pings = pings + (self._failed_pings if self.breaker.failures else 0)
        self.last_error = str(error) or "it did not answer in time"
        self.healthy = False
        if self.breaker.record_failure(permit, self._now()):
            self._on_changed()

    def probe_now(self) -> None:
        """Let the next call probe a backend that was restarted."""
        # Kept, since a connection may be lost at the end, when no loop is running any more.
        self._now = asyncio.get_running_loop().time
        self.breaker.probe_now(self._now())

    # Pings

    def admit_ping(self) -> int | None:
        """Return a permit for a ping; None after failed calls, which only calls can clear."""
        breaker = self.breaker
        if breaker.is_closed:
            return breaker.generation
        permit = breaker.admit(self._now()) if breaker.failures == self._failed_pings else None
        if permit is not None:
            self._on_changed()
        return permit

    def record_ping(self, permit: int, error: BaseException | None) -> None:
        """Record the outcome of a ping."""
        breaker = self.breaker
        if error is None or (isinstance(error, RpcError) and not is_failure(error)):
            # A server may answer pings and hang on calls: only calls clear failures of calls.
            if breaker.failures and breaker.failures == self._failed_pings:
                self._record_success(permit)
        elif is_failure(error):
            self._record_failure(permit, error, pings=1)
        else:
            self.release(permit)


def is_failure(error: BaseException) -> bool:
    """Return whether an error says that the backend is unhealthy."""
    if isinstance(error, ConnectionLost):
        return not error.peer_not_at_fault
    return isinstance(error, TimeoutError | MalformedResponse)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class HealthCheck:
    """Pings one backend when it has been idle."""

    def __init__(
        self, interval: float, breaker: CircuitBreaker, is_busy: Callable[[], bool]
    ) -> None:
        """Prepare; an `interval` of 0 disables the pings."""
        self._interval = interval
        self._breaker = breaker
        self._is_busy = is_busy
        self._interval_changed = asyncio.Event()

    def reconfigure(self, interval: float) -> None:
        """Change the interval."""
        if interval != self._interval:
            self._interval = interval
            self._interval_changed.set()

    async def run(self, backend: Backend) -> None:
        """Ping the backend after each idle interval, until cancelled, if it can be pinged."""
        self._breaker.reset_activity()
        ping = backend.abilities.ping
        while ping is not None:
            try:
                async with asyncio.timeout(self._interval or None):
                    await self._interval_changed.wait()
                self._interval_changed.clear()
            except TimeoutError:
                # Many servers do one thing at a time: a ping would wait behind the running calls,
                # and those have timeouts of their own.
                if not self._breaker.active and not self._is_busy():
                    await self._check(ping)
            self._breaker.reset_activity()

    async def _check(self, ping: Callable[[], Awaitable[None]]) -> None:
        permit = self._breaker.admit_ping()
        if permit is None:
            return
        error: BaseException | None = None
        try:
            async with asyncio.timeout(PING_TIMEOUT):
                await ping()
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        except Exception as failure:
            error = failure
        finally:
            self._breaker.record_ping(permit, error)
