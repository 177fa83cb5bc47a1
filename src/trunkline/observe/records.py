"""Records: what any part says by `logging` becomes a line of the log, like all else.

    logging ──> LogRecord ──line_of_record──> Line ──in the thread of the loop──> Log

Refuses to show what others put into an exception: of one its types and places are told.

Rules upheld here:
1. A record is one line, whoever wrote it, and from whichever thread.
2. What is said before there is a log is kept until there is one, and lost in no case.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from trunkline.observe.log_lines import Level, Line, kinds_of, places_of
from trunkline.visible import visible

OURS = "trunkline"
"""How the names of all our loggers begin."""

MAX_TEXT = 1000
"""How much of a record is shown: what we say ourselves has its remedy at the end."""


class Records(logging.Handler):
    """Has records written down by a log, in the thread in which the log is used."""

    def __init__(self, say: Callable[[Line], None]) -> None:
        """Prepare, in a running loop."""
        super().__init__()
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written down; what cannot be hurts nobody."""
        with suppress(Exception):
            line = line_of_record(record)
            if threading.get_ident() == self._thread:
                self._say(line)
            else:
                self._loop.call_soon_threadsafe(self._say, line)


@contextmanager
def heard(say: Callable[[Line], None], everybody: bool) -> Generator[None]:
    """Have a log say what our parts do, and with `everybody` what all libraries do as well."""
    logger, records = logging.getLogger(None if everybody else OURS), Records(say)
    logger.addHandler(records)
    try:
        yield
    finally:
        logger.removeHandler(records)


class _Gathered(logging.Handler):
    """Keeps records for later."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def held_back() -> Generator[None]:
    """Keep what is said meanwhile, and have it said in the end, to those who listen by then."""
    root, gathered = logging.getLogger(), _Gathered()
    root.addHandler(gathered)
    try:
        yield
    finally:
        root.removeHandler(gathered)
        for record in gathered.records:
            logging.getLogger(record.name).handle(record)


def line_of_record(record: logging.LogRecord) -> Line:
    """Return what a record says; its kind is the part of the gateway, or the library, it is of."""
    first, _, rest = record.name.partition(".")
    lines = record.getMessage().replace(":\n", ": ").splitlines()
    if first == OURS and rest:
        kind, text = rest.partition(".")[0], "; ".join(lines).removeprefix(f"{OURS}: ")
    else:
        kind, text = first, lines[0] if lines else ""  # asyncio shows values in the others
    text, facts = visible(text, MAX_TEXT), dict[str, object]()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        kinds, places = kinds_of(error), places_of(error)
        text += f": {kinds} at {' < '.join(places)}"
        facts = {"error": kinds, "places": places}
    return Line(_level(record.levelno), kind, text, facts)


def _level(number: int) -> Level:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
