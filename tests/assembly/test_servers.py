"""Servers as their settings have them: started by what they are, and forgotten when they go."""

from pathlib import Path

from tests.cli.samples import OPERATOR, child, config
from trunkline.app import App
from trunkline.config import ServerSettings, load


async def test_each_kind_is_started_as_what_it_is(tmp_path: Path) -> None:
    app = App(load(Path(config(tmp_path, child("small"), OPERATOR)), {}))
    async with app.running() as gateway:
        await gateway.registry.wait_settled()
        assert {each.name: each.state.value for each in gateway.registry.snapshot()} == {
            "small": "ready",
            "me": "ready",
        }
        assert list(app.servers.children) == ["small"]
    assert app.servers.children["small"].returncode is not None


def test_what_was_found_out_is_kept_for_those_that_stay(tmp_path: Path) -> None:
    servers = App(load(Path(config(tmp_path)), {})).servers
    one = ServerSettings(name="a", command="x")
    two = ServerSettings(name="b", url="http://b.example")
    servers.connect(one)
    servers.connect(two)
    kept = dict(servers.memories)
    servers.connect(one)
    assert servers.memories == kept
    servers.keep([one], ["b"])
    assert len(servers.memories) == 1
    assert servers.memories.items() <= kept.items()
