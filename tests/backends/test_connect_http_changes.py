"""Servers behind a URL that change: access granted late, replaced, upgraded, rolled back."""

import asyncio
from pathlib import Path

import pytest

from tests.backends.http_clients import SHORT_LIMITS
from tests.backends.http_servers import (
    BlockedReply,
    FakeSessionServer,
    FakeStatelessServer,
    fails,
    rejects,
)
from tests.backends.test_connect_http import HEADERS, Chameleon, at, let_probe_expire, old
from tests.backends.test_stateless_server import Listener
from tests.contexts import start_call
from tests.tasks import HANG_TIMEOUT, LoopClock, stop, tidy
from trunkline.backends.connect import HttpConnector
from trunkline.backends.era_cache import EraCache, EraFile
from trunkline.jsonrpc import ConnectionLost, RpcError


@tidy
@pytest.mark.holds("T108")
async def test_a_server_replaced_by_one_with_the_other_protocol_is_detected_at_once() -> None:
    there = Chameleon(FakeSessionServer(tools=[]))
    async with at(there) as place:
        assert await place.era() == "session"
        there.web = modern = FakeStatelessServer(tools=[])
        assert await place.era() == "stateless"
        assert modern.methods == ["initialize", "GET", "server/discover"]
        there.web = web = FakeSessionServer(tools=[])
        assert await place.era() == "session"
        assert web.methods[:2] == ["server/discover", "initialize"]


@tidy
@pytest.mark.holds("T108")
@pytest.mark.parametrize("refusal", ["401 Who", "403 No", "429 Later", "500 Oops", "503 Later"])
async def test_a_silent_session_server_is_not_taken_for_a_stateless_one(
    refusal: str,
) -> None:
    web = FakeSessionServer(tools=[])
    async with at(web) as place:
        assert await place.era() == "session"
        web.received.clear()
        web.reactions["initialize"] = rejects(refusal)
        assert f"HTTP {refusal[:3]}" in await place.refusal()
    assert web.methods == ["initialize"]


@tidy
async def test_a_server_that_refuses_both_protocols_fails_with_the_initialize_error() -> None:
    web = old(fails(-32601, "no such method"))
    async with at(web) as place:
        assert await place.era() == "session"
        web.reactions["initialize"] = fails(-32603, "out of order")
        assert await place.refusal() == "out of order (-32603)"
    assert web.methods[-2:] == ["initialize", "server/discover"]


@tidy
@pytest.mark.holds("T107")
@pytest.mark.parametrize("web", [FakeSessionServer(tools=[]), FakeStatelessServer(tools=[])])
async def test_the_protocol_is_decided_after_access_is_granted(
    web: FakeSessionServer, tmp_path: Path
) -> None:
    """A token that is accepted after a first rejection."""
    closed = old(rejects("401 Unauthorized", b"", b"www-authenticate: Bearer"))
    there = Chameleon(closed)
    async with at(there) as place:
        store = EraFile(tmp_path, flush_timeout=HANG_TIMEOUT)
        cache = EraCache(store, "k")
        place.target = HttpConnector(place.url, HEADERS, "auto", cache, limits=SHORT_LIMITS)
        assert "HTTP 401" in await place.refusal()
        assert closed.methods == ["server/discover"]
        assert await store.get("k") is None
        there.web = web
        era = await place.era()
        found = await store.get("k")
        await store.aclose()
    assert era == ("stateless" if isinstance(web, FakeStatelessServer) else "session")
    assert found is not None
    assert found.era == era


@tidy
async def test_a_silent_server_is_probed_again_after_a_restart(tmp_path: Path) -> None:
    clock, web = LoopClock(), old(BlockedReply())
    async with at(web) as place:
        for _ in range(2):
            store = EraFile(tmp_path, flush_timeout=HANG_TIMEOUT)
            cache = EraCache(store, "k")
            place.target = HttpConnector(place.url, HEADERS, "auto", cache, limits=SHORT_LIMITS)
            era = asyncio.create_task(place.era())
            await let_probe_expire(web, clock)
            assert await era == "session"
            assert await place.era() == "session"
            await store.aclose()
    assert web.methods.count("server/discover") == 2  # once for each gateway


@tidy
@pytest.mark.holds("T108")
async def test_a_server_with_a_changed_version_is_probed_again() -> None:
    there = Chameleon(old(fails(-32601)))
    async with at(there) as place:
        assert await place.era() == "session"
        there.web = newer = old(fails(-32601))
        newer.server = {"name": "web", "version": "9"}
        assert await place.era() == "session"
        assert newer.received_for("server/discover") == []  # its session works, so it is not probed
        assert await place.era() == "session"
        assert await place.era() == "session"
        assert len(newer.received_for("server/discover")) == 1


@tidy
async def test_a_cancelled_connection_attempt_over_http_invalidates_the_cache() -> None:
    hanging = FakeSessionServer()
    hanging.reactions["initialize"] = hold = BlockedReply()
    there = Chameleon(FakeSessionServer())
    async with at(there) as place:
        assert await place.era() == "session"
        there.web = hanging
        opening = asyncio.create_task(place.open())
        await hold.started.wait()
        await stop(opening)
        there.web = FakeStatelessServer()
        assert await place.era() == "stateless"


@tidy
async def test_a_server_replaced_while_in_use_ends_the_connection() -> None:
    there = Chameleon(FakeSessionServer())
    async with at(there) as place:
        for web in (FakeStatelessServer(), FakeSessionServer(), FakeStatelessServer()):
            backend = await place.open()
            there.web = web
            listener = Listener()
            with pytest.raises((RpcError, ConnectionLost)):
                await start_call(backend, listener.call({"name": "t"}))
            await backend.wait_ended()
            await backend.aclose()
