"""Whether a journal is whole: whatever was done to it is found, and where."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.samples import audit, meddle, rows, written
from trunkline.journal.audit import Auditor
from trunkline.journal.chain import Head, beginning, follow
from trunkline.journal.ledger import Retention
from trunkline.journal.store import Row

CHAIN = "abc"
SWAP = (
    "UPDATE record SET seq = -1 WHERE seq = 5",
    "UPDATE record SET seq = 5 WHERE seq = 6",
    "UPDATE record SET seq = 6 WHERE seq = -1",
)
SWAP_BODIES = (
    "CREATE TABLE t AS SELECT seq, body FROM record WHERE seq IN (5, 6)",
    "UPDATE record SET body = (SELECT t.body FROM t WHERE t.seq = 11 - record.seq) "
    "WHERE seq IN (5, 6)",
    "DROP TABLE t",
)
RENUMBER = (
    "DELETE FROM record WHERE seq = 5",
    "UPDATE record SET seq = -seq WHERE seq > 5",
    "UPDATE record SET seq = -seq - 1 WHERE seq < 0",
)


def made(count: int) -> list[Row]:
    found: list[Row] = []
    before = beginning(CHAIN).hash
    for seq in range(1, count + 1):
        body = f'{{"kind":"call","at":{seq}.0,"name":"t{seq}"}}'
        before = follow(before, body.encode())
        found.append(Row(seq, float(seq), "call", f"t{seq}", "", "", "", before, body))
    return found


def judged(found: list[Row], end: int) -> list[tuple[str, int, int]]:
    audit = Auditor(Head(CHAIN, end, b"")).walk(found)
    return [(each.what, each.first, each.last) for each in audit.findings]


@pytest.mark.holds("I8.1")
@pytest.mark.parametrize(
    ("statements", "found"),
    [
        ((), []),
        (("UPDATE record SET body = upper(body) WHERE seq = 7",), [("altered", 7, 7)]),
        (("UPDATE record SET subject = 'bob' WHERE seq = 7",), [("altered", 7, 7)]),
        (("UPDATE record SET at = 5 WHERE seq = 7",), [("altered", 7, 7)]),
        (("DELETE FROM record WHERE seq = 7",), [("missing", 7, 7)]),
        (("DELETE FROM record WHERE seq BETWEEN 3 AND 9",), [("missing", 3, 9)]),
        (("DELETE FROM record WHERE seq <= 3",), [("missing", 1, 3)]),
        (("DELETE FROM record WHERE seq > 9",), [("missing", 10, 12)]),
        (("DELETE FROM record WHERE seq > 9", "UPDATE chain SET seq = 9"), [("missing", 10, 12)]),
        (("DELETE FROM record",), [("missing", 1, 12)]),
        (SWAP, [("moved", 5, 5), ("moved", 6, 6), ("moved", 7, 7)]),
        (SWAP_BODIES, [("moved", 5, 5), ("moved", 6, 6)]),
        (("UPDATE record SET hash = x'00' WHERE seq = 7",), [("altered", 7, 7), ("altered", 8, 8)]),
    ],
)  # fmt: skip
def test_what_was_done_to_a_journal_is_found_with_its_place(
    tmp_path: Path, statements: tuple[str, ...], found: list[tuple[str, int, int]]
) -> None:
    written(tmp_path, 11).store.close()
    meddle(tmp_path, *statements)
    audited = audit(tmp_path)
    assert [(each.what, each.first, each.last) for each in audited.findings] == found
    assert audited.ok == (not found)
    for each in audited.findings:
        assert str(each.first) in each.text


@pytest.mark.parametrize(
    "change",
    [
        "hash = 'text'",
        "at = 'x'",
        "body = x'ff'",
        "body = CAST(x'7bff' AS TEXT)",
        "name = x'00ff'",
        """body = '{"kind":"pruned","at":1,"last":"x","hash":"no"}', kind = 'pruned'""",
        """body = '{"kind":"dropped","at":1,"since":"x"}', kind = 'dropped'""",
        """body = '{"kind":"missing","at":1,"first":[]}', kind = 'missing'""",
        """body = '{"kind":"missing","at":1,"first":1e99,"last":null}', kind = 'missing'""",
    ],
)
def test_whatever_is_in_a_record_the_walk_goes_on(tmp_path: Path, change: str) -> None:
    written(tmp_path, 11).store.close()
    meddle(tmp_path, f"UPDATE record SET {change} WHERE seq = 7", "DELETE FROM record WHERE seq=11")
    found = [(each.what, each.first) for each in audit(tmp_path).findings]
    assert ("altered", 7) in found
    assert ("missing", 11) in found


def chained(*bodies: str, start: int = 1) -> list[Row]:
    """Return records that follow each other, whatever they say."""
    found: list[Row] = []
    before = beginning(CHAIN).hash
    for seq, body in enumerate(bodies, start):
        kind = json.loads(body)["kind"]
        before = follow(before, body.encode())
        found.append(Row(seq, 1.0, kind, "", "", "", "", before, body))
    return found


def test_what_was_pruned_by_a_record_without_a_good_hash_is_found() -> None:
    pruned = '{"kind":"pruned","at":1.0,"last":4,"hash":"no hash"}'
    assert judged(chained('{"kind":"call","at":1.0}', pruned, start=5), 6) == [("altered", 5, 5)]


def forge(folder: Path, last: int, digest: str) -> None:
    """Wipe a journal, and have it say that all of it was pruned."""
    body = json.dumps({"kind": "pruned", "at": 1.0, "first": 1, "last": last, "hash": digest})
    after = follow(bytes.fromhex(digest), body.encode()).hex()
    meddle(
        folder,
        "DELETE FROM record",
        f"INSERT INTO record VALUES ({last + 1}, 1.0, 'pruned', '', '', '', '', x'{after}', "
        f"'{body}')",
        f"UPDATE chain SET seq = {last + 1}, hash = x'{after}'",
    )


@pytest.mark.holds("I8.1")
@pytest.mark.parametrize(
    ("last", "found"), [(12, [("altered", 12, 12)]), (15, [("unconfirmed", 12, 12)])]
)
def test_a_prune_that_nobody_made_is_found_by_the_end_that_was_noted(
    tmp_path: Path, last: int, found: list[tuple[str, int, int]]
) -> None:
    written(tmp_path, 11).store.close()
    forge(tmp_path, last, "11" * 32)
    audited = audit(tmp_path)
    assert [(each.what, each.first, each.last) for each in audited.findings] == found


def test_a_gateway_that_ends_right_after_it_pruned_all_leaves_a_journal_that_is_whole(
    tmp_path: Path,
) -> None:
    made = written(tmp_path, 11)
    noted = (tmp_path / "journal.head").read_bytes()
    assert made.prune(Retention(keep_days=1, max_mb=None), 1e9) == 12
    made.store.close()
    assert audit(tmp_path).ok
    (tmp_path / "journal.head").write_bytes(noted)
    audited = audit(tmp_path)
    assert audited.ok, audited.findings
    assert audited.notes == [
        "all up to record 12 was pruned: record 13 (pruned, 1000000000.0) says so"
    ]


def test_the_end_of_another_journal_is_not_looked_for_in_this_one() -> None:
    pruned = '{"kind":"pruned","at":1.0,"last":4,"hash":"no hash"}'
    found = Auditor(Head(CHAIN, 6, b""), [Head("another", 2, b"x")]).walk(
        chained('{"kind":"call","at":1.0}', pruned, start=5)
    )
    assert [each.what for each in found.findings] == ["replaced", "altered"]


def test_what_is_told_is_bounded_and_the_rest_is_counted() -> None:
    dropped = ['{"kind":"dropped","at":1.0,"count":2}'] * 150
    found = Auditor(Head(CHAIN, 150, b"")).walk(chained(*dropped))
    assert found.ok
    assert (len(found.notes), found.notes[-1]) == (101, "and 50 more such notes")
    altered = [row._replace(name="other") for row in made(150)]
    found = Auditor(Head(CHAIN, 150, b"")).walk(altered)
    assert (len(found.findings), found.more, found.ok) == (100, 50, False)


def test_a_record_that_was_taken_out_and_all_others_moved_up_is_found(tmp_path: Path) -> None:
    written(tmp_path, 11).store.close()
    meddle(tmp_path, *RENUMBER)
    found = audit(tmp_path).findings
    assert ("altered", 5) in [(each.what, each.first) for each in found]
    assert ("missing", 12) in [(each.what, each.first) for each in found]


def test_a_chain_that_was_written_anew_is_found_by_its_end_elsewhere() -> None:
    rows = made(10)
    noted = Head("", 6, rows[5].hash)
    rewritten = made(5) + [row._replace(hash=b"x" * 32) for row in rows[5:6]]
    found = Auditor(Head(CHAIN, 6, b""), [noted]).walk(rewritten).findings
    assert "record 6" in found[0].text
    assert Auditor(Head(CHAIN, 10, b""), [noted]).walk(rows).ok
    other = Auditor(Head(CHAIN, 10, b""), [Head("another", 3, b"x")]).walk(rows)
    assert [each.what for each in other.findings] == ["replaced"]


def test_a_body_that_is_no_json_is_found() -> None:
    rows = made(3)
    assert judged([*rows[:2], rows[2]._replace(body="{", kind="started")], 3) == [("altered", 3, 3)]


def test_very_much_is_told_shortly() -> None:
    audited = Auditor(Head(CHAIN, 500, b"")).walk(
        [row._replace(body=row.body.replace("t", "u")) for row in made(500)]
    )
    assert (len(audited.findings), audited.more) == (100, 400)


def test_nothing_is_whole() -> None:
    audited = Auditor(Head(CHAIN, 0, b"")).walk([])
    assert (audited.ok, audited.records, audited.end) == (True, 0, "")


@given(st.integers(3, 40), st.data())
def test_whatever_single_record_is_touched_it_is_found(count: int, data: st.DataObject) -> None:
    rows = made(count)
    assert judged(rows, count) == []
    place = data.draw(st.integers(0, count - 1))
    how = data.draw(st.sampled_from(["altered", "missing"]))
    row = rows[place]
    if how == "altered":
        rows[place] = row._replace(body=row.body + " ")
    else:
        del rows[place]
    assert judged(rows, count) == [(how, row.seq, row.seq)]


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(st.permutations(range(12)).filter(lambda order: order != sorted(order)))
def test_whatever_order_is_not_the_one_of_old_is_found(order: list[int]) -> None:
    rows = made(12)
    shuffled = [rows[n]._replace(seq=seq) for seq, n in enumerate(order, 1)]
    assert judged(shuffled, 12)


def test_what_could_not_be_written_is_a_note(tmp_path: Path) -> None:
    ledger = written(tmp_path, 1)
    note = ledger.scribe.note(5.0, "dropped", count=12, since=3.0, until=4.0)
    ledger.append([note])
    ledger.store.close()
    audited = audit(tmp_path)
    assert audited.ok
    assert audited.notes == ["12 events were not recorded between 3.0 and 4.0: the queue was full"]
    assert len(rows(tmp_path)) == 3
