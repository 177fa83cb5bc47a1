"""The router: access checks, the choice of the protocol, other paths, health, housekeeping."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from weakref import ref

import pytest
from msgspec import structs

from tests.endpoints.exchanges import (
    META,
    BlockedMethod,
    FakeExchange,
    FakeMcpService,
    make_request,
    rpc_notification,
    rpc_request,
    rpc_response,
    with_head,
)
from tests.tasks import settle, tidy
from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.pages import HEALTH_PATHS, HealthPages
from trunkline.endpoints.router import HttpRouter
from trunkline.http.exchange import HttpRequest
from trunkline.jsonrpc import Incident, RpcError, Transport
from trunkline.mcp.identity import LOCAL_PRINCIPAL
from trunkline.mcp.versions import V2025_03_26, V2025_06_18

pytestmark = pytest.mark.at_once

MODERN = {"mcp_protocol_version": "2026-07-28"}
OFTEN = 0.002
"""A ping interval in seconds, short enough for a test to wait for pings."""


class RouterClient:
    def __init__(self, service: FakeMcpService, **settings: Any) -> None:
        self.service = service
        self.reports: list[Incident] = []
        self.router = HttpRouter(service, EndpointSettings(**settings), self.reports.append)

    def send(self, request: HttpRequest) -> FakeExchange:
        exchange = FakeExchange(request)
        self.router.handle(exchange)
        return exchange

    def post(self, body: Any, **headers: str) -> FakeExchange:
        return self.send(make_request(body, **headers))

    def begin(self) -> str:
        return self.post(rpc_request(0, "initialize")).headers[b"mcp-session-id"].decode()


@asynccontextmanager
async def opened(
    service: FakeMcpService | None = None, **settings: Any
) -> AsyncGenerator[RouterClient]:
    server = RouterClient(service or FakeMcpService(), **settings)
    try:
        yield server
    finally:
        await server.router.aclose()
        assert server.router.session_count == 0


class Payload(bytearray):
    """An object whose deletion can be observed."""


# Access


@tidy
async def test_heads_that_differ_in_nothing_relevant_are_classified_once() -> None:
    page = "http://localhost"
    async with opened(allowed_hosts=frozenset(["here"])) as server:
        asked_for = [
            make_request(rpc_request(1, "ping"), host="here", origin=page, x_request_id=str(n))
            for n in range(3)
        ]
        for request in asked_for:
            server.send(request)
        classes = [request.head.app_data for request in asked_for]
        assert len({id(request_class) for request_class in classes}) == 3  # each has its own caches
        classes[0].session = classes[0].header_check = "something"
        server.send(last := make_request(rpc_request(1, "ping"), host="here", origin=page))
        assert (last.head.app_data.session, last.head.app_data.header_check) == (None, None)
        assert last.head.app_data.headers is classes[0].headers
        server.router.reconfigure(EndpointSettings())
        assert server.send(make_request(rpc_request(1, "ping"), host="here")).status == 421


@tidy
async def test_other_hosts_and_origins_are_rejected() -> None:
    async with opened() as server:
        for path in ("/mcp", "/sse", "/messages", "/ws", "/healthz", "/else"):
            for method in ("GET", "POST", "OPTIONS"):
                exchange = server.send(make_request(b"{", method, path, host="evil.example"))
                assert exchange.status == 421
                exchange = server.send(
                    make_request(b"{", method, path, origin="https://evil.example")
                )
                assert exchange.status == 403
                assert b"access-control-allow-origin" not in exchange.headers
        assert server.router.check_access(make_request(host="evil.example")) is not None
        assert server.router.check_access(make_request()) is None
        twice = with_head(make_request(), repeated=frozenset((b"origin",)))
        assert server.router.check_access(twice) is not None
        assert server.service.sessions == []


@tidy
async def test_a_probe_may_name_the_gateway_by_its_address() -> None:
    async with opened() as server:
        for host in ("10.42.0.7:8080", "10.42.0.7", "[fd00::7]:8080"):
            for path in ("/healthz", "/health", "/readyz", "/ready"):
                assert server.send(make_request(b"", "GET", path, host=host)).status in (200, 503)
            # Only for health pages, and not for pages of a browser.
            assert server.send(make_request(b"{", "POST", "/healthz", host=host)).status == 421
            assert server.send(make_request(b"", "GET", "/mcp", host=host)).status == 421
            foreign = make_request(b"", "GET", "/healthz", host=host, origin="https://evil.example")
            assert server.send(foreign).status == 403


@pytest.mark.parametrize("name", ["host", "origin", "authorization"])
@tidy
async def test_a_repeated_access_header_is_rejected(name: str) -> None:
    async with opened() as server:
        twice = with_head(
            make_request(rpc_request(1, "initialize"), origin="http://localhost"),
            repeated=frozenset((name.encode(),)),
        )
        exchange = server.send(twice)
        await exchange.answered.wait()
        assert (exchange.status, b"expected one" in exchange.body) == (400, True)
        assert server.service.sessions == []
        other = with_head(make_request(method="PUT"), repeated=frozenset((b"x-other",)))
        assert server.send(other).status == 405


@tidy
async def test_an_allowed_page_may_read_any_response() -> None:
    async with opened() as server:
        origin = "http://localhost:3000"
        for exchange in (
            server.post(rpc_request(1, "initialize"), origin=origin),
            server.post(b"{", origin=origin),
            server.send(make_request(method="PUT", origin=origin)),
            server.send(make_request(path="/else", origin=origin)),
        ):
            assert exchange.headers[b"access-control-allow-origin"] == origin.encode()
        wanted = "mcp-param-a, content-type"
        exchange = server.send(
            make_request(method="OPTIONS", origin=origin, access_control_request_headers=wanted)
        )
        assert (exchange.status, exchange.body) == (204, b"")
        assert exchange.headers[b"access-control-allow-origin"] == origin.encode()
        assert b"mcp-param-a" in exchange.headers[b"access-control-allow-headers"]


# Requests


@pytest.mark.holds("C24")
@pytest.mark.parametrize("kind", ["", "text/plain", "application/json-seq", "json"])
@tidy
async def test_a_body_must_be_json(kind: str) -> None:
    async with opened() as server:
        assert server.post(rpc_request(1, "initialize"), content_type=kind).status == 415
        latin = "application/json; charset=latin-1"
        assert server.post(rpc_request(1, "initialize"), content_type=latin).status == 415
        fine = 'Application/JSON; charset="UTF-8"'
        assert server.post(rpc_request(1, "initialize"), content_type=fine).status == 200


@pytest.mark.holds("C24")
@tidy
async def test_a_client_must_accept_json_and_event_streams() -> None:
    async with opened() as server:
        for accept in ("application/json", "text/event-stream", "text/*", "text/html", "*/*;q=0"):
            assert server.post(rpc_request(1, "initialize"), accept=accept).status == 406
        for accept in ("", "*/*", "application/*, text/*", "text/event-stream,application/json"):
            assert server.post(rpc_request(1, "initialize"), accept=accept).status == 200


@pytest.mark.holds("C24")
@pytest.mark.parametrize("headers", [{}, MODERN])
@tidy
async def test_a_malformed_message_is_rejected_in_both_protocols(headers: dict[str, str]) -> None:
    async with opened() as server:
        for body, code in (
            (b"{", -32700),
            (b"\xff", -32700),
            (b"", -32700),
            (b"7", -32600),
            (b"[]", -32600),
            (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
            (rpc_request(None, "ping"), -32600),
            ({"jsonrpc": "2.0", "id": 1, "result": 1, "error": 1}, -32600),
        ):
            exchange = server.post(body, **headers)
            assert (exchange.status, exchange.code) == (400, code)
            assert exchange.json["id"] in (None, 1)
        assert server.service.sessions == []


@tidy
async def test_the_body_decides_the_protocol_and_a_header_can_only_contradict_it() -> None:
    async with opened(
        FakeMcpService(ping=lambda request, stream: {"protocol": "stateless"})
    ) as server:
        meta: dict[str, Any] = {"_meta": META}
        modern = server.post(rpc_request(1, "ping", **meta), mcp_method="ping", **MODERN)
        assert modern.json["result"] == {"protocol": "stateless"}
        for headers, code in (
            ({}, -32020),
            ({"mcp_protocol_version": "2025-11-25"}, -32020),
            ({"mcp_protocol_version": "v999"}, -32020),
        ):
            exchange = server.post(rpc_request(1, "ping", **meta), mcp_method="ping", **headers)
            assert (exchange.status, exchange.code) == (400, code)
        bare = server.post(rpc_request(1, "ping"), mcp_method="ping", **MODERN)
        assert (bare.status, bare.code) == (400, -32602)
        older = server.post(rpc_request(1, "ping"))
        assert (older.status, older.code) == (400, -32600)
        assert "Mcp-Session-Id" in older.json["error"]["message"]


@tidy
async def test_only_an_envelope_makes_a_session_request_stateless() -> None:
    async with opened() as server:
        session = {"mcp_session_id": server.begin()}
        version = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
        for params in (
            {"name": "a", "arguments": version},  # without `_meta`, as in most calls
            {"name": "a", "arguments": {"_meta": version}},
            {"name": "a", "arguments": {}, "_meta": {"progressToken": "protocolVersion"}},
            version,
        ):
            assert server.post(rpc_request(1, "ping", **params), **session).json["result"] == {}
        exchange = server.post(
            rpc_request(1, "ping", name="a", arguments={}, _meta=version), **session
        )
        assert (exchange.status, exchange.code) == (400, -32602)
        listed = rpc_request(2, "ping")
        assert server.post(listed | {"params": ["x"]}, **session).json["result"] == {}
        assert server.service.refusals == []
        exchange = server.post(listed | {"params": [version]}, **session)  # in neither protocol
        assert (exchange.status, exchange.code, exchange.json["id"]) == (400, -32602, 2)
        assert [(id, code) for id, _, code in server.service.refusals] == [(2, -32602)]


@tidy
async def test_initialize_always_belongs_to_the_session_protocol() -> None:
    async with opened() as server:
        for version in ("", "2025-11-25", "2024-11-05"):
            exchange = server.post(
                rpc_request(1, "initialize", _meta=META), mcp_protocol_version=version
            )
            assert b"mcp-session-id" in exchange.headers
        assert server.router.session_count == 3
        assert server.post(rpc_request(1, "initialize"), **MODERN).status == 400
        assert server.router.session_count == 3


@tidy
async def test_stateless_notifications_are_accepted_and_responses_are_not() -> None:
    async with opened() as server:
        accepted = server.post(rpc_notification("notifications/cancelled", requestId=1), **MODERN)
        assert (accepted.status, accepted.body) == (202, b"")
        assert server.post(rpc_notification("a", _meta=META)).status == 202
        for message in (rpc_response(1), [rpc_request(1, "ping")], [rpc_response(1)]):
            exchange = server.post(message, **MODERN)
            assert (exchange.status, exchange.code) == (400, -32600)
        listed = {"jsonrpc": "2.0", "id": 4, "method": "ping", "params": ["x"]}
        exchange = server.post(listed, **MODERN)
        assert (exchange.status, exchange.code, exchange.json["id"]) == (400, -32602, 4)
        assert server.post(rpc_notification("a") | {"params": ["x"]}, **MODERN).code == -32602
        assert [(id, code) for id, _, code in server.service.refusals] == [(4, -32602)]


@tidy
async def test_other_http_methods_get_an_allow_header() -> None:
    async with opened() as server:
        exchange = server.send(make_request(method="PUT"))
        assert (exchange.status, exchange.headers[b"allow"]) == (405, b"GET, POST, DELETE")
        for method in ("GET", "DELETE"):
            exchange = server.send(make_request(method=method, **MODERN))
            assert (exchange.status, exchange.headers[b"allow"]) == (405, b"POST")
            assert server.send(make_request(method=method)).status == 400
            assert server.send(make_request(method=method, mcp_session_id="x")).status == 404


@pytest.mark.holds("C28")
@tidy
async def test_a_session_is_opened_used_streamed_and_deleted() -> None:
    async with opened() as server:
        session = server.begin()
        assert server.post(rpc_request(1, "ping"), mcp_session_id=session).json["result"] == {}
        listening = server.send(make_request(method="GET", mcp_session_id=session))
        assert listening.status == 200
        assert server.send(make_request(method="DELETE", mcp_session_id=session)).status == 204
        await settle()
        assert listening.ended


# Other paths


@tidy
async def test_the_other_paths() -> None:
    async with opened() as server:
        stream = server.send(make_request(method="GET", path="/sse"))
        await settle()
        assert stream.headers[b"content-type"] == b"text/event-stream"
        (event,) = stream.events
        assert event.event == "endpoint"
        assert [principal for _, principal in server.service.served] == [LOCAL_PRINCIPAL]
        path, _, query = event.data.decode().partition("?")
        request = with_head(make_request(rpc_request(1, "ping"), path=path), query=query)
        assert server.send(request).status == 202
        assert server.send(make_request(rpc_request(1, "ping"), path="/messages")).status == 400
        stream.disconnect()
        await settle()
        assert server.send(request).status == 404
        assert server.send(make_request(method="GET", path="/")).status == 404
        assert server.send(make_request(method="POST", path="/sse")).status == 404


@tidy
async def test_behind_a_path_clients_of_http_sse_post_below_it() -> None:
    async with opened(public_prefix="/tools") as server:

        async def posts_to() -> str:
            stream = server.send(make_request(method="GET", path="/sse"))
            await settle()
            path, _, query = stream.events[0].data.decode().partition("?")
            # The proxy removes the prefix; a client without the proxy keeps it.
            for each in (path, "/messages"):
                request = with_head(make_request(rpc_request(1, "ping"), path=each), query=query)
                assert server.send(request).status == 202
            stream.disconnect()
            await settle()
            return path

        assert await posts_to() == "/tools/messages"
        preflight = make_request(method="OPTIONS", path="/tools/messages")
        assert server.send(preflight).status == 204
        server.router.reconfigure(EndpointSettings())
        assert await posts_to() == "/messages"


@tidy
async def test_an_invalid_websocket_handshake_is_rejected() -> None:
    async with opened() as server:
        exchange = server.send(make_request(method="GET", path="/ws"))
        await settle()
        assert exchange.status in (400, 426)
        assert server.service.served == []


@tidy
async def test_an_exception_of_a_websocket_session_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def serve(transport: Transport, *_: object) -> None:
        await transport.aclose()
        raise ValueError("oops")

    async with opened() as server:
        monkeypatch.setattr(server.service, "serve", serve)
        stream = server.send(make_request(method="GET", path="/sse"))
        await stream.answered.wait()
        await settle()
        assert [str(incident.error) for incident in server.reports] == ["oops"]


@tidy
async def test_health_and_readiness() -> None:
    async with opened() as server:
        for method in ("GET", "HEAD"):
            for path in ("/healthz", "/health"):
                assert server.send(make_request(method=method, path=path)).status == 200
            for path in ("/readyz", "/ready"):
                server.service.ready = False
                assert server.send(make_request(method=method, path=path)).status == 503
                server.service.ready = True
                assert server.send(make_request(method=method, path=path)).status == 200
        server.router.drain()
        assert server.send(make_request(method="GET", path="/readyz")).status == 503
        assert server.send(make_request(method="GET", path="/healthz")).status == 200
        assert server.send(make_request(method="POST", path="/healthz")).status == 404


# Housekeeping


async def until_comments(exchange: FakeExchange, count: int) -> None:
    while exchange.comments < count:
        await asyncio.sleep(0)


@tidy
async def test_slow_responses_and_streams_are_pinged() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(V2025_06_18, wait=blocked), sse_ping_interval=OFTEN) as server:
        session = server.begin()
        listening = server.send(make_request(method="GET", mcp_session_id=session))
        older = server.post(rpc_request(1), mcp_session_id=session)
        modern = server.post(rpc_request(1, _meta=META), mcp_method="wait", **MODERN)
        legacy = server.send(make_request(method="GET", path="/sse"))
        for exchange in (listening, older, modern, legacy):
            await until_comments(exchange, 3)
        legacy.disconnect()
        blocked.unblocked.set()
        await asyncio.gather(older.answered.wait(), modern.answered.wait())
        assert older.data == modern.data == [{"jsonrpc": "2.0", "id": 1, "result": {"done": True}}]


@tidy
async def test_a_batch_is_pinged_too() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(V2025_03_26, wait=blocked), sse_ping_interval=OFTEN) as server:
        exchange = server.post([rpc_request(1)], mcp_session_id=server.begin())
        await until_comments(exchange, 2)
        blocked.unblocked.set()
        await exchange.answered.wait()
        assert [entry["id"] for entry in exchange.data[0]] == [1]


@tidy
async def test_a_client_that_does_not_read_delays_no_other() -> None:
    async with opened(sse_ping_interval=OFTEN, pings_per_turn=2) as server:
        exchanges: list[FakeExchange] = []
        for _ in range(5):
            exchanges.append(server.send(make_request(method="GET", mcp_session_id=server.begin())))
            if len(exchanges) % 2:
                exchanges[-1].room.clear()
        for exchange in exchanges[1::2]:
            await until_comments(exchange, 3)
        assert [exchange.comments for exchange in exchanges[::2]] == [
            1,
            1,
            1,
        ]  # and no more until it reads
        exchanges[0].room.set()
        await until_comments(exchanges[0], 2)
        for exchange in exchanges:
            exchange.disconnect()


async def until_swept(server: RouterClient) -> None:
    """Wait until housekeeping has ended an expired session."""
    server.begin()
    while server.router.session_count:
        await asyncio.sleep(0)


@tidy
async def test_a_new_request_is_not_pinged() -> None:
    blocked = BlockedMethod()
    async with opened(
        FakeMcpService(wait=blocked), sse_ping_interval=0.05, session_idle=-1.0
    ) as server:
        await until_swept(server)
        exchange = server.post(rpc_request(1, _meta=META), mcp_method="wait", **MODERN)
        await until_swept(server)
        await settle()
        assert not exchange.begun  # it was checked for the first time
        await until_swept(server)
        await until_comments(exchange, 1)
        blocked.unblocked.set()
        await exchange.answered.wait()


@tidy
async def test_expired_sessions_are_removed() -> None:
    async with opened(sse_ping_interval=OFTEN, session_idle=0.0) as server:
        server.begin()
        while server.router.session_count:
            await asyncio.sleep(0)
        await settle()
        assert server.service.closed == server.service.sessions


@tidy
async def test_an_exception_does_not_stop_housekeeping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(sse_ping_interval=OFTEN) as server:
        exchange = server.send(make_request(method="GET", mcp_session_id=server.begin()))
        await until_comments(exchange, 1)
        with monkeypatch.context() as patched:
            broken = structs.replace(server.router.settings, pings_per_turn=0)
            patched.setattr(server.router, "settings", broken)
            while not server.reports:
                await asyncio.sleep(0)
        await until_comments(exchange, exchange.comments + 1)


# The end


@tidy
async def test_rejected_requests_are_freed_at_once() -> None:
    """Without the garbage collector: requests may be large and many."""
    seen: list[ref[Payload]] = []

    def reject(request: Any, stream: Any) -> Any:
        large = Payload(b"x")
        seen.append(ref(large))
        raise RpcError(-32602, f"no {request.id} of {len(large)}")

    async with opened(FakeMcpService(V2025_03_26, no=reject)) as server:
        session = server.begin()
        gc.disable()
        try:
            server.post(rpc_request(1, "no"), mcp_session_id=session)
            server.post([rpc_request(2, "no"), rpc_request(3, "no")], mcp_session_id=session)
            headers = {"mcp_method": "no", **MODERN}
            assert server.post(rpc_request(4, "no", _meta=META), **headers).code == -32602
            await settle()
            assert [large() for large in seen] == [None] * 4
        finally:
            gc.enable()


@tidy
async def test_closing_ends_everything() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(V2025_06_18, wait=blocked)) as server:
        session = server.begin()
        exchanges = [
            server.send(make_request(method="GET", mcp_session_id=session)),
            server.post(rpc_request(1), mcp_session_id=session),
            server.post(rpc_request(1, _meta=META), mcp_method="wait", **MODERN),
            server.send(make_request(method="GET", path="/sse")),
        ]
        await settle()
        await server.router.aclose()
        assert [exchange.ended for exchange in exchanges[:3]] == [True, True, True]
        assert blocked.cancelled == 2
        exchanges[3].disconnect()
        await settle()


def test_liveness_is_always_ok() -> None:
    health = HealthPages(lambda detailed: {"status": "not_ready"})
    health.is_draining = True
    for path in ("/healthz", "/health"):
        page = health.page(make_request(method="GET", path=path))
        assert (page.status, page.body) == (200, b'{"status":"ok"}')
        assert path in HEALTH_PATHS


def test_readiness_is_reported_and_ends_first() -> None:
    message: dict[str, Any] = {"status": "ready", "degraded": []}
    health = HealthPages(lambda detailed: message)
    for path in ("/readyz", "/ready"):
        page = health.page(make_request(method="GET", path=path))
        assert (page.status, json.loads(page.body)) == (200, message)
        assert path in HEALTH_PATHS
    message["status"] = "not_ready"
    assert health.page(make_request(method="GET", path="/readyz")).status == 503
    message["status"] = "ready"
    health.is_draining = True
    page = health.page(make_request(method="GET", path="/ready"))
    assert page.status == 503
    assert json.loads(page.body)["reasons"] == ["the gateway is shutting down"]
