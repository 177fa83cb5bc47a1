"""What the journal costs a call, and how long it takes to ask it: `python -m bench.journal`.

In process, without a network: the time on the event loop's thread, the time that the writer holds
the interpreter, and its time in all; then a journal of 100,000 records is asked and walked.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trunkline.gateway.passage import CallEnded, Passage
from trunkline.journal.audit import Auditor
from trunkline.journal.head_file import HeadFile
from trunkline.journal.inbox import Inbox
from trunkline.journal.ledger import Ledger
from trunkline.journal.record import Scribe
from trunkline.journal.redact import Redactor, Rules
from trunkline.journal.sqlite import SqliteStore
from trunkline.journal.store import Filter, Presence, each_row
from trunkline.jsonrpc import Raw, Request
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.catalog import Entry

RECORDS = 100_000
BATCH = 1000


def event(number: int) -> CallEnded:
    name, backend = f"server{number % 10}__tool_{number % 300}", f"server{number % 10}"
    principal = Principal(f"key:user{number % 50}", f"user{number % 50}", ("dev",))
    passage = Passage(
        f"{number:032x}",
        Caller(principal, "2025-11-25", {}, Raw(b'{"name":"bench","version":"1"}')),
        Request(number, "tools/call"),
        1_700_000_000.0 + number / 10,
        0.0,
        entry=Entry(Kind.TOOL, name, backend, name, Raw(b"{}")),
        revision="2025-11-25",
        arguments=Raw(b'{"path":"/data/a.txt","text":"%s","api_key":"k"}' % (b"x" * 100)),
    )
    status = "denied" if number % 997 == 0 else "success"
    return CallEnded(passage, status, None, None, 0.0012, 0.001, 180, 300)


def best(work: Callable[[], object], clock: Callable[[], float], times: int = 7) -> float:
    """Return the shortest of several measurements, in microseconds for each of a batch."""
    found: list[float] = []
    for _ in range(times):
        began = clock()
        work()
        found.append(clock() - began)
    return min(found) / BATCH * 1e6


def main() -> int:
    events = [event(n) for n in range(BATCH)]
    inbox = Inbox(10**6)

    def put() -> None:
        for each in events:
            inbox.put(each, each.at)

    print(f"on the loop: {best(put, time.thread_time):.2f} us for each call")
    scribe = Scribe("bench", Redactor(Rules()))
    pairs = [(each.at, each) for each in events]
    written = best(lambda: scribe.write(pairs), time.thread_time)
    print(f"in the writer, holding the interpreter: {written:.2f} us to redact and encode")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        store = SqliteStore(path / "journal.db")
        ledger = Ledger(store, scribe, HeadFile(path / "journal.head"))
        ledger.begin(Presence("0" * 32, "bench", 1, ""), 1_700_000_000.0)
        batches = [
            scribe.write((each.at, each) for each in map(event, range(start, start + BATCH)))
            for start in range(0, RECORDS, BATCH)
        ]
        began, cpu = time.perf_counter(), time.thread_time()
        for batch in batches:
            ledger.append(batch)
        took, cpu = time.perf_counter() - began, time.thread_time() - cpu
        each = cpu / RECORDS * 1e6
        print(f"to hash and store: {each:.2f} us of CPU each, {RECORDS / took:,.0f} a second")
        ask(store)
        store.close()
    return 0


def ask(store: SqliteStore) -> None:
    middle = 1_700_000_000.0 + RECORDS / 20
    wanted = {
        "one tool": Filter(tool="server3__tool_3"),
        "a pattern of tools": Filter(tool="*__tool_29*"),
        "a subject": Filter(subject="user7"),
        "denied": Filter(statuses=("denied",)),
        "since, of one server": Filter(backend="server4", since=middle),
        "nobody": Filter(subject="nobody"),
    }
    for name, chosen in wanted.items():
        began = time.perf_counter()
        found = store.select(chosen, RECORDS)
        took = (time.perf_counter() - began) * 1e3
        print(f"asked for {name}: {len(found)} of {RECORDS} records in {took:.0f} ms")
    began = time.perf_counter()
    audit = Auditor(store.end()).walk(each_row(store))
    print(f"verified {audit.records} records in {time.perf_counter() - began:.2f} s: {audit.ok}")


if __name__ == "__main__":
    sys.exit(main())
