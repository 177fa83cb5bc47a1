"""Starts upstreams for commands that need the catalogue, and shows progress.

    Config ──> start_gateway ──> a gateway whose upstreams are ready, have failed, or timed out
           ──> prepare_gateway ──> one with no upstream yet ──> restore, start: only those needed

The command decides what to do about a failed server.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

from trunkline.app.application import HTTP_VARIANT, NO_CLIENT_VARIANT, App
from trunkline.app.control import ServerStatus, server_statuses
from trunkline.app.nesting import find_nesting_error
from trunkline.cli.locations import user_state_dir
from trunkline.cli.output import EXIT_FAILURE, fail, first_line, print_message, progress
from trunkline.config import Config
from trunkline.gateway.event_text import state_clause
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.registry import Registry
from trunkline.gateway.settings import HEALTHY_STATES, UpstreamState
from trunkline.mcp.features import FeatureKind
from trunkline.routing.naming import NAME_SEPARATOR

# In seconds; also the precision of recorded start times.
_POLL_INTERVAL = 0.02

# After how many seconds a command says what it starts, where no terminal shows the progress.
ANNOUNCE_AFTER = 1.0

# A stored listing counts for commands if a start of the server confirmed it in the last 24 hours.
SNAPSHOT_MAX_AGE = 24 * 3600.0
_SNAPSHOT_VARIANTS = (NO_CLIENT_VARIANT, HTTP_VARIANT)


class StartupWatcher:
    """Watches the upstreams of a registry start."""

    def __init__(
        self, registry: Registry, show: Callable[[str], None], *, announces: bool = False
    ) -> None:
        """Start the clock; `show` gets the names of upstreams that are not ready.

        With `announces`, a slow start is announced where no terminal shows the progress.
        """
        self._registry = registry
        self._show = show
        self._started_at = asyncio.get_running_loop().time()
        self.seconds: dict[str, float] = {}
        self._announces = announces and not sys.stderr.isatty()

    async def wait(
        self, timeout: float | None = None, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until every upstream has been tried, `enough()` is true, or the timeout."""
        while True:
            elapsed = asyncio.get_running_loop().time() - self._started_at
            self._record(elapsed)
            if (
                self._registry.catalog_complete
                or enough()
                or (timeout is not None and elapsed >= timeout)
            ):
                return
            # Short waits keep the progress and the recorded times up to date.
            await self._registry.wait_complete(elapsed + _POLL_INTERVAL)

    def _record(self, elapsed: float) -> None:
        selected = self._registry.selected
        for upstream in selected:
            if upstream.has_been_tried:
                self.seconds.setdefault(upstream.name, elapsed)
        late = [upstream.name for upstream in selected if not upstream.has_been_tried]
        self._show(f"starting {', '.join(late)} ({elapsed:.0f} s)")
        if late and elapsed >= ANNOUNCE_AFTER and self._announces:
            self._announces = False
            print_message(f"trunkline: starting {', '.join(late)}")


class StartedGateway(NamedTuple):
    """A started gateway, and a function that shows progress."""

    app: App
    show: Callable[[str], None]

    @property
    def gateway(self) -> Gateway:
        """The gateway itself."""
        return self.app.gateway

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Return the state of the servers."""
        return server_statuses(self.app)

    async def restore(self) -> tuple[str, ...]:
        """Add the stored listings of servers that were not started.

        Returns the names of the servers without one.
        """
        registry = self.gateway.registry
        return await registry.restore_unselected(_SNAPSHOT_VARIANTS, SNAPSHOT_MAX_AGE)

    async def start(
        self,
        names: Collection[str],
        timeout: float | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start these servers, too, and wait as StartupWatcher does."""
        registry = self.gateway.registry
        registry.start_some(names, NO_CLIENT_VARIANT)
        await StartupWatcher(registry, self.show, announces=True).wait(timeout, enough)


def build_app(config: Config) -> App:
    """Return the gateway of a configuration; exit if a gateway of it has started this command."""
    if (reason := find_nesting_error(os.environ, config.source)) is not None:
        fail(EXIT_FAILURE, reason)
    return App(config, user_state_dir(os.environ, sys.platform))


@asynccontextmanager
async def start_gateway(
    config: Config,
    timeout: float | None = None,
    enough: Callable[[Registry], bool] = lambda _: False,
) -> AsyncGenerator[StartedGateway]:
    """Start a configuration's gateway, wait as StartupWatcher does, and stop it at the end."""
    async with _run_gateway(config, None) as started:
        registry = started.gateway.registry
        await StartupWatcher(registry, started.show).wait(timeout, lambda: enough(registry))
        yield started


def prepare_gateway(config: Config) -> AbstractAsyncContextManager[StartedGateway]:
    """Return a configuration's gateway without any server; `start` starts those that are needed."""
    return _run_gateway(config, ())


@asynccontextmanager
async def _run_gateway(
    config: Config, names: Collection[str] | None
) -> AsyncGenerator[StartedGateway]:
    app = build_app(config)
    # Outside of `running`: the spinner stays until the servers have stopped.
    with progress("starting") as show:
        async with app.running(names):
            yield StartedGateway(app, show)
            show("stopping the servers")


def servers_for_name(config: Config, name: str) -> list[str]:
    """Return the servers that could offer a tool or prompt of this name."""
    return [
        server.name
        for server in config.servers
        if not server.disabled
        # A server without a prefix can offer any name.
        and (
            not server.effective_prefix or name.startswith(server.effective_prefix + NAME_SEPARATOR)
        )
    ]


def is_tool_available(registry: Registry, name: str) -> bool:
    """Return whether a tool exists, and no server still starting could claim its name."""
    entry = registry.catalog.find(FeatureKind.TOOL, name)
    if entry is None:
        return False
    # In the order of the configuration: of two servers with one name, the first keeps it.
    for upstream in registry:
        if upstream.name == entry.backend:
            return True
        prefix = upstream.settings.prefix
        if not upstream.has_been_tried and (not prefix or name.startswith(prefix + NAME_SEPARATOR)):
            return False
    return True


def unready_reason(status: ServerStatus, default: str = "not ready") -> str:
    """Return why a server is not ready, or `default`, on one line."""
    if status.error is not None:
        return first_line(status.error)
    return "a kill switch disables it" if status.state == UpstreamState.DISABLED else default


def unready_lines(statuses: Iterable[ServerStatus], note: str = "") -> list[str]:
    """Return a line for each server that is not ready: state, a note, and reason."""
    return [
        f"{status.name} {state_clause(status.state).partition(',')[0]}{note}: "
        f"{unready_reason(status)}"
        for status in statuses
        if status.state not in HEALTHY_STATES
    ]
