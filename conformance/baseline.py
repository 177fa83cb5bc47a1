"""The baseline: one file for each pair of protocols in `baselines/`, and how a run differs.

    {"exceptions": {"SCENARIO": {"checks": ["CHECK", …], "because": "…"}, …},    written by hand
     "runs": {"2025-11-25 http": {"SCENARIO": {"CHECK": 1, …}, …}, …}}           by `--update`

A run is stored as the scenarios that passed, except exceptions, with the checks that succeeded and
how often. Improvements over the baseline are reported and are not an error.

Invariants:
1. A check that passed before passes now.
2. A check of a scored scenario that passes directly passes behind the gateway in every pair, or an
   exception says why it cannot.
3. An exception that passes is an error: it must be removed.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypedDict

from conformance.runs import PAIRS, Pair, Run
from conformance.stage import Unready
from conformance.suite import Outcomes

FOLDER = Path(__file__).parent / "baselines"

Passes = dict[str, dict[str, int]]


class Reason(TypedDict):
    """The checks of a scenario that cannot pass, and why."""

    checks: list[str]
    because: str


class Known(TypedDict):
    """The baseline of one pair."""

    exceptions: dict[str, Reason]
    runs: dict[str, Passes]


Baseline = dict[Pair, Known]


class Difference(NamedTuple):
    """The regressions and improvements of a run against the baseline."""

    lost: list[str]
    won: list[str]


def load() -> Baseline:
    """Read the baseline, empty if there is none yet."""
    empty: Known = {"exceptions": {}, "runs": {}}
    return {
        pair: json.loads(_file(pair).read_text(encoding="utf-8")) if _file(pair).exists() else empty
        for pair in PAIRS
    }


def store(found: Mapping[Run, Outcomes | Unready]) -> None:
    """Store these runs; other runs stay unchanged."""
    baseline = load()
    for run, result in found.items():
        if not isinstance(result, Unready):
            known = baseline[run.pair]
            known["runs"][run.title] = passes(result, known)
    FOLDER.mkdir(exist_ok=True)
    for pair, known in baseline.items():
        known["runs"] = dict(sorted(known["runs"].items()))
        text = json.dumps(known, indent=1, ensure_ascii=False)
        _file(pair).write_text(text + "\n", encoding="utf-8")


def passes(outcomes: Outcomes, known: Known) -> Passes:
    """Return the part of a run that belongs in a baseline."""
    return {
        scenario: dict(sorted(outcome.passed.items()))
        for scenario, outcome in sorted(outcomes.items())
        if outcome.passed and outcome.failures <= _exempt(known, scenario)
    }


def difference(run: Run, outcomes: Outcomes, baseline: Baseline) -> Difference:
    """Compare a run with its baseline, and with the direct run of the same subject."""
    known = baseline[run.pair]
    expected, got = known["runs"].get(run.title, {}), passes(outcomes, known)
    lost = [f"{line} no longer succeeds" for line in _missing(expected, got)]
    if run.route != "direct":
        lost += _not_as_directly(run, got, known, _direct(run, baseline))
    lost = [line + _why(outcomes, line) for line in lost]
    if not expected:
        lost += [f"{len(got)} scenarios pass, and none is in the baseline: see --update"]
    won = [f"{scenario} passes" for scenario in got if expected and scenario not in expected]
    for scenario, checks in got.items():
        more = Counter(checks) - Counter(expected.get(scenario, checks))
        won += [f"{scenario}: {check} succeeds" for check in more]
    return Difference(lost, won)


def _file(pair: Pair) -> Path:
    return FOLDER / f"{pair.title}.json"


def _direct(run: Run, baseline: Baseline) -> Passes:
    """Return what passes without a gateway, with the client's protocol on both sides."""
    same = Run(run.subject, "direct", run.subject.era)
    return baseline[same.pair]["runs"].get(same.title, {})


def _exempt(known: Known, scenario: str) -> frozenset[str]:
    reason = known["exceptions"].get(scenario)
    return frozenset(reason["checks"] if reason else ())


def _missing(expected: Passes, got: Passes) -> list[str]:
    """Return the checks that pass less often than they should."""
    return [
        f"{scenario}: {check}"
        for scenario, checks in expected.items()
        for check in (Counter(checks) - Counter(got.get(scenario, {})))
    ]


def _not_as_directly(run: Run, got: Passes, known: Known, direct: Passes) -> list[str]:
    """Return what passes only directly, and what passes in spite of an exception."""
    scored = {scenario: direct[scenario] for scenario in direct if run.subject.counts(scenario)}
    exceptions = {
        f"{scenario}: {check}"
        for scenario, reason in known["exceptions"].items()
        for check in reason["checks"]
    }
    needless = {f"{s}: {check}" for s, checks in got.items() for check in checks} & exceptions
    lost = [line for line in _missing(scored, got) if line not in exceptions]
    return [
        *(f"{line} succeeds directly, and not here" for line in lost),
        *(f"{line} succeeds, and is an exception" for line in sorted(needless)),
    ]


def _why(outcomes: Outcomes, line: str) -> str:
    """Return the suite's explanation for the scenario of a line."""
    outcome = outcomes.get(line.partition(": ")[0])
    if outcome is None:
        return " (was not run)"
    details = "; ".join(outcome.failed or outcome.warned)[:600]
    return f" ({outcome.word}: {details})" if details else ""
