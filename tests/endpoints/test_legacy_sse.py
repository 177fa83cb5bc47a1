"""HTTP+SSE of 2024-11-05: over recording exchanges, and over TCP."""

import asyncio
from collections.abc import Callable, Collection

import pytest

from tests.tasks import LoopClock, is_stuck, settle, stop, tidy
from trunkline.endpoints.legacy_sse import SseEndpoint, SseLimits
from trunkline.http.bodies import BodyBudget
from trunkline.http.exchange import (
    BodyParts,
    ByteStream,
    Headers,
    HttpExchange,
    HttpRequest,
    RequestHead,
)
from trunkline.http.listener import HttpListener
from trunkline.http.sse import PING_COMMENT, SseEvent, SseParser
from trunkline.jsonrpc import ConnectionLost, Transport
from trunkline.mcp.identity import Principal

JSON = {b"content-type": b"application/json"}


class RecordingExchange:
    """An exchange that records its response."""

    def __init__(self, request: HttpRequest, stream: ByteStream | None = None) -> None:
        self.request = request
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.pieces: list[bytes] = []
        self.finished = False
        self.disconnected = False
        self.room = asyncio.Event()
        self.room.set()
        self._stream = stream
        self._callbacks: list[Callable[[], None]] = []

    def respond(
        self, status: int, headers: Headers = (), body: bytes = b"", rest: BodyParts = ()
    ) -> None:
        self.begin(status, headers)
        self.body = b"".join((body, *rest))
        self.finished = True

    def begin(self, status: int, headers: Headers = ()) -> None:
        assert not self.status
        self.status, self.headers = status, dict(headers)

    async def send(self, piece: bytes) -> None:
        assert self.status
        assert not self.finished
        if self.disconnected:
            raise ConnectionLost("the client has disconnected")
        self.pieces.append(piece)
        await self.room.wait()

    def finish(self) -> None:
        assert not self.finished
        self.finished = True

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def upgrade(self, headers: Headers = ()) -> ByteStream:
        self.begin(101, headers)
        assert self._stream is not None
        return self._stream

    def go(self) -> None:
        """Disconnect the client."""
        self.disconnected = True
        for callback in self._callbacks:
            callback()


def request(
    method: str,
    query: str = "",
    headers: dict[bytes, bytes] | None = None,
    body: bytes = b"",
    repeated: Collection[bytes] = (),
) -> HttpRequest:
    return HttpRequest(
        RequestHead(method, "/", query, headers or {}, frozenset(repeated), ""), body
    )


def events(exchange: RecordingExchange) -> list[SseEvent]:
    """Return what a client sees."""
    found = SseParser(1_000_000).feed(b"".join(exchange.pieces))
    return [event for event in found if isinstance(event, SseEvent)]


async def enter(
    endpoint: SseEndpoint, principal: str = "ann", keep_alive: float = 15.0
) -> tuple[Transport, RecordingExchange, str]:
    """Open a session; return it, the exchange that carries it, and the query to POST with."""
    exchange = RecordingExchange(request("GET"))
    transport = await endpoint.open(exchange, Principal(principal), keep_alive)
    assert transport is not None
    return transport, exchange, events(exchange)[0].data.decode().partition("?")[2]


def post(
    endpoint: SseEndpoint,
    query: str,
    body: bytes = b"{}",
    headers: dict[bytes, bytes] | None = None,
    principal: str = "ann",
) -> RecordingExchange:
    exchange = RecordingExchange(request("POST", query, JSON if headers is None else headers, body))
    endpoint.handle_post(exchange, Principal(principal))
    return exchange


@pytest.mark.parametrize("path", ["/messages", "messages", "/a/b-c.d_e~/1"])
@tidy
async def test_the_first_event_names_a_path_with_an_unguessable_id(path: str) -> None:
    endpoint = SseEndpoint(path)
    ids: set[str] = set()
    for _ in range(2):
        transport, exchange, query = await enter(endpoint)
        assert exchange.status == 200
        assert exchange.headers == {
            b"content-type": b"text/event-stream",
            b"cache-control": b"no-store",
            b"x-accel-buffering": b"no",
        }
        assert events(exchange) == [SseEvent(f"{path}?{query}".encode(), "endpoint")]
        name, _, id = query.partition("=")
        assert (name, len(id)) == ("session_id", 32)
        ids.add(id)
        await transport.aclose()
    assert len(ids) == 2


@pytest.mark.parametrize(
    "path", ["", "//evil.example/a", "/\\evil.example", "http://evil", "/a?b", "/a#b", "a:b", "/ä"]
)
def test_the_path_for_posts_cannot_name_a_host(path: str) -> None:
    with pytest.raises(ValueError, match="expected a URI path"):
        SseEndpoint(path)


@tidy
async def test_posted_payloads_are_received_and_sent_payloads_are_events() -> None:
    endpoint = SseEndpoint()
    transport, exchange, query = await enter(endpoint)
    waiting = asyncio.create_task(transport.receive())
    assert await is_stuck(waiting)
    answer = post(
        endpoint, query, b'{"a":1}', {b"content-type": b"Application/JSON; charset=utf-8"}
    )
    assert (answer.status, answer.body) == (202, b"")
    assert await waiting == b'{"a":1}'
    await transport.send(b'{"b":\n2}')
    assert events(exchange)[1:] == [SseEvent(b'{"b":\n2}', "message")]
    await transport.aclose()


@tidy
async def test_an_invalid_post_is_rejected_with_the_reason() -> None:
    endpoint = SseEndpoint()
    transport, _, query = await enter(endpoint)
    assert post(endpoint, "").status == 400
    assert post(endpoint, "sessionId=1").status == 400
    assert post(endpoint, f"{query}&{query}").status == 400
    assert post(endpoint, "session_id=unknown").status == 404
    assert post(endpoint, query, principal="bob").status == 404
    assert post(endpoint, query, principal="").status == 404
    assert post(endpoint, query, headers={}).status == 415
    for kind in (b"text/plain", b"application/json; charset=latin-1"):
        assert post(endpoint, query, headers={b"content-type": kind}).status == 415
    wrong = RecordingExchange(request("PUT", query, JSON))
    endpoint.handle_post(wrong, Principal("ann"))
    assert (wrong.status, wrong.headers[b"allow"]) == (405, b"POST")
    assert post(endpoint, query, b"1").status == 202
    assert await transport.receive() == b"1"
    await transport.aclose()


@tidy
async def test_a_session_of_another_principal_does_not_exist() -> None:
    endpoint = SseEndpoint()
    transport, _, query = await enter(endpoint)
    theirs, none = post(endpoint, query, principal="bob"), post(endpoint, "session_id=x")
    assert (theirs.body, theirs.headers) == (none.body, none.headers)
    await transport.aclose()


@tidy
async def test_a_full_queue_rejects_posts() -> None:
    endpoint = SseEndpoint(limits=SseLimits(max_queued=2))
    transport, _, query = await enter(endpoint)
    assert [post(endpoint, query).status for _ in range(2)] == [202, 202]
    rejected = post(endpoint, query)
    assert (rejected.status, rejected.headers[b"retry-after"]) == (503, b"1")
    await transport.receive()
    assert post(endpoint, query).status == 202
    await transport.aclose()


@tidy
async def test_queued_bytes_are_limited_but_one_payload_always_fits() -> None:
    endpoint = SseEndpoint(limits=SseLimits(max_queued_bytes=10))
    transport, _, query = await enter(endpoint)
    assert post(endpoint, query, b"x" * 11).status == 202
    assert post(endpoint, query, b"x").status == 503
    assert await transport.receive() == b"x" * 11
    assert [post(endpoint, query, b"x" * 5).status for _ in range(3)] == [202, 202, 503]
    await transport.aclose()


@tidy
async def test_the_queues_of_one_principal_share_a_budget() -> None:
    endpoint = SseEndpoint(budget=BodyBudget(40, max_body=10))
    first, _, query = await enter(endpoint)
    second, _, other_query = await enter(endpoint)
    other, _, bobs_query = await enter(endpoint, "bob")
    assert post(endpoint, query, b"x" * 6).status == 202
    rejected = post(endpoint, other_query, b"x" * 6)
    assert (rejected.status, rejected.headers[b"retry-after"]) == (503, b"1")
    assert rejected.body == b"too many messages are queued"
    assert post(endpoint, bobs_query, b"x" * 6, principal="bob").status == 202
    assert await first.receive() == b"x" * 6
    assert post(endpoint, other_query, b"x" * 10).status == 202
    assert post(endpoint, query, b"x").status == 503
    await second.aclose()
    assert post(endpoint, query, b"x").status == 202
    await first.aclose()
    await other.aclose()


@tidy
async def test_only_get_opens_a_session() -> None:
    exchange = RecordingExchange(request("POST"))
    assert await SseEndpoint().open(exchange, Principal("ann"), 15.0) is None
    assert (exchange.status, exchange.headers[b"allow"]) == (405, b"GET")


@tidy
async def test_losing_the_stream_ends_the_session() -> None:
    endpoint = SseEndpoint()
    transport, exchange, query = await enter(endpoint)
    post(endpoint, query, b"1")
    exchange.go()
    assert post(endpoint, query, b"2").status == 404
    assert await transport.receive() == b"1"
    assert await transport.receive() is None
    with pytest.raises(ConnectionLost):
        await transport.send(b"3")
    await transport.aclose()
    assert not exchange.finished


@tidy
async def test_losing_the_stream_wakes_a_waiting_receive() -> None:
    transport, exchange, _ = await enter(SseEndpoint())
    waiting = [asyncio.create_task(transport.receive()) for _ in range(2)]
    await settle()
    exchange.go()
    assert await asyncio.gather(*waiting) == [None, None]
    await settle()


@tidy
async def test_a_failed_send_ends_the_session_without_a_disconnect() -> None:
    endpoint = SseEndpoint()
    transport, exchange, query = await enter(endpoint)
    exchange.disconnected = True
    with pytest.raises(ConnectionLost):
        await transport.send(b"1")
    assert post(endpoint, query).status == 404
    assert await transport.receive() is None
    await transport.aclose()


@tidy
async def test_a_client_that_disconnects_at_once_leaves_an_ended_transport() -> None:
    exchange = RecordingExchange(request("GET"))
    exchange.disconnected = True
    transport = await SseEndpoint().open(exchange, Principal("ann"), 15.0)
    assert transport is not None
    assert await transport.receive() is None
    await transport.aclose()


@tidy
async def test_cancelling_open_leaves_no_session() -> None:
    endpoint = SseEndpoint()
    exchange = RecordingExchange(request("GET"))
    exchange.room.clear()
    opening = asyncio.create_task(endpoint.open(exchange, Principal("ann"), 15.0))
    assert await is_stuck(opening)
    await stop(opening)
    assert exchange.finished
    assert len(endpoint) == 0
    transport, _, _ = await enter(endpoint)
    assert len(endpoint) == 1
    await transport.aclose()
    assert len(endpoint) == 0


@tidy
async def test_closing_ends_the_stream_and_drops_queued_payloads() -> None:
    endpoint = SseEndpoint()
    transport, exchange, query = await enter(endpoint)
    post(endpoint, query, b"1")
    await transport.aclose()
    await transport.aclose()
    assert exchange.finished
    assert await transport.receive() is None
    with pytest.raises(ConnectionLost):
        await transport.send(b"2")
    assert post(endpoint, query).status == 404


@tidy
async def test_send_waits_while_the_client_is_slow() -> None:
    transport, exchange, _ = await enter(SseEndpoint())
    exchange.room.clear()
    task = asyncio.create_task(transport.send(b"1"))
    assert await is_stuck(task)
    exchange.room.set()
    await task
    await transport.aclose()


@tidy
async def test_a_stream_is_pinged() -> None:
    transport, exchange, _ = await enter(SseEndpoint(), keep_alive=0.001)
    while exchange.pieces[1:3] != [PING_COMMENT, PING_COMMENT]:
        await asyncio.sleep(0)
    assert len(events(exchange)) == 1
    await transport.aclose()


@tidy
async def test_a_slow_client_gets_one_ping_at_a_time() -> None:
    clock = LoopClock()
    transport, exchange, _ = await enter(SseEndpoint(), keep_alive=15.0)
    exchange.room.clear()
    for _ in range(3):
        await clock.advance(15.0)
    assert exchange.pieces[1:] == [PING_COMMENT]
    await transport.aclose()


@tidy
async def test_a_stream_whose_ping_fails_ends() -> None:
    transport, exchange, _ = await enter(SseEndpoint(), keep_alive=0.001)
    exchange.disconnected = True
    assert await transport.receive() is None
    await transport.aclose()


@tidy
async def test_two_connections_make_a_transport_over_tcp() -> None:
    endpoint, serving = SseEndpoint(), set[asyncio.Task[None]]()

    async def serve(exchange: HttpExchange) -> None:
        transport = await endpoint.open(exchange, Principal("ann"), 15.0)
        assert transport is not None
        while (payload := await transport.receive()) is not None:
            await transport.send(payload + b"!")
        await transport.aclose()

    def answer(exchange: HttpExchange) -> None:
        if exchange.request.path == "/sse":
            serving.add(asyncio.create_task(serve(exchange)))
        else:
            endpoint.handle_post(exchange, Principal("ann"))

    listener = HttpListener(answer)
    await listener.listen("127.0.0.1", 0)
    streams = [await asyncio.open_connection(*listener.addresses[0]) for _ in range(2)]
    (events, listen), (answers, speak) = streams
    listen.write(b"GET /sse HTTP/1.1\r\nhost: h\r\n\r\n")
    await events.readuntil(b"event: endpoint\ndata: ")
    uri = (await events.readline()).strip()
    for payload in (b"1", b"2"):
        speak.write(
            b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
            b"content-length: 1\r\n\r\n%b" % (uri, payload)
        )
        assert (await answers.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 202 ")
        await events.readuntil(b"event: message\ndata: %b!\n\n" % payload)
    listen.close()
    await asyncio.gather(*serving)
    speak.write(b"POST %b HTTP/1.1\r\nhost: h\r\n\r\n" % uri)
    assert (await answers.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
    speak.close()
    await listener.aclose(1)
