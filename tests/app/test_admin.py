"""The admin service, built from the settings."""

from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, child, config
from trunkline.app.application import DEFAULT_CONFIG, App, build_commands
from trunkline.config import Config, load_config
from trunkline.jsonrpc import RpcError


async def test_the_control_commands_kill_revive_pause_and_resume() -> None:
    commands = build_commands(App(DEFAULT_CONFIG).admin)
    assert sorted(commands) == ["kill", "pause", "resume", "revive"]
    assert commands["pause"]().message == "the gateway is paused"
    assert commands["resume"]().message == "the gateway is resumed"
    assert (await commands["kill"]("all")).changed
    assert (await commands["revive"]("all")).changed
    for name in ("kill", "revive"):
        with pytest.raises(RpcError, match="expected one of tool"):
            await commands[name]("role", "x")


async def test_events_are_recorded_only_with_an_operator_server(tmp_path: Path) -> None:
    assert App(DEFAULT_CONFIG).gateway.pipeline.events
    assert not App(Config()).gateway.pipeline.events
    disabled_file = config(tmp_path, OPERATOR + "disabled = true", child("small"))
    assert not App(load_config(Path(disabled_file), {})).gateway.pipeline.events


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("", ["status", "logs"]),
        ('operator_tools = "read"', ["status", "logs"]),
        (
            'operator_tools = "all"',
            ["status", "logs", "pause", "resume", "kill", "revive"],
        ),
    ],
)
async def test_tools_that_change_state_are_listed_only_with_operator_tools_all(
    tmp_path: Path, more: str, names: list[str]
) -> None:
    app = App(load_config(Path(config(tmp_path, OPERATOR + more)), {}))
    async with app.running() as gateway:
        await gateway.registry.wait_complete()
        assert [
            feature.key for feature in gateway.registry.upstream("me").listing.features
        ] == names
