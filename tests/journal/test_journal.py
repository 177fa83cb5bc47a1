"""The journal of a gateway: every call, whatever its end, and never in anybody's way."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.servers import Hold, User, gateway, one_tool, refuse, running
from tests.journal.samples import audit, call, ledger, rows
from trunkline.gateway.events import BackendMoved
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.layers import Layers
from trunkline.journal import journal as module
from trunkline.journal import writer
from trunkline.journal.head_file import HeadFile
from trunkline.journal.journal import Journal, Terms, label
from trunkline.journal.ledger import Ledger
from trunkline.journal.record import Scribe
from trunkline.journal.redact import Rules
from trunkline.journal.sheet import records
from trunkline.journal.sqlite import SqliteStore
from trunkline.journal.store import Presence
from trunkline.jsonrpc import Incident, RpcError


def journal(folder: Path, **terms: Any) -> Journal:
    def open_ledger(scribe: Scribe) -> Ledger:
        store = SqliteStore(folder / "journal.db", patience=0.05)
        return Ledger(store, scribe, HeadFile(folder / "journal.head"))

    return Journal("test", str(folder / "journal.db"), open_ledger, Terms(**terms))


@asynccontextmanager
async def recorded(made: Gateway, journal: Journal) -> AsyncGenerator[User]:
    """Have a client at a gateway whose calls are recorded; at the end all is written."""
    journal.attach(made.layers)
    async with running(made), User(made) as user:
        await user.hello()
        yield user
    await journal.aclose()


def calls(folder: Path) -> list[dict[str, Any]]:
    found = [record for row in rows(folder) for record in records(row)]
    return [json.loads(record.body) for record in found if record.kind == "call"]


@pytest.mark.holds("O0.15", "M11")
async def test_every_call_is_recorded_once_whatever_its_end(tmp_path: Path) -> None:
    server = one_tool()
    made = gateway(fs=server)
    async with recorded(made, journal(tmp_path)) as user:
        await user.call("fs__echo", arguments={"path": "/a", "api_key": "hunter2"})
        await user.refusal("tools/call", {"name": "fs__nope"})
        server.methods["tools/call"] = lambda _: {"content": [], "isError": True}
        await user.call("fs__echo")
        server.methods["tools/call"] = refuse(-32050, "no")
        await user.refusal("tools/call", {"name": "fs__echo"})
        await server.die()
        await user.refusal("tools/call", {"name": "fs__echo"})
    found = calls(tmp_path)
    assert [each["status"] for each in found] == [
        "success",
        "unknown",
        "tool_error",
        "error",
        "unavailable",
    ]
    assert found[0]["arguments"] == {"path": "/a", "api_key": "[redacted]"}
    assert found[0]["gateway"] == label("test")
    assert found[3]["code"] == -32050
    assert len({each["id"] for each in found}) == 5
    assert audit(tmp_path).ok


async def test_a_call_that_is_cancelled_is_recorded(tmp_path: Path) -> None:
    server, hold = one_tool(), Hold()
    server.methods["tools/call"] = hold
    async with recorded(gateway(fs=server), journal(tmp_path)) as user:
        calling = asyncio.create_task(user.refusal("tools/call", {"name": "fs__echo"}))
        await hold.begun.wait()
        await user.tell("notifications/cancelled", {"requestId": 2})
        await server.until_heard("notifications/cancelled")
        hold.let_go.set()
        calling.cancel()
    assert [each["status"] for each in calls(tmp_path)] == ["cancelled"]


@pytest.mark.holds("M11")
async def test_calls_go_on_whatever_becomes_of_the_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"garbage " * 1000)
    made = journal(tmp_path)
    async with recorded(gateway(fs=one_tool()), made) as user:
        for _ in range(20):
            await user.call("fs__echo")
        await user.ask("ping")
        while made.status().error is None:
            await asyncio.sleep(0)
        assert made.status().queue <= 20 + 2  # with what became of the server
        (tmp_path / "journal.db").unlink()
    assert len(calls(tmp_path)) == 20


async def test_what_cannot_be_written_in_the_end_is_said_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    (tmp_path / "journal.db").mkdir()
    made = journal(tmp_path)
    async with recorded(gateway(fs=one_tool()), made) as user:
        await user.call("fs__echo")
    await made.aclose()
    assert "records of the journal are lost" in caplog.text


def test_calls_of_which_nobody_was_told_yet_will_need_room_too(tmp_path: Path) -> None:
    made, layers = journal(tmp_path, queue=100, when_full="block"), Layers()
    made.attach(layers)
    layers.events.later = lambda _seconds, _then: None
    for _ in range(10):
        layers.events.tell_later(call())
    layers.under_way.update((call().passage, None) for _ in range(90))
    assert layers.door is not None
    layers.door(call().passage)
    layers.under_way[call().passage] = None
    with pytest.raises(RpcError, match="no room"):
        layers.door(call().passage)


@pytest.mark.holds("D0.o")
async def test_where_nothing_may_go_unrecorded_calls_are_refused_when_too_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SHORTEST", 0.01)
    monkeypatch.setattr(writer, "LONGEST", 0.02)
    (tmp_path / "journal.db").mkdir()
    made = journal(tmp_path, queue=102, when_full="block")  # two say how the server is
    server = one_tool()
    async with recorded(gateway(fs=server), made) as user:
        for _ in range(100):
            await user.call("fs__echo")
        for _ in range(3):
            error: Any = await user.refusal("tools/call", {"name": "fs__echo"})
            assert (error.code, error.data["type"]) == (-32007, "upstream_unavailable")
            assert "the journal has no room" in error.message
        assert server.count("tools/call") == 100
        await user.ask("ping")
        assert made.status().dropped == 3
        (tmp_path / "journal.db").rmdir()
        while made.status().written < 102:
            await asyncio.sleep(0)
        await user.call("fs__echo")
    assert [each["status"] for each in calls(tmp_path)] == ["success"] * 101
    (dropped,) = [json.loads(row.body) for row in rows(tmp_path) if row.kind == "dropped"]
    assert (dropped["status"], dropped["count"]) == ("block", 3)


async def test_terms_may_change_while_it_is_written(tmp_path: Path) -> None:
    made = journal(tmp_path)
    async with recorded(gateway(fs=one_tool()), made) as user:
        await user.call("fs__echo", arguments={"a": 1})
        while made.status().written < 1:
            await asyncio.sleep(0)
        made.adopt(Terms(rules=Rules(mode="none"), queue=500, when_full="block"))
        await user.call("fs__echo", arguments={"a": 1})
        assert made.status().queue_limit == 500
    assert ["arguments" in each for each in calls(tmp_path)] == [True, False]


async def test_what_else_happens_is_recorded_and_incidents_are_for_the_log(tmp_path: Path) -> None:
    made, layers = journal(tmp_path), Layers()
    made.adopt(Terms())
    made.attach(layers)
    layers.events.tell(Incident("x", "tools/call", ValueError("secret")))
    layers.events.tell(BackendMoved("fs", "ready", None, None))
    await made.aclose()
    made.start()
    assert [row.kind for row in rows(tmp_path)] == ["started", "backend", "stopped"]
    assert made.status().written == 1


async def test_a_call_that_ends_last_of_all_is_recorded(tmp_path: Path) -> None:
    made, layers = journal(tmp_path), Layers()
    made.attach(layers)
    layers.events.later = lambda _seconds, _then: None  # nobody comes back to it
    layers.events.tell_later(call(id="last"))
    await made.aclose()
    assert [each["id"] for each in calls(tmp_path)] == ["last"]


async def test_a_journal_to_which_nothing_happens_makes_no_file(tmp_path: Path) -> None:
    made = journal(tmp_path)
    made.attach(Layers())
    await made.aclose()
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import asyncio, pathlib, sys
from trunkline.app import App, DEFAULT
app = App(DEFAULT, pathlib.Path(sys.argv[1]))
asyncio.run(app.serve_stdio())
"""


def said(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for text in process.stdout:
        yield json.loads(text)


def ask(process: "subprocess.Popen[str]", *messages: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.writelines(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in messages)
    process.stdin.flush()


@pytest.mark.holds("I8.1")
def test_one_that_is_killed_under_load_leaves_a_whole_journal(tmp_path: Path) -> None:
    hello = {
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        },
    }
    params: dict[str, Any] = {"name": "trunkline__status", "arguments": {}}
    call: dict[str, Any] = {"method": "tools/call", "params": params}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        guard = threading.Timer(60, process.kill)
        guard.start()
        ask(process, hello, {"method": "notifications/initialized"})
        answers = said(process)
        next(answers)
        answered = 0
        while not (tmp_path / "journal.db").exists() or len(_calls(tmp_path)) < 200:
            ask(process, *({**call, "id": n} for n in range(1, 101)))
            answered += sum(1 for _, _ in zip(range(100), answers, strict=False))
        ask(process, *({**call, "id": n} for n in range(1, 101)))
        process.kill()
        process.wait(20)
        guard.cancel()
    assert audit(tmp_path).ok, audit(tmp_path).findings
    assert 200 <= len(_calls(tmp_path)) <= answered + 100
    after = ledger(tmp_path)
    after.begin(Presence("f" * 32, "next", 1, ""), 2e9)
    after.store.close()
    assert [row.kind for row in rows(tmp_path)][-2:] == ["lost", "started"]
    assert audit(tmp_path).ok


def _calls(folder: Path) -> list[dict[str, Any]]:
    try:
        return calls(folder)
    except Exception:
        return []  # it is just being made
