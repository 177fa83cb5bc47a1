"""What a server that the gateway starts can learn of the gateway, proven with real processes."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.samples import child, config, fetch, hello
from tests.tasks import hang_guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SPY = Path(__file__).parent / "children" / "spy.py"
SECRET = "a-secret-that-only-the-gateway-knows-0123456789"
HTTP = '[http]\nlisten = "127.0.0.1:0"\n'
AUTH = '[auth]\nmode = ["jwt"]\n[auth.jwt]\nsecret_env = "SPIED_SECRET"\n'
SPIED = ("SPIED_SECRET", "SPIED_KEY")


def drop_ptrace() -> None:
    """Give up CAP_SYS_PTRACE, which root has on a machine and lacks in a container."""
    ctypes.CDLL(None).prctl(24, 19, 0, 0, 0)  # PR_CAPBSET_DROP


@asynccontextmanager
async def gateway(
    folder: Path, *tables: str, preexec: Callable[[], None] = drop_ptrace
) -> AsyncGenerator[tuple["asyncio.subprocess.Process", str]]:
    """Run `trunkline serve` with secrets in its environment; yield it and its URL."""
    environ = {**os.environ, "SPIED_SECRET": SECRET, "SPIED_KEY": "key-of-another-server"}
    environ["XDG_RUNTIME_DIR"] = str(folder)
    command = [sys.executable, "-m", "trunkline", "serve", "--config", config(folder, *tables)]
    process = await asyncio.create_subprocess_exec(
        *command, env=environ, stderr=subprocess.PIPE, preexec_fn=preexec
    )
    assert process.stderr is not None
    try:
        async with hang_guard():
            while b"MCP at " not in (line := await process.stderr.readline()):
                assert line, "the gateway ended"
        yield process, line.decode().split("MCP at ")[1].strip()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def spy(name: str, report: Path) -> str:
    arguments = json.dumps([str(SPY), str(report), *SPIED])
    return f"[servers.{name}]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n"


async def read_report(pipe: Path) -> Any:
    """Return what a hostile server writes to a named pipe."""
    async with hang_guard():
        return json.loads(await asyncio.to_thread(pipe.read_bytes))


def token(secret: str = SECRET) -> str:
    command = [sys.executable, "-c", _SIGN, secret]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


_SIGN = """
import sys, time
from joserfc import jwt
from joserfc.jwk import OctKey
claims = {"sub": "anna", "iss": "trunkline", "aud": "trunkline", "exp": int(time.time()) + 600}
print(jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(sys.argv[1])))
"""


async def status_with(url: str, bearer: str) -> int:
    headers = {"authorization": f"Bearer {bearer}"}
    return (
        await fetch(url, hello(), {**headers, "accept": "application/json, text/event-stream"})
    ).status


async def test_a_server_finds_no_secret_of_the_gateway_and_cannot_forge_a_token(
    tmp_path: Path,
) -> None:
    report = tmp_path / "report"
    os.mkfifo(report)
    async with gateway(tmp_path, HTTP, AUTH, spy("spy", report)) as (_, url):
        found = await read_report(report)
        forged = [await status_with(url, each) for each in found["tokens"]]
        assert (found["found"], forged) == ({}, [])
        assert await status_with(url, token()) == 200
        assert await status_with(url, token("another-secret-of-at-least-32-bytes")) == 401


async def test_a_reload_still_resolves_variables_of_the_gateway(tmp_path: Path) -> None:
    key = 'env = { SECRET_TOKEN = "${SPIED_KEY}" }'
    async with gateway(tmp_path, HTTP) as (process, url):
        config(tmp_path, HTTP, AUTH, child("small", "echo", more=key))
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        async with hang_guard():
            while b"auth" not in await process.stderr.readline():
                pass
        assert await status_with(url, token()) == 200
        assert await status_with(url, "nonsense") == 401


REBEL = Path(__file__).parent / "children" / "rebel.py"
ESCAPEE = REBEL.with_name("escapee.py")
REVIVE = [sys.executable, "-m", "trunkline", "revive", "server", "small"]


def rebel(report: Path, way: str, folder: Path, target: int | None = None) -> str:
    """Return the table of a server that attacks the gateway `target`, or else its own."""
    os.mkfifo(report)
    # By number, since other gateways may be running on this machine.
    command = [*REVIVE, "--pid", "PARENT" if target is None else str(target)]
    arguments = json.dumps([str(REBEL), str(report), way, *command])
    table = f"[servers.rebel]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n"
    return f"{table}env = {{ CONTROL_FOLDER = {json.dumps(str(folder))} }}\n"


@pytest.mark.parametrize("way", ["directly", "detached"])
async def test_a_server_cannot_send_commands_to_its_gateway_but_its_user_can(
    tmp_path: Path, way: str
) -> None:
    report = tmp_path / "report"
    tables = (HTTP, child("small", "echo"), rebel(report, way, tmp_path))
    async with gateway(tmp_path, *tables) as (process, _):
        environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": ""}
        found = await read_report(report)
        assert (found["code"], "servers must not control gateways" in found["err"]) == (1, True)
        assert f"was started by the gateway or command {process.pid}" in found["err"]
        if way == "detached":
            assert found["parent"] == process.pid
        status = [*REVIVE[:3], "status", "--pid", str(process.pid)]
        done = await asyncio.to_thread(
            subprocess.run, status, env=environ, capture_output=True, check=False
        )
        assert (done.returncode, b"small" in done.stdout) == (0, True)


def command_with(folder: Path, name: str, table: str) -> list[str]:
    """Return a `trunkline` command whose configuration has one server."""
    folder.mkdir()
    return [*REVIVE[:3], name, "--config", config(folder, table)]


@asynccontextmanager
async def running(command: list[str], folder: Path) -> AsyncGenerator[None]:
    """Run a command, and interrupt it at the end, as Ctrl-C does."""
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        async with hang_guard():
            await process.wait()


@pytest.mark.parametrize("name", ["check", "tools"])
async def test_a_server_of_a_command_cannot_control_a_gateway(tmp_path: Path, name: str) -> None:
    report, other = tmp_path / "report", tmp_path / "other"
    async with gateway(tmp_path, HTTP, child("small", "echo")) as (target, _):
        table = rebel(report, "directly", tmp_path, target.pid)
        async with running(command_with(other, name, table), other):
            found = await read_report(report)
    assert (found["code"], "servers must not control gateways" in found["err"]) == (1, True)


async def test_a_server_of_a_gateway_cannot_control_one_that_uses_another_folder(
    tmp_path: Path,
) -> None:
    report, other = tmp_path / "report", tmp_path / "other"
    other.mkdir()
    async with (
        gateway(tmp_path, HTTP, child("small", "echo")) as (target, _),
        gateway(other, HTTP, rebel(report, "directly", tmp_path, target.pid)) as (process, _),
    ):
        found = await read_report(report)
    assert found["code"] == 1
    assert f"was started by the gateway or command {process.pid}" in found["err"]


async def test_no_process_of_a_server_outlives_a_command(tmp_path: Path) -> None:
    report, other = tmp_path / "report", tmp_path / "other"
    os.mkfifo(report)
    arguments = json.dumps([str(ESCAPEE), str(report)])
    table = f"[servers.escapee]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n"
    async with running(command_with(other, "check", table), other):
        pipe = await asyncio.to_thread(report.open, "rb", buffering=0)
        assert await asyncio.to_thread(pipe.read, 7) == b"escaped"
    # The end of the pipe: no process has it open for writing.
    os.set_blocking(pipe.fileno(), False)
    with pipe:
        assert pipe.read(1) == b""
