"""What journal and metrics cost a call, and how long it takes to ask: `python -m bench.journal`.

In process, without a network: the time on the event loop's thread, from the end of a call on, and
what of it is the journal's and the metrics'; the time that the writer takes to hash and store; then
a journal of 100,000 records is asked and walked.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trunkline.gateway.events import MANY, Events
from trunkline.gateway.passage import CallEnded, Passage
from trunkline.journal.audit import Auditor
from trunkline.journal.head_file import HeadFile
from trunkline.journal.inbox import Inbox
from trunkline.journal.ledger import Ledger
from trunkline.journal.record import Scribe
from trunkline.journal.redact import Redactor, Rules
from trunkline.journal.search import newest
from trunkline.journal.sheet import Sheets
from trunkline.journal.sqlite import SqliteStore
from trunkline.journal.store import Filter, Presence, each_row
from trunkline.jsonrpc import Raw, Request
from trunkline.loop import keep_memory
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.observe.call_metrics import CallMetrics
from trunkline.routing.catalog import Entry

RECORDS = 100_000
BATCH = 1000


NO_TEXT = Raw(b'{"size":200}')
TEXTS = Raw(b'{"path":"/data/a.txt","text":"%s","api_key":"k"}' % (b"x" * 100))
RESULT = Raw(b'{"content":[{"type":"text","text":"%s"}]}' % (b"x" * 200))
# As in a gateway: a caller is one for as long as its session lasts, and an entry its catalogue.
CALLERS = [
    Caller(
        Principal(f"key:user{number}", f"user{number}", ("dev",)),
        "2025-11-25",
        {},
        Raw(b'{"name":"bench","version":"1"}'),
    )
    for number in range(50)
]
ENTRIES = [
    Entry(Kind.TOOL, f"server{n % 10}__tool_{n}", f"server{n % 10}", f"tool_{n}", Raw(b"{}"))
    for n in range(300)
]


def passing(number: int, arguments: Raw = TEXTS) -> Passage:
    return Passage(
        CALLERS[number % 50],
        Request(number, "tools/call", Raw(b'{"name":"x","arguments":%s}' % bytes(arguments))),
        number=number,
        at=1_700_000_000.0 + number / 10,
        began=0.0,
        entry=ENTRIES[number % 300],
        revision="2025-11-25",
        sent=0.0001,
        answered=0.0011,
        arguments=arguments,
    )


def event(number: int, arguments: Raw = TEXTS) -> CallEnded:
    status = "denied" if number % 997 == 0 else "success"
    return CallEnded(passing(number, arguments), status, None, None, 0.0012, 0.001, 180, 300)


def best(work: Callable[[], object], clock: Callable[[], float], times: int = 7) -> float:
    """Return the shortest of several measurements, in microseconds for each of a batch."""
    found: list[float] = []
    for _ in range(times):
        began = clock()
        work()
        found.append(clock() - began)
    return min(found) / BATCH * 1e6


def on_the_loop(arguments: Raw, journal: bool, metrics: bool) -> float:
    """Return what it takes to tell some of calls that have ended, for each call."""
    events, inboxes, counts = Events(), [Inbox(10**6)], CallMetrics()
    events.later = lambda _seconds, _then: None
    if journal:
        sheets = Sheets(Scribe("bench", Redactor(Rules())))
        events.listen(lambda _: None, many=lambda calls: inboxes[0].put_calls(calls, sheets.write))
    if metrics:
        events.listen(counts, many=counts.count_calls)
    passages = [passing(n, arguments) for n in range(BATCH)]

    def tell() -> None:
        for number, passage in enumerate(passages, 1):
            events.tell_later((passage, RESULT, 0.0002, 0.0012))
            if number % MANY == 0:
                events.tell_now()
        events.tell_now()
        inboxes[0] = Inbox(10**6)

    return best(tell, time.thread_time, 25)


def main() -> int:
    keep_memory()  # as whoever serves does
    scribe = Scribe("bench", Redactor(Rules()))
    sheets = Sheets(scribe)
    for what, arguments in (("three texts, one secret", TEXTS), ("a number", NO_TEXT)):
        neither, counted = (on_the_loop(arguments, False, each) for each in (False, True))
        written, both = (on_the_loop(arguments, True, each) for each in (False, True))
        calls = [event(n, arguments) for n in range(BATCH)]
        parts = [calls[start : start + MANY] for start in range(0, BATCH, MANY)]
        alone = best(lambda parts=parts: [*map(sheets.write, parts)], time.thread_time, 25)
        print(
            f"on the loop, for each call whose arguments are {what}: {both:.2f} us, of these to "
            f"find out how it ended {neither:.2f}, metrics {counted - neither:.2f}, journal "
            f"{written - neither:.2f} (to redact and encode {alone:.2f})"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        store = SqliteStore(path / "journal.db")
        ledger = Ledger(store, scribe, HeadFile(path / "journal.head"))
        ledger.begin(Presence("0" * 32, "bench", 1, ""), 1_700_000_000.0)
        took = cpu = 0.0
        for start in range(0, RECORDS, BATCH):
            calls = [event(n) for n in range(start, start + BATCH)]
            batch = [e for n in range(0, BATCH, MANY) for e in sheets.write(calls[n : n + MANY])]
            began, cpu_began = time.perf_counter(), time.thread_time()
            ledger.append(batch)
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
        "one tool": Filter(tool="server3__tool_3"),
        "a pattern of tools": Filter(tool="*__tool_29*"),
        "a subject": Filter(subject="user7"),
        "denied": Filter(statuses=("denied",)),
        "since, of one server": Filter(backend="server4", since=middle),
        "nobody": Filter(subject="nobody"),
    }
    for name, chosen in wanted.items():
        began = time.perf_counter()
        found = newest(store, chosen, RECORDS)
        took = (time.perf_counter() - began) * 1e3
        print(f"asked for {name}: {len(found)} of {RECORDS} records in {took:.0f} ms")
    began = time.perf_counter()
    audit = Auditor(store.end()).walk(each_row(store))
    print(f"verified {audit.records} records in {time.perf_counter() - began:.2f} s: {audit.ok}")


if __name__ == "__main__":
    sys.exit(main())
