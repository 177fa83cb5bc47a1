"""Authentication of HTTP requests: failure limits, metadata and challenges, cached tokens."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.auth.issuer import AUDIENCE, ISSUER, NOW, SECRET, Clock, key_server, public, token
from tests.endpoints.exchanges import make_request, with_head
from tests.tasks import hang_guard, settle, tidy
from trunkline.auth.api_keys import ApiKeyFile, add_key, revoke_key
from trunkline.auth.authenticator import (
    WELL_KNOWN_PATH,
    AttemptLimiter,
    AuthenticatorLimits,
    ProtectedResource,
    TokenAuthenticator,
)
from trunkline.auth.claims import AuthErrorCode, ClaimsValidator, VerifiedIdentity
from trunkline.auth.key_sets import KeySource, RemoteKeySet, SharedSecret
from trunkline.auth.signatures import secret_key
from trunkline.auth.tokens import JwtVerifier, TokenVerifier
from trunkline.endpoints.auth import Challenge
from trunkline.endpoints.pages import HttpPage
from trunkline.http.exchange import HttpRequest
from trunkline.mcp.identity import Principal


def test_a_burst_of_failures_then_one_at_a_time() -> None:
    clock = Clock()
    counted = AttemptLimiter(3, 60.0, clock)
    for _ in range(3):
        assert counted.retry_after("a") == 0
        counted.record("a")
    assert counted.retry_after("a") == 20
    assert counted.retry_after("b") == 0  # other addresses do not wait
    clock.now += 20
    assert counted.retry_after("a") == 0
    counted.record("a")
    assert counted.retry_after("a") == 20
    clock.now += 1000
    assert [counted.retry_after("a"), counted.record("a"), counted.retry_after("a")] == [0, None, 0]


@given(st.lists(st.floats(0, 30)))
def test_failures_never_exceed_the_limit(pauses: list[float]) -> None:
    clock, times = Clock(0.0), list[float]()
    counted = AttemptLimiter(5, 60.0, clock)
    for pause in pauses:
        clock.now += pause
        if counted.retry_after("a") == 0:
            counted.record("a")
            times.append(clock.now)
    for begin in times:
        # A burst, and what was forgiven in the minute since.
        assert sum(begin <= each < begin + 60 for each in times) <= 5 + 5


def test_the_failure_table_is_bounded() -> None:
    counted = AttemptLimiter(1, 60.0, Clock(), max_addresses=3)
    for address in ("a", "b", "a", "c", "d"):
        counted.record(address)
    assert len(counted) == 3
    assert counted.retry_after("b") == 0  # the one that failed longest ago
    assert min(counted.retry_after(address) for address in "acd") > 0


PUBLIC = ProtectedResource(
    url="https://gw.example/mcp",
    authorization_servers=("https://id.example",),
    scopes=("mcp:tools", "b"),
)


def challenge_parameters(header: bytes) -> dict[str, str]:
    scheme, _, rest = header.decode().partition(" ")
    assert scheme == "Bearer"
    return dict(re.findall(r'(\w+)="([^"]*)"', rest))


def test_the_metadata_is_served_at_both_paths() -> None:
    pages = PUBLIC.pages()
    assert sorted(pages) == [WELL_KNOWN_PATH, f"{WELL_KNOWN_PATH}/mcp"]
    for page in pages.values():
        found = page(make_request(method="GET"))
        assert isinstance(found, HttpPage)
        assert (found.status, dict(found.headers)[b"content-type"]) == (200, b"application/json")
        assert json.loads(found.body) == {
            "resource": "https://gw.example/mcp",
            "authorization_servers": ["https://id.example"],
            "scopes_supported": ["mcp:tools", "b"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Trunkline",
        }


def test_without_a_url_the_resource_follows_the_host_header() -> None:
    page = ProtectedResource().metadata_page(make_request(method="GET", host="localhost:8080"))
    assert json.loads(page.body)["resource"] == "http://localhost:8080/mcp"
    assert dict(page.headers)[b"cache-control"] == b"no-store"
    secure = ProtectedResource(secure=True, path="/").metadata_page(
        make_request(method="GET", host="gw.example")
    )
    assert json.loads(secure.body)["resource"] == "https://gw.example/"
    assert "authorization_servers" not in json.loads(secure.body)


def test_the_public_url_comes_before_the_host_header() -> None:
    resource = ProtectedResource(base="https://gw.example/a")
    page = resource.metadata_page(make_request(method="GET", host="localhost:8080"))
    assert json.loads(page.body)["resource"] == "https://gw.example/a/mcp"
    assert dict(page.headers)[b"cache-control"] == b"max-age=300"


@pytest.mark.parametrize(
    ("resource", "places", "url"),
    [
        (
            ProtectedResource(),
            ["", "/mcp"],
            "http://localhost/.well-known/oauth-protected-resource/mcp",
        ),
        (
            ProtectedResource(path="/"),
            [""],
            "http://localhost/.well-known/oauth-protected-resource",
        ),
        (
            ProtectedResource(url="https://gw.example/a/mcp", path="/mcp"),
            ["", "/a/mcp", "/mcp"],
            "https://gw.example/.well-known/oauth-protected-resource/a/mcp",
        ),
        (
            ProtectedResource(base="https://gw.example/a", path="/mcp"),
            ["", "/a/mcp", "/mcp"],
            "https://gw.example/a/.well-known/oauth-protected-resource/mcp",
        ),
        (
            ProtectedResource(url="https://gw.example/b/mcp", base="https://x.example"),
            ["", "/b/mcp", "/mcp"],
            "https://gw.example/.well-known/oauth-protected-resource/b/mcp",
        ),
        (
            ProtectedResource(url="https://gw.example", path="/mcp"),
            ["", "/mcp"],
            "https://gw.example/.well-known/oauth-protected-resource",
        ),
    ],
)
def test_the_metadata_path_follows_rfc_9728(
    resource: ProtectedResource, places: list[str], url: str
) -> None:
    assert sorted(resource.pages()) == [WELL_KNOWN_PATH + place for place in places]
    challenge = resource.challenge(make_request(host="localhost"), "no")
    assert challenge_parameters(challenge.headers[0][1])["resource_metadata"] == url


def test_a_challenge_without_credentials_has_no_error_code() -> None:
    challenge = PUBLIC.challenge(make_request(), "expected a token")
    assert challenge.status == 401
    ((name, value),) = challenge.headers
    assert name == b"www-authenticate"
    assert challenge_parameters(value) == {
        "resource_metadata": f"https://gw.example{WELL_KNOWN_PATH}/mcp",
        "scope": "mcp:tools b",
    }


@pytest.mark.parametrize(
    ("fault", "status"),
    [("invalid_request", 400), ("invalid_token", 401), ("insufficient_scope", 403)],
)
def test_an_error_has_its_status_and_code(fault: AuthErrorCode, status: int) -> None:
    challenge = PUBLIC.challenge(make_request(), 'a "quoted" \\ reason', fault)
    assert challenge.status == status
    found = challenge_parameters(challenge.headers[0][1])
    assert (found["error"], found["error_description"]) == (fault, "a 'quoted' / reason")


def test_an_unavailable_issuer_is_a_503() -> None:
    challenge = PUBLIC.challenge(make_request(), "later", "unavailable")
    assert (challenge.status, challenge.headers) == (503, ((b"retry-after", b"5"),))


def test_a_host_cannot_inject_into_a_header() -> None:
    challenge = ProtectedResource().challenge(make_request(host='x", error="no\\'), "no")
    assert challenge_parameters(challenge.headers[0][1]).keys() == {"resource_metadata"}


FAST_POLLING = AuthenticatorLimits(key_poll_interval=0.001)


class AuthenticatorSetup:
    """An authenticator, its clock, and the rejections that it reported."""

    def __init__(
        self,
        keys: Path | None = None,
        source: KeySource | None = None,
        max_failures: int = 60,
        *,
        limits: AuthenticatorLimits = FAST_POLLING,
        failure_clock: Callable[[], float] = monotonic,
    ) -> None:
        self.clock = Clock()
        self.rejections: list[tuple[str, str]] = []
        expected = ClaimsValidator(issuer=ISSUER, audiences=frozenset((AUDIENCE,)))
        tokens = JwtVerifier(expected, source or SharedSecret(secret_key(SECRET)))
        self.verifier = TokenVerifier(tokens, ApiKeyFile(keys) if keys else None, self.clock)
        self.authenticator = TokenAuthenticator(
            self.verifier,
            ProtectedResource(),
            max_failures,
            lambda address, reason: self.rejections.append((address, reason)),
            limits=limits,
            failure_clock=failure_clock,
        )

    async def authenticate(self, request: HttpRequest) -> Principal | Challenge:
        """Do as the HTTP endpoint does."""
        return self.authenticator.cached_principal(
            request
        ) or await self.authenticator.authenticate(request)


def with_token(made: str, **headers: str) -> HttpRequest:
    return make_request(authorization=f"Bearer {made}", **headers)


async def test_a_token_is_verified_once_and_then_cached() -> None:
    setup = AuthenticatorSetup()
    request = with_token(token())
    assert setup.authenticator.cached_principal(request) is None
    result = await setup.authenticator.authenticate(request)
    assert isinstance(result, Principal)
    assert setup.authenticator.cached_principal(with_token(token())) == result
    assert setup.authenticator.cached_principal(make_request()) is None
    assert setup.rejections == []


async def test_a_cached_token_ends_with_its_lifetime() -> None:
    setup = AuthenticatorSetup()
    request = with_token(token(exp=int(NOW) + 60))
    await setup.authenticate(request)
    setup.clock.now += 89
    assert setup.authenticator.cached_principal(request) is not None
    setup.clock.now += 1
    assert setup.authenticator.cached_principal(request) is None
    result = await setup.authenticate(request)
    assert isinstance(result, Challenge)
    assert (result.status, result.reason) == (401, "the token has expired")


async def test_the_token_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = AuthenticatorSetup(limits=AuthenticatorLimits(max_cached_tokens=3))
    requests = [with_token(token(sub=f"s{number}")) for number in range(5)]
    for request in requests:
        await setup.authenticate(request)
    known = [setup.authenticator.cached_principal(request) is not None for request in requests]
    assert known == [False, False, True, True, True]
    assert AuthenticatorLimits().max_cached_tokens >= 1024


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR", "Bearer   "])
async def test_the_scheme_is_case_insensitive(scheme: str) -> None:
    setup = AuthenticatorSetup()
    assert isinstance(
        await setup.authenticate(make_request(authorization=f"{scheme} {token()}")), Principal
    )


MALFORMED: dict[str, str] = {
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


@pytest.mark.parametrize("odd", MALFORMED)
async def test_malformed_credentials_are_rejected(odd: str) -> None:
    setup = AuthenticatorSetup()
    made = token()
    await setup.authenticate(with_token(made))  # a cached token makes no difference
    result = await setup.authenticate(make_request(authorization=MALFORMED[odd].format(made, made)))
    assert isinstance(result, Challenge)
    assert result.status == 401
    assert made not in result.reason
    assert not any(made.encode() in value for _, value in result.headers)


async def test_two_authorization_headers_are_rejected_even_if_equal() -> None:
    setup = AuthenticatorSetup()
    request = with_token(token())
    await setup.authenticate(request)
    twice = with_head(request, repeated=frozenset((b"authorization",)))
    assert setup.authenticator.cached_principal(twice) is None
    result = await setup.authenticator.authenticate(twice)
    assert isinstance(result, Challenge)
    assert result.status == 400
    assert b'error="invalid_request"' in result.headers[0][1]


@pytest.mark.parametrize("query", ["access_token={}", "a=b&access_token={}"])
async def test_a_token_in_the_url_is_rejected(query: str) -> None:
    setup = AuthenticatorSetup()
    result = await setup.authenticate(with_head(make_request(), query=query.format(token())))
    assert isinstance(result, Challenge)
    assert (result.status, "not in the URL" in result.reason) == (400, True)


async def test_a_token_in_a_cookie_or_another_header_is_ignored() -> None:
    setup = AuthenticatorSetup()
    for name in ("cookie", "x_api_key", "proxy_authorization", "x_forwarded_authorization"):
        result = await setup.authenticate(make_request(**{name: f"Bearer {token()}"}))
        assert isinstance(result, Challenge)
        assert result.status == 401


async def test_a_request_without_credentials_gets_no_error_code_and_does_not_count() -> None:
    setup = AuthenticatorSetup(max_failures=2)
    for _ in range(10):
        result = await setup.authenticate(make_request())
        assert isinstance(result, Challenge)
        assert result.status == 401
        assert b"error" not in result.headers[0][1]
    assert setup.rejections == [("127.0.0.1", "no token")] * 2  # not more often than one may fail


async def test_repeated_failures_delay_only_their_address() -> None:
    time = Clock()
    setup = AuthenticatorSetup(max_failures=3, failure_clock=time)
    bad = with_token(token(iss="https://evil.example"))
    for _ in range(3):
        result = await setup.authenticate(bad)
        assert isinstance(result, Challenge)
        assert result.status == 401
    result = await setup.authenticate(bad)
    assert isinstance(result, Challenge)
    assert (result.status, result.headers) == (429, ((b"retry-after", b"20"),))
    from_other_address = await setup.authenticate(with_head(bad, address="192.0.2.9"))
    assert isinstance(from_other_address, Challenge)
    assert from_other_address.status == 401
    time.now += 20
    result = await setup.authenticate(bad)
    assert isinstance(result, Challenge)
    assert result.status == 401
    reason = "the token is from another issuer"
    assert setup.rejections.count(("127.0.0.1", reason)) == 4


@pytest.mark.parametrize("api_key", [False, True])
async def test_a_valid_token_is_accepted_from_an_address_that_sent_invalid_ones(
    api_key: bool, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "one", "Ada", ("dev",), None)
    setup = AuthenticatorSetup(path, max_failures=3, failure_clock=Clock())
    for _ in range(10):
        await setup.authenticate(with_token("tlk_nonsense"))
        await setup.authenticate(with_token(token(iss="https://evil.example")))
    good = with_token(key if api_key else token())
    assert isinstance(await setup.authenticate(good), Principal)


async def test_the_signature_checks_of_a_throttled_address_are_limited() -> None:
    time, limits = Clock(), AuthenticatorLimits(max_throttled_checks=5)
    setup = AuthenticatorSetup(max_failures=3, failure_clock=time, limits=limits)
    known = with_token(token(sub="known"))
    assert isinstance(await setup.authenticate(known), Principal)
    for number in range(3 + 5):
        await setup.authenticate(with_token(token(iss="https://evil.example", sub=str(number))))
    checks = count_checks(setup)
    refused = await setup.authenticate(with_token(token(sub="new")))
    assert isinstance(refused, Challenge)
    assert (refused.status, refused.headers) == (429, ((b"retry-after", b"1"),))
    assert checks == []
    from_other_address = with_head(with_token(token(sub="new")), address="192.0.2.9")
    assert isinstance(await setup.authenticate(from_other_address), Principal)
    time.now += 0.2
    assert isinstance(await setup.authenticate(with_token(token(sub="next"))), Principal)
    assert len(checks) == 2


async def test_the_signature_checks_of_all_throttled_addresses_are_limited() -> None:
    limits = AuthenticatorLimits(max_total_throttled_checks=5)
    setup = AuthenticatorSetup(max_failures=1, failure_clock=Clock(0.0), limits=limits)
    bad = with_token(token(iss="https://evil.example"))
    addresses = [f"192.0.2.{number}" for number in range(10)]
    for address in addresses:
        await setup.authenticate(with_head(bad, address=address))
    checks = count_checks(setup)
    for address in addresses:
        await setup.authenticate(with_head(bad, address=address))
    assert len(checks) == 5


async def test_after_a_key_change_known_clients_of_a_throttled_address_go_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys.json"
    keys = [add_key(path, name, "Ada", ("dev",), None) for name in ("one", "two")]
    limits = AuthenticatorLimits(max_throttled_checks=1, key_poll_interval=0.001)
    setup = AuthenticatorSetup(path, max_failures=1, failure_clock=Clock(), limits=limits)
    requests = [with_token(key) for key in keys]
    for request in requests:
        assert isinstance(await setup.authenticate(request), Principal)
    for _ in range(3):
        await setup.authenticate(with_token(token(aud="x")))
    async with polling(setup):
        revoke_key(path, "two")
        await wait_until_cached(setup, requests[1], known=False)
        assert isinstance(await setup.authenticate(requests[0]), Principal)
        checks = count_checks(setup)
        for _ in range(2):  # the second time the revoked key is not known any more
            result = await setup.authenticate(requests[1])
            assert isinstance(result, Challenge)
            assert result.status == 429
        assert len(checks) == 1


async def test_the_token_of_an_open_stream_is_never_throttled() -> None:
    setup = AuthenticatorSetup(
        max_failures=1, failure_clock=Clock(), limits=AuthenticatorLimits(max_throttled_checks=1)
    )
    stream, expired = with_token(token()), with_token(token(exp=int(NOW) - 100))
    for number in range(3):
        await setup.authenticate(with_token(token(aud="x", sub=str(number))))
    for _ in range(3):
        assert isinstance(await setup.authenticator.reauthenticate(stream), Principal)
        result = await setup.authenticator.reauthenticate(expired)
        assert isinstance(result, Challenge)
        assert result.status == 401


async def test_the_tokens_known_from_before_a_key_change_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    limits = AuthenticatorLimits(
        max_cached_tokens=3, max_throttled_checks=1, key_poll_interval=0.001
    )
    setup = AuthenticatorSetup(path, max_failures=1, failure_clock=Clock(), limits=limits)
    requests = [with_token(token(sub=f"s{number}")) for number in range(4)]
    for request in requests[:3]:
        await setup.authenticate(request)
    async with polling(setup):
        add_key(path, "one", "Ada", (), None)
        await wait_until_cached(setup, requests[2], known=False)
        await setup.authenticate(requests[3])
        add_key(path, "two", "Ada", (), None)
        await wait_until_cached(setup, requests[3], known=False)
        for number in range(3):
            await setup.authenticate(with_token(token(aud="x", sub=str(number))))
        results = [await setup.authenticate(request) for request in requests]
    assert [isinstance(result, Principal) for result in results] == [False, True, True, True]


def count_checks(setup: AuthenticatorSetup) -> list[str]:
    """Return a list to which each verified token is added from now on."""
    checks, verifier = list[str](), setup.verifier
    verify = verifier.verify

    async def count(token: str) -> VerifiedIdentity:
        checks.append(token)
        return await verify(token)

    verifier.verify = count
    return checks


async def test_a_rejected_token_is_verified_again() -> None:
    setup = AuthenticatorSetup()
    request = with_token(token(nbf=int(NOW) + 100))
    assert isinstance(await setup.authenticate(request), Challenge)
    setup.clock.now += 100
    assert isinstance(await setup.authenticate(request), Principal)


async def test_rejections_are_reported_without_the_token() -> None:
    setup = AuthenticatorSetup()
    made = token(aud="other")
    await setup.authenticate(with_token(made))
    assert setup.rejections == [("127.0.0.1", "the token is for another audience")]


@asynccontextmanager
async def polling(setup: AuthenticatorSetup) -> AsyncGenerator[None]:
    setup.authenticator.start()
    setup.authenticator.start()  # idempotent
    try:
        yield
    finally:
        setup.authenticator.stop()
        await settle()


async def wait_until_cached(setup: AuthenticatorSetup, request: HttpRequest, known: bool) -> None:
    while (setup.authenticator.cached_principal(request) is not None) is not known:
        await asyncio.sleep(0)


@tidy
async def test_a_revoked_key_leaves_the_cache_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "ci", "robot", ("dev",), None)
    setup = AuthenticatorSetup(path)
    request = with_token(key)
    async with polling(setup):
        assert isinstance(await setup.authenticate(request), Principal)
        revoke_key(path, "ci")
        await wait_until_cached(setup, request, known=False)
        result = await setup.authenticate(request)
        assert isinstance(result, Challenge)
        assert result.reason == "the key is revoked"


@tidy
async def test_a_new_key_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.json"
    setup = AuthenticatorSetup(path, max_failures=100_000)
    async with polling(setup):
        key = add_key(path, "ci", "robot", ("dev",), None)
        while not isinstance(await setup.authenticate(with_token(key)), Principal):
            await asyncio.sleep(0)


@tidy
async def test_tokens_of_a_removed_issuer_key_leave_the_cache() -> None:
    async with key_server(public("ES256", "a")) as server:
        source = RemoteKeySet(server.url, clock=(time := Clock()))
        setup = AuthenticatorSetup(source=source)
        request = with_token(token("ES256", "a"))
        assert isinstance(await setup.authenticate(request), Principal)
        server.body = b'{"keys": []}'
        time.now += 300
        assert isinstance(await setup.authenticate(with_token(token("ES256", "b"))), Challenge)
        assert isinstance(await setup.authenticate(request), Challenge)


@tidy
async def test_keys_are_fetched_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with key_server(public("ES256", "a")) as server:
        setup = AuthenticatorSetup(source=RemoteKeySet(server.url))
        async with polling(setup):
            while not server.asked:
                await asyncio.sleep(0)
        assert server.asked == 1


@tidy
async def test_an_unreachable_issuer_does_not_count_as_a_failure() -> None:
    async with key_server() as server:
        server.status = "500 Internal Server Error"
        setup = AuthenticatorSetup(source=RemoteKeySet(server.url), max_failures=1)
        for _ in range(3):
            result = await setup.authenticate(with_token(token("ES256", "a")))
            assert isinstance(result, Challenge)
            assert result.status == 503


@tidy
async def test_an_exception_does_not_stop_polling(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    polls = 0

    class Broken(SharedSecret):
        async def poll(self) -> None:
            nonlocal polls
            polls += 1
            raise RuntimeError("oops")

    setup = AuthenticatorSetup(source=Broken(secret_key(SECRET)))
    async with polling(setup):
        while polls < 3:
            await asyncio.sleep(0)
    assert "oops" in caplog.text


@tidy
async def test_a_poll_failure_is_logged_once_until_it_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    polls = iter(["a", "a", "a", "b", "b", "", "b", "b"])
    done = asyncio.Event()

    class Fickle(SharedSecret):
        async def poll(self) -> None:
            word = next(polls, None)
            if word is None:
                done.set()
            elif word:
                raise RuntimeError(word)

    setup = AuthenticatorSetup(source=Fickle(secret_key(SECRET)))
    async with hang_guard(), polling(setup):
        await done.wait()
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert logged == ["a", "b", "b"]


async def test_stopping_clears_the_cache() -> None:
    setup = AuthenticatorSetup()
    request: Any = with_token(token())
    await setup.authenticate(request)
    setup.authenticator.stop()
    assert setup.authenticator.cached_principal(request) is None
