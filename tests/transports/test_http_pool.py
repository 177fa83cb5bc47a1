"""Connections that are kept: who gets which, how many there are, and where they lead."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.transports.faulty import (
    HOST,
    FaultServer,
    Line,
    answers,
    client_tls,
    faulty,
    ok,
    on_both_loops,
    server_tls,
)
from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.http_address import Origin, is_public, parse_origin
from trunkline.transports.http_pool import Pool, Unreachable
from trunkline.transports.http_response import HttpResponse
from trunkline.transports.http_wire import ClientLimits, Wire

ASK = b"GET / HTTP/1.1\r\n\r\n"
ONE = ClientLimits(max_connections=1)


@asynccontextmanager
async def pool_for(
    server: FaultServer | Origin,
    limits: ClientLimits = ClientLimits(),  # noqa: B008
    tls: ssl.SSLContext | None = None,
    allow: Callable[[str], bool] | None = None,
) -> AsyncGenerator[Pool]:
    origin = parse_origin(server.url) if isinstance(server, FaultServer) else server
    pool = Pool(origin, limits, tls, allow)
    try:
        yield pool
    finally:
        await pool.aclose()


async def ask(wire: Wire) -> HttpResponse:
    response = HttpResponse(wire)
    wire.ask(ASK, b"", response)
    await response.begun()
    return response


async def used(pool: Pool) -> Wire:
    """Lease a wire, and use it."""
    wire = await pool.lease()
    assert (await ask(wire)).status == 200
    return wire


async def idle(line: Line) -> None:
    """A script: answer everybody."""
    while True:
        await line.request()
        await line.send(ok())


async def refusal(pool: Pool) -> str:
    with pytest.raises(ConnectionLost) as failure:
        await pool.lease()
    ours = "client is closed" in str(failure.value) or "no free" in str(failure.value)
    assert isinstance(failure.value, Unreachable) != ours
    return str(failure.value)


@on_both_loops
async def test_the_wire_that_was_used_last_is_used_first() -> None:
    async with faulty(idle) as server, pool_for(server) as pool:
        assert pool.take() is None
        first, second = await pool.lease(), await pool.lease()
        await ask(second)
        await ask(first)
        assert pool.take() is first
        assert await pool.lease() is second
        assert pool.take() is None
        assert len(server.lines) == 2


@on_both_loops
async def test_a_wire_that_the_server_closed_is_not_used() -> None:
    async def leave(line: Line) -> None:
        await line.request()
        await line.send(ok())

    async with faulty(leave, idle) as server, pool_for(server) as pool:
        wire = await used(pool)
        await server.played()
        while wire.is_free():
            await asyncio.sleep(0)
        assert await used(pool) is not wire
        assert pool.take() is not wire


@on_both_loops
async def test_a_wire_that_holds_a_surplus_answer_is_not_used() -> None:
    more = asyncio.Event()

    async def repeat(line: Line) -> None:
        await line.request()
        await line.send(ok())
        await more.wait()
        await line.send(ok())
        await line.gone()

    async with faulty(repeat, idle) as server, pool_for(server) as pool:
        wire = await used(pool)
        more.set()
        await server.played()
        assert await used(pool) is not wire


@on_both_loops
async def test_a_wire_that_nobody_uses_is_closed_after_some_time() -> None:
    async with faulty(idle) as server, pool_for(server, ClientLimits(keep_alive=0.02)) as pool:
        wire = await used(pool)
        await server.played()  # it ends with the connection
        assert not wire.is_free()
        assert pool.take() is None


@on_both_loops
async def test_a_wire_whose_time_is_up_is_not_used_even_if_it_is_not_closed_yet() -> None:
    async with faulty(idle) as server, pool_for(server, ClientLimits(keep_alive=0)) as pool:
        first = await used(pool)
        assert pool.take() is None
        assert await used(pool) is not first


@tidy
async def test_without_connections_there_is_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_later = loop.call_later

    def spy(*given: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*given))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", spy)
    async with faulty(idle) as server, pool_for(server) as pool:
        wires = [await pool.lease(), await pool.lease()]
        assert [timer.cancelled() for timer in timers] == [False]
        for wire in wires:
            wire.drop()
        await server.played()
        await settle()
        assert [timer.cancelled() for timer in timers] == [True]
        await used(pool)
        assert [timer.cancelled() for timer in timers] == [True, False]


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nx"])
@on_both_loops
async def test_a_server_that_stalls_is_given_up(begin: bytes) -> None:
    limits = ClientLimits(head_timeout=0.02, idle_timeout=0.03)
    async with faulty(answers(begin)) as server, pool_for(server, limits) as pool:
        response = await ask(await pool.lease())
        why = "nothing more of the body within 0.03 s" if begin else "no answer within 0.02 s"
        with pytest.raises(ConnectionLost, match=f"^{server.name}: {why}$"):
            raise response.failed() if not begin else await failure(response)
        await server.played()


async def failure(response: HttpResponse) -> ConnectionLost:
    try:
        await response.read()
    except ConnectionLost as why:
        return why
    pytest.fail("it was read")


@on_both_loops
async def test_who_comes_too_many_gets_the_next_free_wire_in_turn() -> None:
    async with faulty(idle) as server, pool_for(server, ClientLimits(max_connections=2)) as pool:
        wires = [await pool.lease(), await pool.lease()]
        turns = [asyncio.create_task(pool.lease()) for _ in range(3)]
        assert await is_stuck(turns[0])
        await ask(wires[1])
        assert await turns[0] is wires[1]
        await ask(wires[0])
        assert await turns[1] is wires[0]
        assert await is_stuck(turns[2])
        wires[0].drop()
        assert await turns[2] not in wires
        assert len(server.lines) == 3


@on_both_loops
async def test_who_waits_for_a_wire_too_long_is_told_so() -> None:
    limits = ClientLimits(max_connections=1, connect_timeout=0.2)  # a busy machine connects too
    async with faulty(idle) as server, pool_for(server, limits) as pool:
        wire = await pool.lease()
        expected = "no free connection within 0.2 s, all 1 are in use"
        assert await refusal(pool) == f"{server.name}: {expected}"
        await ask(wire)
        assert pool.take() is wire  # it was not kept for who has gone


@on_both_loops
async def test_who_gives_up_waiting_passes_the_turn_on() -> None:
    async with faulty(answers()) as server, pool_for(server, ONE) as pool:
        wire = await pool.lease()
        turns = [asyncio.create_task(pool.lease()) for _ in range(4)]
        assert await is_stuck(turns[0])
        await stop(turns[0])
        turns[1].cancel()  # before there is a turn to take
        wire.ask(ASK, b"", HttpResponse(wire))
        wire.data_received(ok())
        turns[2].cancel()  # after it was given one, before it could take it
        assert await turns[3] is wire
        ended = await asyncio.gather(*turns[:3], return_exceptions=True)
        assert [type(end) for end in ended] == [asyncio.CancelledError] * 3


@on_both_loops
async def test_who_may_open_a_connection_and_is_cancelled_passes_that_on() -> None:
    async with faulty(idle) as server, pool_for(server, ONE) as pool:
        wire = await pool.lease()
        for moment in range(6):
            turns = [asyncio.create_task(pool.lease()) for _ in range(2)]
            assert await is_stuck(turns[0])
            wire.drop()
            for _ in range(moment):
                await asyncio.sleep(0)
            if turns[0].done():
                turns[0].result().drop()
            turns[0].cancel()
            wire = await turns[1]
            assert wire.is_free()
            assert pool.connections == 1


@on_both_loops
async def test_who_is_cancelled_at_whatever_moment_leaves_no_connection_behind() -> None:
    async with faulty(idle) as server, pool_for(server, ONE) as pool:
        for moment in range(30):
            opening = asyncio.create_task(pool.lease())
            for _ in range(moment):
                await asyncio.sleep(0)
            if opening.done():
                opening.result().drop()
            else:
                await stop(opening)
            while pool.connections:
                await asyncio.sleep(0)
        await used(pool)


@on_both_loops
async def test_a_wire_that_dies_on_its_way_to_who_waits_is_replaced() -> None:
    async with faulty(idle) as server, pool_for(server, ONE) as pool:
        wire = await pool.lease()
        waiting = asyncio.create_task(pool.lease())
        assert await is_stuck(waiting)
        await ask(wire)
        wire.data_received(b"surplus")
        assert await waiting is not wire


@on_both_loops
async def test_an_unused_wire_is_a_new_one_even_if_there_is_no_room_for_it() -> None:
    async with faulty(idle) as server, pool_for(server, ONE) as pool:
        wire = await used(pool)
        other = await pool.lease(unused=True)
        assert other is not wire
        third = asyncio.create_task(pool.lease(unused=True))
        assert await is_stuck(third)
        await ask(other)
        assert await third is not other


@on_both_loops
async def test_a_refused_connection_is_called_that() -> None:
    async with faulty(idle) as server:
        pass
    async with pool_for(server) as pool:
        assert await refusal(pool) == f"{server.name}: connection refused"
        assert pool.connections == 0


@on_both_loops
async def test_a_host_that_nobody_knows_is_called_that() -> None:
    async with pool_for(parse_origin("http://nobody.invalid:81/")) as pool:
        assert (await refusal(pool)).startswith("nobody.invalid:81: the host is not known: ")


@on_both_loops
async def test_a_connection_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async def mute(line: Line) -> None:
        await line.gone()

    async with faulty(mute) as server:
        origin = parse_origin(server.url.replace("http:", "https:"))
        async with pool_for(origin, ClientLimits(connect_timeout=0.05), client_tls()) as pool:
            assert await refusal(pool) == f"{server.name}: no connection within 0.05 s"
            assert pool.connections == 0
        await server.played()


@on_both_loops
async def test_who_is_cancelled_while_connecting_leaves_nothing_behind(tmp_path: Path) -> None:
    async def mute(line: Line) -> None:
        await line.gone()

    async with faulty(mute) as server:
        origin = parse_origin(server.url.replace("http:", "https:"))
        async with pool_for(origin, tls=client_tls()) as pool:
            opening = asyncio.create_task(pool.lease())
            while not server.lines:
                await asyncio.sleep(0)
            await stop(opening)
            await server.played()
            assert pool.connections == 0


@on_both_loops
async def test_a_server_that_hangs_up_at_once_is_noticed() -> None:
    async def hang_up(line: Line) -> None:
        line.reset()

    async with faulty(hang_up) as server, pool_for(server) as pool:
        try:
            response = await ask(await pool.lease())
            why: ConnectionLost = response.failed()
        except ConnectionLost as found:
            why = found
        assert str(why).startswith(f"{server.name}: ")
        await settle()
        assert pool.connections == 0


@on_both_loops
async def test_a_connection_that_is_over_before_it_can_be_used_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_free(_: Wire) -> bool:
        return False

    monkeypatch.setattr(Wire, "is_free", is_free)
    async with faulty(answers()) as server, pool_for(server) as pool:
        assert await refusal(pool) == f"{server.name}: the connection was closed at once"
        assert pool.connections == 0
        await server.played()


def resolver(*addresses: str) -> Callable[..., Awaitable[list[str]]]:
    async def resolve(*_: object) -> list[str]:
        return [*addresses]

    return resolve


@on_both_loops
async def test_the_second_address_is_tried_when_the_first_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trunkline.transports.http_pool.resolve", resolver("127.0.0.2", HOST))
    async with faulty(idle) as server, pool_for(server) as pool:
        await used(pool)


@on_both_loops
async def test_only_the_addresses_that_are_allowed_are_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def allow(address: str) -> bool:
        asked.append(address)
        return address != HOST

    monkeypatch.setattr("trunkline.transports.http_pool.resolve", resolver(HOST, "127.0.0.2"))
    async with faulty(idle) as server, pool_for(server, allow=allow) as pool:
        assert await refusal(pool) == f"{server.name}: connection refused"
        assert asked == [HOST, "127.0.0.2"]
        assert server.lines == []


@on_both_loops
async def test_a_server_that_is_not_public_is_refused_where_only_those_are_allowed() -> None:
    async with faulty(idle) as server, pool_for(server, allow=is_public) as pool:
        assert await refusal(pool) == f"{server.name}: its address is not allowed"
        assert server.lines == []


@on_both_loops
async def test_a_server_with_a_trusted_certificate_is_spoken_to(tmp_path: Path) -> None:
    async with (
        faulty(idle, tls=server_tls(tmp_path)) as server,
        pool_for(server, tls=client_tls()) as pool,
    ):
        assert await used(pool) is await used(pool)


@on_both_loops
async def test_the_name_is_verified_though_an_address_is_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faulty(idle, tls=server_tls(tmp_path)) as server:
        good = Origin(True, "localhost", server.port, "/")
        bad = Origin(True, "127.0.0.2", server.port, "/")
        monkeypatch.setattr("trunkline.transports.http_pool.resolve", resolver(HOST))
        async with pool_for(good, tls=client_tls()) as pool:
            await used(pool)
        async with pool_for(bad, tls=client_tls()) as pool:
            assert "certificate is not valid for '127.0.0.2'" in await refusal(pool)


@on_both_loops
async def test_a_certificate_that_the_system_does_not_trust_is_refused(tmp_path: Path) -> None:
    async with faulty(idle, tls=server_tls(tmp_path)) as server, pool_for(server) as pool:
        expected = f"{server.name}: the certificate is not trusted: self-signed certificate"
        assert await refusal(pool) == expected


@on_both_loops
async def test_a_server_without_tls_is_told_apart() -> None:
    async def answer_anything(line: Line) -> None:
        await line.send(ok())
        await line.gone()

    async with faulty(answer_anything) as server:
        origin = parse_origin(server.url.replace("http:", "https:"))
        async with pool_for(origin, tls=client_tls()) as pool:
            assert (await refusal(pool)).startswith(f"{server.name}: TLS failed: ")


@on_both_loops
async def test_closing_fails_all_who_wait_and_all_who_come() -> None:
    async with faulty(answers(), idle) as server, pool_for(server, ONE) as pool:
        asked = asyncio.create_task(ask(await pool.lease()))
        waiting = asyncio.create_task(pool.lease())
        assert await is_stuck(waiting)
        await pool.aclose()
        assert pool.connections == 0
        assert str((await asked).failed()) == f"{server.name}: the client is closed"
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await waiting
        assert await refusal(pool) == f"{server.name}: the client is closed"
        await pool.aclose()
        assert pool.connections == 0


@on_both_loops
async def test_closing_fails_who_is_being_connected() -> None:
    async with faulty(idle) as server, pool_for(server) as pool:
        opening = asyncio.create_task(pool.lease())
        await asyncio.sleep(0)
        await pool.aclose()
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await opening
        await settle()
        assert pool.connections == 0
