"""Host, Origin and CORS checks; authentication of requests and of open streams."""

import asyncio
from typing import Any

import pytest

from tests.endpoints.exchanges import META, FakeExchange, FakeMcpService, make_request, rpc_request
from tests.tasks import settle, tidy
from trunkline.endpoints.auth import (
    CORS_REQUEST_HEADERS,
    AllowAll,
    Challenge,
    EndpointSettings,
    OpenStream,
    StreamReauthenticator,
    cors_headers,
    preflight_headers,
)
from trunkline.endpoints.pages import HttpPage
from trunkline.endpoints.router import HttpRouter
from trunkline.http.exchange import HttpRequest
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Principal

OPEN = EndpointSettings(
    allowed_hosts=frozenset({"gateway.example", "other.example:8443"}),
    allowed_origins=frozenset({"https://app.example"}),
)


@pytest.mark.parametrize(
    "host",
    [b"localhost", b"localhost:8080", b"LocalHost:1", b"127.0.0.1", b"127.0.0.2:80", b"[::1]:80"],
)
def test_loopback_is_always_allowed(host: bytes) -> None:
    assert not EndpointSettings().is_wrong_host(host)
    assert not OPEN.is_wrong_host(host)


@pytest.mark.parametrize(
    "host",
    [
        None,
        b"",
        b"evil.example",
        b"localhost.evil.example",
        b"evil.example:localhost",
        b"localhost:80:80",
        b"localhost:",
        b"127.0.0.1.evil.example",
        b"127.0.0.1.1",
        b"127.evil.example",
        b"\xe9\xff",
    ],
)
def test_other_hosts_are_rejected(host: bytes | None) -> None:
    assert EndpointSettings().is_wrong_host(host)
    assert OPEN.is_wrong_host(host)


def test_a_host_is_allowed_by_name() -> None:
    for host in (b"gateway.example", b"gateway.example:99", b"Other.Example:8443"):
        assert not OPEN.is_wrong_host(host)
    assert OPEN.is_wrong_host(b"other.example:80")
    assert not EndpointSettings(allowed_hosts=frozenset("*")).is_wrong_host(b"any.example")


@pytest.mark.parametrize(
    "origin", [None, b"http://localhost:3000", b"https://127.1.2.3", b"http://[::1]:5"]
)
def test_no_origin_and_loopback_origins_are_allowed(origin: bytes | None) -> None:
    assert not EndpointSettings().is_forbidden_origin(origin)


@pytest.mark.parametrize(
    "origin",
    [
        b"",
        b"null",
        b"https://evil.example",
        b"http://localhost.evil.example",
        b"http://localhost@evil.example",
        b"file://localhost",
        b"chrome-extension://abc",
    ],
)
def test_other_origins_are_rejected(origin: bytes) -> None:
    assert EndpointSettings().is_forbidden_origin(origin)


def test_an_origin_is_allowed_by_name() -> None:
    assert not OPEN.is_forbidden_origin(b"https://app.example")
    assert OPEN.is_forbidden_origin(b"http://app.example")
    assert not EndpointSettings(allowed_origins=frozenset("*")).is_forbidden_origin(
        b"https://any.example"
    )


def test_the_rejection_names_the_setting() -> None:
    settings = EndpointSettings()
    assert settings.check_access(b"localhost", None) is None
    for host, origin, status, word in (
        (b"evil.example", None, 421, "allowed_hosts"),
        (b"localhost", b"https://evil.example", 403, "allowed_origins"),
        (b"evil.example", b"https://evil.example", 421, "allowed_hosts"),
    ):
        rejection = settings.check_access(host, origin)
        assert rejection is not None
        assert rejection[0] == status
        assert word in rejection[1]


def test_a_page_may_read_the_headers_that_it_needs() -> None:
    assert cors_headers(None) == ()
    found = dict(cors_headers(b"http://localhost:3000"))
    assert found[b"access-control-allow-origin"] == b"http://localhost:3000"
    assert b"mcp-session-id" in found[b"access-control-expose-headers"]
    assert b"www-authenticate" in found[b"access-control-expose-headers"]
    assert found[b"vary"] == b"origin"


def test_a_page_may_send_mcp_headers_and_requested_parameters() -> None:
    plain = dict(preflight_headers(None))
    assert plain[b"access-control-allow-headers"] == CORS_REQUEST_HEADERS.encode()
    for method in (b"GET", b"POST", b"DELETE"):
        assert method in plain[b"access-control-allow-methods"]
    wanted = b"Mcp-Param-Region, x-evil,Mcp-Param-A, content-type"
    found = dict(preflight_headers(wanted))[b"access-control-allow-headers"]
    assert found == CORS_REQUEST_HEADERS.encode() + b", mcp-param-a, mcp-param-region"


ANN = Principal("ann")


class Guard:
    """Authenticates Ann at once, and Bob later."""

    def cached_principal(self, request: HttpRequest) -> Principal | None:
        return ANN if request.headers.get(b"authorization") == b"ann" else None

    async def authenticate(self, request: HttpRequest) -> Principal | Challenge:
        if request.headers.get(b"authorization") == b"bob":
            return Principal("bob")
        return Challenge(401, "expected a token", ((b"www-authenticate", b"Bearer"),))

    async def reauthenticate(self, request: HttpRequest) -> Principal | Challenge:
        return await self.authenticate(request)


def served(service: FakeMcpService) -> HttpRouter:
    return HttpRouter(service, authenticator=Guard(), pages={"/about": about})


def about(request: HttpRequest) -> HttpPage:
    return HttpPage(200, ((b"content-type", b"text/plain"),), b"a page")


async def ask(server: HttpRouter, request: HttpRequest) -> FakeExchange:
    exchange = FakeExchange(request)
    server.handle(exchange)
    await settle()
    return exchange


def hello(**headers: str) -> HttpRequest:
    return make_request(rpc_request(0, "initialize"), **headers)


@tidy
async def test_cached_and_newly_authenticated_principals_are_served() -> None:
    service = FakeMcpService()
    server = served(service)
    assert (await ask(server, hello(authorization="ann"))).status == 200
    assert (await ask(server, hello(authorization="bob"))).status == 200
    assert [mcp_session.principal.id for mcp_session in service.sessions] == ["ann", "bob"]
    await server.aclose()


@tidy
async def test_others_get_only_the_challenge() -> None:
    service = FakeMcpService()
    server = served(service)
    requests: list[Any] = [
        hello(),
        make_request(rpc_request(1, "tools/call", _meta=META), mcp_protocol_version="2026-07-28"),
        make_request(b"{", "GET", "/sse"),
        make_request(b"{", "GET", "/ws"),
        make_request(b"{", "POST", "/messages"),
        make_request(b"{", "GET", "/mcp"),
        make_request(b"{", "DELETE", "/mcp"),
        make_request(b"{", "GET", "/else"),
    ]
    for request in requests:
        exchange = await ask(server, request)
        assert (exchange.status, exchange.headers[b"www-authenticate"]) == (401, b"Bearer")
        assert b"unauthenticated" in exchange.body
    assert service.sessions == []
    assert service.served == []
    await server.aclose()


@tidy
async def test_pages_health_and_preflight_need_no_authentication() -> None:
    server = served(FakeMcpService())
    assert (await ask(server, make_request(b"", "GET", "/about"))).body == b"a page"
    assert (await ask(server, make_request(b"", "GET", "/healthz"))).status == 200
    assert (await ask(server, make_request(b"", "OPTIONS", "/mcp"))).status == 204
    assert (await ask(server, make_request(b"", "POST", "/about"))).status == 401
    assert (
        await ask(server, make_request(b"", "GET", "/about", host="evil.example"))
    ).status == 421
    await server.aclose()


@tidy
async def test_a_page_that_takes_time_is_sent_when_ready_or_ended_on_close() -> None:
    ready = asyncio.Event()

    async def slow(request: HttpRequest) -> HttpPage:
        await ready.wait()
        return about(request)

    server = HttpRouter(FakeMcpService(), authenticator=Guard(), pages={"/slow": slow})
    request = make_request(b"", "GET", "/slow", origin="http://localhost")
    exchange = await ask(server, request)
    assert not exchange.ended
    ready.set()
    await exchange.answered.wait()
    assert (exchange.status, exchange.body) == (200, b"a page")
    assert exchange.headers[b"access-control-allow-origin"] == b"http://localhost"
    ready.clear()
    waiting, not_begun = await ask(server, request), FakeExchange(request)
    server.handle(not_begun)
    await server.aclose()
    assert (waiting.status, not_begun.status) == (503, 503)


@tidy
async def test_a_session_learns_the_current_principal() -> None:
    service, principals = (
        FakeMcpService(),
        [Principal("ann", roles=("admin",)), Principal("ann", roles=("dev",))],
    )

    class Changing(Guard):
        def cached_principal(self, request: HttpRequest) -> Principal | None:
            return principals[0]

    service.methods["ping"] = lambda request, stream: {}
    server = HttpRouter(service, authenticator=Changing())
    session = (await ask(server, hello())).headers[b"mcp-session-id"].decode()
    del principals[0]
    exchange = await ask(server, make_request(rpc_request(1, "ping"), mcp_session_id=session))
    assert exchange.status == 200
    assert service.sessions[0].principal.roles == ("dev",)
    await server.aclose()


async def test_without_authentication_all_requests_have_one_principal() -> None:
    authenticator = AllowAll()
    assert authenticator.cached_principal(make_request()) is LOCAL_PRINCIPAL
    assert await authenticator.authenticate(make_request()) is LOCAL_PRINCIPAL


ADA = Principal("ada", roles=("dev",))


class FixedAuthenticator:
    """An authenticator with fixed results."""

    def __init__(self, known: Principal | None, found: Principal | Challenge) -> None:
        self.known, self.found = known, found
        self.calls = 0

    def cached_principal(self, request: HttpRequest) -> Principal | None:
        return self.known

    async def authenticate(self, request: HttpRequest) -> Principal | Challenge:
        raise AssertionError("expected the stream to be authenticated again")

    async def reauthenticate(self, request: HttpRequest) -> Principal | Challenge:
        self.calls += 1
        return self.found


class Stream:
    def __init__(self, reauthenticator: StreamReauthenticator) -> None:
        self.over = False
        self.stream = OpenStream(make_request(), ADA, lambda: self.over, self.end)
        reauthenticator.add(self.stream)

    def end(self) -> None:
        self.over = True


def test_known_credentials_need_no_check() -> None:
    reauthenticator = StreamReauthenticator()
    stream = Stream(reauthenticator)
    assert reauthenticator.unconfirmed(FixedAuthenticator(ADA, ADA)) == []
    assert reauthenticator.unconfirmed(FixedAuthenticator(None, ADA)) == [stream.stream]
    assert reauthenticator.unconfirmed(FixedAuthenticator(Principal("bob"), ADA)) == [stream.stream]


def test_closed_streams_are_forgotten() -> None:
    reauthenticator = StreamReauthenticator()
    streams = [Stream(reauthenticator), Stream(reauthenticator)]
    streams[0].end()
    assert reauthenticator.unconfirmed(FixedAuthenticator(None, ADA)) == [streams[1].stream]
    assert len(reauthenticator) == 1


@pytest.mark.parametrize(
    ("found", "over"),
    [
        (ADA, False),
        (Challenge(401, "expired"), True),
        (Challenge(403, "not any more"), True),
        (Challenge(503, "cannot tell"), False),
        (Principal("bob", roles=("dev",)), True),
        (Principal("ada", roles=("other",)), True),
    ],
)
async def test_a_stream_is_closed_unless_the_principal_is_the_same(found: Any, over: bool) -> None:
    reauthenticator = StreamReauthenticator()
    stream = Stream(reauthenticator)
    authenticator = FixedAuthenticator(None, found)
    await reauthenticator.check(stream.stream, authenticator)
    assert (stream.over, authenticator.calls) == (over, 1)


async def test_a_stream_is_checked_once_at_a_time() -> None:
    reauthenticator = StreamReauthenticator()
    stream = Stream(reauthenticator)
    stream.stream.is_checking = True
    assert reauthenticator.unconfirmed(FixedAuthenticator(None, ADA)) == []
    stream.stream.is_checking = False

    class Broken(FixedAuthenticator):
        async def reauthenticate(self, request: HttpRequest) -> Principal | Challenge:
            assert stream.stream.is_checking
            raise RuntimeError("oops")

    with pytest.raises(RuntimeError):
        await reauthenticator.check(stream.stream, Broken(None, ADA))
    assert not stream.stream.is_checking
    assert not stream.over
