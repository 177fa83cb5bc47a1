"""Scraping the metrics of a gateway at the configured address."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_application_http import HERE, call_in_session
from tests.cli.samples import fetch
from tests.tasks import hang_guard
from tests.telemetry.test_exposition import parsed, parsed_openmetrics
from trunkline import __version__
from trunkline.app import exporters as module
from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.backends.command import CommandSettings
from trunkline.config import (
    AddressError,
    AuthSettings,
    Config,
    HttpSettings,
    MetricsSettings,
    ServerSettings,
)
from trunkline.config.webhook_table import WebhookSettings

BROKEN = ServerSettings(
    name="broken", backend=CommandSettings(command="/nonexistent/program"), max_restarts=0
)
DASHBOARD = Path(__file__).parents[2] / "contrib" / "grafana" / "trunkline.json"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def app_with(state: Path | None = None, **metrics: Any) -> App:
    servers = (*DEFAULT_CONFIG.servers, BROKEN)
    return App(Config(servers=servers, metrics=MetricsSettings(**metrics)), state)


@asynccontextmanager
async def serving(app: App) -> AsyncGenerator[str]:
    """Serve over HTTP with telemetry; yield the origin."""
    async with hang_guard(), app.telemetry.running(stdio=False):
        async with app.listening(HERE):
            await app.gateway.registry.wait_complete()
            yield app.origins[0]
        await app.aclose()


@pytest.fixture
def metrics_urls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the URLs of all metrics listeners; the list fills as they open."""
    found: list[str] = []

    class Listener(module.HttpListener):
        async def listen(self, host: str, port: int, ssl: Any = None) -> None:
            await super().listen(host, port, ssl)
            found.extend(f"http://{host}:{port}" for host, port in self.addresses)

    monkeypatch.setattr(module, "HttpListener", Listener)
    return found


@pytest.mark.holds("O0.13", "O0.14")
async def test_a_scrape_of_the_main_address_returns_all_metrics(tmp_path: Path) -> None:
    app = app_with(tmp_path, path="/metrics")
    async with serving(app) as origin:
        await call_in_session(origin, "trunkline__status")
        await call_in_session(origin, "made_up")
        answer = await fetch(f"{origin}/metrics")
        accept = {"accept": "application/openmetrics-text"}
        openmetrics = await fetch(f"{origin}/metrics", headers=accept)
    assert answer.header["content-type"].startswith("text/plain; version=0.0.4")
    found = parsed(answer.body)
    assert openmetrics.header["content-type"].startswith("application/openmetrics-text")
    assert parsed_openmetrics(openmetrics.body).keys() == found.keys()
    calls = {(labels["tool"], labels["status"]): n for labels, n in found["trunkline_calls_total"]}
    assert calls == {("trunkline__status", "success"): 1, ("unknown", "unknown"): 1}
    assert found["trunkline_sessions"] == [({}, 2)]
    assert found["trunkline_http_sessions"] == [({}, 2)]
    assert found["trunkline_calls_in_flight"] == [({}, 0)]
    up = {labels["backend"]: n for labels, n in found["trunkline_backend_up"]}
    assert up == {"trunkline": 1, "sources": 1, "broken": 0}
    states = {
        labels["backend"]: labels["state"] for labels, n in found["trunkline_backend_state"] if n
    }
    assert states["broken"] == "failed"
    assert {n for _, n in found["trunkline_breaker_state"]} == {0}
    assert found["trunkline_build_info"][0][0]["version"] == __version__
    assert found["trunkline_log_dropped_total"] == [({}, 0)]
    assert found["trunkline_audit_dropped_total"] == [({}, 0)]
    assert found["trunkline_audit_failing"] == [({}, 0)]
    assert "trunkline_audit_queue" in found
    assert "trunkline_audit_written_total" in found


async def test_a_failing_audit_log_is_shown_in_the_metrics(tmp_path: Path) -> None:
    (tmp_path / "audit.db").write_bytes(b"not an audit log" * 1000)
    app = app_with(tmp_path, path="/metrics")
    async with serving(app) as origin:
        found: dict[str, Any] = {"trunkline_audit_failing": [({}, 0)]}
        while found["trunkline_audit_failing"] != [({}, 1)]:
            found = parsed((await fetch(f"{origin}/metrics")).body)
        assert found["trunkline_audit_written_total"] == [({}, 0)]
        assert found["trunkline_audit_queue"][0][1] > 0


@pytest.mark.holds("O0.13")
async def test_without_the_table_there_are_no_metrics() -> None:
    app = App(DEFAULT_CONFIG)
    async with serving(app) as origin:
        assert (await fetch(f"{origin}/metrics")).status == 404
    assert app.telemetry.metrics is None


@pytest.mark.holds("O0.13")
async def test_the_metrics_address_requires_its_token_except_for_health(
    metrics_urls: list[str],
) -> None:
    app = app_with(listen="127.0.0.1:0", token_env="T", token="s3cret")
    async with serving(app) as origin:
        (metrics_url,) = metrics_urls
        assert (await fetch(f"{origin}/metrics")).status == 404
        assert (await fetch(f"{metrics_url}/metrics")).status == 401
        token = {"authorization": "Bearer s3cret"}
        assert (await fetch(f"{metrics_url}/metrics", headers=token)).status == 200
        late_body = {"expect": "100-continue", "content-length": "100000"}
        assert (await fetch(f"{metrics_url}/metrics", headers=late_body)).status == 413
        assert json.loads((await fetch(f"{metrics_url}/health")).body) == {"status": "ok"}
        public = json.loads((await fetch(f"{metrics_url}/ready")).body)
        assert public == {"status": "ready", "servers": {"ready": 2, "degraded": 1}}
        for url in (metrics_url, origin):
            wrong = await fetch(f"{url}/readyz", headers={"authorization": "Bearer other"})
            assert json.loads(wrong.body) == public
            ready = json.loads((await fetch(f"{url}/readyz", headers=token)).body)
            assert ready.keys() == {*public, "degraded"}
        (degraded,) = ready["degraded"]
        assert (degraded["server"], degraded["state"]) == ("broken", "failed")
        assert "no such file" in degraded["reason"].lower()
        assert (await fetch(f"{metrics_url}/mcp")).status == 404
    with pytest.raises(ConnectionError):
        await fetch(f"{metrics_url}/health")


async def test_the_metrics_address_reports_not_ready_during_shutdown(
    metrics_urls: list[str],
) -> None:
    app = app_with(listen="127.0.0.1:0")
    async with hang_guard(), app.telemetry.running(stdio=False):
        async with app.listening(HERE):
            await app.gateway.registry.wait_complete()
            (metrics_url,) = metrics_urls
            assert (await fetch(f"{metrics_url}/readyz")).status == 200
        ending = await fetch(
            f"{metrics_url}/readyz"
        )  # no new clients are accepted while calls drain
        assert (ending.status, json.loads(ending.body)["reasons"]) == (
            503,
            ["the gateway is shutting down"],
        )
        await app.aclose()


def metric_names(app: App) -> set[str]:
    assert app.telemetry.metrics is not None
    names: set[str] = set()
    kinds = {"histogram": ("_bucket", "_sum", "_count")}
    for line in app.telemetry.metrics.exposition.read().encode().decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            names.update(name + end for end in kinds.get(kind, ("",)))
    return names


async def app_with_all_telemetry(state: Path) -> App:
    """Return an application with every kind of telemetry enabled."""
    from trunkline.config import TracesSettings

    traces = TracesSettings(endpoint="http://127.0.0.1:1")
    metrics = MetricsSettings(path="/m")
    webhook = WebhookSettings(name="ops", url="https://hooks.example", secret_env="KEY")
    config = Config(
        servers=DEFAULT_CONFIG.servers, metrics=metrics, traces=traces, webhooks=(webhook,)
    )
    app = App(config, state)
    async with app.telemetry.running(stdio=False):
        return app


async def test_the_dashboard_uses_only_existing_metrics(
    tmp_path: Path,
) -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    targets = [each["expr"] for panel in dashboard["panels"] for each in panel.get("targets", ())]
    variables = [
        each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"
    ]
    used = set(
        re.findall(r"\b(?:trunkline|process)_[a-z_]+", " ".join([*targets, *map(str, variables)]))
    )
    assert len(used) > 15
    existing = metric_names(await app_with_all_telemetry(tmp_path))
    assert used - existing == set()
    assert {name for name in existing if "_audit_" in name} - used == set()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


async def test_every_metric_has_one_entry_with_its_type_and_no_other_has_one(
    tmp_path: Path,
) -> None:
    app = await app_with_all_telemetry(tmp_path)
    assert app.telemetry.metrics is not None
    text = PAGE.read_text(encoding="utf-8")
    exposition = app.telemetry.metrics.exposition
    found = re.findall(r"^### `(\w+)`\n+(Counter|Gauge|Histogram)\b", text, re.MULTILINE)
    assert sorted(name for name, _ in found) == sorted(exposition.names)
    shown = exposition.read().encode().decode()
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", shown, re.MULTILINE))
    assert {name: kind.lower() for name, kind in found} == types


async def test_the_manual_names_the_labels_of_every_metric(tmp_path: Path) -> None:
    app = await app_with_all_telemetry(tmp_path)
    assert app.telemetry.metrics is not None
    shown = app.telemetry.metrics.exposition.read().encode().decode()
    labels: dict[str, set[str]] = {}
    for name, inside in re.findall(
        r"^(\w+?)(?:_bucket|_sum|_count)?\{(.*?)\} ", shown, re.MULTILINE
    ):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', inside))
    text = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `(\w+)`\n+(.*?)\. ?", text, re.MULTILINE | re.DOTALL))
    documented = {name: set(re.findall(r"`(\w+)`", sections[name])) for name in labels}
    assert documented == {name: found - {"le"} for name, found in labels.items()}


async def test_a_network_address_with_unprotected_metrics_is_refused() -> None:
    auth = AuthSettings(api_keys=Path("/nonexistent/keys.json"))
    app = App(Config(auth=auth, metrics=MetricsSettings(path="/m")))
    with pytest.raises(AddressError, match="everyone who reaches that address could read them"):
        async with app.listening(HttpSettings(listen="0.0.0.0:0")):
            raise AssertionError
    assert app.origins == ()


async def test_with_a_token_metrics_may_listen_on_a_network_address() -> None:
    app = app_with(listen="0.0.0.0:0", token_env="T", token="s3cret")
    assert app.telemetry.metrics is not None
    async with app.telemetry.metrics.listening() as listener:
        assert listener is not None
        ((host, _),) = listener.addresses
    assert host == "0.0.0.0"
    await app.aclose()
