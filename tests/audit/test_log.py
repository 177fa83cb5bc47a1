"""The audit log of a gateway: it records every call and never delays one."""

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

from tests.audit.samples import make_call, make_chain, stored_rows, verify_chain
from tests.gateway.servers import HeldAnswer, SessionClient, make_gateway, one_tool, refuse, running
from tests.tasks import HANG_TIMEOUT, hang_guard
from trunkline.audit.call_batch import records_in
from trunkline.audit.hash_chain import HashChain, Retention, TipFile
from trunkline.audit.log import AuditLog, AuditOptions, writer_label
from trunkline.audit.records import RecordEncoder
from trunkline.audit.redaction import RedactionRules
from trunkline.audit.sqlite import SqliteStore
from trunkline.audit.store import WriterHeartbeat
from trunkline.audit.writer import DEFAULT_TIMES, WriterTimes
from trunkline.gateway.events import AuditSizeExceeded, BackendStateChanged, GatewayEvent
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.pipeline import Pipeline
from trunkline.jsonrpc import Incident, RpcError


def make_log(folder: Path, times: WriterTimes = DEFAULT_TIMES, **options: Any) -> AuditLog:
    def open_chain(encoder: RecordEncoder) -> HashChain:
        store = SqliteStore(folder / "audit.db", busy_timeout=0.05)
        return HashChain(store, encoder, TipFile(folder / "audit.tip"))

    return AuditLog(
        "test", str(folder / "audit.db"), open_chain, AuditOptions(**options), times=times
    )


@asynccontextmanager
async def recorded(made: Gateway, log: AuditLog) -> AsyncGenerator[SessionClient]:
    """Connect a client to a gateway whose calls are recorded; at the end all is written."""
    log.attach(made.pipeline)
    async with running(made), SessionClient(made) as user:
        await user.hello()
        yield user
    await log.aclose()


def calls(folder: Path) -> list[dict[str, Any]]:
    found = [record for row in stored_rows(folder) for record in records_in(row)]
    return [json.loads(record.body) for record in found if record.kind == "call"]


@pytest.mark.holds("O0.15", "M11")
async def test_every_call_is_recorded_once_whatever_its_outcome(tmp_path: Path) -> None:
    server = one_tool()
    made = make_gateway(fs=server)
    async with recorded(made, make_log(tmp_path)) as user:
        await user.call("fs__echo", arguments={"path": "/a", "api_key": "hunter2"})
        await user.expect_error("tools/call", {"name": "fs__nope"})
        server.methods["tools/call"] = lambda _: {"content": [], "isError": True}
        await user.call("fs__echo")
        server.methods["tools/call"] = refuse(-32050, "no")
        await user.expect_error("tools/call", {"name": "fs__echo"})
        await server.crash()
        await user.expect_error("tools/call", {"name": "fs__echo"})
    found = calls(tmp_path)
    assert [each["status"] for each in found] == [
        "success",
        "unknown",
        "tool_error",
        "error",
        "unavailable",
    ]
    assert found[0]["arguments"] == {"path": "/a", "api_key": "[redacted]"}
    assert found[0]["gateway"] == writer_label("test")
    assert found[3]["code"] == -32050
    assert len({each["id"] for each in found}) == 5
    assert verify_chain(tmp_path).ok


async def test_cancelled_call_is_recorded(tmp_path: Path) -> None:
    server, hold = one_tool(), HeldAnswer()
    server.methods["tools/call"] = hold
    async with recorded(make_gateway(fs=server), make_log(tmp_path)) as user:
        calling = asyncio.create_task(user.expect_error("tools/call", {"name": "fs__echo"}))
        await hold.started.wait()
        await user.notify("notifications/cancelled", {"requestId": 2})
        await server.wait_received("notifications/cancelled")
        hold.released.set()
        calling.cancel()
    assert [each["status"] for each in calls(tmp_path)] == ["cancelled"]


async def test_an_audit_log_that_is_too_large_is_reported_once(tmp_path: Path) -> None:
    made = make_gateway(fs=one_tool())
    log = make_log(tmp_path, retention=Retention(max_mib=0.001))
    events: list[AuditSizeExceeded] = []
    reported = asyncio.Event()

    def take(event: GatewayEvent) -> None:
        if isinstance(event, AuditSizeExceeded):
            events.append(event)
            reported.set()

    made.pipeline.events.add_listener(take)
    async with hang_guard(), recorded(made, log) as user:
        await user.call("fs__echo")
        await reported.wait()
        assert log.status().excess_bytes == events[0].excess_bytes > 0
    assert len(events) == 1
    assert [row.kind for row in stored_rows(tmp_path)].count("oversized") == 1
    assert verify_chain(tmp_path).ok


@pytest.mark.holds("M11")
async def test_calls_go_on_when_the_audit_log_fails(tmp_path: Path) -> None:
    (tmp_path / "audit.db").write_bytes(b"garbage " * 1000)
    made = make_log(tmp_path)
    async with recorded(make_gateway(fs=one_tool()), made) as user:
        for _ in range(20):
            await user.call("fs__echo")
        await user.ask("ping")
        while made.status().error is None:
            await asyncio.sleep(0)
        assert made.status().queue <= 20 + 2  # and two states of the server
        (tmp_path / "audit.db").unlink()
    assert len(calls(tmp_path)) == 20


async def test_records_lost_at_shutdown_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.db").mkdir()
    made = make_log(tmp_path, WriterTimes(close_timeout=0.05))
    async with recorded(make_gateway(fs=one_tool()), made) as user:
        await user.call("fs__echo")
    await made.aclose()
    assert "audit records are lost" in caplog.text


def test_finished_calls_that_are_not_emitted_yet_reserve_room(tmp_path: Path) -> None:
    made, pipeline = make_log(tmp_path, queue_size=100, when_full="refuse"), Pipeline()
    made.attach(pipeline)
    pipeline.events.schedule = lambda _seconds, _then: None
    for _ in range(10):
        pipeline.events.emit_call(make_call())
    pipeline.in_flight.update(make_call().context for _ in range(90))
    assert pipeline.admission_check is not None
    pipeline.admission_check(make_call().context)
    pipeline.in_flight.add(make_call().context)
    with pytest.raises(RpcError, match="no room"):
        pipeline.admission_check(make_call().context)


@pytest.mark.holds("D0.o")
async def test_with_refuse_calls_fail_when_the_queue_is_full(
    tmp_path: Path,
) -> None:
    times = WriterTimes(min_retry_delay=0.01, max_retry_delay=0.02)
    (tmp_path / "audit.db").mkdir()
    made = make_log(tmp_path, times, queue_size=100, when_full="refuse")
    server = one_tool()
    async with recorded(make_gateway(fs=server), made) as user:
        for _ in range(100):
            await user.call("fs__echo")
        for _ in range(3):
            error: Any = await user.expect_error("tools/call", {"name": "fs__echo"})
            assert (error.code, error.data["type"]) == (-32007, "upstream_unavailable")
            assert "audit log has no room" in error.message
        assert server.count("tools/call") == 100
        await user.ask("ping")
        assert made.status().dropped == 3
        (tmp_path / "audit.db").rmdir()
        while made.status().written < 100:
            await asyncio.sleep(0)
        await user.call("fs__echo")
    assert [each["status"] for each in calls(tmp_path)] == ["success"] * 101
    (dropped,) = [json.loads(row.body) for row in stored_rows(tmp_path) if row.kind == "dropped"]
    assert (dropped["status"], dropped["count"]) == ("refuse", 3)


async def test_options_can_change_while_the_log_is_written(tmp_path: Path) -> None:
    made = make_log(tmp_path)
    async with recorded(make_gateway(fs=one_tool()), made) as user:
        await user.call("fs__echo", arguments={"a": 1})
        while made.status().written < 1:
            await asyncio.sleep(0)
        made.reconfigure(
            AuditOptions(rules=RedactionRules(mode="none"), queue_size=500, when_full="refuse")
        )
        await user.call("fs__echo", arguments={"a": 1})
        assert made.status().queue_limit == 500
    assert ["arguments" in each for each in calls(tmp_path)] == [True, False]


async def test_other_events_are_recorded_but_incidents_are_not(tmp_path: Path) -> None:
    made, pipeline = make_log(tmp_path), Pipeline()
    made.reconfigure(AuditOptions())
    made.attach(pipeline)
    made.start()
    pipeline.events.emit(Incident("x", "tools/call", ValueError("secret")))
    pipeline.events.emit(BackendStateChanged("fs", "ready", None, None))
    await made.aclose()
    made.start()
    assert [row.kind for row in stored_rows(tmp_path)] == ["started", "backend", "stopped"]
    assert made.status().written == 1


async def test_only_a_serving_gateway_records_the_states_of_its_servers(tmp_path: Path) -> None:
    made, pipeline = make_log(tmp_path), Pipeline()
    made.attach(pipeline)
    pipeline.events.emit(BackendStateChanged("fs", "ready", None, None))
    pipeline.events.emit(Incident("x", "tools/call", ValueError("secret")))
    await made.aclose()
    assert not (tmp_path / "audit.db").exists()


async def test_call_that_ends_during_shutdown_is_recorded(tmp_path: Path) -> None:
    made, pipeline = make_log(tmp_path), Pipeline()
    made.attach(pipeline)
    pipeline.events.schedule = lambda _seconds, _then: None  # the flush never runs
    pipeline.events.emit_call(make_call(id="last"))
    await made.aclose()
    assert [each["id"] for each in calls(tmp_path)] == ["last"]


async def test_log_without_events_creates_no_file(tmp_path: Path) -> None:
    made = make_log(tmp_path)
    made.attach(Pipeline())
    await made.aclose()
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import asyncio, pathlib, sys
from trunkline.app.application import DEFAULT_CONFIG, App
app = App(DEFAULT_CONFIG, pathlib.Path(sys.argv[1]))
asyncio.run(app.serve_stdio())
"""


def read_answers(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for text in process.stdout:
        yield json.loads(text)


def send(process: "subprocess.Popen[str]", *messages: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.writelines(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in messages)
    process.stdin.flush()


@pytest.mark.holds("I8.1")
def test_gateway_killed_under_load_leaves_an_intact_log(tmp_path: Path) -> None:
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
        send(process, hello, {"method": "notifications/initialized"})
        answers = read_answers(process)
        next(answers)
        answered = 0
        while not (tmp_path / "audit.db").exists() or len(_calls_so_far(tmp_path)) < 200:
            send(process, *({**call, "id": n} for n in range(1, 101)))
            answered += sum(1 for _, _ in zip(range(100), answers, strict=False))
        send(process, *({**call, "id": n} for n in range(1, 101)))
        process.kill()
        process.wait(HANG_TIMEOUT)
        guard.cancel()
    assert verify_chain(tmp_path).ok, verify_chain(tmp_path).findings
    assert 200 <= len(_calls_so_far(tmp_path)) <= answered + 100
    after = make_chain(tmp_path)
    after.open(WriterHeartbeat("f" * 32, "next", 1, ""), 2e9)
    after.store.close()
    assert [row.kind for row in stored_rows(tmp_path)][-2:] == ["lost", "started"]
    assert verify_chain(tmp_path).ok


def _calls_so_far(folder: Path) -> list[dict[str, Any]]:
    try:
        return calls(folder)
    except Exception:
        return []  # the file is just being created
