"""`trunkline bench`: how fast the gateway is on this machine, beside no gateway at all."""

from trunkline.benchmark.compare import run
from trunkline.cli.screen import FAILED, print_json, print_lines, print_table, say


def bench(seconds: float, as_json: bool) -> int:
    """Measure, print what was found, and return the exit code."""
    found = run(seconds, (lambda _: None) if as_json else say)
    if as_json:
        print_json(found)
    else:
        for table in found.tables():
            print_lines("", table.title)
            print_table(table.columns, table.rows, table.columns[1:])
        print_lines("", "; ".join(f"{name} {value}" for name, value in found.about.items()))
        say(*found.failures())
    return FAILED if found.failures() else 0
