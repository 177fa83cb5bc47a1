"""What servers ask clients: sampling, elicitation and roots, and who is asked."""

import asyncio
from typing import Any

import pytest

from tests.gateway.letters import CAPABILITIES, Poster, poster
from tests.gateway.servers import (
    Hold,
    Server,
    User,
    add,
    gateway,
    one_tool,
    running,
    serving,
    text_of,
    tool,
    user,
)
from tests.gateway.test_session_lifecycle import opened, say, text
from trunkline.gateway.settings import Settings
from trunkline.jsonrpc import RpcError, from_raw

QUESTIONS = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}


def asking(server: Server, method: str, params: Any = None) -> None:
    """Let every call of a tool of `server` ask its client something, and return what it said."""

    async def ask(_: Any) -> Any:
        try:
            said = await server.ask(method, params)
        except RpcError as error:
            said = error.code
        return {"content": [{"type": "text", "text": str(said)}]}

    server.methods["tools/call"] = ask


@pytest.mark.parametrize(("method", "capability"), QUESTIONS.items())
async def test_a_question_during_a_call_reaches_its_client_and_the_answer_gets_back(
    method: str, capability: str
) -> None:
    server = one_tool()
    params = {"vendor": 1, "_meta": {"x/y": [1]}}
    asking(server, method, params)
    offered: dict[str, Any] = {capability: {}}
    async with serving(s=server) as made, user(made, **offered) as somebody:
        somebody.answers[method] = lambda _: {"answer": 42}
        assert text_of(await somebody.call("s__echo")) == "{'answer': 42}"
        assert somebody.asked == [(method, params)]


@pytest.mark.parametrize(("method", "capability"), QUESTIONS.items())
async def test_a_client_that_did_not_offer_to_answer_is_not_asked(
    method: str, capability: str
) -> None:
    server = one_tool()
    asking(server, method)
    others: dict[str, Any] = {name: {} for name in QUESTIONS.values() if name != capability}
    async with serving(s=server) as made, user(made, **others) as somebody:
        assert text_of(await somebody.call("s__echo")) == "-32601"
        assert somebody.asked == []


async def test_a_client_whose_revision_has_no_such_question_is_not_asked() -> None:
    server = one_tool()
    asking(server, "elicitation/create")
    async with serving(s=server) as made, user(made, "2025-03-26", elicitation={}) as somebody:
        assert text_of(await somebody.call("s__echo")) == "-32601"
        assert somebody.asked == []


async def test_a_refused_question_is_refused_with_the_clients_own_words() -> None:
    server = one_tool()

    def refuse(_: Any) -> Any:
        raise RpcError(-1, "User rejected")

    asking(server, "sampling/createMessage")
    async with serving(s=server) as made, user(made, sampling={}) as somebody:
        somebody.answers["sampling/createMessage"] = refuse
        assert text_of(await somebody.call("s__echo")) == "-1"


async def test_an_unknown_question_is_left_to_the_client() -> None:
    server = one_tool()
    asking(server, "vendor/ask", {"a": 1})
    async with serving(s=server) as made, user(made) as somebody:
        somebody.answers["vendor/ask"] = lambda params: {"said": params}
        assert text_of(await somebody.call("s__echo")) == "{'said': {'a': 1}}"


@pytest.mark.parametrize("method", ["tools/call", "initialize", "resources/read"])
async def test_what_only_clients_ask_is_asked_of_nobody(method: str) -> None:
    server = one_tool()
    asking(server, method)
    async with serving(s=server) as made, user(made) as somebody:
        assert text_of(await somebody.call("s__echo")) == "-32601"
        assert somebody.asked == []


async def test_a_server_may_ping() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made):
        assert await server.ask("ping") == {}


async def test_two_clients_call_one_server_and_each_is_asked_about_its_own_call() -> None:
    server = one_tool()
    lines: list[Any] = []
    begun = asyncio.Semaphore(0)
    go = asyncio.Event()

    async def call(_: Any) -> Any:
        lines.append(server.line)
        begun.release()
        await go.wait()
        return {"content": []}

    server.methods["tools/call"] = call
    async with (
        serving(s=server) as made,
        user(made, roots={}) as one,
        user(made, roots={}) as two,
    ):
        for who in (one, two):
            who.answers["roots/list"] = lambda _: {"roots": []}
        calls: list[asyncio.Task[Any]] = []
        for who in (one, two):
            calls.append(asyncio.create_task(who.call("s__echo")))
            await begun.acquire()
        assert lines[0] is not lines[1]  # a conversation for each
        for line, who in zip(lines, (one, two), strict=True):
            await line.call("roots/list")
            assert [len(each.asked) for each in (one, two)] == [1, int(who is two)]
        go.set()
        assert await asyncio.gather(*calls) == [{"content": []}, {"content": []}]
        # Outside of any call it cannot be known, but where a conversation is one client's own.
        with pytest.raises(RpcError) as refused:
            await lines[0].call("roots/list")
        assert refused.value.code == -32601
        await lines[1].call("roots/list")
        assert [len(each.asked) for each in (one, two)] == [1, 2]
        two_hears = asyncio.create_task(server.until_heard("notifications/roots/list_changed"))
        await two.connection.notify("notifications/roots/list_changed")
        await two_hears


@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "envelope"])
async def test_what_one_client_answered_no_other_comes_to_know(modern: bool) -> None:
    server, told = Server(tools=[tool("t")]), dict[Any, str]()

    async def call(_: Any) -> Any:
        line = server.line  # it asks once, and keeps what it was answered, as many do
        if line not in told:
            told[line] = str(from_raw(await line.call("roots/list")))
        return {"content": [{"type": "text", "text": told[line]}]}

    server.methods["tools/call"] = call
    made = gateway()
    made.add(  # as over HTTP: the first conversation is for those who cannot be asked anything
        Settings("s", "s"), lambda owner: server.connect(owner, made.remapper, owner.declares or {})
    )
    async with running(made, server):
        await poster(made)
        for name in ("ann", "bob"):
            roots: Any = {"roots": [{"uri": f"file:///{name}"}]}
            if modern:
                client, said = Poster(made, name), dict[str, Any]({CAPABILITIES: {"roots": {}}})
                asked = await client.call("s__t", _meta=said)
                answers = dict.fromkeys(asked["inputRequests"], roots)
                state = asked["requestState"]
                found = await client.call(
                    "s__t", _meta=said, requestState=state, inputResponses=answers
                )
            else:
                async with user(made, roots={}) as somebody:
                    somebody.answers["roots/list"] = lambda _, roots=roots: roots
                    found = await somebody.call("s__t")
            assert text_of(found) == str(roots)


async def test_the_one_of_two_clients_that_calls_is_asked() -> None:
    server = one_tool()
    asking(server, "roots/list")
    async with (
        serving(s=server) as made,
        user(made, roots={}) as one,
        user(made, roots={}) as two,
    ):
        two.answers["roots/list"] = lambda _: {"roots": []}
        assert text_of(await two.call("s__echo")) == "{'roots': []}"
        assert one.asked == []


async def test_a_question_outside_of_any_call_goes_to_the_only_client() -> None:
    server = one_tool()
    async with (
        serving(s=server) as made,
        user(made, roots={"listChanged": True}) as somebody,
        User(made),  # has said nothing yet, so it is nobody
    ):
        somebody.answers["roots/list"] = lambda _: {"roots": [{"uri": "file:///"}]}
        assert await server.ask("roots/list") == {"roots": [{"uri": "file:///"}]}
        initialize = next(params for method, params in server.heard if method == "initialize")
        assert initialize["capabilities"] == {"roots": {"listChanged": True}}
        await somebody.tell("notifications/roots/list_changed")
        await server.until_heard("notifications/roots/list_changed")


async def test_a_server_that_cancels_its_question_cancels_ours() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made, sampling={}) as somebody:
        somebody.answers["sampling/createMessage"] = hold = Hold()
        question = asyncio.create_task(server.ask("sampling/createMessage"))
        await hold.begun.wait()
        # A server's first question has id 1.
        await server.line.notify("notifications/cancelled", {"requestId": 1})
        cancelled = await somebody.until_told("notifications/cancelled")
        assert cancelled["requestId"] == somebody.requests[-1].id
        hold.let_go.set()
        await somebody.ask("ping")
        question.cancel()
        await server.line.notify("notifications/cancelled")  # of nothing: ignored
        await server.line.notify("notifications/cancelled", {"requestId": 99})
        assert await server.ask("ping") == {}


async def test_a_server_that_dies_takes_its_question_back() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made, sampling={}) as somebody:
        somebody.answers["sampling/createMessage"] = hold = Hold()
        question = asyncio.create_task(server.ask("sampling/createMessage"))
        await hold.begun.wait()
        await server.die()
        await somebody.until_told("notifications/cancelled")
        await asyncio.gather(question, return_exceptions=True)


async def test_a_client_that_leaves_has_not_answered() -> None:
    server = one_tool()
    async with serving(s=server) as made:
        async with user(made, roots={}) as somebody:
            somebody.answers["roots/list"] = hold = Hold()
            question = asyncio.create_task(server.ask("roots/list"))
            await hold.begun.wait()
        with pytest.raises(RpcError) as gone:
            await question
        assert gone.value.code == -32603


async def test_progress_with_a_question_gets_back_under_the_servers_token() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made, sampling={}) as somebody:
        somebody.answers["sampling/createMessage"] = hold = Hold({"role": "assistant"})
        asked = {"_meta": {"progressToken": "mine", "x": 1}}
        question = asyncio.create_task(server.ask("sampling/createMessage", asked))
        await hold.begun.wait()
        token = somebody.asked[-1][1]["_meta"]["progressToken"]
        for wrong in ("mine", 99, None, True):
            await somebody.tell("notifications/progress", {"progressToken": wrong, "progress": 0})
        await somebody.tell("notifications/progress")
        await somebody.tell("notifications/progress", {"progressToken": token, "progress": 1})
        note = await server.until_heard("notifications/progress")
        assert note == {"progressToken": "mine", "progress": 1}
        hold.let_go.set()
        assert await question == {"role": "assistant"}
        await somebody.tell("notifications/progress", {"progressToken": token, "progress": 2})
        await somebody.ask("ping")
        assert server.count("notifications/progress") == 1


async def test_an_engine_of_texts_cannot_be_asked() -> None:
    server = one_tool()
    asking(server, "roots/list")
    async with serving(s=server) as made:
        engine = await opened(made=made, capabilities={"roots": {}})
        await made.registry.wait_settled()
        answer = await say(engine, text("tools/call", {"name": "s__echo"}))
        assert text_of(answer["result"]) == "-32601"


async def test_a_question_that_is_open_gives_no_more_time_to_calls_of_others_or_of_later() -> None:
    curious, idle, made = one_tool(), one_tool(), gateway()
    asking(curious, "elicitation/create")
    idle.methods["tools/call"] = Hold()
    add(made, "s", curious, timeout=0.05)
    add(made, "t", idle, timeout=0.05)
    async with running(made, curious, idle), user(made, elicitation={}) as somebody:
        somebody.answers["elicitation/create"] = thinking = Hold({"action": "decline"})
        first = asyncio.create_task(somebody.call("s__echo"))
        async with asyncio.timeout(10):
            await thinking.begun.wait()
            other = await somebody.refusal("tools/call", {"name": "t__echo"})
            curious.methods["tools/call"] = Hold()
            later = await somebody.refusal("tools/call", {"name": "s__echo"})
            assert other.message == "t did not answer within 0.05 s"
            assert later.message == "s did not answer within 0.05 s"
            assert not first.done()
            thinking.let_go.set()
            assert text_of(await first) == "{'action': 'decline'}"
