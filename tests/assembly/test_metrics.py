"""What is to be known of a gateway can be scraped, where the settings have it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import fetch
from tests.observe.test_exposition import parsed
from tests.test_app_http import HERE, call_in_session
from trunkline import __version__
from trunkline.app import DEFAULT, App
from trunkline.assembly import metrics as module
from trunkline.config import (
    AddressError,
    AuthSettings,
    Config,
    HttpSettings,
    MetricsSettings,
    ServerSettings,
)

BROKEN = ServerSettings(name="broken", command="/nonexistent/program", max_restarts=0)
DASHBOARD = Path(__file__).parents[2] / "contrib" / "grafana" / "trunkline.json"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def app_with(state: Path | None = None, **metrics: Any) -> App:
    servers = (*DEFAULT.servers, BROKEN)
    return App(Config(servers=servers, metrics=MetricsSettings(**metrics)), state)


@asynccontextmanager
async def at(app: App) -> AsyncGenerator[str]:
    """Serve over HTTP, with all that watches; yields where."""
    async with asyncio.timeout(20), app.observation.watching(stdio=False):
        async with app.listening(HERE):
            await app.gateway.registry.wait_settled()
            yield app.origins[0]
        await app.aclose()


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where metrics have addresses of their own."""
    found: list[str] = []

    class Listener(module.HttpListener):
        async def listen(self, host: str, port: int, ssl: Any = None) -> None:
            await super().listen(host, port, ssl)
            found.extend(f"http://{host}:{port}" for host, port in self.addresses)

    monkeypatch.setattr(module, "HttpListener", Listener)
    return found


@pytest.mark.holds("O0.13", "O0.14")
async def test_a_scrape_of_the_main_address_tells_how_everything_is(tmp_path: Path) -> None:
    app = app_with(tmp_path, path="/metrics")
    async with at(app) as origin:
        await call_in_session(origin, "trunkline__status")
        await call_in_session(origin, "made_up")
        answer = await fetch(f"{origin}/metrics")
    assert answer.header["content-type"].startswith("text/plain; version=0.0.4")
    found = parsed(answer.body.decode())
    calls = {(at["tool"], at["status"]): n for at, n in found["trunkline_calls_total"]}
    assert calls == {("trunkline__status", "success"): 1, ("unknown", "unknown"): 1}
    assert found["trunkline_sessions"] == [({}, 2)]
    assert found["trunkline_http_sessions"] == [({}, 2)]
    assert found["trunkline_calls_in_flight"] == [({}, 0)]
    up = {at["backend"]: n for at, n in found["trunkline_backend_up"]}
    assert up == {"trunkline": 1, "sources": 1, "broken": 0}
    states = {at["backend"]: at["state"] for at, n in found["trunkline_backend_state"] if n}
    assert states["broken"] == "failed"
    assert {n for _, n in found["trunkline_breaker_state"]} == {0}
    assert found["trunkline_build_info"][0][0]["version"] == __version__
    assert found["trunkline_log_dropped_total"] == [({}, 0)]
    assert found["trunkline_journal_dropped_total"] == [({}, 0)]
    assert found["trunkline_journal_failing"] == [({}, 0)]
    assert "trunkline_journal_queue" in found
    assert "trunkline_journal_written_total" in found


async def test_a_journal_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a journal" * 1000)
    app = app_with(tmp_path, path="/metrics")
    async with at(app) as origin:
        found: dict[str, Any] = {"trunkline_journal_failing": [({}, 0)]}
        while found["trunkline_journal_failing"] != [({}, 1)]:
            found = parsed((await fetch(f"{origin}/metrics")).body.decode())
        assert found["trunkline_journal_written_total"] == [({}, 0)]
        assert found["trunkline_journal_queue"][0][1] > 0


@pytest.mark.holds("O0.13")
async def test_without_the_table_there_is_nothing() -> None:
    app = App(DEFAULT)
    async with at(app) as origin:
        assert (await fetch(f"{origin}/metrics")).status == 404
    assert app.observation.metrics is None


@pytest.mark.holds("O0.13")
async def test_an_address_of_its_own_has_metrics_for_the_token_and_health_for_all(
    places: list[str],
) -> None:
    app = app_with(listen="127.0.0.1:0", token_env="T", token="s3cret")
    async with at(app) as origin:
        (own,) = places
        assert (await fetch(f"{origin}/metrics")).status == 404
        assert (await fetch(f"{own}/metrics")).status == 401
        token = {"authorization": "Bearer s3cret"}
        assert (await fetch(f"{own}/metrics", headers=token)).status == 200
        assert json.loads((await fetch(f"{own}/health")).body) == {"status": "ok"}
        ready = json.loads((await fetch(f"{own}/ready")).body)
        assert ready["status"] == "ready"
        (degraded,) = ready["degraded"]
        assert (degraded["server"], degraded["state"]) == ("broken", "failed")
        assert "no such file" in degraded["reason"].lower()
        assert (await fetch(f"{own}/mcp")).status == 404
    with pytest.raises(ConnectionError):
        await fetch(f"{own}/health")


async def test_an_address_of_its_own_says_so_while_calls_come_to_their_end(
    places: list[str],
) -> None:
    app = app_with(listen="127.0.0.1:0")
    async with asyncio.timeout(20), app.observation.watching(stdio=False):
        async with app.listening(HERE):
            await app.gateway.registry.wait_settled()
            (own,) = places
            assert (await fetch(f"{own}/readyz")).status == 200
        ending = await fetch(f"{own}/readyz")  # clients come in no more, and the rest goes on
        assert (ending.status, json.loads(ending.body)["reasons"]) == (
            503,
            ["the gateway is shutting down"],
        )
        await app.aclose()


def every_name(app: App) -> set[str]:
    assert app.observation.metrics is not None
    names: set[str] = set()
    kinds = {"histogram": ("_bucket", "_sum", "_count")}
    for line in app.observation.metrics.exposition.text().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            names.update(name + end for end in kinds.get(kind, ("",)))
    return names


async def observed(state: Path) -> App:
    """Return an app with all that can be shown."""
    from trunkline.config import TracesSettings

    traces = TracesSettings(endpoint="http://127.0.0.1:1")
    metrics = MetricsSettings(path="/m")
    app = App(Config(servers=DEFAULT.servers, metrics=metrics, traces=traces), state)
    async with app.observation.watching(stdio=False):
        return app


async def test_the_dashboard_is_valid_and_names_no_metric_that_does_not_exist(
    tmp_path: Path,
) -> None:
    import re

    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    targets = [each["expr"] for panel in board["panels"] for each in panel.get("targets", ())]
    variables = [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    named = set(
        re.findall(r"\b(?:trunkline|process)_[a-z_]+", " ".join([*targets, *map(str, variables)]))
    )
    assert len(named) > 15
    known = every_name(await observed(tmp_path))
    assert named - known == set()
    assert {name for name in known if "_journal_" in name} - named == set()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


async def test_every_metric_has_its_heading_in_the_manual(tmp_path: Path) -> None:
    app = await observed(tmp_path)
    assert app.observation.metrics is not None
    text = PAGE.read_text(encoding="utf-8")
    headings = {line for line in text.splitlines() if line.startswith("### ")}
    names = app.observation.metrics.exposition.names
    assert [name for name in names if f"### `{name}`" not in headings] == []
    assert len(headings) == len(names)


async def test_nobody_listens_to_a_network_with_metrics_that_are_open() -> None:
    auth = AuthSettings(keys=Path("/nonexistent/keys.json"))
    app = App(Config(auth=auth, metrics=MetricsSettings(path="/m")))
    with pytest.raises(AddressError, match="everybody who reaches that address could read them"):
        async with app.listening(HttpSettings(listen="0.0.0.0:0")):
            raise AssertionError
    assert app.origins == ()


async def test_beyond_loopback_the_token_opens_an_address_of_its_own() -> None:
    app = app_with(listen="0.0.0.0:0", token_env="T", token="s3cret")
    assert app.observation.metrics is not None
    async with app.observation.metrics.listening() as listener:
        assert listener is not None
        ((host, _),) = listener.addresses
    assert host == "0.0.0.0"
    await app.aclose()
