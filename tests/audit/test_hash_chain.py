"""The hash chain in a store that several gateways extend, and its tip file."""

import multiprocessing
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.audit.samples import (
    HEARTBEAT,
    make_batches,
    make_call,
    make_chain,
    make_encoder,
    make_entries,
    row_kinds,
    stored_rows,
    tamper,
    verify_chain,
    write_chain,
)
from tests.tasks import HANG_TIMEOUT
from trunkline.audit.hash_chain import Retention, TipFile
from trunkline.audit.store import ChainTip, StoreError
from trunkline.jsonrpc import from_raw


def test_written_and_closed_log_is_intact(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 120)
    made.close(HEARTBEAT, 1200.0)
    found = stored_rows(tmp_path)
    assert row_kinds(found) == ["started", *["call"] * 120, "stopped"]
    assert verify_chain(tmp_path).ok
    noted = TipFile(tmp_path / "audit.tip").read()
    assert noted is not None
    assert (noted.seq, noted.hash) == (122, found[-1].hash)


def _write(folder: Path, number: int) -> None:
    made = make_chain(folder, busy_timeout=20.0)
    made.open(msgspec.structs.replace(HEARTBEAT, id=f"{number:032}"), 1000.0)
    for batch in range(10):
        made.append(make_entries(20, 1000 * number + 20 * batch))
    made.store.close()


def test_many_processes_write_one_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, n)) for n in range(1, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(HANG_TIMEOUT)
        assert writer.exitcode == 0
    found = verify_chain(tmp_path)
    assert found.ok, found.findings
    calls = [row for row in stored_rows(tmp_path) if row.kind == "call"]
    assert len({row.name for row in calls}) == len(calls) == 600


def test_committed_entries_are_not_written_again_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write_chain(tmp_path, 1)
    whole = made.store.transaction

    @contextmanager
    def answer_is_lost() -> Generator[None]:
        with whole():
            yield
        raise StoreError("the connection is lost")

    @contextmanager
    def no_answer() -> Generator[None]:
        raise StoreError("nobody is there")
        yield

    batch = make_entries(5, 2)
    for outcome in (answer_is_lost, no_answer):
        monkeypatch.setattr(made.store, "transaction", outcome)
        with pytest.raises(StoreError):
            made.append(batch)
    monkeypatch.setattr(made.store, "transaction", whole)
    made.append(batch)
    made.append(make_entries(1, 7))
    made.store.close()
    assert [row.name for row in stored_rows(tmp_path)][1:] == [f"fs__tool_{n}" for n in range(1, 8)]
    assert verify_chain(tmp_path).ok


def test_unwritable_tip_file_does_not_stop_the_log(tmp_path: Path) -> None:
    (tmp_path / "audit.tip").mkdir()
    write_chain(tmp_path, 3).store.close()
    assert len(stored_rows(tmp_path)) == 4


def test_calls_lost_with_a_process_are_recorded_by_the_next(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 1)
    calls = '[{"id":"c9","name":"fs__slow"}]'
    made.append((), msgspec.structs.replace(HEARTBEAT, in_flight=2, calls=calls, at=1003.0))
    made.store.close()  # without a `stopped` record
    other = make_chain(tmp_path)
    other.open(msgspec.structs.replace(HEARTBEAT, id="f" * 32), 2000.0)
    other.store.close()
    found = stored_rows(tmp_path)
    assert row_kinds(found) == ["started", "call", "lost", "started"]
    fields = from_raw(found[2].body.encode(), dict[str, object])
    assert fields["in_flight"] == 2
    assert fields["calls"] == [{"id": "c9", "name": "fs__slow"}]
    assert fields["seen"] == 1003.0
    assert "2 calls were in flight" in verify_chain(tmp_path).notes[0]


def test_truncated_records_are_noted_and_not_covered_up(tmp_path: Path) -> None:
    write_chain(tmp_path, 20).store.close()
    tamper(tmp_path, "DELETE FROM record WHERE seq > 15")
    other = make_chain(tmp_path)
    other.open(HEARTBEAT, 2000.0)
    other.append(make_entries(2, 50))
    other.store.close()
    found = stored_rows(tmp_path)
    assert [row.seq for row in found[-4:]] == [22, 23, 24, 25]
    assert row_kinds(found[-4:]) == ["missing", "started", "call", "call"]
    (finding,) = verify_chain(tmp_path).findings
    assert (finding.kind, finding.first, finding.last) == ("missing", 16, 21)


def test_log_that_replaces_another_notes_it(tmp_path: Path) -> None:
    write_chain(tmp_path, 20).store.close()
    (tmp_path / "audit.db").unlink()
    write_chain(tmp_path, 1).store.close()
    assert row_kinds(stored_rows(tmp_path)) == ["missing", "started", "call"]
    (finding,) = verify_chain(tmp_path).findings
    assert finding.kind == "replaced"
    assert "of 21 records" in finding.text


def test_old_records_are_pruned_and_the_rest_is_intact(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 100)
    assert made.prune(Retention(keep_days=1, max_mib=None), 1000.0 + 86400 + 50.5) == 51
    assert made.prune(Retention(keep_days=1, max_mib=None), 1000.0 + 86400 + 50.5) == 0
    found = stored_rows(tmp_path)
    assert [row.name for row in found][:2] == ["fs__tool_51", "fs__tool_52"]
    assert found[-1].kind == "pruned"
    assert verify_chain(tmp_path).ok
    made.append(make_entries(3, 200))
    assert made.prune(Retention(keep_days=1, max_mib=None), 1e9) > 0
    made.append(make_entries(3, 300))
    made.store.close()
    assert verify_chain(tmp_path).ok, verify_chain(tmp_path).findings


def test_excess_records_are_pruned_oldest_first(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 3000)
    assert made.store.measure().size > 1024 * 1024
    while made.prune(Retention(None, 1.0, min_days=0), 1000.0):
        pass
    assert made.store.measure().size <= 1024 * 1024
    assert stored_rows(tmp_path)[-2].name == "fs__tool_3000"
    made.store.close()
    assert verify_chain(tmp_path).ok


def test_pruning_an_empty_log_does_nothing(tmp_path: Path) -> None:
    made = make_chain(tmp_path)
    made.store.open()
    assert made.prune(Retention(), 1e9) == 0
    made.store.close()


def test_log_is_opened_again(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 1)
    made.store.close()
    made.reopen(HEARTBEAT)
    made.append(make_entries(1, 2))
    made.store.close()
    assert verify_chain(tmp_path).ok


def test_records_lost_meanwhile_are_noted_when_the_log_is_reopened(
    tmp_path: Path,
) -> None:
    made = write_chain(tmp_path, 20)
    (tmp_path / "audit.db").unlink()
    batch = make_entries(2, 21)
    with pytest.raises(StoreError, match="removed, or replaced"):
        made.append(batch)
    made.store.close()
    made.reopen(HEARTBEAT)
    made.append(batch)
    made.close(HEARTBEAT, 1200.0)
    assert row_kinds(stored_rows(tmp_path)) == ["missing", "call", "call", "stopped"]
    (finding,) = verify_chain(tmp_path).findings
    assert (finding.kind, "of 21 records" in finding.text) == ("replaced", True)


def test_log_lost_together_with_its_tip_file_is_noted(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 20)
    for path in tmp_path.iterdir():
        path.unlink()
    made.store.close()
    made.reopen(HEARTBEAT)
    made.close(HEARTBEAT, 1200.0)
    assert row_kinds(stored_rows(tmp_path)) == ["missing", "stopped"]


def test_log_restored_from_a_copy_is_noted_as_partly_missing(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 5)
    made.store.close()
    copy = (tmp_path / "audit.db").read_bytes()
    made.reopen(HEARTBEAT)
    made.append(make_entries(10, 6))
    made.store.close()
    (tmp_path / "audit.db").write_bytes(copy)
    made.reopen(HEARTBEAT)
    made.append(make_entries(1, 16))
    made.store.close()
    assert row_kinds(stored_rows(tmp_path)[-2:]) == ["missing", "call"]
    (finding,) = verify_chain(tmp_path).findings
    assert (finding.kind, finding.first, finding.last) == ("missing", 7, 16)


def test_committed_entries_are_not_repeated_when_others_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write_chain(tmp_path, 5)
    whole, batch = made.store.transaction, make_entries(2, 6)

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
    head = TipFile(tmp_path / "audit.tip")
    noted = head.read()
    assert noted is not None
    head.write(msgspec.structs.replace(noted, seq=100))
    made.reopen(HEARTBEAT)
    made.append(batch)
    made.store.close()
    assert row_kinds(stored_rows(tmp_path)) == ["started", *["call"] * 7, "missing"]


@pytest.mark.parametrize("batches_first", [True, False])
def test_a_tenth_is_pruned_of_batches_and_single_calls_in_either_order(
    tmp_path: Path, batches_first: bool
) -> None:
    made = write_chain(tmp_path, 1)
    many = [batch for n in range(60) for batch in make_batches(100, 100 * n + 1, name="fs__x")]
    alone = make_entries(1500)
    made.append([*many, *alone] if batches_first else [*alone, *many])
    size = made.store.measure().size
    limit = size / 1.01
    while made.prune(Retention(None, limit / 1024 / 1024, min_days=0), 5000.0):
        pass
    assert 0.8 * limit < made.store.measure().size <= limit
    made.store.close()
    assert verify_chain(tmp_path).ok


def test_a_flood_of_young_records_removes_no_record(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 6000)
    size, newest = made.store.measure().size, 1000.0 + 6000
    retention = Retention(max_mib=1.0, min_days=7)
    assert made.prune(retention, newest) == 0
    assert made.excess_bytes == size - 1024 * 1024 > 0
    assert len(stored_rows(tmp_path)) == 6001
    made.store.close()


def test_size_removes_only_records_that_are_old_enough(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 3000)
    at = 1000.0 + 7 * 86400 + 500  # the first 500 records are older than 7 days
    retention = Retention(max_mib=0.1, min_days=7)
    while made.prune(retention, at):
        pass
    assert next(row.name for row in stored_rows(tmp_path)) == "fs__tool_500"
    assert made.excess_bytes > 0
    made.store.close()
    assert verify_chain(tmp_path).ok


def test_records_of_any_age_are_kept_while_the_log_is_small_enough(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 100)
    assert made.prune(Retention(keep_days=None, min_days=7), 1e9) == 0
    assert made.excess_bytes == 0
    made.store.close()


def test_long_names_are_counted_so_that_no_more_is_pruned_than_needed(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 1)
    encoder = make_encoder()
    calls = (make_call(id=f"c{n}", at=1000.0, name="n" * 500, arguments=None) for n in range(4000))
    made.append([encoder.encode_call(each) for each in calls])
    limit = made.store.measure().size / 1.01
    while made.prune(Retention(None, limit / 1024 / 1024, min_days=0), 5000.0):
        pass
    assert 0.87 * limit < made.store.measure().size <= 0.92 * limit
    made.store.close()


TIP = ChainTip("abc", 12, bytes(range(32)))


def test_the_noted_tip_is_read_back_and_private_to_its_owner(tmp_path: Path) -> None:
    file = TipFile(tmp_path / "new" / "audit.tip")
    assert file.read() is None
    file.write(ChainTip("a-longer-name-of-a-chain", 10**18, bytes(32)))
    file.write(TIP)
    assert file.read() == TIP
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"a 1 zz", b"a x " + b"00" * 32, b"a 1 00", b"\xff"]
)
def test_invalid_tip_file_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "head").write_bytes(content)
    assert TipFile(tmp_path / "head").read() is None


def test_write_failure_raises_os_error(tmp_path: Path) -> None:
    TipFile(tmp_path / "file").write(TIP)
    with pytest.raises(OSError, match="file"):
        TipFile(tmp_path / "file" / "audit.tip").write(TIP)
