"""The load: it counts correct responses only."""

import pytest

from bench.gateway.calls import Address, BadResponse
from bench.gateway.load import Figures, Plan, measure
from bench.gateway.server import EVERY_ERA, answer
from bench.gateway.session import Session, open_session
from tests.bench.servers import EVENTS, Script, always, chunk, fast, reply, scripted, streaming
from tests.tasks import hang_guard
from trunkline.mcp.versions import Era

SHORT = Plan(seconds=0.02, warm_up=0.01, longest=5.0)


def session(address: Address) -> Session:
    found = Session(address)
    found.tool = "echo"
    return found


def is_sound(figures: Figures, concurrency: int) -> bool:
    enough = figures.calls >= concurrency * SHORT.answers
    return (
        enough
        and figures.in_all > figures.calls
        and figures.rate > 0
        and 0 < figures.p50 <= figures.p99
    )


@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize(("size", "concurrency"), [(200, 1), (200, 16), (300_000, 3)])
async def test_calls_are_made_and_timed(era: Era, size: int, concurrency: int) -> None:
    async with hang_guard(), fast(era) as address:
        opened = await open_session(address)
        assert is_sound(await measure(opened, concurrency, size, SHORT), concurrency)


@pytest.mark.parametrize("answer_first", [True, False])
async def test_responses_may_arrive_on_a_stream(answer_first: bool) -> None:
    async with hang_guard(), streaming(answer_first) as address:
        opened = await open_session(address)
        try:
            for _ in range(2):
                assert is_sound(await measure(opened, 4, 200, SHORT), 4)
        finally:
            opened.close()


async def test_responses_may_arrive_as_events() -> None:
    def script(line: str, body: bytes) -> bytes:
        payload = b"data: " + b"".join(answer(body, EVERY_ERA)) + b"\n\n"
        news = b'data: {"method":"notifications/message"}\n\n'
        return EVENTS + chunk(news) + chunk(payload) + b"0\r\n\r\n"

    async with hang_guard(), scripted(script) as address:
        assert is_sound(await measure(session(address), 2, 200, SHORT), 2)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (always(reply(b"no", "503 Busy")), "expected a result, got status 503"),
        (always(reply(b'{"id":1}')), "expected an answer to"),
        (always(reply(b"")), "expected an answer, got ''"),
        (always(b""), "expected an answer within 0.05 s, got none"),
    ],
    ids=["status", "another's", "empty", "silence"],
)
async def test_an_incorrect_response_ends_the_run(script: Script, why: str) -> None:
    plan = Plan(seconds=0.01, warm_up=0.01, longest=0.05)
    async with hang_guard(), scripted(script) as address:
        with pytest.raises(BadResponse, match=why):
            await measure(session(address), 2, 200, plan)


async def test_a_server_that_disconnects_ends_the_run() -> None:
    async with hang_guard(), scripted(always(b""), closing=True) as address:
        with pytest.raises(BadResponse, match="closed the connection before it replied"):
            await measure(session(address), 2, 200, SHORT)
