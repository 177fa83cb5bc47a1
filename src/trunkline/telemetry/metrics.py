"""The metrics of calls and of the process.

    CallSummary ──> a counter; its durations, untallied ──tally──> three histograms of its backend
                                        a scrape ──> readings of all of them

Clients cannot create label values: unknown tools are labelled `unknown`, and URIs are not labels.

Invariants:
1. A call is counted once and costs one lookup and two steps, since every call passes here. Its
   durations are sorted into buckets together with those of many other calls, before any scrape.
2. The number of series is limited; further combinations are counted as `other`.

The process metrics have the names that Prometheus clients use for every process: memory,
descriptors, processor time. Values that only `/proc` offers are left out where there is none. The
lag of the event loop is measured too: code that blocks the loop delays every call by as much.
"""

import asyncio
import os
import resource
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from operator import sub
from pathlib import Path

from trunkline.gateway.events import (
    AuthRejected,
    CallSummary,
    ConfigReloaded,
    GatewayEvent,
    LimitReached,
)
from trunkline.jsonrpc import Incident
from trunkline.mcp.errors import ErrorKind
from trunkline.mcp.features import TOOL
from trunkline.telemetry.exposition import HistogramReading, LabelledValue, MetricsExposition

MAX_UNTALLIED = 1000  # most calls whose durations are not in buckets yet
MAX_SERIES = 5000  # most combinations of backend, method, tool and status
UNKNOWN_LABEL = "unknown"
OTHER_LABEL = "other"

# Bucket bounds for the gateway's own time, in seconds; usually well below a millisecond.
GATEWAY_BOUNDS = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
)  # fmt: skip

# Bucket bounds for whole calls, in seconds: from a lookup to a question to a user
CALL_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip

_REFUSAL_KINDS = frozenset(kind.value for kind in ErrorKind)


class Histogram:
    """A histogram of durations."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Add a duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def observe_all(self, seconds: list[float]) -> None:
        """Add durations; sorts the list in place."""
        # Sorting a thousand takes a third of the time of a bisection for each.
        seconds.sort()
        below = 0
        for index, bound in enumerate(self.bounds):
            until = bisect_right(seconds, bound, below)
            self.counts[index] += until - below
            below = until
        self.counts[-1] += len(seconds) - below
        self.sum += sum(seconds)

    def read(self) -> HistogramReading:
        """Return the current values."""
        buckets = zip(_bound_labels(self.bounds), accumulate(self.counts), strict=True)
        return HistogramReading(list(buckets), self.sum)


@cache
def _bound_labels(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(repr, bounds), "+Inf")


class _BackendTimes:
    """The durations of the calls to one backend."""

    __slots__ = ("call", "gateway", "untallied", "upstream")

    def __init__(self) -> None:
        # Alternately the total duration of a call and the backend's part of it
        self.untallied: list[float] = []
        self.call = Histogram(CALL_BOUNDS)
        self.gateway = Histogram(GATEWAY_BOUNDS)
        self.upstream = Histogram(CALL_BOUNDS)

    def tally(self) -> None:
        """Sort all durations into their buckets."""
        untallied = self.untallied
        if untallied:
            totals, upstreams = untallied[::2], untallied[1::2]
            untallied.clear()
            self.gateway.observe_all(list(map(sub, totals, upstreams)))
            self.call.observe_all(totals)
            self.upstream.observe_all(list(filter(None, upstreams)))


class _CallSeries:
    __slots__ = ("add_times", "count")

    def __init__(self, times: _BackendTimes) -> None:
        self.add_times = times.untallied.extend
        self.count = 0


class CallMetrics:
    """An event listener that counts calls and other events."""

    def __init__(self, max_series: int = MAX_SERIES, max_untallied: int = MAX_UNTALLIED) -> None:
        self._max_series = max_series
        self._max_untallied = max_untallied
        self._series: dict[tuple[str, str, str, str], _CallSeries] = {}
        self._times: dict[str, _BackendTimes] = {}
        self._refused: Counter[str] = Counter()
        self._reloads: Counter[str] = Counter()
        self._incidents = 0
        self._limits: Counter[tuple[str, str]] = Counter()
        self.untallied = 0  # number of calls counted since the last tally

    def __call__(self, event: GatewayEvent) -> None:
        """Count an event."""
        if isinstance(event, CallSummary):
            self.count_calls((event,))
        else:
            self._count_rare(event)

    def count_calls(self, calls: Sequence[CallSummary]) -> None:
        """Count finished calls."""
        all_series = self._series
        for call in calls:
            context, status = call.context, call.status
            entry, method = context.entry, context.request.method
            if entry is None:
                backend, tool = "", UNKNOWN_LABEL if context.method.kind is TOOL else ""
            else:
                backend, tool = entry.backend, entry.public_name if entry.kind is TOOL else ""
            series = all_series.get((backend, method, tool, status))
            if series is None:
                series = self._add_series(backend, method, tool, status)
            series.count += 1
            series.add_times((call.duration, call.upstream_duration))
            if call.error_kind is not None:
                is_known = call.error_kind in _REFUSAL_KINDS
                self._refused[call.error_kind if is_known else OTHER_LABEL] += 1
        self.untallied += len(calls)
        if self.untallied >= self._max_untallied:
            self._tally()

    def _tally(self) -> None:
        self.untallied = 0
        for times in self._times.values():
            times.tally()

    def _count_rare(self, event: GatewayEvent) -> None:
        if isinstance(event, AuthRejected):
            self._refused[ErrorKind.UNAUTHENTICATED.value] += 1
        elif isinstance(event, LimitReached):
            self._limits[event.limit, "session_ended" if event.session_ended else "refused"] += 1
        elif isinstance(event, Incident):
            self._incidents += 1
        elif isinstance(event, ConfigReloaded):
            self._reloads["rejected" if event.problem else "applied"] += 1

    def _add_series(self, backend: str, method: str, tool: str, status: str) -> _CallSeries:
        if len(self._series) >= self._max_series:
            # One series for each status and backend: these are few, and clients cannot add any.
            method, tool = OTHER_LABEL, OTHER_LABEL
            overflow = self._series.get((backend, method, tool, status))
            if overflow is not None:
                return overflow
        times = self._times.get(backend)
        if times is None:
            times = self._times[backend] = _BackendTimes()
        series = self._series[backend, method, tool, status] = _CallSeries(times)
        return series

    def register(self, exposition: MetricsExposition) -> None:
        """Register the metrics."""
        exposition.counter(
            "trunkline_calls_total",
            "Finished calls, by outcome.",
            self._read_call_counts,
            ("backend", "method", "tool", "status"),
        )
        for part, description in (
            ("call", "The total duration of calls."),
            ("gateway", "The part of the duration spent in the gateway."),
            ("upstream", "The part spent at the backend; only calls that reached it."),
        ):
            exposition.histogram(
                f"trunkline_{part}_duration_seconds",
                description,
                partial(self._read_durations, part),
                ("backend",),
            )
        exposition.counter(
            "trunkline_refusals_total",
            "Requests that the gateway refused, by error type.",
            lambda: [((kind,), count) for kind, count in sorted(self._refused.items())],
            ("kind",),
        )
        exposition.counter(
            "trunkline_limits_reached_total",
            "How often a principal reached a limit, by limit and what followed.",
            lambda: sorted(self._limits.items()),
            ("limit", "action"),
        )
        exposition.counter(
            "trunkline_reloads_total",
            "Configuration reloads, by result.",
            lambda: [((word,), self._reloads[word]) for word in ("applied", "rejected")],
            ("result",),
        )
        exposition.counter(
            "trunkline_incidents_total",
            "Unexpected exceptions; the log has each of them.",
            lambda: self._incidents,
        )

    def _read_call_counts(self) -> Iterator[LabelledValue]:
        for labels, series in self._series.items():
            yield labels, series.count

    def _read_durations(self, part: str) -> Iterator[tuple[tuple[str, ...], HistogramReading]]:
        for backend, times in self._times.items():
            times.tally()
            histogram: Histogram = getattr(times, part)
            yield (backend,), histogram.read()


PROC_PATH = Path("/proc/self")


def register_process_metrics(exposition: MetricsExposition, proc: Path = PROC_PATH) -> None:
    """Register memory, descriptors and processor time."""
    start = time.time()
    exposition.gauge(
        "process_start_time_seconds",
        "Start time of the process, in seconds since 1970.",
        lambda: start,
    )
    exposition.counter(
        "process_cpu_seconds_total", "Processor time, user and system.", time.process_time
    )
    if (proc / "statm").exists():
        page = os.sysconf("SC_PAGE_SIZE")
        exposition.gauge(
            "process_resident_memory_bytes",
            "Resident memory.",
            lambda: int((proc / "statm").read_bytes().split()[1]) * page,
        )
        exposition.gauge(
            "process_open_fds", "Open descriptors.", lambda: sum(1 for _ in (proc / "fd").iterdir())
        )
    exposition.gauge(
        "process_max_fds",
        "The limit of open descriptors.",
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


LAG_CHECK_INTERVAL = 0.25  # time between two measurements, in seconds

LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

LAG_METRIC = "trunkline_event_loop_lag_seconds"


class LoopLagMonitor:
    """Measures how late the event loop runs its timers, from `start` to `stop`."""

    def __init__(self, interval: float = LAG_CHECK_INTERVAL) -> None:
        self.histogram = Histogram(LAG_BOUNDS)
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None

    def register(self, exposition: MetricsExposition) -> None:
        """Register the histogram."""
        exposition.histogram(
            LAG_METRIC,
            "How late the event loop ran a timer.",
            lambda: [((), self.histogram.read())],
        )

    def start(self) -> None:
        """Start measuring; needs a running loop."""
        if self._timer is None:
            self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._interval
        self._timer = loop.call_at(due, self._measure, loop, due)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.histogram.observe(max(0.0, loop.time() - due))
        self._schedule(loop)
