"""Both eras on one pipe: what stands alone is answered alone, before and beside a conversation."""

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.letters import (
    ACKNOWLEDGED,
    LISTEN,
    LOG_LEVEL,
    SUBSCRIPTION,
    VERSION,
    EnvelopeServer,
    letter,
    meta,
    poster,
)
from tests.gateway.servers import Hold, Server, User, hello, one_tool, serving, text_of, tool, user
from tests.gateway.test_session import Wire
from tests.gateway.test_session_questions import asking
from trunkline.gateway import gateway as gateway_module
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import Identity
from trunkline.jsonrpc import Incident
from trunkline.mcp.methods import CLIENT_NOTIFICATIONS, CLIENT_REQUESTS

UPDATED = "notifications/resources/updated"
CANCELLED = "notifications/cancelled"


def keeper(*uris: str) -> Server:
    server = Server(tools=[tool("t")], resources=[{"uri": uri, "name": uri} for uri in uris])
    server.capabilities["resources"] = {"subscribe": True}
    return server


async def test_what_stands_alone_needs_no_handshake() -> None:
    async with serving(s=one_tool()) as made, User(made) as somebody:
        found = await somebody.ask("server/discover", letter())
        assert found["supportedVersions"] == ["2026-07-28"]
        result = await somebody.ask("tools/call", letter(name="s__echo"))
        assert (text_of(result), result["resultType"]) == ("echo ran", "complete")
        (session,) = made.sessions
        assert not session.initialized
        error = await somebody.refusal("tools/list", {})  # which does not stand alone
        assert error.code == -32002
        assert somebody.everything() == []  # it has not asked to hear of tools that change


async def test_a_conversation_and_what_stands_alone_know_nothing_of_each_other() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made, sampling={}) as somebody:
        old, new = await somebody.ask("tools/list"), await somebody.ask("tools/list", letter())
        assert set(new) - set(old) == {"resultType", "ttlMs", "cacheScope", "_meta"}
        assert await somebody.ask("ping") == {}
        for method in ("ping", "logging/setLevel", "resources/subscribe"):
            assert (await somebody.refusal(method, letter())).code == -32601
        assert (await somebody.refusal("server/discover", {})).code == -32601
        asking(server, "sampling/createMessage")
        result = await somebody.ask("tools/call", letter(name="s__echo"))
        assert text_of(result) == "-32601"
        assert somebody.asked == []


async def test_initialize_opens_a_conversation_whatever_it_carries() -> None:
    async with serving(s=one_tool()) as made, User(made) as somebody:
        answer = await somebody.ask("initialize", hello() | {"_meta": meta()})
        assert answer["protocolVersion"] == "2025-11-25"
        assert (await somebody.ask("tools/list", letter()))["resultType"] == "complete"
        assert "resultType" not in await somebody.ask("tools/list")


@pytest.mark.holds("T95", "T96")
async def test_each_client_gets_the_shapes_of_its_own_revision() -> None:
    server = EnvelopeServer(tools=[{"name": "t", "outputSchema": {"type": "array"}}])
    block = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    server.methods["tools/call"] = lambda _: {"content": [block], "structuredContent": [1]}
    schema = {"type": "object"}
    async with serving(s=server) as made:
        for version, kind in (("2025-11-25", "audio"), ("2024-11-05", "resource")):
            async with user(made, version) as somebody:
                listed = await somebody.ask("tools/list")
                assert listed["tools"] == [{"name": "s__t", "inputSchema": schema}]
                result = await somebody.call("s__t")
                assert [found["type"] for found in result["content"]] == [kind, "text"]
                assert result["content"][1]["text"] == "[1]"
                assert "structuredContent" not in result
                listed = await somebody.ask("tools/list", letter())
                assert listed["tools"][0]["outputSchema"] == {"type": "array"}
                result = await somebody.ask("tools/call", letter(name="s__t"))
                assert (result["content"], result["structuredContent"]) == ([block], [1])


@pytest.mark.parametrize(("version", "kept"), [("2025-03-26", False), ("2025-06-18", True)])
async def test_an_older_server_completes_without_a_context(version: str, *, kept: bool) -> None:
    server = Server(version, prompts=[{"name": "p"}])
    server.capabilities["completions"] = {}
    server.methods["completion/complete"] = lambda _: {"completion": {"values": []}}
    async with serving(s=server) as made, user(made) as somebody:
        reference = {"type": "ref/prompt", "name": "s__p"}
        asked: Any = {"ref": reference, "argument": {}, "context": {"arguments": {}}}
        await somebody.ask("completion/complete", asked)
        assert ("context" in server.heard[-1][1]) == kept


@pytest.mark.parametrize("bad", [{VERSION: "v999"}, {VERSION: 7}])
async def test_an_envelope_that_is_wrong_is_never_taken_for_none(bad: dict[str, Any]) -> None:
    async with serving(s=one_tool()) as made, user(made) as somebody:
        error = await somebody.refusal("tools/list", letter(bad))
        assert error.code == (-32022 if bad[VERSION] == "v999" else -32602)


async def test_a_call_that_stands_alone_can_be_cancelled() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made:
        wire = Wire(made)
        params = letter(name="s__echo")
        await wire.say({"id": "c", "method": "tools/call", "params": params})
        await hold.begun.wait()
        await wire.say({"method": CANCELLED, "params": {"requestId": "other"}})
        await wire.say({"method": CANCELLED, "params": {"requestId": "c"}})
        await server.until_heard(CANCELLED)
        await wire.say({"id": 2, "method": "ping"})
        assert (await wire.hear())["id"] == 2  # what was cancelled is not answered
        await wire.close()


async def test_progress_and_messages_come_on_the_pipe_before_the_answer() -> None:
    server = one_tool()

    async def work(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        await server.line.notify("notifications/progress", {"progressToken": token, "progress": 1})
        for level in ("info", "error"):
            await server.line.notify("notifications/message", {"level": level})
        return {"content": []}

    server.methods["tools/call"] = work
    async with serving(s=server) as made:
        wire = Wire(made)
        params = letter({"progressToken": "p", LOG_LEVEL: "error"}, name="s__echo")
        await wire.say({"id": 1, "method": "tools/call", "params": params})
        heard = [await wire.hear() for _ in range(3)]
        assert [h.get("method") for h in heard] == [
            "notifications/progress",
            "notifications/message",
            None,
        ]
        assert heard[0]["params"] == {"progressToken": "p", "progress": 1}
        assert heard[1]["params"] == {"level": "error"}
        await wire.close()


@pytest.mark.parametrize("id", [1, "1"])
async def test_to_listen_on_a_pipe_and_to_stop_listening(id: Any) -> None:
    server = keeper("x:1")
    async with serving(s=server) as made:
        await poster(made)
        wire = Wire(made)
        wishes = {"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}
        await wire.say({"id": id, "method": LISTEN, "params": letter(notifications=wishes)})
        acknowledged = await wire.hear()
        assert acknowledged["method"] == ACKNOWLEDGED
        mark = {SUBSCRIPTION: id}
        assert acknowledged["params"] == {"_meta": mark, "notifications": wishes}
        await server.line.notify(UPDATED, {"uri": "x:1"})
        assert (await wire.hear())["params"] == {"uri": "x:1", "_meta": mark}
        await server.line.notify("notifications/tools/list_changed")
        heard = await wire.hear()
        assert heard["params"] == {"_meta": mark}
        await wire.say({"method": CANCELLED, "params": {"requestId": id}})
        assert await server.until_heard("resources/unsubscribe") == {"uri": "x:1"}
        await wire.say({"id": "p", "method": "ping"})
        assert (await wire.hear())["id"] == "p"
        await wire.close()


async def test_who_hangs_up_listens_no_more() -> None:
    server = keeper("x:1")
    async with serving(s=server) as made:
        wire = Wire(made)
        wishes = {"resourceSubscriptions": ["x:1"]}
        await wire.say({"id": 1, "method": LISTEN, "params": letter(notifications=wishes)})
        await wire.hear()
        await wire.close()
        assert await server.until_heard("resources/unsubscribe") == {"uri": "x:1"}


async def test_the_end_of_the_gateway_is_the_answer_of_those_who_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "GRACE", 5.0)
    server = keeper("x:1")
    async with serving(s=server) as made:
        wire = Wire(made)
        wishes = {"toolsListChanged": True}
        await wire.say({"id": "s", "method": LISTEN, "params": letter(notifications=wishes)})
        assert (await wire.hear())["method"] == ACKNOWLEDGED
        ending = asyncio.create_task(made.aclose())
        answer = await wire.hear_answer()
        assert answer["id"] == "s"
        assert answer["result"] == {"resultType": "complete", "_meta": {SUBSCRIPTION: "s"}}
        await ending
        await wire.close()


async def test_a_question_is_for_the_conversation_even_if_others_stand_beside_it() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made, user(made, roots={}) as somebody:
        somebody.answers["roots/list"] = lambda _: {"roots": []}
        alone = asyncio.create_task(somebody.ask("tools/call", letter(name="s__echo")))
        await hold.begun.wait()
        with pytest.raises(Exception, match="Method not found"):
            await server.ask("roots/list", {})
        hold.let_go.set()
        await alone
        assert await server.ask("roots/list", {}) == {"roots": []}
        assert len(somebody.asked) == 1


# Whatever is said, it is no incident

METHODS = sorted({*CLIENT_REQUESTS, *CLIENT_NOTIFICATIONS} - {CANCELLED})
VALUES = ["null", "true", "7", "1e999", "-0", '""', '"\\ud800"', "[]", "{}", "[1e999]", '{"a":1}']
KEYS = ["name", "uri", "ref", "level", "cursor", "notifications", "arguments", "_meta", "task"]
ENVELOPE = json.dumps(meta(progressToken="p"))


def shapes() -> list[str]:
    """Return params of every shape that somebody might think of."""
    found = ["", "[]", "[1]", "{}", '{"a":1,"a":2}', '{"_meta":{"a":1,"a":2}}']
    found += [f'{{"{key}":{value}}}' for key in KEYS for value in VALUES]
    keys = [VERSION, "io.modelcontextprotocol/clientCapabilities", LOG_LEVEL, "progressToken"]
    found += [f'{{"_meta":{{"{key}":{value}}}}}' for key in keys for value in VALUES]
    return found


@pytest.mark.parametrize("enveloped", [True, False])
@pytest.mark.parametrize("method", METHODS)
async def test_no_request_is_an_incident(method: str, enveloped: bool) -> None:
    incidents: list[Incident] = []
    made = Gateway(Identity("g", "1"), chance=lambda: 0.0, report=incidents.append)
    server = keeper("x:1")
    server.capabilities |= {"prompts": {}, "completions": {}, "logging": {}}
    made.add(
        gateway_module.Settings("s", "s"),
        lambda listener: server.connect(listener, made.remapper, made.client_capabilities),
    )
    async with asyncio.timeout(20):
        wire = Wire(made)
        if method != "initialize":
            await wire.open()
            await made.registry.wait_settled()
        asked: set[int] = set()
        for id, shape in enumerate(shapes(), 1):
            params = shape
            if enveloped:
                if shape[:1] != "{" or '"_meta"' in shape:
                    continue
                params = f'{shape[:-1]}{"," if len(shape) > 2 else ""}"_meta":{ENVELOPE}}}'
            head = f'{{"jsonrpc":"2.0","id":{id},"method":"{method}"'
            await wire.say(f'{head},"params":{params}}}' if params else f"{head}}}")
            listens = method == LISTEN and enveloped
            while True:
                heard = await wire.hear()
                if heard.get("id") == id or "error" in heard:
                    break
                if listens and heard.get("method") == ACKNOWLEDGED:
                    news = {"method": CANCELLED, "params": {"requestId": id}}
                    await wire.say(news)
                    break
            asked.add(id)
            if "error" in heard:
                assert heard["error"]["code"] != -32603, (shape, heard)
        assert asked
        assert incidents == []
        await wire.close()
        await made.aclose()
        await asyncio.gather(*server.runs)
