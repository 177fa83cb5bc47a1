"""Runs the official suite against a URL and reads its results.

node dist/index.js server --url … -o FOLDER ──> FOLDER/server-SCENARIO-TIME/checks.json
                                            └─> its summary, which also names early failures
"""

import asyncio
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from conformance.runs import MODULES, Subject
from conformance.stage import Unready, running

MAX_SECONDS = 300
OLDEST_NODE = 22

_SUMMARY = re.compile(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed$", re.MULTILINE)
_FOLDER = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


class Outcome(NamedTuple):
    """The outcome of one scenario: passed checks by id, and failures."""

    passed: Counter[str]
    failed: list[str]
    warned: list[str]

    @property
    def failures(self) -> frozenset[str]:
        """The ids of the checks that failed."""
        return frozenset(line.partition(": ")[0] for line in self.failed)

    @property
    def word(self) -> str:
        """The outcome in one word; skipped if there was nothing to check."""
        if self.failed:
            return "failed"
        return "passed" if self.passed else "skipped"


Outcomes = dict[str, Outcome]


def node() -> str:
    """Return a Node.js that is new enough: our own or the system's."""
    for path in sorted(MODULES.glob("node-*/bin/node")):
        return str(path)
    found = shutil.which("node")
    if found is None:
        raise Unready(f"expected Node {OLDEST_NODE} or newer, got none")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    if int(version.stdout.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        raise Unready(f"expected Node {OLDEST_NODE} or newer, got {version.stdout.strip()!r}")
    return found


def check_installed() -> None:
    """Fail if the suite is not installed, since no results would look like success."""
    node()
    for name in ("conformance-next", "conformance-stable"):
        if not (MODULES / name / "dist" / "index.js").exists():
            raise Unready(f"expected {name} in {MODULES}, got nothing: run `make conformance`")


async def outcomes(subject: Subject, url: str, folder: Path) -> Outcomes:
    """Run the suite; return the outcome of each scenario."""
    results = folder / "results"
    shutil.rmtree(results, ignore_errors=True)  # a kept folder may contain older results
    program = str(MODULES / subject.suite / "dist" / "index.js")
    command = [node(), program, "server", "--url", url, *subject.arguments(), "-o", str(results)]
    async with running(command, folder / "suite.log") as started:
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await started.process.wait()
        except TimeoutError:
            raise Unready(f"the suite did not end in {MAX_SECONDS} s") from None
    output = started.output()
    summary = _SUMMARY.findall(output)
    if not summary:
        raise Unready(f"expected a summary of the suite, got {output[-2000:]!r}")
    found = {scenario: Outcome(Counter(), ["did not run"], []) for scenario, _, _ in summary}
    for path in results.glob("*/checks.json"):
        if name := _FOLDER.fullmatch(path.parent.name):
            found[name[1]] = _outcome(json.loads(path.read_text(encoding="utf-8")))
    return found


def _outcome(checks: list[dict[str, str]]) -> Outcome:
    def all_of(status: str) -> list[dict[str, str]]:
        return [check for check in checks if check["status"] == status]

    def describe(check: dict[str, str]) -> str:
        return f"{check['id']}: {check.get('errorMessage', check['description'])}"

    passed = Counter(check["id"] for check in all_of("SUCCESS"))
    failed, warned = map(all_of, ("FAILURE", "WARNING"))
    return Outcome(passed, [*map(describe, failed)], [*map(describe, warned)])
