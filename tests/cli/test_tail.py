"""What goes through, as it does."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.cli.samples import config, run
from tests.journal.samples import call, entries, ledger, sheets, written
from trunkline.cli import tail as module
from trunkline.cli.tail import follow, line
from trunkline.gateway.events import BackendMoved, TurnedAway
from trunkline.journal.ledger import row_of
from trunkline.journal.sqlite import SqliteStore
from trunkline.journal.store import Filter, Row


def names(rows: Iterator[Row], count: int) -> list[str]:
    return [row.name for row in islice(rows, count)]


def test_the_last_are_shown_and_then_what_comes(tmp_path: Path) -> None:
    made = written(tmp_path, 20)
    batches = iter([entries(2, 50), entries(1, 60)])

    def sleep(_: float) -> None:
        made.append(next(batches))

    rows = follow(SqliteStore(tmp_path / "journal.db"), Filter(), 3, sleep)
    assert names(rows, 6) == [f"fs__tool_{n}" for n in (18, 19, 20, 50, 51, 60)]
    rows.close()
    made.store.close()


def test_only_what_is_wanted_is_shown(tmp_path: Path) -> None:
    made = written(tmp_path, 20)

    def sleep(_: float) -> None:
        made.append([made.scribe.call(call(name=n)) for n in ("a__x", "fs__y")])

    rows = follow(SqliteStore(tmp_path / "journal.db"), Filter(tool="a__*"), 0, sleep)
    assert names(rows, 2) == ["a__x", "a__x"]
    rows.close()
    made.store.close()


def test_what_was_looked_at_is_not_looked_at_again(tmp_path: Path) -> None:
    made = written(tmp_path, 20)
    looked: list[int] = []

    class Watched(SqliteStore):
        def select(self, wanted: Filter, limit: int, newest: bool = True) -> list[Row]:
            looked.append(wanted.after)
            return super().select(wanted, limit, newest)

    def sleep(_: float) -> None:
        if len(looked) >= 9:
            made.append([made.scribe.call(call(name="a__x"))])
        else:
            made.append(sheets(10))

    rows = follow(Watched(tmp_path / "journal.db"), Filter(tool="a__*"), 0, sleep)
    assert names(rows, 1) == ["a__x"]
    rows.close()
    made.store.close()
    after = sorted({each for each in looked if each})
    assert len(after) > 5
    assert (after[0], after[-1]) == (21, 21 + len(after) - 1)


def test_a_journal_that_comes_later_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[object] = []

    def sleep(_: float) -> None:
        made.append(None)
        if len(made) == 3:
            written(tmp_path, 2).store.close()

    rows = follow(SqliteStore(tmp_path / "journal.db"), Filter(tool="*"), 10, sleep)
    assert names(rows, 2) == ["fs__tool_1", "fs__tool_2"]
    rows.close()
    assert capsys.readouterr().err.count("there is no journal; waiting for it") == 1


def test_a_journal_that_takes_the_place_of_another_is_shown_from_its_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, 5).store.close()
    looks: list[object] = []

    def sleep(_: float) -> None:
        looks.append(None)
        if len(looks) == 1:
            (tmp_path / "journal.db").unlink()
        elif len(looks) == 3:
            written(tmp_path, 2).store.close()

    rows = follow(SqliteStore(tmp_path / "journal.db"), Filter(tool="*"), 1, sleep)
    assert names(rows, 3) == ["fs__tool_5", "fs__tool_1", "fs__tool_2"]
    rows.close()
    assert "waiting for it" in capsys.readouterr().err


def test_lines_are_for_people_or_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, 5).store.close()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupt)
    file = config(tmp_path, f'[journal]\nurl = "sqlite:///{tmp_path}/journal.db"\n')
    shown = run("tail", "--config", file, "--lines", "2")
    assert shown.exit_code == 130
    assert len(shown.stdout.splitlines()) == 2
    assert "fs__tool_5  rule policy 3" in shown.stdout
    told = run("tail", "--config", file, "--lines", "1", "--json")
    assert json.loads(told.stdout)["record"]["name"] == "fs__tool_5"


def test_a_line_tells_gateways_apart_and_moves_no_cursor(tmp_path: Path) -> None:
    made = ledger(tmp_path)
    made.scribe.gateway = "home:12@vm"
    entry = made.scribe.call(call(name="fs__\x1b[2J"))
    texts = [text for text, _ in line(row_of(1, entry, b""))]
    assert "home:12" in texts
    assert "fs__\\x1b[2J" in texts
    note = made.scribe.note(5.0, "dropped", count=3, status="drop")
    assert [text for text, _ in line(row_of(1, note, b""))][-1] == "3 times"


def test_a_line_tells_which_server_has_moved_and_why_somebody_was_turned_away(
    tmp_path: Path,
) -> None:
    happened = [
        (1.0, BackendMoved("fs", "waiting", "it ended", 2.0)),
        (2.0, TurnedAway("10.0.0.1", "no token")),
    ]
    moved, turned_away = (
        [text for text, _ in line(row_of(1, entry, b""))]
        for entry in ledger(tmp_path).scribe.write(happened)
    )
    assert (moved[1].strip(), *moved[-2:]) == ("waiting", "(backend) fs", "it ended")
    assert turned_away[1].strip() == "turned_away"
    assert turned_away[-2:] == ["(turned_away) 10.0.0.1", "no token, 1 times"]
