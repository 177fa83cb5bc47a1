"""Tokens of the gateway's own: fetched once for all, renewed in time, refused, and never shown."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.backends.test_envelope import GATEWAY, Listener
from tests.gateway.servers import tool
from tests.jsonrpc.test_channel import settle, tidy
from tests.transports.faulty import FaultServer, Line, Seen, faulty, ok
from tests.transports.links import no_patience as no_patience_with_links
from tests.transports.web import JSON, Modern, Reaction, Web, refuses
from trunkline.backends import oauth
from trunkline.backends.oauth import Grant, NoToken, OAuthCredentials
from trunkline.backends.open_server import HttpTarget, Introduction
from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import ConnectionLost, IdRemapper, RpcError
from trunkline.routing import backoff

__all__ = ["no_patience_with_links"]

SECRET = "s3cr3t+/ä"
CANARY = "canary"


class Issuer:
    """Gives out tokens: canary1, canary2 …, unless a test says otherwise."""

    def __init__(self) -> None:
        self.asked: list[Seen] = []
        self.left = 0
        """How many have read their answer and gone."""
        self.answers: list[Any] = []
        self.life: Any = 3600
        self.held: asyncio.Event | None = None

    async def play(self, line: Line) -> None:
        try:
            await self._serve(line)
        finally:
            self.left += 1

    async def _serve(self, line: Line) -> None:
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
    issuer: Issuer, clock: Callable[[], float] = time.monotonic, **grant: Any
) -> AsyncGenerator[OAuthCredentials]:
    async with faulty(issuer.play) as there:
        tokens = OAuthCredentials(of(there, **grant), clock)
        tokens.join()
        yield tokens
        await tokens.leave()


def of(there: FaultServer, **grant: Any) -> Grant:
    url = there.url.replace("/mcp", "/token?tenant=1")
    return Grant(token_url=url, client_id="gate:way", client_secret=SECRET, **grant)


def shown(number: int) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {CANARY}{number}".encode()


async def problem(tokens: OAuthCredentials) -> NoToken:
    with pytest.raises(NoToken) as failed:
        await tokens.fresh()
    text = repr(failed.value) + str(failed.value) + repr(tokens)
    assert SECRET not in text
    assert CANARY not in text
    return failed.value


@tidy
async def test_a_token_is_fetched_when_it_is_needed_and_kept() -> None:
    issuer = Issuer()
    async with issuing(issuer, wishes={"scope": "a b", "resource": "https://x.example"}) as tokens:
        await settle()
        assert issuer.asked == []
        assert tokens.current() is None
        assert [await tokens.fresh() for _ in range(3)] == [shown(1)] * 3
        assert tokens.current() == shown(1)
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
    async with issuing(issuer, in_form=True) as tokens:
        await tokens.fresh()
    assert b"authorization" not in issuer.asked[0].headers
    assert issuer.form()["client_id"] == ["gate:way"]
    assert issuer.form()["client_secret"] == [SECRET]


@tidy
async def test_all_who_wait_get_the_same_one_and_who_gives_up_takes_nothing_away() -> None:
    issuer = Issuer()
    issuer.held = asyncio.Event()
    async with issuing(issuer) as tokens:
        waiting = [asyncio.create_task(tokens.fresh()) for _ in range(9)]
        while not issuer.asked:
            await asyncio.sleep(0)
        waiting[0].cancel()
        await settle()
        issuer.held.set()
        assert await asyncio.gather(*waiting[1:]) == [shown(1)] * 8
    assert len(issuer.asked) == 1


@tidy
async def test_one_that_is_about_to_end_is_renewed_while_it_is_used() -> None:
    issuer, now = Issuer(), 1000.0
    issuer.life = "3600"  # some write it so
    async with issuing(issuer, lambda: now) as tokens:
        await tokens.fresh()
        now = 1000.0 + 3539
        assert tokens.current() == shown(1)
        await settle()
        assert len(issuer.asked) == 1
        now = 1000.0 + 3541
        assert [tokens.current() for _ in range(9)] == [shown(1)] * 9
        while tokens.current() == shown(1):
            await asyncio.sleep(0)
        assert tokens.current() == shown(2)
        now += 3600
        assert tokens.current() is None
        assert await tokens.fresh() == shown(3)
    assert len(issuer.asked) == 3


@tidy
async def test_one_that_cannot_be_renewed_is_used_to_its_end() -> None:
    issuer, now = Issuer(), 0.0
    issuer.life = 10
    async with issuing(issuer, lambda: now) as tokens:
        await tokens.fresh()
        issuer.answers = [refusing("503 Later")]
        now = 8.5
        assert tokens.current() == shown(1)
        while len(issuer.asked) < 2:
            await asyncio.sleep(0)
        assert await tokens.fresh() == shown(1)
        while issuer.left < 2:  # then it has been read, and the connection is closed
            await asyncio.sleep(0)
        await settle()
        now = 10.0
        assert await tokens.fresh() == shown(3)


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
        (ok(b"<html>"), "what is no token"),
        ([], "what is no token"),
        ({"access_token": 1}, "what is no token"),
        ({"access_token": "x", "expires_in": "soon"}, "what is no token"),
        ({"access_token": "x", "expires_in": "nan"}, "a token that has ended"),
        ({"access_token": "x", "expires_in": 0}, "a token that has ended"),
        ({"access_token": "x", "token_type": "mac"}, "a token that we cannot use"),
        ({"access_token": "x\r\nx: y"}, "a token that we cannot use"),
        ({"access_token": ""}, "a token that we cannot use"),
        ({"access_token": "x" * 20_000}, "a token that we cannot use"),
        (ok(b'{"access_token":"' + b"x" * 70_000 + b'"}', JSON), "at most 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\n", "closed"),
    ],
)
async def test_what_is_no_token_is_told_apart_and_nothing_is_given_away(
    answer: Any, why: str
) -> None:
    async def once(line: Line) -> None:
        await line.request()
        await line.send(answer if isinstance(answer, bytes) else ok(json.dumps(answer).encode()))

    async with faulty(once) as there:
        error = await problem(OAuthCredentials(of(there)))
        assert why in str(error)
        assert str(error).startswith("no token: ")


@tidy
async def test_one_that_lasts_for_ever_is_renewed_all_the_same() -> None:
    issuer, now = Issuer(), 0.0
    issuer.life = 1e300
    async with issuing(issuer, lambda: now) as tokens:
        await tokens.fresh()
        now = oauth.MAX_LIFE - oauth.EARLY - 1
        assert tokens.current() == shown(1)
        await settle()
        assert len(issuer.asked) == 1
        now = oauth.MAX_LIFE
        assert tokens.current() is None
        assert await tokens.fresh() == shown(2)


@tidy
async def test_who_gives_out_none_in_time_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oauth, "PATIENCE", 0.01)
    issuer = Issuer()
    issuer.held = asyncio.Event()
    async with issuing(issuer) as tokens:
        assert "not within 0.01 s" in str(await problem(tokens))


@tidy
async def test_after_a_failure_nobody_is_asked_for_a_while_and_longer_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer, now = Issuer(), 0.0

    def doubling(failures: int, chance: float) -> float:
        return 2.0**failures

    monkeypatch.setattr(backoff, "delay", doubling)
    issuer.answers = [refusing("500 No")] * 3
    async with issuing(issuer, lambda: now) as tokens:
        for wait in (2.0, 4.0, 8.0):
            assert (await problem(tokens)).retry_after == wait
            asked = len(issuer.asked)
            now += wait / 2
            assert (await problem(tokens)).retry_after == wait / 2
            assert len(issuer.asked) == asked
            now += wait / 2
        assert await tokens.fresh() == shown(4)


@tidy
async def test_those_who_leave_take_what_they_began_with_them() -> None:
    issuer = Issuer()
    issuer.held = asyncio.Event()
    async with issuing(issuer) as tokens:
        waiting = asyncio.create_task(tokens.fresh())
        while not issuer.asked:
            await asyncio.sleep(0)
        waiting.cancel()
        await settle()


# With a server


class Guarded:
    """A server that lets in only those who show what it wants to see."""

    def __init__(self, web: Web, *accepted: str) -> None:
        self.web = web
        self.accepted = set(accepted)
        self.refused: list[Seen] = []
        self.refusal: Reaction = refuses("401 Unauthorized")

    async def play(self, line: Line) -> None:
        while True:
            seen = await line.request()
            if seen.headers.get(b"authorization", b"").decode() in self.accepted:
                await self.web.respond(line, self.web.take(seen))
            else:
                self.refused.append(seen)
                asked = self.web.take(seen)
                self.web.asked.pop()
                await self.refusal(line, asked)


@asynccontextmanager
async def opened(
    guarded: Guarded, issuer: Issuer, era: Any = "auto"
) -> AsyncGenerator[tuple[Backend, Listener]]:
    remapper, listener = IdRemapper(), Listener()
    async with faulty(issuer.play) as there, faulty(guarded.play) as server:
        target = HttpTarget(server.url, (), era, credentials=OAuthCredentials(of(there)))
        backend = await target.open(Introduction("s", remapper, listener, {}, GATEWAY))
        yield backend, listener
        await backend.aclose()
        assert remapper.pending_count() == 0


def bearer(number: int) -> str:
    return f"Bearer {CANARY}{number}"


def webs() -> list[Any]:
    return [
        pytest.param(Web(tools=[tool("t")]), id="handshake"),
        pytest.param(Modern(tools=[tool("t")]), id="envelope"),
    ]


@tidy
@pytest.mark.parametrize("web", webs())
async def test_every_request_shows_the_token(web: Web) -> None:
    issuer = Issuer()
    async with opened(Guarded(web, bearer(1)), issuer) as (backend, listener):
        await backend.offers()
        for _ in range(3):
            await backend.call(listener.call({"name": "t"}), listener)
    assert len(issuer.asked) == 1
    assert {asked.header("authorization") for asked in web.asked} == {bearer(1)}
    assert len(web.of("tools/call")) == 3


@tidy
@pytest.mark.parametrize("web", webs())
async def test_a_call_that_was_refused_for_its_token_is_made_once_with_another(web: Web) -> None:
    issuer, guarded = Issuer(), Guarded(web, bearer(1))
    async with opened(guarded, issuer) as (backend, listener):
        await backend.offers()
        guarded.accepted = {bearer(2)}
        calls = [backend.call(listener.call({"name": "t"}), listener) for _ in range(9)]
        assert len(await asyncio.gather(*calls)) == 9
        assert len(web.of("tools/call")) == 9
        refused = [seen for seen in guarded.refused if b"tools/call" in seen.body]
        assert len(refused) == 9
    assert len(issuer.asked) == 2


@tidy
@pytest.mark.parametrize("web", webs())
async def test_a_server_that_wants_none_of_them_is_not_asked_a_third_time(web: Web) -> None:
    issuer, guarded = Issuer(), Guarded(web, bearer(1))
    async with opened(guarded, issuer) as (backend, listener):
        await backend.offers()
        guarded.accepted = set()
        guarded.refused.clear()
        with pytest.raises(ConnectionLost, match="HTTP 401") as failed:
            await backend.call(listener.call({"name": "t"}), listener)
        assert CANARY not in str(failed.value)
        assert len([seen for seen in guarded.refused if b"tools/call" in seen.body]) == 2
    assert web.of("tools/call") == []


@tidy
async def test_tokens_that_are_refused_while_they_are_new_are_not_fetched_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def long(failures: int, chance: float) -> float:
        return 1000.0

    monkeypatch.setattr(backoff, "delay", long)
    web = Web(tools=[tool("t")])
    issuer, guarded = Issuer(), Guarded(web, bearer(1))
    async with opened(guarded, issuer) as (backend, listener):
        guarded.accepted = set()
        for _ in range(5):
            with pytest.raises((ConnectionLost, RpcError)):
                await backend.call(listener.call({"name": "t"}), listener)
        with pytest.raises(NoToken, match="refuses those that we get for it") as failed:
            await backend.call(listener.call({"name": "t"}), listener)
        assert 999 < (failed.value.retry_after or 0) <= 1000
    assert len(issuer.asked) == 2


@tidy
async def test_who_gives_out_no_tokens_keeps_a_server_from_being_opened() -> None:
    issuer, web = Issuer(), Web(tools=[tool("t")])
    issuer.answers = [refusing("401 No", "invalid_client")] * 9
    with pytest.raises(NoToken, match="invalid_client"):
        async with opened(Guarded(web, bearer(1)), issuer):
            pass
    assert web.asked == []


@tidy
@pytest.mark.parametrize("web", webs())
async def test_what_a_server_says_about_authorization_is_not_followed(web: Web) -> None:
    issuer, elsewhere = Issuer(), Issuer()
    async with faulty(elsewhere.play) as there:
        challenge = f'www-authenticate: Bearer resource_metadata="{there.url}"'.encode()
        guarded = Guarded(web, bearer(1))
        async with opened(guarded, issuer) as (backend, listener):
            guarded.accepted = set()
            guarded.refusal = refuses("401 Unauthorized", b"", challenge)
            with pytest.raises(ConnectionLost, match="HTTP 401"):
                await backend.call(listener.call({"name": "t"}), listener)
        assert there.lines == []
