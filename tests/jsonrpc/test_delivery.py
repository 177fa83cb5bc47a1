"""Payloads that a Channel hands over where they arrive: what is taken, what is left, what waits.

A channel may do so; whatever it does, nothing is lost, done twice or overtaken.
"""

import asyncio
from collections.abc import Callable

from tests.jsonrpc.peer_talk import BROKEN, TELL, ask, batch
from tests.jsonrpc.test_channel import settle
from tests.jsonrpc.test_connection import Script, Table
from trunkline.jsonrpc import Called, Connection, Failed, Notified, Peer, Response, Returned


class Prompt(Script):
    """A Script that hands over what comes, and keeps what is not taken to be received."""

    def __init__(self, room: int = 1000) -> None:
        super().__init__(room)
        self.take: Callable[[bytes], bool] = lambda _: False
        self.taken: list[bytes] = []

    def deliver(self, take: Callable[[bytes], bool]) -> None:
        self.take = take

    def come(self, payload: bytes) -> None:
        if self.inbox.empty() and self.take(payload):
            self.taken.append(payload)
        else:
            self.say(payload)


def answer(id: int, value: object = 1) -> bytes:
    return Response(id, value).encode()


async def test_an_answer_is_there_as_soon_as_it_has_come() -> None:
    channel = Prompt()
    async with Connection(channel) as connection:
        await settle()
        asked = connection.ask("m")
        await settle()
        channel.come(answer(1))
        assert asked.done
        assert bytes(asked.result) == b"1"
        refused = connection.ask("m")
        channel.come(b'{"jsonrpc":"2.0","id":2,"error":{"code":5,"message":"no"}}')
        await settle()
        assert str(refused.error) == "no (5)"  # what is rare is received, as ever
    assert channel.taken == [answer(1)]


async def test_an_answer_to_what_others_asked_through_the_peer_disturbs_nobody() -> None:
    channel = Prompt()
    async with Connection(channel) as connection:
        await settle()
        connection.peer.call("m")
        asked = connection.ask("m")
        await settle()
        channel.come(answer(1))
        channel.come(answer(2))
        assert asked.done
    assert len(channel.taken) == 2


async def test_an_answer_that_nobody_waits_for_is_told_of_where_it_arrives() -> None:
    channel, table = Prompt(), Table()
    async with Connection(channel, table) as connection:
        await settle()
        asked = connection.ask("m")
        await settle()
        channel.come(answer(99))
        assert "no call in flight has id 99" in str(table.violations[0])
        assert not asked.done
        channel.come(answer(1))
        assert asked.done
    assert channel.taken == [answer(99), answer(1)]
    assert [said.get("method") for said in channel.sent] == ["m"]


async def test_a_request_is_answered_where_it_arrives() -> None:
    channel = Prompt()
    async with Connection(channel, Table()):
        await settle()
        channel.come(ask(7, "ping"))
        await settle()
        assert channel.sent == [{"jsonrpc": "2.0", "id": 7, "result": {}}]
    assert len(channel.taken) == 1


async def test_a_request_too_many_is_refused_where_it_arrives() -> None:
    channel = Prompt()
    async with Connection(channel, Table(), Peer(max_in_flight=0)):
        await settle()
        channel.come(ask(7, "ping"))
        await settle()
        assert [said["error"]["code"] for said in channel.sent] == [-32000]
    assert len(channel.taken) == 1


async def test_what_may_have_to_be_waited_for_is_received() -> None:
    channel, table = Prompt(), Table()
    async with Connection(channel, table):
        await settle()
        for payload in (TELL, BROKEN, batch(TELL)):
            channel.come(payload)
            await settle()
        assert len(table.notes) == 1
        assert len(table.violations) == 2
    assert channel.taken == []


async def test_nothing_overtakes_what_is_being_taken_note_of() -> None:
    channel, table, noted = Prompt(), Table(), asyncio.Event()

    async def note(_: object) -> None:
        await noted.wait()

    table.on_note = note
    async with Connection(channel, table) as connection:
        await settle()
        asked = connection.ask("m")
        channel.come(TELL)
        await settle()
        channel.come(answer(1))
        assert not asked.done
        await settle()
        assert not asked.done  # the note came first, and has not been taken
        noted.set()
        assert bytes(await asked) == b"1"
    assert channel.taken == []


async def test_nothing_more_is_taken_while_answers_wait_to_leave() -> None:
    channel = Prompt(room=0)
    async with Connection(channel, Table()):
        await settle()
        channel.come(ask(1, "ping"))
        await settle()
        channel.come(ask(2, "ping"))  # nobody reads: what is to be said waits
        channel.come(ask(3, "ping"))
        await settle()
        assert len(channel.taken) == 2
        channel.make_room(10)
        await settle()
        assert [said["id"] for said in channel.sent] == [1, 2, 3]


async def test_nothing_is_taken_after_the_end() -> None:
    channel = Prompt()
    async with Connection(channel):
        await settle()
    assert not channel.take(answer(1))


def test_a_peer_takes_long_answers_wherever_they_have_their_id() -> None:
    peer, long = Peer(), b"x" * 100_000
    for form in (
        b'{"jsonrpc":"2.0","id":%d,"result":"' + long + b'"}',
        b'{"result":"' + long + b'","jsonrpc":"2.0","id":%d}',
        b'{"result":"' + long + b'","id":%d,"jsonrpc":"2.0","more":"' + long + b'"}',
    ):
        assert [type(event) for event in peer.take(form % peer.call("m")) or ()] == [Returned]


def test_what_a_peer_left_is_received_as_it_is_and_others_as_they_are() -> None:
    for between in ((), (ask(5),)):
        peer = Peer()
        assert peer.take(TELL) is None
        for payload in between:
            assert [type(event) for event in peer.receive(payload)] == [Called]
        assert [type(event) for event in peer.receive(TELL)] == [Notified]


def test_a_token_comes_back_with_whatever_becomes_of_its_call() -> None:
    peer, tokens = Peer(), [object() for _ in range(4)]
    ids = [peer.call("m", token=token) for token in tokens]
    assert list(peer.calls.values()) == tokens
    (returned,) = peer.receive(answer(ids[0]))
    (failed,) = peer.receive(b'{"jsonrpc":"2.0","id":%d,"error":{"code":5,"message":""}}' % ids[1])
    _, malformed = peer.receive(b'{"jsonrpc":"2.0","id":%d,"error":{}}' % ids[2])
    (lost,) = peer.close()
    assert isinstance(returned, Returned)
    assert isinstance(failed, Failed)
    assert isinstance(malformed, Failed)
    assert [e.token for e in (returned, failed, malformed, lost)] == tokens


def test_a_peer_takes_the_result_of_a_call_once_and_leaves_all_else_as_it_was() -> None:
    peer, token = Peer(max_payload=100), object()
    assert peer.take_result(answer(1)) is None  # nothing was asked so far
    id = peer.call("m", token=token)
    for left in (TELL, ask(id), answer(id + 1), answer(id, "x" * 100), b'{"id":%d}' % id):
        assert peer.take_result(left) is None
    found = peer.take_result(answer(id, "x"))
    assert found is not None
    assert (found[0], bytes(found[1]), peer.idle) == (token, b'"x"', True)
    assert peer.take_result(answer(id, "x")) is None


def test_a_peer_takes_requests_and_responses_and_leaves_the_rest_as_it_was() -> None:
    peer = Peer(batch="allow")
    id = peer.call("m")
    named = b'{"jsonrpc":"2.0","method":"m","params":{"id":1}}'
    for left in (TELL, named, BROKEN, batch(TELL), b'{"jsonrpc":"2.0","id":1,"error":{}}'):
        assert peer.take(left) is None
    assert [type(event).__name__ for event in peer.take(answer(id)) or ()] == ["Returned"]
    assert [type(event).__name__ for event in peer.take(answer(id)) or ()] == ["Violated"]
    assert peer.take(ask(5)) is not None
    peer.close()
    assert peer.take(ask(6)) is None
