"""Reloading a running gateway, with real processes, sockets and clients."""

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

from tests.app.test_application_http import call_stateless, open_session, write_certificate
from tests.cli.samples import BROKEN, OPERATOR, child, config, fetch, hello
from tests.http.scripted_server import CERTIFICATE, KEY
from tests.http.test_asgi import Server, body, http
from tests.http.test_listener import another_certificate
from tests.tasks import hang_guard
from trunkline.app.application import App, AuthReloader
from trunkline.app.reload import ConfigReloader, ReloadResult, ReloadTimings
from trunkline.config import Config, HttpSettings, load_config
from trunkline.gateway.enforcement import EnforcementChain
from trunkline.gateway.events import ConfigReloaded, GatewayEvent
from trunkline.gateway.upstream import UpstreamState
from trunkline.jsonrpc import Raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller
from trunkline.mcp.versions import V2025_11_25


class AppHarness:
    """An application with its configuration file, its events and the results of its reloads."""

    def __init__(self, folder: Path, *tables: str, environ: dict[str, str] | None = None) -> None:
        self.folder = folder
        environ = environ or {}
        self.app = App(load_config(Path(config(folder, *tables)), environ))
        self.results: list[ReloadResult] = []
        self.events: list[GatewayEvent] = []
        self.app.gateway.pipeline.events.add_listener(self.events.append)
        self.reloader: ConfigReloader = self.app.create_reloader(environ, self.results.append)

    async def reload(self, *tables: str) -> ReloadResult:
        config(self.folder, *tables)
        return await self.reloader.reload()

    def tools(self) -> list[str]:
        entries = self.app.gateway.registry.catalog.entries(FeatureKind.TOOL)
        return [entry.public_name for entry in entries]

    async def wait_for_tool(self, name: str) -> None:
        while name not in self.tools():
            await asyncio.sleep(0)


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def text_of(answer: Any) -> str:
    return answer["result"]["content"][0]["text"]


HTTP = "[http]\nlisten = '127.0.0.1:0'\n"
AUTH = "[auth.jwt]\nissuer = 'https://id.example'\naudience = 'trunkline'\nsecret_env = 'SECRET'\n"


@asynccontextmanager
async def running_over_http(
    harness: AppHarness, http: HttpSettings | None = None
) -> AsyncGenerator[str]:
    http = http or harness.app.config.http
    async with hang_guard(), harness.app.running(), harness.app.listening(http):
        await harness.app.gateway.registry.wait_complete()
        yield harness.app.origins[0]


async def test_a_reload_emits_an_event(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, OPERATOR)
    async with harness.app.running():
        good = await harness.reload(OPERATOR, '[gateway]\nname = "b"')
        bad = await harness.reload("[gateway]\nnome = 1")
    assert harness.results == [good, bad]
    assert [event for event in harness.events if isinstance(event, ConfigReloaded)] == [
        ConfigReloaded(None, ("gateway.name",)),
        ConfigReloaded(bad.problem),
    ]
    assert harness.app.config.gateway.name == "b"
    assert harness.app.gateway.identity.name == "b"


async def test_sessions_survive_a_reload_and_are_notified(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, HTTP, OPERATOR)
    async with running_over_http(harness) as origin:
        session = await open_session(origin)
        (session_client,) = harness.app.gateway.sessions
        first = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert len((await fetch(f"{origin}/mcp", first, session)).result["tools"]) == 2
        notifications: list[str] = []
        session_client.queue_notification = lambda method, *_: notifications.append(method)  # type: ignore[method-assign]
        await harness.reload(HTTP, OPERATOR, '[servers.two]\nbuiltin = "operator"')
        await harness.wait_for_tool("two__status")
        while not notifications:
            await asyncio.sleep(0)
        assert notifications == ["notifications/tools/list_changed"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        response = await fetch(f"{origin}/mcp", listing, session)
        assert [tool["name"] for tool in response.result["tools"]] == harness.tools()
        assert harness.app.http_sessions == 1


async def test_a_reload_applies_new_http_rules_and_limits(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, HTTP, OPERATOR)
    gateway_host = {"host": "gateway.example"}
    async with running_over_http(harness) as origin:
        await open_session(origin)
        assert (await fetch(f"{origin}/mcp", hello(), gateway_host)).status == 421
        http_keys = "path = '/here'\nallowed_hosts = ['gateway.example']\nmax_body = 1024\n"
        outcome = await harness.reload(HTTP + http_keys + "max_sessions = 1", OPERATOR)
        assert outcome.changed == (
            "http.path",
            "http.allowed_hosts",
            "http.max_body",
            "http.max_sessions",
        )
        assert (await fetch(f"{origin}/mcp", hello(), gateway_host)).status == 404
        opened = await fetch(f"{origin}/here", hello(), gateway_host)
        assert harness.app.http_sessions == 1  # the other session was idle
        session = {"mcp-session-id": opened.header["mcp-session-id"]}
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await fetch(f"{origin}/here", initialized, session)).status == 202
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await fetch(f"{origin}/here", listing, session)).status == 200
        long = {**listing, "params": {"x": "x" * 2000}}
        assert (await fetch(f"{origin}/here", long, session)).status == 413


async def test_a_reload_invalidates_cached_request_heads(
    tmp_path: Path,
) -> None:
    harness = AppHarness(tmp_path, HTTP, OPERATOR)
    async with running_over_http(harness) as origin:
        host, _, port = origin.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(hello()).encode()
        request_head = (
            "POST /mcp HTTP/1.1\r\nhost: other.example\r\ncontent-type: application/json\r\n"
        )
        request = f"{request_head}content-length: {len(body)}\r\n\r\n".encode() + body

        async def status() -> bytes:
            writer.write(request)
            response_head = await reader.readuntil(b"\r\n\r\n")
            (length,) = (
                int(line[15:])
                for line in response_head.splitlines()
                if line.startswith(b"content-length")
            )
            await reader.readexactly(length)
            return response_head[9:12]

        assert [await status(), await status()] == [b"421", b"421"]
        await harness.reload(HTTP + "allowed_hosts = ['other.example']", OPERATOR)
        assert [await status(), await status()] == [b"200", b"200"]
        await harness.reload(HTTP, OPERATOR)
        assert await status() == b"421"
        writer.close()


async def test_a_reload_applies_a_new_certificate_to_new_connections(tmp_path: Path) -> None:
    http = write_certificate(tmp_path)
    files = "tls_cert = 'cert.pem'\ntls_key = 'key.pem'\n"
    harness = AppHarness(tmp_path, HTTP + files, OPERATOR)
    async with running_over_http(harness) as origin:
        old = ssl.create_default_context(cafile=http.tls_cert)
        assert (await fetch(f"{origin}/healthz", tls=old)).status == 200
        assert await harness.reload(HTTP + files, OPERATOR) == ReloadResult()
        certificate, key = another_certificate()
        (tmp_path / "cert.pem").write_text(certificate)
        outcome = await harness.reload(
            HTTP + files, OPERATOR
        )  # the key still belongs to the old certificate
        assert "expected a certificate and its key" in (outcome.problem or "")
        assert (await fetch(f"{origin}/healthz", tls=old)).status == 200
        (tmp_path / "key.pem").write_text(key)
        outcome = await harness.reload(HTTP + files, OPERATOR)
        assert outcome.changed == ("http.tls_cert: the file has a new certificate",)
        with pytest.raises(ssl.SSLCertVerificationError):
            await fetch(f"{origin}/healthz", tls=old)
        new = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        assert (await fetch(f"{origin}/healthz", tls=new)).status == 200


async def test_a_reload_postpones_keys_that_need_a_restart_and_applies_the_rest(
    tmp_path: Path,
) -> None:
    harness = AppHarness(tmp_path, HTTP, OPERATOR)
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    async with running_over_http(harness) as origin:
        http = "[http]\nlisten = '127.0.0.1:1'\ntls_cert = 'cert.pem'\ntls_key = 'key.pem'\n"
        outcome = await harness.reload(
            http + "max_body = 2048", '[gateway]\nstate_dir = "x"', OPERATOR
        )
        assert outcome.changed == ("http.max_body",)
        assert outcome.postponed == (
            "gateway.state_dir",
            "http.listen",
            "http.tls_cert",
            "http.tls_key",
        )
        assert (await fetch(f"{origin}/healthz")).status == 200
        again = await harness.reload(
            http + "max_body = 2048", '[gateway]\nstate_dir = "x"', OPERATOR
        )
        assert (again.changed, again.postponed) == ((), outcome.postponed)
        as_before = await harness.reload(HTTP, OPERATOR)
        assert (as_before.changed, as_before.postponed) == (("http.max_body",), ())


async def test_auth_is_not_rebuilt_while_only_a_new_address_is_postponed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Mock()
    monkeypatch.setattr(AuthReloader, "prepare", prepare)
    harness = AppHarness(tmp_path, HTTP, AUTH, OPERATOR, environ={"SECRET": "s" * 64})
    async with running_over_http(harness):
        for name in ("a", "b"):
            gateway_table = f"[gateway]\nname = '{name}'\n"
            outcome = await harness.reload(
                "[http]\nlisten = '127.0.0.1:1'\n", AUTH, OPERATOR, gateway_table
            )
            assert (outcome.changed, outcome.postponed) == (("gateway.name",), ("http.listen",))
    prepare.assert_not_called()


async def test_a_reload_reaches_a_mounted_gateway(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, OPERATOR)
    asgi = harness.app.asgi()

    async def status(path: str, length: int = 10) -> int:
        server = Server(body(b"x" * length))
        scope = http([(b"host", b"localhost")], path=path, raw_path=path.encode())
        scope["client"] = ("127.0.0.1", 1234)
        await server.call(asgi, scope)
        return server.got[0]["status"]

    async with hang_guard(), harness.app.running():
        assert [await status("/mcp", 2000), await status("/here")] == [415, 404]
        await harness.reload("[http]\nmax_body = 1024\npath = '/here'", OPERATOR)
        assert [await status("/here", 2000), await status("/here")] == [413, 415]


async def test_a_reload_applies_a_new_surface_and_notifies_clients(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, OPERATOR)
    announced_kinds: list[tuple[FeatureKind, ...]] = []
    async with hang_guard(), harness.app.running() as gateway:
        await gateway.registry.wait_complete()
        gateway.registry.add_listener(announced_kinds.append)
        await harness.reload(
            '[gateway]\nsurface = ["x*"]\nmax_suspended = 7\ninput_timeout = 3', OPERATOR
        )
        assert announced_kinds == [tuple(FeatureKind)]
        entry, *_ = gateway.registry.catalog.entries(FeatureKind.TOOL)
        assert not gateway.registry.visibility.is_listed(entry)
        assert gateway.stateless.suspended_calls.limits[:2] == (3.0, 7)
        await harness.reload(
            '[gateway]\nsurface = ["x*"]\nmax_suspended = 7\ninput_timeout = 3', OPERATOR
        )
        assert len(announced_kinds) == 1


async def test_a_reload_keeps_the_detected_protocol_of_unchanged_servers(tmp_path: Path) -> None:
    url = "[servers.s]\nurl = 'http://127.0.0.1:1/mcp'\n"
    harness = AppHarness(tmp_path, url)
    (era_cache,) = harness.app.servers.era_caches.values()
    await harness.reload(url + "timeout = 5")
    await harness.reload(url + "headers = { x = 'y' }", BROKEN)
    assert era_cache in harness.app.servers.era_caches.values()
    assert len(harness.app.servers.era_caches) == 2
    await harness.reload(BROKEN)
    assert era_cache not in harness.app.servers.era_caches.values()
    await harness.app.aclose()


async def test_a_reload_restarts_a_sources_server_with_its_new_registry(tmp_path: Path) -> None:
    sources = "[servers.s]\nbuiltin = 'sources'\n"
    harness = AppHarness(tmp_path, sources)
    async with hang_guard(), harness.app.running() as gateway:
        await gateway.registry.wait_complete()
        outcome = await harness.reload(sources + "registry = 'nowhere.json'")
        assert outcome.changed == ("servers.s: restarted (registry)",)
        while gateway.registry.upstream("s").state is not UpstreamState.WAITING:
            await asyncio.sleep(0)
        assert "nowhere.json" in (gateway.registry.upstream("s").error or "")
        await harness.reload(sources + "threshold = 0.9")
        while gateway.registry.upstream("s").state is not UpstreamState.READY:
            await asyncio.sleep(0)


# Under load


@pytest.mark.holds("O0.11")
async def test_one_hundred_reloads_under_load_lose_no_call_and_leak_nothing(tmp_path: Path) -> None:
    unchanged = child("kept", "pid")
    harness = AppHarness(tmp_path, HTTP, unchanged, changing_servers(0))
    before = asyncio.all_tasks()
    ended, calls = asyncio.Event(), list[str]()
    async with running_over_http(harness) as origin:
        session = await open_session(origin)
        pid = await call(origin, session, "kept__pid")
        open_files = count_files()

        async def load(name: str, stateless: bool) -> None:
            while not ended.is_set():
                if stateless:
                    answer = await call_stateless(origin, name)
                    calls.append(text_of(json.loads(answer.body)))
                else:
                    calls.append(await call(origin, session, name))

        async with asyncio.TaskGroup() as clients:
            for name in ("kept__pid", "child__pid", "tables__list_categories"):
                for stateless in (False, True):
                    clients.create_task(load(name, stateless))
            for number in range(1, 101):
                outcome = await harness.reload(HTTP, unchanged, changing_servers(number))
                assert outcome.problem is None
                assert outcome.changed
            registry = harness.app.gateway.registry
            while registry.is_changing:
                await asyncio.sleep(0)
            ended.set()
        assert len(calls) > 100
        assert await call(origin, session, "kept__pid") == pid
        assert len(children(os.getpid())) == 3  # the two servers and the orphan reaper
        assert count_files() <= open_files + 2  # connections that are closing
        assert len(harness.app.servers.era_caches) == 1  # both have the same command
    await harness.app.aclose()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() - before == set()
    assert harness.app.gateway.remapper.pending_count() == 0
    assert children(os.getpid()) == []


def changing_servers(number: int) -> str:
    """Return server tables that differ by number; the child restarts every 25th time."""
    prefix = "" if number % 2 else "prefix = 'same'"
    changed_keys = f'env = {{ A = "{number // 25}" }}\ntimeout = {10 + number}'
    return "\n".join(
        (
            child("child", "pid", more=changed_keys),
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


async def test_a_reload_without_a_configuration_file_reports_a_problem() -> None:
    app = App(Config())
    outcome = await app.create_reloader({}).reload()
    assert "without a configuration file" in (outcome.problem or "")
    assert ReloadTimings().poll_interval >= 1.0
    await app.aclose()


async def test_a_reload_enables_and_disables_authentication(
    tmp_path: Path,
) -> None:
    harness = AppHarness(tmp_path, HTTP, OPERATOR, environ={"SECRET": "s" * 64})
    async with running_over_http(harness) as origin:
        assert (await fetch(f"{origin}/mcp", hello())).status == 200
        assert "auth" in str((await harness.reload(HTTP, OPERATOR, AUTH)).changed)
        assert (await fetch(f"{origin}/mcp", hello())).status == 401
        await harness.reload(HTTP, OPERATOR, AUTH, "[gateway]\nname = 'b'")
        assert (await fetch(f"{origin}/mcp", hello())).status == 401
        await harness.reload(HTTP, OPERATOR)
        assert (await fetch(f"{origin}/mcp", hello())).status == 200


async def test_a_reload_cannot_disable_auth_on_a_network_address(
    tmp_path: Path,
) -> None:
    harness = AppHarness(tmp_path, OPERATOR, AUTH, environ={"SECRET": "s" * 64})
    async with running_over_http(harness, HttpSettings(listen="0.0.0.0:0")):
        (public_origin,) = harness.app.origins
        origin = public_origin.replace("0.0.0.0", "127.0.0.1")
        outcome = await harness.reload(OPERATOR)
        assert "expected a loopback address" in (outcome.problem or "")
        assert (await fetch(f"{origin}/mcp", hello())).status == 401


async def test_a_reload_refuses_a_server_url_at_the_own_address(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, HTTP, OPERATOR)
    async with running_over_http(harness) as origin:
        outcome = await harness.reload(HTTP, OPERATOR, f"[servers.us]\nurl = '{origin}/mcp'")
        assert "servers.us.url: it is the address of this gateway" in (outcome.problem or "")


async def test_a_reload_of_the_surface_keeps_the_kill_switches(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, OPERATOR)
    registry = harness.app.gateway.registry
    registry.visibility.disabled_check = lambda caller, entry: True
    disabled_check = registry.visibility.disabled_check
    await harness.reload('[gateway]\nsurface = ["x"]', OPERATOR)
    assert registry.visibility.disabled_check is disabled_check
    await harness.app.aclose()


@pytest.mark.holds("M12", "M13")
async def test_a_reload_of_the_limits_keeps_the_used_quota(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, "[limits]\ndefault_rpm = 2\n", OPERATOR)
    async with hang_guard(), harness.app.running() as gateway:
        await gateway.registry.wait_complete()
        engine = gateway.open_engine()
        await engine.handle_json(json.dumps(hello()))
        await engine.handle_json('{"jsonrpc":"2.0","method":"notifications/initialized"}')

        async def status() -> Any:
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
            response = await engine.handle_json(
                json.dumps(request | {"params": {"name": "me__status"}})
            )
            return json.loads(response or "")

        for _ in range(2):
            assert "result" in await status()
        assert (await status())["error"]["data"]["type"] == "rate_limited"
        outcome = await harness.reload("[limits]\ndefault_rpm = 3\n", OPERATOR)
        assert outcome.changed == ("limits.default_rpm",)
        assert "result" in await status()
        assert (await status())["error"]["data"]["type"] == "rate_limited"
        await harness.reload(OPERATOR)
        assert "result" in await status()


async def test_a_reload_applies_new_policy_rules_to_lists(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, OPERATOR)
    async with hang_guard(), harness.app.running() as gateway:
        await gateway.registry.wait_complete()
        user = Caller(LOCAL_PRINCIPAL, V2025_11_25, {}, Raw(b"{}"))

        def listed() -> bytes:
            return bytes(gateway.registry.list_result(FeatureKind.TOOL, user))

        assert b"me__status" in listed()
        await harness.reload("[[policy]]\nallow = 'me__logs'\n", OPERATOR)
        assert b"me__status" not in listed()
        assert b"me__logs" in listed()
        outcome = await harness.reload("[[policy]]\nallow = 5\n", OPERATOR)
        assert outcome.problem
        assert b"me__status" not in listed()


async def test_a_comment_above_a_rule_changes_its_line_and_nothing_else(tmp_path: Path) -> None:
    rule = "[[policy]]\ndeny = '*__pause'\n"
    harness = AppHarness(tmp_path, rule, OPERATOR)
    async with harness.app.running():
        await harness.app.gateway.registry.wait_complete()
        changes: list[object] = []
        harness.app.gateway.registry.add_listener(changes.append)
        result = await harness.reload("# Why this rule is here\n", rule, OPERATOR)
        assert not result.is_notable
        assert changes == []
        policy = harness.app.gateway.pipeline.enforcer
        assert isinstance(policy, EnforcementChain)
        assert policy.policy_enforcer is not None
        (applied,) = policy.policy_enforcer.policy.rules
        assert applied.location == "policy[0] (some.toml:3)"


async def test_a_reload_applies_audit_options_but_postpones_the_audit_url(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, "[audit]\nurl = 'sqlite:///a.db'\n", OPERATOR)
    async with hang_guard(), harness.app.running():
        assert harness.app.audit_log is not None
        outcome = await harness.reload("[audit]\nurl = 'sqlite:///b.db'\nqueue = 777\n", OPERATOR)
        assert harness.app.audit_log.status().queue_limit == 777
        assert "audit.url" in outcome.postponed
        assert harness.app.audit_log.status().url.endswith("a.db")


async def test_a_new_operator_server_receives_events_and_is_exempt_from_pause(
    tmp_path: Path,
) -> None:
    harness = AppHarness(tmp_path, "[gateway]\nname = 'a'")
    caller = Caller(LOCAL_PRINCIPAL, V2025_11_25, {}, Raw(b"{}"))
    async with hang_guard(), harness.app.running():
        assert harness.app.admin.logs().lines == ()
        await harness.reload(OPERATOR)
        await harness.wait_for_tool("me__status")
        harness.app.admin.pause("ann")
        assert harness.app.admin.logs().lines[-1].endswith("the gateway is paused by ann")
        assert harness.app.switches.may_send(caller, "me")
        # The name alone does not make a server an operator server.
        await harness.reload(BROKEN.replace("broken", "me"))
        assert not harness.app.switches.may_send(caller, "me")
