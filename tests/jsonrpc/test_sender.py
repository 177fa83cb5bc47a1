"""What holds while a Connection cannot send: nobody is forgotten, and nothing piles up."""

import asyncio
import json

import pytest

from tests.jsonrpc.peer_talk import ask
from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.jsonrpc.test_connection import Clock, Script, Table, withdrawn
from trunkline.jsonrpc import Connection, ConnectionLost, Notification, Raw, Response, pipe

LIMIT = "trunkline.jsonrpc.sender.MAX_BACKLOG"


@tidy
async def test_nobody_is_kept_from_its_answer_by_what_others_have_to_send() -> None:
    channel = Script(room=0)
    async with Connection(channel, grace=0) as connection:
        first = asyncio.create_task(connection.call("first"))
        await settle()
        second = asyncio.create_task(connection.call("second"))
        await settle()
        channel.make_room()
        await settle()
        assert [message["method"] for message in channel.sent] == ["first", "second"]
        channel.say(Response(1, 1).encode())
        assert await first == Raw(b"1")  # although there is no room for the second
        await stop(second)


@tidy
async def test_what_waits_is_sent_though_the_one_who_sends_is_cancelled() -> None:
    channel = Script(room=0)
    async with Connection(channel, withdrawal=withdrawn) as connection:
        first = asyncio.create_task(connection.call("first"))
        await settle()
        await connection.notify("second")
        await stop(first)
        channel.make_room(9)
        await settle()
        methods = [message["method"] for message in channel.sent]
        assert methods == ["first", "second", "withdrawn"]


@tidy
async def test_what_waits_to_be_sent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMIT, 3)
    channel = Script(room=0)
    async with Connection(channel, Table(), grace=0) as connection:
        sender = asyncio.create_task(connection.notify("sent"))
        assert await is_stuck(sender)
        channel.say(*(ask(n, "ping") for n in range(20)))
        call = asyncio.create_task(connection.call("m"))
        await settle()
        assert connection.peer.backlog == 4  # three answers, and the call that waits
        assert channel.inbox.qsize() == 17  # it stopped reading
        late = asyncio.create_task(connection.notify("late"))
        channel.make_room()
        assert await is_stuck(late)
        channel.make_room(30)
        await asyncio.gather(sender, late)
        channel.say(Response(1, 1).encode())
        await call
        assert channel.inbox.empty()
        assert len(channel.sent) == 23


@tidy
async def test_a_side_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, channel = Clock(monkeypatch), Script(room=1)
    connection = Connection(channel, send_timeout=1)
    async with connection:
        await connection.notify("read")
        await clock.advance(0.7)
        call = asyncio.create_task(connection.call("not read"))
        await clock.advance(0.7)
        assert not call.done()  # the first was read in time, the second has time
        await clock.advance(0.7)
        with pytest.raises(ConnectionLost, match="has not read for 1 s"):
            await call
        await connection.wait_ended()
        assert channel.closed


@tidy
async def test_a_side_that_reads_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, channel = Clock(monkeypatch), Script()
    async with Connection(channel, send_timeout=1) as connection:
        await connection.notify("read")
        await clock.advance(2)
        await connection.notify("read")
        await clock.advance(0.5)
        assert not channel.closed


@pytest.mark.parametrize("failure", [ConnectionLost("gone"), BrokenPipeError("gone")])
@tidy
async def test_when_sending_fails_all_calls_are_lost(failure: Exception) -> None:
    channel = Script()
    connection = Connection(channel)
    async with connection:
        first = asyncio.create_task(connection.call("m"))
        await settle()
        channel.failure = failure
        second = asyncio.create_task(connection.call("m"))
        for call in (first, second):
            with pytest.raises(ConnectionLost, match="gone"):
                await call
        with pytest.raises(ConnectionLost):
            await connection.call("m")
        with pytest.raises(ConnectionLost):
            await connection.notify("m")
        await connection.wait_ended()


@tidy
async def test_a_connection_given_up_while_it_sends_sends_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    near, far = pipe(0)
    connection = Connection(near, send_timeout=1)
    async with connection:
        for _ in range(3):
            connection.peer.notify("m")
        sender = asyncio.create_task(connection.notify("m"))
        await clock.advance(1.1)
        await sender
        await connection.wait_ended()
    assert await far.receive() == Notification("m").encode()
    assert await far.receive() is None


@tidy
async def test_the_end_waits_for_a_side_that_does_not_read_no_longer_than_the_grace() -> None:
    channel = Script(room=0)
    async with Connection(channel, Table(), grace=0.01):
        channel.say(*(ask(n, "ping") for n in range(3)))
        await settle()
    assert channel.closed
    assert len(channel.sent) == 1


@tidy
async def test_those_who_wait_for_room_are_woken_by_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LIMIT, 1)
    channel = Script(room=0)
    async with Connection(channel, grace=0) as connection:
        calls = [asyncio.create_task(connection.call("m")) for _ in range(4)]
        await settle()
    for call in calls:
        with pytest.raises(ConnectionLost):
            await call


class Taking(Script):
    """A Channel that can take so many payloads without waiting."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self.takes = takes
        self.taken: list[str] = []

    def offer(self, payload: bytes, others: int) -> bool:
        if not self.takes:
            return False
        self.takes -= 1
        self.taken.append(json.loads(payload)["method"])
        return True


@tidy
async def test_what_a_channel_takes_at_once_is_sent_at_once_and_the_rest_follows() -> None:
    channel = Taking(2)
    async with Connection(channel) as connection:
        asked = [connection.ask(method) for method in "abcd"]
        assert channel.taken == ["a", "b"]
        await settle()
        assert [message["method"] for message in channel.sent] == ["c", "d"]
        for id in (4, 1, 3, 2):
            channel.say(Response(id, id).encode())
        assert [await each for each in asked] == [Raw(b"%d" % id) for id in (1, 2, 3, 4)]


@tidy
async def test_nothing_overtakes_what_is_being_sent() -> None:
    channel = Taking(9)
    channel.room = asyncio.Semaphore(0)
    async with Connection(channel, grace=0) as connection:
        first = asyncio.create_task(connection.notify("first"))
        await settle()
        second = connection.ask("second")
        assert channel.taken == []
        channel.make_room(9)
        await settle()
        assert [message["method"] for message in channel.sent] == ["first", "second"]
        await first
        second.cancel()


@tidy
async def test_who_asks_where_nobody_answers_any_more_is_told_at_once() -> None:
    channel = Taking(0)
    async with Connection(channel) as connection:
        asked = connection.ask("m")
        await connection.aclose()
        with pytest.raises(ConnectionLost):
            connection.ask("m")
        with pytest.raises(ConnectionLost):
            await asked
