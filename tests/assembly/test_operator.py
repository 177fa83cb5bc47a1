"""The operator's desk, as the settings have it."""

from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, child, config
from trunkline.app import DEFAULT, App
from trunkline.assembly.operator import commands_of
from trunkline.config import Config, load
from trunkline.jsonrpc import RpcError


async def test_the_user_can_kill_and_revive_pause_and_resume() -> None:
    commands = commands_of(App(DEFAULT).desk)
    assert sorted(commands) == ["kill", "pause", "resume", "revive"]
    assert commands["pause"]().message == "the gateway is paused"
    assert commands["resume"]().message == "the gateway goes on"
    assert (await commands["kill"]("all")).changed
    assert (await commands["revive"]("all")).changed
    for name in ("kill", "revive"):
        with pytest.raises(RpcError, match="expected one of tool"):
            await commands[name]("role", "x")


async def test_events_are_made_only_where_somebody_can_ask_for_them(tmp_path: Path) -> None:
    assert App(DEFAULT).gateway.layers.events
    assert not App(Config()).gateway.layers.events
    off = config(tmp_path, OPERATOR + "disabled = true", child("small"))
    assert not App(load(Path(off), {})).gateway.layers.events


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
async def test_tools_that_change_something_are_offered_only_if_the_file_says_so(
    tmp_path: Path, more: str, names: list[str]
) -> None:
    app = App(load(Path(config(tmp_path, OPERATOR + more)), {}))
    async with app.running() as gateway:
        await gateway.registry.wait_settled()
        assert [offer.key for offer in gateway.registry.upstream("me").listing.offers] == names
