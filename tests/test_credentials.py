"""Credentials: a client's stop at the gateway, and the gateway's reach only their server."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.http_clients import SHORT_LIMITS
from tests.backends.http_servers import FakeSessionServer, FakeStatelessServer, rejects
from tests.backends.test_oauth import Guarded, Issuer
from tests.cli.samples import config
from tests.endpoints.exchanges import rpc_request
from tests.gateway.servers import hello, tool
from tests.http.scripted_server import scripted_server
from tests.http_client import HttpPeer, SessionHttpClient, StatelessHttpClient
from tests.tasks import hang_guard
from trunkline.app.application import App
from trunkline.app.build import AppLimits
from trunkline.config import load_config

CANARY = "canary-of-the-client"
GATEWAY_SECRET = "secret-of-the-gateway"
CLIENT_CREDENTIALS = {
    "authorization": f"Bearer {CANARY}",
    "cookie": f"session={CANARY}",
    "x_api_key": CANARY,
    "proxy_authorization": f"Basic {CANARY}",
}

CHILD = """
import json, os, sys
received_file = open(sys.argv[1], "a")
print(dict(os.environ), sys.argv, file=received_file, flush=True)
for line in sys.stdin:
    print(line, file=received_file, flush=True)
    request = json.loads(line)
    result = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}], "content": [],
              "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
              "serverInfo": {"name": "c", "version": "1"}}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


class CredentialSetup:
    """A gateway in front of a child process and of HTTP servers of both protocols."""

    def __init__(
        self,
        app: App,
        here: HttpPeer,
        servers: tuple[FakeSessionServer, FakeSessionServer],
        received_file: Path,
    ) -> None:
        self.app, self.here, self.servers, self.received_file = app, here, servers, received_file

    async def call(self, name: str) -> list[str]:
        """Call a tool in both protocols, with credentials in many headers."""
        session = SessionHttpClient(self.here, "2025-11-25")
        reply = await self.here.ask(rpc_request(0, "initialize", **hello()), **CLIENT_CREDENTIALS)
        session.id = reply.headers["mcp-session-id"]
        await self.here.ask(
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            **session.headers,
            **CLIENT_CREDENTIALS,
        )
        headers: dict[str, Any] = {**session.headers, **CLIENT_CREDENTIALS}
        first = await self.here.ask(rpc_request(1, "tools/call", name=name), **headers)
        second = await StatelessHttpClient(self.here).ask(
            "tools/call", headers=dict(CLIENT_CREDENTIALS), name=name
        )
        return [str(await first.final_message()), str(await second.final_message())]


@asynccontextmanager
async def credential_setup(
    folder: Path, more: str, *, guarded_server: Guarded | None = None, **environ: str
) -> AsyncGenerator[CredentialSetup]:
    servers = (FakeSessionServer(tools=[tool("t")]), FakeStatelessServer(tools=[tool("t")]))
    received_file = folder / "received_file"
    async with (
        scripted_server(servers[0].play) as one,
        scripted_server((guarded_server or servers[1]).play) as two,
    ):
        child = f'[servers.child]\ncommand = "{sys.executable}"\n'
        child += f'args = ["{folder}/child.py", "{received_file}"]\nprotocol = "session"\n'
        (folder / "child.py").write_text(CHILD)
        first = f'[servers.session]\nurl = "{one.url}"\n'
        first += 'headers.authorization = "Bearer ${GATEWAY_SECRET}"\n'
        second = f'[servers.new]\nurl = "{two.url}"\n{more}\n'
        http = '[http]\nlisten = "127.0.0.1:0"\n'
        settings = load_config(Path(config(folder, http, child, first, second)), environ)
        app = App(settings, limits=AppLimits(backends=SHORT_LIMITS))
        async with hang_guard(), app.running() as made:
            await made.registry.wait_complete()
            async with app.listening(settings.http) as listener:
                here = HttpPeer(listener)
                yield CredentialSetup(app, here, servers, received_file)
                for writer in here.writers:
                    writer.transport.abort()


@pytest.mark.holds("T103")
async def test_client_credentials_are_never_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "TRUNKLINE_TOKEN", CANARY)
    monkeypatch.setitem(os.environ, "GATEWAY_SECRET", GATEWAY_SECRET)
    async with credential_setup(
        tmp_path, 'headers.x-key = "${GATEWAY_SECRET}"', GATEWAY_SECRET=GATEWAY_SECRET
    ) as setup:
        for name in ("child__t", "session__t", "new__t"):
            for answer in await setup.call(name):
                assert "result" in answer
                assert GATEWAY_SECRET not in answer
        for server in setup.servers:
            assert server.received_for("tools/call")
            for request in server.received:
                assert CANARY.encode() not in request.http_request.head + request.http_request.body
        session, new = setup.servers
        assert {request.header("authorization") for request in session.received} == {
            f"Bearer {GATEWAY_SECRET}"
        }
        assert {request.header("authorization") for request in new.received} == {None}
        assert {request.header("x-key") for request in new.received} == {GATEWAY_SECRET}
        received = setup.received_file.read_text()
        assert "tools/call" in received
        assert CANARY not in received
        assert GATEWAY_SECRET not in received  # one server's secret does not reach another
        assert GATEWAY_SECRET not in str(setup.app.gateway.registry.snapshots())


async def test_a_server_that_rejects_us_learns_and_leaks_nothing(
    tmp_path: Path,
) -> None:
    challenge = b'www-authenticate: Bearer resource_metadata="http://127.0.0.1:1/"'
    async with credential_setup(tmp_path, "", GATEWAY_SECRET=GATEWAY_SECRET) as setup:
        for server in setup.servers:
            server.reactions["tools/call"] = rejects("401 Unauthorized", b"", challenge)
        for name in ("session__t", "new__t"):
            for answer in await setup.call(name):
                assert "the server answered HTTP 401" in answer
                assert GATEWAY_SECRET not in answer
                assert "resource_metadata" not in answer


async def test_gateway_tokens_reach_only_their_server(tmp_path: Path) -> None:
    issuer, modern = Issuer(), FakeStatelessServer(tools=[tool("t")])
    guarded = Guarded(modern, "Bearer canary1")
    async with scripted_server(issuer.play) as setup:
        oauth = f'[servers.new.oauth]\ntoken_url = "{setup.url}"\nclient_id = "g"\n'
        oauth += 'client_secret_env = "SECRET"'
        async with credential_setup(
            tmp_path, oauth, guarded_server=guarded, GATEWAY_SECRET="x", SECRET=GATEWAY_SECRET
        ) as here:
            for answer in await here.call("new__t"):
                assert "result" in answer
            guarded.accepted = set()
            for answer in await here.call("new__t"):
                assert "unavailable" in answer
                assert "canary" not in answer
                assert GATEWAY_SECRET not in answer
            for request in here.servers[0].received:
                assert b"canary" not in request.http_request.head + request.http_request.body
            assert "canary" not in here.received_file.read_text()
            assert "canary" not in str(here.app.gateway.registry.snapshots())
            assert GATEWAY_SECRET not in str(here.app.gateway.registry.snapshots())
    for request in modern.received:
        assert CANARY not in str(request.http_request.headers)
