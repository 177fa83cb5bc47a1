"""Payloads handled inline, where they arrive: nothing is lost, repeated or overtaken."""

import asyncio
from collections.abc import Callable

from tests.jsonrpc.peer_messages import (
    MALFORMED_RESPONSE,
    NOTIFICATION,
    batch_payload,
    request_payload,
)
from tests.jsonrpc.test_connection import MethodTable, ScriptedTransport
from tests.tasks import settle
from trunkline.jsonrpc import Called, Connection, Failed, Notified, Peer, Response, Returned


class InlineTransport(ScriptedTransport):
    """A ScriptedTransport that offers each payload to the receiver first."""

    def __init__(self, room: int = 1000) -> None:
        super().__init__(room)
        self.receiver: Callable[[bytes], bool] = lambda _: False
        self.handled: list[bytes] = []

    def set_receiver(self, receiver: Callable[[bytes], bool]) -> None:
        self.receiver = receiver

    def arrive(self, payload: bytes) -> None:
        if self.inbox.empty() and self.receiver(payload):
            self.handled.append(payload)
        else:
            self.deliver(payload)


def response_payload(id: int, value: object = 1) -> bytes:
    return Response(id, value).encode()


async def test_a_response_is_handled_where_it_arrives() -> None:
    transport = InlineTransport()
    async with Connection(transport) as connection:
        await settle()
        pending = connection.send_request("m")
        await settle()
        transport.arrive(response_payload(1))
        assert pending.done
        assert bytes(pending.result) == b"1"
        refused = connection.send_request("m")
        transport.arrive(b'{"jsonrpc":"2.0","id":2,"error":{"code":5,"message":"no"}}')
        await settle()
        assert str(refused.error) == "no (5)"  # error responses are left to run()
    assert transport.handled == [response_payload(1)]


async def test_a_response_to_a_call_made_directly_on_the_peer_is_harmless() -> None:
    transport = InlineTransport()
    async with Connection(transport) as connection:
        await settle()
        connection.peer.call("m")
        pending = connection.send_request("m")
        await settle()
        transport.arrive(response_payload(1))
        transport.arrive(response_payload(2))
        assert pending.done
    assert len(transport.handled) == 2


async def test_an_unexpected_response_is_reported_where_it_arrives() -> None:
    transport, handler = InlineTransport(), MethodTable()
    async with Connection(transport, handler) as connection:
        await settle()
        pending = connection.send_request("m")
        await settle()
        transport.arrive(response_payload(99))
        assert "no call in flight has id 99" in str(handler.violations[0])
        assert not pending.done
        transport.arrive(response_payload(1))
        assert pending.done
    assert transport.handled == [response_payload(99), response_payload(1)]
    assert [message.get("method") for message in transport.sent] == ["m"]


async def test_a_request_is_answered_where_it_arrives() -> None:
    transport = InlineTransport()
    async with Connection(transport, MethodTable()):
        await settle()
        transport.arrive(request_payload(7, "ping"))
        await settle()
        assert transport.sent == [{"jsonrpc": "2.0", "id": 7, "result": {}}]
    assert len(transport.handled) == 1


async def test_a_request_beyond_the_limit_is_rejected_where_it_arrives() -> None:
    transport = InlineTransport()
    async with Connection(transport, MethodTable(), Peer(max_in_flight=0)):
        await settle()
        transport.arrive(request_payload(7, "ping"))
        await settle()
        assert [message["error"]["code"] for message in transport.sent] == [-32000]
    assert len(transport.handled) == 1


async def test_payloads_that_may_need_waiting_are_left_to_run() -> None:
    transport, handler = InlineTransport(), MethodTable()
    async with Connection(transport, handler):
        await settle()
        for payload in (NOTIFICATION, MALFORMED_RESPONSE, batch_payload(NOTIFICATION)):
            transport.arrive(payload)
            await settle()
        assert len(handler.notifications) == 1
        assert len(handler.violations) == 2
    assert transport.handled == []


async def test_no_payload_overtakes_a_notification_in_progress() -> None:
    transport, handler, noted = InlineTransport(), MethodTable(), asyncio.Event()

    async def note(_: object) -> None:
        await noted.wait()

    handler.on_notification = note
    async with Connection(transport, handler) as connection:
        await settle()
        pending = connection.send_request("m")
        transport.arrive(NOTIFICATION)
        await settle()
        transport.arrive(response_payload(1))
        assert not pending.done
        await settle()
        assert not pending.done  # the notification came first and is in progress
        noted.set()
        assert bytes(await pending) == b"1"
    assert transport.handled == []


async def test_nothing_is_handled_inline_while_responses_wait_to_be_sent() -> None:
    transport = InlineTransport(room=0)
    async with Connection(transport, MethodTable()):
        await settle()
        transport.arrive(request_payload(1, "ping"))
        await settle()
        transport.arrive(request_payload(2, "ping"))  # there is no room: the response waits
        transport.arrive(request_payload(3, "ping"))
        await settle()
        assert len(transport.handled) == 2
        transport.make_room(10)
        await settle()
        assert [message["id"] for message in transport.sent] == [1, 2, 3]


async def test_nothing_is_handled_inline_after_the_end() -> None:
    transport = InlineTransport()
    async with Connection(transport):
        await settle()
    assert not transport.receiver(response_payload(1))


def test_a_peer_accepts_long_responses_wherever_their_id_is() -> None:
    peer, long = Peer(), b"x" * 100_000
    for form in (
        b'{"jsonrpc":"2.0","id":%d,"result":"' + long + b'"}',
        b'{"result":"' + long + b'","jsonrpc":"2.0","id":%d}',
        b'{"result":"' + long + b'","id":%d,"jsonrpc":"2.0","more":"' + long + b'"}',
    ):
        assert [type(event) for event in peer.try_receive(form % peer.call("m")) or ()] == [
            Returned
        ]


def test_a_payload_that_try_receive_left_is_received_unchanged() -> None:
    for between in ((), (request_payload(5),)):
        peer = Peer()
        assert peer.try_receive(NOTIFICATION) is None
        for payload in between:
            assert [type(event) for event in peer.receive(payload)] == [Called]
        assert [type(event) for event in peer.receive(NOTIFICATION)] == [Notified]


def test_a_token_comes_back_with_every_outcome() -> None:
    peer, tokens = Peer(), [object() for _ in range(4)]
    ids = [peer.call("m", token=token) for token in tokens]
    assert list(peer.pending_calls.values()) == tokens
    (returned,) = peer.receive(response_payload(ids[0]))
    (failed,) = peer.receive(b'{"jsonrpc":"2.0","id":%d,"error":{"code":5,"message":""}}' % ids[1])
    _, malformed = peer.receive(b'{"jsonrpc":"2.0","id":%d,"error":{}}' % ids[2])
    (lost,) = peer.close()
    assert isinstance(returned, Returned)
    assert isinstance(failed, Failed)
    assert isinstance(malformed, Failed)
    assert [e.token for e in (returned, failed, malformed, lost)] == tokens


def test_receive_result_takes_a_result_once_and_leaves_everything_else() -> None:
    peer, token = Peer(max_payload=100), object()
    assert peer.receive_result(response_payload(1)) is None  # there is no call yet
    id = peer.call("m", token=token)
    for left in (
        NOTIFICATION,
        request_payload(id),
        response_payload(id + 1),
        response_payload(id, "x" * 100),
        b'{"id":%d}' % id,
    ):
        assert peer.receive_result(left) is None
    found = peer.receive_result(response_payload(id, "x"))
    assert found is not None
    assert (found[0], bytes(found[1]), peer.idle) == (token, b'"x"', True)
    assert peer.receive_result(response_payload(id, "x")) is None


def test_try_receive_takes_requests_and_responses_and_leaves_the_rest() -> None:
    peer = Peer(batch_policy="allow")
    id = peer.call("m")
    named = b'{"jsonrpc":"2.0","method":"m","params":{"id":1}}'
    for left in (
        NOTIFICATION,
        named,
        MALFORMED_RESPONSE,
        batch_payload(NOTIFICATION),
        b'{"jsonrpc":"2.0","id":1,"error":{}}',
    ):
        assert peer.try_receive(left) is None
    assert [type(event).__name__ for event in peer.try_receive(response_payload(id)) or ()] == [
        "Returned"
    ]
    assert [type(event).__name__ for event in peer.try_receive(response_payload(id)) or ()] == [
        "Violated"
    ]
    assert peer.try_receive(request_payload(5)) is not None
    peer.close()
    assert peer.try_receive(request_payload(6)) is None
