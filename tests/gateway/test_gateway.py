"""The gateway as a whole: message delivery, text engines and a clean shutdown."""

import asyncio
from typing import Any

import pytest

from tests.gateway.clock import ClockLoop
from tests.gateway.servers import (
    NO_GRACE,
    HeldAnswer,
    Server,
    SessionClient,
    hello,
    make_gateway,
    one_tool,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import StatelessCaller
from tests.gateway.test_session_lifecycle import (
    initialized_engine,
    notification_text,
    send_text,
    text,
)
from trunkline.gateway.events import SkippedFeatures, StrayOutput
from trunkline.gateway.gateway import MAX_STRAY_SAMPLE_LENGTH, STRAY_OUTPUT_INTERVAL, Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.jsonrpc import Incident

LOG = "notifications/message"


async def test_servers_start_with_the_first_client_and_learn_its_capabilities() -> None:
    server = one_tool()
    async with serving(s=server) as gateway:
        await asyncio.sleep(0)
        assert server.starts == 0
        async with session_client(gateway, sampling={"context": {}}, experimental={"x": 1}):
            (initialize_params,) = [
                params for method, params in server.received if method == "initialize"
            ]
            assert initialize_params["capabilities"] == {"sampling": {"context": {}}}
            assert initialize_params["protocolVersion"] == "2025-11-25"


async def test_skipped_features_are_reported_once_until_they_change() -> None:
    server = Server(tools=[tool("a"), tool("")])
    events: list[SkippedFeatures] = []
    async with serving(s=server) as gateway:
        gateway.pipeline.events.add_listener(
            lambda e: events.append(e) if isinstance(e, SkippedFeatures) else None
        )
        async with session_client(gateway):
            await gateway.registry.wait_complete()
            for count, listed in enumerate((tool("b"), tool("b"), tool("a"))):
                server.lists["tools"].append(listed)
                await server.active_connection.notify("notifications/tools/list_changed")
                while len(events) < max(1, count + 1):
                    await asyncio.sleep(0)
    unnamed = "tools[1]: expected a string as 'name', and not an empty one"
    again = [f"tools: {name!r} again: the first counts" for name in "ab"]
    assert [event.reasons for event in events] == [
        (unnamed,),
        (unnamed, again[1]),
        (unnamed, *again),
    ]
    assert {event.backend for event in events} == {"s"}


def test_text_on_stdout_is_reported_with_a_masked_sample_once_a_minute_for_each_server() -> None:
    loop = ClockLoop()
    gateway = make_gateway()
    gateway.mask_secrets = lambda text: text.replace("hunter22", "***")
    events: list[StrayOutput] = []
    gateway.pipeline.events.add_listener(
        lambda e: events.append(e) if isinstance(e, StrayOutput) else None
    )

    async def write(*servers: str) -> None:
        for server in servers:
            gateway.note_stray_output(server, "hunter22 " + "x" * 5000)

    loop.run(write("a", "a", "a", "b"))
    loop.run_for(STRAY_OUTPUT_INTERVAL - 1)
    loop.run(write("a", "b"))
    assert [(event.backend, event.lines) for event in events] == [("a", 1), ("b", 1)]
    loop.run_for(1)
    loop.run(write("a", "a"))
    loop.close()
    assert [(event.backend, event.lines) for event in events[2:]] == [("a", 4)]
    assert {event.sample for event in events} == {"*** " + "x" * (MAX_STRAY_SAMPLE_LENGTH - 4)}


async def test_a_notification_goes_to_all_initialized_sessions() -> None:
    server = one_tool()
    async with (
        serving(s=server) as gateway,
        session_client(gateway) as one,
        session_client(gateway) as two,
        SessionClient(gateway) as early,
    ):
        await early.ask("initialize", hello())
        await server.active_connection.notify("vendor/news", {"data": {"v": 1}, "_meta": {"k": 2}})
        for user in (one, two):
            params = await user.wait_notification("vendor/news")
            assert params == {"data": {"v": 1}, "_meta": {"k": 2}}
        await early.ask("ping")
        assert early.notifications.empty()


async def test_a_log_message_goes_to_the_client_with_calls_in_flight() -> None:
    server = one_tool()
    hold = server.methods["tools/call"] = HeldAnswer()
    async with (
        serving(s=server) as gateway,
        session_client(gateway) as one,
        session_client(gateway) as two,
    ):
        await server.active_connection.notify(LOG, {"level": "info", "data": "no caller's"})
        calling = asyncio.create_task(one.call("s__echo"))
        await hold.started.wait()
        await server.active_connection.notify(
            LOG, {"level": "info", "data": "one's", "_meta": {"k": 2}}
        )
        params = await one.wait_notification(LOG)
        assert params == {"level": "info", "data": "one's", "_meta": {"k": 2}}
        hold.released.set()
        await calling
        await two.ask("ping")
        assert LOG not in [method for method, _ in two.take_notifications()]


async def test_a_log_message_about_stateless_calls_does_not_go_to_the_only_session() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway, session_client(gateway) as bystander:
        calls = [
            asyncio.create_task(StatelessCaller(gateway, name).call("s__echo")) for name in "ab"
        ]
        for _ in calls:
            await server.wait_received("tools/call")
        await server.active_connection.notify(LOG, {"level": "error", "data": "a's or b's"})
        await server.active_connection.notify("vendor/news", {})
        method = ""
        while method != "vendor/news":
            method, _ = await bystander.notifications.get()
            assert method != LOG
        hold.released.set()
        await asyncio.gather(*calls)
        await server.active_connection.notify(LOG, {"level": "error", "data": "for all"})
        assert await bystander.wait_notification(LOG) == {"level": "error", "data": "for all"}


async def test_a_log_message_without_calls_goes_to_the_only_client_with_a_level() -> None:
    server = one_tool()
    server.capabilities["logging"] = {}
    async with (
        serving(s=server) as gateway,
        session_client(gateway) as one,
        session_client(gateway) as two,
    ):
        await one.ask("logging/setLevel", {"level": "info"})
        await server.active_connection.notify(LOG, {"level": "info", "data": 1})
        assert await one.wait_notification(LOG) == {"level": "info", "data": 1}
        await two.ask("ping")
        assert LOG not in [method for method, _ in two.take_notifications()]


async def test_the_only_client_gets_all_log_messages() -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway) as one:
        await server.active_connection.notify(LOG, {"level": "info", "data": 1})
        assert await one.wait_notification(LOG) == {"level": "info", "data": 1}


async def test_a_client_gets_log_messages_from_its_level_on() -> None:
    server = one_tool()
    server.capabilities["logging"] = {}
    async with serving(s=server) as gateway, session_client(gateway) as one:
        assert await one.ask("logging/setLevel", {"level": "warning"}) == {}
        for level in ("debug", "info", "warning", "error", "strange"):
            await server.active_connection.notify(LOG, {"level": level})
        messages = [await one.wait_notification(LOG) for _ in range(3)]
        assert [params["level"] for params in messages] == ["warning", "error", "strange"]


async def test_each_client_gets_log_messages_from_its_own_level_on() -> None:
    server = one_tool()
    server.capabilities["logging"] = {}

    async def log(_: Any) -> Any:
        for level in ("debug", "warning", "error"):
            await server.active_connection.notify(LOG, {"level": level})
        return {"content": []}

    server.methods["tools/call"] = log
    async with (
        serving(s=server) as gateway,
        session_client(gateway) as one,
        session_client(gateway) as two,
        session_client(gateway) as three,
    ):
        await one.ask("logging/setLevel", {"level": "error"})
        await two.ask("logging/setLevel", {"level": "debug"})
        for user, expected_levels in (
            (one, ["error"]),
            (two, ["debug", "warning", "error"]),
            (three, ["debug", "warning", "error"]),
        ):
            await user.call("s__echo")
            levels = [
                params["level"] for method, params in user.take_notifications() if method == LOG
            ]
            assert levels == expected_levels


async def test_a_client_gets_no_notification_unknown_to_its_revision() -> None:
    server = one_tool()
    async with (
        serving(s=server) as gateway,
        session_client(gateway, "2025-06-18") as old,
        session_client(gateway) as new,
    ):
        await server.active_connection.notify(
            "notifications/elicitation/complete", {"elicitationId": "e"}
        )
        await server.active_connection.notify("vendor/news", {"a": 1})
        assert await new.wait_notification("notifications/elicitation/complete")
        assert await new.wait_notification("vendor/news") == {"a": 1}
        method = ""
        while method != "vendor/news":
            method, _ = await old.notifications.get()
            assert method != "notifications/elicitation/complete"


async def test_a_text_engine_calls_tools() -> None:
    async with serving(s=one_tool()) as gateway:
        engine = await initialized_engine(gateway=gateway)
        await gateway.registry.wait_complete()
        answer = await send_text(engine, text("tools/call", {"name": "s__echo"}, id="x"))
        assert (answer["id"], text_of(answer["result"])) == ("x", "echo ran")


async def test_concurrent_texts_get_their_own_responses() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway:
        engine = await initialized_engine("2025-03-26", gateway)
        await gateway.registry.wait_complete()
        slow = asyncio.create_task(send_text(engine, text("tools/call", {"name": "s__echo"}, id=1)))
        await hold.started.wait()
        batch = f"[{text('ping', id=2)},{notification_text('vendor/news')}]"
        answers = await asyncio.gather(
            send_text(engine, batch), send_text(engine, text("ping", id=3))
        )
        assert [answers[0][0]["id"], answers[1]["id"]] == [2, 3]
        hold.released.set()
        assert (await slow)["id"] == 1


async def test_a_cancelled_text_frees_its_request_id() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway:
        engine = await initialized_engine(gateway=gateway)
        await gateway.registry.wait_complete()
        slow = asyncio.create_task(send_text(engine, text("tools/call", {"name": "s__echo"}, id=1)))
        await hold.started.wait()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        assert gateway.remapper.pending_count() == 0
        assert (await send_text(engine, text("ping", id=1)))["result"] == {}


async def test_an_unexpected_exception_is_an_incident_and_the_client_gets_only_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    incidents: list[Incident] = []
    gateway = Gateway(GatewayIdentity("g", "1"), lambda: 0.0, incidents.append, limits=NO_GRACE)
    engine = await initialized_engine(gateway=gateway)

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(engine.session, "called", fail)
    monkeypatch.setattr(engine.session, "notified", fail)
    error = (await send_text(engine, text("ping")))["error"]
    assert await send_text(engine, notification_text("vendor/news")) is None
    assert (error["code"], error["data"]) == (-32603, {"incident": incidents[0].id})
    assert "secret" not in str(error)
    assert len(incidents) == 2


async def test_closing_during_starts_and_calls_leaves_nothing_behind() -> None:
    slow, dead, calling = one_tool(), one_tool(), one_tool()
    slow.methods["initialize"] = HeldAnswer()
    dead.broken = OSError("no such program")
    calling.methods["tools/call"] = hold = HeldAnswer()
    async with serving(slow=slow, dead=dead, c=calling) as gateway, SessionClient(gateway) as user:
        await user.hello()
        while not gateway.registry.upstream("c").ready:
            await asyncio.sleep(0)
        call = asyncio.create_task(user.call("c__echo"))
        await hold.started.wait()
        await gateway.aclose()
        await asyncio.gather(call, return_exceptions=True)
        assert {snapshot.state for snapshot in gateway.registry.snapshots()} == {"stopped"}
        await gateway.aclose()  # closing again has no effect
