"""What is known to hold, in `baseline.json`, and how a run differs from it.

    {"2025-11-25 direct": {"tools-list": {"tools-list": 1, …}, …}, …}      run, scenario, check

Only scenarios without a failure stand in it, with the checks that succeeded and how often. What
holds now but not there is told, and is no error: `--update` writes it down.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from conformance.runs import Run
from conformance.stage import Unready
from conformance.suite import Outcomes

FILE = Path(__file__).parent / "baseline.json"

Passes = dict[str, dict[str, int]]


class Difference(NamedTuple):
    """What a run lost against the baseline, and what it won, in words."""

    lost: list[str]
    won: list[str]


def passes(outcomes: Outcomes) -> Passes:
    """Return what of a run belongs in a baseline."""
    return {
        scenario: dict(sorted(outcome.passed.items()))
        for scenario, outcome in sorted(outcomes.items())
        if outcome.word == "passed"
    }


def load() -> dict[str, Passes]:
    """Read the baseline; there may be none yet."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def store(found: Mapping[Run, Outcomes | Unready]) -> None:
    """Write down what holds in these runs; what is there of others stays."""
    known = load()
    for run, result in found.items():
        if not isinstance(result, Unready):
            known[run.title] = passes(result)
    FILE.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")


def difference(run: Run, outcomes: Outcomes, known: dict[str, Passes]) -> Difference:
    """Compare a run with the baseline, and with the direct run of the same subject."""
    expected, got = known.get(run.title, {}), passes(outcomes)
    lost: list[str] = []
    for scenario, checks in expected.items():
        if scenario not in got:
            lost += [f"{scenario} {_why(outcomes, scenario)}"]
        else:
            gone = Counter(checks) - Counter(got[scenario])
            lost += [f"{scenario}: {check} no longer succeeds" for check in gone]
    direct = known.get(Run(run.subject, "direct", run.subject.era).title, {})
    for scenario in direct:
        if run.subject.counts(scenario) and scenario not in {**got, **expected}:
            lost += [f"{scenario} passes directly, and here it {_why(outcomes, scenario)}"]
    if not expected:
        return Difference(lost, [f"{len(got)} scenarios pass, and none is in the baseline"])
    won = [f"{scenario} passes" for scenario in got if scenario not in expected]
    for scenario, checks in got.items():
        more = Counter(checks) - Counter(expected.get(scenario, checks))
        won += [f"{scenario}: {check} succeeds" for check in more]
    return Difference(lost, won)


def _why(outcomes: Outcomes, scenario: str) -> str:
    if scenario not in outcomes:
        return "was not run"
    outcome = outcomes[scenario]
    return f"{outcome.word}: {'; '.join(outcome.failed)[:600]}"
