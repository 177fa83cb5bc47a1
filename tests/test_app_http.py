"""The gateway over HTTP, listened to by itself and mounted in anybody's ASGI server."""

import asyncio
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.frames import CloseCode

from tests.cli.samples import Answer, fetch, hello
from tests.jsonrpc.test_channel import settle
from tests.transports.faulty import CERTIFICATE, KEY
from tests.transports.test_asgi import Server, body, http
from trunkline import __version__
from trunkline.app import DEFAULT, App
from trunkline.assembly.http import tls_of
from trunkline.backends.functions import Functions
from trunkline.config import AddressError, HttpSettings, ServerSettings
from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.events import CallEnded
from trunkline.gateway.settings import Settings
from trunkline.gateway.upstream import State
from trunkline.mcp.offer import Kind
from trunkline.transports.asgi import AsgiApp

PREFIX = "io.modelcontextprotocol/"
MODERN = {"mcp-protocol-version": "2026-07-28"}
HERE = HttpSettings(listen="127.0.0.1:0")


def enveloped(method: str, can: Any = None, **params: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {
        PREFIX + "protocolVersion": "2026-07-28",
        PREFIX + "clientCapabilities": can or {},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


async def call_modern(origin: str, name: str, can: Any = None) -> Answer:
    message = enveloped("tools/call", can, name=name, arguments={})
    headers = {"mcp-method": "tools/call", "mcp-name": name, **MODERN}
    return await fetch(f"{origin}/mcp", message, headers)


async def open_session(origin: str) -> dict[str, str]:
    """Shake hands, and return the headers of the session."""
    welcome = await fetch(f"{origin}/mcp", hello())
    headers = {"mcp-session-id": welcome.header["mcp-session-id"]}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await fetch(f"{origin}/mcp", ready, headers)).status == 202
    return headers


async def call_in_session(origin: str, name: str) -> Answer:
    session = await open_session(origin)
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name}}
    return await fetch(f"{origin}/mcp", message, session)


def gated(app: App, gate: asyncio.Event) -> asyncio.Event:
    """Give an app a tool `gated__pass` that waits; return what says that it was called."""
    called = asyncio.Event()
    functions = Functions()

    async def enter() -> str:
        called.set()
        await gate.wait()
        return "through"

    functions.tool("pass")(enter)

    async def connect(listener: Listener) -> Backend:
        return functions

    app.gateway.add(Settings("gated", "gated", 30.0, 30.0, 0, 8), connect)
    return called


@pytest.mark.parametrize("calls", [call_modern, call_in_session])
async def test_clients_of_both_eras_come_by_http(calls: Any) -> None:
    app = App(DEFAULT)
    async with asyncio.timeout(20), app.running():
        async with app.listening(HERE):
            (origin,) = app.origins
            answer = await calls(origin, "trunkline__status")
            assert answer.result["structuredContent"]["version"] == __version__
            assert app.http_sessions == (calls is call_in_session)
        assert (app.origins, app.http_sessions) == ((), 0)


@pytest.mark.parametrize("calls", [call_modern, call_in_session])
async def test_a_call_that_is_under_way_is_finished_before_the_end(calls: Any) -> None:
    app, gate = App(DEFAULT), asyncio.Event()
    called = gated(app, gate)
    async with asyncio.timeout(20):
        context = app.listening(HERE)
        await context.__aenter__()
        (origin,) = app.origins
        calling = asyncio.create_task(calls(origin, "gated__pass"))
        await called.wait()
        ending = asyncio.create_task(context.__aexit__(None, None, None))
        while app.origins:
            await asyncio.sleep(0)
        await settle()
        with pytest.raises(ConnectionError):
            await fetch(f"{origin}/healthz")
        assert not calling.done()
        gate.set()
        answer = await calling
        assert answer.result["content"] == [{"type": "text", "text": "through"}]
        await ending
        await app.aclose()


async def test_a_call_that_does_not_end_does_not_keep_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.app.DRAIN", 0.05)
    app = App(DEFAULT)
    called = gated(app, asyncio.Event())
    async with asyncio.timeout(20):
        async with app.listening(HERE):
            calling = asyncio.create_task(call_in_session(app.origins[0], "gated__pass"))
            await called.wait()
        assert json.loads((await calling).body)["error"]["code"] == -32800
        await app.aclose()


async def test_a_websocket_whose_call_does_not_end_is_told_goodbye(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trunkline.app.DRAIN", 0.05)
    monkeypatch.setattr("trunkline.app.PARTING", 0.0)
    monkeypatch.setattr("trunkline.gateway.gateway.GRACE", 0.05)  # a part of what is allowed for
    app = App(DEFAULT)
    called = gated(app, asyncio.Event())
    async with asyncio.timeout(20):
        async with app.listening(HERE):
            client = await connect(app.origins[0].replace("http", "ws") + "/ws")
            message = enveloped("tools/call", name="gated__pass", arguments={})
            await client.send(json.dumps(message))
            await called.wait()
        await client.wait_closed()
        assert client.close_code == CloseCode.GOING_AWAY
        await app.aclose()


ASKING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    method, said = asked.get("method"), {"id": asked.get("id")}
    if method == "initialize":
        said["result"] = {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}
        }
    elif method == "tools/list":
        said["result"] = {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        params = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        said = {"id": "q", "method": "elicitation/create", "params": params}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", **said}), flush=True)
"""


@pytest.mark.holds("M16")
async def test_a_parked_call_does_not_keep_us_since_nobody_can_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trunkline.app.DRAIN", 3600.0)
    child = ServerSettings(name="s", command=sys.executable, args=("-c", ASKING), era="handshake")
    app = App(msgspec.structs.replace(DEFAULT, servers=(child,)))
    ended: list[str] = []
    async with asyncio.timeout(20):
        async with app.listening(HERE):
            app.gateway.layers.events.listen(
                lambda event: ended.append(event.status) if isinstance(event, CallEnded) else None
            )
            called = await call_modern(app.origins[0], "s__ask", {"elicitation": {"form": {}}})
            assert json.loads(called.body)["result"]["resultType"] == "input_required"
        await app.aclose()
    assert ended == ["cancelled"]


class Stream:
    """One request on a connection of its own, whose answer goes on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, origin: str, head: str, body: bytes = b"") -> "Stream":
        """Send a request, and return once its answer has begun."""
        host, _, port = origin.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        more = f"host: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(f"{head}\r\n{more}".encode() + body)
        begun = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in begun
        assert b"text/event-stream" in begun
        return cls(reader, writer)

    async def read(self) -> bytes:
        """Return the rest of the answer."""
        rest = await self._reader.read()
        self._writer.close()
        return rest


async def test_a_stream_does_not_keep_us_either() -> None:
    app = App(DEFAULT)
    async with asyncio.timeout(20):
        async with app.listening(HERE):
            (origin,) = app.origins
            session = (await open_session(origin))["mcp-session-id"]
            listen = enveloped("subscriptions/listen", notifications={"toolsListChanged": True})
            modern = "mcp-protocol-version: 2026-07-28\r\nmcp-method: subscriptions/listen"
            get = f"GET /mcp HTTP/1.1\r\naccept: text/event-stream\r\nmcp-session-id: {session}"
            post = f"POST /mcp HTTP/1.1\r\ncontent-type: application/json\r\n{modern}"
            get_stream = await Stream.open(origin, get)
            listening = await Stream.open(origin, post, json.dumps(listen).encode())
            old = await Stream.open(origin, "GET /sse HTTP/1.1")
        for stream in (get_stream, listening, old):
            assert (await stream.read()).endswith(b"0\r\n\r\n")  # an end, and no breaking off
        await app.aclose()


async def test_a_port_that_is_taken_is_told_plainly_and_leaves_nothing() -> None:
    first, second = App(DEFAULT), App(DEFAULT)
    async with asyncio.timeout(20), first.running(), second.running(), first.listening(HERE):
        place = first.origins[0].removeprefix("http://")
        with pytest.raises(OSError, match=f"^{place}: address already in use$"):
            async with second.listening(HttpSettings(listen=place)):
                raise AssertionError
        assert (second.origins, second.http_sessions) == ((), 0)


async def test_where_nobody_can_come_nothing_is_started_or_written_down(tmp_path: Path) -> None:
    first, second = App(DEFAULT), App(DEFAULT, tmp_path)
    async with asyncio.timeout(20), first.running(), first.listening(HERE):
        place = first.origins[0].removeprefix("http://")
        with pytest.raises(OSError, match="address already in use"):
            async with second.listening(HttpSettings(listen=place)):
                raise AssertionError
        states = {upstream.state for upstream in second.gateway.registry}
        await second.aclose()  # what was begun would now be ended, in writing
    assert states == {State.IDLE}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["0.0.0.0:0", "example.org:80", "nonsense"])
async def test_nobody_listens_to_a_network(address: str) -> None:
    app = App(DEFAULT)
    with pytest.raises(AddressError):
        async with app.listening(HttpSettings(listen=address)):
            raise AssertionError
    assert app.origins == ()


def certified(folder: Path, certificate: str = CERTIFICATE, key: str = KEY) -> HttpSettings:
    (folder / "cert.pem").write_text(certificate)
    (folder / "key.pem").write_text(key)
    return HttpSettings(
        listen="127.0.0.1:0", certificate=str(folder / "cert.pem"), key=str(folder / "key.pem")
    )


async def test_with_a_certificate_it_is_https(tmp_path: Path) -> None:
    http = certified(tmp_path)
    tls = ssl.create_default_context(cafile=http.certificate)
    app = App(DEFAULT)
    async with asyncio.timeout(20), app.running(), app.listening(http):
        (origin,) = app.origins
        assert origin.startswith("https://127.0.0.1:")
        assert (await fetch(f"{origin}/healthz", tls=tls)).status == 200


LOCKED = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHrMFYGCSqGSIb3DQEFDTBJMCgGCSqGSIb3DQEFDDAbBAj0Jq4BZGqqkgIBATAM
BggqhkiG9w0CCQUAMB0GCWCGSAFlAwQBKgQQ7NgzDKwm6qqd5qSeEEw8PASBkEx4
+/jxJz9GG+JQroLnm5DBk1v8iKt9G6EpmjsZq+r+P/cztjPYkzZgZUYQRvfx5yp3
rsx5qovHSIDKxWA/dWJlnXF8ftUSyB6YFUnI5dHyIsFwbzXuv2kVol8KGFAIzvRi
wpD7fjXvKVII0qMdMz6X7Sc2tztpEV8sQMOA3wto8OofUWiPk+di2PTiUojaWQ==
-----END ENCRYPTED PRIVATE KEY-----
"""
"""The same key, with a password."""


@pytest.mark.parametrize(
    ("certificate", "key", "why"),
    [
        ("nonsense", KEY, "expected a certificate and its key"),
        (CERTIFICATE, "nonsense", "expected a certificate and its key"),
        (CERTIFICATE, LOCKED, "expected a key without a password"),
    ],
)
def test_files_that_are_no_certificate_are_told_plainly(
    certificate: str, key: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=why):
        tls_of(certified(tmp_path, certificate, key))


# In anybody's ASGI server

LOCAL = [(b"host", b"localhost:8000"), (b"content-type", b"application/json")]
MOUNTED = {"path": "/gw/mcp", "raw_path": b"/gw/mcp", "root_path": "/gw"}


def websocket(path: str = "/ws", *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "type": "websocket",
        "path": path,
        "headers": [(b"host", b"localhost:8000"), *headers],
        "subprotocols": ["mcp"],
        "extensions": {"websocket.http.response": {}},
    }


async def post(app: AsgiApp, message: Any, *headers: tuple[bytes, bytes], **scope: Any) -> Answer:
    """Send a message as a server does, and return the answer."""
    server = Server(body(json.dumps(message).encode()))
    await server.call(app, http([*LOCAL, *headers], **scope))
    start, *pieces = server.got
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(piece["body"] for piece in pieces))


async def test_a_mounted_gateway_is_the_same_gateway() -> None:
    gateway = App(DEFAULT)
    app = gateway.asgi()
    async with asyncio.timeout(20), gateway.running():
        welcome = await post(app, hello(), **MOUNTED)
        assert welcome.result["serverInfo"]["name"] == "trunkline"
        assert gateway.http_sessions == 1
        session = (b"mcp-session-id", welcome.header["mcp-session-id"].encode())
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await post(app, ready, session)).status == 202
        listed = await post(app, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, session)
        assert listed.result["tools"][0]["name"] == "trunkline__status"
        assert (await post(app, hello(), path="/elsewhere")).status == 404
    assert gateway.http_sessions == 0


async def test_it_is_as_strict_about_hosts_and_origins() -> None:
    config = msgspec.structs.replace(DEFAULT, http=HttpSettings(allowed_hosts=("a.example",)))
    gateway = App(config)
    app = gateway.asgi()
    origin = (b"origin", b"https://evil.example")
    async with asyncio.timeout(20), gateway.running():
        assert (await post(app, hello(), origin)).status == 403
        foreign = Server(body(json.dumps(hello()).encode()))
        await foreign.call(app, http([(b"host", b"evil.example")]))
        assert foreign.got[0]["status"] == 421
        ours = Server(body(json.dumps(hello()).encode()))
        await ours.call(app, http([(b"host", b"a.example"), LOCAL[1]]))
        assert ours.got[0]["status"] == 200
        for scope, status in ((websocket("/ws", origin), 403), (websocket("/elsewhere"), 404)):
            server = Server({"type": "websocket.connect"})
            await server.call(app, scope)
            assert server.got[0]["status"] == status


async def test_a_websocket_is_served_to_its_end() -> None:
    gateway = App(DEFAULT)
    app = gateway.asgi()
    async with asyncio.timeout(20), gateway.running():
        server = Server({"type": "websocket.connect"})
        serving = server.start(app, websocket())
        server.give({"type": "websocket.receive", "text": json.dumps(hello())})
        while len(server.got) < 2:
            await asyncio.sleep(0)
        accepted, welcome = server.got
        assert accepted == {"type": "websocket.accept", "subprotocol": "mcp"}
        assert json.loads(welcome["text"])["result"]["protocolVersion"] == "2025-11-25"
        server.give({"type": "websocket.disconnect", "code": 1000})
        await serving
        assert gateway.gateway.sessions == frozenset()


async def test_the_lifespan_of_a_server_starts_and_ends_the_gateway() -> None:
    gateway = App(DEFAULT)
    server = Server({"type": "lifespan.startup"})
    async with asyncio.timeout(20):
        living = server.start(gateway.asgi(), {"type": "lifespan"})
        await gateway.gateway.registry.wait_settled()
        server.give({"type": "lifespan.shutdown"})
        await living
    assert [message["type"] for message in server.got] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert {upstream.state for upstream in gateway.gateway.registry} == {State.STOPPED}


async def test_without_a_lifespan_the_first_request_starts_it() -> None:
    gateway = App(DEFAULT)
    app = gateway.asgi()
    async with asyncio.timeout(20):
        assert (await post(app, hello())).status == 200
        await gateway.gateway.registry.wait_settled()
        await gateway.aclose()


def test_servers_are_told_that_clients_can_be_asked_before_there_are_any() -> None:
    gateway = App(DEFAULT)
    gateway.asgi()
    assert gateway.gateway.client_capabilities.keys() == {"sampling", "elicitation"}


CHILD = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        can = asked["params"]["capabilities"]
        answer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}
    elif "id" in asked:
        answer = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in can]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


@pytest.mark.parametrize(("most", "told"), [(1, []), (0, ["s__sampling", "s__elicitation"])])
async def test_a_child_may_ask_in_the_only_conversation_that_there_may_be(
    most: int, told: list[str]
) -> None:
    child = ServerSettings(
        name="s",
        command=sys.executable,
        args=("-c", CHILD),
        era="handshake",
        max_conversations=most,
    )
    app = App(msgspec.structs.replace(DEFAULT, servers=(child,)))
    app.asgi()
    async with asyncio.timeout(20), app.running() as gateway:
        await gateway.registry.wait_settled()
        assert [entry.public for entry in gateway.registry.catalog.entries(Kind.TOOL)] == told


async def test_the_limits_on_bodies_hold_there_too() -> None:
    config = msgspec.structs.replace(DEFAULT, http=HttpSettings(max_body=1024))
    gateway = App(config)
    async with asyncio.timeout(20), gateway.running():
        server = Server(body(b"x" * 2000), {"type": "http.disconnect"})
        await server.call(gateway.asgi(), http(LOCAL))
        assert server.got[0]["status"] == 413
