"""Calls that ended together, written down together: the same is read as if each were alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.samples import CALL, audit, call, meddle, rows, scribe, sheets, written
from tests.jsonrpc.test_raw import JSON
from trunkline.gateway.events import STATUSES
from trunkline.journal import sheet as module
from trunkline.journal.ledger import row_of
from trunkline.journal.record import Entry
from trunkline.journal.sheet import Sheets, count, records
from trunkline.journal.store import SHEET, Filter, Row
from trunkline.jsonrpc import Raw
from trunkline.mcp.principal import Principal


def read(entries: list[Entry], wanted: Filter | None = None) -> list[Row]:
    """Return the records that are in entries."""
    found: list[Row] = []
    for seq, entry in enumerate(entries, 1):
        row = row_of(seq, entry, b"hash")
        assert count(row) == entry.records
        found += records(row, wanted)
    return found


def _written(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


_SUBJECTS = st.sampled_from(["ann", "b\0b", 'q"', "ü" * 300, "s\ud800"])
_CALLS: dict[str, st.SearchStrategy[Any]] = {
    "id": st.sampled_from(["c1", "c2"]),
    "at": st.floats(0, 2e9),
    "request_id": st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just("x" * 500)),
    "trace": st.sampled_from([None, "00-aa-bb-01"]),
    "principal": st.builds(
        Principal, _SUBJECTS, _SUBJECTS, st.sampled_from([(), ("dev",), ("é\0", "ops")])
    ),
    "client": st.sampled_from([Raw(b"{}"), Raw(b'{"name":"\\u0000c"}'), Raw(b"[1]")]),
    "method": st.sampled_from(["tools/call", "prompts/get", "resources/read"]),
    "name": st.sampled_from(["fs__a", "fs__b", "db://me:hunter2@h/t", "n" * 600, "\0"]),
    "backend": st.sampled_from(["fs", "git", None]),
    "backend_revision": st.sampled_from([None, "2025-06-18"]),
    "rule": st.sampled_from([None, "policy 3"]),
    "status": st.sampled_from(STATUSES),
    "kind": st.sampled_from([None, "disabled"]),
    "code": st.sampled_from([None, None, -32000]),
    "total": st.floats(0, 9),
    "upstream": st.floats(0, 9),
    "bytes_in": st.integers(0, 9),
    "arguments": st.one_of(
        st.none(),
        JSON.map(_written),
        st.sampled_from([Raw(b"null"), Raw(b'{"a":[1.5]}'), Raw(b'{"token":"x"}'), Raw(b"1e")]),
    ),
}


def _consistent(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts of a call that can be: a refusal has a code."""
    return facts | {"kind": None if facts["code"] is None else facts["kind"]}


@given(st.lists(st.fixed_dictionaries(_CALLS).map(_consistent), min_size=1, max_size=12))
def test_what_is_read_from_a_sheet_is_what_each_call_would_be_alone(
    facts: list[dict[str, Any]],
) -> None:
    writer = Sheets(scribe())
    calls = [call(**each) for each in facts]
    for _ in range(2):
        entries = writer.write(calls)
        assert sum(entry.records for entry in entries) == len(calls)
        assert sum(entry.kind == SHEET for entry in entries) <= 1
        assert all(entry.records > 1 for entry in entries if entry.kind == SHEET)
        found = [(*row[1:7], row.body.encode()) for row in read(entries)]
        expected = [tuple(scribe().call(each)[:7]) for each in calls]
        assert sorted(found) == sorted(expected)


def test_a_call_that_is_alone_is_written_down_alone() -> None:
    (entry,) = Sheets(scribe()).write([call()])
    assert entry == scribe().call(call())


def test_what_did_not_go_well_has_a_row_of_its_own() -> None:
    bad = [call(status=status) for status in STATUSES if status != "success"]
    entries = Sheets(scribe()).write([*bad, call(), call(code=-32000), call()])
    assert [entry.status for entry in entries] == [*(each.status for each in bad), "success", ""]
    assert entries[-1].records == 2
    alone = Sheets(scribe()).write([*bad, call()])
    assert [entry.kind for entry in alone] == ["call"] * len(alone)


def test_what_calls_share_is_written_once_and_their_order_is_kept() -> None:
    (entry,) = sheets(100, name="fs__read")
    assert (entry.kind, entry.records, entry.at) == (SHEET, 100, 1100.0)
    assert entry.body.count(b'"fs__read"') <= 100  # each has an offer of its own here
    assert [json.loads(row.body)["id"] for row in read([entry])] == [f"c{n}" for n in range(1, 101)]
    one = call()
    (entry,) = Sheets(scribe()).write([one] * 100)
    assert entry.body.count(b"fs__read_file") == 1
    assert len(entry.body) < 100 * len(scribe().call(one).body) / 3


def test_no_secret_is_on_a_sheet() -> None:
    (entry,) = sheets(3)
    assert b"hunter2" not in entry.body
    assert entry.body.count(b"[redacted]") == 3


def test_what_cannot_be_on_a_sheet_is_written_down_all_the_same() -> None:
    roles: Any = (3,)
    broken = call(principal=Principal("x", "x", roles))
    entries = Sheets(scribe()).write([call(), broken])
    assert [entry.records for entry in entries] == [1, 1]
    assert [json.loads(entry.body).get("problem") for entry in entries] == [None, "TypeError"]


def test_callers_beyond_counting_and_of_any_size_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_SHARED", 50)
    writer, large = Sheets(scribe()), Raw(b'{"name":"%s"}' % (b"n" * 5000))
    calls = [
        call(
            principal=Principal("x", f"s{number}"),
            client=large if number % 10 == 0 else CALL["client"],
        )
        for number in range(250)
    ]
    for _ in range(2):
        assert [row.subject for row in read(writer.write(calls))] == [f"s{n}" for n in range(250)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), [1, 2, 3, 4]),
        (Filter(tool="fs__*"), [1, 2, 4]),
        (Filter(tool="git__push"), [3]),
        (Filter(subject="b?b"), [2]),
        (Filter(backend="git"), [3]),
        (Filter(statuses=("tool_error", "denied")), []),
        (Filter(statuses=("tool_error", "success"), backend="fs"), [1, 2, 4]),
        (Filter(since=1002.0), [2, 3, 4]),
        (Filter(since=1002.0, until=1004.0, backend="fs"), [2]),
        (Filter(subject="nobody"), []),
    ],
)
def test_of_a_sheet_only_what_is_wanted_is_read(wanted: Filter, found: list[int]) -> None:
    facts: list[dict[str, Any]] = [
        {},
        {"principal": Principal("x", "bob")},
        {"name": "git__push", "backend": "git"},
        {"rule": None},
    ]
    calls = [call(id=str(n), at=1000.0 + n, **each) for n, each in enumerate(facts, 1)]
    rows = read(Sheets(scribe()).write(calls), wanted)
    assert [int(json.loads(row.body)["id"]) for row in rows] == found


@pytest.mark.parametrize(
    "body", ["{", '{"kind":"calls"}', '{"kind":"calls","at":1.0,"shared":[],"calls":[[0,1.0]]}']
)
def test_a_sheet_that_makes_no_sense_is_one_record(body: str) -> None:
    row = Row(1, 1.0, SHEET, "", "", "", "", b"", body)
    assert ([*records(row)], count(row)) == ([row], 1)


def test_lines_that_share_what_is_not_there_are_shown_as_they_are() -> None:
    (entry,) = sheets(3)
    table = json.loads(entry.body)
    for place, value in ((0, 7), (0, -1), (4, 10**400), (1, "x"), (9, "x")):
        changed = [*table["calls"][1]]
        changed[place] = value
        lines = [table["calls"][0], changed]
        row = Row(1, 1.0, SHEET, "", "", "", "", b"", json.dumps(table | {"calls": lines}))
        sensible = place == 9
        assert (count(row), len([*records(row)])) == ((2, 2) if sensible else (1, 1))


def test_what_is_shared_by_very_many_is_not_written_out_for_all_of_them() -> None:
    (entry,) = sheets(2)
    table = json.loads(entry.body)
    table["shared"][0]["client"] = "x" * 1_000_000
    table["calls"] = [table["calls"][0]] * 100_000
    row = Row(1, 1.0, SHEET, "", "", "", "", b"", json.dumps(table))
    for newest in (False, True):  # all of it would be 100 GB
        assert len(next(records(row, None, newest)).body) > 1_000_000


@pytest.mark.holds("I8.1")
def test_a_call_that_was_altered_on_its_sheet_is_found(tmp_path: Path) -> None:
    made = written(tmp_path, 3)
    made.append(sheets(10))
    made.append(sheets(10, 11))
    made.store.close()
    assert (audit(tmp_path).ok, audit(tmp_path).records) == (True, 24)
    assert [row.kind for row in rows(tmp_path)][-2:] == [SHEET, SHEET]
    meddle(tmp_path, "UPDATE record SET body = replace(body, 'alice', 'mallo') WHERE seq = 5")
    (finding,) = audit(tmp_path).findings
    assert (finding.what, finding.first, finding.last) == ("altered", 5, 5)
    assert "10 calls" in finding.text
