"""The figures in the manual, written from the stored results: `python -m bench.page`.

A page has a block for each table. The command replaces what stands between its two lines:

    <!-- figures: NAME -->
    …
    <!-- end of figures -->

`make update` and the benchmarks that store results run it. A test compares the pages with it.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "docs" / "explain" / "finding.md",
    ROOT / "docs" / "explain" / "performance.md",
    ROOT / "docs" / "reference" / "benchmarks.md",
)
_BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)

Results = dict[str, Any]


def main() -> None:
    """Write the figures into all pages, and name the pages that changed."""
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = with_figures(old)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"changed: {page.relative_to(ROOT)}")


def with_figures(text: str) -> str:
    """Return a page with the figures of the stored results; `KeyError` for an unknown block."""
    return _BLOCK.sub(lambda found: f"{found[1]}{_BLOCKS[found[2]]()}\n{found[3]}", text)


def _read(name: str) -> Results:
    path = ROOT / "bench" / "results" / f"{name}.json"
    found: Results = json.loads(path.read_text(encoding="utf-8"))
    return found


def _run(about: Results) -> str:
    """Return a sentence with the date, the machine and the versions of a run."""
    date, time = about["date"][:10], about["date"][11:16]
    commit = f", commit `{about['revision']}`" if "revision" in about else ""
    cores = f"{about['cores']} cores, " if "cores" in about else ""
    names = ("trunkline", "msgspec", "httptools", "uvloop", "websockets", "node")
    versions = [f"{name} {about[name]}" for name in names if name in about]
    versions += [f"{name} {version}" for name, version in about.get("versions", {}).items()]
    python = f"Python {about['python'].split()[0]}"
    before = about.get("load average before")
    load = "" if before is None else f" The load average before was {before}."
    return (
        f"Measured on {date} at {time} UTC{commit}. Machine: {cores}{about['cpu']}, "
        f"{about['platform']}. Versions: {', '.join([python, *versions])}."
        f"{load}"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; all columns but the first are right-aligned."""
    titles = list(head)
    rule = "|---|" + "--:|" * (len(titles) - 1)
    return "\n".join([_line(titles), rule, *map(_line, rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _hop() -> str:
    """Return rates and costs of one hop, for every program in front of the same server."""
    results = _read("hop")
    concurrencies = results["settings"]["concurrencies"]
    rows: list[list[str]] = []
    for row in results["rows"]:
        cells: dict[Any, Results] = {
            (cell["size"], cell["concurrency"]): cell for cell in row["cells"]
        }

        def figures(size: int, key: str, cells: dict[Any, Results] = cells) -> str:
            found = [cells.get((size, each)) for each in concurrencies]
            return " / ".join("–" if one is None else f"{one[key]:,.0f}" for one in found)

        behind = f", {row['behind']}" if row["behind"] else ""
        version = "" if row["name"] in ("direct", "trunkline") else f" {row['version']}"
        rates = [figures(size, "rate") for size in results["settings"]["sizes"]]
        memory = "–" if row["name"] == "direct" else f"{row['memory']:.0f}"
        name = (
            f"**trunkline**{behind}"
            if row["name"] == "trunkline"
            else f"{row['name']}{version}{behind}"
        )
        rows.append([name, *rates, figures(results["settings"]["sizes"][0], "cpu"), memory])
    at_once = " / ".join(map(str, concurrencies))
    head = [
        f"{at_once} calls at once",
        "200 B, calls/s",
        "64 KiB, calls/s",
        "1 MiB, calls/s",
        "CPU µs per call, 200 B",
        "memory, MB",
    ]
    return f"{_run(results['about'])}\n\n{_table(head, rows)}"


def _targets(name: str) -> Callable[[], str]:
    def table() -> str:
        rows = [
            [
                target["name"],
                _number(target["measured"]),
                f"{'at most' if target['at_most'] else 'at least'} {target['bound']:,g}",
                target["outcome"].lower(),
            ]
            for target in _read(name)["targets"]
        ]
        return _table(["", "measured", "target", "outcome"], rows)

    return table


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _layers() -> str:
    """Return what policy, audit log and traces cost."""
    results = _read("layers")
    rows: list[list[str]] = []
    for name, found in results["variants"].items():
        wanted, share = found["wanted"], found["of_plain"]
        outcome = "–" if not wanted else "reached" if share >= wanted else "missed"
        target = f"{wanted:g}" if wanted else "–"
        rate = f"{found['rate']:,}"
        rows.append([name, rate, f"{found['cpu_us']:.0f}", f"{share:.2f}", target, outcome])
    head = ["", "calls/s", "CPU µs per call", "share of plain", "target", "outcome"]
    return f"{_run(results['about'])}\n\n{_table(head, rows)}"


def _engine() -> str:
    """Return the microseconds that each library takes to read and to relay a small request."""
    results = _read("engine")
    read = results["seconds"]["decode request"]["small"]
    relay = results["seconds"]["relay request"]["small"]
    rows = [
        [name, _microseconds(found), _microseconds(relay.get(name))] for name, found in read.items()
    ]
    return f"{_run(results['about'])}\n\n{_table(['µs', 'read', 'relay under another id'], rows)}"


def _dispatch() -> str:
    found = _read("engine")["seconds"]["dispatch"]["add"]
    return _table(["", "µs"], [[name, _microseconds(one)] for name, one in found.items()])


def _microseconds(timing: Results | None) -> str:
    return "–" if timing is None else f"{timing['best'] * 1e6:.2f}"


def _finding() -> str:
    """Return how often a suitable tool is first, or among the first five."""
    results = _read("finding")
    about, before = results["about"], results["untuned recall at 5"]
    rows = [
        [name, *_quality(found), f"{before[name]:.3f}" if name in before else "–"]
        for name, found in results["quality"].items()
    ]
    run = (
        f"Measured on {about['date'][:10]} at {about['date'][11:16]} UTC, with Python "
        f"{about['python']} and RapidFuzz {about['rapidfuzz']}: {about['queries']} queries for "
        f"{about['tools']} tools of {about['servers']} servers."
    )
    head = ["queries", "number", "first", "recall@5", "recall@5 before tuning"]
    return f"{run}\n\n{_table(head, rows)}"


def _quality(found: Results) -> list[str]:
    return [str(found["queries"]), f"{found['first']:.3f}", f"{found['recall']:.3f}"]


_BLOCKS: dict[str, Callable[[], str]] = {
    "hop": _hop,
    "hop-targets": _targets("hop"),
    "layers": _layers,
    "finding": _finding,
    "engine": _engine,
    "dispatch": _dispatch,
    "engine-targets": _targets("engine"),
}

if __name__ == "__main__":
    main()
