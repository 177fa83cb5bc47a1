"""The gateway's own tokens: fetched once for all, renewed in time, rejected, and never leaked."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.backends.http_clients import SHORT_LIMITS
from tests.backends.http_servers import (
    JSON,
    FakeSessionServer,
    FakeStatelessServer,
    Reaction,
    rejects,
)
from tests.backends.test_stateless_server import GATEWAY, Listener
from tests.contexts import start_call
from tests.gateway.servers import tool
from tests.http.scripted_server import (
    ReceivedRequest,
    ScriptedConnection,
    ScriptedServer,
    ok,
    scripted_server,
)
from tests.tasks import settle, tidy
from trunkline.backends import oauth
from trunkline.backends.connect import ClientIdentity, HttpConnector
from trunkline.backends.oauth import ClientCredentials, OAuthCredentials, TokenUnavailable
from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import ConnectionLost, IdRemapper, RpcError
from trunkline.routing import breaker

SECRET = "s3cr3t+/ä"
CANARY = "canary"


class Issuer:
    """Issues the tokens canary1, canary2 …, unless a test changes that."""

    def __init__(self) -> None:
        self.asked: list[ReceivedRequest] = []
        self.left = 0
        """How many clients have read their answer."""
        self.answers: list[Any] = []
        self.life: Any = 3600
        self.held: asyncio.Event | None = None

    async def play(self, line: ScriptedConnection) -> None:
        try:
            await self._serve(line)
        finally:
            self.left += 1

    async def _serve(self, line: ScriptedConnection) -> None:
        while True:
            self.asked.append(await line.request())
            if self.held is not None:
                await self.held.wait()
            answer = self.answers.pop(0) if self.answers else self.token()
            if isinstance(answer, bytes):
                await line.send(answer)
            else:
                await line.send(ok(json.dumps(answer).encode(), JSON))

    def token(self) -> dict[str, Any]:
        name = f"{CANARY}{len(self.asked)}"
        return {"access_token": name, "token_type": "Bearer", "expires_in": self.life}

    def form(self, at: int = -1) -> dict[str, list[str]]:
        return parse_qs(self.asked[at].body.decode())


def refusing(status: str, error: Any = None, **more: Any) -> bytes:
    body = b"" if error is None else json.dumps({"error": error, **more}).encode()
    return ok(body, JSON, status=status.encode())


@asynccontextmanager
async def issuing(
    issuer: Issuer,
    clock: Callable[[], float] = time.monotonic,
    timeout: float = oauth.TOKEN_TIMEOUT,
    **grant: Any,
) -> AsyncGenerator[OAuthCredentials]:
    async with scripted_server(issuer.play) as there:
        tokens = OAuthCredentials(of(there, **grant), clock, timeout)
        tokens.add_user()
        yield tokens
        await tokens.remove_user()


def of(there: ScriptedServer, **grant: Any) -> ClientCredentials:
    url = there.url.replace("/mcp", "/token?tenant=1")
    return ClientCredentials(token_url=url, client_id="gate:way", client_secret=SECRET, **grant)


def shown(number: int) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {CANARY}{number}".encode()


async def problem(tokens: OAuthCredentials) -> TokenUnavailable:
    with pytest.raises(TokenUnavailable) as failed:
        await tokens.fetch_header()
    text = repr(failed.value) + str(failed.value) + repr(tokens)
    assert SECRET not in text
    assert CANARY not in text
    return failed.value


@tidy
async def test_a_token_is_fetched_on_demand_and_cached() -> None:
    issuer = Issuer()
    async with issuing(
        issuer, token_params={"scope": "a b", "resource": "https://x.example"}
    ) as tokens:
        await settle()
        assert issuer.asked == []
        assert tokens.current_header() is None
        assert [await tokens.fetch_header() for _ in range(3)] == [shown(1)] * 3
        assert tokens.current_header() == shown(1)
    (asked,) = issuer.asked
    assert (asked.method, asked.target) == ("POST", "/token?tenant=1")
    assert issuer.form() == {
        "grant_type": ["client_credentials"],
        "scope": ["a b"],
        "resource": ["https://x.example"],
    }
    basic = base64.b64decode(asked.headers[b"authorization"].removeprefix(b"Basic "))
    assert basic == b"gate%3Away:s3cr3t%2B%2F%C3%A4"


@tidy
async def test_the_secret_may_be_sent_in_the_form() -> None:
    issuer = Issuer()
    async with issuing(issuer, secret_in_form=True) as tokens:
        await tokens.fetch_header()
    assert b"authorization" not in issuer.asked[0].headers
    assert issuer.form()["client_id"] == ["gate:way"]
    assert issuer.form()["client_secret"] == [SECRET]


@tidy
async def test_waiting_calls_share_one_fetch_and_a_cancelled_one_does_not_stop_it() -> None:
    issuer = Issuer()
    issuer.held = asyncio.Event()
    async with issuing(issuer) as tokens:
        waiting = [asyncio.create_task(tokens.fetch_header()) for _ in range(9)]
        while not issuer.asked:
            await asyncio.sleep(0)
        waiting[0].cancel()
        await settle()
        issuer.held.set()
        assert await asyncio.gather(*waiting[1:]) == [shown(1)] * 8
    assert len(issuer.asked) == 1


@tidy
async def test_an_expiring_token_is_renewed_while_it_is_used() -> None:
    issuer, now = Issuer(), 1000.0
    issuer.life = "3600"  # some write it so
    async with issuing(issuer, lambda: now) as tokens:
        await tokens.fetch_header()
        now = 1000.0 + 3539
        assert tokens.current_header() == shown(1)
        await settle()
        assert len(issuer.asked) == 1
        now = 1000.0 + 3541
        assert [tokens.current_header() for _ in range(9)] == [shown(1)] * 9
        while tokens.current_header() == shown(1):
            await asyncio.sleep(0)
        assert tokens.current_header() == shown(2)
        now += 3600
        assert tokens.current_header() is None
        assert await tokens.fetch_header() == shown(3)
    assert len(issuer.asked) == 3


@tidy
async def test_a_token_that_cannot_be_renewed_is_used_until_it_expires() -> None:
    issuer, now = Issuer(), 0.0
    issuer.life = 10
    async with issuing(issuer, lambda: now) as tokens:
        await tokens.fetch_header()
        issuer.answers = [refusing("503 Later")]
        now = 8.5
        assert tokens.current_header() == shown(1)
        while len(issuer.asked) < 2:
            await asyncio.sleep(0)
        assert await tokens.fetch_header() == shown(1)
        while issuer.left < 2:  # then it has been read, and the connection is closed
            await asyncio.sleep(0)
        await settle()
        now = 10.0
        assert await tokens.fetch_header() == shown(3)


@tidy
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (refusing("401 No", "invalid_client"), "answered HTTP 401: invalid_client"),
        (refusing("400 No", f"{SECRET} is wrong"), "answered HTTP 400"),
        (refusing("400 No", "invalid_scope", error_description=SECRET), "HTTP 400: invalid_scope"),
        (refusing("400 No", 7), "answered HTTP 400"),
        (refusing("500 No"), "answered HTTP 500"),
        (ok(b"", b"location: http://127.0.0.1/", status=b"302 Found"), "answered HTTP 302"),
        (ok(b"<html>"), "without a valid token"),
        ([], "without a valid token"),
        ({"access_token": 1}, "without a valid token"),
        ({"access_token": "x", "expires_in": "soon"}, "without a valid token"),
        ({"access_token": "x", "expires_in": "nan"}, "an expired token"),
        ({"access_token": "x", "expires_in": 0}, "an expired token"),
        ({"access_token": "x", "token_type": "mac"}, "a token that cannot be used"),
        ({"access_token": "x\r\nx: y"}, "a token that cannot be used"),
        ({"access_token": ""}, "a token that cannot be used"),
        ({"access_token": "x" * 20_000}, "a token that cannot be used"),
        (ok(b'{"access_token":"' + b"x" * 70_000 + b'"}', JSON), "at most 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\n", "closed"),
    ],
)
async def test_an_invalid_token_response_is_an_error_without_secrets(answer: Any, why: str) -> None:
    async def once(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(answer if isinstance(answer, bytes) else ok(json.dumps(answer).encode()))

    async with scripted_server(once) as there:
        error = await problem(OAuthCredentials(of(there)))
        assert why in str(error)
        assert str(error).startswith("no token: ")


@tidy
async def test_a_token_without_expiry_is_renewed_all_the_same() -> None:
    issuer, now = Issuer(), 0.0
    issuer.life = 1e300
    async with issuing(issuer, lambda: now) as tokens:
        await tokens.fetch_header()
        now = oauth.MAX_TOKEN_LIFETIME - oauth.RENEWAL_MARGIN - 1
        assert tokens.current_header() == shown(1)
        await settle()
        assert len(issuer.asked) == 1
        now = oauth.MAX_TOKEN_LIFETIME
        assert tokens.current_header() is None
        assert await tokens.fetch_header() == shown(2)


@tidy
async def test_a_slow_token_endpoint_is_given_up_at_its_timeout() -> None:
    issuer = Issuer()
    issuer.held = asyncio.Event()
    async with issuing(issuer, timeout=0.01) as tokens:
        assert "not within 0.01 s" in str(await problem(tokens))


@tidy
async def test_after_a_failure_requests_pause_longer_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer, now = Issuer(), 0.0

    def doubling(failures: int, chance: float) -> float:
        return 2.0**failures

    monkeypatch.setattr(breaker, "backoff_delay", doubling)
    issuer.answers = [refusing("500 No")] * 3
    async with issuing(issuer, lambda: now) as tokens:
        for wait in (2.0, 4.0, 8.0):
            assert (await problem(tokens)).retry_after == wait
            asked = len(issuer.asked)
            now += wait / 2
            assert (await problem(tokens)).retry_after == wait / 2
            assert len(issuer.asked) == asked
            now += wait / 2
        assert await tokens.fetch_header() == shown(4)


@tidy
async def test_the_last_user_stops_a_running_fetch() -> None:
    issuer = Issuer()
    issuer.held = asyncio.Event()
    async with issuing(issuer) as tokens:
        waiting = asyncio.create_task(tokens.fetch_header())
        while not issuer.asked:
            await asyncio.sleep(0)
        waiting.cancel()
        await settle()


# With a server


class Guarded:
    """A server that requires this Authorization header."""

    def __init__(self, web: FakeSessionServer, *accepted: str) -> None:
        self.web = web
        self.accepted = set(accepted)
        self.refused: list[ReceivedRequest] = []
        self.refusal: Reaction = rejects("401 Unauthorized")

    async def play(self, line: ScriptedConnection) -> None:
        while True:
            seen = await line.request()
            if seen.headers.get(b"authorization", b"").decode() in self.accepted:
                await self.web.respond(line, self.web.record(seen))
            else:
                self.refused.append(seen)
                asked = self.web.record(seen)
                self.web.received.pop()
                await self.refusal(line, asked)


@asynccontextmanager
async def opened(
    guarded: Guarded,
    issuer: Issuer,
    era: Any = "auto",
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[tuple[Backend, Listener]]:
    remapper, listener = IdRemapper(), Listener()
    async with scripted_server(issuer.play) as there, scripted_server(guarded.play) as server:
        tokens = OAuthCredentials(of(there), clock)
        target = HttpConnector(server.url, (), era, credentials=tokens, limits=SHORT_LIMITS)
        backend = await target.connect(ClientIdentity("s", remapper, listener, {}, GATEWAY))
        yield backend, listener
        await backend.aclose()
        assert remapper.pending_count() == 0


def bearer(number: int) -> str:
    return f"Bearer {CANARY}{number}"


def webs() -> list[Any]:
    return [
        pytest.param(FakeSessionServer(tools=[tool("t")]), id="session"),
        pytest.param(FakeStatelessServer(tools=[tool("t")]), id="stateless"),
    ]


@tidy
@pytest.mark.parametrize("web", webs())
async def test_every_request_carries_the_token(web: FakeSessionServer) -> None:
    issuer = Issuer()
    async with opened(Guarded(web, bearer(1)), issuer) as (backend, listener):
        await backend.list_features()
        for _ in range(3):
            await start_call(backend, listener.call({"name": "t"}))
    assert len(issuer.asked) == 1
    assert {asked.header("authorization") for asked in web.received} == {bearer(1)}
    assert len(web.received_for("tools/call")) == 3


@tidy
@pytest.mark.parametrize("web", webs())
async def test_a_call_rejected_for_its_token_is_sent_once_more_with_another(
    web: FakeSessionServer,
) -> None:
    issuer, guarded = Issuer(), Guarded(web, bearer(1))
    async with opened(guarded, issuer) as (backend, listener):
        await backend.list_features()
        guarded.accepted = {bearer(2)}
        calls = [start_call(backend, listener.call({"name": "t"})) for _ in range(9)]
        assert len(await asyncio.gather(*calls)) == 9
        assert len(web.received_for("tools/call")) == 9
        refused = [seen for seen in guarded.refused if b"tools/call" in seen.body]
        assert len(refused) == 9
    assert len(issuer.asked) == 2


@tidy
@pytest.mark.parametrize("web", webs())
async def test_a_server_that_refuses_both_protocols_gets_no_third_request(
    web: FakeSessionServer,
) -> None:
    issuer, guarded = Issuer(), Guarded(web, bearer(1))
    async with opened(guarded, issuer) as (backend, listener):
        await backend.list_features()
        guarded.accepted = set()
        guarded.refused.clear()
        with pytest.raises(ConnectionLost, match="HTTP 401") as failed:
            await start_call(backend, listener.call({"name": "t"}))
        assert CANARY not in str(failed.value)
        assert len([seen for seen in guarded.refused if b"tools/call" in seen.body]) == 2
    assert web.received_for("tools/call") == []


@tidy
async def test_rejected_new_tokens_are_not_refetched_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def long(failures: int, chance: float) -> float:
        return 1000.0

    monkeypatch.setattr(breaker, "backoff_delay", long)
    web = FakeSessionServer(tools=[tool("t")])
    issuer, guarded = Issuer(), Guarded(web, bearer(1))
    async with opened(guarded, issuer, clock=lambda: 0.0) as (backend, listener):
        guarded.accepted = set()
        for _ in range(5):
            with pytest.raises((ConnectionLost, RpcError)):
                await start_call(backend, listener.call({"name": "t"}))
        with pytest.raises(TokenUnavailable, match="rejects new tokens") as failed:
            await start_call(backend, listener.call({"name": "t"}))
        assert failed.value.retry_after == 1000.0
    assert len(issuer.asked) == 2


@tidy
async def test_without_a_token_a_server_is_not_connected() -> None:
    issuer, web = Issuer(), FakeSessionServer(tools=[tool("t")])
    issuer.answers = [refusing("401 No", "invalid_client")] * 9
    with pytest.raises(TokenUnavailable, match="invalid_client"):
        async with opened(Guarded(web, bearer(1)), issuer):
            pass
    assert web.received == []


@tidy
@pytest.mark.parametrize("web", webs())
async def test_authorization_metadata_of_a_server_is_not_followed(
    web: FakeSessionServer,
) -> None:
    issuer, other_issuer = Issuer(), Issuer()
    async with scripted_server(other_issuer.play) as there:
        challenge = f'www-authenticate: Bearer resource_metadata="{there.url}"'.encode()
        guarded = Guarded(web, bearer(1))
        async with opened(guarded, issuer) as (backend, listener):
            guarded.accepted = set()
            guarded.refusal = rejects("401 Unauthorized", b"", challenge)
            with pytest.raises(ConnectionLost, match="HTTP 401"):
                await start_call(backend, listener.call({"name": "t"}))
        assert there.lines == []
