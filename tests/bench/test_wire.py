"""One connection of a client, against all kinds of HTTP replies."""

import pytest

from bench.gateway.wire import HttpReply, open_connection
from tests.bench.servers import EVENTS, HOST, always, chunk, reply, scripted
from tests.tasks import hang_guard

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = b"x" * 1_000_000


async def ask(raw: bytes, times: int = 2, closing: bool = False) -> HttpReply:
    async with hang_guard(), scripted(always(raw), closing) as address:
        line = await open_connection(HOST, address.port)
        try:
            for _ in range(times - 1):
                assert await line.request(GET) == await line.request(GET)
            return await line.request(GET)
        finally:
            line.close()


@pytest.mark.parametrize("body", [b"", b"{}", LARGE], ids=len)
async def test_a_reply_of_known_length_is_read(body: bytes) -> None:
    found = await ask(reply(body))
    assert found == HttpReply(200, {"content-length": str(len(body))}, body)


@pytest.mark.parametrize("body", [b"", b"{}", LARGE], ids=len)
async def test_a_chunked_reply_is_read(body: bytes) -> None:
    raw = EVENTS + (chunk(body) if body else b"") + b"0\r\n\r\n"
    assert (await ask(raw)).body == body


async def test_a_reply_without_a_body_needs_no_length() -> None:
    assert await ask(b"HTTP/1.1 202 Accepted\r\n\r\n") == HttpReply(202, {}, b"")


async def test_a_reply_may_end_with_the_connection() -> None:
    found = await ask(b"HTTP/1.1 200 OK\r\n\r\nto the end", times=1, closing=True)
    assert found.body == b"to the end"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "closed the connection before it replied"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort", "before it replied"),
        (reply(b"one") + reply(b"two"), "expected one reply, got more"),
        (b"nonsense\r\n\r\n", "expected HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000, "expected a head of at most"),
    ],
)
async def test_an_invalid_reply_is_an_error(raw: bytes, why: str) -> None:
    with pytest.raises(ConnectionError, match=why):
        await ask(raw, times=1, closing=True)
