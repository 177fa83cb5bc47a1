"""The log as the `[log]` settings have it.

Log ──> Line ──> JSON or text ──> Pen ──> stderr
"""

import os
import sys
import time
from functools import partial

from trunkline.config import LogSettings
from trunkline.gateway.readiness import Conceal
from trunkline.observe.log import Log
from trunkline.observe.log_lines import Line, as_json, as_text
from trunkline.observe.pen import Pen

STDERR = 2


class OpenLog:
    """A log, and what it is written with."""

    def __init__(self, log: Log, pen: Pen, for_programs: bool) -> None:
        self.log = log
        self.pen = pen
        self.for_programs = for_programs
        """Whether its lines are JSON."""

    def announce(self, *lines: str) -> None:
        """Say what programs read as well as all else, however little is to be said."""
        for line in lines:
            if line.strip():
                self.pen.write(as_json(Line("info", "announced", line.strip()), time.time()))


def is_for_programs(settings: LogSettings, stdio: bool) -> bool:
    """Tell whether programs read the log: over stdio, and at a terminal, it is people."""
    if settings.format != "auto":
        return settings.format == "json"
    return not stdio and not sys.stderr.isatty()


def open_log(
    settings: LogSettings, stdio: bool, conceal: Conceal, descriptor: int = STDERR
) -> OpenLog:
    """Return the log; a client that started us may show its user every line, so it gets few."""
    for_programs = is_for_programs(settings, stdio)
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    write = as_json if for_programs else partial(as_text, coloured=coloured)
    level = settings.level or ("warning" if stdio else "info")

    def lost(count: int) -> bytes:
        text = f"{count} lines of the log were dropped: nobody read them in time"
        return write(Line("warning", "dropped", text, {"count": count}), time.time())

    pen = Pen(descriptor, lost)

    def put(line: Line) -> None:
        pen.write(write(line, time.time()))

    return OpenLog(Log(put, level, conceal), pen, for_programs)
