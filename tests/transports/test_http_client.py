"""Requests to servers of all kinds: what leaves, what comes back, and what is never sent twice."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jsonrpc.test_channel import is_stuck
from tests.transports.faulty import (
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
from trunkline.transports.http_address import is_public, parse_origin
from trunkline.transports.http_client import (
    ClientLimits,
    Heads,
    HttpClient,
)

JSON = (b"content-type", b"application/json")
BEGUN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def client_of(server: FaultServer, *given: Any, **limits: Any) -> AsyncGenerator[HttpClient]:
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
    while client.connections:
        await asyncio.sleep(0)


@on_both_loops
async def test_a_request_is_sent_to_the_byte_and_answered() -> None:
    async with (
        faulty(answers(ok(b"hi", JSON[0] + b": " + JSON[1]))) as server,
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
async def test_a_request_without_a_body_has_a_length_only_if_its_method_wants_one() -> None:
    async with faulty(answers(ok(), ok(), ok())) as server, client_of(server) as client:
        for method in ("GET", "DELETE", "POST"):
            await (await client.request(method)).read()
        assert [b"content-length" in seen.headers for seen in server.requests] == [
            False,
            False,
            True,
        ]


@on_both_loops
async def test_another_target_of_the_same_server_can_be_asked() -> None:
    async with faulty(answers(ok(), ok())) as server, client_of(server) as client:
        await post(client, target="/messages?id=1")
        await post(client)
        assert [seen.target for seen in server.requests] == ["/messages?id=1", "/mcp"]


@on_both_loops
async def test_an_answer_that_is_there_is_read_without_waiting() -> None:
    async with faulty(answers(ok(b"x" * 200))) as server, client_of(server) as client:
        response = await client.request("POST", (), b"")
        with pytest.raises(StopIteration) as end:
            response.read().send(None)
        assert end.value.value == b"x" * 200


@on_both_loops
async def test_one_connection_serves_one_request_after_the_other_and_two_serve_two_at_once() -> (
    None
):
    async def echo(line: Line) -> None:
        while True:
            await line.send(ok((await line.request()).body))

    async with faulty(echo) as server, client_of(server) as client:
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
async def test_large_bodies_go_both_ways() -> None:
    async def echo(line: Line) -> None:
        while True:
            body = (await line.request()).body
            await line.send(ok(body))

    large = bytes(range(256)) * 8192
    async with faulty(echo) as server, client_of(server) as client:
        for _ in range(2):
            assert await post(client, large) == large
        assert len(server.lines) == 1


@on_both_loops
async def test_over_tls_it_is_the_same(tmp_path: Path) -> None:
    large = bytes(1_000_000)
    async with faulty(answers(ok(b"1"), ok(large)), tls=server_tls(tmp_path)) as server:
        client = HttpClient(server.url, tls=client_tls())
        assert await post(client) == b"1"
        assert await post(client) == large
        await client.aclose()
        assert len(server.lines) == 1


@on_both_loops
async def test_a_redirect_is_not_followed() -> None:
    moved = ok(b"", b"location: http://127.0.0.1:1/", status=b"307 Temporary Redirect")
    async with faulty(answers(moved)) as server, client_of(server) as client:
        response = await client.request("POST", (), b"{}")
        assert (response.status, response.headers[b"location"]) == (307, b"http://127.0.0.1:1/")
        assert len(server.requests) == 1


@on_both_loops
async def test_pieces_are_received_as_they_come_and_the_end_frees_the_connection() -> None:
    told = asyncio.Event()

    async def stream(line: Line) -> None:
        await line.request()
        await line.send(BEGUN + b"1\r\na\r\n")
        await told.wait()
        await line.send(b"1\r\nb\r\n0\r\n\r\n")
        await line.request()
        await line.send(ok(b"again"))
        await line.gone()

    async with faulty(stream) as server, client_of(server) as client:
        response = await client.request("GET")
        assert await response.receive() == b"a"
        next_piece = asyncio.create_task(response.receive())
        assert await is_stuck(next_piece)
        told.set()
        assert await next_piece == b"b"
        assert await response.receive() is None
        assert await post(client) == b"again"


async def die(line: Line) -> None:
    """A script: answer once, and die under the second request."""
    await line.request()
    await line.send(ok(b"1"))
    await line.request()
    line.reset()


@on_both_loops
async def test_a_request_is_not_sent_twice() -> None:
    async with faulty(die, answers(ok(b"2"))) as server, client_of(server) as client:
        assert await post(client) == b"1"
        assert "before the answer" in await loss(post(client))
        assert len(server.requests) == 2
        assert await post(client) == b"2"


@on_both_loops
async def test_an_idempotent_request_is_sent_twice_if_a_kept_connection_dies() -> None:
    async with faulty(die, answers(ok(b"2"))) as server, client_of(server) as client:
        assert await post(client, idempotent=True) == b"1"
        assert await post(client, idempotent=True) == b"2"
        assert len(server.requests) == 3


@on_both_loops
async def test_what_is_sent_again_is_sent_over_a_new_connection() -> None:
    async with faulty(die, die, answers(ok(b"2"))) as server, client_of(server) as client:
        assert await asyncio.gather(post(client), post(client)) == [b"1", b"1"]
        assert await post(client, idempotent=True) == b"2"
        assert len(server.requests) == 4


@on_both_loops
async def test_not_even_an_idempotent_request_is_sent_three_times() -> None:
    async def refuse(line: Line) -> None:
        await line.request()
        line.reset()

    async with faulty(die, refuse, answers(ok(b"3"))) as server, client_of(server) as client:
        assert await post(client, idempotent=True) == b"1"
        assert "before the answer" in await loss(post(client, idempotent=True))
        assert len(server.requests) == 3


@on_both_loops
async def test_an_idempotent_request_is_not_sent_again_once_its_answer_has_begun() -> None:
    async def stammer(line: Line) -> None:
        await line.request()
        await line.send(ok(b"1"))
        await line.request()
        await line.send(b"HTTP/1.1 2")
        line.close()

    async with faulty(stammer, answers(ok(b"2"))) as server, client_of(server) as client:
        assert await post(client, idempotent=True) == b"1"
        assert "before the answer" in await loss(post(client, idempotent=True))
        assert len(server.requests) == 2


@on_both_loops
async def test_an_idempotent_request_is_not_sent_again_when_time_is_up() -> None:
    async with (
        faulty(answers(ok(b"1"), b""), answers(ok(b"2"))) as server,
        client_of(server, head_timeout=0.05) as client,
    ):
        assert await post(client, idempotent=True) == b"1"
        assert (
            await loss(post(client, idempotent=True)) == f"{server.name}: no answer within 0.05 s"
        )
        assert len(server.requests) == 2


@on_both_loops
async def test_a_stream_of_events_may_be_silent_for_any_time() -> None:
    told = asyncio.Event()

    async def stream(line: Line) -> None:
        await line.request()
        await line.send(BEGUN)
        await told.wait()
        await line.send(b"1\r\na\r\n0\r\n\r\n")
        await line.gone()

    async with (
        faulty(stream, answers(BEGUN)) as server,
        client_of(server, idle_timeout=0.02) as client,
    ):
        patient = await client.request("GET")
        patient.be_patient()
        other = await client.request("GET")  # its end tells that the time is up
        assert "nothing more of the body within 0.02 s" in await loss(other.receive())
        told.set()
        assert await patient.read() == b"a"


@on_both_loops
async def test_closing_the_client_ends_what_is_under_way() -> None:
    async with faulty(answers(BEGUN), answers()) as server, client_of(server) as client:
        response = await client.request("GET")
        asking = asyncio.create_task(post(client))
        while len(server.lines) < 2:
            await asyncio.sleep(0)
        await client.aclose()
        assert await loss(asking) == f"{server.name}: the client is closed"
        assert await loss(response.read()) == f"{server.name}: the client is closed"
        assert await loss(post(client)) == f"{server.name}: the client is closed"
        await server.played()


@on_both_loops
async def test_only_the_public_internet_is_asked_where_that_is_wanted() -> None:
    async with faulty(answers(ok())) as server:
        client = HttpClient(server.url, allow=is_public)
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
async def test_a_header_that_could_become_more_than_one_is_refused(
    headers: list[tuple[bytes, bytes]], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        await CLIENT.request("POST", headers, b"")
    with pytest.raises(ValueError, match=expected):
        HttpClient("http://h/", headers)


@pytest.mark.parametrize("method", ["", "GET ", "G\r\nET", "GÉT", "CONNECT"])
async def test_what_is_no_method_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="expected an HTTP method, got"):
        await CLIENT.request(method)


@pytest.mark.parametrize("target", ["", "x", "/ HTTP/1.1\r\nx: y", "/\n", "http://elsewhere/"])
async def test_what_is_no_target_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="expected a percent-encoded path"):
        await CLIENT.request("GET", target=target)


def test_a_url_with_credentials_is_refused() -> None:
    with pytest.raises(ValueError, match="put them into headers"):
        HttpClient("http://user:secret@h/")


@given(
    st.text(max_size=5),
    st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), max_size=3),
    st.booleans(),
)
def test_whatever_the_caller_gives_a_head_has_as_many_lines_as_headers(
    target: str, headers: list[tuple[bytes, bytes]], constant: bool
) -> None:
    origin = parse_origin("http://h/")
    try:
        given = Heads(origin, headers if constant else ())
        head = given.render("POST", () if constant else headers, 2, "/" + target)
    except ValueError:
        return
    lines = head.split(b"\r\n")
    assert lines[0] == f"POST /{target} HTTP/1.1".encode()
    assert lines[3:-3] == [name + b": " + value for name, value in headers]
    assert lines[-3:] == [b"content-length: 2", b"", b""]
    assert head.count(b"\r") == head.count(b"\n") == len(lines) - 1


def test_heads_are_remembered_but_not_all_of_them() -> None:
    heads = Heads(parse_origin("http://h/"), [(b"a", b"b")])
    for n in range(1000):
        value = b"%d" % n
        head = heads.render("GET", ((b"x", value),), 0)
        assert head.endswith(b"\r\na: b\r\nx: " + value + b"\r\n\r\n")
        assert heads.render("GET", ((b"x", value),), 0) == head
    assert sum(map(len, held(heads))) < 100_000


def held(heads: Heads) -> list[bytes]:
    """Return all byte strings that are kept."""
    kept = gc.get_referents(vars(heads))
    return [found for one in kept for found in gc.get_referents(one) if isinstance(found, bytes)]
