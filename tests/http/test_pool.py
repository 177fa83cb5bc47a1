"""The connection pool: reuse, limits, waiting, addresses and TLS."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.scripted_server import (
    HOST,
    ScriptedConnection,
    ScriptedServer,
    answers,
    client_tls,
    ok,
    on_both_loops,
    scripted_server,
    server_tls,
)
from tests.tasks import LoopClock, is_stuck, settle, stop, tidy
from trunkline.http.address import HttpUrl, is_public_address, parse_http_url
from trunkline.http.client_connection import ClientConnection, ClientLimits, HttpResponse
from trunkline.http.pool import ConnectionPool, ServerUnreachable
from trunkline.jsonrpc import ConnectionLost

ASK = b"GET / HTTP/1.1\r\n\r\n"
ONE = ClientLimits(max_connections=1)


@asynccontextmanager
async def pool_for(
    server: ScriptedServer | HttpUrl,
    limits: ClientLimits = ClientLimits(),  # noqa: B008
    tls: ssl.SSLContext | None = None,
    allow: Callable[[str], bool] | None = None,
) -> AsyncGenerator[ConnectionPool]:
    origin = parse_http_url(server.url) if isinstance(server, ScriptedServer) else server
    pool = ConnectionPool(origin, limits, tls, allow)
    try:
        yield pool
    finally:
        await pool.aclose()


async def ask(connection: ClientConnection) -> HttpResponse:
    response = HttpResponse(connection)
    connection.send(ASK, b"", response)
    await response.wait_head()
    return response


async def acquire_used(pool: ConnectionPool) -> ClientConnection:
    """Acquire a connection and use it."""
    connection = await pool.acquire()
    assert (await ask(connection)).status == 200
    return connection


async def idle(line: ScriptedConnection) -> None:
    """A script: answer every request."""
    while True:
        await line.request()
        await line.send(ok())


async def refusal(pool: ConnectionPool) -> str:
    with pytest.raises(ConnectionLost) as failure:
        await pool.acquire()
    ours = "client is closed" in str(failure.value) or "no free" in str(failure.value)
    assert isinstance(failure.value, ServerUnreachable) != ours
    return str(failure.value)


@on_both_loops
async def test_the_connection_used_last_is_used_first() -> None:
    async with scripted_server(idle) as server, pool_for(server) as pool:
        assert pool.take_idle() is None
        first, second = await pool.acquire(), await pool.acquire()
        await ask(second)
        await ask(first)
        assert pool.take_idle() is first
        assert await pool.acquire() is second
        assert pool.take_idle() is None
        assert len(server.lines) == 2


@on_both_loops
async def test_a_connection_closed_by_the_server_is_not_reused() -> None:
    async def leave(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(ok())

    async with scripted_server(leave, idle) as server, pool_for(server) as pool:
        connection = await acquire_used(pool)
        await server.wait_finished()
        while connection.is_usable():
            await asyncio.sleep(0)
        assert await acquire_used(pool) is not connection
        assert pool.take_idle() is not connection


@on_both_loops
async def test_a_connection_with_a_surplus_response_is_not_reused() -> None:
    more = asyncio.Event()

    async def repeat(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(ok())
        await more.wait()
        await line.send(ok())
        await line.wait_disconnected()

    async with scripted_server(repeat, idle) as server, pool_for(server) as pool:
        connection = await acquire_used(pool)
        more.set()
        await server.wait_finished()
        assert await acquire_used(pool) is not connection


@on_both_loops
async def test_an_idle_connection_is_closed_after_keep_alive() -> None:
    async with (
        scripted_server(idle) as server,
        pool_for(server, ClientLimits(keep_alive=0.02)) as pool,
    ):
        connection = await acquire_used(pool)
        await server.wait_finished()  # the script ends with the connection
        assert not connection.is_usable()
        assert pool.take_idle() is None


@on_both_loops
async def test_an_expired_connection_is_not_reused_before_it_is_closed() -> None:
    async with (
        scripted_server(idle) as server,
        pool_for(server, ClientLimits(keep_alive=0)) as pool,
    ):
        first = await acquire_used(pool)
        assert pool.take_idle() is None
        assert await acquire_used(pool) is not first


@tidy
async def test_without_connections_there_is_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    LoopClock()  # the timer does not fire, however slow the machine is
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_later = loop.call_later

    def spy(*given: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*given))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", spy)
    async with scripted_server(idle) as server, pool_for(server) as pool:
        connections = [await pool.acquire(), await pool.acquire()]
        assert [timer.cancelled() for timer in timers] == [False]
        for connection in connections:
            connection.discard()
        await server.wait_finished()
        await settle()
        assert [timer.cancelled() for timer in timers] == [True]
        await acquire_used(pool)
        assert [timer.cancelled() for timer in timers] == [True, False]


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nx"])
@on_both_loops
async def test_a_server_that_stalls_times_out(begin: bytes) -> None:
    limits = ClientLimits(idle_timeout=0.03) if begin else ClientLimits(head_timeout=0.02)
    async with scripted_server(answers(begin)) as server, pool_for(server, limits) as pool:
        response = await ask(await pool.acquire())
        reason = "no more of the body within 0.03 s" if begin else "no response within 0.02 s"
        with pytest.raises(ConnectionLost, match=f"^{server.name}: {reason}$"):
            raise response.failure() if not begin else await failure(response)
        await server.wait_finished()


async def failure(response: HttpResponse) -> ConnectionLost:
    try:
        await response.read()
    except ConnectionLost as reason:
        return reason
    pytest.fail("it was read")


@on_both_loops
async def test_requests_over_the_limit_get_the_next_idle_connection_in_order() -> None:
    async with (
        scripted_server(idle) as server,
        pool_for(server, ClientLimits(max_connections=2)) as pool,
    ):
        connections = [await pool.acquire(), await pool.acquire()]
        waiters = [asyncio.create_task(pool.acquire()) for _ in range(3)]
        assert await is_stuck(waiters[0])
        await ask(connections[1])
        assert await waiters[0] is connections[1]
        await ask(connections[0])
        assert await waiters[1] is connections[0]
        assert await is_stuck(waiters[2])
        connections[0].discard()
        assert await waiters[2] not in connections
        assert len(server.lines) == 3


@on_both_loops
async def test_waiting_too_long_for_a_connection_is_an_error() -> None:
    async with scripted_server(idle) as server, pool_for(server, ONE) as pool:
        connection = await pool.acquire()
        vars(pool)["_limits"] = ClientLimits(max_connections=1, connect_timeout=0.2)
        expected = "no free connection within 0.2 s, all 1 are in use"
        assert await refusal(pool) == f"{server.name}: {expected}"
        await ask(connection)
        assert pool.take_idle() is connection  # not reserved for the cancelled waiter


@on_both_loops
async def test_a_cancelled_waiter_passes_its_turn_on() -> None:
    async with scripted_server(answers()) as server, pool_for(server, ONE) as pool:
        connection = await pool.acquire()
        waiters = [asyncio.create_task(pool.acquire()) for _ in range(4)]
        assert await is_stuck(waiters[0])
        await stop(waiters[0])
        waiters[1].cancel()  # before a connection is free
        connection.send(ASK, b"", HttpResponse(connection))
        connection.data_received(ok())
        waiters[2].cancel()  # after it got a connection, before it runs
        assert await waiters[3] is connection
        ended = await asyncio.gather(*waiters[:3], return_exceptions=True)
        assert [type(end) for end in ended] == [asyncio.CancelledError] * 3


@on_both_loops
async def test_a_cancelled_waiter_passes_on_the_right_to_connect() -> None:
    async with scripted_server(idle) as server, pool_for(server, ONE) as pool:
        connection = await pool.acquire()
        for moment in range(6):
            waiters = [asyncio.create_task(pool.acquire()) for _ in range(2)]
            assert await is_stuck(waiters[0])
            connection.discard()
            for _ in range(moment):
                await asyncio.sleep(0)
            if waiters[0].done():
                waiters[0].result().discard()
            waiters[0].cancel()
            connection = await waiters[1]
            assert connection.is_usable()
            assert pool.connection_count == 1


@on_both_loops
async def test_cancelling_at_any_moment_leaves_no_connection_behind() -> None:
    async with scripted_server(idle) as server, pool_for(server, ONE) as pool:
        for moment in range(30):
            opening = asyncio.create_task(pool.acquire())
            for _ in range(moment):
                await asyncio.sleep(0)
            if opening.done():
                opening.result().discard()
            else:
                await stop(opening)
            while pool.connection_count:
                await asyncio.sleep(0)
        await acquire_used(pool)


@on_both_loops
async def test_a_connection_that_closes_before_its_waiter_runs_is_replaced() -> None:
    async with scripted_server(idle) as server, pool_for(server, ONE) as pool:
        connection = await pool.acquire()
        waiting = asyncio.create_task(pool.acquire())
        assert await is_stuck(waiting)
        await ask(connection)
        connection.data_received(b"surplus")
        assert await waiting is not connection


@on_both_loops
async def test_a_fresh_connection_replaces_an_idle_one_at_the_limit() -> None:
    async with scripted_server(idle) as server, pool_for(server, ONE) as pool:
        connection = await acquire_used(pool)
        other = await pool.acquire(fresh=True)
        assert other is not connection
        third = asyncio.create_task(pool.acquire(fresh=True))
        assert await is_stuck(third)
        await ask(other)
        assert await third is not other


@on_both_loops
async def test_a_refused_connection_is_reported_as_such() -> None:
    async with scripted_server(idle) as server:
        pass
    async with pool_for(server) as pool:
        assert await refusal(pool) == f"{server.name}: connection refused"
        assert pool.connection_count == 0


@on_both_loops
async def test_an_unknown_host_is_reported_as_such() -> None:
    async with pool_for(parse_http_url("http://nobody.invalid:81/")) as pool:
        assert (await refusal(pool)).startswith("nobody.invalid:81: the host is not known: ")


@on_both_loops
async def test_a_connection_attempt_times_out(tmp_path: Path) -> None:
    async def mute(line: ScriptedConnection) -> None:
        await line.wait_disconnected()

    async with scripted_server(mute) as server:
        origin = parse_http_url(server.url.replace("http:", "https:"))
        async with pool_for(origin, ClientLimits(connect_timeout=0.05), client_tls()) as pool:
            assert await refusal(pool) == f"{server.name}: no connection within 0.05 s"
            assert pool.connection_count == 0
        await server.wait_finished()


@on_both_loops
async def test_cancelling_while_connecting_leaves_nothing_behind(tmp_path: Path) -> None:
    async def mute(line: ScriptedConnection) -> None:
        await line.wait_disconnected()

    async with scripted_server(mute) as server:
        origin = parse_http_url(server.url.replace("http:", "https:"))
        async with pool_for(origin, tls=client_tls()) as pool:
            opening = asyncio.create_task(pool.acquire())
            while not server.lines:
                await asyncio.sleep(0)
            await stop(opening)
            await server.wait_finished()
            assert pool.connection_count == 0


@on_both_loops
async def test_a_server_that_closes_at_once_is_detected() -> None:
    async def hang_up(line: ScriptedConnection) -> None:
        line.reset()

    async with scripted_server(hang_up) as server, pool_for(server) as pool:
        try:
            response = await ask(await pool.acquire())
            reason: ConnectionLost = response.failure()
        except ConnectionLost as found:
            reason = found
        assert str(reason).startswith(f"{server.name}: ")
        await settle()
        assert pool.connection_count == 0


@on_both_loops
async def test_a_connection_that_closes_before_use_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_free(_: ClientConnection) -> bool:
        return False

    monkeypatch.setattr(ClientConnection, "is_usable", is_free)
    async with scripted_server(answers()) as server, pool_for(server) as pool:
        assert await refusal(pool) == f"{server.name}: the connection was closed at once"
        assert pool.connection_count == 0
        await server.wait_finished()


def resolver(*addresses: str) -> Callable[..., Awaitable[list[str]]]:
    async def resolve(*_: object) -> list[str]:
        return [*addresses]

    return resolve


@on_both_loops
async def test_the_second_address_is_tried_when_the_first_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trunkline.http.pool.resolve_host", resolver("127.0.0.2", HOST))
    async with scripted_server(idle) as server, pool_for(server) as pool:
        await acquire_used(pool)


@on_both_loops
async def test_only_allowed_addresses_are_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def allow(address: str) -> bool:
        asked.append(address)
        return address != HOST

    monkeypatch.setattr("trunkline.http.pool.resolve_host", resolver(HOST, "127.0.0.2"))
    async with scripted_server(idle) as server, pool_for(server, allow=allow) as pool:
        assert await refusal(pool) == f"{server.name}: connection refused"
        assert asked == [HOST, "127.0.0.2"]
        assert server.lines == []


@on_both_loops
async def test_a_private_server_is_rejected_if_only_public_ones_are_allowed() -> None:
    async with scripted_server(idle) as server, pool_for(server, allow=is_public_address) as pool:
        assert await refusal(pool) == f"{server.name}: its address is not allowed"
        assert server.lines == []


@on_both_loops
async def test_a_server_with_a_trusted_certificate_is_accepted(tmp_path: Path) -> None:
    async with (
        scripted_server(idle, tls=server_tls(tmp_path)) as server,
        pool_for(server, tls=client_tls()) as pool,
    ):
        assert await acquire_used(pool) is await acquire_used(pool)


@on_both_loops
async def test_the_name_is_verified_though_an_address_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_server(idle, tls=server_tls(tmp_path)) as server:
        good = HttpUrl(True, "localhost", server.port, "/")
        bad = HttpUrl(True, "127.0.0.2", server.port, "/")
        monkeypatch.setattr("trunkline.http.pool.resolve_host", resolver(HOST))
        async with pool_for(good, tls=client_tls()) as pool:
            await acquire_used(pool)
        async with pool_for(bad, tls=client_tls()) as pool:
            assert "certificate is not valid for '127.0.0.2'" in await refusal(pool)


@on_both_loops
async def test_an_untrusted_certificate_is_rejected(tmp_path: Path) -> None:
    async with scripted_server(idle, tls=server_tls(tmp_path)) as server, pool_for(server) as pool:
        expected = f"{server.name}: the certificate is not trusted: self-signed certificate"
        assert await refusal(pool) == expected


@on_both_loops
async def test_a_server_without_tls_is_reported_as_such() -> None:
    async def answer_anything(line: ScriptedConnection) -> None:
        await line.send(ok())
        await line.wait_disconnected()

    async with scripted_server(answer_anything) as server:
        origin = parse_http_url(server.url.replace("http:", "https:"))
        async with pool_for(origin, tls=client_tls()) as pool:
            assert (await refusal(pool)).startswith(f"{server.name}: TLS failed: ")


@on_both_loops
async def test_closing_fails_waiting_and_later_requests() -> None:
    async with scripted_server(answers(), idle) as server, pool_for(server, ONE) as pool:
        asked = asyncio.create_task(ask(await pool.acquire()))
        waiting = asyncio.create_task(pool.acquire())
        assert await is_stuck(waiting)
        await pool.aclose()
        assert pool.connection_count == 0
        assert str((await asked).failure()) == f"{server.name}: the client is closed"
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await waiting
        assert await refusal(pool) == f"{server.name}: the client is closed"
        await pool.aclose()
        assert pool.connection_count == 0


@on_both_loops
async def test_closing_fails_connection_attempts() -> None:
    async with scripted_server(idle) as server, pool_for(server) as pool:
        opening = asyncio.create_task(pool.acquire())
        await asyncio.sleep(0)
        await pool.aclose()
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await opening
        await settle()
        assert pool.connection_count == 0
