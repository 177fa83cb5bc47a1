"""Connecting servers by kind, and keeping their detected protocols."""

from pathlib import Path

from msgspec.structs import replace

from tests.cli.samples import OPERATOR, child, config
from trunkline.app.application import App
from trunkline.backends.command import CommandSettings
from trunkline.backends.url import UrlSettings
from trunkline.config import ServerSettings, load_config


async def test_only_servers_with_a_command_start_a_process(tmp_path: Path) -> None:
    app = App(load_config(Path(config(tmp_path, child("small"), OPERATOR)), {}))
    async with app.running() as gateway:
        await gateway.registry.wait_complete()
        assert {each.name: each.state.value for each in gateway.registry.snapshots()} == {
            "small": "ready",
            "me": "ready",
        }
        assert list(app.servers.children) == ["small"]
    assert app.servers.children["small"].returncode is not None


def test_detected_protocols_are_kept_only_for_remaining_servers(tmp_path: Path) -> None:
    servers = App(load_config(Path(config(tmp_path)), {})).servers
    first = ServerSettings(name="a", backend=CommandSettings(command="x"))
    second = ServerSettings(name="b", backend=UrlSettings(url="http://b.example"))
    servers.connect(first)
    servers.connect(second)
    caches = dict(servers.era_caches)
    servers.connect(replace(first, name="renamed"))
    assert servers.era_caches == caches
    servers.retain(["renamed"], ["a", "b"])
    assert len(servers.era_caches) == 1
    assert servers.era_caches.items() <= caches.items()
