"""Waiting for backends until all have started or failed, enough are ready, or time is up."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.samples import BROKEN, OPERATOR, config
from tests.gateway.servers import Server, add, make_gateway, tool
from tests.tasks import hang_guard
from trunkline.app.control import ServerStatus
from trunkline.cli import startup
from trunkline.cli.startup import (
    StartedGateway,
    StartupWatcher,
    is_tool_available,
    start_gateway,
    unready_lines,
)
from trunkline.config import load_config
from trunkline.gateway.gateway import Gateway

pytestmark = pytest.mark.filterwarnings("error")


async def hang(*_: object) -> object:
    return await asyncio.Event().wait()


def gateway_with_a_hanging_server() -> tuple[Gateway, Server]:
    slow = Server(tools=[])
    slow.methods["initialize"] = hang
    return make_gateway(quick=Server(tools=[tool("a")]), slow=slow), slow


async def test_startup_waits_until_every_server_is_ready_or_has_failed() -> None:
    broken = Server(tools=[])
    broken.broken = OSError("broken")
    hub = make_gateway(a=Server(tools=[tool("a")]), broken=broken)
    shown: list[str] = []
    hub.registry.start()
    async with hang_guard():
        watcher = StartupWatcher(hub.registry, shown.append)
        await watcher.wait()
    assert watcher.seconds.keys() == {"a", "broken"}
    assert shown[0].startswith("starting a, broken")
    await hub.aclose()


async def test_startup_waits_no_longer_than_its_timeout() -> None:
    hub, _ = gateway_with_a_hanging_server()
    hub.registry.start()
    async with hang_guard():
        watcher = StartupWatcher(hub.registry, lambda _: None)
        await watcher.wait(timeout=0.05)
    assert "slow" not in watcher.seconds
    await hub.aclose()


async def test_a_slow_start_is_announced_once_where_no_terminal_shows_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(startup, "ANNOUNCE_AFTER", 0.0)
    hub, _ = gateway_with_a_hanging_server()
    hub.registry.start_some(["slow"], "")
    async with hang_guard():
        watcher = StartupWatcher(hub.registry, lambda _: None, announces=True)
        await watcher.wait(timeout=0.1)
    assert capsys.readouterr().err == "trunkline: starting slow\n"
    await hub.aclose()


async def test_startup_stops_waiting_when_enough_servers_are_ready() -> None:
    hub, _ = gateway_with_a_hanging_server()
    hub.registry.start()
    async with hang_guard():
        await StartupWatcher(hub.registry, lambda _: None).wait(
            enough=lambda: "quick" in {u.name for u in hub.registry if u.has_been_tried}
        )
    assert not hub.registry.catalog_complete
    await hub.aclose()


async def test_a_tool_is_available_only_if_no_earlier_server_can_still_claim_its_name() -> None:
    hub = make_gateway()
    for name, prefix in (("first", ""), ("other", "other"), ("last", "last")):
        add(hub, name, Server(tools=[tool("x")]), prefix=prefix)
    first, other, last = hub.registry
    assert not is_tool_available(hub.registry, "last__x")
    hub.registry.start()
    await hub.registry.wait_complete(5)
    assert is_tool_available(hub.registry, "last__x")
    other.state = type(other.state).STARTING
    assert is_tool_available(hub.registry, "last__x")
    first.state = type(first.state).STARTING
    assert not is_tool_available(hub.registry, "last__x")
    assert is_tool_available(hub.registry, "x")
    assert last.has_been_tried
    await hub.aclose()


async def test_start_gateway_runs_the_servers_only_inside_the_context(
    tmp_path: Path,
) -> None:
    loaded = load_config(Path(config(tmp_path, BROKEN, OPERATOR)), {})
    async with hang_guard():
        async with start_gateway(loaded) as started:
            assert started.gateway.registry.catalog_complete
            (unready,) = unready_lines(started.statuses())
            (with_note,) = unready_lines(started.statuses(), ", alas")
        states = {status.state for status in started.statuses()}
    assert unready.startswith("broken failed: ")
    assert with_note.startswith("broken failed, alas: ")
    assert states == {"stopped"}


def test_a_server_that_is_stopped_while_idle_is_no_problem() -> None:
    stopped = ServerStatus("fs", "idle_stopped", None, "2025-11-25", 0, 0, 1, None, None, None)
    failed = ServerStatus("git", "failed", None, None, 0, 0, 0, "it ended", None, None)
    assert unready_lines([stopped, failed]) == ["git failed: it ended"]


async def test_start_gateway_stops_the_servers_after_an_exception(tmp_path: Path) -> None:
    loaded = load_config(Path(config(tmp_path, OPERATOR)), {})
    gateways: list[StartedGateway] = []

    async def ask() -> None:
        async with hang_guard(), start_gateway(loaded) as started:
            gateways.append(started)
            raise KeyError

    with pytest.raises(KeyError):
        await ask()
    assert {status.state for status in gateways[0].statuses()} == {"stopped"}
