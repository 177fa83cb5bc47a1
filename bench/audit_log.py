"""The cost of audit log and metrics per call, and of queries: `python -m bench.audit_log`.

In process, without a network: the time on the event loop's thread after the end of a call, split
into audit log and metrics; the time that the writer takes to hash and store; then queries and
verification of an audit log of 100,000 records.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trunkline.audit.call_batch import CallBatchEncoder, newest_records
from trunkline.audit.hash_chain import HashChain, TipFile
from trunkline.audit.records import RecordEncoder
from trunkline.audit.redaction import RedactionRules, Redactor
from trunkline.audit.sqlite import SqliteStore
from trunkline.audit.store import RecordFilter, WriterHeartbeat, all_rows
from trunkline.audit.verification import ChainVerifier
from trunkline.audit.writer import EventQueue
from trunkline.gateway.call_context import CallContext, CallSummary
from trunkline.gateway.events import CALL_EVENT_BATCH, EventBus
from trunkline.jsonrpc import Raw, Request
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2025_11_25
from trunkline.routing.catalog import CatalogEntry
from trunkline.runtime import tune_memory
from trunkline.telemetry.metrics import CallMetrics

RECORDS = 100_000
BATCH = 1000


NO_TEXT = Raw(b'{"size":200}')
TEXTS = Raw(b'{"path":"/data/a.txt","text":"%s","api_key":"k"}' % (b"x" * 100))
RESULT = Raw(b'{"content":[{"type":"text","text":"%s"}]}' % (b"x" * 200))
# As in a gateway: a caller lives as long as its session, an entry as long as its catalogue.
CALLERS = [
    Caller(
        Principal(f"key:user{number}", f"user{number}", ("dev",)),
        V2025_11_25,
        {},
        Raw(b'{"name":"bench","version":"1"}'),
    )
    for number in range(50)
]
ENTRIES = [
    CatalogEntry(
        FeatureKind.TOOL, f"server{n % 10}__tool_{n}", f"server{n % 10}", f"tool_{n}", Raw(b"{}")
    )
    for n in range(300)
]


def passing(number: int, arguments: Raw = TEXTS) -> CallContext:
    params = Raw(b'{"name":"x","arguments":%s}' % bytes(arguments))
    caller = CALLERS[number % 50]
    client: Any = SimpleNamespace(caller=caller, address="192.0.2.1")
    return CallContext(
        caller,
        Request(number, "tools/call", params),
        CLIENT_REQUESTS["tools/call"],
        Params(params),
        client,
        has_no_meta=True,
        sequence=number,
        wall_time=1_700_000_000.0 + number / 10,
        started_at=0.0,
        entry=ENTRIES[number % 300],
        backend_revision=V2025_11_25,
        sent_at=0.0001,
        answered_at=0.0011,
        arguments=arguments,
    )


def event(number: int, arguments: Raw = TEXTS) -> CallSummary:
    status = "denied" if number % 997 == 0 else "success"
    return CallSummary(passing(number, arguments), status, None, None, 0.0012, 0.001, 180, 300)


def best(work: Callable[[], object], clock: Callable[[], float], times: int = 7) -> float:
    """Return the shortest of several measurements, in microseconds per item."""
    found: list[float] = []
    for _ in range(times):
        began = clock()
        work()
        found.append(clock() - began)
    return min(found) / BATCH * 1e6


def on_the_loop(arguments: Raw, audit_log: bool, metrics: bool) -> float:
    """Return the time that the listeners take per finished call."""
    events, queues, counts = EventBus(), [EventQueue(10**6)], CallMetrics()
    events.schedule = lambda _seconds, _then: None
    if audit_log:
        batch_encoder = CallBatchEncoder(RecordEncoder("bench", Redactor(RedactionRules())))
        events.add_listener(
            lambda _: None,
            batch_listener=lambda calls: queues[0].put_calls(calls, batch_encoder.encode_calls),
        )
    if metrics:
        events.add_listener(counts, batch_listener=counts.count_calls)
    contexts = [passing(n, arguments) for n in range(BATCH)]

    def emit_all() -> None:
        for number, context in enumerate(contexts, 1):
            events.emit_call((context, RESULT, 0.0002, 0.0012))
            if number % CALL_EVENT_BATCH == 0:
                events.flush()
        events.flush()
        queues[0] = EventQueue(10**6)

    return best(emit_all, time.thread_time, 25)


def main() -> int:
    tune_memory()  # as `trunkline serve` does
    encoder = RecordEncoder("bench", Redactor(RedactionRules()))
    batch_encoder = CallBatchEncoder(encoder)
    for what, arguments in (("three texts, one secret", TEXTS), ("a number", NO_TEXT)):
        neither, counted = (on_the_loop(arguments, False, each) for each in (False, True))
        written, both = (on_the_loop(arguments, True, each) for each in (False, True))
        calls = [event(n, arguments) for n in range(BATCH)]
        parts = [
            calls[start : start + CALL_EVENT_BATCH] for start in range(0, BATCH, CALL_EVENT_BATCH)
        ]
        alone = best(
            lambda parts=parts: [*map(batch_encoder.encode_calls, parts)], time.thread_time, 25
        )
        print(
            f"on the loop, for each call whose arguments are {what}: {both:.2f} us, of these to "
            f"find out how it ended {neither:.2f}, metrics {counted - neither:.2f}, audit log "
            f"{written - neither:.2f} (to redact and encode {alone:.2f})"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        store = SqliteStore(path / "audit.db")
        chain = HashChain(store, encoder, TipFile(path / "audit.tip"))
        chain.open(WriterHeartbeat("0" * 32, "bench", 1, ""), 1_700_000_000.0)
        took = cpu = 0.0
        for start in range(0, RECORDS, BATCH):
            calls = [event(n) for n in range(start, start + BATCH)]
            batch = [
                e
                for n in range(0, BATCH, CALL_EVENT_BATCH)
                for e in batch_encoder.encode_calls(calls[n : n + CALL_EVENT_BATCH])
            ]
            began, cpu_began = time.perf_counter(), time.thread_time()
            chain.append(batch)
            took += time.perf_counter() - began
            cpu += time.thread_time() - cpu_began
        each = cpu / RECORDS * 1e6
        rate = RECORDS / took
        print(f"in the writer, to hash and store: {each:.2f} us of CPU each, {rate:,.0f} a second")
        ask(store)
        store.close()
    return 0


def ask(store: SqliteStore) -> None:
    middle = 1_700_000_000.0 + RECORDS / 20
    wanted = {
        "one tool": RecordFilter(tool="server3__tool_3"),
        "a pattern of tools": RecordFilter(tool="*__tool_29*"),
        "a subject": RecordFilter(subject="user7"),
        "denied": RecordFilter(statuses=("denied",)),
        "since, of one server": RecordFilter(backend="server4", since=middle),
        "nobody": RecordFilter(subject="nobody"),
    }
    for name, chosen in wanted.items():
        began = time.perf_counter()
        found = newest_records(store, chosen, RECORDS)
        took = (time.perf_counter() - began) * 1e3
        print(f"asked for {name}: {len(found)} of {RECORDS} records in {took:.0f} ms")
    began = time.perf_counter()
    audit = ChainVerifier(store.tip()).verify(all_rows(store))
    print(f"verified {audit.records} records in {time.perf_counter() - began:.2f} s: {audit.ok}")


if __name__ == "__main__":
    sys.exit(main())
