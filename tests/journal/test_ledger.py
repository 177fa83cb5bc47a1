"""A chain in a store, to which many add."""

import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.journal.samples import (
    PRESENCE,
    audit,
    entries,
    kinds,
    ledger,
    meddle,
    rows,
    sheets,
    written,
)
from trunkline.journal.head_file import HeadFile
from trunkline.journal.ledger import Retention
from trunkline.journal.store import StoreError
from trunkline.jsonrpc import from_raw


def test_a_journal_that_is_written_and_ended_is_whole(tmp_path: Path) -> None:
    made = written(tmp_path, 120)
    made.end(PRESENCE, 1200.0)
    found = rows(tmp_path)
    assert kinds(found) == ["started", *["call"] * 120, "stopped"]
    assert audit(tmp_path).ok
    noted = HeadFile(tmp_path / "journal.head").read()
    assert noted is not None
    assert (noted.seq, noted.hash) == (122, found[-1].hash)


def _write(folder: Path, number: int) -> None:
    made = ledger(folder, patience=20.0)
    made.begin(msgspec.structs.replace(PRESENCE, id=f"{number:032}"), 1000.0)
    for batch in range(10):
        made.append(entries(20, 1000 * number + 20 * batch))
    made.store.close()


def test_many_processes_write_one_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, n)) for n in range(1, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    found = audit(tmp_path)
    assert found.ok, found.findings
    calls = [row for row in rows(tmp_path) if row.kind == "call"]
    assert len({row.name for row in calls}) == len(calls) == 600


def test_what_was_written_after_all_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(tmp_path, 1)
    whole = made.store.transaction

    @contextmanager
    def answer_is_lost() -> Generator[None]:
        with whole():
            yield
        raise StoreError("the connection is lost")

    @contextmanager
    def nobody_answers() -> Generator[None]:
        raise StoreError("nobody is there")
        yield

    batch = entries(5, 2)
    for outcome in (answer_is_lost, nobody_answers):
        monkeypatch.setattr(made.store, "transaction", outcome)
        with pytest.raises(StoreError):
            made.append(batch)
    monkeypatch.setattr(made.store, "transaction", whole)
    made.append(batch)
    made.append(entries(1, 7))
    made.store.close()
    assert [row.name for row in rows(tmp_path)][1:] == [f"fs__tool_{n}" for n in range(1, 8)]
    assert audit(tmp_path).ok


def test_a_second_place_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "journal.head").mkdir()
    written(tmp_path, 3).store.close()
    assert len(rows(tmp_path)) == 4


def test_calls_that_were_lost_with_a_process_are_told_by_the_next(tmp_path: Path) -> None:
    made = written(tmp_path, 1)
    calls = '[{"id":"c9","name":"fs__slow"}]'
    made.append((), msgspec.structs.replace(PRESENCE, in_flight=2, calls=calls, at=1003.0))
    made.store.close()  # and no word more
    other = ledger(tmp_path)
    other.begin(msgspec.structs.replace(PRESENCE, id="f" * 32), 2000.0)
    other.store.close()
    found = rows(tmp_path)
    assert kinds(found) == ["started", "call", "lost", "started"]
    said = from_raw(found[2].body.encode(), dict[str, object])
    assert said["in_flight"] == 2
    assert said["calls"] == [{"id": "c9", "name": "fs__slow"}]
    assert said["seen"] == 1003.0
    assert "2 calls were in flight" in audit(tmp_path).notes[0]


def test_what_was_cut_off_is_told_and_not_covered_up(tmp_path: Path) -> None:
    written(tmp_path, 20).store.close()
    meddle(tmp_path, "DELETE FROM record WHERE seq > 15")
    other = ledger(tmp_path)
    other.begin(PRESENCE, 2000.0)
    other.append(entries(2, 50))
    other.store.close()
    found = rows(tmp_path)
    assert [row.seq for row in found[-4:]] == [22, 23, 24, 25]
    assert kinds(found[-4:]) == ["missing", "started", "call", "call"]
    (finding,) = audit(tmp_path).findings
    assert (finding.what, finding.first, finding.last) == ("missing", 16, 21)


def test_a_journal_that_replaces_another_says_so(tmp_path: Path) -> None:
    written(tmp_path, 20).store.close()
    (tmp_path / "journal.db").unlink()
    written(tmp_path, 1).store.close()
    assert kinds(rows(tmp_path)) == ["missing", "started", "call"]
    (finding,) = audit(tmp_path).findings
    assert finding.what == "replaced"
    assert "of 21 records" in finding.text


def test_what_is_too_old_goes_and_the_rest_is_whole(tmp_path: Path) -> None:
    made = written(tmp_path, 100)
    assert made.prune(Retention(keep_days=1, max_mb=None), 1000.0 + 86400 + 50.5) == 51
    assert made.prune(Retention(keep_days=1, max_mb=None), 1000.0 + 86400 + 50.5) == 0
    found = rows(tmp_path)
    assert [row.name for row in found][:2] == ["fs__tool_51", "fs__tool_52"]
    assert found[-1].kind == "pruned"
    assert audit(tmp_path).ok
    made.append(entries(3, 200))
    assert made.prune(Retention(keep_days=1, max_mb=None), 1e9) > 0
    made.append(entries(3, 300))
    made.store.close()
    assert audit(tmp_path).ok, audit(tmp_path).findings


def test_what_is_too_much_goes_oldest_first(tmp_path: Path) -> None:
    made = written(tmp_path, 3000)
    assert made.store.extent().size > 1024 * 1024
    while made.prune(Retention(keep_days=None, max_mb=1.0), 1000.0):
        pass
    assert made.store.extent().size <= 1024 * 1024
    assert rows(tmp_path)[-2].name == "fs__tool_3000"
    made.store.close()
    assert audit(tmp_path).ok


def test_an_empty_journal_has_nothing_to_lose(tmp_path: Path) -> None:
    made = ledger(tmp_path)
    made.store.open()
    assert made.prune(Retention(), 1e9) == 0
    made.store.close()


def test_a_journal_is_opened_again(tmp_path: Path) -> None:
    made = written(tmp_path, 1)
    made.store.close()
    made.reopen(PRESENCE)
    made.append(entries(1, 2))
    made.store.close()
    assert audit(tmp_path).ok


def test_a_journal_that_was_lost_meanwhile_is_missed_when_it_is_opened_again(
    tmp_path: Path,
) -> None:
    made = written(tmp_path, 20)
    (tmp_path / "journal.db").unlink()
    batch = entries(2, 21)
    with pytest.raises(StoreError, match="removed, or replaced"):
        made.append(batch)
    made.store.close()
    made.reopen(PRESENCE)
    made.append(batch)
    made.end(PRESENCE, 1200.0)
    assert kinds(rows(tmp_path)) == ["missing", "call", "call", "stopped"]
    (finding,) = audit(tmp_path).findings
    assert (finding.what, "of 21 records" in finding.text) == ("replaced", True)


def test_a_journal_that_was_lost_with_its_second_place_is_missed_as_well(tmp_path: Path) -> None:
    made = written(tmp_path, 20)
    for path in tmp_path.iterdir():
        path.unlink()
    made.store.close()
    made.reopen(PRESENCE)
    made.end(PRESENCE, 1200.0)
    assert kinds(rows(tmp_path)) == ["missing", "stopped"]


def test_a_journal_that_was_put_back_from_a_copy_is_missed_in_part(tmp_path: Path) -> None:
    made = written(tmp_path, 5)
    made.store.close()
    copy = (tmp_path / "journal.db").read_bytes()
    made.reopen(PRESENCE)
    made.append(entries(10, 6))
    made.store.close()
    (tmp_path / "journal.db").write_bytes(copy)
    made.reopen(PRESENCE)
    made.append(entries(1, 16))
    made.store.close()
    assert kinds(rows(tmp_path)[-2:]) == ["missing", "call"]
    (finding,) = audit(tmp_path).findings
    assert (finding.what, finding.first, finding.last) == ("missing", 7, 16)


def test_what_was_written_after_all_is_not_written_again_beside_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(tmp_path, 5)
    whole, batch = made.store.transaction, entries(2, 6)

    @contextmanager
    def answer_is_lost() -> Generator[None]:
        with whole():
            yield
        raise StoreError("the connection is lost")

    monkeypatch.setattr(made.store, "transaction", answer_is_lost)
    with pytest.raises(StoreError):
        made.append(batch)
    monkeypatch.setattr(made.store, "transaction", whole)
    made.store.close()
    head = HeadFile(tmp_path / "journal.head")
    noted = head.read()
    assert noted is not None
    head.write(msgspec.structs.replace(noted, seq=100))
    made.reopen(PRESENCE)
    made.append(batch)
    made.store.close()
    assert kinds(rows(tmp_path)) == ["started", *["call"] * 7, "missing"]


@pytest.mark.parametrize("sheets_first", [True, False])
def test_of_sheets_and_single_calls_a_tenth_is_pruned_in_either_order(
    tmp_path: Path, sheets_first: bool
) -> None:
    made = written(tmp_path, 1)
    many = [sheet for n in range(60) for sheet in sheets(100, 100 * n + 1, name="fs__x")]
    alone = entries(1500)
    made.append([*many, *alone] if sheets_first else [*alone, *many])
    size = made.store.extent().size
    limit = size / 1.01
    while made.prune(Retention(keep_days=None, max_mb=limit / 1024 / 1024), 5000.0):
        pass
    assert 0.8 * limit < made.store.extent().size <= limit
    made.store.close()
    assert audit(tmp_path).ok
