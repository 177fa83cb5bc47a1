"""Whose credentials go where: a client's end at the gateway, and the gateway's at their server."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.test_oauth import Guarded, Issuer
from tests.cli.samples import config
from tests.gateway.conftest import no_patience
from tests.gateway.servers import hello, tool
from tests.http_client import New, Old, Visited
from tests.transports.exchanges import call
from tests.transports.faulty import faulty
from tests.transports.links import no_patience as no_patience_with_links
from tests.transports.web import Modern, Web, refuses
from trunkline.app import App
from trunkline.config import load

__all__ = ["no_patience", "no_patience_with_links"]

CANARY = "canary-of-the-client"
OURS = "secret-of-the-gateway"
THEIRS = {
    "authorization": f"Bearer {CANARY}",
    "cookie": f"session={CANARY}",
    "x_api_key": CANARY,
    "proxy_authorization": f"Basic {CANARY}",
}

CHILD = """
import json, os, sys
seen = open(sys.argv[1], "a")
print(dict(os.environ), sys.argv, file=seen, flush=True)
for line in sys.stdin:
    print(line, file=seen, flush=True)
    asked = json.loads(line)
    result = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}], "content": [],
              "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
              "serverInfo": {"name": "c", "version": "1"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


class Place:
    """A gateway that listens before a child, and servers of both eras."""

    def __init__(self, app: App, here: Visited, webs: tuple[Web, Web], seen: Path) -> None:
        self.app, self.here, self.webs, self.seen = app, here, webs, seen

    async def ask(self, name: str) -> list[str]:
        """Call a tool in both eras, with all that is nobody else's business."""
        old = Old(self.here, "2025-11-25")
        reply = await self.here.ask(call(0, "initialize", **hello()), **THEIRS)
        old.id = reply.headers["mcp-session-id"]
        await self.here.ask(
            {"jsonrpc": "2.0", "method": "notifications/initialized"}, **old.headers, **THEIRS
        )
        headers: dict[str, Any] = {**old.headers, **THEIRS}
        first = await self.here.ask(call(1, "tools/call", name=name), **headers)
        second = await New(self.here).ask("tools/call", headers=dict(THEIRS), name=name)
        return [str(await first.last()), str(await second.last())]


@asynccontextmanager
async def place(
    folder: Path, more: str, *, guard: Guarded | None = None, **environ: str
) -> AsyncGenerator[Place]:
    webs = (Web(tools=[tool("t")]), Modern(tools=[tool("t")]))
    seen = folder / "seen"
    async with faulty(webs[0].play) as one, faulty((guard or webs[1]).play) as two:
        child = f'[servers.child]\ncommand = "{sys.executable}"\n'
        child += f'args = ["{folder}/child.py", "{seen}"]\nera = "handshake"\n'
        (folder / "child.py").write_text(CHILD)
        first = f'[servers.old]\nurl = "{one.url}"\nheaders.authorization = "Bearer ${{OURS}}"\n'
        second = f'[servers.new]\nurl = "{two.url}"\n{more}\n'
        http = '[http]\nlisten = "127.0.0.1:0"\n'
        settings = load(Path(config(folder, http, child, first, second)), environ)
        app = App(settings)
        async with asyncio.timeout(20), app.running() as made:
            await made.registry.wait_settled()
            async with app.listening(settings.http) as listener:
                here = Visited(listener)
                yield Place(app, here, webs, seen)
                for writer in here.writers:
                    writer.transport.abort()


@pytest.mark.holds("T103")
async def test_what_a_client_shows_to_the_gateway_nobody_else_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "TRUNKLINE_TOKEN", CANARY)
    monkeypatch.setitem(os.environ, "OURS", OURS)
    async with place(tmp_path, 'headers.x-key = "${OURS}"', OURS=OURS) as there:
        for name in ("child__t", "old__t", "new__t"):
            for answer in await there.ask(name):
                assert "result" in answer
                assert OURS not in answer
        for web in there.webs:
            assert web.of("tools/call")
            for asked in web.asked:
                assert CANARY.encode() not in asked.seen.head + asked.seen.body
        old, new = there.webs
        assert {asked.header("authorization") for asked in old.asked} == {f"Bearer {OURS}"}
        assert {asked.header("authorization") for asked in new.asked} == {None}
        assert {asked.header("x-key") for asked in new.asked} == {OURS}
        said = there.seen.read_text()
        assert "tools/call" in said
        assert CANARY not in said
        assert OURS not in said  # nor is one server's secret another's
        assert OURS not in str(there.app.gateway.registry.snapshot())


async def test_a_server_that_does_not_let_us_in_learns_nothing_and_tells_nothing(
    tmp_path: Path,
) -> None:
    challenge = b'www-authenticate: Bearer resource_metadata="http://127.0.0.1:1/"'
    async with place(tmp_path, "", OURS=OURS) as there:
        for web in there.webs:
            web.reactions["tools/call"] = refuses("401 Unauthorized", b"", challenge)
        for name in ("old__t", "new__t"):
            for answer in await there.ask(name):
                assert "the server answered HTTP 401" in answer
                assert OURS not in answer
                assert "resource_metadata" not in answer


async def test_tokens_of_the_gateway_reach_their_server_and_nobody_else(tmp_path: Path) -> None:
    issuer, modern = Issuer(), Modern(tools=[tool("t")])
    guarded = Guarded(modern, "Bearer canary1")
    async with faulty(issuer.play) as there:
        oauth = f'[servers.new.oauth]\ntoken_url = "{there.url}"\nclient_id = "g"\n'
        oauth += 'client_secret_env = "SECRET"'
        async with place(tmp_path, oauth, guard=guarded, OURS="x", SECRET=OURS) as here:
            for answer in await here.ask("new__t"):
                assert "result" in answer
            guarded.accepted = set()
            for answer in await here.ask("new__t"):
                assert "unavailable" in answer
                assert "canary" not in answer
                assert OURS not in answer
            for asked in here.webs[0].asked:
                assert b"canary" not in asked.seen.head + asked.seen.body
            assert "canary" not in here.seen.read_text()
            assert "canary" not in str(here.app.gateway.registry.snapshot())
            assert OURS not in str(here.app.gateway.registry.snapshot())
    for asked in modern.asked:
        assert CANARY not in str(asked.seen.headers)
