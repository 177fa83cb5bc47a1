"""Telemetry of a gateway: log, metrics, traces and webhooks, and masking of its secrets.

    Telemetry ──> pages for the HTTP router
              ──running──> log, metrics address, trace exporter: from start to end

Metrics, traces and webhooks are imported only when they are enabled, so that `serve --stdio` starts
quickly.
"""

import logging
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trunkline.audit.log import AuditLog
from trunkline.config import Config, LogSettings
from trunkline.gateway.events import GatewayEvent
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import Incident, print_incident
from trunkline.printable import NO_SECRETS, SecretMask
from trunkline.systemd import InheritedSocket
from trunkline.telemetry.journald import format_journald, open_journald
from trunkline.telemetry.log import (
    WRITER_STOP_TIMEOUT,
    EventLog,
    LogQueueHandler,
    LogWriter,
    capture_logging,
    write_all,
)
from trunkline.telemetry.log_lines import (
    LogLine,
    format_json,
    format_text,
    mask_line,
    trace_delivery_line,
)

if TYPE_CHECKING:
    from trunkline.app.exporters import GatewayMetrics, TraceExport
    from trunkline.endpoints.pages import HttpPages
    from trunkline.telemetry.otlp import ExportLimits
    from trunkline.webhooks.delivery import WebhookDelivery

_log = logging.getLogger(__name__)


class ConfiguredSecrets:
    """Masks the secrets of the current configuration, and of the one before the last reload.

    A server that a reload replaces may still report an error with the secrets of the old one.
    """

    def __init__(self, config: Callable[[], Config]) -> None:
        """Prepare; `config` returns the current configuration."""
        self._config = config
        self._masked: Config | None = None  # the configuration whose secrets `_mask` has
        self._mask = NO_SECRETS

    def _update(self, config: Config) -> None:
        old = () if self._masked is None else self._masked.secrets
        self._mask, self._masked = SecretMask((*old, *config.secrets)), config

    def mask(self, text: str) -> str:
        """Return a text without secrets."""
        if (config := self._config()) is not self._masked:
            self._update(config)
        return self._mask(text)

    def mask_json(self, data: bytes) -> bytes:
        """Return encoded JSON without secrets: see `SecretMask.mask_json`."""
        # Runs for each recorded call, so it calls no other function without need (`bench.hop`).
        if (config := self._config()) is not self._masked:
            self._update(config)
        return self._mask.mask_json(data) if self._mask.has_secrets else data


STDERR_DESCRIPTOR = 2


class OpenLog:
    """A log, the queue of its lines, and the thread that writes them."""

    def __init__(
        self, log: EventLog, queue: LogQueueHandler, writer: LogWriter, has_fields: bool
    ) -> None:
        """Take the parts; with `has_fields`, programs read the lines."""
        self.log = log
        self.queue = queue
        self.writer = writer
        self.has_fields = has_fields

    def announce(self, *lines: str) -> None:
        """Write lines, at any log level."""
        for line in lines:
            if line.strip():
                self.queue.write_line(LogLine("info", "announced", line.strip()))

    def close(self, timeout: float = WRITER_STOP_TIMEOUT) -> None:
        """Write queued lines within `timeout` seconds; later lines are dropped."""
        self.queue.close()
        self.writer.stop(timeout)


def uses_json(settings: LogSettings, stdio: bool) -> bool:
    """Whether the log on stderr is JSON: by default neither over stdio nor at a terminal."""
    if settings.format != "auto":
        return settings.format == "json"
    return not stdio and not sys.stderr.isatty()


def open_log(
    settings: LogSettings,
    stdio: bool,
    mask: Callable[[str], str] = str,
    descriptor: int = STDERR_DESCRIPTOR,
) -> OpenLog:
    """Open the log; over stdio its default level is warning, because clients show every line.

    `mask` is applied to every line, on the thread that writes it.
    """
    is_json = uses_json(settings, stdio)
    journald = open_journald(descriptor, os.environ) if settings.format == "auto" else None
    if journald is not None:
        format_line = format_journald
    elif is_json:
        format_line = format_json
    else:
        coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        format_line = partial(format_text, coloured=coloured)

    def format_masked(line: LogLine, now: float) -> bytes:
        return format_line(mask_line(line, mask), now)

    level = settings.level or ("warning" if stdio else "info")
    queue = LogQueueHandler()
    writer = LogWriter(queue, journald or partial(write_all, descriptor), format_masked)
    writer.start()
    return OpenLog(
        EventLog(queue.write_line, level), queue, writer, is_json or journald is not None
    )


class HttpGauges(NamedTuple):
    """Functions that count HTTP sessions, streams, and events kept for resumption."""

    sessions: Callable[[], int]
    streams: Callable[[], int]
    buffered_bytes: Callable[[], int]
    buffers_dropped: Callable[[], int]


class EventReporter:
    """Reports incidents to event listeners, or to stderr before the log is open."""

    def __init__(self) -> None:
        # The gateway whose listeners get incidents; None until the log is open.
        self.gateway: Gateway | None = None

    def __call__(self, incident: Incident) -> None:
        """Report an incident."""
        if self.gateway is None:
            print_incident(incident)
        else:
            self.gateway.pipeline.events.emit(incident)


class Telemetry:
    """Metrics, traces, log and webhooks of one gateway."""

    def __init__(
        self,
        config: Config,
        gateway: Gateway,
        report: EventReporter,
        export_limits: "ExportLimits | None" = None,
    ) -> None:
        """Start with nothing enabled."""
        self.metrics: GatewayMetrics | None = None
        self.traces: TraceExport | None = None
        self.log: OpenLog | None = None
        self.webhooks: WebhookDelivery | None = None
        self._config = config
        self._gateway = gateway
        self._report = report
        self._export_limits = export_limits

    def enable(self, gauges: HttpGauges) -> None:
        """Enable the configured metrics and traces."""
        if self._config.metrics.url_path is not None:
            from trunkline.app.exporters import GatewayMetrics  # noqa: PLC0415

            self.metrics = GatewayMetrics(self._config, self._gateway, gauges, self._report)
        if self._config.traces.endpoint is not None:
            from trunkline.app.exporters import TraceExport  # noqa: PLC0415

            self.traces = TraceExport(
                self._config, self._on_trace_delivery, self._report, self._export_limits
            )
            self._gateway.pipeline.tracer = self.traces.tracer
            if self.metrics is not None:
                self.traces.register(self.metrics.exposition)

    def register_audit(self, audit_log: AuditLog) -> None:
        """Add the metrics of the audit log."""
        if self.metrics is None:
            return
        gauge, counter = self.metrics.exposition.gauge, self.metrics.exposition.counter
        status = audit_log.status
        gauge(
            "trunkline_audit_queue",
            "Audit records that wait to be written.",
            lambda: status().queue,
        )
        counter(
            "trunkline_audit_dropped_total",
            "Audit records dropped because the queue was full.",
            lambda: status().dropped,
        )
        counter(
            "trunkline_audit_written_total",
            "Audit records that were written.",
            lambda: status().written,
        )
        gauge(
            "trunkline_audit_failing",
            "Whether the audit log cannot be written.",
            lambda: int(status().error is not None),
        )
        gauge(
            "trunkline_audit_excess_bytes",
            "By how much the audit log exceeds its size, since its records are too young.",
            lambda: status().excess_bytes,
        )

    def enable_webhooks(self, state: Path | None) -> list[Callable[[], Awaitable[None]]]:
        """Prepare the configured webhooks; return the steps that close them.

        Commands have no state directory, and send no messages.
        """
        if not self._config.webhooks or state is None:
            return []
        from trunkline.app.webhooks import build_webhooks  # noqa: PLC0415

        events, mask = self._gateway.pipeline.events, self._gateway.mask_secrets
        self.webhooks = found = build_webhooks(self._config, state, mask, events.emit)
        events.add_listener(found.record, call_filter="failed")
        self._gateway.reports_list_changes = True
        self._register_webhooks(found)
        return [found.aclose]

    def _register_webhooks(self, webhooks: "WebhookDelivery") -> None:
        if self.metrics is None:
            return
        counter = self.metrics.exposition.counter
        counter(
            "trunkline_webhook_messages_total",
            "Webhook messages that ended, by target and outcome.",
            webhooks.finished.items,
            ("target", "outcome"),
        )
        counter(
            "trunkline_webhook_dropped_total",
            "Webhook messages dropped because too many waited.",
            lambda: webhooks.dropped,
        )

    @property
    def pages(self) -> "HttpPages":
        """The metrics pages for the main HTTP address."""
        return {} if self.metrics is None else self.metrics.pages

    def drain(self) -> None:
        """Report 'draining' on the health pages of the metrics address."""
        if self.metrics is not None:
            self.metrics.health.is_draining = True

    @asynccontextmanager
    async def running(
        self, stdio: bool, listen: bool = True, inherited: Sequence[InheritedSocket] = ()
    ) -> "AsyncGenerator[None]":
        """Write the log and serve metrics until the end of the context; raises OSError.

        The sockets `inherited` from systemd replace the address of the metrics.
        Without `listen` the process belongs to another program: no address of our own is opened,
        and log records of other libraries are ignored.
        """
        async with AsyncExitStack() as stack:
            log = self._open_log(stdio)
            stack.callback(self._close_log)
            stack.enter_context(capture_logging(log.log.write_line, all_libraries=listen))
            if self.traces is not None:
                stack.push_async_callback(self.traces.aclose)
            if self.metrics is not None:
                serving = self._serve_metrics(self.metrics, stdio, listen, inherited)
                await stack.enter_async_context(serving)
            yield

    @asynccontextmanager
    async def _serve_metrics(
        self,
        metrics: "GatewayMetrics",
        stdio: bool,
        listen: bool,
        inherited: Sequence[InheritedSocket],
    ) -> "AsyncGenerator[None]":
        """Serve metrics; over stdio, go on without their address if it cannot be used.

        A client starts a gateway for itself, so several processes of one configuration run.
        """
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(metrics.listening(listen, inherited))
            except OSError as error:
                if not stdio:
                    raise
                _log.error("trunkline: this gateway serves no metrics: %s", error)
                await stack.enter_async_context(metrics.listening(own=False))
            yield

    def _open_log(self, stdio: bool) -> OpenLog:
        self.log = found = open_log(self._config.log, stdio, self._gateway.mask_secrets)
        self._gateway.pipeline.events.add_listener(
            self._log_event, call_filter=found.log.wanted_calls
        )
        self._report.gateway = self._gateway
        if self.metrics is not None:
            words = "Log lines dropped because stderr was not read in time."
            counter = self.metrics.exposition.counter
            counter("trunkline_log_dropped_total", words, lambda: found.writer.dropped)
        return found

    def _log_event(self, event: GatewayEvent) -> None:
        found = self.log
        if found is not None:
            found.log(event)

    def _close_log(self) -> None:
        self._report.gateway = None
        if self.log is not None:
            self.log.close()

    def _on_trace_delivery(self, problem: str | None) -> None:
        if self.log is not None:
            self.log.log.write_line(trace_delivery_line(problem))
