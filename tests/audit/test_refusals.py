"""Refusals: a caller that causes many of them gets few records, and hides none of the others."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.audit.samples import make_call, make_encoder, stored_rows, verify_chain
from tests.audit.test_log import calls, make_log, recorded
from tests.gateway.servers import make_gateway, one_tool
from trunkline.audit.refusals import (
    MAX_ALL_SINGLE_RECORDS,
    MAX_COUNTS,
    MAX_SINGLE_RECORDS,
    OTHERS,
    RefusalCount,
    RefusalCounter,
    encode_count,
)
from trunkline.gateway.events import AuthRejected
from trunkline.mcp.identity import Principal


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refused_call(subject: str = "ann", **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "principal": Principal(subject),
        "status": "unknown",
        "backend": None,
        "code": -32602,
        "upstream": 0.0,
    }
    return make_call(**(fields | changes))


def notes(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(row.body) for row in stored_rows(folder) if row.kind == kind]


async def test_a_flood_of_unknown_tools_takes_few_records_and_hides_none(tmp_path: Path) -> None:
    gateway = make_gateway(fs=one_tool())
    async with recorded(gateway, make_log(tmp_path)) as client:
        await client.call("fs__echo")
        for n in range(500):
            await client.expect_error("tools/call", {"name": f"nope_{n}{'x' * 400}"})
        await client.call("fs__echo")
    found = calls(tmp_path)
    statuses = [each["status"] for each in found]
    assert statuses.count("success") == 2
    assert statuses.count("unknown") == MAX_SINGLE_RECORDS
    assert {len(each["name"]) for each in found if each["status"] == "unknown"} == {128}
    (note,) = notes(tmp_path, "refused")
    assert note["count"] == 500 - MAX_SINGLE_RECORDS
    assert (note["subject"], note["status"], note["method"]) == ("local", "unknown", "tools/call")
    assert note["since"] <= note["until"] <= time.time()
    assert len(note["name"]) == 128
    assert verify_chain(tmp_path).ok


async def test_rejected_logins_are_counted_by_address_and_reason(tmp_path: Path) -> None:
    gateway = make_gateway(fs=one_tool())
    async with recorded(gateway, make_log(tmp_path)):
        for _ in range(3000):
            gateway.pipeline.events.emit(AuthRejected("10.0.0.1", "bad token"))
        gateway.pipeline.events.emit(AuthRejected("10.0.0.2", "no token"))
    found = notes(tmp_path, "auth_rejected")
    assert sum(each["count"] for each in found) == 3001
    assert len(found) <= MAX_SINGLE_RECORDS + 2
    assert {each["name"] for each in found} == {"10.0.0.1", "10.0.0.2"}


def test_each_reason_and_method_is_counted_separately() -> None:
    counter = RefusalCounter(clock=Clock())
    for _ in range(MAX_SINGLE_RECORDS):
        assert counter.admit(refused_call())
    for changes in ({"status": "denied"}, {"method": "prompts/get"}, {}, {}):
        assert not counter.admit(refused_call(**changes))
    assert counter.admit(refused_call("bob"))
    counts = counter.take(is_closing=True)
    assert [(each.reason, each.method, each.count) for each in counts] == [
        ("denied", "tools/call", 1),
        ("unknown", "prompts/get", 1),
        ("unknown", "tools/call", 2),
    ]


def test_calls_that_a_server_got_are_never_counted() -> None:
    counter = RefusalCounter(clock=Clock())
    failed = refused_call(status="error")
    failed.context.sent_at = 1.0
    for call in (make_call(), make_call(status="tool_error"), failed):
        assert all(counter.admit(call) for _ in range(100))
    assert counter.take(is_closing=True) == []


def test_counts_are_due_when_their_interval_ends_and_the_next_one_starts_anew() -> None:
    clock = Clock()
    counter = RefusalCounter(60.0, clock)
    for _ in range(MAX_SINGLE_RECORDS + 3):
        counter.admit(refused_call(at=1000.0))
    counter.admit(refused_call(at=1005.0))
    assert counter.take() == []
    clock.now = 60.0
    assert counter.take() == [
        RefusalCount("ann", "unknown", "tools/call", 1000.0, 1005.0, "fs__read_file", 4)
    ]
    assert counter.take(is_closing=True) == []
    assert counter.admit(refused_call())


def test_invented_callers_share_one_count_when_the_table_is_full() -> None:
    counter = RefusalCounter(clock=Clock())
    total = MAX_ALL_SINGLE_RECORDS + MAX_COUNTS + 5000
    admitted = sum(counter.admit(refused_call(f"caller {n}")) for n in range(total))
    rejected = sum(counter.admit_rejection(f"10.{n}", f"r{n}", 1.0) for n in range(100))
    counts = counter.take(is_closing=True)
    assert (admitted, rejected) == (MAX_ALL_SINGLE_RECORDS, 0)
    assert len(counts) == MAX_COUNTS + 2
    assert [(each.caller, each.reason, each.count) for each in counts[-2:]] == [
        (OTHERS, "unknown", 5000),
        (OTHERS, "", 100),
    ]


@pytest.mark.parametrize("name", ["db://me:hunter2@host/" + "t" * 500, "a\0b"])
def test_a_counted_name_is_cut_and_has_no_credentials(name: str) -> None:
    entry = encode_count(make_encoder(), RefusalCount("a", "denied", "m", 1.0, 2.0, name, 3))
    assert len(entry.name) <= 128
    assert b"hunter2" not in entry.body
    assert "\0" not in entry.name
    assert (entry.kind, entry.subject, entry.status, entry.at) == ("refused", "a", "denied", 2.0)
