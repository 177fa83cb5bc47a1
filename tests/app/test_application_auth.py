"""The application with `[auth]`: over HTTP, mounted and over stdio. No token leaks."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.test_application_http import (
    HERE,
    MODERN,
    call_stateless,
    post,
    stateless_request,
    websocket,
)
from tests.app.test_application_reload import AppHarness, running_over_http
from tests.app.test_identity import settings
from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, token
from tests.backends.http_servers import FakeSessionServer, FakeStatelessServer
from tests.cli.samples import OPERATOR, config, fetch, hello
from tests.gateway.servers import tool
from tests.http.scripted_server import scripted_server
from tests.http.test_asgi import Server
from tests.identities import current_claims
from tests.tasks import hang_guard, settle
from tests.test_http_protocols import OURS
from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.backends.url import UrlSettings
from trunkline.config import AuthSettings, Config, HttpSettings, ServerSettings
from trunkline.gateway.events import AuthRejected, GatewayEvent

CANARY = "canary-7d3f1c"
"""A part of every token in these tests; only the gateway may see it."""

AUTH = f'[auth.jwt]\nsecret_env = "SECRET"\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'


def app(auth: AuthSettings | None = None, *servers: ServerSettings) -> App:
    changed = msgspec.structs.replace(DEFAULT_CONFIG, auth=auth or settings())
    return App(msgspec.structs.replace(changed, servers=servers) if servers else changed)


def bearer(**claims: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {token(**current_claims(**claims))}"}


@pytest.mark.holds("C30", "M10")
async def test_with_auth_a_network_address_is_served_and_every_request_is_checked() -> None:
    application = app()
    everywhere = HttpSettings(listen="0.0.0.0:0")
    async with hang_guard(), application.running(), application.listening(everywhere):
        origin = application.origins[0].replace("0.0.0.0", "127.0.0.1")
        assert (await call_stateless(origin, "trunkline__status")).status == 401
        assert (await fetch(f"{origin}/mcp", hello(), bearer())).status == 200
        assert (await fetch(f"{origin}/mcp", hello(), bearer(aud="x"))).status == 401
        assert (await fetch(f"{origin}/.well-known/oauth-protected-resource")).status == 200
        assert (await fetch(f"{origin}/healthz")).status == 200


async def test_rejected_requests_emit_events() -> None:
    application, events = app(), list[GatewayEvent]()

    def record_rejection(event: GatewayEvent) -> None:
        if isinstance(event, AuthRejected):
            events.append(event)

    application.gateway.pipeline.events.add_listener(record_rejection)
    async with hang_guard(), application.running(), application.listening(HERE):
        await fetch(f"{application.origins[0]}/mcp", hello())
        await fetch(f"{application.origins[0]}/mcp", hello(), bearer(iss="https://evil.example"))
        await fetch(f"{application.origins[0]}/mcp", hello(), bearer())
    assert events == [
        AuthRejected("127.0.0.1", "no token"),
        AuthRejected("127.0.0.1", "the token is from another issuer"),
    ]


@pytest.mark.parametrize("reloaded", [False, True])
async def test_behind_a_trusted_proxy_failures_count_for_the_client(
    reloaded: bool, tmp_path: Path
) -> None:
    auth = AUTH.replace("[auth.jwt]", "[auth]\nmax_failures = 1\n[auth.jwt]")
    listen, trusted = '[http]\nlisten = "127.0.0.1:0"\n', 'trusted_proxies = ["127.0.0.1"]'
    environ = {"SECRET": SECRET.decode()}
    first = listen if reloaded else listen + trusted
    harness = AppHarness(tmp_path, first, auth, OPERATOR, environ=environ)
    async with running_over_http(harness) as origin:
        if reloaded:
            assert (await harness.reload(listen + trusted, auth, OPERATOR)).problem is None

        async def status(client: str) -> int:
            headers = {**bearer(aud="x"), "x-forwarded-for": f"1.1.1.1, {client}"}
            return (await fetch(f"{origin}/mcp", hello(), headers)).status

        assert [await status("192.0.2.1") for _ in range(2)] == [401, 429]
        assert await status("192.0.2.2") == 401


async def test_a_reload_replaces_the_authenticator(tmp_path: Path) -> None:
    harness = AppHarness(tmp_path, AUTH, OPERATOR, environ={"SECRET": SECRET.decode()})
    bad = tmp_path / "keys.json"
    bad.write_text("nonsense")
    bad.chmod(0o600)
    async with running_over_http(harness, HERE) as origin:
        credentials = bearer()

        async def status() -> int:
            return (await fetch(f"{origin}/mcp", hello(), credentials)).status

        assert await status() == 200
        other = AUTH.replace(ISSUER, "https://other.example")
        assert (await harness.reload(other, OPERATOR)).problem is None
        assert await status() == 401
        refused = await harness.reload('[auth]\nmode = "api_key"', OPERATOR)
        assert f"{bad}: " in (refused.problem or "")
        assert await status() == 401
        assert (await harness.reload(AUTH, OPERATOR)).problem is None
        assert await status() == 200


async def test_an_endpoint_whose_authenticator_cannot_be_built_is_not_opened(
    tmp_path: Path,
) -> None:
    bad = tmp_path / "keys.json"
    bad.write_text("nonsense")
    bad.chmod(0o600)
    application = app(AuthSettings(api_keys=bad))
    mounted = application.asgi()
    async with hang_guard(), application.running():
        with pytest.raises(ValueError, match="keys"):
            async with application.listening(HERE):
                raise AssertionError
        for _ in range(2):
            with pytest.raises(ValueError, match="keys"):
                await post(mounted, hello())


# Mounted in an ASGI server


async def test_a_mounted_gateway_checks_tokens() -> None:
    application = app()
    mounted = application.asgi()
    credentials = (b"authorization", bearer()["authorization"].encode())
    async with hang_guard(), application.running():
        refused = await post(mounted, hello())
        assert (refused.status, "resource_metadata" in refused.header["www-authenticate"]) == (
            *(401, True),
        )
        assert (await post(mounted, hello(), credentials, credentials)).status == 400
        assert (await post(mounted, hello(), credentials)).status == 200
        assert application.http_sessions == 1


async def test_the_websocket_of_a_mounted_gateway_checks_tokens() -> None:
    application = app()
    mounted = application.asgi()
    credentials = (b"authorization", bearer()["authorization"].encode())
    async with hang_guard(), application.running():
        for headers in ((), ((b"authorization", b"Bearer x"),), (credentials, credentials)):
            server = Server({"type": "websocket.connect"})
            await server.call(mounted, websocket("/ws", *headers))
            assert server.got[0]["type"] == "websocket.http.response.start"
            assert server.got[0]["status"] == (400 if len(headers) == 2 else 401)
            assert b"www-authenticate" in dict(server.got[0]["headers"])
        server = Server({"type": "websocket.connect"})
        serving = server.start(mounted, websocket("/ws", credentials))
        server.give({"type": "websocket.receive", "text": json.dumps(hello())})
        while len(server.got) < 2:
            await asyncio.sleep(0)
        assert server.got[0]["type"] == "websocket.accept"
        assert len(application.gateway.sessions) == 1
        server.give({"type": "websocket.disconnect", "code": 1000})
        await serving


# Over stdio

SERVE = [sys.executable, "-m", "trunkline", "serve", "--stdio", "--config"]


def serve(
    file: str, folder: Path, stdin: str, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Serve over stdio until every line of `stdin` is answered."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRUNKLINE_TOKEN"}
    environ_of_child = inherited | {
        "SECRET": SECRET.decode(),
        "XDG_RUNTIME_DIR": str(folder),
        **environ,
    }
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 30}
    return subprocess.run([*SERVE, file], input=stdin, env=environ_of_child, check=False, **options)


@pytest.mark.holds("C30", "O0.8")
@pytest.mark.parametrize("kind", ["", "nonsense", "expired"])
def test_stdio_requires_a_valid_token(kind: str, tmp_path: Path) -> None:
    credential = token(exp=1) if kind == "expired" else kind
    environ = {"TRUNKLINE_TOKEN": credential} if credential else {}
    result = serve(
        config(tmp_path, AUTH, OPERATOR), tmp_path, json.dumps(hello()) + "\n", **environ
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert "cannot serve:" in result.stderr
    assert "put a good token or key into the variable TRUNKLINE_TOKEN" in result.stderr
    assert not credential or credential not in result.stderr


CHILD = """
import json, os, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        answer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}
    elif request["method"] == "tools/list":
        answer = {"tools": [{"name": "env", "inputSchema": {"type": "object"}}]}
    elif "id" in request:
        seen = json.dumps([request, dict(os.environ)])
        answer = {"content": [{"type": "text", "text": seen}]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer}), flush=True)
"""


@pytest.mark.holds("O0.8", "C30")
def test_a_valid_token_over_stdio_is_not_visible_to_server_processes(tmp_path: Path) -> None:
    args = json.dumps(["-c", CHILD])
    child = f"[servers.s]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n"
    child += 'protocol = "session"\n'
    messages = [
        hello(),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "s__env"}},
    ]
    credential = token(**current_claims(sub=CANARY))
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    file = config(tmp_path, AUTH, child)
    result = serve(file, tmp_path, lines, TRUNKLINE_TOKEN=credential)
    assert result.returncode == 0, result.stderr
    text = json.loads(result.stdout.splitlines()[-1])["result"]["content"][0]["text"]
    assert '"PATH"' in text
    for secret in (credential, SECRET.decode(), CANARY):
        assert secret not in result.stdout
        assert secret not in result.stderr


# Tokens are never forwarded or logged


@pytest.mark.holds("T103")
@pytest.mark.parametrize("kind", [FakeSessionServer, FakeStatelessServer])
async def test_no_token_is_sent_upstream_or_logged(
    kind: type[FakeSessionServer],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    web = kind(tools=[tool("t")])
    async with hang_guard(), scripted_server(web.play) as server:
        upstream_settings = ServerSettings(
            name="s", backend=UrlSettings(url=server.url, headers={"authorization": OURS.decode()})
        )
        application = app(None, upstream_settings)
        events = list[GatewayEvent]()
        application.gateway.pipeline.events.add_listener(events.append)
        async with application.running() as gateway:
            await gateway.registry.wait_complete()
            async with application.listening(HERE):
                origin = application.origins[0]
                good, bad = bearer(jti=CANARY), bearer(jti=CANARY, aud="x")
                call = stateless_request("tools/call", name="s__t", arguments={})
                headers = {"mcp-method": "tools/call", "mcp-name": "s__t", **MODERN}
                assert (await fetch(f"{origin}/mcp", call, headers | good)).status == 200
                answers = [
                    await fetch(f"{origin}/mcp", call, headers | bad),
                    await fetch(f"{origin}/nowhere", call, good),
                ]
        await settle()
        assert {each.header("authorization") for each in web.received} == {OURS.decode()}
        seen = repr(web.received)
    assert len(web.received) > 2
    everything = [seen, caplog.text, *capfd.readouterr(), repr(events), repr(application.origins)]
    everything += [repr(answer) for answer in answers]
    tokens = [each["authorization"].removeprefix("Bearer ") for each in (good, bad)]
    for secret in (*tokens, *(each.split(".")[1] for each in tokens), CANARY, SECRET.decode()):
        assert not any(secret in text for text in everything)


def test_printing_a_configuration_shows_no_secret() -> None:
    assert SECRET.decode() not in repr(Config(auth=settings()))


async def test_clients_get_the_public_url_also_after_a_reload(tmp_path: Path) -> None:
    def http(public: str) -> str:
        return f'[http]\nlisten = "127.0.0.1:0"\npublic_url = "{public}"\n'

    environ, below = {"SECRET": SECRET.decode()}, "/.well-known/oauth-protected-resource/mcp"
    harness = AppHarness(tmp_path, http("https://a.example/x"), AUTH, OPERATOR, environ=environ)
    async with running_over_http(harness) as origin:

        async def announced(host: str) -> tuple[int, str, str]:
            refused = await fetch(f"{origin}/mcp", hello(), {"host": host})
            page = await fetch(f"{origin}{below}", None, {"host": host})
            challenge = refused.header.get("www-authenticate", "")
            return refused.status, challenge, json.loads(page.body)["resource"]

        status, challenge, resource = await announced("a.example")
        assert (status, resource) == (401, "https://a.example/x/mcp")
        assert f'resource_metadata="https://a.example/x{below}"' in challenge
        assert (await harness.reload(http("https://b.example"), AUTH, OPERATOR)).problem is None
        status, challenge, resource = await announced("b.example")
        assert (status, resource) == (401, "https://b.example/mcp")
        assert f'resource_metadata="https://b.example{below}"' in challenge
        assert (await fetch(f"{origin}/mcp", hello(), {"host": "a.example"})).status == 421
