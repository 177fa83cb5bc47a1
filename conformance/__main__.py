"""Run the official conformance suite, directly and through the gateway: `python -m conformance`."""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from conformance import baseline
from conformance.runs import PAIRS, ROUTES, Pair, Route, Run, runs
from conformance.stage import Unready, target
from conformance.suite import Outcomes, check_installed, outcomes

AT_A_TIME = 2
NAMES = "client-server: " + ", ".join(pair.title for pair in PAIRS)
HEAD = ("run", "scenarios", "passed", "failed", "skipped", "checks passed", "failed", "warned")

Found = dict[Run, Outcomes | Unready]


def main() -> int:
    """Parse the command line, run, compare; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument(
        "--only", type=routes, default=ROUTES, metavar="ROUTE[,ROUTE]", help="/".join(ROUTES)
    )
    parser.add_argument("--pairs", type=pairs, default=PAIRS, metavar="PAIR[,PAIR]", help=NAMES)
    parser.add_argument("--match", default="", metavar="TEXT", help="only runs with this name")
    parser.add_argument(
        "--update", action="store_true", help="store the results as the new baseline"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="store logs and results in this folder"
    )
    options = parser.parse_args()
    chosen = [run for run in runs(options.only, options.pairs) if options.match in run.title]
    if not chosen:
        parser.error(f"expected the name of a run, got {options.match!r}")
    try:
        check_installed()
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            found = asyncio.run(until_stopped(chosen, options.keep or Path(folder)))
    except Unready as why:
        print(f"conformance: {why}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 1
    print(table(found))
    if options.update:
        baseline.store(found)
        print(f"Written to {baseline.FOLDER}.")
    return compare(found)


def routes(text: str) -> tuple[Route, ...]:
    """Parse a list of routes."""
    wanted = set(text.split(","))
    if not wanted <= set(ROUTES):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(ROUTES)}, got {text!r}")
    return tuple(route for route in ROUTES if route in wanted)


def pairs(text: str) -> tuple[Pair, ...]:
    """Parse a list of pairs."""
    wanted, known = set(text.split(",")), {pair.title: pair for pair in PAIRS}
    if not wanted <= known.keys():
        raise argparse.ArgumentTypeError(f"expected some of {','.join(known)}, got {text!r}")
    return tuple(pair for title, pair in known.items() if title in wanted)


async def until_stopped(chosen: list[Run], folder: Path) -> Found:
    """Run them; on a signal, end the started processes first."""
    task = asyncio.create_task(perform_patiently(chosen, folder))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


async def perform_patiently(chosen: list[Run], folder: Path) -> Found:
    """Run them, and once more, alone, those that lost something; return the outcomes.

    The suite ends some streams after 600 ms, which a busy machine may not keep. A regression is
    lost both times.
    """
    found = await perform(chosen, folder, AT_A_TIME)
    known = baseline.load()
    lost = [run for run, result in found.items() if losses(run, result, known)]
    for run in lost:
        print(f"again {run.title}: {losses(run, found[run], known)[0]}", flush=True)
    return found | await perform(lost, folder / "again", 1)


async def perform(chosen: list[Run], folder: Path, at_a_time: int) -> Found:
    """Run them, a few at a time; return the outcome of each, or why there is none."""
    gate = asyncio.Semaphore(at_a_time)

    async def one(run: Run) -> Outcomes | Unready:
        place = folder / run.title.replace(" ", "_")
        place.mkdir(parents=True, exist_ok=True)
        try:
            async with gate, target(run, place) as url:
                return await outcomes(run.subject, url, place)
        except Unready as why:
            return why

    return dict(zip(chosen, await asyncio.gather(*map(one, chosen)), strict=True))


def table(found: Found) -> str:
    """Return the outcomes of the runs, one line each."""
    rows: list[tuple[str, ...]] = [HEAD]
    for run, result in found.items():
        all_of = [] if isinstance(result, Unready) else list(result.values())
        words = Counter(outcome.word for outcome in all_of)
        counts = [len(all_of), words["passed"], words["failed"], words["skipped"]]
        counts += [sum(outcome.passed.total() for outcome in all_of)]
        counts += [sum(len(outcome.failed) for outcome in all_of)]
        counts += [sum(len(outcome.warned) for outcome in all_of)]
        rows.append((run.title, *map(str, counts)))
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(
        "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in rows
    )


def losses(run: Run, result: Outcomes | Unready, known: baseline.Baseline) -> list[str]:
    """Return what a run has lost against the baseline."""
    if isinstance(result, Unready):
        return [str(result)]
    return baseline.difference(run, result, known).lost


def compare(found: Found) -> int:
    """Print how the runs differ from the baseline; return 1 for a regression."""
    known = baseline.load()
    code = 0
    for run, result in found.items():
        won = [] if isinstance(result, Unready) else baseline.difference(run, result, known).won
        for line in losses(run, result, known):
            print(f"LOST  {run.title}: {line}")
            code = 1
        for line in won:
            print(f"new   {run.title}: {line}")
    print("Something was lost." if code else "Nothing was lost.")
    return code


if __name__ == "__main__":
    sys.exit(main())
