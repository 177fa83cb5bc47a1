"""Observation: metrics, traces and the log of a gateway, as the settings have them.

    Observation ──> pages, for the door ──> report, for all that nobody foresaw
                ──watching──> the log, the metrics' own address, the exporter: from start to end

What is not asked for is not imported: a client that starts us over stdio does not wait for it.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from trunkline.assembly.concealing import conceal_of
from trunkline.config import Config
from trunkline.gateway.events import Event
from trunkline.gateway.gateway import Gateway
from trunkline.journal.journal import Journal
from trunkline.jsonrpc import Incident, print_incident

if TYPE_CHECKING:
    from trunkline.assembly.logs import OpenLog
    from trunkline.assembly.metrics import Metrics
    from trunkline.assembly.traces import Traces
    from trunkline.transports.http_guard import Pages


class Doors(NamedTuple):
    """How many came by HTTP."""

    sessions: Callable[[], int]
    streams: Callable[[], int]


class Reporter:
    """Hears of incidents before anybody listens, and has them told to those who do."""

    def __init__(self) -> None:
        self.gateway: Gateway | None = None
        """Whose listeners are told, once one of them is a log."""

    def __call__(self, incident: Incident) -> None:
        """Report an incident."""
        if self.gateway is None:
            print_incident(incident)
        else:
            self.gateway.layers.events.tell(incident)


class Observation:
    """All that watches over one gateway."""

    def __init__(self, config: Callable[[], Config], gateway: Gateway, report: Reporter) -> None:
        """Begin; a server's secrets are those that the configuration has by then."""
        self.metrics: Metrics | None = None
        self.traces: Traces | None = None
        self.log: OpenLog | None = None
        self._config = config()
        self._gateway = gateway
        self._report = report
        gateway.conceal = conceal_of(config)

    def begin(self, doors: Doors) -> None:
        """Count and record what the settings want to be counted and recorded."""
        if self._config.metrics.place is not None:
            from trunkline.assembly.metrics import Metrics  # noqa: PLC0415  see above

            self.metrics = Metrics(self._config, self._gateway, doors, self._report)
        if self._config.traces.endpoint is not None:
            from trunkline.assembly.traces import Traces  # noqa: PLC0415  see above

            self.traces = Traces(self._config, self._hear_of_traces, self._report)
            self._gateway.layers.tracer = self.traces.tracer
            if self.metrics is not None:
                self.traces.register(self.metrics.exposition)

    def register(self, journal: Journal) -> None:
        """Have it counted how the journal is, if anything is counted."""
        if self.metrics is None:
            return
        gauge, counter = self.metrics.exposition.gauge, self.metrics.exposition.counter
        status = journal.status
        gauge(
            "trunkline_journal_queue",
            "Records that wait to be written to the journal.",
            lambda: status().queue,
        )
        counter(
            "trunkline_journal_dropped_total",
            "Records that the journal had no room for.",
            lambda: status().dropped,
        )
        counter(
            "trunkline_journal_written_total",
            "Records that are in the journal.",
            lambda: status().written,
        )
        gauge(
            "trunkline_journal_failing",
            "Whether the journal cannot be written.",
            lambda: int(status().error is not None),
        )

    @property
    def pages(self) -> "Pages":
        """The pages for the main address."""
        return {} if self.metrics is None else self.metrics.pages

    def drain(self) -> None:
        """Say that no more should be asked, to those who ask at the address of metrics."""
        if self.metrics is not None:
            self.metrics.health.draining = True

    @asynccontextmanager
    async def watching(self, stdio: bool, listen: bool = True) -> "AsyncGenerator[None]":
        """Write the log, and have metrics read, until the end of the context; raises OSError.

        With `listen`, at their own address if they have one. Without, the process is somebody
        else's, and so is what others say in it.
        """
        from trunkline.observe.records import heard  # noqa: PLC0415  see above

        async with AsyncExitStack() as stack:
            log = self._open_log(stdio)
            stack.callback(self._close_log)
            stack.enter_context(heard(log.log.say, everybody=listen))
            if self.traces is not None:
                stack.push_async_callback(self.traces.aclose)
            if self.metrics is not None:
                await stack.enter_async_context(self.metrics.listening(listen))
            yield

    def _open_log(self, stdio: bool) -> "OpenLog":
        from trunkline.assembly.logs import open_log  # noqa: PLC0415  see above

        self.log = found = open_log(self._config.log, stdio, self._gateway.conceal)
        self._gateway.layers.events.listen(self._write_down, calls=found.log.wants_calls)
        self._report.gateway = self._gateway
        if self.metrics is not None:
            words = "Lines of the log that nobody read in time."
            counter = self.metrics.exposition.counter
            counter("trunkline_log_dropped_total", words, lambda: found.pen.dropped)
        return found

    def _write_down(self, event: Event) -> None:
        found = self.log
        if found is not None:
            found.log(event)

    def _close_log(self) -> None:
        self._report.gateway = None
        if self.log is not None:
            self.log.pen.close()

    def _hear_of_traces(self, problem: str | None) -> None:
        if self.log is not None:
            from trunkline.observe.log_lines import line_of_traces  # noqa: PLC0415  see above

            self.log.log.say(line_of_traces(problem))
