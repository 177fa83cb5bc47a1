"""The session endpoint and its store: ownership, expiry and limits of stored sessions."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.endpoints.exchanges import (
    BlockedMethod,
    FakeMcpService,
    rpc_notification,
    rpc_request,
)
from tests.endpoints.test_session import EndpointClient, opened
from tests.tasks import settle, tidy
from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.principal_limits import InFlightLimiter
from trunkline.gateway.stores import (
    MemorySessionStore,
    SessionLimit,
    SessionLimits,
    SessionRecord,
    SessionStore,
)
from trunkline.jsonrpc import RpcError

pytestmark = pytest.mark.at_once


@asynccontextmanager
async def stored(store: SessionStore, **settings: Any) -> AsyncGenerator[EndpointClient]:
    """Yield a client of an endpoint with this store."""
    client = EndpointClient(FakeMcpService(), InFlightLimiter(100, 100), store=store, **settings)
    try:
        yield client
    finally:
        await client.endpoint.aclose()
        assert len(client.endpoint) == 0
        assert len(client.service.closed) == len(client.service.sessions)


class WatchedStore(MemorySessionStore):
    """A store that counts its calls, and returns the records for tests."""

    def __init__(self) -> None:
        super().__init__()
        self.finds = self.saves = 0

    def find(self, session_id: str, owner: str, now: float) -> SessionRecord | None:
        self.finds += 1
        return super().find(session_id, owner, now)

    def save(self, record: SessionRecord, now: float) -> None:
        self.saves += 1
        super().save(record, now)

    def record(self, session_id: str) -> SessionRecord:
        found = super().find(session_id, "p", 0.0)
        assert found is not None
        return found


class DistantStore(MemorySessionStore):
    """A store that answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.reachable = asyncio.Event()
        self.error: Exception | None = None
        self.created: list[SessionRecord] = []

    def create(  # type: ignore[override]
        self, record: SessionRecord, limits: SessionLimits, now: float
    ) -> Awaitable[SessionLimit | None]:
        self.created.append(record)
        return self._later(super().create(record, limits, now))

    def find(  # type: ignore[override]
        self, session_id: str, owner: str, now: float
    ) -> Awaitable[SessionRecord | None]:
        return self._later(super().find(session_id, owner, now))

    async def _later(self, answer: Any) -> Any:
        await self.reachable.wait()
        if self.error is not None:
            raise self.error
        return answer


def ping(client: EndpointClient, session: str, principal: str = "p") -> int:
    return client.post(rpc_request(1, "ping"), session, principal).status


# Ownership


@pytest.mark.holds("S3.10", "C25")
@tidy
async def test_an_id_is_long_random_and_printable() -> None:
    async with opened(max_sessions=100) as client:
        ids = {client.begin() for _ in range(100)}
        assert len(ids) == 100
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", id) for id in ids)


@pytest.mark.holds("S3.11", "S3.14")
@tidy
async def test_a_session_is_found_by_its_exact_id() -> None:
    store = WatchedStore()
    async with stored(store) as client:
        session = client.begin()
        assert [ping(client, id) for id in (session, "x" * 32, session[:-1])] == [200, 404, 404]
        record = store.record(session)
        assert (record.id, record.owner, record.created_at) == (session, "p", 0.0)
        assert record.client.revision == "2025-11-25"


@pytest.mark.holds("C25")
@tidy
async def test_for_another_principal_a_session_does_not_exist_and_is_not_touched() -> None:
    async with opened(session_idle=9.0) as client:
        session = client.begin("p")
        for client.now in (5.0, 9.0):
            assert ping(client, session, "q") == 404
        client.now = 9.1
        assert ping(client, session, "p") == 404


@pytest.mark.holds("S3.13")
@tidy
async def test_a_session_is_removed_once() -> None:
    async with opened(max_sessions=1) as client:
        session = client.begin()
        assert [client.delete(session).status for _ in range(2)] == [204, 404]
        assert ping(client, session) == 404
        client.begin()  # there is room again


# Expiry


@pytest.mark.holds("C26")
@tidy
async def test_a_session_expires_when_it_is_idle() -> None:
    async with opened(session_idle=9.0) as client:
        session = client.begin()
        for client.now in (9.0, 18.0):  # in use: it does not expire
            assert ping(client, session) == 200
        client.now = 27.1
        assert ping(client, session) == 404
        client.endpoint.expire_sessions()
        assert len(client.endpoint) == 0


@pytest.mark.holds("C26")
@tidy
async def test_an_old_session_expires_even_if_it_is_used() -> None:
    async with opened(session_idle=9.0, session_max_age=20.0) as client:
        session = client.begin()
        for client.now in (8.0, 16.0, 20.0):
            assert ping(client, session) == 200
        client.now = 20.1
        assert ping(client, session) == 404
        client.endpoint.expire_sessions()
        assert len(client.endpoint) == 0


@pytest.mark.holds("C26")
@tidy
async def test_expiry_ends_only_idle_sessions() -> None:
    async with opened(session_idle=10.0) as client:
        old = client.begin()
        client.now = 5.0
        new = client.begin()
        for client.now in (11.0, 11.0):
            client.endpoint.expire_sessions()
            assert (ping(client, old), ping(client, new)) == (404, 200)
        assert len(client.endpoint) == 1


@pytest.mark.holds("C26")
@tidy
async def test_a_busy_session_is_not_idle_but_ages() -> None:
    blocked = BlockedMethod()
    async with opened(
        FakeMcpService(wait=blocked), session_idle=10.0, session_max_age=100.0
    ) as client:
        session = client.begin()
        exchange = client.post(rpc_request(7), session)
        for client.now in (50.0, 90.0):
            client.endpoint.expire_sessions()
            assert ping(client, session) == 200
        client.now = 101.0
        client.endpoint.expire_sessions()
        await exchange.answered.wait()
        assert len(client.endpoint) == 0


@pytest.mark.holds("C26")
@tidy
async def test_the_number_of_sessions_is_limited() -> None:
    async with opened(session_idle=10.0, max_sessions=1) as client:
        client.begin("q")
        client.now = 99.0
        exchange = client.post(rpc_request(1, "initialize"))  # the first expired, but is not ended
        assert exchange.status == 503
        assert "1 sessions (http.max_sessions)" in exchange.json["error"]["message"]
        client.endpoint.expire_sessions()
        client.begin()
        assert len(client.endpoint) == 1


@tidy
async def test_new_limits_apply_at_once() -> None:
    async with opened(session_idle=10.0, session_max_age=100.0, max_sessions=2) as client:
        old, _ = client.begin(), client.begin()
        client.endpoint.reconfigure(
            EndpointSettings(session_idle=20.0, session_max_age=30.0, max_sessions=1)
        )
        assert len(client.endpoint) == 2
        client.now = 15.0
        assert ping(client, old) == 200
        assert client.post(rpc_request(1, "initialize"), principal="q").status == 503
        client.now = 31.0
        assert ping(client, old) == 404


@tidy
async def test_a_principal_at_its_limit_loses_its_longest_idle_session() -> None:
    async with opened(max_sessions=9, max_sessions_per_principal=2) as client:
        other = client.begin("q")
        client.now = 1.0
        first, second = client.begin(), client.begin()
        client.now = 2.0
        assert ping(client, first) == 200
        third = client.begin()
        found = [ping(client, each) for each in (first, second, third)]
        assert (found, ping(client, other, "q")) == ([200, 404, 200], 200)
        assert client.service.limits == [("p", "http.max_sessions_per_principal", True)]


@tidy
async def test_a_session_in_use_is_not_ended_for_a_new_one() -> None:
    blocked = BlockedMethod()
    limits = InFlightLimiter(100, 100)
    service = FakeMcpService(wait=blocked)
    async with opened(service, limits, max_sessions_per_principal=2) as client:
        running, listening = client.begin(), client.begin()
        call = client.post(rpc_request(1, "wait"), running)
        client.get(listening)
        await blocked.started.wait()
        refused = client.post(rpc_request(1, "initialize"))
        assert (refused.status, refused.code) == (429, -32603)
        assert refused.headers[b"retry-after"] == b"1"
        assert refused.json["error"]["data"] == {"limit": "http.max_sessions_per_principal"}
        assert "2 sessions, all of them in use" in refused.json["error"]["message"]
        assert client.service.limits == [("p", "http.max_sessions_per_principal", False)]
        blocked.unblocked.set()
        await call.answered.wait()
        client.begin()
        assert [ping(client, each) for each in (running, listening)] == [404, 200]


@tidy
async def test_with_a_store_that_answers_later_the_longest_idle_session_ends_too() -> None:
    store = DistantStore()
    store.reachable.set()
    async with stored(store, max_sessions_per_principal=1) as client:
        exchanges = [client.post(rpc_request(0, "initialize")) for _ in range(1)]
        await settle()
        exchanges.append(client.post(rpc_request(0, "initialize")))
        await settle()
        assert [exchange.status for exchange in exchanges] == [200, 200]
        assert len(client.endpoint) == 1
        session = exchanges[1].headers[b"mcp-session-id"].decode()
        client.get(session)
        await settle()
        refused = client.post(rpc_request(0, "initialize"))
        await settle()
        assert refused.status == 429


# What is stored


@tidy
async def test_the_deadline_is_saved_only_when_it_is_near() -> None:
    store = WatchedStore()
    async with stored(store, session_idle=100.0) as client:
        session = client.begin()
        for client.now in range(1, 50):
            assert ping(client, session) == 200
        assert (store.finds, store.saves) == (49, 0)
        for client.now in range(50, 101):
            assert ping(client, session) == 200
        assert store.saves == 1
        assert store.record(session).expires_at >= 150.0


@tidy
async def test_what_the_client_changes_is_saved() -> None:
    store = WatchedStore()
    async with stored(store) as client:
        session = client.begin()
        (mcp_session,) = client.service.sessions
        mcp_session.log_level = "debug"
        mcp_session.on_changed()
        assert store.record(session).client.log_level == "debug"
        assert client.delete(session).status == 204
        mcp_session.on_changed()  # too late
        assert store.find(session, "p", 0.0) is None


@tidy
async def test_a_session_that_another_replica_has_taken_over_is_not_found() -> None:
    store = WatchedStore()
    async with stored(store) as client:
        session = client.begin()
        taken_over = replace(store.record(session), epoch=2)
        store.save(taken_over, 0.0)
        assert ping(client, session) == 404
        (mcp_session,) = client.service.sessions
        mcp_session.on_changed()
        client.endpoint.expire_sessions()
    assert store.record(session) == taken_over  # what the old replica did changed nothing


# A store that answers later


@tidy
async def test_requests_wait_for_a_distant_store() -> None:
    store = DistantStore()
    async with stored(store) as client:
        exchange = client.post(rpc_request(0, "initialize"))
        await settle()
        assert exchange.status == 0
        store.reachable.set()
        await settle()
        session = exchange.headers[b"mcp-session-id"].decode()
        store.reachable.clear()
        exchanges = [
            client.post(rpc_request(1, "ping"), session),
            client.post(rpc_notification("here"), session),
            client.get(session),
            client.post(rpc_request(2, "ping"), session, "q"),
        ]
        await settle()
        assert [each.status for each in exchanges] == [0, 0, 0, 0]
        store.reachable.set()
        await settle()
        assert [each.status for each in exchanges] == [200, 202, 200, 404]
        assert len(client.opened) == 1
        deletions = [client.delete(session) for _ in range(2)]
        await settle()
        assert [each.status for each in deletions] == [204, 404]


@tidy
async def test_a_store_that_fails_answers_with_an_error() -> None:
    store = DistantStore()
    async with stored(store) as client:
        store.reachable.set()
        exchange = client.post(rpc_request(0, "initialize"))
        await settle()
        session = exchange.headers[b"mcp-session-id"].decode()
        store.error = RpcError.internal_error("the store is gone")
        failed = client.post(rpc_request(0, "initialize"))
        lost = client.post(rpc_request(1, "ping"), session)
        await settle()
        assert (failed.status, failed.code) == (200, -32603)
        assert (lost.status, lost.code) == (500, -32603)
        assert len(client.endpoint) == 1


@pytest.mark.parametrize("answers", [False, True])
@tidy
async def test_closing_leaves_no_session_that_was_being_opened(answers: bool) -> None:
    store = DistantStore()
    async with stored(store, close_timeout=0.01) as client:
        exchange = client.post(rpc_request(0, "initialize"))
        await settle()
        closing = asyncio.create_task(client.endpoint.aclose())
        await asyncio.sleep(0)
        if answers:
            store.reachable.set()
        await closing
        store.reachable.set()
        assert exchange.status == (503 if answers else 0)
        assert b"mcp-session-id" not in exchange.headers
    limits = SessionLimits(1, 1)
    assert await store.create(store.created[0], limits, now=0.0) is None  # there is room again
