"""Call batches: records read from them equal those of calls encoded alone."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.samples import (
    CALL_FIELDS,
    make_batches,
    make_call,
    make_encoder,
    make_entries,
    stored_rows,
    tamper,
    verify_chain,
    write_chain,
)
from tests.json_values import JSON
from trunkline.audit.call_batch import (
    CallBatchEncoder,
    newest_records,
    record_count,
    records_in,
    search_records,
)
from trunkline.audit.hash_chain import make_row
from trunkline.audit.records import AuditEntry
from trunkline.audit.store import CALL_BATCH, AuditRow, RecordFilter
from trunkline.gateway.events import STATUSES
from trunkline.jsonrpc import Raw
from trunkline.mcp.identity import Principal
from trunkline.mcp.versions import V2025_06_18


def read(entries: list[AuditEntry], wanted: RecordFilter | None = None) -> list[AuditRow]:
    """Return the records in entries."""
    found: list[AuditRow] = []
    for seq, entry in enumerate(entries, 1):
        row = make_row(seq, entry, b"hash")
        assert record_count(row) == entry.records
        found += records_in(row, wanted)
    return found


def _encoded(value: object) -> Raw:
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
    "backend_revision": st.sampled_from([None, V2025_06_18]),
    "rule": st.sampled_from([None, "policy 3"]),
    "wrapper": st.sampled_from([None, "search__call_tool"]),
    "mismatch": st.sampled_from([None, 'count: value is not of type "integer"']),
    "address": st.sampled_from(["", "192.0.2.1", "2001:db8::1"]),
    "status": st.sampled_from(STATUSES),
    "kind": st.sampled_from([None, "disabled"]),
    "code": st.sampled_from([None, None, -32000]),
    "total": st.floats(0, 9),
    "upstream": st.floats(0, 9),
    "bytes_in": st.integers(0, 9),
    "arguments": st.one_of(
        st.none(),
        JSON.map(_encoded),
        st.sampled_from([Raw(b"null"), Raw(b'{"a":[1.5]}'), Raw(b'{"token":"x"}'), Raw(b"1e")]),
    ),
}


def _consistent(facts: dict[str, Any]) -> dict[str, Any]:
    """Make random call fields consistent: a refusal has a code."""
    return facts | {"kind": None if facts["code"] is None else facts["kind"]}


@given(st.lists(st.fixed_dictionaries(_CALLS).map(_consistent), min_size=1, max_size=12))
def test_records_read_from_a_batch_equal_those_encoded_alone(
    facts: list[dict[str, Any]],
) -> None:
    writer = CallBatchEncoder(make_encoder())
    calls = [make_call(**each) for each in facts]
    for _ in range(2):
        entries = writer.encode_calls(calls)
        assert sum(entry.records for entry in entries) == len(calls)
        assert sum(entry.kind == CALL_BATCH for entry in entries) <= 1
        assert all(entry.records > 1 for entry in entries if entry.kind == CALL_BATCH)
        found = [(*row[1:7], row.body.encode()) for row in read(entries)]
        expected = [tuple(make_encoder().encode_call(each)[:7]) for each in calls]
        assert sorted(found) == sorted(expected)


def test_single_call_is_encoded_alone() -> None:
    (entry,) = CallBatchEncoder(make_encoder()).encode_calls([make_call()])
    assert entry == make_encoder().encode_call(make_call())


def test_unsuccessful_call_has_its_own_row() -> None:
    bad = [make_call(status=status) for status in STATUSES if status != "success"]
    entries = CallBatchEncoder(make_encoder()).encode_calls(
        [*bad, make_call(), make_call(code=-32000), make_call()]
    )
    assert [entry.status for entry in entries] == [*(each.status for each in bad), "success", ""]
    assert entries[-1].records == 2
    alone = CallBatchEncoder(make_encoder()).encode_calls([*bad, make_call()])
    assert [entry.kind for entry in alone] == ["call"] * len(alone)


def test_shared_fields_are_encoded_once_and_order_is_kept() -> None:
    (entry,) = make_batches(100, name="fs__read")
    assert (entry.kind, entry.records, entry.at) == (CALL_BATCH, 100, 1100.0)
    assert entry.body.count(b'"fs__read"') <= 100  # each has a tool of its own here
    assert [json.loads(row.body)["id"] for row in read([entry])] == [f"c{n}" for n in range(1, 101)]
    one = make_call()
    (entry,) = CallBatchEncoder(make_encoder()).encode_calls([one] * 100)
    assert entry.body.count(b"fs__read_file") == 1
    assert len(entry.body) < 100 * len(make_encoder().encode_call(one).body) / 3


def test_batch_contains_no_secret() -> None:
    (entry,) = make_batches(3)
    assert b"hunter2" not in entry.body
    assert entry.body.count(b"[redacted]") == 3


def test_calls_are_encoded_alone_when_a_batch_fails() -> None:
    roles: Any = (3,)
    broken = make_call(principal=Principal("x", "x", roles))
    entries = CallBatchEncoder(make_encoder()).encode_calls([make_call(), broken])
    assert [entry.records for entry in entries] == [1, 1]
    assert [json.loads(entry.body).get("problem") for entry in entries] == [None, "TypeError"]


def test_more_callers_than_the_cache_holds_are_distinguished() -> None:
    writer = CallBatchEncoder(make_encoder(), max_cached=50)
    large = Raw(b'{"name":"%s"}' % (b"n" * 5000))
    calls = [
        make_call(
            principal=Principal("x", f"s{number}"),
            client=large if number % 10 == 0 else CALL_FIELDS["client"],
        )
        for number in range(250)
    ]
    for _ in range(2):
        assert [row.subject for row in read(writer.encode_calls(calls))] == [
            f"s{n}" for n in range(250)
        ]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (RecordFilter(), [1, 2, 3, 4]),
        (RecordFilter(tool="fs__*"), [1, 2, 4]),
        (RecordFilter(tool="git__push"), [3]),
        (RecordFilter(subject="b?b"), [2]),
        (RecordFilter(backend="git"), [3]),
        (RecordFilter(statuses=("tool_error", "denied")), []),
        (RecordFilter(statuses=("tool_error", "success"), backend="fs"), [1, 2, 4]),
        (RecordFilter(since=1002.0), [2, 3, 4]),
        (RecordFilter(since=1002.0, until=1004.0, backend="fs"), [2]),
        (RecordFilter(subject="nobody"), []),
    ],
)
def test_only_matching_records_are_read_from_a_batch(
    wanted: RecordFilter, found: list[int]
) -> None:
    facts: list[dict[str, Any]] = [
        {},
        {"principal": Principal("x", "bob")},
        {"name": "git__push", "backend": "git"},
        {"rule": None},
    ]
    calls = [make_call(id=str(n), at=1000.0 + n, **each) for n, each in enumerate(facts, 1)]
    rows = read(CallBatchEncoder(make_encoder()).encode_calls(calls), wanted)
    assert [int(json.loads(row.body)["id"]) for row in rows] == found


@pytest.mark.parametrize(
    "body", ["{", '{"kind":"calls"}', '{"kind":"calls","at":1.0,"shared":[],"calls":[[0,1.0]]}']
)
def test_undecodable_batch_is_one_record(body: str) -> None:
    row = AuditRow(1, 1.0, CALL_BATCH, "", "", "", "", b"", body)
    assert ([*records_in(row)], record_count(row)) == ([row], 1)


def test_batch_with_a_missing_shared_index_is_shown_unchanged() -> None:
    (entry,) = make_batches(3)
    table = json.loads(entry.body)
    for place, value in ((0, 7), (0, -1), (4, 10**400), (1, "x"), (9, "x")):
        changed = [*table["calls"][1]]
        changed[place] = value
        lines = [table["calls"][0], changed]
        row = AuditRow(
            1, 1.0, CALL_BATCH, "", "", "", "", b"", json.dumps(table | {"calls": lines})
        )
        sensible = place == 9
        assert (record_count(row), len([*records_in(row)])) == ((2, 2) if sensible else (1, 1))


def test_records_of_a_large_batch_are_yielded_one_by_one() -> None:
    (entry,) = make_batches(2)
    table = json.loads(entry.body)
    table["shared"][0]["client"] = "x" * 1_000_000
    table["calls"] = [table["calls"][0]] * 100_000
    row = AuditRow(1, 1.0, CALL_BATCH, "", "", "", "", b"", json.dumps(table))
    for newest in (False, True):  # written out it would be 100 GB
        assert len(next(records_in(row, None, newest)).body) > 1_000_000


@pytest.mark.holds("I8.1")
def test_altered_call_in_a_batch_is_found(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 3)
    made.append(make_batches(10))
    made.append(make_batches(10, 11))
    made.store.close()
    assert (verify_chain(tmp_path).ok, verify_chain(tmp_path).records) == (True, 24)
    assert [row.kind for row in stored_rows(tmp_path)][-2:] == [CALL_BATCH, CALL_BATCH]
    tamper(tmp_path, "UPDATE record SET body = replace(body, 'alice', 'mallo') WHERE seq = 5")
    (finding,) = verify_chain(tmp_path).findings
    assert (finding.kind, finding.first, finding.last) == ("altered", 5, 5)
    assert "10 calls" in finding.text


@pytest.mark.parametrize("step", [1, 2, 1000])
def test_search_finds_records_in_order_in_batches_and_rows(tmp_path: Path, step: int) -> None:
    search = partial(search_records, page_rows=step)
    newest = partial(newest_records, page_rows=step)
    made = write_chain(tmp_path, 5)
    made.append([*make_batches(10, 6), *make_entries(2, 16), *make_batches(13, 18)])
    every = [f"fs__tool_{n}" for n in range(1, 31)]
    wanted = RecordFilter(tool="fs__*")
    assert [row.name for row in search(made.store, wanted)] == every
    assert [row.name for row in search(made.store, wanted, newest_first=True)] == every[::-1]
    assert [row.name for row in newest(made.store, wanted, 17)] == every[-17:]
    assert [row.name for row in newest(made.store, RecordFilter(tool="fs__tool_1?"), 3)] == [
        f"fs__tool_{n}" for n in (17, 18, 19)
    ]
    assert len(newest(made.store, RecordFilter(since=1010.0, until=1020.0), 100)) == 10
    assert newest(made.store, wanted, 0) == []
    made.store.close()
