"""The gateway over HTTP: with its own listener, and mounted in an ASGI server."""

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
from tests.http.scripted_server import CERTIFICATE, KEY
from tests.http.test_asgi import Server, body, http
from tests.tasks import HANG_TIMEOUT, LoopClock, hang_guard, settle
from trunkline import __version__
from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.app.build import AppLimits, ShutdownTimeouts, build_tls_context
from trunkline.backends.command import CommandSettings
from trunkline.backends.functions import FunctionBackend
from trunkline.config import AddressError, HttpSettings, ServerSettings
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.events import CallSummary
from trunkline.gateway.settings import GatewayLimits, UpstreamSettings
from trunkline.gateway.upstream import UpstreamState
from trunkline.http.asgi import AsgiApp
from trunkline.mcp.features import FeatureKind

PREFIX = "io.modelcontextprotocol/"
MODERN = {"mcp-protocol-version": "2026-07-28"}
HERE = HttpSettings(listen="127.0.0.1:0")


def stateless_request(method: str, can: Any = None, **params: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {
        PREFIX + "protocolVersion": "2026-07-28",
        PREFIX + "clientCapabilities": can or {},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


async def call_stateless(origin: str, name: str, can: Any = None) -> Answer:
    message = stateless_request("tools/call", can, name=name, arguments={})
    headers = {"mcp-method": "tools/call", "mcp-name": name, **MODERN}
    return await fetch(f"{origin}/mcp", message, headers)


async def open_session(origin: str) -> dict[str, str]:
    """Initialize a session; return its headers."""
    response = await fetch(f"{origin}/mcp", hello())
    headers = {"mcp-session-id": response.header["mcp-session-id"]}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await fetch(f"{origin}/mcp", ready, headers)).status == 202
    return headers


async def call_in_session(origin: str, name: str) -> Answer:
    session = await open_session(origin)
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name}}
    return await fetch(f"{origin}/mcp", message, session)


def add_blocking_tool(app: App, gate: asyncio.Event) -> asyncio.Event:
    """Add a tool `gated__pass` that waits for `gate`; return the event set by its call."""
    called = asyncio.Event()
    functions = FunctionBackend()

    async def wait_for_gate() -> str:
        called.set()
        await gate.wait()
        return "through"

    functions.tool("pass")(wait_for_gate)

    async def connect(listener: BackendListener) -> Backend:
        return functions

    app.gateway.add_upstream(UpstreamSettings("gated", "gated", 30.0, 30.0, 0, 8), connect)
    return called


@pytest.mark.parametrize("calls", [call_stateless, call_in_session])
async def test_session_and_stateless_clients_call_tools_over_http(calls: Any) -> None:
    app = App(DEFAULT_CONFIG)
    async with hang_guard(), app.running():
        async with app.listening(HERE):
            (origin,) = app.origins
            answer = await calls(origin, "trunkline__status")
            assert answer.result["structuredContent"]["version"] == __version__
            assert app.http_sessions == (calls is call_in_session)
        assert (app.origins, app.http_sessions) == ((), 0)


async def call_over_websocket(origin: str, name: str) -> None:
    message = stateless_request("tools/call", name=name, arguments={})
    async with connect(origin.replace("http", "ws") + "/ws") as client:
        await client.send(json.dumps(message))
        await client.recv()


async def call_in_session_over_websocket(origin: str, name: str) -> None:
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name}}
    async with connect(origin.replace("http", "ws") + "/ws") as client:
        await client.send(json.dumps(hello()))
        await client.recv()
        await client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        await client.send(json.dumps(message))
        await client.recv()


@pytest.mark.parametrize(
    "calls",
    [call_stateless, call_in_session, call_over_websocket, call_in_session_over_websocket],
)
async def test_the_summary_of_a_call_has_the_address_of_its_client(calls: Any) -> None:
    app, addresses = App(DEFAULT_CONFIG), asyncio.Queue[str]()

    def note(event: object) -> None:
        if isinstance(event, CallSummary):
            addresses.put_nowait(event.address)

    app.gateway.pipeline.events.add_listener(note)
    async with hang_guard(), app.running(), app.listening(HERE):
        await calls(app.origins[0], "trunkline__status")
        assert await addresses.get() == "127.0.0.1"


@pytest.mark.parametrize("calls", [call_stateless, call_in_session])
async def test_a_call_in_flight_is_finished_before_shutdown(calls: Any) -> None:
    app, gate = App(DEFAULT_CONFIG), asyncio.Event()
    called = add_blocking_tool(app, gate)
    async with hang_guard():
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


async def test_a_call_that_does_not_end_is_cancelled_at_the_drain_timeout() -> None:
    app = App(
        DEFAULT_CONFIG,
        limits=AppLimits(shutdown=ShutdownTimeouts(drain=0.05, final_read=HANG_TIMEOUT)),
    )
    called = add_blocking_tool(app, asyncio.Event())
    async with hang_guard():
        async with app.listening(HERE):
            calling = asyncio.create_task(call_in_session(app.origins[0], "gated__pass"))
            await called.wait()
        assert json.loads((await calling).body)["error"]["code"] == -32800
        await app.aclose()


async def test_a_websocket_with_an_endless_call_is_closed_with_going_away() -> None:
    # The listener has to wait for the close timeout as well: `final_read` alone is too short.
    gateway = GatewayLimits(close_timeout=20.0)
    shutdown = ShutdownTimeouts(drain=5.0, final_read=10.0)
    app = App(DEFAULT_CONFIG, limits=AppLimits(gateway, shutdown))
    called, clock, stopped = add_blocking_tool(app, asyncio.Event()), LoopClock(), asyncio.Event()

    async def listen() -> None:
        async with app.listening(HERE):
            await stopped.wait()

    async with hang_guard():
        listening = asyncio.create_task(listen())
        while not app.origins:
            await asyncio.sleep(0)
        client = await connect(app.origins[0].replace("http", "ws") + "/ws")
        message = stateless_request("tools/call", name="gated__pass", arguments={})
        await client.send(json.dumps(message))
        await called.wait()
        stopped.set()
        await clock.advance(shutdown.drain)
        await clock.advance(gateway.close_timeout)
        await client.wait_closed()
        await clock.advance_until(listening)
        await listening
        assert client.close_code == CloseCode.GOING_AWAY
        await app.aclose()


ELICITING_SERVER = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    method, response = request.get("method"), {"id": request.get("id")}
    if method == "initialize":
        response["result"] = {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}
        }
    elif method == "tools/list":
        response["result"] = {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        params = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        response = {"id": "q", "method": "elicitation/create", "params": params}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", **response}), flush=True)
"""


@pytest.mark.holds("M16")
async def test_a_suspended_call_does_not_delay_shutdown() -> None:
    limits = AppLimits(shutdown=ShutdownTimeouts(drain=3600.0))
    child = ServerSettings(
        name="s",
        backend=CommandSettings(
            command=sys.executable, args=("-c", ELICITING_SERVER), protocol="session"
        ),
    )
    app = App(msgspec.structs.replace(DEFAULT_CONFIG, servers=(child,)), limits=limits)
    ended: list[str] = []
    async with hang_guard():
        async with app.listening(HERE):
            app.gateway.pipeline.events.add_listener(
                lambda event: ended.append(event.status) if isinstance(event, CallSummary) else None
            )
            called = await call_stateless(app.origins[0], "s__ask", {"elicitation": {"form": {}}})
            assert json.loads(called.body)["result"]["resultType"] == "input_required"
        await app.aclose()
    assert ended == ["cancelled"]


class Stream:
    """A request on its own connection with a streamed response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, origin: str, head: str, body: bytes = b"") -> "Stream":
        """Send a request; return when its response has started."""
        host, _, port = origin.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        headers = f"host: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(f"{head}\r\n{headers}".encode() + body)
        response_head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in response_head
        assert b"text/event-stream" in response_head
        return cls(reader, writer)

    async def read(self) -> bytes:
        """Return the rest of the response."""
        rest = await self._reader.read()
        self._writer.close()
        return rest


async def test_open_streams_do_not_delay_shutdown_and_end_cleanly() -> None:
    app = App(DEFAULT_CONFIG)
    async with hang_guard():
        async with app.listening(HERE):
            (origin,) = app.origins
            session = (await open_session(origin))["mcp-session-id"]
            listen_request = stateless_request(
                "subscriptions/listen", notifications={"toolsListChanged": True}
            )
            modern = "mcp-protocol-version: 2026-07-28\r\nmcp-method: subscriptions/listen"
            get = f"GET /mcp HTTP/1.1\r\naccept: text/event-stream\r\nmcp-session-id: {session}"
            post = f"POST /mcp HTTP/1.1\r\ncontent-type: application/json\r\n{modern}"
            get_stream = await Stream.open(origin, get)
            listen_stream = await Stream.open(origin, post, json.dumps(listen_request).encode())
            sse_stream = await Stream.open(origin, "GET /sse HTTP/1.1")
        for stream in (get_stream, listen_stream, sse_stream):
            assert (await stream.read()).endswith(b"0\r\n\r\n")  # the final chunk: a clean end
        await app.aclose()


async def test_a_port_in_use_is_an_error_and_leaves_no_listener() -> None:
    first, second = App(DEFAULT_CONFIG), App(DEFAULT_CONFIG)
    async with hang_guard(), first.running(), second.running(), first.listening(HERE):
        place = first.origins[0].removeprefix("http://")
        with pytest.raises(OSError, match=f"^{place}: address already in use$"):
            async with second.listening(HttpSettings(listen=place)):
                raise AssertionError
        assert (second.origins, second.http_sessions) == ((), 0)


async def test_without_a_listener_no_server_is_started_and_no_state_written(tmp_path: Path) -> None:
    first, second = App(DEFAULT_CONFIG), App(DEFAULT_CONFIG, tmp_path)
    async with hang_guard(), first.running(), first.listening(HERE):
        place = first.origins[0].removeprefix("http://")
        with pytest.raises(OSError, match="address already in use"):
            async with second.listening(HttpSettings(listen=place)):
                raise AssertionError
        states = {upstream.state for upstream in second.gateway.registry}
        await second.aclose()  # closing would write state if anything had started
    assert states == {UpstreamState.NOT_STARTED}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["0.0.0.0:0", "example.org:80", "nonsense"])
async def test_without_auth_a_network_address_is_refused(address: str) -> None:
    app = App(DEFAULT_CONFIG)
    with pytest.raises(AddressError):
        async with app.listening(HttpSettings(listen=address)):
            raise AssertionError
    assert app.origins == ()


def write_certificate(folder: Path, certificate: str = CERTIFICATE, key: str = KEY) -> HttpSettings:
    (folder / "cert.pem").write_text(certificate)
    (folder / "key.pem").write_text(key)
    return HttpSettings(
        listen="127.0.0.1:0", tls_cert=str(folder / "cert.pem"), tls_key=str(folder / "key.pem")
    )


async def test_with_a_certificate_the_gateway_serves_https(tmp_path: Path) -> None:
    http = write_certificate(tmp_path)
    tls = ssl.create_default_context(cafile=http.tls_cert)
    app = App(DEFAULT_CONFIG)
    async with hang_guard(), app.running(), app.listening(http):
        (origin,) = app.origins
        assert origin.startswith("https://127.0.0.1:")
        assert (await fetch(f"{origin}/healthz", tls=tls)).status == 200


ENCRYPTED_KEY = """\
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
        (CERTIFICATE, ENCRYPTED_KEY, "expected a key without a password"),
    ],
)
def test_invalid_certificate_files_are_reported(
    certificate: str, key: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=why):
        build_tls_context(write_certificate(tmp_path, certificate, key))


# Mounted in an ASGI server

NEIGHBOUR = ("127.0.0.1", 1234)
"""The address of a client on this machine."""
LOCAL = [(b"host", b"localhost:8000"), (b"content-type", b"application/json")]
MOUNTED = {"path": "/gw/mcp", "raw_path": b"/gw/mcp", "root_path": "/gw"}


def websocket(path: str = "/ws", *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "type": "websocket",
        "path": path,
        "headers": [(b"host", b"localhost:8000"), *headers],
        "client": NEIGHBOUR,
        "subprotocols": ["mcp"],
        "extensions": {"websocket.http.response": {}},
    }


async def post(app: AsgiApp, message: Any, *headers: tuple[bytes, bytes], **scope: Any) -> Answer:
    """Send a message as an ASGI server does; return the response."""
    server = Server(body(json.dumps(message).encode()))
    await server.call(app, http([*LOCAL, *headers], **{"client": NEIGHBOUR, **scope}))
    start, *pieces = server.got
    response_headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], response_headers, b"".join(piece["body"] for piece in pieces))


async def test_a_mounted_gateway_serves_sessions() -> None:
    gateway = App(DEFAULT_CONFIG)
    app = gateway.asgi()
    async with hang_guard(), gateway.running():
        response = await post(app, hello(), **MOUNTED)
        assert response.result["serverInfo"]["name"] == "trunkline"
        assert gateway.http_sessions == 1
        session = (b"mcp-session-id", response.header["mcp-session-id"].encode())
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await post(app, ready, session)).status == 202
        listed = await post(app, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, session)
        assert listed.result["tools"][0]["name"] == "trunkline__status"
        assert (await post(app, hello(), path="/elsewhere")).status == 404
    assert gateway.http_sessions == 0


async def test_a_mounted_gateway_checks_hosts_and_origins() -> None:
    config = msgspec.structs.replace(
        DEFAULT_CONFIG, http=HttpSettings(allowed_hosts=("a.example",))
    )
    gateway = App(config)
    app = gateway.asgi()
    origin = (b"origin", b"https://evil.example")
    async with hang_guard(), gateway.running():
        assert (await post(app, hello(), origin)).status == 403
        foreign = Server(body(json.dumps(hello()).encode()))
        await foreign.call(app, http([(b"host", b"evil.example")]))
        assert foreign.got[0]["status"] == 421
        allowed = Server(body(json.dumps(hello()).encode()))
        await allowed.call(app, http([(b"host", b"a.example"), LOCAL[1]], client=NEIGHBOUR))
        assert allowed.got[0]["status"] == 200
        for scope, status in ((websocket("/ws", origin), 403), (websocket("/elsewhere"), 404)):
            server = Server({"type": "websocket.connect"})
            await server.call(app, scope)
            assert server.got[0]["status"] == status


REMOTE_CLIENTS = [("192.0.2.1", 1234), ("::ffff:192.0.2.1", 1), ("testclient", 1), None]
"""Clients that are not known to be on this machine; over a Unix socket there is no address."""


@pytest.mark.parametrize("client", REMOTE_CLIENTS)
async def test_a_mounted_gateway_without_auth_refuses_clients_on_other_machines(
    client: Any,
) -> None:
    gateway = App(DEFAULT_CONFIG)
    app = gateway.asgi()
    async with hang_guard(), gateway.running():
        refused = await post(app, hello(), client=client)
        assert refused.status == 403
        message = json.loads(refused.body)["error"]["message"]
        assert "add [auth], or set http.allow_remote_without_auth = true" in message
        server = Server({"type": "websocket.connect"})
        await server.call(app, websocket() | {"client": client})
        assert server.got[0]["status"] == 403
        assert gateway.http_sessions == 0
        assert (await post(app, hello(), client=("::1", 1234))).status == 200


FORWARDED = {"x-forwarded-for": "192.0.2.1"}


@pytest.mark.parametrize("proxies", [(), ("127.0.0.1",)])
async def test_without_auth_a_client_behind_a_local_proxy_is_refused(
    proxies: tuple[str, ...],
) -> None:
    app = App(DEFAULT_CONFIG)
    settings = HttpSettings(listen="127.0.0.1:0", trusted_proxies=proxies)
    async with hang_guard(), app.running(), app.listening(settings):
        url = f"{app.origins[0]}/mcp"
        assert (await fetch(url, hello(), FORWARDED)).status == 403
        assert (await fetch(url, hello(), {"forwarded": "for=192.0.2.1"})).status == 403
        assert (await fetch(url, hello(), {"x-forwarded-for": "127.0.0.1"})).status == 200
        assert app.http_sessions == 1


async def test_a_setting_lets_the_gateway_serve_clients_behind_a_local_proxy() -> None:
    http = HttpSettings(listen="127.0.0.1:0", allow_remote_without_auth=True)
    app = App(msgspec.structs.replace(DEFAULT_CONFIG, http=http))
    async with hang_guard(), app.running(), app.listening(http):
        assert (await fetch(f"{app.origins[0]}/mcp", hello(), FORWARDED)).status == 200


@pytest.mark.parametrize("client", REMOTE_CLIENTS)
async def test_a_setting_lets_a_mounted_gateway_serve_other_machines(client: Any) -> None:
    http = HttpSettings(allow_remote_without_auth=True)
    gateway = App(msgspec.structs.replace(DEFAULT_CONFIG, http=http))
    app = gateway.asgi()
    async with hang_guard(), gateway.running():
        assert (await post(app, hello(), client=client)).status == 200


async def test_a_mounted_gateway_serves_a_websocket_until_it_disconnects() -> None:
    gateway = App(DEFAULT_CONFIG)
    app = gateway.asgi()
    async with hang_guard(), gateway.running():
        server = Server({"type": "websocket.connect"})
        serving = server.start(app, websocket())
        server.give({"type": "websocket.receive", "text": json.dumps(hello())})
        while len(server.got) < 2:
            await asyncio.sleep(0)
        accepted, response = server.got
        assert accepted == {"type": "websocket.accept", "subprotocol": "mcp"}
        assert json.loads(response["text"])["result"]["protocolVersion"] == "2025-11-25"
        server.give({"type": "websocket.disconnect", "code": 1000})
        await serving
        assert gateway.gateway.sessions == frozenset()


async def test_the_asgi_lifespan_starts_and_stops_the_gateway() -> None:
    gateway = App(DEFAULT_CONFIG)
    server = Server({"type": "lifespan.startup"})
    async with hang_guard():
        living = server.start(gateway.asgi(), {"type": "lifespan"})
        await gateway.gateway.registry.wait_complete()
        server.give({"type": "lifespan.shutdown"})
        await living
    assert [message["type"] for message in server.got] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert {upstream.state for upstream in gateway.gateway.registry} == {UpstreamState.STOPPED}


async def test_without_an_asgi_lifespan_the_first_request_starts_the_gateway() -> None:
    gateway = App(DEFAULT_CONFIG)
    app = gateway.asgi()
    async with hang_guard():
        assert (await post(app, hello())).status == 200
        await gateway.gateway.registry.wait_complete()
        await gateway.aclose()


def test_a_mounted_gateway_announces_client_capabilities_before_any_client() -> None:
    gateway = App(DEFAULT_CONFIG)
    gateway.asgi()
    assert gateway.gateway.client_capabilities.keys() == {"sampling", "elicitation"}


CHILD = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        can = request["params"]["capabilities"]
        answer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}
    elif "id" in request:
        answer = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in can]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer}), flush=True)
"""


@pytest.mark.parametrize(
    ("max_sessions", "tools"), [(1, []), (0, ["s__sampling", "s__elicitation"])]
)
async def test_client_capabilities_are_announced_in_the_primary_session_if_it_is_the_only_one(
    max_sessions: int, tools: list[str]
) -> None:
    child = ServerSettings(
        name="s",
        backend=CommandSettings(command=sys.executable, args=("-c", CHILD), protocol="session"),
        max_sessions=max_sessions,
    )
    app = App(msgspec.structs.replace(DEFAULT_CONFIG, servers=(child,)))
    app.asgi()
    async with hang_guard(), app.running() as gateway:
        await gateway.registry.wait_complete()
        assert [
            entry.public_name for entry in gateway.registry.catalog.entries(FeatureKind.TOOL)
        ] == tools


async def test_a_mounted_gateway_limits_the_request_body() -> None:
    config = msgspec.structs.replace(DEFAULT_CONFIG, http=HttpSettings(max_body=1024))
    gateway = App(config)
    async with hang_guard(), gateway.running():
        server = Server(body(b"x" * 2000), {"type": "http.disconnect"})
        await server.call(gateway.asgi(), http(LOCAL))
        assert server.got[0]["status"] == 413
