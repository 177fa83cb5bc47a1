"""Measure the gateway on this machine for a few seconds: `python -m bench.gateway`."""

import argparse

from bench.gateway.compare import SECONDS, run
from trunkline.cli.output import EXIT_FAILURE, print_json, print_lines, print_message, print_table


def main(seconds: float, as_json: bool) -> int:
    """Measure, print the results, and return the exit code."""
    found = run(seconds, (lambda _: None) if as_json else print_message)
    if as_json:
        print_json(found)
    else:
        for table in found.tables():
            print_lines("", table.title)
            print_table(table.columns, table.rows, table.columns[1:])
        print_lines("", "; ".join(f"{name} {value}" for name, value in found.about.items()))
        print_message(*found.failures())
    return EXIT_FAILURE if found.failures() else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long to measure")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    options = parser.parse_args()
    raise SystemExit(main(options.seconds, options.json))
