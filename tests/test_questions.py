"""Server requests in difficult moments: in batches, and when a client or server disconnects."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from tests.endpoints.exchanges import rpc_notification, rpc_request
from tests.gateway.conftest import no_delays
from tests.gateway.servers import (
    NO_GRACE,
    Server,
    add,
    hello,
    make_gateway,
    running,
    session_client,
    tool,
)
from tests.gateway.stateless_callers import StatelessScriptedServer
from tests.http_client import HttpReply, site
from tests.tasks import hang_guard
from trunkline.app.application import App
from trunkline.app.build import AppLimits, ShutdownTimeouts
from trunkline.backends.command import CommandSettings
from trunkline.backends.limits import BackendLimits
from trunkline.config import Config, ServerSettings
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import RpcError, memory_pipe

__all__ = ["no_delays"]

SAMPLING = "sampling/createMessage"
QUESTION: dict[str, Any] = {"messages": [], "maxTokens": 1}
SAMPLING_RESULT: dict[str, Any] = {
    "role": "assistant",
    "content": {"type": "text", "text": "!"},
    "model": "m",
}


class RequestingServer(Server):
    """A server whose tool asks, and says which call it was and what it was answered."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("t")])
        self.cancelled = asyncio.Event()
        self.methods["tools/call"] = self.run

    async def run(self, params: Any) -> Any:
        line, number = self.active_connection, params["arguments"]["n"]
        question = {**QUESTION, "metadata": {"n": number}}
        try:
            result = await line.call(SAMPLING, question)
        except RpcError as why:
            return answered(number, {"model": str(why.code)})
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return answered(number, json.loads(bytes(result)))


class StatelessRequestingServer(StatelessScriptedServer):
    """The same for the stateless protocol: it returns `input_required` before it can answer."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("t")])
        self.methods["tools/call"] = self.run

    def run(self, params: Any) -> Any:
        number = params["arguments"]["n"]
        if "inputResponses" in params:
            done = answered(number, params["inputResponses"]["q"])
            return {"resultType": "complete", **done}
        question = {"method": SAMPLING, "params": {**QUESTION, "metadata": {"n": number}}}
        return {"resultType": "input_required", "inputRequests": {"q": question}}


def answered(number: int, message: Any) -> Any:
    return {"content": [{"type": "text", "text": f"{number}: {message['model']}"}]}


def texts(batch: Any) -> dict[int, str]:
    return {entry["id"]: entry["result"]["content"][0]["text"] for entry in batch}


def calls(*numbers: int) -> list[Any]:
    return [rpc_request(n, "tools/call", name="s__t", arguments={"n": n}) for n in numbers]


def answer(question: Any) -> Any:
    model = f"m{question['params']['metadata']['n']}"
    return {"jsonrpc": "2.0", "id": question["id"], "result": {**SAMPLING_RESULT, "model": model}}


class Line:
    """A client of 2025-03-26 on a line of its own."""

    def __init__(self, made: Gateway) -> None:
        self._near, far = memory_pipe()
        self._serving = asyncio.create_task(made.serve(far))

    async def send(self, message: Any) -> None:
        await self._near.send(json.dumps(message).encode())

    async def receive(self) -> Any:
        while True:
            message: Any = json.loads(await self._near.receive() or b"null")
            if "method" not in message or not message["method"].startswith("notifications/"):
                return message

    async def __aenter__(self) -> Self:
        await self.send(rpc_request(0, "initialize", **hello("2025-03-26", {"sampling": {}})))
        await self.receive()
        await self.send(rpc_notification("notifications/initialized"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._near.aclose()
        await self._serving


@pytest.mark.parametrize("make", [RequestingServer, StatelessRequestingServer])
async def test_every_entry_of_a_batch_may_be_asked_about(make: Callable[[], Server]) -> None:
    server = make()
    async with running(make_gateway(s=server), server) as made, Line(made) as line:
        await line.send(calls(1, 2, 3))
        questions = [await line.receive() for _ in range(3)]
        assert {each["method"] for each in questions} == {SAMPLING}
        for each in reversed(questions):
            await line.send(answer(each))
        assert texts(await line.receive()) == {1: "1: m1", 2: "2: m2", 3: "3: m3"}
        assert not made.registry.upstream("s").busy


async def test_a_batch_waits_for_the_only_conversation_and_loses_nothing_by_that() -> None:
    server = RequestingServer()
    made = make_gateway()
    add(made, "s", server, max_sessions=0)
    async with running(made, server), Line(made) as first, Line(made) as second:
        await made.registry.wait_complete()
        await first.send(calls(1))
        question = await first.receive()
        await second.send(calls(2, 3))
        receiving = asyncio.create_task(second.receive())
        await first.send(answer(question))
        assert texts(await first.receive()) == {1: "1: m1"}
        questions = [await receiving, await second.receive()]
        for each in questions:
            await second.send(answer(each))
        assert texts(await second.receive()) == {2: "2: m2", 3: "3: m3"}


async def test_who_leaves_in_the_midst_of_a_batch_makes_room_for_others() -> None:
    server = RequestingServer()
    made = make_gateway()
    add(made, "s", server, max_sessions=0)
    async with running(made, server), Line(made) as other:
        await made.registry.wait_complete()
        async with Line(made) as leaving:
            await leaving.send(calls(1, 2))
            await leaving.receive()
            await other.send(calls(3))
            receiving = asyncio.create_task(other.receive())
        await other.send(answer(await receiving))
        assert texts(await other.receive()) == {3: "3: m3"}
        assert not made.registry.upstream("s").busy


# By HTTP


async def received(reply: HttpReply) -> Any:
    return await reply.next_message()


@pytest.mark.parametrize("make", [RequestingServer, StatelessRequestingServer])
async def test_every_entry_of_a_batch_is_asked_about_on_its_stream(
    make: Callable[[], Server],
) -> None:
    server = make()
    async with site(make_gateway(s=server), server) as here:
        old = await here.session_client("2025-03-26", sampling={})
        reply = await old.post(calls(1, 2))
        for _ in range(2):
            assert (await old.post(answer(await received(reply)))).status == 202
        assert texts(await received(reply)) == {1: "1: m1", 2: "2: m2"}
        await old.delete()


@pytest.mark.parametrize("make", [RequestingServer, StatelessRequestingServer])
@pytest.mark.parametrize("batch", [False, True])
async def test_a_session_that_ends_in_the_midst_of_a_question_leaves_nothing(
    make: Callable[[], Server], batch: bool
) -> None:
    server = make()
    made = make_gateway()
    add(made, "s", server, max_sessions=0)
    async with site(made, server) as here:
        old = await here.session_client("2025-03-26", sampling={})
        reply = await old.post(calls(1, 2) if batch else calls(1)[0])
        question = await received(reply)
        assert (await old.delete()).status == 204
        messages = await reply.remaining_messages()
        assert not any("result" in each for each in messages if isinstance(each, dict))
        assert (await old.post(answer(question))).status == 404
        while made.registry.upstream("s").busy:
            await asyncio.sleep(0)
        assert len(made.stateless.suspended_calls) == 0
        another = await here.session_client("2025-03-26", sampling={})
        reply = await another.post(calls(3)[0])
        await another.post(answer(await received(reply)))
        assert (await received(reply))["result"] == answered(3, {"model": "m3"})
        await another.delete()


# When the gateway ends

CHILD = """
import json, os, sys
def say(**said):
    print(json.dumps({"jsonrpc": "2.0", **said}), flush=True)
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
for line in sys.stdin:
    asked = json.loads(line)
    method, id = asked.get("method"), asked.get("id")
    if method == "initialize":
        say(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "c", "version": "1"}})
    elif method == "tools/list":
        say(id=id, result={"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        say(id="q", method="sampling/createMessage", params={"messages": [], "maxTokens": 1})
"""


async def test_the_end_leaves_no_process_of_any_conversation(tmp_path: Path) -> None:
    child = ServerSettings(
        name="s",
        backend=CommandSettings(
            command=sys.executable, args=("-c", CHILD, str(tmp_path)), protocol="session"
        ),
    )
    backends = BackendLimits(answer_drain_timeout=0.0)
    limits = AppLimits(NO_GRACE, ShutdownTimeouts(child_exit=0.2), backends)
    app = App(Config(servers=(child,)), limits=limits)
    app.asgi()  # for anybody: the first conversation is for those who cannot be asked
    before = asyncio.all_tasks()
    async with hang_guard():
        async with (
            app.running() as made,
            session_client(made, sampling={}) as one,
            session_client(made, sampling={}) as two,
        ):
            for who in (one, two):
                who.answers[SAMPLING] = lambda _: asyncio.Event().wait()
            calling = [asyncio.create_task(who.call("s__t")) for who in (one, two)]
            while not (one.asked_requests and two.asked_requests):
                await asyncio.sleep(0)
            assert made.registry.snapshots()[0].extra_sessions == 2
            pids = [int(path.name) for path in tmp_path.iterdir()]
            assert len(pids) == 4  # the first one, two of clients, and one that only listed
            await app.aclose()
            await asyncio.gather(*calling, return_exceptions=True)
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
        assert asyncio.all_tasks() - before == set()
