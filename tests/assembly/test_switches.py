"""What is stopped, as a configuration and the folder for state have it."""

import asyncio
from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, child, config
from trunkline.app import DEFAULT, App
from trunkline.assembly.switches import operators, stopped_by_file, switch_file, switches_of
from trunkline.config import Config, KillSettings, load
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import Identity
from trunkline.gateway.switches import Stopped
from trunkline.routing.switches import EVERYTHING, Switch, What

ECHO = Switch(What.TOOL, "small__echo")


@pytest.mark.holds("O0.11")
def test_what_the_file_stops_has_its_place_there(tmp_path: Path) -> None:
    kill = '[kill_switch]\ntools = ["a", "b*"]\nservers = ["me"]\nsubjects = ["anna"]\nall = true\n'
    file = config(tmp_path, kill, OPERATOR)
    assert stopped_by_file(load(Path(file), {})) == {
        Switch(What.TOOL, "a"): f"{file}:2",
        Switch(What.TOOL, "b*"): f"{file}:2",
        Switch(What.SERVER, "me"): f"{file}:3",
        Switch(What.SUBJECT, "anna"): f"{file}:4",
        EVERYTHING: f"{file}:5",
    }
    assert stopped_by_file(DEFAULT) == {}
    made = Config(kill_switch=KillSettings(tools=("a",)))
    assert stopped_by_file(made) == {Switch(What.TOOL, "a"): "trunkline.toml"}


def test_the_operator_s_own_tools_are_exempt_from_all() -> None:
    assert operators(DEFAULT) == {"trunkline"}


@pytest.mark.holds("M12")
async def test_what_was_stopped_at_run_time_is_stopped_after_a_start(tmp_path: Path) -> None:
    loaded = load(Path(config(tmp_path, child("small"), OPERATOR)), {})
    state = tmp_path / "state"
    first = App(loaded, state)
    async with asyncio.timeout(20):
        done = await first.switches.kill(ECHO)
        assert not any("remember" in note for note in done.notes)
        await first.aclose()
        second = App(loaded, state)
        assert second.switches.stopped() == (Stopped("tool", "small__echo", "operator"),)
        await second.switches.revive(ECHO)
        await second.aclose()
    assert App(loaded, state).switches.stopped() == ()


async def test_a_pause_is_over_after_a_start(tmp_path: Path) -> None:
    first = App(DEFAULT, tmp_path)
    first.switches.pause()
    await first.aclose()
    assert not App(DEFAULT, tmp_path).switches.paused


def test_without_a_folder_nothing_is_kept() -> None:
    assert switch_file(DEFAULT, None) is None
    gateway = Gateway(Identity("g", "1"), chance=lambda: 0.0)
    assert switches_of(DEFAULT, gateway, None).stopped() == ()


async def test_a_file_that_cannot_be_read_stops_all_until_it_is_revived(tmp_path: Path) -> None:
    kept = switch_file(DEFAULT, tmp_path)
    assert kept is not None
    kept.path.write_text("garbage")
    app = App(DEFAULT, tmp_path)
    assert app.switches.stopped() == (Stopped("all", "", "operator"),)
    await app.switches.revive(EVERYTHING)
    assert App(DEFAULT, tmp_path).switches.stopped() == ()
    await app.aclose()
