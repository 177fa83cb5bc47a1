"""Incidents are told where they can be read, under the id that the client was given."""

import asyncio
import json
import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.assembly.test_traces import collecting, made
from tests.cli.samples import fetch
from tests.test_app_http import HERE, enveloped
from trunkline.app import DEFAULT, App
from trunkline.assembly import logs
from trunkline.assembly.observe import Reporter
from trunkline.backends.functions import Functions
from trunkline.config import Config, LogSettings, TracesSettings
from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.events import Event
from trunkline.gateway.settings import Settings
from trunkline.jsonrpc import Incident
from trunkline.observe import exporter


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    near, far = os.pipe()
    open_log = logs.open_log

    def opened(settings: LogSettings, stdio: bool, conceal: Any) -> logs.OpenLog:
        return open_log(settings, stdio, conceal, far)

    monkeypatch.setattr(logs, "open_log", opened)
    yield near
    os.close(near)
    os.close(far)


def lines(near: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in os.read(near, 1 << 20).splitlines()]


def app_with(**tables: Any) -> App:
    app = App(Config(servers=DEFAULT.servers, log=LogSettings(format="json"), **tables))
    functions = Functions()

    def fall(what: str) -> str:
        raise KeyError(what)

    functions.tool("fall")(fall)

    async def connect(listener: Listener) -> Backend:
        return functions

    app.gateway.add(Settings("bad", "bad"), connect)
    return app


async def test_a_clients_error_and_the_log_name_the_same_call(stderr: int) -> None:
    app = app_with()
    message = enveloped("tools/call", name="none__such", arguments={"key": "s3cret"})
    headers = {"mcp-method": "tools/call", "mcp-name": "none__such"}
    headers["mcp-protocol-version"] = "2026-07-28"
    async with asyncio.timeout(20), app.observation.watching(stdio=False):
        async with app.listening(HERE):
            await fetch(f"{app.origins[0]}/mcp", message, headers)
            app.report(Incident("abc", "tools/call", KeyError("s3cret")))
        await app.aclose()
    found = {line["event"]: line for line in lines(stderr)}
    assert found["call_unknown"]["name"] == "none__such"
    assert found["incident"]["incident"] == "abc"
    assert "s3cret" not in json.dumps(found)


def test_without_a_log_an_incident_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter()(Incident("abc", "m", ValueError("oops")))
    assert "incident abc" in capsys.readouterr().err


async def test_a_listener_that_fails_at_everything_is_no_end_of_incidents(stderr: int) -> None:
    app, heard = app_with(), list[Event]()

    def bad(event: Event) -> None:
        heard.append(event)
        raise RuntimeError("oops")

    app.gateway.layers.events.listen(bad)
    async with app.observation.watching(stdio=False):
        app.report(Incident("abc", "m", ValueError()))
    assert len(heard) == 1
    assert [line["incident"] for line in lines(stderr)] == ["abc"]


async def test_that_traces_are_not_delivered_is_said_and_that_they_are_again(
    stderr: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "BATCH", 1)
    async with collecting() as collector:
        app = app_with(traces=TracesSettings(endpoint=collector.url))
        assert app.observation.traces is not None
        spans = app.observation.traces.exporter
        async with app.observation.watching(stdio=False):
            for status, told in ((400, 1), (400, 2), (200, 3)):
                collector.answers_with(status)
                spans.take(made())
                while spans.sent + spans.dropped < told:
                    await asyncio.sleep(0)
    assert [line["message"] for line in lines(stderr)] == [
        "traces are not delivered: it answered 400",
        "traces are delivered again",
    ]


async def test_off_costs_nothing_nobody_is_asked_and_nothing_is_kept() -> None:
    app = App(Config())
    layers = app.gateway.layers
    assert layers.tracer is None
    assert not layers.events.hears_calls
    assert app.observation.pages == {}
    await app.aclose()
