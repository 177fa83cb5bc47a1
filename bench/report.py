"""The results as Markdown tables, with the machine and the versions."""

import datetime
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from bench.contestants import OURS
from bench.memory import Memory
from bench.targets import Target
from bench.timing import Timing

LIBRARIES = (
    "msgspec",
    "orjson",
    "mcp-types",
    "pydantic",
    "pydantic-core",
    "ajsonrpc",
    "json-rpc",
    "jsonrpcserver",
    "jsonschema",
    "pygls",
    "cattrs",
    "python-lsp-jsonrpc",
    "ujson",
    "tinyrpc",
)
"""Every distribution that affects a figure; the version of json is that of Python."""


def about() -> dict[str, object]:
    """Describe this run: time, machine, and the version of every library."""
    versions = {name: metadata.version(name) for name in LIBRARIES}
    try:
        versions[OURS] = metadata.version(OURS)
    except metadata.PackageNotFoundError:
        versions[OURS] = "source tree, not installed"
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "versions": versions,
    }


def _cpu() -> str:
    """Return the model of the processor, as far as the platform knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table with a left-aligned first column and right-aligned others."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    cells.insert(1, rule)
    return "\n".join(
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in cells
    )


def comparison(results: Mapping[str, Mapping[str, Timing]], names: Iterable[str]) -> str:
    """Return µs per message by contestant and message, and in brackets the multiple of ours."""
    rows = [
        [name, *(_cell(by_name.get(name), by_name[OURS]) for by_name in results.values())]
        for name in names
        if any(name in by_name for by_name in results.values())
    ]
    return table(["µs (multiple of ours)", *results], rows)


def _cell(timing: Timing | None, ours: Timing) -> str:
    if timing is None:
        return "-"
    return f"{microseconds(timing.best)} ({timing.best / ours.best:.2f})"


def microseconds(seconds: float) -> str:
    """Format a time with its significant digits."""
    value = seconds * 1e6
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def memory(results: Mapping[str, Mapping[str, Memory]]) -> str:
    """Return the peak / held / kept multiples by contestant and message."""
    names = list(next(iter(results.values())))
    rows = [
        [
            name,
            *(
                f"{by_name[name].peak:.2f} / {by_name[name].held:.2f} / {by_name[name].kept:.2f}"
                for by_name in results.values()
            ),
        ]
        for name in names
    ]
    return table(["multiple of the payload: peak / held / kept", *results], rows)


def targets(found: Iterable[Target]) -> str:
    """Return every target with its measurement and whether it was reached."""
    rows = [
        [
            target.name,
            f"{target.measured:.2f}",
            "-" if target.by_median is None else f"{target.by_median:.2f}",
            f"{'<=' if target.at_most else '>='} {target.bound:g}",
            target.outcome,
        ]
        for target in found
    ]
    return table(["target", "measured", "by medians", "wanted", "outcome"], rows)
