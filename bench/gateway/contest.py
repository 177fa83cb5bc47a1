"""A contest: all contestants in front of the same server, under the same load, in turns.

    core 0   direct | nginx | Trunkline | …        one active at a time, the others idle
    core 1   the load, and the fast server behind

Invariants upheld here:
1. Each round runs all contestants for each kind of call, close together in time.
2. A contestant that does not start or responds incorrectly is shown as failed; the others go on.
3. Everything that was started is stopped, however the contest ends.
"""

import asyncio
import os
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, Self

import msgspec

from bench.gateway.calls import Address, BadResponse
from bench.gateway.contestants import (
    SERVER,
    Contestant,
    ContestantSite,
    ServerTransport,
    StartedContestant,
)
from bench.gateway.load import Figures, Plan, measure
from bench.gateway.process import Program, cores, pinned, start
from bench.gateway.session import Session, open_session
from trunkline.mcp.versions import Era

KIB, MIB = 1024, 1024 * 1024
SIZES = (200, 64 * KIB, MIB)
CONCURRENCIES = (1, 16, 64)

ProgressReporter = Callable[[str], None]
"""Gets progress messages."""

_FAST_SERVER = (sys.executable, SERVER)
"""Descendants with these commands do not count as part of a contestant."""

_POLL = 0.01
_SOON = 10.0
_ATTEMPT = 10.0


class Settings(msgspec.Struct, frozen=True):
    """The settings of a contest."""

    plan: Plan = Plan()
    rounds: int = 1
    sizes: tuple[int, ...] = SIZES
    concurrencies: tuple[int, ...] = CONCURRENCIES
    era: Era = Era.SESSION
    rest: float = 0.5
    """How many seconds after its first response a program counts as idle."""


class Cell(msgspec.Struct, frozen=True):
    """The figures of one kind of call: the medians of its rounds."""

    size: int
    concurrency: int
    rate: float
    p50: float
    p99: float
    cpu: float
    """Microseconds of processor time per call that the contestant took."""
    busy: float
    """The share of a core that the contestant took."""
    load: float
    """The share of a core that the load took."""
    rates: list[float]


class Row(msgspec.Struct):
    """The results of one contestant."""

    name: str
    behind: ServerTransport | None
    """None without a server behind it."""
    version: str = ""
    startup: float | None = None
    """Seconds until the first response to `tools/list`."""
    memory: float | None = None
    """Megabytes when idle."""
    cells: list[Cell] = []
    failures: list[str] = []
    """What failed, and why."""

    def cell(self, size: int, concurrency: int) -> Cell | None:
        """Return one cell."""
        wanted = (size, concurrency)
        return next((cell for cell in self.cells if (cell.size, cell.concurrency) == wanted), None)


class _RoundResult(NamedTuple):
    """The figures of one round, with the processor time of the contestant."""

    figures: Figures
    cpu: float
    busy: float


def _median(size: int, concurrency: int, found: list[_RoundResult]) -> Cell:
    median = statistics.median
    return Cell(
        size,
        concurrency,
        rate=median(one.figures.rate for one in found),
        p50=median(one.figures.p50 for one in found),
        p99=median(one.figures.p99 for one in found),
        cpu=median(one.cpu for one in found) * 1e6,
        busy=median(one.busy for one in found),
        load=median(one.figures.own_share for one in found),
        rates=[one.figures.rate for one in found],
    )


class _RunningContestant:
    """A running contestant."""

    def __init__(self, row: Row, program: Program, way: StartedContestant, timeout: float) -> None:
        self.row = row
        self._program = program
        self._way = way
        self._admitted = way.admit is None
        self._timeout = timeout
        self._session: Session | None = None
        self._failed: set[tuple[int, int]] = set()
        self._found: dict[tuple[int, int], list[_RoundResult]] = {}

    async def wait_ready(self) -> None:
        """Wait for its first list of tools; raises BadResponse if none comes."""
        began, why = perf_counter(), "no connection"
        while self._session is None:
            if self._program.has_ended:
                raise BadResponse(f"it ended: {self._program.last_output()}")
            left = self._timeout - (perf_counter() - began)
            if left <= 0:
                words = self._program.last_output()
                raise BadResponse(f"no tools within {self._timeout:g} s: {why}\n{words}")
            try:
                async with asyncio.timeout(min(left, _ATTEMPT)):
                    self._session = await self._open()
            except (OSError, BadResponse) as error:
                why = str(error)
                await asyncio.sleep(_POLL)

    async def _open(self) -> Session:
        if not self._admitted and self._way.admit is not None:
            await self._way.admit()
            self._admitted = True
        return await open_session(self._way.address)

    async def measure_memory(self, rest: float) -> None:
        """Measure its memory when it is idle."""
        await asyncio.sleep(rest)
        self.row.memory = self._program.memory(_FAST_SERVER) / 1e6 or None

    async def measure(self, size: int, concurrency: int, plan: Plan) -> None:
        """Measure one kind of call once; after a failure, reconnect for the next."""
        if self._session is None or (size, concurrency) in self._failed:
            return
        before, began = self._program.cpu_seconds(_FAST_SERVER), perf_counter()
        try:
            figures = await measure(self._session, concurrency, size, plan)
        except (OSError, BadResponse) as why:
            self._failed.add((size, concurrency))
            self.row.failures.append(f"{describe(size)}, {concurrency} at once: {why}")
            self._session.close()
            self._session = None
            with suppress(BadResponse):
                await self.wait_ready()
            return
        used = self._program.cpu_seconds(_FAST_SERVER) - before
        found = _RoundResult(figures, used / figures.in_all, used / (perf_counter() - began))
        self._found.setdefault((size, concurrency), []).append(found)

    def finish(self) -> Row:
        """Compute the medians."""
        self.row.cells = [
            _median(size, concurrency, found) for (size, concurrency), found in self._found.items()
        ]
        return self.row

    async def stop(self) -> None:
        """End it."""
        if self._session is not None:
            self._session.close()
        await self._program.stop()


class Contest:
    """All running contestants; an async context manager that stops them."""

    def __init__(self, settings: Settings, report: ProgressReporter) -> None:
        self._settings = settings
        self._report = report
        self._stack = AsyncExitStack()
        self._cores = cores() or (None, None)
        self._entries: list[_RunningContestant] = []
        self._rows: list[Row] = []
        self._folder: Path
        self._url = ""

    async def __aenter__(self) -> Self:
        """Pin the load to its core and start the server."""
        if self._cores[1] is not None:
            self._stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {self._cores[1]})
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        port, era = free_port(), self._settings.era
        command = [sys.executable, SERVER, "--http", f"127.0.0.1:{port}", "--era", era.value]
        server = await start(command, self._folder / "server.log", {}, self._cores[1])
        self._stack.push_async_callback(server.stop)
        self._url = f"http://127.0.0.1:{port}/mcp"
        behind = _RunningContestant(
            Row("server", None), server, StartedContestant(command, Address(port, era=era)), _SOON
        )
        try:
            await behind.wait_ready()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all contestants."""
        await self._stack.aclose()

    async def add(self, contestant: Contestant, behind: ServerTransport | None) -> None:
        """Start a contestant; if that fails, the row says why."""
        row = Row(contestant.name, behind)
        self._rows.append(row)
        self._report(f"starting {label(row)}")
        try:
            row.version = contestant.version()
            entry = await self._start(contestant, row)
            self._stack.push_async_callback(entry.stop)
            began = perf_counter()
            await entry.wait_ready()
            row.startup = perf_counter() - began
            await entry.measure_memory(self._settings.rest)
        except (LookupError, OSError, BadResponse) as why:
            row.failures.append(str(why))
            self._report(f"{label(row)} does not take part: {why}")
            return
        self._entries.append(entry)

    async def _start(self, contestant: Contestant, row: Row) -> _RunningContestant:
        folder = self._folder / str(len(self._rows))
        folder.mkdir()
        server = [sys.executable, SERVER, "--stdio", "--era", self._settings.era.value]
        place = ContestantSite(
            folder=folder,
            port=free_port(),
            behind=row.behind or ServerTransport.HTTP,
            url=self._url,
            command=pinned(server, self._cores[1]),
            era=self._settings.era,
        )
        way = contestant.start(place)
        program = await start(way.command, folder / "log", way.environment, self._cores[0])
        return _RunningContestant(row, program, way, contestant.start_timeout)

    async def run(self) -> list[Row]:
        """Measure all contestants, in turns."""
        settings = self._settings
        for turn in range(settings.rounds):
            for size in settings.sizes:
                for concurrency in settings.concurrencies:
                    shift = turn % max(1, len(self._entries))
                    for entry in self._entries[shift:] + self._entries[:shift]:
                        what = f"{describe(size)}, {concurrency} at once: {label(entry.row)}"
                        self._report(f"round {turn + 1} of {settings.rounds}, {what}")
                        await entry.measure(size, concurrency, settings.plan)
        for entry in self._entries:
            entry.finish()
        return self._rows


def label(row: Row) -> str:
    """Name a row."""
    return row.name if row.behind is None else f"{row.name} → {row.behind}"


def describe(size: int) -> str:
    """Format a size for people."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
