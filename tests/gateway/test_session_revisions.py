"""Both protocols on one pipe: stateless requests before and during a session."""

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.servers import (
    NO_GRACE,
    HeldAnswer,
    Server,
    SessionClient,
    hello,
    one_tool,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import (
    ACKNOWLEDGED,
    LISTEN,
    LOG_LEVEL,
    SUBSCRIPTION,
    VERSION,
    StatelessScriptedServer,
    meta,
    stateless_caller,
    stateless_params,
)
from tests.gateway.test_session import Wire
from tests.gateway.test_session_questions import asking
from tests.tasks import hang_guard
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import GatewayLimits, UpstreamSettings
from trunkline.jsonrpc import Incident
from trunkline.mcp.methods import CLIENT_NOTIFICATIONS, CLIENT_REQUESTS

UPDATED = "notifications/resources/updated"
CANCELLED = "notifications/cancelled"


def subscribable(*uris: str) -> Server:
    server = Server(tools=[tool("t")], resources=[{"uri": uri, "name": uri} for uri in uris])
    server.capabilities["resources"] = {"subscribe": True}
    return server


async def test_a_stateless_request_needs_no_session() -> None:
    async with serving(s=one_tool()) as gateway, SessionClient(gateway) as user:
        found = await user.ask("server/discover", stateless_params())
        assert found["supportedVersions"] == ["2026-07-28"]
        result = await user.ask("tools/call", stateless_params(name="s__echo"))
        assert (text_of(result), result["resultType"]) == ("echo ran", "complete")
        (session,) = gateway.sessions
        assert not session.initialized
        error = await user.expect_error("tools/list", {})  # which does not stand alone
        assert error.code == -32002
        assert user.take_notifications() == []  # it has no subscription


async def test_sessions_and_stateless_requests_are_independent() -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway, sampling={}) as user:
        old, new = (
            await user.ask("tools/list"),
            await user.ask("tools/list", stateless_params()),
        )
        assert set(new) - set(old) == {"resultType", "ttlMs", "cacheScope", "_meta"}
        assert await user.ask("ping") == {}
        for method in ("ping", "logging/setLevel", "resources/subscribe"):
            assert (await user.expect_error(method, stateless_params())).code == -32601
        assert (await user.expect_error("server/discover", {})).code == -32601
        asking(server, "sampling/createMessage")
        result = await user.ask("tools/call", stateless_params(name="s__echo"))
        assert text_of(result) == "-32601"
        assert user.asked_requests == []


async def test_initialize_starts_a_session_with_any_extra_members() -> None:
    async with serving(s=one_tool()) as gateway, SessionClient(gateway) as user:
        answer = await user.ask("initialize", hello() | {"_meta": meta()})
        assert answer["protocolVersion"] == "2025-11-25"
        assert (await user.ask("tools/list", stateless_params()))["resultType"] == "complete"
        assert "resultType" not in await user.ask("tools/list")


@pytest.mark.holds("T95", "T96")
async def test_each_client_gets_results_in_its_own_revision() -> None:
    server = StatelessScriptedServer(tools=[{"name": "t", "outputSchema": {"type": "array"}}])
    block = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    server.methods["tools/call"] = lambda _: {"content": [block], "structuredContent": [1]}
    schema = {"type": "object"}
    async with serving(s=server) as gateway:
        for version, kind in (("2025-11-25", "audio"), ("2024-11-05", "resource")):
            async with session_client(gateway, version) as user:
                listed = await user.ask("tools/list")
                assert listed["tools"] == [{"name": "s__t", "inputSchema": schema}]
                result = await user.call("s__t")
                assert [found["type"] for found in result["content"]] == [kind, "text"]
                assert result["content"][1]["text"] == "[1]"
                assert "structuredContent" not in result
                listed = await user.ask("tools/list", stateless_params())
                assert listed["tools"][0]["outputSchema"] == {"type": "array"}
                result = await user.ask("tools/call", stateless_params(name="s__t"))
                assert (result["content"], result["structuredContent"]) == ([block], [1])


@pytest.mark.parametrize(("version", "kept"), [("2025-03-26", False), ("2025-06-18", True)])
async def test_an_older_server_gets_no_completion_context(version: str, *, kept: bool) -> None:
    server = Server(version, prompts=[{"name": "p"}])
    server.capabilities["completions"] = {}
    server.methods["completion/complete"] = lambda _: {"completion": {"values": []}}
    async with serving(s=server) as gateway, session_client(gateway) as user:
        reference = {"type": "ref/prompt", "name": "s__p"}
        params: Any = {"ref": reference, "argument": {}, "context": {"arguments": {}}}
        await user.ask("completion/complete", params)
        assert ("context" in server.received[-1][1]) == kept


@pytest.mark.parametrize("bad", [{VERSION: "v999"}, {VERSION: 7}])
async def test_an_invalid_envelope_is_an_error_and_never_ignored(bad: dict[str, Any]) -> None:
    async with serving(s=one_tool()) as gateway, session_client(gateway) as user:
        error = await user.expect_error("tools/list", stateless_params(bad))
        assert error.code == (-32022 if bad[VERSION] == "v999" else -32602)


async def test_a_stateless_call_can_be_cancelled() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway:
        wire = Wire(gateway)
        params = stateless_params(name="s__echo")
        await wire.send({"id": "c", "method": "tools/call", "params": params})
        await hold.started.wait()
        await wire.send({"method": CANCELLED, "params": {"requestId": "other"}})
        await wire.send({"method": CANCELLED, "params": {"requestId": "c"}})
        await server.wait_received(CANCELLED)
        await wire.send({"id": 2, "method": "ping"})
        assert (await wire.receive())["id"] == 2  # the cancelled call is not answered
        await wire.close()


async def test_progress_and_log_messages_come_on_the_pipe_before_the_answer() -> None:
    server = one_tool()

    async def work(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        await server.active_connection.notify(
            "notifications/progress", {"progressToken": token, "progress": 1}
        )
        for level in ("info", "error"):
            await server.active_connection.notify("notifications/message", {"level": level})
        return {"content": []}

    server.methods["tools/call"] = work
    async with serving(s=server) as gateway:
        wire = Wire(gateway)
        params = stateless_params({"progressToken": "p", LOG_LEVEL: "error"}, name="s__echo")
        await wire.send({"id": 1, "method": "tools/call", "params": params})
        messages = [await wire.receive() for _ in range(3)]
        assert [m.get("method") for m in messages] == [
            "notifications/progress",
            "notifications/message",
            None,
        ]
        assert messages[0]["params"] == {"progressToken": "p", "progress": 1}
        assert messages[1]["params"] == {"level": "error"}
        await wire.close()


@pytest.mark.parametrize("id", [1, "1"])
async def test_a_subscription_stream_on_a_pipe_can_be_cancelled(id: Any) -> None:
    server = subscribable("x:1")
    async with serving(s=server) as gateway:
        await stateless_caller(gateway)
        wire = Wire(gateway)
        requested = {"toolsListChanged": True, "resourceSubscriptions": ["x:1"]}
        await wire.send(
            {"id": id, "method": LISTEN, "params": stateless_params(notifications=requested)}
        )
        acknowledged = await wire.receive()
        assert acknowledged["method"] == ACKNOWLEDGED
        mark = {SUBSCRIPTION: id}
        assert acknowledged["params"] == {"_meta": mark, "notifications": requested}
        await server.active_connection.notify(UPDATED, {"uri": "x:1"})
        assert (await wire.receive())["params"] == {"uri": "x:1", "_meta": mark}
        server.lists["tools"] = [tool("new")]
        await server.active_connection.notify("notifications/tools/list_changed")
        message = await wire.receive()
        assert message["params"] == {"_meta": mark}
        await wire.send({"method": CANCELLED, "params": {"requestId": id}})
        assert await server.wait_received("resources/unsubscribe") == {"uri": "x:1"}
        await wire.send({"id": "p", "method": "ping"})
        assert (await wire.receive())["id"] == "p"
        await wire.close()


async def test_a_closed_stream_ends_its_subscription() -> None:
    server = subscribable("x:1")
    async with serving(s=server) as gateway:
        wire = Wire(gateway)
        requested = {"resourceSubscriptions": ["x:1"]}
        await wire.send(
            {"id": 1, "method": LISTEN, "params": stateless_params(notifications=requested)}
        )
        await wire.receive()
        await wire.close()
        assert await server.wait_received("resources/unsubscribe") == {"uri": "x:1"}


async def test_closing_the_gateway_answers_the_subscription_streams() -> None:
    limits, server = GatewayLimits(close_timeout=5.0), subscribable("x:1")
    async with serving(limits, s=server) as gateway:
        wire = Wire(gateway)
        requested = {"toolsListChanged": True}
        await wire.send(
            {"id": "s", "method": LISTEN, "params": stateless_params(notifications=requested)}
        )
        assert (await wire.receive())["method"] == ACKNOWLEDGED
        ending = asyncio.create_task(gateway.aclose())
        answer = await wire.receive_response()
        assert answer["id"] == "s"
        assert answer["result"] == {"resultType": "complete", "_meta": {SUBSCRIPTION: "s"}}
        await ending
        await wire.close()


async def test_a_request_goes_to_the_session_although_stateless_requests_are_open() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway, session_client(gateway, roots={}) as user:
        user.answers["roots/list"] = lambda _: {"roots": []}
        alone = asyncio.create_task(user.ask("tools/call", stateless_params(name="s__echo")))
        await hold.started.wait()
        with pytest.raises(Exception, match="Method not found"):
            await server.ask("roots/list", {})
        hold.released.set()
        await alone
        assert await server.ask("roots/list", {}) == {"roots": []}
        assert len(user.asked_requests) == 1


# Random requests cause no incident

METHODS = sorted({*CLIENT_REQUESTS, *CLIENT_NOTIFICATIONS} - {CANCELLED})
VALUES = ["null", "true", "7", "1e999", "-0", '""', '"\\ud800"', "[]", "{}", "[1e999]", '{"a":1}']
KEYS = ["name", "uri", "ref", "level", "cursor", "notifications", "arguments", "_meta", "task"]
ENVELOPE = json.dumps(meta(progressToken="p"))


def shapes() -> list[str]:
    """Generate params of all forms."""
    found = ["", "[]", "[1]", "{}", '{"a":1,"a":2}', '{"_meta":{"a":1,"a":2}}']
    found += [f'{{"{key}":{value}}}' for key in KEYS for value in VALUES]
    keys = [VERSION, "io.modelcontextprotocol/clientCapabilities", LOG_LEVEL, "progressToken"]
    found += [f'{{"_meta":{{"{key}":{value}}}}}' for key in keys for value in VALUES]
    return found


@pytest.mark.parametrize("enveloped", [True, False])
@pytest.mark.parametrize("method", METHODS)
async def test_no_request_is_an_incident(method: str, enveloped: bool) -> None:
    incidents: list[Incident] = []
    gateway = Gateway(GatewayIdentity("g", "1"), lambda: 0.0, incidents.append, limits=NO_GRACE)
    server = subscribable("x:1")
    server.capabilities |= {"prompts": {}, "completions": {}, "logging": {}}
    gateway.add_upstream(
        UpstreamSettings("s", "s"),
        lambda listener: server.connect(listener, gateway.remapper, gateway.client_capabilities),
    )
    async with hang_guard():
        wire = Wire(gateway)
        if method != "initialize":
            await wire.open()
            await gateway.registry.wait_complete()
        sent_ids: set[int] = set()
        for id, shape in enumerate(shapes(), 1):
            params = shape
            if enveloped:
                if shape[:1] != "{" or '"_meta"' in shape:
                    continue
                params = f'{shape[:-1]}{"," if len(shape) > 2 else ""}"_meta":{ENVELOPE}}}'
            head = f'{{"jsonrpc":"2.0","id":{id},"method":"{method}"'
            await wire.send(f'{head},"params":{params}}}' if params else f"{head}}}")
            listens = method == LISTEN and enveloped
            while True:
                message = await wire.receive()
                if message.get("id") == id or "error" in message:
                    break
                if listens and message.get("method") == ACKNOWLEDGED:
                    news = {"method": CANCELLED, "params": {"requestId": id}}
                    await wire.send(news)
                    break
            sent_ids.add(id)
            if "error" in message:
                assert message["error"]["code"] != -32603, (shape, message)
        assert sent_ids
        assert incidents == []
        await wire.close()
        await gateway.aclose()
        await asyncio.gather(*server.runs)
