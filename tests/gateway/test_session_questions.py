"""Server requests: sampling, elicitation and roots, and which client gets them."""

import asyncio
from typing import Any

import pytest

from tests.gateway.servers import (
    HeldAnswer,
    Server,
    SessionClient,
    add,
    make_gateway,
    one_tool,
    running,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import CAPABILITIES, StatelessCaller, stateless_caller
from tests.gateway.test_session_lifecycle import initialized_engine, send_text, text
from tests.tasks import LoopClock, hang_guard
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import RpcError, from_raw

QUESTIONS = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}


def asking(server: Server, method: str, params: Any = None) -> None:
    """Have each tool call of `server` send a request, and return its answer."""

    async def ask(_: Any) -> Any:
        try:
            outcome = await server.ask(method, params)
        except RpcError as error:
            outcome = error.code
        return {"content": [{"type": "text", "text": str(outcome)}]}

    server.methods["tools/call"] = ask


@pytest.mark.parametrize(("method", "capability"), QUESTIONS.items())
async def test_a_request_during_a_call_reaches_its_client_and_the_answer_returns(
    method: str, capability: str
) -> None:
    server = one_tool()
    params = {"vendor": 1, "_meta": {"x/y": [1]}}
    asking(server, method, params)
    offered: dict[str, Any] = {capability: {}}
    async with serving(s=server) as gateway, session_client(gateway, **offered) as user:
        user.answers[method] = lambda _: {"answer": 42}
        assert text_of(await user.call("s__echo")) == "{'answer': 42}"
        assert user.asked_requests == [(method, params)]


@pytest.mark.parametrize(("method", "capability"), QUESTIONS.items())
async def test_a_client_without_the_capability_gets_no_request(
    method: str, capability: str
) -> None:
    server = one_tool()
    asking(server, method)
    others: dict[str, Any] = {name: {} for name in QUESTIONS.values() if name != capability}
    async with serving(s=server) as gateway, session_client(gateway, **others) as user:
        assert text_of(await user.call("s__echo")) == "-32601"
        assert user.asked_requests == []


async def test_a_client_gets_no_request_that_its_revision_does_not_have() -> None:
    server = one_tool()
    asking(server, "elicitation/create")
    async with (
        serving(s=server) as gateway,
        session_client(gateway, "2025-03-26", elicitation={}) as user,
    ):
        assert text_of(await user.call("s__echo")) == "-32601"
        assert user.asked_requests == []


async def test_a_declined_question_gets_the_clients_own_error() -> None:
    server = one_tool()

    def refuse(_: Any) -> Any:
        raise RpcError(-1, "User rejected")

    asking(server, "sampling/createMessage")
    async with serving(s=server) as gateway, session_client(gateway, sampling={}) as user:
        user.answers["sampling/createMessage"] = refuse
        assert text_of(await user.call("s__echo")) == "-1"


async def test_an_unknown_server_request_goes_to_the_client() -> None:
    server = one_tool()
    asking(server, "vendor/ask", {"a": 1})
    async with serving(s=server) as gateway, session_client(gateway) as user:
        user.answers["vendor/ask"] = lambda params: {"said": params}
        assert text_of(await user.call("s__echo")) == "{'said': {'a': 1}}"


@pytest.mark.parametrize("method", ["tools/call", "initialize", "resources/read"])
async def test_a_client_method_is_no_server_request(method: str) -> None:
    server = one_tool()
    asking(server, method)
    async with serving(s=server) as gateway, session_client(gateway) as user:
        assert text_of(await user.call("s__echo")) == "-32601"
        assert user.asked_requests == []


async def test_a_server_may_ping() -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway):
        assert await server.ask("ping") == {}


async def test_two_clients_of_one_server_are_asked_about_their_own_calls() -> None:
    server = one_tool()
    lines: list[Any] = []
    begun = asyncio.Semaphore(0)
    go = asyncio.Event()

    async def call(_: Any) -> Any:
        lines.append(server.active_connection)
        begun.release()
        await go.wait()
        return {"content": []}

    server.methods["tools/call"] = call
    async with (
        serving(s=server) as gateway,
        session_client(gateway, roots={}) as one,
        session_client(gateway, roots={}) as two,
    ):
        for user in (one, two):
            user.answers["roots/list"] = lambda _: {"roots": []}
        calls: list[asyncio.Task[Any]] = []
        for user in (one, two):
            calls.append(asyncio.create_task(user.call("s__echo")))
            await begun.acquire()
        assert lines[0] is not lines[1]  # a session for each
        for line, user in zip(lines, (one, two), strict=True):
            await line.call("roots/list")
            assert [len(each.asked_requests) for each in (one, two)] == [1, int(user is two)]
        go.set()
        assert await asyncio.gather(*calls) == [{"content": []}, {"content": []}]
        # Outside of calls the target is known only in a session of one client.
        with pytest.raises(RpcError) as refused:
            await lines[0].call("roots/list")
        assert refused.value.code == -32601
        await lines[1].call("roots/list")
        assert [len(each.asked_requests) for each in (one, two)] == [1, 2]
        two_hears = asyncio.create_task(server.wait_received("notifications/roots/list_changed"))
        await two.connection.notify("notifications/roots/list_changed")
        await two_hears


@pytest.mark.parametrize("modern", [False, True], ids=["session", "stateless"])
async def test_roots_of_one_client_reach_no_other(modern: bool) -> None:
    server, cached_roots = Server(tools=[tool("t")]), dict[Any, str]()

    async def call(_: Any) -> Any:
        line = (
            server.active_connection
        )  # like many servers, it asks once per connection and caches the answer
        if line not in cached_roots:
            cached_roots[line] = str(from_raw(await line.call("roots/list")))
        return {"content": [{"type": "text", "text": cached_roots[line]}]}

    server.methods["tools/call"] = call
    gateway = make_gateway()
    # As over HTTP: the primary session is for clients without input features.
    gateway.add_upstream(
        UpstreamSettings("s", "s"),
        lambda owner: server.connect(owner, gateway.remapper, owner.client_capabilities or {}),
    )
    async with running(gateway, server):
        await stateless_caller(gateway)
        for name in ("ann", "bob"):
            roots: Any = {"roots": [{"uri": f"file:///{name}"}]}
            if modern:
                client, meta = (
                    StatelessCaller(gateway, name),
                    dict[str, Any]({CAPABILITIES: {"roots": {}}}),
                )
                suspended = await client.call("s__t", _meta=meta)
                answers = dict.fromkeys(suspended["inputRequests"], roots)
                state = suspended["requestState"]
                found = await client.call(
                    "s__t", _meta=meta, requestState=state, inputResponses=answers
                )
            else:
                async with session_client(gateway, roots={}) as user:
                    user.answers["roots/list"] = lambda _, roots=roots: roots
                    found = await user.call("s__t")
            assert text_of(found) == str(roots)


async def test_of_two_clients_the_one_with_a_call_is_asked() -> None:
    server = one_tool()
    asking(server, "roots/list")
    async with (
        serving(s=server) as gateway,
        session_client(gateway, roots={}) as one,
        session_client(gateway, roots={}) as two,
    ):
        two.answers["roots/list"] = lambda _: {"roots": []}
        assert text_of(await two.call("s__echo")) == "{'roots': []}"
        assert one.asked_requests == []


async def test_a_request_outside_of_any_call_goes_to_the_only_client() -> None:
    server = one_tool()
    async with (
        serving(s=server) as gateway,
        session_client(gateway, roots={"listChanged": True}) as user,
        SessionClient(gateway),  # not initialized yet
    ):
        user.answers["roots/list"] = lambda _: {"roots": [{"uri": "file:///"}]}
        assert await server.ask("roots/list") == {"roots": [{"uri": "file:///"}]}
        initialize = next(params for method, params in server.received if method == "initialize")
        assert initialize["capabilities"] == {"roots": {"listChanged": True}}
        await user.notify("notifications/roots/list_changed")
        await server.wait_received("notifications/roots/list_changed")


async def test_a_request_cancelled_by_the_server_is_cancelled_at_the_client() -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway, sampling={}) as user:
        user.answers["sampling/createMessage"] = hold = HeldAnswer()
        question = asyncio.create_task(server.ask("sampling/createMessage"))
        await hold.started.wait()
        # A server's first question has id 1.
        await server.active_connection.notify("notifications/cancelled", {"requestId": 1})
        cancelled = await user.wait_notification("notifications/cancelled")
        assert cancelled["requestId"] == user.requests[-1].id
        hold.released.set()
        await user.ask("ping")
        question.cancel()
        await server.active_connection.notify("notifications/cancelled")  # of nothing: ignored
        await server.active_connection.notify("notifications/cancelled", {"requestId": 99})
        assert await server.ask("ping") == {}


async def test_the_request_of_a_server_that_dies_is_cancelled() -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway, sampling={}) as user:
        user.answers["sampling/createMessage"] = hold = HeldAnswer()
        question = asyncio.create_task(server.ask("sampling/createMessage"))
        await hold.started.wait()
        await server.crash()
        await user.wait_notification("notifications/cancelled")
        await asyncio.gather(question, return_exceptions=True)


async def test_a_question_of_a_disconnected_client_has_no_answer() -> None:
    server = one_tool()
    async with serving(s=server) as gateway:
        async with session_client(gateway, roots={}) as user:
            user.answers["roots/list"] = hold = HeldAnswer()
            question = asyncio.create_task(server.ask("roots/list"))
            await hold.started.wait()
        with pytest.raises(RpcError) as gone:
            await question
        assert gone.value.code == -32603


async def test_progress_on_a_server_request_returns_under_the_servers_token() -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway, sampling={}) as user:
        user.answers["sampling/createMessage"] = hold = HeldAnswer({"role": "assistant"})
        sampling_params = {"_meta": {"progressToken": "mine", "x": 1}}
        question = asyncio.create_task(server.ask("sampling/createMessage", sampling_params))
        await hold.started.wait()
        token = user.asked_requests[-1][1]["_meta"]["progressToken"]
        for wrong in ("mine", 99, None, True):
            await user.notify("notifications/progress", {"progressToken": wrong, "progress": 0})
        await user.notify("notifications/progress")
        await user.notify("notifications/progress", {"progressToken": token, "progress": 1})
        note = await server.wait_received("notifications/progress")
        assert note == {"progressToken": "mine", "progress": 1}
        hold.released.set()
        assert await question == {"role": "assistant"}
        await user.notify("notifications/progress", {"progressToken": token, "progress": 2})
        await user.ask("ping")
        assert server.count("notifications/progress") == 1


async def test_a_text_engine_cannot_send_requests_to_the_client() -> None:
    server = one_tool()
    asking(server, "roots/list")
    async with serving(s=server) as gateway:
        engine = await initialized_engine(gateway=gateway, capabilities={"roots": {}})
        await gateway.registry.wait_complete()
        answer = await send_text(engine, text("tools/call", {"name": "s__echo"}))
        assert text_of(answer["result"]) == "-32601"


async def test_an_open_question_extends_no_calls_of_others_or_later_ones() -> None:
    LoopClock().skip_idle_time()
    curious, idle, gateway = one_tool(), one_tool(), make_gateway()
    asking(curious, "elicitation/create")
    idle.methods["tools/call"] = HeldAnswer()
    add(gateway, "s", curious, timeout=0.05)
    add(gateway, "t", idle, timeout=0.05)
    async with running(gateway, curious, idle), session_client(gateway, elicitation={}) as user:
        user.answers["elicitation/create"] = thinking = HeldAnswer({"action": "decline"})
        first = asyncio.create_task(user.call("s__echo"))
        async with hang_guard():
            await thinking.started.wait()
            other = await user.expect_error("tools/call", {"name": "t__echo"})
            curious.methods["tools/call"] = HeldAnswer()
            later = await user.expect_error("tools/call", {"name": "s__echo"})
            assert other.message == "t did not answer within 0.05 s"
            assert later.message == "s did not answer within 0.05 s"
            assert not first.done()
            thinking.released.set()
            assert text_of(await first) == "{'action': 'decline'}"
