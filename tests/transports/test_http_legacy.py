"""HTTP+SSE of 2024-11-05: over exchanges that only remember what they were answered, and TCP."""

import asyncio
from collections.abc import Callable, Collection

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from trunkline.jsonrpc import Channel, ConnectionLost
from trunkline.transports.exchange import ByteStream, Exchange, Head, Headers, HttpRequest, Pieces
from trunkline.transports.http_legacy import LegacyDoor, LegacyLimits
from trunkline.transports.http_listener import HttpListener
from trunkline.transports.sse import COMMENT, Event, SseParser

JSON = {b"content-type": b"application/json"}


class Asked:
    """An Exchange that remembers what it was answered."""

    def __init__(self, request: HttpRequest, stream: ByteStream | None = None) -> None:
        self.request = request
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.pieces: list[bytes] = []
        self.finished = False
        self.gone = False
        self.room = asyncio.Event()
        self.room.set()
        self._stream = stream
        self._callbacks: list[Callable[[], None]] = []

    def respond(
        self, status: int, headers: Headers = (), body: bytes = b"", rest: Pieces = ()
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
        if self.gone:
            raise ConnectionLost("the client has gone")
        self.pieces.append(piece)
        await self.room.wait()

    def finish(self) -> None:
        assert not self.finished
        self.finished = True

    def when_gone(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def upgrade(self, headers: Headers = ()) -> ByteStream:
        self.begin(101, headers)
        assert self._stream is not None
        return self._stream

    def go(self) -> None:
        """Be the client who goes."""
        self.gone = True
        for callback in self._callbacks:
            callback()


def request(
    method: str,
    query: str = "",
    headers: dict[bytes, bytes] | None = None,
    body: bytes = b"",
    repeated: Collection[bytes] = (),
) -> HttpRequest:
    return HttpRequest(Head(method, "/", query, headers or {}, frozenset(repeated), ""), body)


def events(exchange: Asked) -> list[Event]:
    """Return what a client sees."""
    found = SseParser(1_000_000).feed(b"".join(exchange.pieces))
    return [event for event in found if isinstance(event, Event)]


async def enter(
    door: LegacyDoor, principal: str = "ann", keep_alive: float = 15.0
) -> tuple[Channel, Asked, str]:
    """Open a session; return it, the exchange that carries it, and the query to POST with."""
    exchange = Asked(request("GET"))
    channel = await door.open(exchange, principal, keep_alive)
    assert channel is not None
    return channel, exchange, events(exchange)[0].data.decode().partition("?")[2]


def post(
    door: LegacyDoor,
    query: str,
    body: bytes = b"{}",
    headers: dict[bytes, bytes] | None = None,
    principal: str = "ann",
) -> Asked:
    exchange = Asked(request("POST", query, JSON if headers is None else headers, body))
    door.post(exchange, principal)
    return exchange


@pytest.mark.parametrize("path", ["/messages", "messages", "/a/b-c.d_e~/1"])
@tidy
async def test_the_first_event_names_a_path_with_an_id_that_cannot_be_guessed(path: str) -> None:
    door = LegacyDoor(path)
    ids: set[str] = set()
    for _ in range(2):
        channel, exchange, query = await enter(door)
        assert exchange.status == 200
        assert exchange.headers == {
            b"content-type": b"text/event-stream",
            b"cache-control": b"no-store",
            b"x-accel-buffering": b"no",
        }
        assert events(exchange) == [Event(f"{path}?{query}".encode(), "endpoint")]
        name, _, id = query.partition("=")
        assert (name, len(id)) == ("session_id", 32)
        ids.add(id)
        await channel.aclose()
    assert len(ids) == 2


@pytest.mark.parametrize(
    "path", ["", "//evil.example/a", "/\\evil.example", "http://evil", "/a?b", "/a#b", "a:b", "/ä"]
)
def test_a_door_does_not_lead_elsewhere(path: str) -> None:
    with pytest.raises(ValueError, match="expected the path"):
        LegacyDoor(path)


@tidy
async def test_what_is_posted_is_received_and_what_is_sent_is_an_event() -> None:
    door = LegacyDoor()
    channel, exchange, query = await enter(door)
    waiting = asyncio.create_task(channel.receive())
    assert await is_stuck(waiting)
    answer = post(door, query, b'{"a":1}', {b"content-type": b"Application/JSON; charset=utf-8"})
    assert (answer.status, answer.body) == (202, b"")
    assert await waiting == b'{"a":1}'
    await channel.send(b'{"b":\n2}')
    assert events(exchange)[1:] == [Event(b'{"b":\n2}', "message")]
    await channel.aclose()


@tidy
async def test_a_post_is_refused_for_what_is_wrong_with_it() -> None:
    door = LegacyDoor()
    channel, _, query = await enter(door)
    assert post(door, "").status == 400
    assert post(door, "sessionId=1").status == 400
    assert post(door, f"{query}&{query}").status == 400
    assert post(door, "session_id=unknown").status == 404
    assert post(door, query, principal="bob").status == 404
    assert post(door, query, principal="").status == 404
    assert post(door, query, headers={}).status == 415
    for kind in (b"text/plain", b"application/json; charset=latin-1"):
        assert post(door, query, headers={b"content-type": kind}).status == 415
    wrong = Asked(request("PUT", query, JSON))
    door.post(wrong, "ann")
    assert (wrong.status, wrong.headers[b"allow"]) == (405, b"POST")
    assert post(door, query, b"1").status == 202
    assert await channel.receive() == b"1"
    await channel.aclose()


@tidy
async def test_another_principals_session_looks_like_none() -> None:
    door = LegacyDoor()
    channel, _, query = await enter(door)
    theirs, none = post(door, query, principal="bob"), post(door, "session_id=x")
    assert (theirs.body, theirs.headers) == (none.body, none.headers)
    await channel.aclose()


@tidy
async def test_a_session_that_does_not_keep_up_takes_no_more() -> None:
    door = LegacyDoor(limits=LegacyLimits(max_waiting=2))
    channel, _, query = await enter(door)
    assert [post(door, query).status for _ in range(2)] == [202, 202]
    refused = post(door, query)
    assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
    await channel.receive()
    assert post(door, query).status == 202
    await channel.aclose()


@tidy
async def test_bytes_that_wait_are_bounded_but_one_payload_always_fits() -> None:
    door = LegacyDoor(limits=LegacyLimits(max_waiting_bytes=10))
    channel, _, query = await enter(door)
    assert post(door, query, b"x" * 11).status == 202
    assert post(door, query, b"x").status == 503
    assert await channel.receive() == b"x" * 11
    assert [post(door, query, b"x" * 5).status for _ in range(3)] == [202, 202, 503]
    await channel.aclose()


@tidy
async def test_there_are_not_more_sessions_than_allowed() -> None:
    door = LegacyDoor(limits=LegacyLimits(max_sessions=1))
    channel, _, _ = await enter(door)
    refused = Asked(request("GET"))
    assert await door.open(refused, "ann", 15.0) is None
    assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
    await channel.aclose()
    channel, _, _ = await enter(door)
    await channel.aclose()


@tidy
async def test_only_get_opens_a_session() -> None:
    exchange = Asked(request("POST"))
    assert await LegacyDoor().open(exchange, "ann", 15.0) is None
    assert (exchange.status, exchange.headers[b"allow"]) == (405, b"GET")


@tidy
async def test_losing_the_stream_ends_the_session() -> None:
    door = LegacyDoor()
    channel, exchange, query = await enter(door)
    post(door, query, b"1")
    exchange.go()
    assert post(door, query, b"2").status == 404
    assert await channel.receive() == b"1"
    assert await channel.receive() is None
    with pytest.raises(ConnectionLost):
        await channel.send(b"3")
    await channel.aclose()
    assert not exchange.finished


@tidy
async def test_losing_the_stream_wakes_who_waits() -> None:
    channel, exchange, _ = await enter(LegacyDoor())
    waiting = [asyncio.create_task(channel.receive()) for _ in range(2)]
    await settle()
    exchange.go()
    assert await asyncio.gather(*waiting) == [None, None]
    await settle()


@tidy
async def test_a_send_that_fails_ends_the_session_even_if_nobody_says_so() -> None:
    door = LegacyDoor()
    channel, exchange, query = await enter(door)
    exchange.gone = True
    with pytest.raises(ConnectionLost):
        await channel.send(b"1")
    assert post(door, query).status == 404
    assert await channel.receive() is None
    await channel.aclose()


@tidy
async def test_a_client_that_goes_at_once_leaves_a_channel_that_has_ended() -> None:
    exchange = Asked(request("GET"))
    exchange.gone = True
    channel = await LegacyDoor(limits=LegacyLimits(max_sessions=1)).open(exchange, "ann", 15.0)
    assert channel is not None
    assert await channel.receive() is None
    await channel.aclose()


@tidy
async def test_whoever_cancels_opening_leaves_no_session_behind() -> None:
    door = LegacyDoor(limits=LegacyLimits(max_sessions=1))
    exchange = Asked(request("GET"))
    exchange.room.clear()
    opening = asyncio.create_task(door.open(exchange, "ann", 15.0))
    assert await is_stuck(opening)
    await stop(opening)
    assert exchange.finished
    channel, _, _ = await enter(door)
    await channel.aclose()


@tidy
async def test_closing_ends_the_stream_and_drops_what_waits() -> None:
    door = LegacyDoor()
    channel, exchange, query = await enter(door)
    post(door, query, b"1")
    await channel.aclose()
    await channel.aclose()
    assert exchange.finished
    assert await channel.receive() is None
    with pytest.raises(ConnectionLost):
        await channel.send(b"2")
    assert post(door, query).status == 404


@tidy
async def test_send_waits_while_the_client_is_behind() -> None:
    channel, exchange, _ = await enter(LegacyDoor())
    exchange.room.clear()
    task = asyncio.create_task(channel.send(b"1"))
    assert await is_stuck(task)
    exchange.room.set()
    await task
    await channel.aclose()


@tidy
async def test_a_stream_is_kept_alive() -> None:
    channel, exchange, _ = await enter(LegacyDoor(), keep_alive=0.001)
    while exchange.pieces[1:3] != [COMMENT, COMMENT]:
        await asyncio.sleep(0)
    assert len(events(exchange)) == 1
    await channel.aclose()


@tidy
async def test_a_client_that_is_behind_is_not_told_that_we_are_here_again_and_again() -> None:
    channel, exchange, _ = await enter(LegacyDoor(), keep_alive=0.001)
    exchange.room.clear()
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, later.set)
    await later.wait()
    assert exchange.pieces[1:] == [COMMENT]
    await channel.aclose()


@tidy
async def test_a_stream_that_cannot_be_kept_alive_ends() -> None:
    channel, exchange, _ = await enter(LegacyDoor(), keep_alive=0.001)
    exchange.gone = True
    assert await channel.receive() is None
    await channel.aclose()


@tidy
async def test_two_connections_make_a_channel_over_tcp() -> None:
    door, serving = LegacyDoor(), set[asyncio.Task[None]]()

    async def serve(exchange: Exchange) -> None:
        channel = await door.open(exchange, "ann", 15.0)
        assert channel is not None
        while (payload := await channel.receive()) is not None:
            await channel.send(payload + b"!")
        await channel.aclose()

    def answer(exchange: Exchange) -> None:
        if exchange.request.path == "/sse":
            serving.add(asyncio.create_task(serve(exchange)))
        else:
            door.post(exchange, "ann")

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
