"""The output of `python -m bench.gateway`."""

import json
from collections.abc import Callable

import pytest

from bench.gateway import __main__ as command
from bench.gateway.compare import Comparison
from bench.gateway.contest import Settings
from bench.gateway.table import Table


class Found(Comparison):
    """The results of a run."""

    def tables(self) -> list[Table]:
        return [
            Table("results of 200 B", ("", "requests/s"), [("direct", "9"), ("trunkline", "7")])
        ]

    def failures(self) -> list[str]:
        return [name for name in ("nginx did not start",) if self.about.get("broken")]


def found(monkeypatch: pytest.MonkeyPatch, **about: str) -> None:
    def run(seconds: float, report: Callable[[str], None]) -> Comparison:
        assert seconds == 20.0
        report("measuring")
        return Found(about, Settings(), [])

    monkeypatch.setattr(command, "run", run)


def test_the_results_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, python="3.11")
    assert command.main(20.0, as_json=False) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[1:4] == [
        "results of 200 B",
        "           requests/s",
        "direct              9",
    ]
    assert "python 3.11" in output.out
    assert output.err == "measuring\n"


def test_json_output_has_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, python="3.11")
    assert command.main(20.0, as_json=True) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["about"] == {"python": "3.11"}
    assert output.err == ""


def test_a_contestant_that_fails_makes_the_exit_code_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, broken="yes")
    assert command.main(20.0, as_json=False) == 1
    assert "nginx did not start" in capsys.readouterr().err
