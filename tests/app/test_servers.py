"""Connecting servers by kind, and keeping their detected protocols."""

import json
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.cli.samples import OPERATOR, SERVER, child, config
from tests.gateway.servers import SessionClient
from trunkline.app.application import App
from trunkline.app.build import snapshot_key
from trunkline.backends.builtin import BuiltinSettings
from trunkline.backends.command import CommandSettings
from trunkline.backends.url import UrlSettings
from trunkline.config import Config, ServerSettings, load_config
from trunkline.gateway.listing_files import LISTINGS_FOLDER
from trunkline.mcp.features import FeatureKind


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


def test_a_snapshot_belongs_to_one_configuration_of_a_server(tmp_path: Path) -> None:
    file = Path(config(tmp_path))
    other_folder = tmp_path / "other"
    other_folder.mkdir()

    def key(*, folder: Path = tmp_path, name: str = "a", **backend: Any) -> str:
        kind = UrlSettings if "url" in backend else CommandSettings
        server = ServerSettings(name=name, backend=kind(**backend))
        return snapshot_key(server, Config(source=folder / file.name))

    found = [
        key(command="x"),
        key(command="x", args=("y",)),
        key(command="x", env={"TOKEN": "one"}),
        key(command="x", env={"TOKEN": "two"}),
        key(command="x", cwd="/"),
        key(command="x", folder=other_folder),
        key(url="http://x"),
        key(url="http://x", headers={"authorization": "one"}),
        key(url="http://x", headers={"authorization": "two"}),
    ]
    assert len(set(found)) == len(found)
    assert key(command="x", name="renamed") == found[0]
    assert key(command="x", idle_stop="10m") == found[0]
    assert "one" not in "".join(found)
    operator = ServerSettings(name="me", backend=BuiltinSettings(builtin="operator"))
    assert snapshot_key(operator, Config()) == ""


async def listed_by(app: App, capabilities: dict[str, Any] | None = None) -> list[str]:
    """Return the tools that the first client of a gateway gets first."""
    async with SessionClient(app.gateway, capabilities) as client:
        await client.hello()
        names = await client.names()
    await app.aclose()
    return names


async def test_the_first_list_after_a_restart_does_not_wait_for_the_server(tmp_path: Path) -> None:
    state, program = tmp_path / "state", tmp_path / "program.py"
    program.write_text(f"import runpy; runpy.run_path({str(SERVER)!r}, run_name='__main__')")
    args = json.dumps([str(program), "add"])
    table = f"[servers.small]\ncommand = {json.dumps(sys.executable)}\nargs = {args}"
    file = Path(config(tmp_path, table))
    assert await listed_by(App(load_config(file, {}), state)) == ["small__add"]
    (snapshot,) = (state / LISTINGS_FOLDER).iterdir()
    assert snapshot.stat().st_mode & 0o777 == 0o600
    program.write_text("import sys; sys.stdin.read()")  # the same server never answers now
    assert await listed_by(App(load_config(file, {}), state)) == ["small__add"]
    # With another argument it would be another server, without a snapshot.
    other = Path(config(tmp_path, table.replace('"add"', '"subtract"')))
    app = App(load_config(other, {}), state)
    app.gateway.registry.first_list_timeout = 0.0
    assert await listed_by(app) == []


async def test_commands_do_not_use_snapshots(tmp_path: Path) -> None:
    state = tmp_path / "state"
    file = Path(config(tmp_path, child("small", "add")))
    async with App(load_config(file, {}), state).running() as gateway:
        await gateway.registry.wait_complete()
        assert len(gateway.registry.catalog.entries(FeatureKind.TOOL)) == 1
    assert not (state / LISTINGS_FOLDER).exists()


async def test_the_time_that_a_first_list_waits_follows_a_reload(tmp_path: Path) -> None:
    file = Path(config(tmp_path, "[gateway]\nfirst_list_timeout = 7"))
    app = App(load_config(file, {}))
    assert app.gateway.registry.first_list_timeout == 7
    file.write_text("", encoding="utf-8")
    result = await app.create_reloader({}).reload()
    assert (result.problem, app.gateway.registry.first_list_timeout) == (None, 20)
    await app.aclose()


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
