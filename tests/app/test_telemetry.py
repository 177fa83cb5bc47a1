"""Incidents and calls are logged under the id that the client received."""

import asyncio
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_application_http import HERE, stateless_request
from tests.app.test_traces import make_span, running_collector
from tests.cli.samples import fetch
from tests.tasks import hang_guard
from trunkline.app import telemetry as logs
from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.app.build import AppLimits
from trunkline.app.telemetry import EventReporter
from trunkline.backends.functions import FunctionBackend
from trunkline.config import Config, LogSettings, TracesSettings
from trunkline.config.webhook_table import WebhookSettings
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.events import GatewayEvent
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import Incident
from trunkline.telemetry.otlp import ExportLimits


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    near, far = os.pipe()
    open_log = logs.open_log

    def open_log_on_pipe(settings: LogSettings, stdio: bool, mask: Any) -> logs.OpenLog:
        return open_log(settings, stdio, mask, far)

    monkeypatch.setattr(logs, "open_log", open_log_on_pipe)
    yield near
    os.close(near)
    os.close(far)


def lines(near: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in os.read(near, 1 << 20).splitlines()]


def app_with(limits: AppLimits | None = None, /, **tables: Any) -> App:
    log = LogSettings(format="json")
    app = App(Config(servers=DEFAULT_CONFIG.servers, log=log, **tables), limits=limits)
    functions = FunctionBackend()

    def fail(key: str) -> str:
        raise KeyError(key)

    functions.tool("fail")(fail)

    async def connect(listener: BackendListener) -> Backend:
        return functions

    app.gateway.add_upstream(UpstreamSettings("bad", "bad"), connect)
    return app


async def test_an_unknown_call_and_an_incident_are_logged_without_secrets(stderr: int) -> None:
    app = app_with()
    message = stateless_request("tools/call", name="none__such", arguments={"key": "s3cret"})
    headers = {"mcp-method": "tools/call", "mcp-name": "none__such"}
    headers["mcp-protocol-version"] = "2026-07-28"
    async with hang_guard(), app.telemetry.running(stdio=False):
        async with app.listening(HERE):
            await fetch(f"{app.origins[0]}/mcp", message, headers)
            app.report(Incident("abc", "tools/call", KeyError("s3cret")))
        await app.aclose()
    found = {line["event"]: line for line in lines(stderr)}
    assert found["call_unknown"]["name"] == "none__such"
    assert found["incident"]["incident"] == "abc"
    assert "s3cret" not in json.dumps(found)


def test_without_a_log_an_incident_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    EventReporter()(Incident("abc", "m", ValueError("oops")))
    assert "incident abc" in capsys.readouterr().err


async def test_a_failing_listener_does_not_cause_endless_incidents(stderr: int) -> None:
    app, events = app_with(), list[GatewayEvent]()

    def failing_listener(event: GatewayEvent) -> None:
        events.append(event)
        raise RuntimeError("oops")

    app.gateway.pipeline.events.add_listener(failing_listener)
    async with app.telemetry.running(stdio=False):
        app.report(Incident("abc", "m", ValueError()))
    assert len(events) == 1
    assert [line["incident"] for line in lines(stderr)] == ["abc"]


async def test_failed_and_recovered_trace_delivery_is_logged_once(
    stderr: int,
) -> None:
    limits = AppLimits(export=ExportLimits(max_batch=1))
    async with running_collector() as collector:
        app = app_with(limits, traces=TracesSettings(endpoint=collector.url))
        assert app.telemetry.traces is not None
        spans = app.telemetry.traces.exporter
        async with app.telemetry.running(stdio=False):
            for status, count in ((400, 1), (400, 2), (200, 3)):
                collector.answers_with(status)
                spans.enqueue(make_span())
                while spans.sent + spans.dropped < count:
                    await asyncio.sleep(0)
    assert [line["message"] for line in lines(stderr)] == [
        "traces are not delivered: it answered 400",
        "traces are delivered again",
    ]


async def test_without_telemetry_settings_no_listener_or_tracer_exists() -> None:
    app = App(Config())
    pipeline = app.gateway.pipeline
    assert pipeline.tracer is None
    assert not pipeline.events.wants_calls
    assert app.telemetry.pages == {}
    await app.aclose()


async def test_changes_of_the_lists_are_events_for_webhooks_only(tmp_path: Path) -> None:
    webhook = WebhookSettings(
        name="ops", url="https://hooks.example", secret_env="KEY", keys=(b"k" * 32,)
    )
    for webhooks, expected in ((), False), ((webhook,), True):
        app = App(Config(servers=DEFAULT_CONFIG.servers, webhooks=webhooks), tmp_path)
        assert app.gateway.reports_list_changes is expected
        await app.aclose()
