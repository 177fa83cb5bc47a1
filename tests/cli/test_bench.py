"""`trunkline bench`, without the measuring, which has tests of its own."""

import json
from collections.abc import Callable

import pytest

from trunkline.benchmark.compare import Comparison
from trunkline.benchmark.contest import Settings
from trunkline.benchmark.table import Table
from trunkline.cli import bench as command


class Found(Comparison):
    """What a run found."""

    def tables(self) -> list[Table]:
        return [
            Table("results of 200 B", ("", "requests/s"), [("direct", "9"), ("trunkline", "7")])
        ]

    def failures(self) -> list[str]:
        return [name for name in ("nginx did not start",) if self.about.get("broken")]


def found(monkeypatch: pytest.MonkeyPatch, **about: str) -> None:
    def run(seconds: float, tell: Callable[[str], None]) -> Comparison:
        assert seconds == 20.0
        tell("measuring")
        return Found(about, Settings(), [])

    monkeypatch.setattr(command, "run", run)


def test_it_prints_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, python="3.11")
    assert command.bench(20.0, as_json=False) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1:4] == [
        "results of 200 B",
        "           requests/s",
        "direct              9",
    ]
    assert "python 3.11" in said.out
    assert said.err == "measuring\n"


def test_programs_get_json_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, python="3.11")
    assert command.bench(20.0, as_json=True) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["about"] == {"python": "3.11"}
    assert said.err == ""


def test_one_that_could_not_be_measured_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, broken="yes")
    assert command.bench(20.0, as_json=False) == 1
    assert "nginx did not start" in capsys.readouterr().err
