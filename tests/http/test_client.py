"""The HTTP client against scripted servers, well-behaved and hostile."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.scripted_server import (
    ScriptedConnection,
    ScriptedServer,
    answers,
    client_tls,
    ok,
    on_both_loops,
    scripted_server,
    server_tls,
)
from tests.tasks import is_stuck, settle, stop
from trunkline.http.address import is_public_address, parse_http_url
from trunkline.http.client import (
    ClientLimits,
    HeadBuilder,
    HttpClient,
    ResponseTooLarge,
)
from trunkline.jsonrpc import ConnectionLost

JSON = (b"content-type", b"application/json")
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def client_of(
    server: ScriptedServer, *given: Any, **limits: Any
) -> AsyncGenerator[HttpClient]:
    client = HttpClient(server.url, given, ClientLimits(**limits))
    try:
        yield client
    finally:
        await client.aclose()


async def post(client: HttpClient, body: bytes = b"{}", **options: Any) -> bytes:
    return await (await client.request("POST", [JSON], body, **options)).read()


async def loss(asked: Awaitable[object]) -> str:
    with pytest.raises(ConnectionLost) as failure:
        await asked
    return str(failure.value)


async def unconnected(client: HttpClient) -> None:
    """Wait until no connection is left."""
    while client.connection_count:
        await asyncio.sleep(0)


@on_both_loops
async def test_a_request_is_sent_to_the_byte_and_answered() -> None:
    async with (
        scripted_server(answers(ok(b"hi", JSON[0] + b": " + JSON[1]))) as server,
        client_of(server, (b"authorization", b"Bearer x")) as client,
    ):
        response = await client.request("POST", [JSON, (b"x", b"\xff y")], b"body")
        assert (response.status, response.headers[b"content-type"]) == (200, b"application/json")
        assert await response.read() == b"hi"
        (seen,) = server.requests
        assert seen.head == (
            b"POST /mcp HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n"
            b"authorization: Bearer x\r\ncontent-type: application/json\r\nx: \xff y\r\n"
            b"content-length: 4\r\n\r\n" % server.name.encode()
        )
        assert seen.body == b"body"
        assert client.name == server.name


@on_both_loops
async def test_an_empty_body_has_a_length_only_for_methods_with_a_body() -> None:
    async with scripted_server(answers(ok(), ok(), ok())) as server, client_of(server) as client:
        for method in ("GET", "DELETE", "POST"):
            await (await client.request(method)).read()
        assert [b"content-length" in seen.headers for seen in server.requests] == [
            False,
            False,
            True,
        ]


@on_both_loops
async def test_a_request_can_name_another_target() -> None:
    async with scripted_server(answers(ok(), ok())) as server, client_of(server) as client:
        await post(client, target="/messages?id=1")
        await post(client)
        assert [seen.target for seen in server.requests] == ["/messages?id=1", "/mcp"]


@on_both_loops
async def test_a_buffered_response_is_read_without_waiting() -> None:
    async with scripted_server(answers(ok(b"x" * 200))) as server, client_of(server) as client:
        response = await client.request("POST", (), b"")
        with pytest.raises(StopIteration) as end:
            response.read().send(None)
        assert end.value.value == b"x" * 200


@on_both_loops
async def test_sequential_requests_share_a_connection_and_concurrent_ones_do_not() -> None:
    async def echo(line: ScriptedConnection) -> None:
        while True:
            await line.send(ok((await line.request()).body))

    async with scripted_server(echo) as server, client_of(server) as client:
        for n in range(10):
            assert await post(client, b"%d" % n) == b"%d" % n
        assert len(server.lines) == 1
        bodies = [b"%d" % n for n in range(40)]
        assert await asyncio.gather(*[post(client, body) for body in bodies]) == bodies
        assert 1 < len(server.lines) <= 40
        many = len(server.lines)
        assert await asyncio.gather(*[post(client, body) for body in bodies]) == bodies
        assert len(server.lines) == many


@on_both_loops
async def test_large_bodies_are_sent_and_received() -> None:
    async def echo(line: ScriptedConnection) -> None:
        while True:
            body = (await line.request()).body
            await line.send(ok(body))

    large = bytes(range(256)) * 8192
    async with scripted_server(echo) as server, client_of(server) as client:
        for _ in range(2):
            assert await post(client, large) == large
        assert len(server.lines) == 1


@on_both_loops
async def test_requests_work_over_tls(tmp_path: Path) -> None:
    large = bytes(1_000_000)
    async with scripted_server(answers(ok(b"1"), ok(large)), tls=server_tls(tmp_path)) as server:
        client = HttpClient(server.url, tls=client_tls())
        assert await post(client) == b"1"
        assert await post(client) == large
        await client.aclose()
        assert len(server.lines) == 1


@on_both_loops
async def test_a_redirect_is_not_followed() -> None:
    moved = ok(b"", b"location: http://127.0.0.1:1/", status=b"307 Temporary Redirect")
    async with scripted_server(answers(moved)) as server, client_of(server) as client:
        response = await client.request("POST", (), b"{}")
        assert (response.status, response.headers[b"location"]) == (307, b"http://127.0.0.1:1/")
        assert len(server.requests) == 1


@on_both_loops
async def test_pieces_are_received_as_they_arrive_and_the_end_frees_the_connection() -> None:
    released = asyncio.Event()

    async def stream(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(CHUNKED_HEAD + b"1\r\na\r\n")
        await released.wait()
        await line.send(b"1\r\nb\r\n0\r\n\r\n")
        await line.request()
        await line.send(ok(b"again"))
        await line.wait_disconnected()

    async with scripted_server(stream) as server, client_of(server) as client:
        response = await client.request("GET")
        assert await response.receive() == b"a"
        next_piece = asyncio.create_task(response.receive())
        assert await is_stuck(next_piece)
        released.set()
        assert await next_piece == b"b"
        assert await response.receive() is None
        assert await post(client) == b"again"


async def close_on_second_request(line: ScriptedConnection) -> None:
    """A script: respond once, and close on the second request."""
    await line.request()
    await line.send(ok(b"1"))
    await line.request()
    line.reset()


@pytest.mark.holds("C31")
@on_both_loops
async def test_a_request_is_not_sent_twice() -> None:
    async with (
        scripted_server(close_on_second_request, answers(ok(b"2"))) as server,
        client_of(server) as client,
    ):
        assert await post(client) == b"1"
        assert "before the response" in await loss(post(client))
        assert len(server.requests) == 2
        assert await post(client) == b"2"


@on_both_loops
async def test_an_idempotent_request_is_sent_twice_if_a_kept_connection_dies() -> None:
    async with (
        scripted_server(close_on_second_request, answers(ok(b"2"))) as server,
        client_of(server) as client,
    ):
        assert await post(client, idempotent=True) == b"1"
        assert await post(client, idempotent=True) == b"2"
        assert len(server.requests) == 3


@on_both_loops
async def test_a_retry_uses_a_new_connection() -> None:
    async with (
        scripted_server(
            close_on_second_request, close_on_second_request, answers(ok(b"2"))
        ) as server,
        client_of(server) as client,
    ):
        assert await asyncio.gather(post(client), post(client)) == [b"1", b"1"]
        assert await post(client, idempotent=True) == b"2"
        assert len(server.requests) == 4


@on_both_loops
async def test_not_even_an_idempotent_request_is_sent_three_times() -> None:
    async def refuse(line: ScriptedConnection) -> None:
        await line.request()
        line.reset()

    async with (
        scripted_server(close_on_second_request, refuse, answers(ok(b"3"))) as server,
        client_of(server) as client,
    ):
        assert await post(client, idempotent=True) == b"1"
        assert "before the response" in await loss(post(client, idempotent=True))
        assert len(server.requests) == 3


@on_both_loops
async def test_an_idempotent_request_is_not_retried_once_its_response_started() -> None:
    async def stammer(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(ok(b"1"))
        await line.request()
        await line.send(b"HTTP/1.1 2")
        line.close()

    async with scripted_server(stammer, answers(ok(b"2"))) as server, client_of(server) as client:
        assert await post(client, idempotent=True) == b"1"
        assert "before the response" in await loss(post(client, idempotent=True))
        assert len(server.requests) == 2


@on_both_loops
async def test_an_idempotent_request_is_not_retried_after_a_timeout() -> None:
    async with (
        scripted_server(answers(ok(b"1"), b""), answers(ok(b"2"))) as server,
        client_of(server, head_timeout=30.0) as client,
    ):
        assert await post(client, idempotent=True) == b"1"
        asking = asyncio.create_task(loss(post(client, idempotent=True)))
        while len(server.requests) < 2:
            await asyncio.sleep(0)
        pool: Any = client
        for connection in pool._pool._connections:
            connection.expire()
        assert await asking == f"{server.name}: no response within 30 s"
        assert len(server.requests) == 2


@on_both_loops
async def test_an_event_stream_may_be_silent_for_any_time() -> None:
    released = asyncio.Event()

    async def stream(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(CHUNKED_HEAD)
        await released.wait()
        await line.send(b"1\r\na\r\n0\r\n\r\n")
        await line.wait_disconnected()

    async with (
        scripted_server(stream, answers(CHUNKED_HEAD)) as server,
        client_of(server, idle_timeout=0.02) as client,
    ):
        patient = await client.request("GET")
        patient.disable_read_timeout()
        other = await client.request("GET")  # its timeout shows that time has passed
        assert "no more of the body within 0.02 s" in await loss(other.receive())
        released.set()
        assert await patient.read() == b"a"


@on_both_loops
async def test_closing_the_client_fails_pending_requests() -> None:
    async with (
        scripted_server(answers(CHUNKED_HEAD), answers()) as server,
        client_of(server) as client,
    ):
        response = await client.request("GET")
        asking = asyncio.create_task(post(client))
        while len(server.lines) < 2:
            await asyncio.sleep(0)
        await client.aclose()
        assert await loss(asking) == f"{server.name}: the client is closed"
        assert await loss(response.read()) == f"{server.name}: the client is closed"
        assert await loss(post(client)) == f"{server.name}: the client is closed"
        await server.wait_finished()


@on_both_loops
async def test_an_address_filter_limits_requests_to_the_public_internet() -> None:
    async with scripted_server(answers(ok())) as server:
        client = HttpClient(server.url, allow=is_public_address)
        assert await loss(post(client)) == f"{server.name}: its address is not allowed"
        assert server.lines == []


CLIENT = HttpClient("http://127.0.0.1:9/")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"x", b"a\r\ny: b")], "no line end"),
        ([(b"x", b"a\nb")], "no line end"),
        ([(b"x", b"a\rb")], "no line end"),
        ([(b"x", b"a\0b")], "no line end"),
        ([(b"", b"a")], "the name of a header"),
        ([(b"x:", b"a")], "the name of a header"),
        ([(b"x ", b"a")], "the name of a header"),
        ([(b"x\r\ny", b"a")], "the name of a header"),
        ([(b"x\n", b"a")], "the name of a header"),
        ([(b"\xc3\xa9", b"a")], "the name of a header"),
        ([(b"Content-Length", b"1")], "not the client's own"),
        ([(b"transfer-encoding", b"chunked")], "not the client's own"),
        ([(b"Host", b"elsewhere")], "not the client's own"),
        ([(b"Accept-Encoding", b"gzip")], "not the client's own"),
    ],
)
async def test_a_header_that_would_inject_another_is_rejected(
    headers: list[tuple[bytes, bytes]], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        await CLIENT.request("POST", headers, b"")
    with pytest.raises(ValueError, match=expected):
        HttpClient("http://h/", headers)


@pytest.mark.parametrize("method", ["", "GET ", "G\r\nET", "GÉT", "CONNECT"])
async def test_an_invalid_method_is_rejected(method: str) -> None:
    with pytest.raises(ValueError, match="expected an HTTP method, got"):
        await CLIENT.request(method)


@pytest.mark.parametrize("target", ["", "x", "/ HTTP/1.1\r\nx: y", "/\n", "http://elsewhere/"])
async def test_an_invalid_target_is_rejected(target: str) -> None:
    with pytest.raises(ValueError, match="expected a percent-encoded path"):
        await CLIENT.request("GET", target=target)


def test_a_url_with_credentials_is_rejected() -> None:
    with pytest.raises(ValueError, match="put them into headers"):
        HttpClient("http://user:secret@h/")


@given(
    st.text(max_size=5),
    st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), max_size=3),
    st.booleans(),
)
def test_a_head_always_has_one_line_per_header(
    target: str, headers: list[tuple[bytes, bytes]], constant: bool
) -> None:
    origin = parse_http_url("http://h/")
    try:
        given = HeadBuilder(origin, headers if constant else ())
        head = given.build("POST", () if constant else headers, 2, "/" + target)
    except ValueError:
        return
    lines = head.split(b"\r\n")
    assert lines[0] == f"POST /{target} HTTP/1.1".encode()
    assert lines[3:-3] == [name + b": " + value for name, value in headers]
    assert lines[-3:] == [b"content-length: 2", b"", b""]
    assert head.count(b"\r") == head.count(b"\n") == len(lines) - 1


def test_rendered_heads_are_cached_up_to_a_limit() -> None:
    heads = HeadBuilder(parse_http_url("http://h/"), [(b"a", b"b")])
    for n in range(1000):
        value = b"%d" % n
        head = heads.build("GET", ((b"x", value),), 0)
        assert head.endswith(b"\r\na: b\r\nx: " + value + b"\r\n\r\n")
        assert heads.build("GET", ((b"x", value),), 0) == head
    assert sum(map(len, cached_prefixes(heads))) < 100_000


def cached_prefixes(heads: HeadBuilder) -> list[bytes]:
    """Return all cached byte strings."""
    kept = gc.get_referents(vars(heads))
    return [found for one in kept for found in gc.get_referents(one) if isinstance(found, bytes)]


@on_both_loops
async def test_a_body_that_is_not_read_stops_the_server() -> None:
    sent = 0

    async def pour(line: ScriptedConnection) -> None:
        nonlocal sent
        await line.request()
        await line.send(CHUNKED_HEAD)
        while True:
            await line.send(b"10000\r\n" + bytes(65536) + b"\r\n")
            sent += 65536

    async with scripted_server(pour) as server, client_of(server, idle_timeout=0.05) as client:
        response = await client.request("GET")
        seen = -1
        while sent > seen:  # until all buffers in between are full
            seen = sent
            await settle()
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        received = 0
        while received <= seen:
            received += len(await response.receive() or b"")
        response.close()
        await server.wait_finished()


@on_both_loops
async def test_an_endless_body_is_not_read_to_the_end() -> None:
    async def pour(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(CHUNKED_HEAD)
        while True:
            await line.send(b"10000\r\n" + bytes(65536) + b"\r\n")

    async with scripted_server(pour) as server, client_of(server, max_body=1_000_000) as client:
        response = await client.request("POST", (), b"{}")
        with pytest.raises(ResponseTooLarge, match="at most 1000000 bytes"):
            await response.read()
        await server.wait_finished()
        await unconnected(client)


@on_both_loops
async def test_an_endless_head_is_not_read_to_the_end() -> None:
    async def pour(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await line.send(b"x: " + b"y" * 1000 + b"\r\n")

    async with scripted_server(pour) as server, client_of(server) as client:
        expected = "expected at most 65536 bytes before the body"
        assert await loss(post(client)) == f"{server.name}: {expected}"
        await server.wait_finished()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"garbage\r\n\r\n", "expected HTTP/1.1: "),
        (ok(b"x", b"content-encoding: br"), "expected content-encoding b'identity', got b'br'"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", "the connection was closed after 5"),
        (CHUNKED_HEAD + b"5\r\nabc", "the connection was closed before the end of the body"),
        (b"", "the connection was closed before the response"),
    ],
)
@on_both_loops
async def test_a_malformed_or_truncated_response_fails_the_request(
    raw: bytes, expected: str
) -> None:
    async def cut(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(raw)

    async with scripted_server(cut) as server, client_of(server) as client:
        assert (await loss(post(client))).startswith(f"{server.name}: {expected}")
        await server.wait_finished()
        await unconnected(client)


@on_both_loops
async def test_a_response_without_a_length_ends_with_the_connection() -> None:
    async def old(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(b"HTTP/1.0 200 OK\r\n\r\nall of it")
        line.shut_down()
        await line.wait_disconnected()

    async with scripted_server(old) as server, client_of(server) as client:
        assert await post(client) == b"all of it"
        await server.wait_finished()
        await unconnected(client)


@on_both_loops
async def test_a_surplus_response_is_never_given_to_the_next_request() -> None:
    surplus = answers(ok(b"mine") + ok(b"of nobody"))
    async with (
        scripted_server(surplus, answers(ok(b"next"))) as server,
        client_of(server) as client,
    ):
        assert await post(client) == b"mine"
        assert await post(client) == b"next"
        assert len(server.lines) == 2


@on_both_loops
async def test_a_server_may_answer_before_it_received_the_whole_request() -> None:
    async def refuse(line: ScriptedConnection) -> None:
        await line.head()
        await line.send(ok(b"too large", status=b"413 Content Too Large"))
        await line.wait_disconnected()

    async with (
        scripted_server(refuse, answers(ok(b"small"))) as server,
        client_of(server) as client,
    ):
        response = await client.request("POST", (), bytes(16 * 1024 * 1024))
        assert response.status == 413
        assert await response.read() == b"too large"
        await server.wait_finished()
        assert await post(client) == b"small"
        assert len(server.lines) == 2


@on_both_loops
async def test_cancelling_before_the_response_closes_the_connection() -> None:
    mute = answers(b"")
    async with scripted_server(mute, answers(ok(b"next"))) as server, client_of(server) as client:
        asking = asyncio.create_task(post(client))
        while not server.requests:
            await asyncio.sleep(0)
        await stop(asking)
        await server.wait_finished()
        await unconnected(client)
        assert await post(client) == b"next"


@on_both_loops
async def test_cancelling_while_reading_closes_the_connection() -> None:
    begun = answers(CHUNKED_HEAD + b"1\r\na\r\n")
    async with scripted_server(begun, answers(ok(b"next"))) as server, client_of(server) as client:
        response = await client.request("POST", (), b"{}")
        reading = asyncio.create_task(response.read())
        assert await is_stuck(reading)
        await stop(reading)
        await server.wait_finished()
        await unconnected(client)
        assert await post(client) == b"next"


@on_both_loops
async def test_cancelling_at_any_moment_spoils_no_other_response() -> None:
    async def echo(line: ScriptedConnection) -> None:
        while True:
            await line.send(ok((await line.request()).body))

    async with scripted_server(echo) as server, client_of(server, max_connections=2) as client:
        for moment in range(30):
            asking = asyncio.create_task(post(client, b"dropped"))
            for _ in range(moment):
                await asyncio.sleep(0)
            asking.cancel()
            assert await post(client, b"%d" % moment) == b"%d" % moment
            await asyncio.wait([asking])
        assert client.connection_count <= 2


@on_both_loops
async def test_cancelling_receive_loses_no_data() -> None:
    released = asyncio.Event()

    async def stream(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(CHUNKED_HEAD)
        await released.wait()
        await line.send(b"1\r\na\r\n")
        await line.wait_disconnected()

    async with scripted_server(stream) as server, client_of(server) as client:
        response = await client.request("GET")
        receiving = asyncio.create_task(response.receive())
        assert await is_stuck(receiving)
        await stop(receiving)
        released.set()
        assert await response.receive() == b"a"
        response.close()
        await server.wait_finished()
        await unconnected(client)
        assert "the response was closed" in await loss(response.receive())
