"""The control socket: finding running gateways, and sending them commands."""

import asyncio
import os
import pwd
import socket
import stat
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.samples import BROKEN, OPERATOR, child, config, fetch, hello
from tests.tasks import HANG_TIMEOUT, hang_guard
from trunkline import __version__
from trunkline.app import control
from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.app.control import (
    ControlLimits,
    GatewayStatus,
    RunningGateway,
    find_gateways,
    serve_control,
)
from trunkline.config import HttpSettings, load_config
from trunkline.jsonrpc import ConnectionLost, RpcError, from_raw


@pytest.fixture
def folder() -> Generator[Path]:
    """Return an isolated socket folder; the path of a socket must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        yield Path(parent) / "trunkline"


def status() -> GatewayStatus:
    return GatewayStatus(os.getpid(), __version__, "test", None, 1.5, 0, ())


COMMANDS: control.ControlCommands = {"snapshot": status}


PATIENT_LIMITS = ControlLimits(status_timeout=HANG_TIMEOUT)


async def find_all(*folders: Path, limits: ControlLimits = PATIENT_LIMITS) -> list[RunningGateway]:
    """Return the running gateways; assert that every socket folder is safe."""
    unsafe: list[OSError] = []
    found = await find_gateways(folders, unsafe.append, limits)
    assert unsafe == []
    assert all(each.path and each.path.name == f"{each.pid}.sock" for each in found)
    return [each._replace(path=None) for each in found]


def dead_pid() -> int:
    """Return the pid of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait(HANG_TIMEOUT)
    return process.pid


async def test_a_gateway_is_found_only_while_its_control_socket_is_open(folder: Path) -> None:
    async with hang_guard():
        assert await find_all(folder) == []
        async with serve_control(COMMANDS, folder) as path:
            assert path == folder / f"{os.getpid()}.sock"
            assert await find_all(folder) == [RunningGateway(os.getpid(), status())]
        assert not path.exists()
        assert await find_all(folder) == []


@pytest.mark.holds("O4.5")
async def test_only_the_user_can_access_the_socket_and_its_folder(folder: Path) -> None:
    async with serve_control(COMMANDS, folder) as path:
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700


@pytest.fixture(autouse=True)
def no_service_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the gateways that run on this machine."""
    monkeypatch.setattr(control, "SERVICE_FOLDERS", ())


def test_gateways_of_services_are_found_whatever_the_variables_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, fallback = f"trunkline-{os.getuid()}", tmp_path / "tmp"
    login, service = tmp_path / str(os.getuid()), tmp_path / "service"
    for place in (login, service):
        place.mkdir()
    folders = (f"{tmp_path}/{{}}", str(service), str(tmp_path / "nowhere"))
    monkeypatch.setattr(control, "SERVICE_FOLDERS", folders)
    # A gateway does not create a folder there unless a variable names it.
    assert control.socket_folders({}, fallback) == [
        *(fallback / name, login / name, service / name),
    ]
    # Under systemd, with RuntimeDirectory=.
    found = control.socket_folders({"RUNTIME_DIRECTORY": str(service)}, fallback)
    assert found == [service / name, fallback / name, login / name]


def test_the_first_existing_folder_is_used_and_all_are_searched(tmp_path: Path) -> None:
    name = f"trunkline-{os.getuid()}"
    inner = tmp_path / "inner"
    inner.mkdir()
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "nowhere"), "TMPDIR": str(inner)}
    assert control.socket_folders(environ, tmp_path) == [inner / name, tmp_path / name]
    assert control.socket_folders({"XDG_RUNTIME_DIR": ""}, tmp_path) == [tmp_path / name]


async def test_a_gateway_in_the_fallback_folder_is_found(folder: Path, tmp_path: Path) -> None:
    (fallback,) = control.socket_folders({}, folder.parent)
    folders = control.socket_folders({"XDG_RUNTIME_DIR": str(tmp_path)}, folder.parent)
    async with hang_guard(), serve_control(COMMANDS, fallback):
        seen = await find_all(*folders)
    assert seen == [RunningGateway(os.getpid(), status())]


async def test_a_socket_folder_open_to_others_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="open to others"):
        async with serve_control(COMMANDS, folder):
            raise AssertionError
    unsafe: list[OSError] = []
    assert await find_gateways([folder], unsafe.append) == []
    assert ["open to others" in str(why) for why in unsafe] == [True]


async def test_a_socket_folder_that_is_a_symlink_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match=r"is a symbolic link, which .* did not create; find"):
        async with serve_control(COMMANDS, folder):
            raise AssertionError


async def test_a_socket_folder_that_is_a_file_is_refused(folder: Path) -> None:
    folder.touch(mode=0o600)
    with pytest.raises(PermissionError, match="is of an unexpected file type"):
        async with serve_control(COMMANDS, folder):
            raise AssertionError


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_socket_folder_of_another_user_is_refused_by_the_name_of_its_owner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    folder.mkdir(mode=0o700)
    owner = os.getuid()
    name = f"{pwd.getpwuid(owner).pw_name} ({owner})"
    if not is_known:
        monkeypatch.setattr(pwd, "getpwuid", dict[int, Any]().__getitem__)
        name = str(owner)
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    expected = f"{folder} belongs to the user {name}, so someone else created it or may control it"
    remedy = f"ask the user {name} or root to remove it, or set XDG_RUNTIME_DIR to a folder of your"
    with pytest.raises(PermissionError) as refused:
        async with serve_control(COMMANDS, folder):
            raise AssertionError
    assert str(refused.value).startswith(f"{expected}; {remedy}")


async def test_a_socket_path_that_is_too_long_is_an_error_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    long_folder = tmp_path / ("x" * 120)
    with pytest.raises(OSError):  # noqa: PT011  the message depends on the system
        async with serve_control(COMMANDS, long_folder):
            raise AssertionError
    assert list(long_folder.iterdir()) == []


def leave_socket(folder: Path, pid: int) -> Path:
    """Create a socket without a listener, as a killed gateway leaves it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{pid}.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    path.chmod(0o600)
    return path


async def test_sockets_of_ended_gateways_are_removed(folder: Path) -> None:
    dead = leave_socket(folder, dead_pid())
    recycled = leave_socket(folder, os.getppid())
    absurd = leave_socket(folder, 10**12)
    unrelated = folder / "notes.txt"
    unrelated.touch()
    async with hang_guard():
        assert await find_all(folder) == []
    assert not dead.exists()
    assert not recycled.exists()
    assert not absurd.exists()
    assert unrelated.exists()


async def test_a_starting_gateway_removes_sockets_of_ended_gateways(folder: Path) -> None:
    dead = leave_socket(folder, dead_pid())
    leave_socket(folder, os.getpid())
    async with hang_guard(), serve_control(COMMANDS, folder):
        assert not dead.exists()
        assert await find_all(folder) == [RunningGateway(os.getpid(), status())]


async def test_a_gateway_that_does_not_answer_is_found_without_a_status(folder: Path) -> None:
    limits = ControlLimits(status_timeout=0.05)
    leave_socket(folder, os.getpid()).unlink()
    with socket.socket(socket.AF_UNIX) as unresponsive:
        path = folder / f"{os.getpid()}.sock"
        unresponsive.bind(str(path))
        path.chmod(0o600)
        unresponsive.listen()
        async with hang_guard():
            assert await find_all(folder, limits=limits) == [RunningGateway(os.getpid(), None)]


async def test_a_file_that_is_no_socket_is_not_contacted(folder: Path) -> None:
    path = leave_socket(folder, os.getpid())
    path.unlink()
    path.touch(mode=0o600)
    assert await find_all(folder) == [RunningGateway(os.getpid(), None)]


async def test_an_open_control_connection_does_not_delay_shutdown(folder: Path) -> None:
    async with hang_guard():
        async with serve_control(COMMANDS, folder) as path:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b'garbage\n{"jsonrpc":"2.0","id":1,"method":"change"}\n')
            assert b"-32700" in await reader.readline()
            assert b"-32601" in await reader.readline()
        assert await reader.read() == b""
        writer.close()


async def test_only_registered_commands_are_executed(folder: Path) -> None:
    reasons: list[str] = []

    def reload(why: str = "") -> dict[str, str]:
        reasons.append(why)
        if why == "bad":
            raise RpcError(1, "the file is bad")
        return {"done": why}

    async with hang_guard(), serve_control({**COMMANDS, "reload": reload}, folder) as path:
        assert from_raw(await control.send_command(path, "reload", {"why": "now"})) == {
            "done": "now"
        }
        assert from_raw(await control.send_command(path, "reload")) == {"done": ""}
        with pytest.raises(RpcError, match="the file is bad"):
            await control.send_command(path, "reload", {"why": "bad"})
        with pytest.raises(RpcError, match="Method not found"):
            await control.send_command(path, "revive")
        with pytest.raises(RpcError, match="Invalid params"):
            await control.send_command(path, "reload", {"when": "now"})
    assert reasons == ["now", "", "bad"]


async def test_the_size_of_a_control_request_is_limited(folder: Path) -> None:
    async with hang_guard(), serve_control(COMMANDS, folder) as path:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"a":"' + b"x" * control.MAX_REQUEST_BYTES + b'"}\n')
        assert b"-32700" in await reader.readline()
        writer.close()
        assert len(await find_all(folder)) == 1


async def test_control_connections_above_the_limit_are_closed(folder: Path) -> None:
    limits = ControlLimits(max_connections=1)
    async with hang_guard(), serve_control(COMMANDS, folder, limits=limits) as path:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"garbage\n")
        assert b"-32700" in await reader.readline()
        with pytest.raises(ConnectionLost):
            await control.send_command(path, "snapshot")
        writer.close()
        assert await reader.read() == b""
        while not (await find_all(folder))[0].status:
            await asyncio.sleep(0)


async def test_a_command_without_a_response_times_out(folder: Path) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async with hang_guard(), serve_control({"wait": wait}, folder) as path:
        with pytest.raises(TimeoutError):
            await control.send_command(path, "wait", timeout=0.01)


async def test_the_status_lists_the_servers_without_their_secrets(
    tmp_path: Path,
) -> None:
    secret = 'env = { SECRET_TOKEN = "hunter22" }'
    loaded = load_config(Path(config(tmp_path, child("small", more=secret), BROKEN, OPERATOR)), {})
    app = App(loaded)
    read_status = control.status_reader(app)
    idle = read_status()
    assert [server.state for server in idle.servers] == ["not_started"] * 3
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        found = read_status()
        small, broken, me = found.servers
        assert small.pid == app.servers.children["small"].pid
    assert found.config == str(tmp_path / "some.toml")
    assert found.uptime >= 0
    assert (small.state, small.revision, small.restarts, small.in_flight) == (
        *("ready", "2025-11-25"),
        *(0, 0),
    )
    assert small.stderr == "the secret is [redacted]"
    assert (broken.state, broken.pid, broken.stderr) == ("waiting", None, None)
    assert broken.retry_in is not None
    assert (me.state, me.pid) == ("ready", None)
    assert read_status().servers[0].pid is None


async def test_the_status_has_the_http_address_and_the_number_of_sessions() -> None:
    http = HttpSettings(listen="127.0.0.1:0", path="/here")
    loaded = msgspec.structs.replace(DEFAULT_CONFIG, http=http)
    app = App(loaded)
    read_status = control.status_reader(app)
    assert (read_status().http, read_status().http_sessions) == ((), 0)
    async with hang_guard(), app.running(), app.listening(http):
        (url,) = read_status().http
        assert url.endswith("/here")
        await fetch(url, hello())
        assert (read_status().sessions, read_status().http_sessions) == (1, 1)


def test_a_status_of_an_older_version_can_be_read() -> None:
    fields = msgspec.to_builtins(status())
    del fields["http"], fields["http_sessions"]
    assert msgspec.convert(fields, GatewayStatus) == status()


def test_the_urls_of_a_status_are_those_that_clients_can_connect_to() -> None:
    http = HttpSettings(path="/m")
    assert control.mcp_urls((), http) == ()
    assert control.mcp_urls(("https://0.0.0.0:1", "https://[::1]:1"), http) == (
        "https://127.0.0.1:1/m",
        "https://[::1]:1/m",
    )
    public = HttpSettings(path="/m", public_url="https://gw.example/tools/")
    assert control.mcp_urls(("http://[::]:1",), public) == (
        "https://gw.example/tools/m",
        "http://[::1]:1/m",
    )
    assert control.mcp_urls((), public) == ()  # not served
