"""Reloading a gateway that is at work: processes, sockets and clients as they really are."""

import asyncio
import itertools
import json
import os
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.cli.samples import BROKEN, OPERATOR, child, config, fetch, hello
from tests.test_app_http import call_modern, certified, open_session
from tests.transports.faulty import CERTIFICATE, KEY
from tests.transports.test_asgi import Server, body, http
from tests.transports.test_http_listener_changes import another_certificate
from trunkline.app import App
from trunkline.assembly import reload
from trunkline.assembly.guarding import Guarding
from trunkline.assembly.reload import Outcome, Reloader
from trunkline.config import Config, HttpSettings, load
from trunkline.gateway.events import Event, Reloaded
from trunkline.gateway.upstream import State
from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import LOCAL


class Desk:
    """An app, its file, and what came of reloads."""

    def __init__(self, folder: Path, *tables: str, environ: dict[str, str] | None = None) -> None:
        self.folder = folder
        environ = environ or {}
        self.app = App(load(Path(config(folder, *tables)), environ))
        self.told: list[Outcome] = []
        self.events: list[Event] = []
        self.app.gateway.layers.events.listen(self.events.append)
        self.reloader: Reloader = self.app.reloader(environ, self.told.append)

    async def reload(self, *tables: str) -> Outcome:
        config(self.folder, *tables)
        return await self.reloader.reload()

    def tools(self) -> list[str]:
        entries = self.app.gateway.registry.catalog.entries(Kind.TOOL)
        return [entry.public for entry in entries]

    async def until_tool(self, name: str) -> None:
        while name not in self.tools():
            await asyncio.sleep(0)


def children(pid: int) -> list[int]:
    """Return who was started by a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def text_of(answer: Any) -> str:
    return answer["result"]["content"][0]["text"]


HTTP = "[http]\nlisten = '127.0.0.1:0'\n"
AUTH = "[auth.jwt]\nissuer = 'https://id.example'\naudience = 'trunkline'\nsecret_env = 'SECRET'\n"


@asynccontextmanager
async def listening(desk: Desk, http: HttpSettings | None = None) -> AsyncGenerator[str]:
    http = http or desk.app.config.http
    async with asyncio.timeout(40), desk.app.running(), desk.app.listening(http):
        await desk.app.gateway.registry.wait_settled()
        yield desk.app.origins[0]


async def test_whoever_listens_to_events_hears_of_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OPERATOR)
    async with desk.app.running():
        good = await desk.reload(OPERATOR, '[gateway]\nname = "b"')
        bad = await desk.reload("[gateway]\nnome = 1")
    assert desk.told == [good, bad]
    assert [event for event in desk.events if isinstance(event, Reloaded)] == [
        Reloaded(None, ("gateway.name",)),
        Reloaded(bad.problem),
    ]
    assert desk.app.config.gateway.name == "b"
    assert desk.app.gateway.identity.name == "b"


async def test_sessions_and_streams_outlive_it_and_hear_of_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, HTTP, OPERATOR)
    async with listening(desk) as origin:
        session = await open_session(origin)
        (conversation,) = desk.app.gateway.sessions
        told: list[str] = []
        conversation.post = lambda method, *_: told.append(method)  # type: ignore[method-assign]
        await desk.reload(HTTP, OPERATOR, '[servers.two]\nbuiltin = "operator"')
        await desk.until_tool("two__status")
        assert told == ["notifications/tools/list_changed"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        found = await fetch(f"{origin}/mcp", listing, session)
        assert [tool["name"] for tool in found.result["tools"]] == desk.tools()
        assert desk.app.http_sessions == 1


async def test_what_is_let_in_by_http_is_what_the_new_one_lets_in(tmp_path: Path) -> None:
    desk = Desk(tmp_path, HTTP, OPERATOR)
    there = {"host": "gateway.example"}
    async with listening(desk) as origin:
        session = await open_session(origin)
        assert (await fetch(f"{origin}/mcp", hello(), there)).status == 421
        more = "path = '/here'\nallowed_hosts = ['gateway.example']\nmax_body = 1024\n"
        outcome = await desk.reload(HTTP + more + "max_sessions = 1", OPERATOR)
        assert outcome.changed == (
            "http.path",
            "http.allowed_hosts",
            "http.max_body",
            "http.max_sessions",
        )
        assert (await fetch(f"{origin}/mcp", hello(), there)).status == 404
        assert (await fetch(f"{origin}/here", hello(), there)).status == 503  # one too many
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await fetch(f"{origin}/here", listing, session)).status == 200
        long = {**listing, "params": {"x": "x" * 2000}}
        assert (await fetch(f"{origin}/here", long, session)).status == 413


async def test_what_is_known_of_a_head_is_judged_anew_on_the_same_connection(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, HTTP, OPERATOR)
    async with listening(desk) as origin:
        host, _, port = origin.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(hello()).encode()
        head = "POST /mcp HTTP/1.1\r\nhost: other.example\r\ncontent-type: application/json\r\n"
        request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

        async def status() -> bytes:
            writer.write(request)
            found = await reader.readuntil(b"\r\n\r\n")
            (length,) = (
                int(line[15:]) for line in found.splitlines() if line.startswith(b"content-length")
            )
            await reader.readexactly(length)
            return found[9:12]

        assert [await status(), await status()] == [b"421", b"421"]
        await desk.reload(HTTP + "allowed_hosts = ['other.example']", OPERATOR)
        assert [await status(), await status()] == [b"200", b"200"]
        await desk.reload(HTTP, OPERATOR)
        assert await status() == b"421"
        writer.close()


async def test_a_certificate_is_read_anew_for_those_who_connect(tmp_path: Path) -> None:
    http = certified(tmp_path)
    files = "certificate = 'cert.pem'\nkey = 'key.pem'\n"
    desk = Desk(tmp_path, HTTP + files, OPERATOR)
    async with listening(desk) as origin:
        old = ssl.create_default_context(cafile=http.certificate)
        assert (await fetch(f"{origin}/healthz", tls=old)).status == 200
        assert await desk.reload(HTTP + files, OPERATOR) == Outcome()
        certificate, key = another_certificate()
        (tmp_path / "cert.pem").write_text(certificate)
        outcome = await desk.reload(HTTP + files, OPERATOR)  # the key is that of the old one
        assert "expected a certificate and its key" in (outcome.problem or "")
        assert (await fetch(f"{origin}/healthz", tls=old)).status == 200
        (tmp_path / "key.pem").write_text(key)
        outcome = await desk.reload(HTTP + files, OPERATOR)
        assert outcome.changed == ("http.certificate: another is in its file",)
        with pytest.raises(ssl.SSLCertVerificationError):
            await fetch(f"{origin}/healthz", tls=old)
        new = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        assert (await fetch(f"{origin}/healthz", tls=new)).status == 200


async def test_what_has_to_wait_is_said_and_the_rest_is_taken(tmp_path: Path) -> None:
    desk = Desk(tmp_path, HTTP, OPERATOR)
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    async with listening(desk) as origin:
        http = "[http]\nlisten = '127.0.0.1:1'\ncertificate = 'cert.pem'\nkey = 'key.pem'\n"
        outcome = await desk.reload(http + "max_body = 2048", '[gateway]\nstate = "x"', OPERATOR)
        assert outcome.changed == ("http.max_body",)
        assert outcome.postponed == (
            "gateway.state",
            "http.listen",
            "http.certificate",
            "http.key",
        )
        assert (await fetch(f"{origin}/healthz")).status == 200
        again = await desk.reload(http + "max_body = 2048", '[gateway]\nstate = "x"', OPERATOR)
        assert (again.changed, again.postponed) == ((), outcome.postponed)
        as_before = await desk.reload(HTTP, OPERATOR)
        assert (as_before.changed, as_before.postponed) == (("http.max_body",), ())


async def test_nobody_else_asks_while_another_address_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Mock()
    monkeypatch.setattr(Guarding, "prepare", made)
    desk = Desk(tmp_path, HTTP, AUTH, OPERATOR, environ={"SECRET": "s" * 64})
    async with listening(desk):
        for name in ("a", "b"):
            more = f"[gateway]\nname = '{name}'\n"
            outcome = await desk.reload("[http]\nlisten = '127.0.0.1:1'\n", AUTH, OPERATOR, more)
            assert (outcome.changed, outcome.postponed) == (("gateway.name",), ("http.listen",))
    made.assert_not_called()


async def test_an_application_of_another_server_is_reloaded_as_well(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OPERATOR)
    asgi = desk.app.asgi()

    async def status(path: str, length: int = 10) -> int:
        server = Server(body(b"x" * length))
        scope = http([(b"host", b"localhost")], path=path, raw_path=path.encode())
        await server.call(asgi, scope)
        return server.got[0]["status"]

    async with asyncio.timeout(20), desk.app.running():
        assert [await status("/mcp", 2000), await status("/here")] == [415, 404]
        await desk.reload("[http]\nmax_body = 1024\npath = '/here'", OPERATOR)
        assert [await status("/here", 2000), await status("/here")] == [413, 415]


async def test_who_sees_what_is_another_and_said_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OPERATOR)
    heard: list[tuple[Kind, ...]] = []
    async with asyncio.timeout(20), desk.app.running() as gateway:
        await gateway.registry.wait_settled()
        gateway.registry.listen(heard.append)
        await desk.reload('[gateway]\nsurface = ["x*"]\nmax_parked = 7\npark_ttl = 3', OPERATOR)
        assert heard == [tuple(Kind)]
        entry, *_ = gateway.registry.catalog.entries(Kind.TOOL)
        assert not gateway.registry.view.shown(entry)
        assert gateway.stateless.parking.limits[:2] == (3.0, 7)
        await desk.reload('[gateway]\nsurface = ["x*"]\nmax_parked = 7\npark_ttl = 3', OPERATOR)
        assert len(heard) == 1


async def test_what_is_known_of_a_server_is_kept(tmp_path: Path) -> None:
    url = "[servers.s]\nurl = 'http://127.0.0.1:1/mcp'\n"
    desk = Desk(tmp_path, url)
    (memory,) = desk.app.servers.memories.values()
    await desk.reload(url + "timeout = 5")
    await desk.reload(url + "headers = { x = 'y' }", BROKEN)
    assert memory in desk.app.servers.memories.values()
    assert len(desk.app.servers.memories) == 2
    await desk.reload(BROKEN)
    assert memory not in desk.app.servers.memories.values()
    await desk.app.aclose()


async def test_a_source_of_sources_is_read_anew(tmp_path: Path) -> None:
    sources = "[servers.s]\nbuiltin = 'sources'\n"
    desk = Desk(tmp_path, sources)
    async with asyncio.timeout(20), desk.app.running() as gateway:
        await gateway.registry.wait_settled()
        outcome = await desk.reload(sources + "registry = 'nowhere.json'")
        assert outcome.changed == ("servers.s: started anew (registry)",)
        while gateway.registry.upstream("s").state is not State.WAITING:
            await asyncio.sleep(0)
        assert "nowhere.json" in (gateway.registry.upstream("s").error or "")
        await desk.reload(sources + "threshold = 0.9")
        while gateway.registry.upstream("s").state is not State.READY:
            await asyncio.sleep(0)


# Under load


@pytest.mark.holds("O0.11")
async def test_a_hundred_reloads_under_load_lose_no_call_and_leave_nothing(tmp_path: Path) -> None:
    kept = child("kept", "pid")
    desk = Desk(tmp_path, HTTP, kept, changing(0))
    before = asyncio.all_tasks()
    ended, calls = asyncio.Event(), list[str]()
    async with listening(desk) as origin:
        session = await open_session(origin)
        pid = await call(origin, session, "kept__pid")
        open_files = count_files()

        async def load(name: str, modern: bool) -> None:
            while not ended.is_set():
                if modern:
                    answer = await call_modern(origin, name)
                    calls.append(text_of(json.loads(answer.body)))
                else:
                    calls.append(await call(origin, session, name))

        async with asyncio.TaskGroup() as clients:
            for name in ("kept__pid", "child__pid", "tables__list_categories"):
                for modern in (False, True):
                    clients.create_task(load(name, modern))
            for number in range(1, 101):
                outcome = await desk.reload(HTTP, kept, changing(number))
                assert outcome.problem is None
                assert outcome.changed
            registry = desk.app.gateway.registry
            while registry.changing:
                await asyncio.sleep(0)
            ended.set()
        assert len(calls) > 100
        assert await call(origin, session, "kept__pid") == pid
        assert len(children(os.getpid())) == 3  # those two, and the warden of all children
        assert count_files() <= open_files + 2  # connections that are still to be closed
        assert len(desk.app.servers.memories) == 1  # both have the same command
    await desk.app.aclose()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() - before == set()
    assert desk.app.gateway.remapper.pending_count() == 0
    assert children(os.getpid()) == []


def changing(number: int) -> str:
    """Return servers that are others each time, one of them a process every now and then."""
    prefix = "" if number % 2 else "prefix = 'same'"
    more = f'env = {{ A = "{number // 25}" }}\ntimeout = {10 + number}'
    return "\n".join(
        (
            child("child", "pid", more=more),
            f"[servers.tables]\nbuiltin = 'sources'\nthreshold = {number / 1000}",
            f"[servers.some{number % 3}]\nbuiltin = 'operator'\n{prefix}",
        )
    )


ids = itertools.count(10)


async def call(origin: str, session: dict[str, str], name: str) -> str:
    params: dict[str, Any] = {"name": name, "arguments": {}}
    message: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": next(ids),
        "method": "tools/call",
        "params": params,
    }
    return text_of(json.loads((await fetch(f"{origin}/mcp", message, session)).body))


def count_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_reload_in_a_folder_without_a_file_changes_nothing() -> None:
    app = App(Config())
    outcome = await app.reloader({}).reload()
    assert "embedded default" in (outcome.problem or "")
    assert reload.PAUSE >= 1.0
    await app.aclose()


async def test_who_is_asked_for_a_token_is_another_matter_from_one_to_the_next(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, HTTP, OPERATOR, environ={"SECRET": "s" * 64})
    async with listening(desk) as origin:
        assert (await fetch(f"{origin}/mcp", hello())).status == 200
        assert "auth" in str((await desk.reload(HTTP, OPERATOR, AUTH)).changed)
        assert (await fetch(f"{origin}/mcp", hello())).status == 401
        await desk.reload(HTTP, OPERATOR, AUTH, "[gateway]\nname = 'b'")
        assert (await fetch(f"{origin}/mcp", hello())).status == 401
        await desk.reload(HTTP, OPERATOR)
        assert (await fetch(f"{origin}/mcp", hello())).status == 200


async def test_an_address_that_is_open_to_all_is_never_left_without_a_guard(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, OPERATOR, AUTH, environ={"SECRET": "s" * 64})
    async with listening(desk, HttpSettings(listen="0.0.0.0:0")):
        (place,) = desk.app.origins
        origin = place.replace("0.0.0.0", "127.0.0.1")
        outcome = await desk.reload(OPERATOR)
        assert "expected a loopback address" in (outcome.problem or "")
        assert (await fetch(f"{origin}/mcp", hello())).status == 401


async def test_a_gateway_that_listens_is_not_put_behind_itself(tmp_path: Path) -> None:
    desk = Desk(tmp_path, HTTP, OPERATOR)
    async with listening(desk) as origin:
        outcome = await desk.reload(HTTP, OPERATOR, f"[servers.us]\nurl = '{origin}/mcp'")
        assert "servers.us.url: it is where this gateway itself listens" in (outcome.problem or "")


async def test_what_is_stopped_stays_stopped_whoever_says_who_sees_what(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OPERATOR)
    registry = desk.app.gateway.registry
    registry.view.stops = lambda caller, entry: True
    stops = registry.view.stops
    await desk.reload('[gateway]\nsurface = ["x"]', OPERATOR)
    assert registry.view.stops is stops
    await desk.app.aclose()


@pytest.mark.holds("M12", "M13")
async def test_what_was_used_up_is_used_up_under_other_limits_too(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "[limits]\ndefault_rpm = 2\n", OPERATOR)
    async with asyncio.timeout(20), desk.app.running() as gateway:
        await gateway.registry.wait_settled()
        engine = gateway.open_engine()
        await engine.handle_json(json.dumps(hello()))
        await engine.handle_json('{"jsonrpc":"2.0","method":"notifications/initialized"}')

        async def status() -> Any:
            asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
            said = await engine.handle_json(json.dumps(asked | {"params": {"name": "me__status"}}))
            return json.loads(said or "")

        for _ in range(2):
            assert "result" in await status()
        assert (await status())["error"]["data"]["type"] == "rate_limited"
        outcome = await desk.reload("[limits]\ndefault_rpm = 3\n", OPERATOR)
        assert outcome.changed == ("limits.default_rpm",)
        assert "result" in await status()
        assert (await status())["error"]["data"]["type"] == "rate_limited"
        await desk.reload(OPERATOR)
        assert "result" in await status()


async def test_rules_hold_from_the_reload_on_and_lists_with_them(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OPERATOR)
    async with asyncio.timeout(20), desk.app.running() as gateway:
        await gateway.registry.wait_settled()
        user = Caller(LOCAL, "2025-11-25", {}, Raw(b"{}"))

        def listed() -> bytes:
            view = gateway.registry.view
            return bytes(view.list_result(gateway.registry.catalog, Kind.TOOL, user))

        assert b"me__status" in listed()
        await desk.reload("[[policy]]\nallow = 'me__logs'\n", OPERATOR)
        assert b"me__status" not in listed()
        assert b"me__logs" in listed()
        outcome = await desk.reload("[[policy]]\nallow = 5\n", OPERATOR)
        assert outcome.problem
        assert b"me__status" not in listed()


async def test_the_terms_of_the_journal_change_and_its_place_does_not(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "[journal]\nurl = 'sqlite:///a.db'\n", OPERATOR)
    async with asyncio.timeout(20), desk.app.running():
        assert desk.app.journal is not None
        outcome = await desk.reload("[journal]\nurl = 'sqlite:///b.db'\nqueue = 777\n", OPERATOR)
        assert desk.app.journal.status().queue_limit == 777
        assert "journal.url" in outcome.postponed
        assert desk.app.journal.status().url.endswith("a.db")


async def test_an_operator_s_server_that_is_new_is_told_of_what_happens_and_never_paused(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, "[gateway]\nname = 'a'")
    caller = Caller(LOCAL, "2025-11-25", {}, Raw(b"{}"))
    async with asyncio.timeout(20), desk.app.running():
        assert desk.app.desk.logs().lines == ()
        await desk.reload(OPERATOR)
        await desk.until_tool("me__status")
        desk.app.desk.pause("ann")
        assert desk.app.desk.logs().lines[-1].endswith("the gateway is paused by ann")
        assert desk.app.switches.passes_unknown(caller, "me")
        # Its name alone makes nobody an operator.
        await desk.reload(BROKEN.replace("broken", "me"))
        assert not desk.app.switches.passes_unknown(caller, "me")
