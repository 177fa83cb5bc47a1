"""journald as the target of the log, with fields to filter by.

    LogLine ──format_journald──> an entry in journald's native protocol ──> its socket

The fields of a line become fields of the entry, such as TRUNKLINE_SERVER, so that
`journalctl TRUNKLINE_SERVER=github` finds its lines.

Invariant: the text of a field cannot add a field or an entry.
"""

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import cast

from trunkline.telemetry.log_lines import LogLevel, LogLine

JOURNALD_SOCKET = "/run/systemd/journal/socket"

# The levels of syslog.
_PRIORITIES: dict[LogLevel, int] = {"error": 3, "warning": 4, "info": 6, "debug": 7}
# Fields that have another name in the configuration and in commands.
_NAMES = {"backend": "SERVER"}
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9_]")
_LOCATION = re.compile(r"(?P<file>.+):(?P<line>[0-9]+) (?P<function>.+)")


def open_journald(
    descriptor: int, environ: Mapping[str, str], path: str | None = None
) -> Callable[[bytes], object] | None:
    """Return a function that sends entries to journald.

    Returns None if `descriptor` is not connected to journald. The function may block, and raises
    OSError.
    """
    found = os.fstat(descriptor)
    if environ.get("JOURNAL_STREAM") != f"{found.st_dev}:{found.st_ino}":
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        connection.connect(path or JOURNALD_SOCKET)
    except OSError:  # stderr still leads to journald, without fields
        connection.close()
        return None
    # Never closed: at the end of the process, the thread of the log may still write.
    return partial(os.write, connection.detach())


def format_journald(line: LogLine, _now: float = 0.0) -> bytes:
    """Return a line as an entry; journald adds the time."""
    fields = [
        ("MESSAGE", line.text),
        ("PRIORITY", str(_PRIORITIES[line.level])),
        ("SYSLOG_IDENTIFIER", "trunkline"),
        ("TRUNKLINE_EVENT", line.kind),
    ]
    for key, value in line.fields.items():
        name = "TRUNKLINE_" + _NOT_IN_NAMES.sub("_", _NAMES.get(key, key.upper()))
        # A field may occur several times.
        values = cast("list[object]", value) if isinstance(value, list) else [value]
        fields += [(name, _format_value(each)) for each in values if each is not None]
    fields += _code_fields(line.fields.get("locations"))
    return b"".join(_encode_field(name, text) for name, text in fields)


def _code_fields(locations: object) -> Iterator[tuple[str, str]]:
    """Yield the fields for where an exception was raised."""
    if isinstance(locations, list) and locations:
        found = _LOCATION.fullmatch(str(cast("list[object]", locations)[0]))
        if found is not None:
            yield "CODE_FILE", found["file"]
            yield "CODE_LINE", found["line"]
            yield "CODE_FUNC", found["function"]


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encode_field(name: str, text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    # With a length, a line end is part of the value.
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
