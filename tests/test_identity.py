"""Who is let in by HTTP: nobody without a good token, on every way in, in both eras."""

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from tests.auth.issuer import AUDIENCE, ISSUER, NOW, claims, key_of, signed, token, unsigned
from tests.auth.test_metadata import told
from tests.gateway.conftest import no_patience
from tests.gateway.servers import gateway, hello, one_tool
from tests.http_client import HOST, Site
from tests.identities import guarded
from tests.transports.exchanges import call
from tests.transports.test_http_server import MODERN

__all__ = ["no_patience"]

WAYS = [
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


@pytest.mark.holds("C30")
@pytest.mark.parametrize(("method", "path"), WAYS)
async def test_nobody_comes_in_without_a_token(method: str, path: str) -> None:
    server = one_tool()
    async with guarded(gateway(s=server), server) as house:
        before = len(server.heard)
        reply = await house.here.ask(call(1, "initialize", **hello()), method, path)
        assert reply.status == 401
        assert told(reply.headers["www-authenticate"].encode()) == {
            "resource_metadata": f"http://{HOST}:{house.here.port}"
            "/.well-known/oauth-protected-resource/mcp"
        }
        assert (house.here.door.sessions, house.here.gateway.sessions) == (0, frozenset())
        assert len(server.heard) == before


async def test_some_pages_are_for_everybody() -> None:
    async with guarded(gateway()) as house:
        for path in ("/healthz", "/.well-known/oauth-protected-resource"):
            assert (await house.here.ask(None, "GET", path)).status == 200
        assert (await house.here.ask(None, "GET", "/readyz")).status == 503  # there is no server
        page = await house.here.ask(None, "GET", "/.well-known/oauth-protected-resource/mcp")
        assert page.json == {
            "resource": f"http://{HOST}:{house.here.port}/mcp",
            "authorization_servers": [ISSUER],
            "bearer_methods_supported": ["header"],
            "resource_name": "Trunkline",
        }
        origin = "http://localhost:3000"
        for path in ("/mcp", "/sse", "/messages", "/.well-known/oauth-protected-resource"):
            asked = await house.here.ask(None, "OPTIONS", path, origin=origin)
            assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, origin)
        refused = await house.here.ask(call(1, "ping"), origin=origin)
        assert refused.status == 401
        assert "www-authenticate" in refused.headers["access-control-expose-headers"]


@pytest.mark.holds("M10", "O0.8")
async def test_who_has_a_token_comes_in_by_both_eras() -> None:
    server = one_tool()
    async with guarded(gateway(s=server), server) as house:
        ada = house.client()
        for client in (await ada.old(), ada.new()):
            reply = await client.ask("tools/call", name="s__echo")
            assert "echo ran" in str((await reply.last())["result"])
        assert house.told == []


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


@pytest.mark.holds("O0.8")
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_bad_token_opens_nothing(attack: str) -> None:
    server = one_tool()
    async with guarded(gateway(s=server), server) as house:
        before = len(server.heard)
        given = {"authorization": f"Bearer {ATTACKS[attack]}"}
        for headers, code in (({}, -32001), (MODERN, 4010)):
            reply = await house.here.ask(call(1, "tools/call", name="s__echo"), **given, **headers)
            assert reply.error == (401, code)
            assert reply.json["error"]["data"] == {"type": "unauthenticated"}
            assert told(reply.headers["www-authenticate"].encode())["error"] == "invalid_token"
            assert ATTACKS[attack] not in str(reply.headers) + reply.body.decode()
        assert len(server.heard) == before
        assert len(house.told) == 2
        assert ATTACKS[attack] not in str(house.told)


async def test_a_token_that_is_not_for_this_gets_403() -> None:
    async with guarded(gateway(), scopes=("mcp:tools",)) as house:
        reply = await house.client().ask(call(1, "initialize", **hello()))
        assert reply.error == (403, -32003)
        found = told(reply.headers["www-authenticate"].encode())
        assert (found["error"], found["scope"]) == ("insufficient_scope", "mcp:tools")
        assert await house.client(scope="x mcp:tools").old()


async def raw(here: Site, *lines: str, target: str = "/mcp") -> tuple[int, str]:
    """Send a head as it is; return the status, and all that was said."""
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
    said = (await reader.read()).decode()
    return int(said.split(" ")[1]), said


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
    async with guarded(gateway()) as house:
        for _ in range(2):  # the second time a good one is known already
            status, said = await raw(house.here, *lines)
            assert status in statuses
            assert GOOD not in said
            assert (await raw(house.here, f"authorization: bearer {GOOD}"))[0] == 400  # no session
        assert house.here.door.sessions == 0


async def test_a_token_in_the_url_opens_nothing_and_is_not_said_again() -> None:
    async with guarded(gateway()) as house:
        status, said = await raw(house.here, target=f"/mcp?access_token={GOOD}")
        assert status == 400
        assert GOOD not in said
        assert "invalid_request" in said
        assert GOOD not in str(house.told)


@pytest.mark.parametrize("white", [" ", "  ", "      "])
async def test_white_space_that_http_allows_is_allowed(white: str) -> None:
    async with guarded(gateway()) as house:
        line = f"AUTHORIZATION:{white}bEARER{white}{GOOD}{white}"
        status, said = await raw(house.here, line)
        assert (status, "Missing Mcp-Session-Id" in said) == (400, True)


async def test_who_tries_too_often_has_to_wait() -> None:
    async with guarded(gateway(), most=3) as house:
        for _ in range(3):
            assert (await house.client(aud="x").ask(call())).status == 401
        reply = await house.client(aud="x").ask(call())
        assert reply.error == (429, -32004)
        assert 0 < int(reply.headers["retry-after"]) <= 20
        assert {told.why for told in house.told} == {"the token is for another audience"}
        assert {told.address for told in house.told} == {HOST}


async def test_a_guard_that_breaks_down_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def oops(request: Any) -> Any:
        raise RuntimeError("oops")

    async with guarded(gateway()) as house:
        reports: list[Any] = []
        monkeypatch.setattr(house.here.door, "_report", reports.append)
        monkeypatch.setattr(house.here.door.guard, "identify", oops)
        reply = await house.client().ask(call())
        assert reply.status == 500
        assert len(reports) == 1
        assert "oops" not in reply.body.decode()


# WebSocket


async def test_a_websocket_needs_a_token_as_well() -> None:
    server = one_tool()
    async with guarded(gateway(s=server), server) as house:
        url = f"ws://{HOST}:{house.here.port}/ws"
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
