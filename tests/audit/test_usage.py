"""Usage reader: what callers used comes from the audit log, so it survives a restart."""

import asyncio
import contextlib
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.audit.samples import HEARTBEAT, make_call, make_chain, tamper
from trunkline.audit.call_batch import CallBatchEncoder
from trunkline.audit.hash_chain import HashChain
from trunkline.audit.records import AuditEntry, RecordEncoder
from trunkline.audit.redaction import RedactionRules, Redactor
from trunkline.audit.sqlite import SqliteStore
from trunkline.audit.store import AuditStore, StoreError
from trunkline.audit.usage import PAGE_ROWS, UsageReader
from trunkline.gateway.call_context import ToolSearch
from trunkline.mcp.identity import Principal

HERE, THERE = "home:1@here", "home:2@there"
ANNA = Principal("key:anna", "anna", ("dev",))
OTHER_ANNA = Principal("jwt:https://other.example|anna", "anna", ("dev",))
LOCAL = Principal("local")
SEARCH = ToolSearch("s1", ("fs__read", "fs__write"))


class Log:
    """An audit log to which calls are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chain: HashChain = make_chain(folder)
        self.chain.open(HEARTBEAT, 1000.0)

    def reader(self, gateway: str = HERE, **options: Any) -> UsageReader:
        return UsageReader(gateway, lambda: SqliteStore(self.folder / "audit.db"), **options)

    def write(self, *entries: AuditEntry) -> None:
        self.chain.append([*entries])

    def search(self, who: Principal = ANNA, gateway: str = HERE, **changes: Any) -> None:
        self.write(self.encode_search(who, gateway, **changes))

    def encode_search(
        self, who: Principal, gateway: str, search: ToolSearch = SEARCH, **changes: Any
    ) -> AuditEntry:
        call = make_call(principal=who, name="search__find_tools", **changes)
        call.context.search = search
        return encoder(gateway).encode_call(call)

    def call(self, who: Principal = ANNA, gateway: str = HERE, **changes: Any) -> None:
        fields = {"principal": who, "name": "fs__read", "at": 1010.0} | changes
        self.write(encoder(gateway).encode_call(make_call(**fields)))

    def close(self) -> None:
        self.chain.store.close()


def encoder(gateway: str) -> RecordEncoder:
    return RecordEncoder(gateway, Redactor(RedactionRules()))


@pytest.fixture
def log(tmp_path: Path) -> Generator[Log]:
    with contextlib.closing(Log(tmp_path)) as log:
        yield log


def shares(reader: UsageReader, who: Principal = ANNA, surface: str = "s1") -> dict[str, float]:
    reader.read()
    return dict(reader.shares(who, surface))


def test_a_call_after_a_search_is_known_to_every_gateway_of_that_name(log: Log) -> None:
    log.search()
    log.call(gateway=THERE)
    assert shares(log.reader()) == {"fs__read": 0.5}
    assert shares(log.reader(THERE)) == {"fs__read": 0.5}
    assert shares(log.reader("work:1@here")) == {}


def test_calls_in_batches_count(log: Log) -> None:
    log.search()
    calls = [make_call(principal=ANNA, name=name, at=1001.0) for name in ("fs__read", "fs__write")]
    (batch,) = CallBatchEncoder(encoder(HERE)).encode_calls(calls)
    assert batch.records == 2
    log.write(batch)
    assert shares(log.reader()) == {"fs__read": 0.5, "fs__write": 0.5}


def test_a_search_has_a_row_of_its_own_with_what_it_found(log: Log) -> None:
    searches = [make_call(principal=ANNA, name="search__find_tools") for _ in range(2)]
    for each in searches:
        each.context.search = SEARCH
    entries = CallBatchEncoder(encoder(HERE)).encode_calls(searches)
    assert [entry.records for entry in entries] == [1, 1]
    assert b'"surface":"s1","found":["fs__read","fs__write"]' in entries[0].body


def test_new_records_are_read_later(log: Log) -> None:
    reader = log.reader()
    log.search()
    assert shares(reader) == {}
    log.call()
    assert shares(reader) == {"fs__read": 0.5}
    assert shares(reader) == {"fs__read": 0.5}


def test_two_readers_of_one_log_agree_whenever_they_read(log: Log) -> None:
    often, once = log.reader(), log.reader()
    for number in range(5):
        log.search(at=1000.0 + number)
        often.read()
        log.call(at=1000.5 + number)
        often.read()
    assert shares(often) == shares(once) != {}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "tool_error"},
        {"status": "denied", "kind": "not_allowed", "code": -32003},
        {"name": "fs__other"},
        {"method": "prompts/get"},
        {"at": 2000.0},
        {"who": OTHER_ANNA},
        {"who": Principal("anna")},
    ],
)
def test_other_calls_do_not_count(log: Log, changes: dict[str, Any]) -> None:
    log.search()
    log.call(**changes)
    assert shares(log.reader()) == {}


def test_a_failed_search_does_not_count(log: Log) -> None:
    log.search(status="error", code=-32603)
    log.call()
    assert shares(log.reader()) == {}


def test_one_principal_does_not_move_the_order_of_another(log: Log) -> None:
    log.search(who=ANNA)
    for _ in range(20):
        log.search(who=OTHER_ANNA)
        log.call(who=OTHER_ANNA)
    reader = log.reader()
    assert shares(reader) == {}
    assert shares(reader, OTHER_ANNA)["fs__read"] > 0.9


def test_callers_with_other_surfaces_are_separate(log: Log) -> None:
    log.search()
    log.call()
    assert shares(log.reader(), surface="s2") == {}


def test_callers_without_authentication_are_one_principal_for_each_host(log: Log) -> None:
    log.search(who=LOCAL)
    log.call(who=LOCAL, gateway=THERE)
    assert shares(log.reader(), LOCAL) == {}
    log.call(who=LOCAL, gateway="home:7@here")
    assert shares(log.reader(), LOCAL) == {"fs__read": 0.5}
    assert shares(log.reader(THERE), LOCAL) == {}


def test_only_the_latest_rows_are_read(log: Log) -> None:
    log.search()
    log.call()
    assert shares(log.reader(max_rows=1)) == {}
    assert shares(log.reader(max_rows=2)) == {"fs__read": 0.5}


def test_a_log_of_many_pages_is_read_whole(log: Log) -> None:
    log.search()
    log.write(*(encoder(HERE).encode_call(make_call()) for _ in range(2 * PAGE_ROWS)))
    log.call()
    assert shares(log.reader()) == {"fs__read": 0.5}


def test_rows_that_cannot_be_decoded_are_skipped(log: Log) -> None:
    log.search()
    log.call(name="fs__write")
    log.call()
    tamper(log.folder, "UPDATE record SET body = '{' WHERE name = 'fs__write'")
    assert shares(log.reader()) == {"fs__read": 0.5}


def test_another_log_at_the_same_place_is_read_from_its_start(log: Log, tmp_path: Path) -> None:
    log.search()
    log.call()
    reader = log.reader()
    assert shares(reader) != {}
    with contextlib.closing(Log(tmp_path / "other")) as other:
        other.search()
        other.call(name="fs__write")
    log.folder = other.folder
    assert shares(reader) == {"fs__write": 0.5}


def test_without_a_log_nothing_is_known(tmp_path: Path) -> None:
    reader = UsageReader(HERE, lambda: SqliteStore(tmp_path / "audit.db"))
    with pytest.raises(StoreError):
        reader.read()
    assert dict(reader.shares(ANNA, "s1")) == {}


class ObservedReader(UsageReader):
    """Reports the reads of its thread to the event loop."""

    def __init__(self, make_store: Any) -> None:
        super().__init__(HERE, make_store, interval=0.0)
        self.loop = asyncio.get_running_loop()
        self.threads: asyncio.Queue[threading.Thread] = asyncio.Queue()

    def read(self) -> None:
        try:
            super().read()
        finally:
            thread = threading.current_thread()
            self.loop.call_soon_threadsafe(self.threads.put_nowait, thread)


async def test_it_reads_in_a_thread_at_intervals_also_after_a_failure(tmp_path: Path) -> None:
    reader = ObservedReader(lambda: SqliteStore(tmp_path / "audit.db"))
    reader.start()
    reader.start()
    assert await reader.threads.get() is not threading.main_thread()
    with contextlib.closing(Log(tmp_path)) as log:
        log.search()
        log.call()
    while not reader.shares(ANNA, "s1"):
        await reader.threads.get()
    reader.stop()
    reader.start()
    await reader.threads.get()
    await reader.aclose()
    await reader.aclose()


async def test_an_unexpected_failure_ends_reading_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> AuditStore:
        raise RuntimeError("broken")

    reader = UsageReader(HERE, fail)
    await reader.start()
    assert "the use of tools is not read any more" in caplog.text
