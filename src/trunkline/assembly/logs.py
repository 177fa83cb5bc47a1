"""The log as the `[log]` settings have it.

Log ──> Line ──> JSON or text ──> Pen ──> stderr
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial

from trunkline.config import LogSettings
from trunkline.gateway.readiness import Conceal
from trunkline.observe.log import Log
from trunkline.observe.log_lines import Line, as_json, as_text
from trunkline.observe.pen import Pen

STDERR = 2


class OpenLog:
    """A log, and what it is written with."""

    def __init__(self, log: Log, pen: Pen) -> None:
        self.log = log
        self.pen = pen

    def announce(self, *lines: str) -> None:
        """Say what programs read as well as all else, however little is to be said."""
        for line in lines:
            if line.strip():
                self.pen.write(as_json(Line("info", "announced", line.strip()), time.time()))


def writer_of(settings: LogSettings, stdio: bool) -> Callable[[Line, float], bytes]:
    """Return what writes a line: over stdio, and at a terminal, it is people who read it."""
    terminal = sys.stderr.isatty()
    if settings.format == "json" or (settings.format == "auto" and not terminal and not stdio):
        return as_json
    return partial(as_text, coloured=terminal and "NO_COLOR" not in os.environ)


def open_log(
    settings: LogSettings, stdio: bool, conceal: Conceal, descriptor: int = STDERR
) -> OpenLog:
    """Return the log; a client that started us may show its user every line, so it gets few."""
    write = writer_of(settings, stdio)
    level = settings.level or ("warning" if stdio else "info")

    def lost(count: int) -> bytes:
        text = f"{count} lines of the log were dropped: nobody read them in time"
        return write(Line("warning", "dropped", text, {"count": count}), time.time())

    pen = Pen(descriptor, lost)
    return OpenLog(Log(lambda line: pen.write(write(line, time.time())), level, conceal), pen)
