"""Asking the journal afterwards."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.samples import config, run
from tests.journal.samples import call, ledger, meddle, rows, sheets, written
from trunkline.cli.audit import Wanted
from trunkline.gateway.events import Switched, TurnedAway
from trunkline.journal.chain import follow
from trunkline.journal.ledger import Retention
from trunkline.journal.store import Filter


@pytest.fixture
def file(tmp_path: Path) -> str:
    made = written(tmp_path, 20)
    scribe = made.scribe
    denied = call(name="git__push", status="denied", kind="not_allowed", code=-32003, backend="git")
    knocked = [(2000.0, TurnedAway("10.0.0.1", "no token"))] * 3
    made.append([scribe.call(denied), *scribe.write(knocked)])
    made.store.close()
    head = "journal-x.head"
    (tmp_path / "journal.head").rename(tmp_path / head)
    text = f'[gateway]\nstate = ""\n[journal]\nurl = "sqlite:///{tmp_path}/journal.db"\n'
    return config(tmp_path, text)


def audit(file: str, *arguments: str) -> Result:
    return run("audit", *arguments, "--config", file)


def test_records_are_shown_for_people(file: str) -> None:
    result = audit(file, "query", "--tool", "git*")
    assert result.exit_code == 0
    (head, line) = result.stdout.splitlines()
    assert head.split() == ["time", "status", "took", "subject", "server", "what", "why"]
    assert line.split()[2:] == [
        *("denied", "3.0", "ms", "alice", "git", "git__push", "not_allowed,"),
        *("code", "-32003,", "rule", "policy", "3"),
    ]
    (_, line) = audit(file, "query", "--limit", "1").stdout.splitlines()
    assert line.split()[2:] == ["(turned_away)", "10.0.0.1", "no", "token,", "3", "times"]


def test_what_was_switched_and_which_way_is_shown_for_people(tmp_path: Path, file: str) -> None:
    happened = [
        Switched("pause", "", True, "anna"),
        Switched("pause", "", False, "anna"),
        Switched("tool", "fs__x", True, "anna"),
        Switched("server", "fs", False, "anna"),
        Switched("all", "", True, "anna"),
    ]
    made = ledger(tmp_path)
    made.store.open()
    made.append(made.scribe.write((3000.0, event) for event in happened))
    made.store.close()
    _, *lines = audit(file, "query", "--limit", "5").stdout.splitlines()
    assert [line.partition("(switched) ")[2] for line in lines] == [
        "gateway: paused",
        "gateway: resumed",
        "tool fs__x: stopped",
        "server fs: revived",
        "all: stopped",
    ]


def test_records_are_shown_for_programs(file: str) -> None:
    found = json.loads(
        audit(file, "query", "--status", "denied", "--status", "error", "--json").stdout
    )
    assert [each["record"]["name"] for each in found] == ["git__push"]
    assert (found[0]["seq"], len(found[0]["hash"])) == (22, 64)
    many = audit(file, "query", "--json", "--limit", "5")
    assert len(json.loads(many.stdout)) == 5
    assert "the newest 5" in many.stderr
    assert json.loads(audit(file, "query", "--since", "1h", "--json").stdout) == []
    assert (
        len(json.loads(audit(file, "query", "--subject", "al*", "--server", "fs", "--json").stdout))
        == 20
    )


def test_all_is_exported_a_line_each(file: str) -> None:
    lines = audit(file, "export").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, 24))
    assert len(audit(file, "export", "--tool", "fs__*").stdout.splitlines()) == 20


def test_calls_that_ended_together_are_shown_one_by_one_and_exported_as_they_are_stored(
    tmp_path: Path, file: str
) -> None:
    made = ledger(tmp_path)
    made.store.open()
    made.append(sheets(10, 100))
    made.store.close()
    found = json.loads(audit(file, "query", "--tool", "fs__tool_10?", "--json").stdout)
    assert [each["record"]["name"] for each in found] == [f"fs__tool_{n}" for n in range(100, 110)]
    assert {each["seq"] for each in found} == {24}
    lines = audit(file, "export", "--stored").stdout.splitlines()
    before, last = (json.loads(line) for line in lines[-2:])
    body = lines[-1].partition('"record":')[2].removesuffix("}").encode()
    assert follow(bytes.fromhex(before["hash"]), body).hex() == last["hash"]
    refused = audit(file, "export", "--stored", "--tool", "x")
    assert (refused.exit_code, "--stored: expected no other" in refused.stderr) == (2, True)


@pytest.mark.holds("I8.1")
def test_what_is_whole_is_said_to_be_and_what_is_not_is_named(file: str) -> None:
    good = audit(file, "verify")
    assert (good.exit_code, "23 records, whole; the end is 23:" in good.stdout) == (0, True)
    assert "not noted in a second place" in good.stderr
    end = good.stdout.rpartition(" ")[2].strip()
    assert audit(file, "verify", "--expect", end).exit_code == 0
    meddle(Path(file).parent, "DELETE FROM record WHERE seq = 4")
    bad = audit(file, "verify", "--json")
    found = json.loads(bad.stdout)
    assert (bad.exit_code, found["ok"]) == (1, False)
    assert [(each["what"], each["first"]) for each in found["findings"]] == [("missing", 4)]
    meddle(Path(file).parent, "DELETE FROM record WHERE seq > 20", "UPDATE chain SET seq = 20")
    assert (
        "records 21 to 23 are missing at the end" in audit(file, "verify", "--expect", end).stdout
    )


@pytest.mark.holds("I8.1")
def test_an_end_that_was_noted_is_not_taken_as_given_after_a_prune(
    tmp_path: Path, file: str
) -> None:
    ends = {each.seq: f"{each.seq}:{each.hash.hex()}" for each in rows(tmp_path)}
    made = ledger(tmp_path)
    made.store.open()
    made.prune(Retention(keep_days=1, max_mb=None), 1005.5 + 86400)
    made.store.close()
    good = audit(file, "verify", "--expect", ends[6])
    assert good.exit_code == 0
    assert "all up to record 6 was pruned: record 24 (pruned, " in good.stderr
    assert audit(file, "verify", "--expect", ends[7]).exit_code == 0
    wrong = audit(file, "verify", "--expect", f"6:{'00' * 32}")
    assert wrong.exit_code == 1
    assert "record 6, which was pruned, is not the one that was noted elsewhere" in wrong.stdout
    older = audit(file, "verify", "--expect", ends[3])
    assert older.exit_code == 1
    assert "record 3 was noted elsewhere, and all up to 6 was pruned" in older.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("query", "--since", "soon"), 2, "--since: expected a time"),
        (("query", "--status", "sad"), 2, "--status: expected one of success"),
        (("verify", "--expect", "x"), 2, "--expect: expected NUMBER:HASH"),
        (("verify", "--expect", "1:00"), 2, "--expect: expected NUMBER:HASH"),
        (("verify", "--expect", f"0:{'00' * 32}"), 2, "--expect: expected NUMBER:HASH"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    file: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = audit(file, *arguments)
    assert (result.exit_code, said in result.stderr) == (code, True)


def test_a_journal_that_is_not_there_is_told(tmp_path: Path) -> None:
    off = config(tmp_path, '[journal]\nurl = ""\n')
    assert "there is no journal" in audit(off, "query").stderr
    nowhere = config(tmp_path, '[journal]\nurl = "sqlite:///nowhere.db"\n')
    result = audit(nowhere, "query")
    assert (result.exit_code, "nowhere.db: there is no journal" in result.stderr) == (1, True)


def test_a_record_that_makes_no_sense_is_shown_as_far_as_it_goes(tmp_path: Path, file: str) -> None:
    meddle(tmp_path, "UPDATE record SET body = '{' WHERE seq = 22")
    assert "git__push" in audit(file, "query", "--tool", "git*").stdout
    assert ledger(tmp_path).store.url.endswith("journal.db")


def test_no_name_in_a_record_reaches_a_terminal_as_more_than_text(
    tmp_path: Path, file: str
) -> None:
    meddle(tmp_path, "UPDATE record SET name = 'x' || char(27) || '[2J' WHERE seq = 5")
    for command in ("verify", "query"):
        said = audit(file, command).stdout
        assert "x\\x1b[2J" in said
        assert "\x1b" not in said


def test_without_wishes_all_is_meant() -> None:
    assert Wanted().as_filter() == Filter()
