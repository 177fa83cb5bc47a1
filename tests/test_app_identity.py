"""The whole program with `[auth]`: over HTTP, mounted, and over stdio; tokens stay with us."""

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

from tests.assembly.test_identity import settings
from tests.auth.issuer import AUDIENCE, ISSUER, SECRET, token
from tests.cli.samples import OPERATOR, config, fetch, hello
from tests.gateway.servers import tool
from tests.identities import real_claims
from tests.jsonrpc.test_channel import settle
from tests.test_app_http import HERE, MODERN, call_modern, enveloped, post, websocket
from tests.test_app_reload import Desk, listening
from tests.test_http_eras import OURS
from tests.transports.faulty import faulty
from tests.transports.test_asgi import Server
from tests.transports.web import Modern, Web
from trunkline.app import DEFAULT, App
from trunkline.config import AuthSettings, Config, HttpSettings, ServerSettings
from trunkline.gateway.events import Event, TurnedAway

CANARY = "canary-7d3f1c"
"""A part of every token in these tests: nobody but the gateway may ever see it."""

AUTH = f'[auth.jwt]\nsecret_env = "SECRET"\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'


def app(auth: AuthSettings | None = None, *servers: ServerSettings) -> App:
    changed = msgspec.structs.replace(DEFAULT, auth=auth or settings())
    return App(msgspec.structs.replace(changed, servers=servers) if servers else changed)


def bearer(**claims: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {token(**real_claims(**claims))}"}


@pytest.mark.holds("C30", "M10")
async def test_with_a_guard_a_network_is_listened_to_and_everybody_asked() -> None:
    made = app()
    everywhere = HttpSettings(listen="0.0.0.0:0")
    async with asyncio.timeout(20), made.running(), made.listening(everywhere):
        origin = made.origins[0].replace("0.0.0.0", "127.0.0.1")
        assert (await call_modern(origin, "trunkline__status")).status == 401
        assert (await fetch(f"{origin}/mcp", hello(), bearer())).status == 200
        assert (await fetch(f"{origin}/mcp", hello(), bearer(aud="x"))).status == 401
        assert (await fetch(f"{origin}/.well-known/oauth-protected-resource")).status == 200
        assert (await fetch(f"{origin}/healthz")).status == 200


async def test_those_who_are_turned_away_are_told_of() -> None:
    made, heard = app(), list[Event]()

    def note(event: Event) -> None:
        if isinstance(event, TurnedAway):
            heard.append(event)

    made.gateway.layers.events.listen(note)
    async with asyncio.timeout(20), made.running(), made.listening(HERE):
        await fetch(f"{made.origins[0]}/mcp", hello())
        await fetch(f"{made.origins[0]}/mcp", hello(), bearer(iss="https://evil.example"))
        await fetch(f"{made.origins[0]}/mcp", hello(), bearer())
    assert heard == [
        TurnedAway("127.0.0.1", "no token"),
        TurnedAway("127.0.0.1", "the token is from another issuer"),
    ]


async def test_the_guard_is_changed_while_it_stands_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path, AUTH, OPERATOR, environ={"SECRET": SECRET.decode()})
    bad = tmp_path / "keys.json"
    bad.write_text("nonsense")
    bad.chmod(0o600)
    async with listening(desk, HERE) as origin:
        given = bearer()

        async def status() -> int:
            return (await fetch(f"{origin}/mcp", hello(), given)).status

        assert await status() == 200
        other = AUTH.replace(ISSUER, "https://other.example")
        assert (await desk.reload(other, OPERATOR)).problem is None
        assert await status() == 401
        refused = await desk.reload('[auth]\nmode = "key"', OPERATOR)
        assert f"{bad}: " in (refused.problem or "")
        assert await status() == 401
        assert (await desk.reload(AUTH, OPERATOR)).problem is None
        assert await status() == 200


async def test_a_door_whose_guard_cannot_be_made_is_not_opened(tmp_path: Path) -> None:
    bad = tmp_path / "keys.json"
    bad.write_text("nonsense")
    bad.chmod(0o600)
    made = app(AuthSettings(keys=bad))
    mounted = made.asgi()
    async with asyncio.timeout(20), made.running():
        with pytest.raises(ValueError, match="keys"):
            async with made.listening(HERE):
                raise AssertionError
        for _ in range(2):
            with pytest.raises(ValueError, match="keys"):
                await post(mounted, hello())


# In anybody's ASGI server


async def test_a_mounted_gateway_is_guarded_as_well() -> None:
    made = app()
    mounted = made.asgi()
    given = (b"authorization", bearer()["authorization"].encode())
    async with asyncio.timeout(20), made.running():
        refused = await post(mounted, hello())
        assert (refused.status, "resource_metadata" in refused.header["www-authenticate"]) == (
            *(401, True),
        )
        assert (await post(mounted, hello(), given, given)).status == 400
        assert (await post(mounted, hello(), given)).status == 200
        assert made.http_sessions == 1


async def test_so_is_its_websocket() -> None:
    made = app()
    mounted = made.asgi()
    given = (b"authorization", bearer()["authorization"].encode())
    async with asyncio.timeout(20), made.running():
        for headers in ((), ((b"authorization", b"Bearer x"),), (given, given)):
            server = Server({"type": "websocket.connect"})
            await server.call(mounted, websocket("/ws", *headers))
            assert server.got[0]["type"] == "websocket.http.response.start"
            assert server.got[0]["status"] == (400 if len(headers) == 2 else 401)
            assert b"www-authenticate" in dict(server.got[0]["headers"])
        server = Server({"type": "websocket.connect"})
        serving = server.start(mounted, websocket("/ws", given))
        server.give({"type": "websocket.receive", "text": json.dumps(hello())})
        while len(server.got) < 2:
            await asyncio.sleep(0)
        assert server.got[0]["type"] == "websocket.accept"
        assert len(made.gateway.sessions) == 1
        server.give({"type": "websocket.disconnect", "code": 1000})
        await serving


# Over stdio

SERVE = [sys.executable, "-m", "trunkline", "serve", "--stdio", "--config"]


def serve(file: str, folder: Path, said: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Serve over stdio until all that is said has been answered."""
    kept = {name: value for name, value in os.environ.items() if name != "TRUNKLINE_TOKEN"}
    every = kept | {"SECRET": SECRET.decode(), "XDG_RUNTIME_DIR": str(folder), **environ}
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 30}
    return subprocess.run([*SERVE, file], input=said, env=every, check=False, **how)


@pytest.mark.holds("C30", "O0.8")
@pytest.mark.parametrize("given", ["", "nonsense", "expired"])
def test_without_a_good_token_stdio_is_not_served(given: str, tmp_path: Path) -> None:
    made = token(exp=1) if given == "expired" else given
    environ = {"TRUNKLINE_TOKEN": made} if made else {}
    done = serve(config(tmp_path, AUTH, OPERATOR), tmp_path, json.dumps(hello()) + "\n", **environ)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "cannot serve:" in done.stderr
    assert "put a good token or key into the variable TRUNKLINE_TOKEN" in done.stderr
    assert not made or made not in done.stderr


CHILD = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        answer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}
    elif asked["method"] == "tools/list":
        answer = {"tools": [{"name": "env", "inputSchema": {"type": "object"}}]}
    elif "id" in asked:
        seen = json.dumps([asked, dict(os.environ)])
        answer = {"content": [{"type": "text", "text": seen}]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


@pytest.mark.holds("O0.8", "C30")
def test_with_a_good_one_it_is_and_no_child_sees_it(tmp_path: Path) -> None:
    args = json.dumps(["-c", CHILD])
    child = f"[servers.s]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n"
    child += 'era = "handshake"\n'
    said = [
        hello(),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "s__env"}},
    ]
    made = token(**real_claims(sub=CANARY))
    lines = "".join(json.dumps(each) + "\n" for each in said)
    file = config(tmp_path, AUTH, child)
    done = serve(file, tmp_path, lines, TRUNKLINE_TOKEN=made)
    assert done.returncode == 0, done.stderr
    text = json.loads(done.stdout.splitlines()[-1])["result"]["content"][0]["text"]
    assert '"PATH"' in text
    for secret in (made, SECRET.decode(), CANARY):
        assert secret not in done.stdout
        assert secret not in done.stderr


# Tokens stay where they are


@pytest.mark.holds("T103")
@pytest.mark.parametrize("kind", [Web, Modern])
async def test_no_token_goes_upstream_or_into_a_log(
    kind: type[Web], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    web = kind(tools=[tool("t")])
    async with asyncio.timeout(20), faulty(web.play) as server:
        behind = ServerSettings(name="s", url=server.url, headers={"authorization": OURS.decode()})
        made = app(None, behind)
        heard = list[Event]()
        made.gateway.layers.events.listen(heard.append)
        async with made.running() as gateway:
            await gateway.registry.wait_settled()
            async with made.listening(HERE):
                origin = made.origins[0]
                good, bad = bearer(jti=CANARY), bearer(jti=CANARY, aud="x")
                call = enveloped("tools/call", name="s__t", arguments={})
                headers = {"mcp-method": "tools/call", "mcp-name": "s__t", **MODERN}
                assert (await fetch(f"{origin}/mcp", call, headers | good)).status == 200
                answers = [
                    await fetch(f"{origin}/mcp", call, headers | bad),
                    await fetch(f"{origin}/nowhere", call, good),
                ]
        await settle()
        assert {each.header("authorization") for each in web.asked} == {OURS.decode()}
        seen = repr(web.asked)
    assert len(web.asked) > 2
    everything = [seen, caplog.text, *capfd.readouterr(), repr(heard), repr(made.origins)]
    everything += [repr(answer) for answer in answers]
    tokens = [each["authorization"].removeprefix("Bearer ") for each in (good, bad)]
    for secret in (*tokens, *(each.split(".")[1] for each in tokens), CANARY, SECRET.decode()):
        assert not any(secret in text for text in everything)


def test_printing_a_configuration_shows_no_secret() -> None:
    assert SECRET.decode() not in repr(Config(auth=settings()))
