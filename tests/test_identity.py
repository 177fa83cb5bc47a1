"""HTTP authentication: every endpoint, in both protocols, needs a valid token."""

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from tests.auth.issuer import AUDIENCE, ISSUER, NOW, claims, key_of, signed, token, unsigned
from tests.auth.test_authenticator import challenge_parameters
from tests.endpoints.exchanges import rpc_request
from tests.endpoints.test_router import MODERN
from tests.gateway.conftest import no_delays
from tests.gateway.servers import hello, make_gateway, one_tool
from tests.http_client import HOST, GatewaySite
from tests.identities import authenticated_gateway

__all__ = ["no_delays"]

ENDPOINTS = [
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("DELETE", "/mcp"),
    ("PUT", "/mcp"),
    ("GET", "/sse"),
    ("POST", "/messages"),
    ("GET", "/ws"),
    ("GET", "/"),
    ("GET", "/metrics"),
    ("OPTIONS", "/ws"),
    ("POST", "/healthz"),
    ("POST", "/.well-known/oauth-protected-resource"),
]


@pytest.mark.holds("C30", "C24")
@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
async def test_requests_without_a_token_are_rejected(method: str, path: str) -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        before = len(server.received)
        reply = await guarded.site.ask(rpc_request(1, "initialize", **hello()), method, path)
        assert reply.status == 401
        assert challenge_parameters(reply.headers["www-authenticate"].encode()) == {
            "resource_metadata": f"http://{HOST}:{guarded.site.port}"
            "/.well-known/oauth-protected-resource/mcp"
        }
        assert (guarded.site.router.session_count, guarded.site.gateway.sessions) == (
            0,
            frozenset(),
        )
        assert len(server.received) == before


async def test_public_pages_need_no_token() -> None:
    async with authenticated_gateway(make_gateway()) as guarded:
        for path in ("/healthz", "/.well-known/oauth-protected-resource"):
            assert (await guarded.site.ask(None, "GET", path)).status == 200
        assert (await guarded.site.ask(None, "GET", "/readyz")).status == 503  # no server is ready
        page = await guarded.site.ask(None, "GET", "/.well-known/oauth-protected-resource/mcp")
        assert page.json == {
            "resource": f"http://{HOST}:{guarded.site.port}/mcp",
            "authorization_servers": [ISSUER],
            "bearer_methods_supported": ["header"],
            "resource_name": "Trunkline",
        }
        origin = "http://localhost:3000"
        for path in ("/mcp", "/sse", "/messages", "/.well-known/oauth-protected-resource"):
            asked = await guarded.site.ask(None, "OPTIONS", path, origin=origin)
            assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, origin)
        rejected = await guarded.site.ask(rpc_request(1, "ping"), origin=origin)
        assert rejected.status == 401
        assert "www-authenticate" in rejected.headers["access-control-expose-headers"]


@pytest.mark.holds("M10", "O0.8")
async def test_a_token_is_accepted_in_both_protocols() -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        ada = guarded.client()
        for client in (await ada.session_client(), ada.stateless_client()):
            reply = await client.ask("tools/call", name="s__echo")
            assert "echo ran" in str((await reply.final_message())["result"])
        assert guarded.rejections == []


def _hs(**changes: Any) -> str:
    return token(**changes)


ATTACKS: dict[str, str] = {
    "forged": token()[:-8] + "AAAAAAAA",
    "another secret": signed({"alg": "HS256"}, key_of("HS256"), claims(sub="x"))[:-2] + "AA",
    "expired": _hs(exp=int(NOW) - 31),
    "never expires": _hs(exp=None),
    "another issuer": _hs(iss="https://evil.example"),
    "another audience": _hs(aud=["other"]),
    "no audience": _hs(aud=None),
    "not yet": _hs(nbf=int(NOW) + 100),
    "no subject": _hs(sub=None),
    "an empty role": _hs(role=""),
    "alg none": unsigned({"alg": "none"}, claims(), b"x"),
    "alg none, unsigned": unsigned({"alg": "none"}, claims()),
    "by a public key": token("RS256", "a"),
    "a name that is a path": signed(
        {"alg": "HS256", "kid": "/dev/null"}, key_of("HS256"), claims(exp=1)
    ),
    "nonsense": "nonsense",
    "a key": "tlk_" + "A" * 43,
}


@pytest.mark.holds("O0.8", "C22")
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_bad_token_is_rejected(attack: str) -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        before = len(server.received)
        given = {"authorization": f"Bearer {ATTACKS[attack]}"}
        for headers, code in (({}, -32001), (MODERN, 4010)):
            reply = await guarded.site.ask(
                rpc_request(1, "tools/call", name="s__echo"), **given, **headers
            )
            assert reply.error == (401, code)
            assert reply.json["error"]["data"] == {"type": "unauthenticated"}
            assert (
                challenge_parameters(reply.headers["www-authenticate"].encode())["error"]
                == "invalid_token"
            )
            assert ATTACKS[attack] not in str(reply.headers) + reply.body.decode()
        assert len(server.received) == before
        assert len(guarded.rejections) == 2
        assert ATTACKS[attack] not in str(guarded.rejections)


async def test_a_token_without_the_scope_gets_403() -> None:
    async with authenticated_gateway(make_gateway(), scopes=("mcp:tools",)) as guarded:
        reply = await guarded.client().ask(rpc_request(1, "initialize", **hello()))
        assert reply.error == (403, -32003)
        found = challenge_parameters(reply.headers["www-authenticate"].encode())
        assert (found["error"], found["scope"]) == ("insufficient_scope", "mcp:tools")
        assert await guarded.client(scope="x mcp:tools").session_client()


async def raw(here: GatewaySite, *lines: str, target: str = "/mcp") -> tuple[int, str]:
    """Send a request head as given; return the status and the whole response."""
    reader, writer = await asyncio.open_connection(HOST, here.port)
    here.writers.append(writer)
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}'
    head = [
        f"POST {target} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        f"content-length: {len(body)}",
        "connection: close",
        *lines,
    ]
    writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
    received = (await reader.read()).decode()
    return int(received.split(" ")[1]), received


GOOD, OTHER = token(), token(sub="mallory")

SMUGGLED: dict[str, tuple[list[str], set[int]]] = {
    "twice the same": ([f"Authorization: Bearer {GOOD}"] * 2, {400}),
    "two of them": ([f"Authorization: Bearer {GOOD}", f"authorization: Bearer {OTHER}"], {400}),
    "a bad one first": (["Authorization: Bearer x", f"AUTHORIZATION: Bearer {GOOD}"], {400}),
    "a bad one last": ([f"Authorization: Bearer {GOOD}", "Authorization: Basic eDp5"], {400}),
    "an empty one first": (["Authorization:", f"Authorization: Bearer {GOOD}"], {400}),
    "folded": (["Authorization: Bearer", f" {GOOD}"], {400, 401}),
    "a space before the colon": ([f"Authorization : Bearer {GOOD}"], {400, 401}),
    "a tab for a space": ([f"Authorization: Bearer\t{GOOD}"], {401}),
    "a list": ([f"Authorization: Bearer {GOOD}, Bearer {OTHER}"], {401}),
    "an underscore": ([f"Authorization_: Bearer {GOOD}"], {400, 401}),
    "a NUL": ([f"Authorization: Bearer {GOOD}\0"], {400, 401}),
    "another name": ([f"X-Authorization: Bearer {GOOD}"], {401}),
    "the proxy's": ([f"Proxy-Authorization: Bearer {GOOD}"], {401}),
    "a cookie": ([f"Cookie: Authorization=Bearer {GOOD}"], {401}),
}


@pytest.mark.parametrize("how", SMUGGLED)
async def test_headers_cannot_be_smuggled(how: str) -> None:
    lines, statuses = SMUGGLED[how]
    async with authenticated_gateway(make_gateway()) as guarded:
        for _ in range(2):  # the second time a good token is cached
            status, received = await raw(guarded.site, *lines)
            assert status in statuses
            assert GOOD not in received
            assert (await raw(guarded.site, f"authorization: bearer {GOOD}"))[
                0
            ] == 400  # no session
        assert guarded.site.router.session_count == 0


async def test_a_token_in_the_url_is_rejected_and_not_repeated() -> None:
    async with authenticated_gateway(make_gateway()) as guarded:
        status, received = await raw(guarded.site, target=f"/mcp?access_token={GOOD}")
        assert status == 400
        assert GOOD not in received
        assert "invalid_request" in received
        assert GOOD not in str(guarded.rejections)


@pytest.mark.parametrize("space", [" ", "  ", "      "])
async def test_optional_white_space_is_allowed(space: str) -> None:
    async with authenticated_gateway(make_gateway()) as guarded:
        line = f"AUTHORIZATION:{space}bEARER{space}{GOOD}{space}"
        status, received = await raw(guarded.site, line)
        assert (status, "Missing Mcp-Session-Id" in received) == (400, True)


async def test_repeated_failures_are_rate_limited() -> None:
    async with authenticated_gateway(make_gateway(), max_failures=3) as guarded:
        for _ in range(3):
            assert (await guarded.client(aud="x").ask(rpc_request())).status == 401
        reply = await guarded.client(aud="x").ask(rpc_request())
        assert reply.error == (429, -32004)
        assert 0 < int(reply.headers["retry-after"]) <= 20
        assert {each.reason for each in guarded.rejections} == {"the token is for another audience"}
        assert {each.address for each in guarded.rejections} == {HOST}


async def test_a_failing_authenticator_rejects_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    async def oops(request: Any) -> Any:
        raise RuntimeError("oops")

    async with authenticated_gateway(make_gateway()) as guarded:
        reports: list[Any] = []
        monkeypatch.setattr(guarded.site.router, "_report", reports.append)
        monkeypatch.setattr(guarded.site.router.authenticator, "authenticate", oops)
        reply = await guarded.client().ask(rpc_request())
        assert reply.status == 500
        assert len(reports) == 1
        assert "oops" not in reply.body.decode()


# WebSocket


async def test_a_websocket_needs_a_token_as_well() -> None:
    server = one_tool()
    async with authenticated_gateway(make_gateway(s=server), server) as guarded:
        url = f"ws://{HOST}:{guarded.site.port}/ws"
        mcp = [Subprotocol("mcp")]
        for headers in ({}, {"authorization": f"Bearer {token(aud='x')}"}):
            with pytest.raises(InvalidStatus) as caught:
                await connect(url, subprotocols=mcp, additional_headers=headers)
            assert caught.value.response.status_code == 401
            assert "resource_metadata" in caught.value.response.headers["www-authenticate"]
        with pytest.raises(InvalidStatus):
            await connect(f"{url}?access_token={GOOD}", subprotocols=mcp)
        headers = {"authorization": f"Bearer {GOOD}"}
        async with connect(url, subprotocols=mcp, additional_headers=headers) as socket:
            await socket.send('{"jsonrpc":"2.0","id":1,"method":"ping"}')
            assert '"result"' in str(await socket.recv())
        assert AUDIENCE in str(claims()["aud"])
