"""Notifications during a stateless request: only what it asked for."""

import asyncio
from typing import Any

import pytest

from tests.contexts import token_of
from tests.gateway.servers import HeldAnswer, Server, one_tool, serving, tool
from tests.gateway.stateless_callers import (
    CAPABILITIES,
    LOG_LEVEL,
    RecordingStream,
    StatelessScriptedServer,
    cancel_all,
    stateless_caller,
    stateless_params,
)
from trunkline.gateway.stateless import StatelessClient
from trunkline.jsonrpc import Notification, PendingResult, Raw, Request, Response, RpcError, to_raw
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2026_07_28

PROGRESS = "notifications/progress"
LOG = "notifications/message"


async def test_progress_has_the_clients_own_token_and_is_the_only_message() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway:
        client, streams = (
            await stateless_caller(gateway),
            [RecordingStream(), RecordingStream(), RecordingStream()],
        )
        calls = [
            asyncio.create_task(client.call("s__echo", stream, _meta=meta))
            for stream, meta in zip(
                streams, ({"progressToken": 7}, {"progressToken": "7"}, {}), strict=True
            )
        ]
        tokens = [token_of(await server.wait_received("tools/call")) for _ in calls]
        for token in tokens:  # the last client wants no progress, so it gets none
            await server.active_connection.notify(
                PROGRESS, {"progressToken": token, "progress": token}
            )
        for token in (7, "7", 99, None):
            await server.active_connection.notify(PROGRESS, {"progressToken": token, "progress": 1})
        for method in ("vendor/news", "notifications/resources/updated", "notifications/cancelled"):
            await server.active_connection.notify(method, {"uri": "x:"})
        await server.active_connection.notify("notifications/tools/list_changed")
        hold.released.set()
        await asyncio.gather(*calls)
        assert [stream.take_notifications() for stream in streams] == [
            [(PROGRESS, {"progressToken": 7, "progress": tokens[0]})],
            [(PROGRESS, {"progressToken": "7", "progress": tokens[1]})],
            [],
        ]


@pytest.mark.parametrize("kind", [Server, StatelessScriptedServer])
async def test_notifications_read_together_with_the_answer_come_before_it(kind: Any) -> None:
    server = kind(tools=[tool("t")])
    server.methods["tools/call"] = HeldAnswer()
    order: list[str] = []

    class Diary(RecordingStream):
        async def notify(self, method: str, params: Any) -> None:
            order.append(method)

    async with serving(s=server) as gateway:
        await stateless_caller(gateway)
        params = Params(to_raw(stateless_params({"progressToken": 1}, name="s__t")))
        call: PendingResult = gateway.stateless.answer(
            Request(1, "tools/call"), params, Principal("p"), Diary()
        )
        call.add_callback(lambda _: order.append("the answer"))
        token = (await server.wait_received("tools/call"))["_meta"]["progressToken"]
        news = Notification(PROGRESS, {"progressToken": token, "progress": 1})
        answer = Response(server.requests[-1].id, {"resultType": "complete", "content": []})
        await server.transport.send(news.encode())  # read only when both have arrived
        await server.transport.send(answer.encode())
        await call
        assert order == [PROGRESS, "the answer"]


@pytest.mark.holds("T44", "T45")
@pytest.mark.parametrize("kind", [Server, StatelessScriptedServer])
@pytest.mark.parametrize(
    ("meta", "expected_levels"),
    [({}, []), ({LOG_LEVEL: None}, []), ({LOG_LEVEL: "warning"}, ["warning", "alert"])],
)
async def test_log_messages_arrive_only_on_request_and_at_the_requested_level(
    meta: dict[str, Any], expected_levels: list[str], kind: Any
) -> None:
    server = kind(tools=[tool("t")])

    async def log(_: Any) -> Any:
        for level in ("debug", "notice", "warning", "alert"):
            await server.active_connection.notify(LOG, {"level": level, "data": 1})
        return {"content": []}

    server.methods["tools/call"] = log
    async with serving(s=server) as gateway:
        client, stream, other = (
            await stateless_caller(gateway),
            RecordingStream(),
            RecordingStream(),
        )
        await client.call("s__t", stream, _meta=meta)
        await client.ask("tools/list", other, _meta=meta)
        assert [
            (LOG, {"level": level, "data": 1}) for level in expected_levels
        ] == stream.take_notifications()
        assert other.take_notifications() == []


@pytest.mark.holds("T47")
@pytest.mark.parametrize("kind", [Server, StatelessScriptedServer])
async def test_a_client_without_capabilities_gets_no_requests(kind: Any) -> None:
    server = kind(tools=[tool("t")])

    async def ask(_: Any) -> Any:
        codes: list[int] = []
        for method in ("sampling/createMessage", "elicitation/create", "roots/list", "vendor/ask"):
            try:
                await server.ask(method, {})
            except RpcError as error:
                codes.append(error.code)
        return {"content": [], "structuredContent": {"codes": codes}}

    server.methods["tools/call"] = ask
    async with serving(s=server) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        result = await client.call("s__t", stream, _meta={CAPABILITIES: {}})
        assert result["structuredContent"] == {"codes": [-32601] * 4}
        assert (stream.asked_methods, stream.take_notifications()) == ([], [])


async def test_a_client_that_is_gone_does_not_hold_up_its_server() -> None:
    server = one_tool()

    async def send_progress(params: Any) -> Any:
        for _ in range(3):
            await server.active_connection.notify(LOG, {"level": "error"})
        return {"content": []}

    server.methods["tools/call"] = send_progress
    async with serving(s=server) as gateway:
        client, stream = await stateless_caller(gateway), RecordingStream()
        stream.broken = True
        await client.call("s__echo", stream, _meta={LOG_LEVEL: "debug"})
        await client.call("s__echo")
        assert server.count("tools/call") == 2


async def test_a_call_without_a_waiting_client_is_cancelled_at_its_server() -> None:
    server = one_tool()
    server.methods["tools/call"] = HeldAnswer()
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        call = asyncio.create_task(client.call("s__echo"))
        await server.wait_received("tools/call")
        await cancel_all(call)
        await server.wait_received("notifications/cancelled")


@pytest.mark.parametrize("broken", [True, False])
async def test_notify_waits_for_the_client_and_queue_notification_does_not(broken: bool) -> None:
    stream = RecordingStream()
    stream.broken, stream.blocked = broken, asyncio.Event()
    client = StatelessClient(Caller(Principal("p"), V2026_07_28, {}, Raw(b"{}"), "error"), stream)
    client.queue_notification(LOG, {"level": "alert"})
    client.queue_notification(LOG, {"level": "info"})
    client.queue_notification("notifications/tools/list_changed", {})
    sending = asyncio.create_task(client.notify(PROGRESS, {"progressToken": 1}))
    await client.notify(LOG, {"level": "info"})
    await asyncio.sleep(0)
    assert not sending.done()
    stream.blocked.set()
    await sending
    methods = [method for method, _ in stream.take_notifications()]
    assert methods == ([] if broken else [LOG, PROGRESS])
