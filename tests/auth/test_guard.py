"""The guard at the door: what it takes for a proof, what it remembers, and for how long."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.auth.issuer import AUDIENCE, ISSUER, NOW, SECRET, Clock, key_server, public, token
from tests.jsonrpc.test_channel import settle, tidy
from tests.transports.exchanges import altered, asked
from trunkline.auth import failures, guard
from trunkline.auth.claims import Expected
from trunkline.auth.guard import MAX_KNOWN, TokenGuard
from trunkline.auth.key_file import KeyFile, add_key, revoke_key
from trunkline.auth.key_sets import KeySource, RemoteKeys, SharedSecret
from trunkline.auth.metadata import Resource
from trunkline.auth.signatures import secret_key
from trunkline.auth.verifier import JwtVerifier, Verifier
from trunkline.mcp.principal import Principal
from trunkline.transports.exchange import HttpRequest
from trunkline.transports.http_guard import Challenge


class House:
    """A guard, its clock, and those whom it has told of."""

    def __init__(
        self, keys: Path | None = None, source: KeySource | None = None, most: int = 60
    ) -> None:
        self.clock = Clock()
        self.told: list[tuple[str, str]] = []
        expected = Expected(issuer=ISSUER, audiences=frozenset((AUDIENCE,)))
        tokens = JwtVerifier(expected, source or SharedSecret(secret_key(SECRET)))
        verifier = Verifier(tokens, KeyFile(keys) if keys else None, self.clock)
        self.guard = TokenGuard(
            verifier, Resource(), most, lambda address, why: self.told.append((address, why))
        )

    async def who(self, request: HttpRequest) -> Principal | Challenge:
        """Do as the door does."""
        return self.guard.recognise(request) or await self.guard.identify(request)


def bearing(made: str, **headers: str) -> HttpRequest:
    return asked(authorization=f"Bearer {made}", **headers)


async def test_a_token_is_made_sure_of_once_and_then_recognised() -> None:
    house = House()
    request = bearing(token())
    assert house.guard.recognise(request) is None
    who = await house.guard.identify(request)
    assert isinstance(who, Principal)
    assert house.guard.recognise(bearing(token())) == who
    assert house.guard.recognise(asked()) is None
    assert house.told == []


async def test_what_is_remembered_ends_with_its_token() -> None:
    house = House()
    request = bearing(token(exp=int(NOW) + 60))
    await house.who(request)
    house.clock.now += 89
    assert house.guard.recognise(request) is not None
    house.clock.now += 1
    assert house.guard.recognise(request) is None
    who = await house.who(request)
    assert isinstance(who, Challenge)
    assert (who.status, who.why) == (401, "the token has expired")


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_KNOWN", 3)
    house = House()
    requests = [bearing(token(sub=f"s{number}")) for number in range(5)]
    for request in requests:
        await house.who(request)
    known = [house.guard.recognise(request) is not None for request in requests]
    assert known == [False, False, True, True, True]
    assert MAX_KNOWN >= 1024


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR", "Bearer   "])
async def test_the_scheme_is_spelled_as_one_likes(scheme: str) -> None:
    house = House()
    assert isinstance(await house.who(asked(authorization=f"{scheme} {token()}")), Principal)


ODD: dict[str, str] = {
    "no scheme": "{}",
    "another scheme": "Basic {}",
    "no token": "Bearer",
    "nothing but a space": "Bearer ",
    "a tab": "Bearer\t{}",
    "a colon": "Bearer: {}",
    "two tokens": "Bearer {} {}",
    "a list": "Bearer {}, Bearer {}",
    "a list of schemes": "Basic eDp5, Bearer {}",
    "a parameter": 'Bearer {}, realm="x"',
    "quotes": 'Bearer "{}"',
    "a space in front": " Bearer {}",
    "white space within": "Bearer {}\x0b",
    "no-break space": "Bearer\xa0{}",
    "a NUL": "Bearer {}\0",
    "a letter too many": "XBearer {}",
}


@pytest.mark.parametrize("odd", ODD)
async def test_odd_credentials_are_none(odd: str) -> None:
    house = House()
    made = token()
    await house.who(bearing(made))  # and that it is known already changes nothing
    who = await house.who(asked(authorization=ODD[odd].format(made, made)))
    assert isinstance(who, Challenge)
    assert who.status == 401
    assert made not in who.why
    assert not any(made.encode() in value for _, value in who.headers)


async def test_two_authorization_headers_are_none_even_if_they_are_the_same() -> None:
    house = House()
    request = bearing(token())
    await house.who(request)
    twice = altered(request, repeated=frozenset((b"authorization",)))
    assert house.guard.recognise(twice) is None
    who = await house.guard.identify(twice)
    assert isinstance(who, Challenge)
    assert who.status == 400
    assert b'error="invalid_request"' in who.headers[0][1]


@pytest.mark.parametrize("query", ["access_token={}", "a=b&access_token={}"])
async def test_a_token_in_the_url_is_not_taken(query: str) -> None:
    house = House()
    who = await house.who(altered(asked(), query=query.format(token())))
    assert isinstance(who, Challenge)
    assert (who.status, "not in the URL" in who.why) == (400, True)


async def test_nor_one_in_a_cookie_or_another_header() -> None:
    house = House()
    for name in ("cookie", "x_api_key", "proxy_authorization", "x_forwarded_authorization"):
        who = await house.who(asked(**{name: f"Bearer {token()}"}))
        assert isinstance(who, Challenge)
        assert who.status == 401


async def test_who_shows_nothing_is_told_no_mistake_and_does_not_wait() -> None:
    house = House(most=2)
    for _ in range(10):
        who = await house.who(asked())
        assert isinstance(who, Challenge)
        assert who.status == 401
        assert b"error" not in who.headers[0][1]
    assert house.told == [("127.0.0.1", "no token")] * 2  # not more often than one may try


async def test_who_is_wrong_again_and_again_waits_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House(most=3)
    time = Clock()
    monkeypatch.setattr(house.guard, "_failures", failures.Failures(3, 60.0, time))
    bad = bearing(token(iss="https://evil.example"))
    for _ in range(3):
        who = await house.who(bad)
        assert isinstance(who, Challenge)
        assert who.status == 401
    for request in (bad, bearing(token())):  # a good one waits as well: nobody looks at it
        who = await house.who(request)
        assert isinstance(who, Challenge)
        assert (who.status, who.headers) == (429, ((b"retry-after", b"20"),))
    assert isinstance(await house.who(altered(bearing(token()), address="192.0.2.9")), Principal)
    assert isinstance(await house.who(bearing(token())), Principal)  # it is known by now
    time.now += 20
    assert isinstance(await house.who(bearing(token(sub="other"))), Principal)
    assert house.told == [("127.0.0.1", "the token is from another issuer")] * 3


async def test_what_was_refused_is_looked_at_again() -> None:
    house = House()
    request = bearing(token(nbf=int(NOW) + 100))
    assert isinstance(await house.who(request), Challenge)
    house.clock.now += 100
    assert isinstance(await house.who(request), Principal)


async def test_those_who_are_told_of_are_told_of_without_what_they_showed() -> None:
    house = House()
    made = token(aud="other")
    await house.who(bearing(made))
    assert house.told == [("127.0.0.1", "the token is for another audience")]


@asynccontextmanager
async def watching(house: House) -> AsyncGenerator[None]:
    house.guard.start()
    house.guard.start()  # once is enough
    try:
        yield
    finally:
        house.guard.stop()
        await settle()


async def until(house: House, request: HttpRequest, known: bool) -> None:
    while (house.guard.recognise(request) is not None) is not known:
        await asyncio.sleep(0)


@tidy
async def test_a_revoked_key_is_forgotten_though_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LOOK_AGAIN", 0.001)
    path = tmp_path / "keys.json"
    key = add_key(path, "ci", "robot", ("dev",), None)
    house = House(path)
    request = bearing(key)
    async with watching(house):
        assert isinstance(await house.who(request), Principal)
        revoke_key(path, "ci")
        await until(house, request, known=False)
        who = await house.who(request)
        assert isinstance(who, Challenge)
        assert who.why == "the key is revoked"


@tidy
async def test_a_key_that_was_just_added_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LOOK_AGAIN", 0.001)
    path = tmp_path / "keys.json"
    house = House(path, most=100_000)
    async with watching(house):
        key = add_key(path, "ci", "robot", ("dev",), None)
        while not isinstance(await house.who(bearing(key)), Principal):
            await asyncio.sleep(0)


@tidy
async def test_tokens_of_a_key_that_an_issuer_has_no_more_are_forgotten() -> None:
    async with key_server(public("ES256", "a")) as server:
        source = RemoteKeys(server.url, clock=(time := Clock()))
        house = House(source=source)
        request = bearing(token("ES256", "a"))
        assert isinstance(await house.who(request), Principal)
        server.body = b'{"keys": []}'
        time.now += 300
        assert isinstance(await house.who(bearing(token("ES256", "b"))), Challenge)
        assert isinstance(await house.who(request), Challenge)


@tidy
async def test_keys_are_there_before_anybody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with key_server(public("ES256", "a")) as server:
        house = House(source=RemoteKeys(server.url))
        async with watching(house):
            while not server.asked:
                await asyncio.sleep(0)
        assert server.asked == 1


@tidy
async def test_an_issuer_that_cannot_be_asked_is_nobodys_failure() -> None:
    async with key_server() as server:
        server.status = "500 Internal Server Error"
        house = House(source=RemoteKeys(server.url), most=1)
        for _ in range(3):
            who = await house.who(bearing(token("ES256", "a")))
            assert isinstance(who, Challenge)
            assert who.status == 503


@tidy
async def test_a_breakdown_does_not_stop_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "LOOK_AGAIN", 0.001)
    looks = 0

    class Broken(SharedSecret):
        async def look(self) -> None:
            nonlocal looks
            looks += 1
            raise RuntimeError("oops")

    house = House(source=Broken(secret_key(SECRET)))
    async with watching(house):
        while looks < 3:
            await asyncio.sleep(0)
    assert "oops" in caplog.text


@tidy
async def test_a_breakdown_is_told_of_once_until_it_is_over_or_another_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "LOOK_AGAIN", 0.0)
    looks = iter(["a", "a", "a", "b", "b", "", "b", "b"])
    done = asyncio.Event()

    class Fickle(SharedSecret):
        async def look(self) -> None:
            word = next(looks, None)
            if word is None:
                done.set()
            elif word:
                raise RuntimeError(word)

    house = House(source=Fickle(secret_key(SECRET)))
    async with asyncio.timeout(5), watching(house):
        await done.wait()
    told = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert told == ["a", "b", "b"]


async def test_who_stops_forgets_everybody() -> None:
    house = House()
    request: Any = bearing(token())
    await house.who(request)
    house.guard.stop()
    assert house.guard.recognise(request) is None
