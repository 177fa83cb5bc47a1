"""Sessions, opened over every transport."""

import pytest

from bench.gateway.calls import BadResponse
from bench.gateway.server import EVERY_ERA, answer
from bench.gateway.session import open_session
from tests.bench.servers import EVENTS, Script, always, chunk, fast, reply, scripted, streaming
from tests.tasks import hang_guard
from trunkline.mcp.versions import Era


@pytest.mark.parametrize("era", Era)
async def test_a_session_of_either_protocol_is_opened(era: Era) -> None:
    async with hang_guard(), fast(era) as address:
        session = await open_session(address)
        assert (session.tool, session.id) == ("echo", "")


@pytest.mark.parametrize("answer_first", [True, False])
async def test_a_session_over_a_stream_is_opened(answer_first: bool) -> None:
    async with hang_guard(), streaming(answer_first) as address:
        session = await open_session(address)
        session.close()
        assert session.tool == "echo"
        assert session.address.path == "/post?session=1"


async def test_later_requests_carry_the_session_id() -> None:
    def script(line: str, body: bytes) -> bytes:
        payload = b"".join(answer(body, EVERY_ERA))
        head = b"HTTP/1.1 200 OK\r\nMcp-Session-Id: abc\r\ncontent-length: %d\r\n\r\n" % len(
            payload
        )
        return head + payload

    async with hang_guard(), scripted(script) as address:
        session = await open_session(address)
        assert session.id == "abc"
        assert b"mcp-session-id: abc\r\n" in session.calls(1).next()[1]


async def test_responses_as_events_are_parsed() -> None:
    def script(line: str, body: bytes) -> bytes:
        payload = b"".join(answer(body, EVERY_ERA)).replace(b'"echo"', b'"fast_echo"')
        if not payload:
            return reply(b"", "202 Accepted")
        news = b'data: {"jsonrpc":"2.0","method":"notifications/message"}\n\ndata: []\n\n'
        return EVENTS + chunk(news + b"event: message\ndata: " + payload + b"\n\n") + b"0\r\n\r\n"

    async with hang_guard(), scripted(script) as address:
        assert (await open_session(address)).tool == "fast_echo"


def no_tools(line: str, body: bytes) -> bytes:
    return reply(b"".join(answer(body, EVERY_ERA)).replace(b'"echo"', b'"other"'))


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (always(reply(b"no", "500 Oops")), "expected a result"),
        (no_tools, "expected a tool 'echo', got"),
    ],
    ids=["an error", "no tools"],
)
async def test_an_endpoint_that_is_not_ready_is_an_error(script: Script, why: str) -> None:
    async with hang_guard(), scripted(script) as address:
        with pytest.raises(BadResponse, match=why):
            await open_session(address)


async def test_a_rejected_stream_is_an_error() -> None:
    async with hang_guard(), scripted(always(reply(b"", "404 No"))) as address:
        with pytest.raises(ConnectionError, match="expected a stream, got status 404"):
            await open_session(address._replace(events=True))
