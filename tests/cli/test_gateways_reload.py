"""`trunkline reload`, SIGHUP and file changes, against real processes."""

import asyncio
import json
import os
import pty
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_application_reload import children, text_of
from tests.cli.samples import OPERATOR, child, config, run
from tests.tasks import hang_guard
from trunkline.app import control
from trunkline.app.control import GatewayStatus, serve_control
from trunkline.app.reload import ReloadResult
from trunkline.cli import gateways
from trunkline.cli.gateways import no_gateway
from trunkline.cli.serve import reload_lines
from trunkline.jsonrpc import RpcError

CLIENT = {"name": "test", "version": "1"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}


class Gateway:
    """`trunkline serve` over stdio, and its only client."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.notifications: asyncio.Queue[str] = asyncio.Queue()
        self.stderr_lines: asyncio.Queue[str] = asyncio.Queue()
        self.readers = [
            asyncio.create_task(self._read_stdout()),
            asyncio.create_task(self._read_stderr()),
        ]

    async def _read_stdout(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            message = json.loads(line)
            if "method" in message:
                self.notifications.put_nowait(message["method"])
            else:
                self.waiting.pop(message["id"]).set_result(message)

    async def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.stderr_lines.put_nowait(line.decode().removesuffix("\n"))

    def send(self, method: str, params: Any = None) -> "asyncio.Future[Any]":
        assert self.process.stdin is not None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        id = len(self.waiting) + id_of(future)
        self.waiting[id] = future
        message: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": id,
            "method": method,
            "params": params or {},
        }
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        return future

    def call(self, name: str, **arguments: Any) -> "asyncio.Future[Any]":
        return self.send("tools/call", {"name": name, "arguments": arguments})

    async def text(self, name: str, **arguments: Any) -> str:
        return text_of(await self.call(name, **arguments))

    async def names(self) -> list[str]:
        found = await self.send("tools/list")
        return [tool["name"] for tool in found["result"]["tools"]]

    async def wait_for_tool(self, name: str) -> None:
        while name not in await self.names():
            await self.notifications.get()

    async def wait_for_stderr(self, text: str) -> str:
        """Wait for a line on stderr that contains `text`; return the rest of the line."""
        while not (found := (await self.stderr_lines.get()).partition(text))[1]:
            pass
        return found[2]

    async def reload(self) -> str:
        self.process.send_signal(signal.SIGHUP)
        return await self.wait_for_stderr("configuration reloaded: ")


def id_of(future: object) -> int:
    return id(future)


@asynccontextmanager
async def started(folder: Path, *tables: str, watch: bool = False) -> AsyncGenerator[Gateway]:
    file = write(folder, *tables, watch=watch)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}
    environ.pop("TRUNKLINE_CONFIG", None)
    command = [sys.executable, "-m", "trunkline", "serve", "--stdio", "--config", file]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ, cwd=folder
    )
    gateway = Gateway(process)
    try:
        async with hang_guard():
            await gateway.send("initialize", HELLO)
            assert process.stdin is not None
            process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
            await gateway.names()
            yield gateway
            process.stdin.close()
            assert await process.wait() == 0
            await asyncio.gather(*gateway.readers)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def write(folder: Path, *tables: str, watch: bool = False) -> str:
    more = f"[gateway]\nreload_on_change = {str(watch).lower()}\n[log]\nlevel = 'info'\n"
    return config(folder, more, *tables)


@pytest.mark.holds("O0.11", "M13")
async def test_a_reload_keeps_the_process_and_the_calls_of_an_unchanged_server(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    kept, one, two = child("kept", "pid", "read"), child("one", "pid"), child("two", "pid")
    async with started(tmp_path, kept, one) as gateway:
        pid, other = await gateway.text("kept__pid"), await gateway.text("one__pid")
        pending_call = gateway.call("kept__read", pipe=str(tmp_path / "pipe"))
        write(tmp_path, two, kept, child("one", "pid", more='env = { A = "b" }'))
        assert await gateway.reload() == ("servers.two: added, servers.one: restarted (env)")
        await gateway.wait_for_tool("two__pid")
        assert (await gateway.names())[0] == "two__pid"
        assert await gateway.text("kept__pid") == pid
        while await gateway.text("one__pid") == other:
            pass
        assert not pending_call.done()
        write(tmp_path, kept + "timeout = 5")
        assert "kept: adjusted (timeout)" in await gateway.reload()
        assert await gateway.names() == ["kept__pid", "kept__read"]
        assert await gateway.text("kept__pid") == pid
        await asyncio.to_thread((tmp_path / "pipe").write_text, "at last")
        assert text_of(await pending_call) == "at last"
        while (
            len(left := children(gateway.process.pid)) > 2
        ):  # the kept server and the orphan reaper
            await gateway.names()
        assert int(pid) in left


async def test_a_call_in_flight_survives_the_restart_of_its_changed_server(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with started(tmp_path, child("s", "pid", "read")) as gateway:
        old = int(await gateway.text("s__pid"))
        pending_call = gateway.call("s__read", pipe=str(tmp_path / "pipe"))
        write(tmp_path, child("s", "pid", "read", more='env = { A = "b" }'))
        await gateway.reload()
        while (new := int(await gateway.text("s__pid"))) == old:
            pass
        assert {old, new} <= set(children(gateway.process.pid))
        await asyncio.to_thread((tmp_path / "pipe").write_text, "at last")
        assert text_of(await pending_call) == "at last"
        while Path(f"/proc/{old}").exists():
            await gateway.names()
        assert int(await gateway.text("s__pid")) == new


async def test_an_invalid_file_is_reported_and_the_old_configuration_stays(tmp_path: Path) -> None:
    async with started(tmp_path, child("s", "pid")) as gateway:
        pid = await gateway.text("s__pid")
        file = write(tmp_path, "[servers.s]\ncomand = 1\n")
        gateway.process.send_signal(signal.SIGHUP)
        problem = await gateway.wait_for_stderr("configuration not reloaded: ")
        assert problem == f'{file}:7: servers.s.comand: unknown key; did you mean "command"?'
        assert await gateway.text("s__pid") == pid
        write(tmp_path, child("s", "pid"))
        assert await gateway.reload() == "nothing has changed"
        assert await gateway.text("s__pid") == pid


async def test_with_reload_on_change_a_changed_file_is_reloaded(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=1\n")
    mine = child("s", "pid", more='env_file = "a.env"')
    async with started(tmp_path, mine, watch=True) as gateway:
        old = await gateway.text("s__pid")
        (tmp_path / "a.env").write_text("A=2\n")
        await gateway.wait_for_stderr("configuration reloaded: servers.s: restarted (env)")
        while await gateway.text("s__pid") == old:
            pass
        write(tmp_path, mine, OPERATOR, watch=True)
        await gateway.wait_for_tool("me__status")


async def trunkline(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trunkline", *arguments),
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.holds("M13")
async def test_the_reload_command_prints_the_changes_or_the_errors(tmp_path: Path) -> None:
    async with started(tmp_path, OPERATOR) as gateway:
        pid, file = gateway.process.pid, str(tmp_path / "some.toml")
        write(tmp_path, OPERATOR, '[servers.two]\nbuiltin = "operator"', "[http]\nmax_body = 2048")
        # Without --pid, the command would also reload the gateways of other tests.
        command = ("reload", "--pid", str(pid))
        found = await trunkline(tmp_path, *command)
        lines = [f"{pid}  {file}", "servers.two: added", "http.max_body"]
        assert found == (0, "\n".join(lines) + "\n", "")
        await gateway.wait_for_tool("two__status")
        code, out, _ = await trunkline(tmp_path, *command, "--json")
        outcome: dict[str, Any] = {"problem": None, "changed": [], "postponed": [], "notes": []}
        assert (code, json.loads(out)) == (0, [{"pid": pid, "config": file, "outcome": outcome}])
        write(tmp_path, "[servers.s]\ncomand = 1\n[http]\nport = 1")
        code, out, err = await trunkline(tmp_path, *command)
        assert (code, out) == (
            1,
            f"{pid}  {file}\nnot reloaded: the old configuration stays in effect\n",
        )
        assert (2, "", err) == await trunkline(tmp_path, "check", "--config", file)
        assert len(err.splitlines()) == 2
        assert "two__status" in await gateway.names()


async def test_a_closed_terminal_ends_the_gateway_instead_of_a_reload(tmp_path: Path) -> None:
    near, far = pty.openpty()
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "trunkline", "serve", "--http", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=far,
        stdout=far,
        stderr=far,
        env=environ,
        cwd=tmp_path,
        start_new_session=True,
    )
    os.close(far)
    seen = ""
    try:
        async with hang_guard():
            while "}\r\n}\r\n" not in seen:
                seen += (await asyncio.to_thread(os.read, near, 65536)).decode()
            process.send_signal(signal.SIGHUP)
            while "nothing to reload" not in seen:
                seen += (await asyncio.to_thread(os.read, near, 65536)).decode()
            assert process.returncode is None
            os.close(near)
            process.send_signal(signal.SIGHUP)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()  # so that a blocked read of its terminal returns


# Without a process


def status() -> GatewayStatus:
    return GatewayStatus(os.getpid(), "0", "test", None, 1.5, 0, ())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the socket folder of `run` and of the gateways here."""
    monkeypatch.setattr(control, "FALLBACK_FOLDER", tmp_path / "nowhere")
    monkeypatch.setattr(control, "SERVICE_FOLDERS", ())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return control.socket_folders(os.environ)[0]


def test_reload_without_a_gateway_exits_with_one(folder: Path) -> None:
    result = run("reload")
    assert (result.exit_code, result.stderr) == (1, f"trunkline: {no_gateway()}\n")
    result = run("reload", "--pid", "7")
    assert (result.exit_code, result.stderr) == (
        1,
        f"trunkline: {no_gateway(7)}\n",
    )


def test_reload_skips_an_unsafe_socket_folder(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    result = run("reload")
    assert result.exit_code == 1
    assert "skipped an unsafe socket folder" in result.stderr


async def test_a_gateway_that_cannot_reload_reports_the_reason(folder: Path) -> None:
    def refuse() -> None:
        raise RpcError(1, "not now")

    async def wait() -> None:
        await asyncio.Event().wait()

    me = os.getpid()
    async with hang_guard():
        async with serve_control({"snapshot": status, "reload": refuse}, folder):
            (result,) = await gateways.reload_all([folder])
            assert (result.pid, result.outcome.problem) == (me, f"{me}: not now (1)")
            assert await gateways.reload_all([folder], me + 1) == []
        async with serve_control({"snapshot": status, "reload": wait}, folder):
            (result,) = await gateways.reload_all([folder], timeout=0.01)
            assert result.outcome.problem == f"{me}: it did not answer within 0.01 s"


async def test_postponed_changes_and_notes_are_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = ReloadResult(None, (), ("http.listen",), ("some note",))
    async with (
        hang_guard(),
        serve_control({"snapshot": status, "reload": lambda: outcome}, folder),
    ):
        await asyncio.to_thread(gateways.run_reload, None, as_json=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "nothing has changed",
        "http.listen: takes effect at the next start",
        "note: some note",
    ]


def test_reload_lines_contain_only_postponed_changes_and_notes() -> None:
    assert reload_lines(ReloadResult()) == reload_lines(ReloadResult("bad")) == []
    assert reload_lines(ReloadResult(None, ("a",), ("c",), ("d",))) == [
        "trunkline: c: takes effect at the next start",
        "trunkline: d",
    ]
