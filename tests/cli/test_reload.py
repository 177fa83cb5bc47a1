"""`trunkline reload`, SIGHUP and a change of the file, in processes as clients start them."""

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

from tests.cli.samples import OPERATOR, child, config, run
from tests.test_app_reload import children, text_of
from trunkline import control
from trunkline.assembly.reload import Outcome
from trunkline.cli import reload
from trunkline.cli.serve import reloaded
from trunkline.control import GatewayStatus, listening
from trunkline.jsonrpc import RpcError

CLIENT = {"name": "test", "version": "1"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}


class Gateway:
    """`trunkline serve` over stdio, and one client of it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.readers = [asyncio.create_task(self._listen()), asyncio.create_task(self._overhear())]

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            message = json.loads(line)
            if "method" in message:
                self.told.put_nowait(message["method"])
            else:
                self.waiting.pop(message["id"]).set_result(message)

    async def _overhear(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.said.put_nowait(line.decode().removesuffix("\n"))

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

    async def until_named(self, name: str) -> None:
        while name not in await self.names():
            await self.told.get()

    async def until_said(self, text: str) -> str:
        """Return what follows `text` on the next line on stderr that has it."""
        while not (found := (await self.said.get()).partition(text))[1]:
            pass
        return found[2]

    async def reload(self) -> str:
        self.process.send_signal(signal.SIGHUP)
        return await self.until_said("read again: ")


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
        async with asyncio.timeout(40):
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
    more = f"[gateway]\nwatch = {str(watch).lower()}\n[log]\nlevel = 'info'\n"
    return config(folder, more, *tables)


@pytest.mark.holds("O0.11", "M13")
async def test_a_server_that_has_not_changed_keeps_its_process_and_its_calls(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    kept, one, two = child("kept", "pid", "read"), child("one", "pid"), child("two", "pid")
    async with started(tmp_path, kept, one) as gateway:
        pid, other = await gateway.text("kept__pid"), await gateway.text("one__pid")
        under_way = gateway.call("kept__read", pipe=str(tmp_path / "pipe"))
        write(tmp_path, two, kept, child("one", "pid", more='env = { A = "b" }'))
        assert await gateway.reload() == ("servers.two: added, servers.one: started anew (env)")
        await gateway.until_named("two__pid")
        assert (await gateway.names())[0] == "two__pid"
        assert await gateway.text("kept__pid") == pid
        while await gateway.text("one__pid") == other:
            pass
        assert not under_way.done()
        write(tmp_path, kept + "timeout = 5")
        assert "kept: adjusted (timeout)" in await gateway.reload()
        assert await gateway.names() == ["kept__pid", "kept__read"]
        assert await gateway.text("kept__pid") == pid
        await asyncio.to_thread((tmp_path / "pipe").write_text, "at last")
        assert text_of(await under_way) == "at last"
        while len(left := children(gateway.process.pid)) > 2:  # it, and the warden of all children
            await gateway.names()
        assert int(pid) in left


async def test_a_call_under_way_outlives_the_change_of_its_own_server(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    async with started(tmp_path, child("s", "pid", "read")) as gateway:
        old = int(await gateway.text("s__pid"))
        under_way = gateway.call("s__read", pipe=str(tmp_path / "pipe"))
        write(tmp_path, child("s", "pid", "read", more='env = { A = "b" }'))
        await gateway.reload()
        while (new := int(await gateway.text("s__pid"))) == old:
            pass
        assert {old, new} <= set(children(gateway.process.pid))
        await asyncio.to_thread((tmp_path / "pipe").write_text, "at last")
        assert text_of(await under_way) == "at last"
        while Path(f"/proc/{old}").exists():
            await gateway.names()
        assert int(await gateway.text("s__pid")) == new


async def test_a_bad_file_is_complained_of_and_everything_goes_on(tmp_path: Path) -> None:
    async with started(tmp_path, child("s", "pid")) as gateway:
        pid = await gateway.text("s__pid")
        file = write(tmp_path, "[servers.s]\ncomand = 1\n")
        gateway.process.send_signal(signal.SIGHUP)
        said = await gateway.until_said("the configuration was not taken: ")
        assert said == f'{file}:7: servers.s.comand: unknown key; did you mean "command"?'
        assert await gateway.text("s__pid") == pid
        write(tmp_path, child("s", "pid"))
        assert await gateway.reload() == "nothing has changed"
        assert await gateway.text("s__pid") == pid


async def test_a_change_of_a_file_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=1\n")
    mine = child("s", "pid", more='env_file = "a.env"')
    async with started(tmp_path, mine, watch=True) as gateway:
        old = await gateway.text("s__pid")
        (tmp_path / "a.env").write_text("A=2\n")
        await gateway.until_said("read again: servers.s: started anew (env)")
        while await gateway.text("s__pid") == old:
            pass
        write(tmp_path, mine, OPERATOR, watch=True)
        await gateway.until_named("me__status")


async def trunkline(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command, and return its exit code and what it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trunkline", *arguments),
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.holds("M13")
async def test_the_command_says_what_has_changed_or_what_is_wrong(tmp_path: Path) -> None:
    async with started(tmp_path, OPERATOR) as gateway:
        pid, file = gateway.process.pid, str(tmp_path / "some.toml")
        write(tmp_path, OPERATOR, '[servers.two]\nbuiltin = "operator"', "[http]\nmax_body = 2048")
        # By its number: all gateways of this user would be reloaded, those of other tests too.
        command = ("reload", "--pid", str(pid))
        found = await trunkline(tmp_path, *command)
        lines = [f"{pid}  {file}", "servers.two: added", "http.max_body"]
        assert found == (0, "\n".join(lines) + "\n", "")
        await gateway.until_named("two__status")
        code, out, _ = await trunkline(tmp_path, *command, "--json")
        outcome: dict[str, Any] = {"problem": None, "changed": [], "postponed": [], "notes": []}
        assert (code, json.loads(out)) == (0, [{"pid": pid, "config": file, "outcome": outcome}])
        write(tmp_path, "[servers.s]\ncomand = 1\n[http]\nport = 1")
        code, out, err = await trunkline(tmp_path, *command)
        assert (code, out) == (1, f"{pid}  {file}\nnot reloaded: what was running goes on\n")
        assert (2, "", err) == await trunkline(tmp_path, "check", "--config", file)
        assert len(err.splitlines()) == 2
        assert "two__status" in await gateway.names()


async def test_a_terminal_that_is_closed_ends_it_instead(tmp_path: Path) -> None:
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
        async with asyncio.timeout(20):
            while "}\r\n}\r\n" not in seen:
                seen += (await asyncio.to_thread(os.read, near, 65536)).decode()
            process.send_signal(signal.SIGHUP)
            while "there is no file to read again" not in seen:
                seen += (await asyncio.to_thread(os.read, near, 65536)).decode()
            assert process.returncode is None
            os.close(near)
            process.send_signal(signal.SIGHUP)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()  # whoever reads what it says reads its end, then


# Without a process


def status() -> GatewayStatus:
    return GatewayStatus(os.getpid(), "0", "test", None, 1.5, 0, ())


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(control, "FALLBACK", tmp_path / "nowhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def test_without_a_gateway_there_is_nothing_to_reload(environ: dict[str, str]) -> None:
    done = run("reload")
    assert (done.exit_code, done.stderr) == (1, "trunkline: no gateway of yours is running\n")
    done = run("reload", "--pid", "7")
    assert (done.exit_code, done.stderr) == (1, "trunkline: no gateway of yours is running as 7\n")


def test_a_folder_that_is_not_safe_is_not_looked_into(environ: dict[str, str]) -> None:
    control.socket_folders(environ)[0].mkdir(mode=0o755)
    done = run("reload")
    assert done.exit_code == 1
    assert "did not look for gateways there" in done.stderr


async def test_a_gateway_that_cannot_says_so(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RpcError(1, "not now")

    async def wait() -> None:
        await asyncio.Event().wait()

    me = os.getpid()
    async with asyncio.timeout(20):
        async with listening({"snapshot": status, "reload": refuse}, environ):
            (done,) = await reload.reload_all(environ)
            assert (done.pid, done.outcome.problem) == (me, f"{me}: not now (1)")
            assert await reload.reload_all(environ, me + 1) == []
        monkeypatch.setattr(reload, "PATIENCE", 0.01)
        async with listening({"snapshot": status, "reload": wait}, environ):
            (done,) = await reload.reload_all(environ)
            assert done.outcome.problem == f"{me}: it did not answer within 0.01 s"


async def test_what_waits_and_what_is_noted_is_printed(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = Outcome(None, (), ("http.listen",), ("some note",))
    async with (
        asyncio.timeout(20),
        listening({"snapshot": status, "reload": lambda: outcome}, environ),
    ):
        await asyncio.to_thread(reload.reload, None, as_json=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "nothing has changed",
        "http.listen: waits for the next start",
        "note: some note",
    ]


def test_what_the_log_does_not_say_is_said_beside_it() -> None:
    assert reloaded(Outcome()) == reloaded(Outcome("bad")) == []
    assert reloaded(Outcome(None, ("a",), ("c",), ("d",))) == [
        "trunkline: c: waits for the next start",
        "trunkline: d",
    ]
