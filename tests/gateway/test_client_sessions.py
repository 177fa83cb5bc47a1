"""The session that a client keeps with each server: its state, roots, room, and servers that run
once.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.gateway.conftest import no_delays
from tests.gateway.servers import (
    HeldAnswer,
    Server,
    SessionClient,
    add,
    make_gateway,
    running,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import CAPABILITIES, CLIENT, StatelessCaller
from trunkline.gateway.events import SessionEvicted, SessionSharing
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import ConnectionLost, RpcError

__all__ = ["no_delays"]

FORM: dict[str, Any] = {"elicitation": {"form": {}}}
ROOTS: dict[str, Any] = {"roots": {}}


class CountingServer(Server):
    """A server that counts the calls of each session: its history."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("t")])
        self.history: dict[object, int] = {}
        self.methods["tools/call"] = self.run

    def run(self, params: Any) -> Any:
        session = self.active_connection
        self.history[session] = self.history.get(session, 0) + 1
        return text(self.history[session])


class RootsServer(Server):
    """A server that asks for roots right after `initialized`, and keeps them for its session."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("t")])
        self.roots: dict[object, str] = {}
        self.asking: set[asyncio.Task[None]] = set()
        self.methods["tools/call"] = lambda _: text(self.roots.get(self.active_connection, "none"))
        self.declares_roots: dict[object, bool] = {}

    def called(self, request: Any) -> Any:
        if request.method == "initialize":
            declared = b'"roots"' in bytes(request.params)
            self.declares_roots[self.active_connection] = declared
        return super().called(request)

    def notified(self, notification: Any) -> None:
        super().notified(notification)
        if notification.method != "notifications/initialized":
            return
        session = self.active_connection
        if self.declares_roots[session]:
            self.asking.add(task := asyncio.create_task(self.ask_roots(session)))
            task.add_done_callback(self.asking.discard)

    async def ask_roots(self, session: Any) -> None:
        try:
            answer = bytes(await session.call("roots/list", None)).decode()
        except (RpcError, ConnectionLost):
            answer = "refused"
        self.roots[session] = answer


def text(value: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(value)}]}


def roots_of(name: str) -> dict[str, Any]:
    return {"roots": [{"uri": f"file:///{name}"}]}


@asynccontextmanager
async def passive(server: Server, **settings: Any) -> AsyncGenerator[Gateway]:
    """Run a gateway whose primary sessions announce nothing, as over HTTP."""
    gateway = make_gateway()
    add(gateway, "s", server, **settings)
    gateway.client_capabilities = {"vendor": {}}
    async with running(gateway, server):
        yield gateway


def listen(gateway: Gateway) -> list[object]:
    events: list[object] = []
    gateway.pipeline.events.add_listener(events.append)
    return events


async def history(client: SessionClient) -> int:
    return int(text_of(await client.call("s__t")))


async def test_six_clients_each_keep_their_own_history() -> None:
    server = CountingServer()
    async with passive(server) as gateway, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(session_client(gateway, **FORM)) for _ in range(6)
        ]
        for turn in range(1, 4):
            assert [await history(client) for client in clients] == [turn] * 6
        assert server.starts == 8  # the first session, six of clients, and one that only listed
        assert gateway.registry.snapshots()[0].extra_sessions == 6


async def test_a_session_survives_any_pause_and_ends_with_its_client() -> None:
    server = CountingServer()
    async with passive(server, session_idle=0.0) as gateway:
        async with session_client(gateway, **FORM) as client:
            assert [await history(client) for _ in range(3)] == [1, 2, 3]
            assert gateway.registry.snapshots()[0].extra_sessions == 1
        assert gateway.registry.snapshots()[0].extra_sessions == 0


async def test_a_client_that_calls_nothing_has_no_session() -> None:
    server = CountingServer()
    async with passive(server) as gateway, AsyncExitStack() as stack:
        for _ in range(3):
            client = await stack.enter_async_context(session_client(gateway, **FORM))
            assert await client.names() == ["s__t"]
        assert gateway.registry.snapshots()[0].extra_sessions == 0
        assert server.starts == 2  # the first session, and one that only listed
        assert len(server.connections) == 1


async def test_an_evicted_session_is_reported() -> None:
    server = CountingServer()
    async with (
        passive(server, max_sessions=1) as gateway,
        session_client(gateway, **FORM) as one,
        session_client(gateway, **FORM) as two,
    ):
        events = listen(gateway)
        assert [await history(one), await history(one), await history(two)] == [1, 2, 1]
        assert [e for e in events if isinstance(e, SessionEvicted)] == [SessionEvicted("s", 1)]


# Roots


@pytest.mark.parametrize("delay", [False, True])
async def test_roots_are_delivered_before_the_first_call(delay: bool) -> None:
    server, held = RootsServer(), HeldAnswer(roots_of("one"))
    async with passive(server) as gateway, session_client(gateway, **ROOTS) as client:
        client.answers["roots/list"] = held if delay else lambda _: roots_of("one")
        calling = asyncio.create_task(client.call("s__t"))
        if delay:
            await held.started.wait()
            await client.names()
            assert server.count("tools/call") == 0
            held.released.set()
        assert "file:///one" in text_of(await calling)


async def test_a_client_that_does_not_answer_for_roots_delays_only_its_own_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = RootsServer()
    async with (
        passive(server) as gateway,
        session_client(gateway, **ROOTS) as silent,
        session_client(gateway, **ROOTS) as other,
    ):
        silent.answers["roots/list"] = lambda _: asyncio.Event().wait()
        other.answers["roots/list"] = lambda _: roots_of("other")
        calling = asyncio.create_task(silent.call("s__t"))
        while not silent.asked_requests:
            await asyncio.sleep(0)
        assert "file:///other" in text_of(await other.call("s__t"))
        assert not calling.done()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    async with passive(RootsServer()) as gateway, session_client(gateway, **ROOTS) as silent:
        monkeypatch.setattr("trunkline.gateway.secondary_sessions.FIRST_REQUESTS_TIMEOUT", 0.0)
        silent.answers["roots/list"] = lambda _: asyncio.Event().wait()
        assert text_of(await silent.call("s__t")) == "none"


async def stateless_roots(caller: StatelessCaller, name: str, client: str = "c") -> tuple[str, int]:
    """Call with these roots; return what the server knows, and how often it asked."""
    capabilities = {CAPABILITIES: ROOTS, CLIENT: {"name": client, "version": "1"}}
    result = await caller.call("s__t", _meta=capabilities)
    rounds = 0
    while result["resultType"] == "input_required":
        rounds += 1
        assert {each["method"] for each in result["inputRequests"].values()} == {"roots/list"}
        answers = {key: roots_of(name) for key in result["inputRequests"]}
        state = result["requestState"]
        result = await caller.call(
            "s__t", _meta=capabilities, inputResponses=answers, requestState=state
        )
    return text_of(result), rounds


async def test_roots_of_one_stateless_client_never_answer_another() -> None:
    server = RootsServer()
    async with passive(server) as gateway:
        caller = StatelessCaller(gateway, "local")  # without [auth], all are this principal
        for name in ("ann", "bob", "ann", "cid"):
            known, rounds = await stateless_roots(caller, name)
            assert (f"file:///{name}" in known, rounds) == (True, 1)


# Stateless clients


async def test_calls_of_a_stateless_client_find_the_state_of_earlier_ones() -> None:
    server = CountingServer()
    async with passive(server) as gateway:
        caller = StatelessCaller(gateway, "local")

        async def count(name: str) -> int:
            client = {CAPABILITIES: FORM, CLIENT: {"name": name, "version": "1"}}
            return int(text_of(await caller.call("s__t", _meta=client)))

        assert [await count("ide") for _ in range(3)] == [1, 2, 3]
        assert [await count("agent") for _ in range(2)] == [1, 2]
        assert await count("ide") == 4
        assert gateway.registry.snapshots()[0].extra_sessions == 2


async def test_a_server_is_refused_what_it_asks_before_it_knows_of_a_cancellation() -> None:
    server, pinged = CountingServer(), HeldAnswer({})
    count = server.methods["tools/call"]
    server.methods["tools/call"] = hold = HeldAnswer()
    form = {CAPABILITIES: FORM}
    async with passive(server) as gateway:
        caller = StatelessCaller(gateway, "local")
        held = asyncio.create_task(caller.call("s__t", _meta=form))
        await hold.started.wait()
        session = server.active_connection
        server.methods["ping"] = pinged
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        await pinged.started.wait()
        with pytest.raises(RpcError, match="an earlier call was cancelled"):
            await session.call("elicitation/create", {"message": "?"})
        pinged.released.set()
        await server.wait_received("notifications/cancelled")

        async def ask(params: Any) -> Any:
            await server.active_connection.call("elicitation/create", {"message": "?"})
            return count(params)

        server.methods["tools/call"] = ask
        while "resultType" not in (asked := await ask_again(caller, form)):
            pass
        assert asked["resultType"] == "input_required"
        assert len(server.connections) == 2  # in the same session


async def ask_again(caller: StatelessCaller, meta: dict[str, Any]) -> dict[str, Any]:
    try:
        return await caller.call("s__t", _meta=meta)
    except RpcError:
        return {}


# Servers that run once


class OneInstanceServer(CountingServer):
    """A server whose second process exits at once, while the first one lives."""

    async def connect(self, listener: Any, remapper: Any, capabilities: Any) -> Any:
        if self.connections:
            self.starts += 1
            raise ConnectionLost("it is running already")
        return await super().connect(listener, remapper, capabilities)


class TakeoverServer(CountingServer):
    """A server whose second process ends the first one."""

    async def connect(self, listener: Any, remapper: Any, capabilities: Any) -> Any:
        for transport in list(self.connections.values()):
            await transport.aclose()
        return await super().connect(listener, remapper, capabilities)


@pytest.mark.parametrize("capabilities", [FORM, ROOTS])
async def test_a_server_that_refuses_a_second_process_is_shared(capabilities: Any) -> None:
    server = OneInstanceServer()
    async with passive(server) as gateway:
        events = listen(gateway)
        async with (
            session_client(gateway, **capabilities) as one,
            session_client(gateway, **capabilities) as two,
        ):
            counts = [await history(client) for client in (one, two) * 20]
        assert counts == list(range(1, 41))
        assert server.starts <= 3
        reason = "it is running already"
        assert [e for e in events if isinstance(e, SessionSharing)] == [SessionSharing("s", reason)]
        snapshot = gateway.registry.snapshots()[0]
        assert (snapshot.single_session, snapshot.restarts) == (reason, 0)


@pytest.mark.usefixtures("no_delays")
async def test_a_server_whose_second_process_ends_the_first_is_shared() -> None:
    server = TakeoverServer()
    async with passive(server) as gateway:
        events = listen(gateway)
        async with (
            session_client(gateway, **FORM) as one,
            session_client(gateway, **FORM) as two,
        ):
            await one.names()
            while not gateway.registry.upstream("s").ready or server.starts < 3:
                await asyncio.sleep(0)
            counts = [await history(client) for client in (one, two) * 20]
        assert counts == list(range(1, 41))
        assert server.starts == 3
        sharing = [e for e in events if isinstance(e, SessionSharing)]
        assert [e.reason for e in sharing] == ["it ended when a second session was opened"]
        assert gateway.registry.snapshots()[0].restarts == 1
