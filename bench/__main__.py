"""Run all benchmarks, print the tables and store the figures: `python -m bench`."""

import argparse
import asyncio
import json
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import engine, memory, ours, report
from bench.contestants import contestants
from bench.dispatchers import dispatchers
from bench.messages import memory_samples, samples
from bench.targets import compare, compare_memory
from bench.timing import FULL, QUICK, Settings

RESULTS = Path(__file__).parent / "results" / "engine.json"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--no-store", action="store_true", help=f"do not write {RESULTS.name}")
    options = parser.parse_args()
    start = perf_counter()
    with asyncio.Runner() as runner:
        results = run(QUICK if options.quick else FULL, runner)
    results["about"]["quick"] = options.quick
    results["about"]["seconds"] = round(perf_counter() - start, 1)
    print(f"\nThis took {results['about']['seconds']} s.")
    if not options.no_store:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
        print(f"Stored in {RESULTS}.")


def run(settings: Settings, runner: asyncio.Runner) -> dict[str, Any]:
    """Run every benchmark, print each table when it is done, and return all figures."""
    codecs, all_dispatchers, sizes = contestants(), dispatchers(), samples()
    about = report.about()
    _print_about(about, settings)
    engine.check_all(codecs, all_dispatchers, sizes, runner)
    names = [one.name for one in codecs]

    decoded = engine.decode(codecs, sizes, settings, runner)
    _show("1. Decode, classify and validate: requests", report.comparison(decoded[0], names))
    _show("1. Decode, classify and validate: responses", report.comparison(decoded[1], names))
    for one in codecs:
        print(f"- {one.name}: {one.note}")

    relayed = engine.relay(codecs, sizes, settings, runner)
    _show("2. Relay under another id: requests", report.comparison(relayed[0], names))
    _show("2. Relay under another id: responses", report.comparison(relayed[1], names))

    dispatched = engine.dispatch(all_dispatchers, settings, runner)
    order = [one.name for one in all_dispatchers]
    _show("3. Dispatch: add(a=2, b=3)", report.comparison({"dispatch": dispatched}, order))
    for dispatcher in all_dispatchers:
        print(f"- {dispatcher.name}: {dispatcher.note}")

    measured = memory.measure(codecs, memory_samples())
    _show("4. Memory while a request is decoded", report.memory(measured))
    print(
        "Peak and held include the payload; kept is what the message holds on to once its caller\n"
        "lets go of the payload. tracemalloc sees what is allocated through Python, which leaves\n"
        "out what native parsers allocate by themselves."
    )

    needed = ours.spelling_memory()
    own = _run_own(needed, settings, runner)
    found = compare(decoded, relayed, dispatched, all_dispatchers)
    found += compare_memory(measured, needed)
    _show("Targets", report.targets(found))
    return {
        "about": {**about, "settings": settings._asdict()},
        "bytes": {one.name: [len(one.request), len(one.response)] for one in sizes},
        "seconds": {
            "decode request": _plain(decoded[0]),
            "decode response": _plain(decoded[1]),
            "relay request": _plain(relayed[0]),
            "relay response": _plain(relayed[1]),
            "dispatch": _plain({"add": dispatched}),
            **own,
        },
        "memory": _plain({**measured, "ours by spelling": needed}),
        "targets": [{**one._asdict(), "outcome": one.outcome} for one in found],
    }


def _run_own(
    needed: dict[str, memory.Memory], settings: Settings, runner: asyncio.Runner
) -> dict[str, Any]:
    """Run and print the benchmarks of our engine alone."""
    spelled = ours.spellings(settings, runner)
    rows = [
        [
            name,
            *(report.microseconds(by_name[name].best) for by_name in spelled.values()),
            f"{peak:.2f}",
        ]
        for name, (peak, _, _) in needed.items()
    ]
    head = ["µs per payload", *spelled, f"peak memory, multiple of {ours.LARGE} payload"]
    _show("5. Ours: decoding by spelling", report.table(head, rows))

    number = int(settings.seconds * 320_000) // ours.CONCURRENT * ours.CONCURRENT
    trips = ours.round_trips(number, settings.rounds, runner)
    rows = [
        [name, report.microseconds(timing.best), f"{1 / timing.best:,.0f}"]
        for name, timing in trips.items()
    ]
    head = ["calls over pipe(), both ends in one loop", "µs", "calls/s"]
    _show("6. Ours: round trips", report.table(head, rows))
    return {"spellings": _plain(spelled), "round trips": _plain({"pipe": trips})}


def _print_about(about: dict[str, object], settings: Settings) -> None:
    """Print the machine, the versions and the method."""
    print("# Benchmarks of the engine\n")
    for name in ("date", "python", "platform", "cpu"):
        print(f"- {name}: {about[name]}")
    versions: Any = about["versions"]
    print("- versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    print(
        f"\nTimes are the best of {settings.rounds} interleaved rounds of "
        f"{settings.seconds * 1000:g} ms each (3 and 5: {settings.longer().rounds}), all in one "
        "process,\nwith the cyclic garbage collector off as in timeit; medians are stored as well."
    )


def _show(title: str, body: str) -> None:
    print(f"\n## {title}\n\n{body}\n", flush=True)


def _plain(results: Any) -> Any:
    """Convert named tuples to dicts, for JSON."""
    return {
        outer: {inner: value._asdict() for inner, value in by_name.items()}
        for outer, by_name in results.items()
    }


if __name__ == "__main__":
    main()
