"""Measure one hop through each contestant and store the figures: `python -m bench.hop`.

The contestants run on one core, load and server on the other. Each round runs all contestants for
each kind of call; the figures are medians.
"""

import argparse
import datetime
import json
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from bench.gateway.compare import Comparison, Entrants, run
from bench.gateway.contest import SIZES, Settings
from bench.gateway.contestants import (
    DIRECT,
    TRUNKLINE,
    Contestant,
    ServerTransport,
    other_trunkline,
)
from bench.gateway.load import Plan
from bench.gateway.machine import load_average
from bench.gateway.process import cores
from bench.gateway.table import markdown
from bench.hop import idle, targets
from bench.hop.heavy import heavy_peers
from bench.hop.peers import peers
from trunkline.mcp.versions import Era

RESULTS = Path(__file__).parents[1] / "results"
MAX_LOAD = 0.5
"""A higher load average distorts the figures."""

FULL = Settings(plan=Plan(seconds=1.0, warm_up=0.3), rounds=3)
QUICK = Settings(plan=Plan(seconds=0.5, warm_up=0.2, longest=4.0), rounds=1, sizes=SIZES[:1])


def main() -> None:
    """Parse the command line and run."""
    options = read_options()
    entrants = choose(options)
    for python in options.other:
        entrants += [(other_trunkline(python), behind) for behind in ServerTransport]
    if not entrants:
        sys.exit(f"expected some of {', '.join(one.name for one in all_contestants(True))}")
    settings = msgspec.structs.replace(QUICK if options.quick else FULL, era=Era(options.era))
    if options.rounds:
        settings = msgspec.structs.replace(settings, rounds=options.rounds)
    if cores() is None:
        report_line("two cores and taskset are wanted: without them, all share what there is")
    busy = load_average()
    if busy > MAX_LOAD:
        report_line(
            f"the load average is {busy:.1f}: others are at work here, so figures are rough"
        )
    began = perf_counter()
    found = run(report=report_line, entrants=entrants, settings=settings)
    found.about |= {
        "seconds": f"{perf_counter() - began:.0f}",
        "load average before": f"{busy:.2f}",
        "node": output_of("node", "--version"),
        "revision": output_of("git", "describe", "--always", "--dirty"),
    }
    results = targets.compare(found.rows)
    if not options.quick and any(one is TRUNKLINE for one, _ in entrants):
        report_line("trunkline at rest, with many sessions and streams")
        results += idle.run()
    show(found, results)
    if not options.no_store:
        store(found, results, Path(options.store or RESULTS / file_name(options)))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.hop", description=__doc__)
    parser.add_argument("--peers", help="only those whose names contain one of these, by commas")
    parser.add_argument(
        "--other",
        metavar="PYTHON",
        action="append",
        default=[],
        help="also the Trunkline installed there, such as an old commit; may be repeated",
    )
    parser.add_argument("--all", action="store_true", help="ContextForge and LiteLLM as well")
    parser.add_argument("--quick", action="store_true", help="small results, one short round")
    parser.add_argument("--rounds", type=int, help="so many rounds")
    parser.add_argument("--era", choices=[era.value for era in Era], default=Era.SESSION.value)
    parser.add_argument("--no-store", action="store_true", help="do not write the results")
    parser.add_argument("--store", metavar="FILE", help="write them there")
    return parser.parse_args()


def all_contestants(with_heavy: bool) -> list[Contestant]:
    return [*peers(), *(heavy_peers() if with_heavy else ())]


def choose(options: argparse.Namespace) -> Entrants:
    """Return the contestants, once for each kind of server."""
    wanted = [name.strip().lower() for name in (options.peers or "").split(",")]
    return [
        (one, None if one is DIRECT else behind)
        for one in all_contestants(options.all)
        if Era(options.era) in one.eras and any(name in one.name.lower() for name in wanted)
        for behind in one.behind
    ]


def file_name(options: argparse.Namespace) -> str:
    return "hop.json" if options.era == Era.SESSION.value else f"hop-{options.era}.json"


def report_line(text: str) -> None:
    now = datetime.datetime.now(datetime.UTC).strftime("%H:%M:%S")
    print(f"{now} {text}", file=sys.stderr, flush=True)


def output_of(program: str, *arguments: str) -> str:
    """Return the output of a program, if it is installed."""
    if shutil.which(program) is None:
        return "none"
    finished = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return finished.stdout.strip()


def show(found: Comparison, results: list[targets.Target]) -> None:
    """Print the results as Markdown."""
    print("# One hop\n")
    for name, value in found.about.items():
        print(f"- {name}: {value}")
    for table in (*found.tables(), targets.table(results)):
        print(f"\n## {table.title}\n\n{markdown(table)}")
    if found.failures():
        print("\n## What did not work\n")
    for failure in found.failures():
        print(f"- {failure}")


def store(found: Comparison, results: list[targets.Target], path: Path) -> None:
    plain: dict[str, Any] = msgspec.to_builtins(found)
    plain["targets"] = [{**target._asdict(), "outcome": target.outcome} for target in results]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")
    print(f"\nStored in {path}.")


if __name__ == "__main__":
    main()
