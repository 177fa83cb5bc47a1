"""How a running gateway is seen, by whom, and what of it."""

import asyncio
import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from tests.cli.samples import BROKEN, OPERATOR, child, config, fetch, hello
from trunkline import __version__, control
from trunkline.app import DEFAULT, App
from trunkline.config import HttpSettings, load
from trunkline.control import GatewayStatus, Sighting, listening, sightings
from trunkline.jsonrpc import ConnectionLost, RpcError, from_raw


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Generator[dict[str, str]]:
    """Return surroundings of our own; the path of a socket must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(control, "FALLBACK", Path(folder))
        yield {"XDG_RUNTIME_DIR": folder}


def status() -> GatewayStatus:
    return GatewayStatus(os.getpid(), __version__, "test", None, 1.5, 0, ())


COMMANDS: control.Commands = {"snapshot": status}


def folder_of(environ: dict[str, str]) -> Path:
    return control.socket_folders(environ)[0]


async def look(environ: dict[str, str]) -> list[Sighting]:
    """Look where all is as it should be."""
    unsafe: list[OSError] = []
    found = await sightings(environ, unsafe.append)
    assert unsafe == []
    assert all(each.path and each.path.name == f"{each.pid}.sock" for each in found)
    return [each._replace(path=None) for each in found]


def dead_pid() -> int:
    """Return the number of a process that is gone."""
    with subprocess.Popen(["true"]) as process:
        process.wait(20)
    return process.pid


async def test_a_gateway_is_seen_while_it_listens_and_no_longer(environ: dict[str, str]) -> None:
    async with asyncio.timeout(10):
        assert await look(environ) == []
        async with listening(COMMANDS, environ) as path:
            assert path == folder_of(environ) / f"{os.getpid()}.sock"
            assert await look(environ) == [Sighting(os.getpid(), status())]
        assert not path.exists()
        assert await look(environ) == []


async def test_folder_and_socket_are_for_the_user_alone(environ: dict[str, str]) -> None:
    async with listening(COMMANDS, environ) as path:
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700


def test_the_first_place_that_is_there_is_used_and_all_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "FALLBACK", tmp_path)
    name = f"trunkline-{os.getuid()}"
    inner = tmp_path / "inner"
    inner.mkdir()
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "nowhere"), "TMPDIR": str(inner)}
    assert control.socket_folders(environ) == [inner / name, tmp_path / name]
    assert control.socket_folders({"XDG_RUNTIME_DIR": ""}) == [tmp_path / name]


async def test_a_gateway_that_knows_nothing_of_its_surroundings_is_seen_too(
    environ: dict[str, str], tmp_path: Path
) -> None:
    async with asyncio.timeout(10), listening(COMMANDS, {}):
        seen = await look({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert seen == [Sighting(os.getpid(), status())]


async def test_a_folder_that_is_open_to_others_is_not_used(environ: dict[str, str]) -> None:
    folder_of(environ).mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="open to others"):
        async with listening(COMMANDS, environ):
            raise AssertionError
    unsafe: list[OSError] = []
    assert await sightings(environ, unsafe.append) == []
    assert ["open to others" in str(why) for why in unsafe] == [True]


async def test_a_folder_that_is_a_link_is_not_used(environ: dict[str, str], tmp_path: Path) -> None:
    folder_of(environ).symlink_to(tmp_path)
    with pytest.raises(OSError, match="not what it should be"):
        async with listening(COMMANDS, environ):
            raise AssertionError


async def test_a_folder_of_somebody_else_is_not_used(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(environ)
    folder.mkdir(mode=0o700)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    folder.rename(folder_of(environ))
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        async with listening(COMMANDS, environ):
            raise AssertionError


async def test_a_path_too_long_for_a_socket_is_an_error_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    with pytest.raises(OSError):  # noqa: PT011  each system has its own words
        async with listening(COMMANDS, {"XDG_RUNTIME_DIR": str(deep)}):
            raise AssertionError
    assert list(folder_of({"XDG_RUNTIME_DIR": str(deep)}).iterdir()) == []


def leave_socket(environ: dict[str, str], pid: int) -> Path:
    """Leave behind a socket at which nobody listens."""
    folder = folder_of(environ)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{pid}.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    path.chmod(0o600)
    return path


async def test_what_the_dead_left_is_removed(environ: dict[str, str]) -> None:
    dead = leave_socket(environ, dead_pid())
    recycled = leave_socket(environ, os.getppid())
    absurd = leave_socket(environ, 10**12)
    stranger = folder_of(environ) / "notes.txt"
    stranger.touch()
    async with asyncio.timeout(10):
        assert await look(environ) == []
    assert not dead.exists()
    assert not recycled.exists()
    assert not absurd.exists()
    assert stranger.exists()


async def test_a_gateway_that_starts_removes_them_too(environ: dict[str, str]) -> None:
    dead = leave_socket(environ, dead_pid())
    leave_socket(environ, os.getpid())
    async with asyncio.timeout(10), listening(COMMANDS, environ):
        assert not dead.exists()
        assert await look(environ) == [Sighting(os.getpid(), status())]


async def test_one_that_does_not_answer_is_shown_as_such(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PATIENCE", 0.05)
    leave_socket(environ, os.getpid()).unlink()
    with socket.socket(socket.AF_UNIX) as deaf:
        path = folder_of(environ) / f"{os.getpid()}.sock"
        deaf.bind(str(path))
        path.chmod(0o600)
        deaf.listen()
        async with asyncio.timeout(10):
            assert await look(environ) == [Sighting(os.getpid(), None)]


async def test_something_else_than_a_socket_is_not_asked(environ: dict[str, str]) -> None:
    path = leave_socket(environ, os.getpid())
    path.unlink()
    path.touch(mode=0o600)
    assert await look(environ) == [Sighting(os.getpid(), None)]


async def test_whoever_hangs_on_does_not_hold_up_the_end(environ: dict[str, str]) -> None:
    async with asyncio.timeout(10):
        async with listening(COMMANDS, environ) as path:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b'garbage\n{"jsonrpc":"2.0","id":1,"method":"change"}\n')
            assert b"-32700" in await reader.readline()
            assert b"-32601" in await reader.readline()
        assert await reader.read() == b""
        writer.close()


async def test_a_gateway_does_what_the_table_has_and_nothing_else(environ: dict[str, str]) -> None:
    told: list[str] = []

    def reload(why: str = "") -> dict[str, str]:
        told.append(why)
        if why == "bad":
            raise RpcError(1, "the file is bad")
        return {"done": why}

    async with asyncio.timeout(10), listening({**COMMANDS, "reload": reload}, environ) as path:
        assert from_raw(await control.request(path, "reload", {"why": "now"})) == {"done": "now"}
        assert from_raw(await control.request(path, "reload")) == {"done": ""}
        with pytest.raises(RpcError, match="the file is bad"):
            await control.request(path, "reload", {"why": "bad"})
        with pytest.raises(RpcError, match="Method not found"):
            await control.request(path, "revive")
        with pytest.raises(RpcError, match="Invalid params"):
            await control.request(path, "reload", {"when": "now"})
    assert told == ["now", "", "bad"]


async def test_what_is_asked_at_once_is_bounded(environ: dict[str, str]) -> None:
    async with asyncio.timeout(10), listening(COMMANDS, environ) as path:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"a":"' + b"x" * control.MAX_REQUEST + b'"}\n')
        assert b"-32700" in await reader.readline()
        writer.close()
        assert len(await look(environ)) == 1


async def test_more_than_so_many_are_turned_away(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_CONNECTIONS", 1)
    async with asyncio.timeout(10), listening(COMMANDS, environ) as path:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"garbage\n")
        assert b"-32700" in await reader.readline()
        with pytest.raises(ConnectionLost):
            await control.request(path, "snapshot")
        writer.close()
        assert await reader.read() == b""
        while not (await look(environ))[0].status:
            await asyncio.sleep(0)


async def test_one_that_does_nothing_is_not_waited_for_for_ever(environ: dict[str, str]) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(10), listening({"wait": wait}, environ) as path:
        with pytest.raises(TimeoutError):
            await control.request(path, "wait", patience=0.01)


async def test_the_snapshot_of_a_gateway_has_its_servers_and_none_of_their_secrets(
    tmp_path: Path,
) -> None:
    secret = 'env = { SECRET_TOKEN = "hunter22" }'
    loaded = load(Path(config(tmp_path, child("small", more=secret), BROKEN, OPERATOR)), {})
    app = App(loaded)
    tell = control.status_of(app)
    idle = tell()
    assert [server.state for server in idle.servers] == ["idle"] * 3
    async with asyncio.timeout(20), app.running() as gateway:
        await gateway.registry.wait_settled()
        found = tell()
        small, broken, me = found.servers
        assert small.pid == app.servers.children["small"].pid
    assert found.config == str(tmp_path / "some.toml")
    assert found.uptime >= 0
    assert (small.state, small.revision, small.restarts, small.in_flight) == (
        *("ready", "2025-11-25"),
        *(0, 0),
    )
    assert small.stderr == "the secret is …"
    assert (broken.state, broken.pid, broken.stderr) == ("waiting", None, None)
    assert broken.retry_in is not None
    assert (me.state, me.pid) == ("ready", None)
    assert tell().servers[0].pid is None


async def test_the_snapshot_of_one_that_listens_says_where_and_to_how_many() -> None:
    http = HttpSettings(listen="127.0.0.1:0", path="/here")
    loaded = msgspec.structs.replace(DEFAULT, http=http)
    app = App(loaded)
    tell = control.status_of(app)
    assert (tell().http, tell().http_sessions) == ((), 0)
    async with asyncio.timeout(20), app.running(), app.listening(http):
        (url,) = tell().http
        assert url.endswith("/here")
        await fetch(url, hello())
        assert (tell().sessions, tell().http_sessions) == (1, 1)


def test_one_of_an_older_version_is_understood() -> None:
    known = msgspec.to_builtins(status())
    del known["http"], known["http_sessions"]
    assert msgspec.convert(known, GatewayStatus) == status()
