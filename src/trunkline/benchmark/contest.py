"""A contest: everybody in front of the same server, under the same load, in turns.

    core 0   direct | nginx | Trunkline | …        one at work at a time, the others at rest
    core 1   the load, and the fast server behind

Rules upheld here:
1. Who is compared runs side by side: each round goes through all of them for each kind of call.
2. One that does not start, or answers wrongly, is shown as failed, with the reason; others go on.
3. Whatever was started is ended, however the contest ends.
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

from trunkline.benchmark.calls import Address, BadAnswer
from trunkline.benchmark.contestants import SERVER, Behind, Contestant, Place, Start
from trunkline.benchmark.load import Figures, Plan, measure
from trunkline.benchmark.process import Program, cores, pinned, start
from trunkline.benchmark.session import Session, open_session
from trunkline.mcp.versions import Era

KIB, MIB = 1024, 1024 * 1024
SIZES = (200, 64 * KIB, MIB)
CONCURRENCIES = (1, 16, 64)

Tell = Callable[[str], None]
"""Is told what is going on."""

_FAST_SERVER = (sys.executable, "-m", SERVER)
"""Whoever is started so by a contestant is not part of it."""

_POLL = 0.01
_SOON = 10.0
_ATTEMPT = 10.0


class Settings(msgspec.Struct, frozen=True):
    """What is measured."""

    plan: Plan = Plan()
    rounds: int = 1
    sizes: tuple[int, ...] = SIZES
    concurrencies: tuple[int, ...] = CONCURRENCIES
    era: Era = Era.HANDSHAKE
    rest: float = 0.5
    """How many seconds after its first answer a program is taken to be at rest."""


class Cell(msgspec.Struct, frozen=True):
    """What one kind of call came to: the median of its rounds."""

    size: int
    concurrency: int
    rate: float
    p50: float
    p99: float
    cpu: float
    """Microseconds of processor time that each call took of what is measured."""
    busy: float
    """How much of a core what is measured took."""
    load: float
    """How much of a core the load took."""
    rates: list[float]


class Row(msgspec.Struct):
    """What came of one contestant."""

    name: str
    behind: Behind | None
    """None if it has nothing behind itself."""
    version: str = ""
    startup: float | None = None
    """Seconds until it first answered `tools/list`."""
    memory: float | None = None
    """Megabytes at rest."""
    cells: list[Cell] = []
    failures: list[str] = []
    """What did not work, and why."""

    def cell(self, size: int, concurrency: int) -> Cell | None:
        """Return one cell."""
        wanted = (size, concurrency)
        return next((cell for cell in self.cells if (cell.size, cell.concurrency) == wanted), None)


class _Found(NamedTuple):
    """What one round found, with the processor time of what is measured."""

    figures: Figures
    cpu: float
    busy: float


def _median(size: int, concurrency: int, found: list[_Found]) -> Cell:
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


class _Entry:
    """A contestant that runs."""

    def __init__(self, row: Row, program: Program, way: Start, patience: float) -> None:
        self.row = row
        self._program = program
        self._way = way
        self._admitted = way.admit is None
        self._patience = patience
        self._session: Session | None = None
        self._failed: set[tuple[int, int]] = set()
        self._found: dict[tuple[int, int], list[_Found]] = {}

    async def greet(self) -> None:
        """Wait for its first list of tools; raises BadAnswer if that does not come."""
        began, why = perf_counter(), "nobody listens"
        while self._session is None:
            if self._program.has_ended:
                raise BadAnswer(f"it ended: {self._program.last_words()}")
            left = self._patience - (perf_counter() - began)
            if left <= 0:
                words = self._program.last_words()
                raise BadAnswer(f"no tools within {self._patience:g} s: {why}\n{words}")
            try:
                async with asyncio.timeout(min(left, _ATTEMPT)):
                    self._session = await self._open()
            except (OSError, BadAnswer) as error:
                why = str(error)
                await asyncio.sleep(_POLL)

    async def _open(self) -> Session:
        if not self._admitted and self._way.admit is not None:
            await self._way.admit()
            self._admitted = True
        return await open_session(self._way.address)

    async def weigh(self, rest: float) -> None:
        """Look at its memory once it is at rest."""
        await asyncio.sleep(rest)
        self.row.memory = self._program.memory(_FAST_SERVER) / 1e6 or None

    async def measure(self, size: int, concurrency: int, plan: Plan) -> None:
        """Measure one kind of call once; after a failure, begin anew for the next."""
        if self._session is None or (size, concurrency) in self._failed:
            return
        before, began = self._program.cpu_seconds(_FAST_SERVER), perf_counter()
        try:
            figures = await measure(self._session, concurrency, size, plan)
        except (OSError, BadAnswer) as why:
            self._failed.add((size, concurrency))
            self.row.failures.append(f"{describe(size)}, {concurrency} at once: {why}")
            self._session.close()
            self._session = None
            with suppress(BadAnswer):
                await self.greet()
            return
        used = self._program.cpu_seconds(_FAST_SERVER) - before
        found = _Found(figures, used / figures.in_all, used / (perf_counter() - began))
        self._found.setdefault((size, concurrency), []).append(found)

    def settle(self) -> Row:
        """Take the medians."""
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
    """Everybody who takes part, running; an async context manager that ends them all."""

    def __init__(self, settings: Settings, tell: Tell) -> None:
        self._settings = settings
        self._tell = tell
        self._stack = AsyncExitStack()
        self._cores = cores() or (None, None)
        self._entries: list[_Entry] = []
        self._rows: list[Row] = []
        self._folder: Path
        self._url = ""

    async def __aenter__(self) -> Self:
        """Put the load on its core, and start the server that is behind everybody."""
        if self._cores[1] is not None:
            self._stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {self._cores[1]})
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        port, era = free_port(), self._settings.era
        command = [sys.executable, "-m", SERVER, "--http", f"127.0.0.1:{port}", "--era", era.value]
        server = await start(command, self._folder / "server.log", {}, self._cores[1])
        self._stack.push_async_callback(server.stop)
        self._url = f"http://127.0.0.1:{port}/mcp"
        behind = _Entry(Row("server", None), server, Start(command, Address(port, era=era)), _SOON)
        try:
            await behind.greet()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End everybody."""
        await self._stack.aclose()

    async def enter(self, contestant: Contestant, behind: Behind | None) -> None:
        """Start somebody; if that does not work, the row says why."""
        row = Row(contestant.name, behind)
        self._rows.append(row)
        self._tell(f"starting {label(row)}")
        try:
            row.version = contestant.version()
            entry = await self._start(contestant, row)
            self._stack.push_async_callback(entry.stop)
            began = perf_counter()
            await entry.greet()
            row.startup = perf_counter() - began
            await entry.weigh(self._settings.rest)
        except (LookupError, OSError, BadAnswer) as why:
            row.failures.append(str(why))
            self._tell(f"{label(row)} does not take part: {why}")
            return
        self._entries.append(entry)

    async def _start(self, contestant: Contestant, row: Row) -> _Entry:
        folder = self._folder / str(len(self._rows))
        folder.mkdir()
        server = [sys.executable, "-m", SERVER, "--stdio", "--era", self._settings.era.value]
        place = Place(
            folder=folder,
            port=free_port(),
            behind=row.behind or Behind.HTTP,
            url=self._url,
            command=pinned(server, self._cores[1]),
            era=self._settings.era,
        )
        way = contestant.start(place)
        program = await start(way.command, folder / "log", way.environment, self._cores[0])
        return _Entry(row, program, way, contestant.patience)

    async def run(self) -> list[Row]:
        """Measure everybody, in turns."""
        settings = self._settings
        for turn in range(settings.rounds):
            for size in settings.sizes:
                for concurrency in settings.concurrencies:
                    shift = turn % max(1, len(self._entries))
                    for entry in self._entries[shift:] + self._entries[:shift]:
                        what = f"{describe(size)}, {concurrency} at once: {label(entry.row)}"
                        self._tell(f"round {turn + 1} of {settings.rounds}, {what}")
                        await entry.measure(size, concurrency, settings.plan)
        for entry in self._entries:
            entry.settle()
        return self._rows


def label(row: Row) -> str:
    """Name a row."""
    return row.name if row.behind is None else f"{row.name} → {row.behind}"


def describe(size: int) -> str:
    """Write a size as people do."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def free_port() -> int:
    """Return a port that nobody listens on, a moment ago at least."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
