"""Building the kill switches from the configuration and the state folder."""

from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, child, config
from tests.tasks import hang_guard
from trunkline.admin.service import SwitchFile
from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.app.build import (
    admin_servers,
    build_kill_switches,
    build_stores,
    configured_switches,
)
from trunkline.config import Config, KillSwitchSettings, load_config
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import ActiveSwitch
from trunkline.gateway.session import GatewayIdentity
from trunkline.routing.kill_switch import SWITCH_ALL, KillSwitch, SwitchKind

ECHO = KillSwitch(SwitchKind.TOOL, "small__echo")


@pytest.mark.holds("O0.11")
def test_configured_switches_have_their_file_and_line(tmp_path: Path) -> None:
    kill = '[kill_switch]\ntools = ["a", "b*"]\nservers = ["me"]\nsubjects = ["anna"]\nall = true\n'
    file = config(tmp_path, kill, OPERATOR)
    assert configured_switches(load_config(Path(file), {})) == {
        KillSwitch(SwitchKind.TOOL, "a"): f"{file}:2",
        KillSwitch(SwitchKind.TOOL, "b*"): f"{file}:2",
        KillSwitch(SwitchKind.SERVER, "me"): f"{file}:3",
        KillSwitch(SwitchKind.SUBJECT, "anna"): f"{file}:4",
        SWITCH_ALL: f"{file}:5",
    }
    assert configured_switches(DEFAULT_CONFIG) == {}
    config_without_source = Config(kill_switch=KillSwitchSettings(tools=("a",)))
    assert configured_switches(config_without_source) == {
        KillSwitch(SwitchKind.TOOL, "a"): "trunkline.toml"
    }


def test_operator_servers_are_exempt_from_kill_all() -> None:
    assert admin_servers(DEFAULT_CONFIG) == {"trunkline"}


@pytest.mark.holds("M12")
async def test_a_switch_set_at_run_time_survives_a_restart(tmp_path: Path) -> None:
    loaded = load_config(Path(config(tmp_path, child("small"), OPERATOR)), {})
    state = tmp_path / "state"
    first = App(loaded, state)
    async with hang_guard():
        result = await first.switches.kill(ECHO)
        assert not any("remember" in note for note in result.notes)
        await first.aclose()
        second = App(loaded, state)
        assert second.switches.list_active() == (ActiveSwitch("tool", "small__echo", "operator"),)
        await second.switches.revive(ECHO)
        await second.aclose()
    assert App(loaded, state).switches.list_active() == ()


async def test_a_pause_does_not_survive_a_restart(tmp_path: Path) -> None:
    first = App(DEFAULT_CONFIG, tmp_path)
    first.switches.pause()
    await first.aclose()
    assert not App(DEFAULT_CONFIG, tmp_path).switches.paused


async def test_without_a_state_folder_no_switch_survives_a_restart() -> None:
    gateway = Gateway(GatewayIdentity("g", "1"), jitter=lambda: 0.0)
    store = build_stores(DEFAULT_CONFIG, None).switches
    switches = build_kill_switches(DEFAULT_CONFIG, gateway, store)
    assert switches.list_active() == ()
    notes = (await switches.kill(ECHO)).notes
    assert "lost when the gateway restarts: it has no state directory" in notes[-1]
    assert store.load() == {ECHO}
    again = build_stores(DEFAULT_CONFIG, None).switches
    assert build_kill_switches(DEFAULT_CONFIG, gateway, again).list_active() == ()


async def test_an_unreadable_switch_file_stops_everything_until_revive_all(tmp_path: Path) -> None:
    switch_file = SwitchFile(tmp_path, DEFAULT_CONFIG.source)
    switch_file.path.write_text("garbage")
    app = App(DEFAULT_CONFIG, tmp_path)
    assert app.switches.list_active() == (ActiveSwitch("all", "", "operator"),)
    await app.switches.revive(SWITCH_ALL)
    assert App(DEFAULT_CONFIG, tmp_path).switches.list_active() == ()
    await app.aclose()
