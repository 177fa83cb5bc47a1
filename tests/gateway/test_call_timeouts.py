"""How long a call may take: progress and open questions restart its timeout, up to a maximum."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contexts import token_of
from tests.gateway.clock import ClockLoop, pass_time
from tests.gateway.servers import (
    Server,
    SessionClient,
    add,
    make_gateway,
    running,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import StatelessScriptedServer, stateless_caller
from trunkline.gateway.gateway import Gateway

PROGRESS = "notifications/progress"
TIMEOUT, MAX_TIMEOUT = 2.0, 6.0
"""In simulated seconds, as are all times here."""

Scenario = Callable[[ClockLoop], Coroutine[Any, Any, None]]


@pytest.fixture
def loop() -> Generator[ClockLoop]:
    """A loop whose clock jumps to the next timer."""
    loop = ClockLoop()
    yield loop
    loop.close()


class Worker:
    """The tools of a server: `work` takes `seconds`, and reports each `interval`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.methods["tools/call"] = self.run

    async def run(self, params: Any) -> Any:
        arguments = params.get("arguments", {})
        if params["name"] == "quick":
            return {"content": [{"type": "text", "text": "quick ran"}]}
        if params["name"] == "hang":
            await asyncio.Event().wait()
        if params["name"] == "ask":
            await self.server.ask("roots/list")
            await pass_time(arguments["seconds"])
            return {"content": [{"type": "text", "text": "answered"}]}
        token, passed, interval = token_of(params), 0.0, arguments["interval"]
        while passed < arguments["seconds"]:
            await pass_time(interval)
            passed += interval
            await self.server.active_connection.notify(
                PROGRESS, {"progressToken": token, "progress": passed}
            )
        return {"content": [{"type": "text", "text": "work ran"}]}


TOOLS = [tool("work"), tool("quick"), tool("hang"), tool("ask")]


@asynccontextmanager
async def working(server: Server, **settings: Any) -> AsyncGenerator[tuple[Gateway, SessionClient]]:
    """Run a gateway with one such server and a client."""
    Worker(server)
    gateway = make_gateway()
    limits = {"timeout": TIMEOUT, "max_timeout": MAX_TIMEOUT, "ping_interval": 0.0}
    add(gateway, "s", server, **limits | settings)
    async with running(gateway, server), session_client(gateway, roots={}) as user:
        yield gateway, user


SERVERS = [Server, StatelessScriptedServer]


@pytest.mark.parametrize("make_server", SERVERS)
@pytest.mark.parametrize("meta", [{}, {"_meta": {"progressToken": "mine"}}])
def test_progress_restarts_the_timeout_of_a_call(
    loop: ClockLoop, make_server: Callable[..., Server], meta: Any
) -> None:
    async def scenario() -> None:
        async with working(make_server(tools=TOOLS)) as (_, user):
            work = {"interval": 1.0, "seconds": 2 * TIMEOUT}
            assert text_of(await user.call("s__work", arguments=work, **meta)) == "work ran"
            received = [p for method, p in user.take_notifications() if method == PROGRESS]
            assert [p["progressToken"] for p in received] == (["mine"] * 4 if meta else [])

    loop.run(scenario())


@pytest.mark.parametrize("make_server", SERVERS)
def test_progress_counts_for_stateless_clients_too(
    loop: ClockLoop, make_server: Callable[..., Server]
) -> None:
    async def scenario() -> None:
        async with working(make_server(tools=TOOLS)) as (gateway, _):
            client = await stateless_caller(gateway)
            work = {"interval": 1.0, "seconds": 2 * TIMEOUT}
            assert text_of(await client.call("s__work", arguments=work)) == "work ran"

    loop.run(scenario())


def test_a_call_ends_after_its_timeout_without_progress_and_after_the_maximum_with_it(
    loop: ClockLoop,
) -> None:
    async def scenario() -> None:
        async with working(Server(tools=TOOLS)) as (_, user):
            for work, lasted, reason in (
                ({"interval": TIMEOUT + 1.0, "seconds": 9.0}, TIMEOUT, "did not answer within 2 s"),
                ({"interval": 1.5, "seconds": 99.0}, MAX_TIMEOUT, "did not end within 6 s"),
            ):
                started = loop.time()
                call = {"name": "s__work", "arguments": work}
                error: Any = await user.expect_error("tools/call", call)
                assert (loop.time() - started, error.data["type"]) == (lasted, "upstream_timeout")
                assert reason in error.message

    loop.run(scenario())


def test_without_a_longer_maximum_progress_changes_nothing(loop: ClockLoop) -> None:
    async def scenario() -> None:
        async with working(Server(tools=TOOLS), max_timeout=0.0) as (_, user):
            started = loop.time()
            call = {"name": "s__work", "arguments": {"interval": 0.5, "seconds": 9.0}}
            error = await user.expect_error("tools/call", call)
            assert loop.time() - started == TIMEOUT
            assert "did not answer within 2 s" in error.message

    loop.run(scenario())


def test_a_clients_answer_restarts_the_timeout_of_its_call(loop: ClockLoop) -> None:
    async def scenario() -> None:
        async with working(Server(tools=TOOLS)) as (_, user):

            async def think(_: Any) -> Any:
                await pass_time(1.5 * TIMEOUT)
                return {"roots": []}

            user.answers["roots/list"] = think
            answer = await user.call("s__ask", arguments={"seconds": 0.75 * TIMEOUT})
            assert text_of(answer) == "answered"

    loop.run(scenario())


def test_a_client_that_never_answers_cannot_exceed_the_maximum(loop: ClockLoop) -> None:
    async def scenario() -> None:
        async with working(Server(tools=TOOLS)) as (_, user):
            user.answers["roots/list"] = lambda _: asyncio.Event().wait()
            started = loop.time()
            error = await user.expect_error(
                "tools/call", {"name": "s__ask", "arguments": {"seconds": 0.0}}
            )
            assert loop.time() - started == MAX_TIMEOUT
            assert "did not end within 6 s" in error.message

    loop.run(scenario())


def test_a_hanging_tool_does_not_open_the_circuit_of_a_server_that_answers(loop: ClockLoop) -> None:
    async def scenario() -> None:
        async with working(Server(tools=TOOLS), breaker_threshold=2) as (gateway, user):
            hanging = [
                asyncio.create_task(user.expect_error("tools/call", {"name": "s__hang"}))
                for _ in range(5)
            ]
            await pass_time(0.5 * TIMEOUT)
            await user.call("s__quick")
            for error in await asyncio.gather(*hanging):
                assert "did not answer within 2 s" in error.message
            assert gateway.registry.upstream("s").snapshot().state == "ready"
            assert text_of(await user.call("s__quick")) == "quick ran"

    loop.run(scenario())


def test_calls_that_report_progress_until_the_maximum_do_not_open_the_circuit(
    loop: ClockLoop,
) -> None:
    async def scenario() -> None:
        async with working(Server(tools=TOOLS), breaker_threshold=1) as (gateway, user):
            endless = {"name": "s__work", "arguments": {"interval": 1.0, "seconds": 99.0}}
            await user.expect_error("tools/call", endless)
            assert gateway.registry.upstream("s").snapshot().state == "ready"

    loop.run(scenario())


def test_a_server_that_answers_nothing_opens_its_circuit(loop: ClockLoop) -> None:
    async def scenario() -> None:
        async with working(Server(tools=TOOLS), breaker_threshold=2) as (gateway, user):
            await user.call("s__quick")
            await pass_time(0.1)
            hang = {"name": "s__hang"}
            await asyncio.gather(*(user.expect_error("tools/call", hang) for _ in range(2)))
            assert gateway.registry.upstream("s").snapshot().state == "circuit_open"

    loop.run(scenario())
