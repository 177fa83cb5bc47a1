"""What belongs to one principal is not there for another, and lines end with their tokens."""

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.auth.issuer import NOW, token
from tests.gateway.conftest import no_patience
from tests.gateway.letters import EnvelopeServer
from tests.gateway.servers import gateway, hello, one_tool, tool
from tests.gateway.test_parking import ASKABLE, FORM, YES, Curious, retry
from tests.gateway.test_parking import gateway as parking_gateway
from tests.http_client import HOST, Old, Reply
from tests.identities import As, Guarded, guard_of, guarded, nobody
from tests.transports.exchanges import call, note
from trunkline.gateway.events import CallEnded, Event
from trunkline.transports.http_guard import Open

__all__ = ["no_patience"]

OFTEN = 0.01
"""Seconds that a stream may be silent: twice in that time, lines are looked after."""


async def stolen(thief: As, of: Old) -> Old:
    """Return a client that has another's session id, and its own token."""
    client = Old(thief, "2025-11-25")
    client.id = of.id
    return client


@pytest.mark.holds("T65")
@pytest.mark.parametrize("thief", ["mallory", "", "key:ada", "ADA", "ada "])
async def test_a_session_is_there_for_its_principal_alone(thief: str) -> None:
    server = one_tool()
    async with guarded(gateway(s=server), server) as house:
        mine = await house.client("ada").old()
        theirs = await stolen(house.client(thief), mine)
        expected = 401 if not thief else 404
        before = len(server.heard)
        for reply in (
            await theirs.ask("tools/call", name="s__echo"),
            await theirs.tell("notifications/cancelled", requestId=1),
            await theirs.get(),
            await theirs.get("0-0"),
            await theirs.delete(),
        ):
            assert reply.status == expected
            assert b"echo" not in reply.body
        assert len(server.heard) == before
        nobody = await stolen(As(house.here, "nonsense"), mine)
        assert (await nobody.delete()).status == 401
        assert (await mine.ask("tools/call", name="s__echo")).status == 200  # nothing has happened


@pytest.mark.holds("T65")
async def test_another_token_of_the_same_principal_goes_on_and_has_the_new_roles() -> None:
    server = one_tool()
    async with guarded(gateway(s=server), server) as house:
        mine = await house.client("ada", role="dev").old()
        later = await stolen(house.client("ada", role="ops", jti="2"), mine)
        heard: list[Event] = []
        house.here.gateway.layers.events.listen(heard.append)
        assert (await later.ask("tools/call", name="s__echo")).status == 200
        (ended,) = heard
        assert isinstance(ended, CallEnded)
        assert ended.principal.roles == ("ops",)


@pytest.mark.holds("T65")
async def test_a_stream_cannot_be_taken_up_by_another() -> None:
    server = one_tool()
    async with guarded(gateway(s=server), server) as house:
        mine = await house.client("ada").old()
        stream = await mine.get()
        theirs = await stolen(house.client("mallory"), mine)
        assert (await theirs.get("0-0")).status == 404
        server.lists["tools"] = [tool("more")]
        await server.line.notify("notifications/tools/list_changed")
        assert (await stream.said())["method"] == "notifications/tools/list_changed"


async def endpoint(stream: Reply) -> str:
    event = await stream.event()
    assert event is not None
    return event.data.decode()


@pytest.mark.holds("T65")
async def test_nobody_posts_into_the_stream_of_another() -> None:
    server = one_tool()
    async with guarded(gateway(s=server), server) as house:
        ada, mallory = house.client("ada"), house.client("mallory")
        stream = await ada.ask(None, "GET", "/sse")
        path = await endpoint(stream)
        begin = call(1, "initialize", **hello("2024-11-05"))
        assert (await mallory.ask(begin, "POST", path)).status == 404
        assert (await house.here.ask(begin, "POST", path)).status == 401
        assert (await ada.ask(begin, "POST", path)).status == 202
        assert (await stream.said())["id"] == 1


async def test_a_parked_call_is_resumed_by_its_principal_alone() -> None:
    server = Curious(("elicitation/create", FORM))
    async with guarded(parking_gateway(server), server) as house:
        ada, mallory = house.client("ada").new(), house.client("mallory").new()
        asked = (await ada.ask("tools/call", meta=ASKABLE, name="s__t")).result
        assert asked["resultType"] == "input_required"
        answered = retry(asked, YES)
        theirs = await mallory.ask("tools/call", meta=ASKABLE, name="s__t", **answered)
        assert "error" in await theirs.last()
        assert server.runs_of_tool == 1
        assert len(house.here.gateway.stateless.parking) == 1  # it was not used up
        done = await (await ada.ask("tools/call", meta=ASKABLE, name="s__t", **answered)).last()
        assert done["result"]["structuredContent"] == {"answers": [YES]}


async def test_a_cursor_is_nobodys() -> None:
    server = one_tool()
    async with guarded(gateway(s=server), server) as house:
        replies = [
            await house.client(who).new().ask("tools/list", cursor="x") for who in ("ada", "bob")
        ]
        assert [reply.error for reply in replies] == [(400, -32602)] * 2
        assert replies[0].body == replies[1].body


# Lines end with their tokens


async def socket_of(house: Guarded, made: str) -> Any:
    headers = {"authorization": f"Bearer {made}"}
    url = f"ws://{HOST}:{house.here.port}/ws"
    return await connect(url, subprotocols=[Subprotocol("mcp")], additional_headers=headers)


async def until_doubted(house: Guarded) -> None:
    """Wait until all lines have been looked at twice."""
    looks = 0
    recognise = house.here.door.guard.recognise

    def look(request: Any) -> Any:
        nonlocal looks
        looks += 1
        return recognise(request)

    house.here.door.guard.recognise = look  # pyright: ignore[reportAttributeAccessIssue]
    while looks < 4:
        await asyncio.sleep(0)


async def test_a_websocket_ends_when_its_token_does() -> None:
    async with asyncio.timeout(20), guarded(gateway(), keep_alive=OFTEN) as house:
        short = await socket_of(house, token(exp=int(NOW) + 60))
        long = await socket_of(house, token(sub="bob"))
        house.clock.now += 89
        await until_doubted(house)
        for socket in (short, long):
            await socket.send('{"jsonrpc":"2.0","id":1,"method":"ping"}')
            assert '"result"' in str(await socket.recv())
        house.clock.now += 1
        with pytest.raises(ConnectionClosed):
            await short.recv()
        await long.send('{"jsonrpc":"2.0","id":2,"method":"ping"}')
        assert '"result"' in str(await long.recv())
        await long.close()
        assert house.told[-1].why == "the token has expired"


async def test_so_do_streams_of_events_of_all_kinds() -> None:
    server = EnvelopeServer(tools=[tool("t")])
    async with asyncio.timeout(20), guarded(gateway(s=server), server, keep_alive=OFTEN) as house:
        ada = house.client("ada", exp=int(NOW) + 60)
        session = await ada.old()
        streams = [await ada.ask(None, "GET", "/sse"), await session.get()]
        listen = {"notifications": {"toolsListChanged": True}}
        streams.append(await ada.new().ask("subscriptions/listen", **listen))
        assert all(stream.is_stream for stream in streams)
        await endpoint(streams[0])
        house.clock.now += 90
        for stream in streams:
            await stream.rest()
            assert stream.ended
        assert (await ada.ask(None, "GET", "/sse")).status == 401


async def test_a_call_that_is_under_way_is_still_answered() -> None:
    gate = asyncio.Event()
    server = one_tool()

    async def slow(params: Any) -> Any:
        await gate.wait()
        return {"content": []}

    server.methods["tools/call"] = slow
    async with asyncio.timeout(20), guarded(gateway(s=server), server, keep_alive=OFTEN) as house:
        session = await house.client("ada", exp=int(NOW) + 60).old()
        calling = await session.begin("tools/call", name="s__echo")
        await server.until_heard("tools/call")
        house.clock.now += 90
        await until_beaten(await calling)
        gate.set()
        assert "result" in (await (await calling).last())
        assert (await session.ask("ping")).status == 401


async def until_beaten(reply: Reply) -> None:
    """Wait until a stream was kept alive twice: meanwhile somebody has looked."""
    for _ in range(2):
        assert await reply.piece()


async def test_what_is_proven_by_one_guard_is_not_by_the_next() -> None:
    async with asyncio.timeout(20), guarded(gateway(), keep_alive=OFTEN) as house:
        socket = await socket_of(house, token(scope="a"))
        ada = house.client("ada", scope="a")
        session = await ada.old()
        house.here.door.guard = guard_of(house.clock, nobody, "b")
        assert (await session.ask("ping")).status == 403
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        house.here.door.guard = Open()
        assert (await session.ask("ping")).status == 404  # whoever comes now is somebody else
        message = json.dumps(note("notifications/initialized")).encode()
        assert (await ada.ask(message, mcp_session_id=session.id)).status == 404
