"""`idle_stop` with real processes: they end like any other, and the next call starts one again."""

import asyncio
from pathlib import Path

from tests.cli.samples import OPERATOR, child, config
from tests.gateway.servers import SessionClient, text_of
from tests.tasks import hang_guard
from trunkline.app.application import App
from trunkline.app.build import build_upstream_settings
from trunkline.config import load_config
from trunkline.gateway.events import BackendStateChanged, GatewayEvent
from trunkline.stdio.child import ChildProcess

IDLE_STOP = 0.05
"""In seconds; less than a configuration may say. Nothing here has to be faster."""


async def test_the_process_ends_in_order_and_a_call_starts_another_one(tmp_path: Path) -> None:
    app = App(load_config(Path(config(tmp_path, child("small", "echo"), OPERATOR)), {}))
    stops = asyncio.Queue[GatewayEvent]()

    def note_stop(event: GatewayEvent) -> None:
        if isinstance(event, BackendStateChanged) and event.state == "idle_stopped":
            stops.put_nowait(event)

    app.gateway.pipeline.events.add_listener(note_stop)
    processes: list[ChildProcess] = []
    async with hang_guard(), app.running() as gateway, SessionClient(gateway) as client:
        await client.hello()
        assert "small__echo" in await client.names()
        small, operator = (
            (build_upstream_settings(each, app.config), app.servers.connect(each))
            for each in app.config.servers
        )
        gateway.apply_config([(small[0]._replace(idle_stop=IDLE_STOP), small[1]), operator])
        for starts in (1, 2, 3):
            await stops.get()
            processes.append(app.servers.children["small"])
            assert await processes[-1].wait() == 0  # it ended because its stdin was closed
            assert len(set(processes)) == starts
            assert "small__echo" in await client.names()
            result = await client.call("small__echo", arguments={"text": "again"})
            assert text_of(result)
        assert gateway.registry.upstream("small").restarts == 0
        assert client.take_notifications() == []
