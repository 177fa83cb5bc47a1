"""Hashes, process checks and SQL conditions of the audit store."""

import hashlib
import os
import sqlite3
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks import HANG_TIMEOUT
from trunkline.audit import store as process
from trunkline.audit.store import (
    HASH_BYTES,
    ChainTip,
    RecordFilter,
    chain_hashes,
    empty_tip,
    is_running,
    next_hash,
    process_start,
    sql_conditions,
    sql_pattern,
)
from trunkline.routing.naming import matches_pattern


def test_filter_becomes_one_sql_condition() -> None:
    criteria = RecordFilter("fs__*", "alice", "f?", ("denied", "error"), 1.0, 2.0, 7, 9)
    where, values = sql_conditions(criteria, "?", "GLOB")
    assert where == (
        "(name GLOB ? AND subject = ? AND backend GLOB ? AND kind = 'call' "
        "AND status IN (?, ?) AND at < ? OR kind = 'calls') AND at >= ? AND seq > ? AND seq < ?"
    )
    assert values == ["fs__*", "alice", "f?", "denied", "error", 2.0, 1.0, 7, 9]


def test_empty_filter_matches_everything() -> None:
    assert sql_conditions(RecordFilter(), "%s", "LIKE") == ("seq > %s", [0])


@pytest.mark.parametrize(
    ("pattern", "expected"), [("a*b?", "a%b_"), ("50%_*", "50\\%\\_%"), ("a\\*", "a\\\\%")]
)
def test_pattern_for_postgresql(pattern: str, expected: str) -> None:
    assert sql_pattern(pattern, "LIKE") == expected


@given(st.text("ab[]*?%_\\", max_size=6), st.text("ab[]%_\\", max_size=6))
def test_pattern_means_the_same_in_glob_and_like(pattern: str, name: str) -> None:
    database = sqlite3.connect(":memory:")
    try:
        (globbed,) = database.execute(
            "SELECT ? GLOB ?", (name, sql_pattern(pattern, "GLOB"))
        ).fetchone()
    finally:
        database.close()
    assert bool(globbed) == matches_pattern(pattern, name)


def test_the_first_hash_depends_on_the_name_of_the_chain() -> None:
    tip = empty_tip("abc")
    assert tip == ChainTip("abc", 0, hashlib.sha256(b"trunkline audit abc").digest())
    assert empty_tip("abd").hash != tip.hash


def test_a_hash_covers_the_previous_hash_and_the_record() -> None:
    first = next_hash(empty_tip("a").hash, b"{}")
    assert first == hashlib.sha256(empty_tip("a").hash + b"{}").digest()
    assert str(ChainTip("a", 1, first)) == f"1:{first.hex()}"


@given(st.lists(st.binary(max_size=20), min_size=2, max_size=20), st.data())
def test_any_change_changes_all_following_hashes(bodies: list[bytes], data: st.DataObject) -> None:
    start = empty_tip("a").hash
    whole = list(chain_hashes(start, bodies))
    assert all(len(each) == HASH_BYTES for each in whole)
    index = data.draw(st.integers(0, len(bodies) - 1))
    changed = [*bodies[:index], bodies[index] + b"!", *bodies[index + 1 :]]
    other = list(chain_hashes(start, changed))
    assert other[:index] == whole[:index]
    assert not set(other[index:]) & set(whole[index:])


def test_own_process_runs_and_an_ended_one_does_not() -> None:
    assert is_running(os.getpid(), process_start(os.getpid()))
    with subprocess.Popen(["true"]) as child:
        child.wait(HANG_TIMEOUT)
    assert not is_running(child.pid, process_start(child.pid))


def test_zombie_process_is_not_running() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        start = process_start(child.pid)
        assert is_running(child.pid, start)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert process_start(child.pid) == start
        # Without /proc the process id decides, and it is still in use.
        assert is_running(child.pid, start) is (start == "")


def test_without_proc_the_process_id_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(process.Path, "read_text", refuse)
    assert process_start(os.getpid()) == ""
    assert is_running(os.getpid(), "")


def test_process_with_a_reused_id_is_a_different_one() -> None:
    assert not is_running(os.getpid(), "1@long ago")


def test_process_of_another_user_counts_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(process.os, "kill", refuse)
    assert is_running(1, "whenever")
