"""Verification finds every kind of tampering, and where it happened."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.audit.samples import stored_rows, tamper, verify_chain, write_chain
from trunkline.audit.hash_chain import Retention
from trunkline.audit.store import AuditRow, ChainTip, empty_tip, next_hash
from trunkline.audit.verification import ChainVerifier

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


def make_rows(count: int) -> list[AuditRow]:
    found: list[AuditRow] = []
    previous = empty_tip(CHAIN).hash
    for seq in range(1, count + 1):
        body = f'{{"kind":"call","at":{seq}.0,"name":"t{seq}"}}'
        previous = next_hash(previous, body.encode())
        found.append(AuditRow(seq, float(seq), "call", f"t{seq}", "", "", "", previous, body))
    return found


def find(found: list[AuditRow], end: int) -> list[tuple[str, int, int]]:
    audit = ChainVerifier(ChainTip(CHAIN, end, b"")).verify(found)
    return [(each.kind, each.first, each.last) for each in audit.findings]


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
def test_tampering_is_found_at_its_record(
    tmp_path: Path, statements: tuple[str, ...], found: list[tuple[str, int, int]]
) -> None:
    write_chain(tmp_path, 11).store.close()
    tamper(tmp_path, *statements)
    report = verify_chain(tmp_path)
    assert [(each.kind, each.first, each.last) for each in report.findings] == found
    assert report.ok == (not found)
    for each in report.findings:
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
def test_verification_continues_whatever_a_record_contains(tmp_path: Path, change: str) -> None:
    write_chain(tmp_path, 11).store.close()
    tamper(tmp_path, f"UPDATE record SET {change} WHERE seq = 7", "DELETE FROM record WHERE seq=11")
    found = [(each.kind, each.first) for each in verify_chain(tmp_path).findings]
    assert ("altered", 7) in found
    assert ("missing", 11) in found


def chained(*bodies: str, start: int = 1) -> list[AuditRow]:
    """Return linked records with the given bodies."""
    found: list[AuditRow] = []
    previous = empty_tip(CHAIN).hash
    for seq, body in enumerate(bodies, start):
        kind = json.loads(body)["kind"]
        previous = next_hash(previous, body.encode())
        found.append(AuditRow(seq, 1.0, kind, "", "", "", "", previous, body))
    return found


def test_prune_note_with_a_wrong_hash_is_found() -> None:
    pruned = '{"kind":"pruned","at":1.0,"last":4,"hash":"no hash"}'
    assert find(chained('{"kind":"call","at":1.0}', pruned, start=5), 6) == [("altered", 5, 5)]


def forge(folder: Path, last: int, digest: str) -> None:
    """Delete all records, and insert a note that they were pruned."""
    body = json.dumps({"kind": "pruned", "at": 1.0, "first": 1, "last": last, "hash": digest})
    after = next_hash(bytes.fromhex(digest), body.encode()).hex()
    tamper(
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
def test_forged_prune_note_is_found_by_the_noted_tip(
    tmp_path: Path, last: int, found: list[tuple[str, int, int]]
) -> None:
    write_chain(tmp_path, 11).store.close()
    forge(tmp_path, last, "11" * 32)
    report = verify_chain(tmp_path)
    assert [(each.kind, each.first, each.last) for each in report.findings] == found


def test_log_is_intact_when_the_gateway_ends_right_after_pruning_all(
    tmp_path: Path,
) -> None:
    made = write_chain(tmp_path, 11)
    noted = (tmp_path / "audit.tip").read_bytes()
    assert made.prune(Retention(keep_days=1, max_mib=None), 1e9) == 12
    made.store.close()
    assert verify_chain(tmp_path).ok
    (tmp_path / "audit.tip").write_bytes(noted)
    report = verify_chain(tmp_path)
    assert report.ok, report.findings
    assert report.notes == ["records up to 12 were pruned: see record 13 (pruned, 1000000000.0)"]


def test_tip_of_another_log_is_not_expected_in_this_one() -> None:
    pruned = '{"kind":"pruned","at":1.0,"last":4,"hash":"no hash"}'
    found = ChainVerifier(ChainTip(CHAIN, 6, b""), [ChainTip("another", 2, b"x")]).verify(
        chained('{"kind":"call","at":1.0}', pruned, start=5)
    )
    assert [each.kind for each in found.findings] == ["replaced", "altered"]


def test_findings_and_notes_are_bounded_and_the_rest_is_counted() -> None:
    dropped = ['{"kind":"dropped","at":1.0,"count":2}'] * 150
    found = ChainVerifier(ChainTip(CHAIN, 150, b"")).verify(chained(*dropped))
    assert found.ok
    assert (len(found.notes), found.notes[-1]) == (101, "and 50 more such notes")
    altered = [row._replace(name="other") for row in make_rows(150)]
    found = ChainVerifier(ChainTip(CHAIN, 150, b"")).verify(altered)
    assert (len(found.findings), found.omitted, found.ok) == (100, 50, False)


def test_removed_record_is_found_even_if_all_later_ones_are_renumbered(tmp_path: Path) -> None:
    write_chain(tmp_path, 11).store.close()
    tamper(tmp_path, *RENUMBER)
    found = verify_chain(tmp_path).findings
    assert ("altered", 5) in [(each.kind, each.first) for each in found]
    assert ("missing", 12) in [(each.kind, each.first) for each in found]


def test_rewritten_chain_is_found_by_the_noted_tip() -> None:
    rows = make_rows(10)
    noted = ChainTip("", 6, rows[5].hash)
    rewritten = make_rows(5) + [row._replace(hash=b"x" * 32) for row in rows[5:6]]
    found = ChainVerifier(ChainTip(CHAIN, 6, b""), [noted]).verify(rewritten).findings
    assert "record 6" in found[0].text
    assert ChainVerifier(ChainTip(CHAIN, 10, b""), [noted]).verify(rows).ok
    other = ChainVerifier(ChainTip(CHAIN, 10, b""), [ChainTip("another", 3, b"x")]).verify(rows)
    assert [each.kind for each in other.findings] == ["replaced"]


def test_body_that_is_not_json_is_found() -> None:
    rows = make_rows(3)
    assert find([*rows[:2], rows[2]._replace(body="{", kind="started")], 3) == [("altered", 3, 3)]


def test_many_findings_are_summarised() -> None:
    report = ChainVerifier(ChainTip(CHAIN, 500, b"")).verify(
        [row._replace(body=row.body.replace("t", "u")) for row in make_rows(500)]
    )
    assert (len(report.findings), report.omitted) == (100, 400)


def test_empty_log_is_intact() -> None:
    report = ChainVerifier(ChainTip(CHAIN, 0, b"")).verify([])
    assert (report.ok, report.records, report.tip) == (True, 0, "")


@given(st.integers(3, 40), st.data())
def test_any_single_altered_or_missing_record_is_found(count: int, data: st.DataObject) -> None:
    rows = make_rows(count)
    assert find(rows, count) == []
    index = data.draw(st.integers(0, count - 1))
    kind = data.draw(st.sampled_from(["altered", "missing"]))
    row = rows[index]
    if kind == "altered":
        rows[index] = row._replace(body=row.body + " ")
    else:
        del rows[index]
    assert find(rows, count) == [(kind, row.seq, row.seq)]


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(st.permutations(range(12)).filter(lambda order: order != sorted(order)))
def test_any_changed_order_is_found(order: list[int]) -> None:
    rows = make_rows(12)
    shuffled = [rows[n]._replace(seq=seq) for seq, n in enumerate(order, 1)]
    assert find(shuffled, 12)


def test_dropped_events_are_a_note(tmp_path: Path) -> None:
    chain = write_chain(tmp_path, 1)
    note = chain.encoder.encode_note(5.0, "dropped", count=12, since=3.0, until=4.0)
    chain.append([note])
    chain.store.close()
    report = verify_chain(tmp_path)
    assert report.ok
    assert report.notes == ["12 events were not recorded between 3.0 and 4.0: the queue was full"]
    assert len(stored_rows(tmp_path)) == 3
