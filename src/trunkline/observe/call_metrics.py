"""Call metrics: how many calls ended how, and how long they took.

    CallEnded ──> one count; its times, untallied ──tally──> three histograms of its backend
                                        a scrape ──> all of them as lines

Refuses to take names from clients: what nobody offers is called `unknown`, and a URI is not a name.

Rules upheld here:
1. One call is counted once, and costs one look-up and two steps: it is on the path of all. Its
   times are put into buckets with those of many others, and before anybody reads them.
2. There are never more series than were allowed; what comes later is counted as `other`.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import sub

from trunkline.gateway.events import CallEnded, Event, Reloaded, TurnedAway
from trunkline.jsonrpc import Incident
from trunkline.mcp.refusal import Refusal
from trunkline.observe.exposition import Exposition, Family, written

MAX_UNTALLIED = 1000
"""How many calls may have times that are in no bucket yet."""

MAX_SERIES = 5000
"""How many combinations of backend, method, tool and status are told apart."""

CALL = "tools/call"
UNKNOWN = "unknown"
OTHER = "other"

GATEWAY_BOUNDS = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
)  # fmt: skip
"""Where the buckets of our own time end, in seconds: well below a millisecond if all is well."""

CALL_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Where the buckets of whole calls end, in seconds: from a look-up to somebody being asked."""

_KINDS = frozenset(kind.value for kind in Refusal)


class Histogram:
    """How often something took how long."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one more."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def observe_all(self, seconds: list[float]) -> None:
        """Count some more; they are in order after it."""
        # To sort a thousand takes a third of the time of looking for the place of each.
        seconds.sort()
        below = 0
        for place, bound in enumerate(self.bounds):
            until = bisect_right(seconds, bound, below)
            self.counts[place] += until - below
            below = until
        self.counts[-1] += len(seconds) - below
        self.sum += sum(seconds)

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Write it, as Prometheus has it: each bucket with all that are below."""
        comma = "," if labels else ""
        places = (*map(repr, self.bounds), "+Inf")
        running = list(accumulate(self.counts))
        for place, count in zip(places, running, strict=True):
            yield f'{name}_bucket{{{labels}{comma}le="{place}"}} {count}'
        braced = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braced} {self.sum!r}"
        yield f"{name}_count{braced} {running[-1]}"


class _Times:
    """How long the calls of one backend take."""

    __slots__ = ("call", "gateway", "labels", "untallied", "upstream")

    def __init__(self, backend: str) -> None:
        self.labels = written({"backend": backend})
        self.untallied: list[float] = []
        """Of each call, how long it took in all, and how much of that was the backend's."""
        self.call = Histogram(CALL_BOUNDS)
        self.gateway = Histogram(GATEWAY_BOUNDS)
        self.upstream = Histogram(CALL_BOUNDS)

    def tally(self) -> None:
        """Put all times into their buckets."""
        untallied = self.untallied
        if untallied:
            totals, upstreams = untallied[::2], untallied[1::2]
            untallied.clear()
            self.gateway.observe_all(list(map(sub, totals, upstreams)))
            self.call.observe_all(totals)
            self.upstream.observe_all(list(filter(None, upstreams)))


class _Series:
    __slots__ = ("add_times", "count", "labels")

    def __init__(self, labels: str, times: _Times) -> None:
        self.labels = labels
        self.add_times = times.untallied.extend
        self.count = 0


class CallMetrics:
    """Counts what the gateway tells; a Listener."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._series: dict[tuple[str | None, str, str, str], _Series] = {}
        self._times: dict[str, _Times] = {}
        self._refused: Counter[str] = Counter()
        self._reloads: Counter[str] = Counter()
        self._incidents = 0
        self.untallied = 0
        """How many calls were counted since all times were put into buckets."""

    def __call__(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, CallEnded):
            self.count_calls((event,))
        else:
            self._count_rare(event)

    def count_calls(self, calls: Sequence[CallEnded]) -> None:
        """Count calls that have ended."""
        known = self._series
        for call in calls:
            passage, status = call.passage, call.status
            entry, method = passage.entry, passage.request.method
            if entry is None:
                backend, tool = None, UNKNOWN if method == CALL else ""
            else:
                backend, tool = entry.backend, entry.public if method == CALL else ""
            series = known.get((backend, method, tool, status))
            if series is None:
                series = self._begin(backend, method, tool, status)
            series.count += 1
            series.add_times((call.total, call.upstream))
            if call.kind is not None:
                self._refused[call.kind if call.kind in _KINDS else OTHER] += 1
        self.untallied += len(calls)
        if self.untallied >= MAX_UNTALLIED:
            self._tally()

    def _tally(self) -> None:
        self.untallied = 0
        for times in self._times.values():
            times.tally()

    def _count_rare(self, event: Event) -> None:
        if isinstance(event, TurnedAway):
            self._refused[Refusal.UNAUTHENTICATED.value] += 1
        elif isinstance(event, Incident):
            self._incidents += 1
        elif isinstance(event, Reloaded):
            self._reloads["refused" if event.problem else "taken"] += 1

    def _begin(self, backend: str | None, method: str, tool: str, status: str) -> _Series:
        if len(self._series) >= self._max_series:
            # One for each status and backend: these are few, and no client's choice.
            method, tool = OTHER, OTHER
            known = self._series.get((backend, method, tool, status))
            if known is not None:
                return known
        name = backend or ""
        times = self._times.get(name)
        if times is None:
            times = self._times[name] = _Times(name)
        labels = written({"backend": name, "method": method, "tool": tool, "status": status})
        series = self._series[backend, method, tool, status] = _Series(labels, times)
        return series

    # What is shown

    def register(self, exposition: Exposition) -> None:
        """Show what was counted."""
        name = "trunkline_calls_total"
        exposition.add(Family(name, "counter", "Calls that ended, by their end.", self._counts))
        for part, words in (
            ("call", "How long calls took in all."),
            ("gateway", "How much of that was the gateway's own."),
            ("upstream", "How much of that was the backend's; only calls that reached it."),
        ):
            name = f"trunkline_{part}_duration_seconds"
            exposition.add(Family(name, "histogram", words, self._durations(name, part)))
        exposition.counter(
            "trunkline_refusals_total",
            "What the gateway refused, by the kind that the client was told.",
            lambda: [({"kind": kind}, count) for kind, count in sorted(self._refused.items())],
        )
        exposition.counter(
            "trunkline_reloads_total",
            "How often the configuration was read again, by what became of it.",
            lambda: [({"result": word}, self._reloads[word]) for word in ("taken", "refused")],
        )
        exposition.counter(
            "trunkline_incidents_total",
            "Errors that nobody foresaw; the log has each of them.",
            lambda: self._incidents,
        )

    def _counts(self) -> Iterator[str]:
        for series in self._series.values():
            yield f"trunkline_calls_total{{{series.labels}}} {series.count}"

    def _durations(self, name: str, part: str) -> "_Durations":
        return _Durations(self._times, name, part)


class _Durations:
    """Writes one of the histograms of all backends."""

    def __init__(self, times: dict[str, _Times], name: str, part: str) -> None:
        self._times, self._name, self._part = times, name, part

    def __call__(self) -> Iterator[str]:
        for times in self._times.values():
            times.tally()
            histogram: Histogram = getattr(times, self._part)
            yield from histogram.lines(self._name, times.labels)
