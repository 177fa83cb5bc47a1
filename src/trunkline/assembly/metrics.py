"""Metrics as the `[metrics]` settings have them: what is counted, and where it is to be read.

Whoever has one more number to show says so in one line: `exposition.gauge(name, help, read)`.
"""

import platform
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from trunkline import __version__
from trunkline.assembly.http import rules_of
from trunkline.config import Config, is_loopback, split_address
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.upstream import Snapshot, State
from trunkline.jsonrpc.incident import Report
from trunkline.observe import process
from trunkline.observe.call_metrics import CallMetrics
from trunkline.observe.exposition import Exposition
from trunkline.observe.loop_lag import LoopLag
from trunkline.observe.monitor import Monitor, metrics_page
from trunkline.transports.http_guard import Pages
from trunkline.transports.http_health import PATHS, Health
from trunkline.transports.http_listener import HttpListener

if TYPE_CHECKING:
    from trunkline.assembly.observe import Doors

PARTING = 0.5
"""How many seconds whoever reads metrics has to finish when the gateway ends."""

BREAKERS = {"circuit_open": 2, "half_open": 1}
"""What a breaker is by the state of its backend, where it is not closed."""


class Metrics:
    """What is counted of a gateway, and its pages."""

    def __init__(self, config: Config, gateway: Gateway, doors: "Doors", report: Report) -> None:
        """Begin to count."""
        self.exposition = Exposition(report)
        self.calls = CallMetrics(config.metrics.max_series)
        self.lag = LoopLag()
        self.health = Health(gateway.readiness)
        self._config = config
        self._report = report
        self.calls.register(self.exposition)
        self.lag.register(self.exposition)
        numbers_of(self.exposition, gateway, doors)
        process.register(self.exposition)
        gateway.layers.events.listen(self.calls, many=self.calls.count_calls)
        self.exposition.settle = gateway.layers.events.tell_now

    @property
    def pages(self) -> Pages:
        """The pages for the main address, if that is where metrics are to be read."""
        settings = self._config.metrics
        return {} if settings.listen is not None else self._page

    @property
    def _page(self) -> Pages:
        settings = self._config.metrics
        return {str(settings.place): metrics_page(self.exposition, settings.token)}

    @asynccontextmanager
    async def listening(self, own: bool = True) -> "AsyncGenerator[HttpListener | None]":
        """Look at the loop, and have metrics read at their own address if they have one."""
        listen = self._config.metrics.listen if own else None
        self.lag.start()
        listener = None if listen is None else self._listener(listen)
        try:
            if listener is not None:
                guarded = self._config.metrics.token is not None
                await listener.listen(*split_address(str(listen), guarded))
            yield listener
        finally:
            self.health.draining = True
            self.lag.stop()
            if listener is not None:
                await listener.aclose(PARTING)

    def _listener(self, listen: str) -> HttpListener:
        pages: Pages = {**dict.fromkeys(PATHS, self.health.page), **self._page}
        rules = rules_of(self._config.http)
        if not is_loopback(split_address(listen, guarded=True)[0]):
            # No page in a browser has the token, by whichever name it comes here.
            rules = msgspec.structs.replace(rules, allowed_hosts=frozenset("*"))
        return HttpListener(Monitor(pages, rules).answer, report=self._report)


def numbers_of(exposition: Exposition, gateway: Gateway, doors: "Doors") -> None:
    """Show how a gateway and its backends are."""
    registry, parking = gateway.registry, gateway.stateless.parking
    gauge, counter = exposition.gauge, exposition.counter

    def each(
        read: Callable[[Snapshot], float],
    ) -> Callable[[], Iterator[tuple[Mapping[str, str], float]]]:
        return lambda: (({"backend": one.name}, read(one)) for one in registry.snapshot())

    def states() -> Iterator[tuple[Mapping[str, str], float]]:
        for one in registry.snapshot():
            for state in State:
                yield {"backend": one.name, "state": state.value}, int(one.state is state)

    gauge("trunkline_calls_in_flight", "Calls under way.", lambda: len(gateway.layers.under_way))
    gauge("trunkline_calls_parked", "Calls that wait for their clients.", lambda: len(parking))
    gauge("trunkline_sessions", "Conversations with clients.", lambda: len(gateway.sessions))
    gauge("trunkline_http_sessions", "Those of them that came by HTTP.", doors.sessions)
    gauge("trunkline_streams", "HTTP answers and streams that are open.", doors.streams)
    gauge("trunkline_backend_state", "1 for the state that a backend is in.", states)
    gauge(
        "trunkline_backend_up",
        "Whether a backend takes calls.",
        each(lambda one: int(one.state is State.READY)),
    )
    gauge(
        "trunkline_breaker_state",
        "0 while a backend's breaker is closed, 1 half open, 2 open.",
        each(lambda one: BREAKERS.get(one.state.value, 0)),
    )
    gauge(
        "trunkline_backend_calls_in_flight",
        "Calls that a backend has, or that wait for it.",
        each(lambda one: one.in_flight),
    )
    gauge("trunkline_backend_offers", "What a backend offers.", each(lambda one: one.offers))
    counter(
        "trunkline_backend_restarts_total",
        "How often a backend was started again.",
        each(lambda one: one.restarts),
    )
    about = {"version": __version__, "python": platform.python_version()}
    gauge("trunkline_build_info", "Which program this is.", lambda: [(about, 1)])
