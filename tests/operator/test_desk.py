"""The desk: how the gateway is, and what is stopped there."""

import asyncio

import pytest

from tests.gateway.servers import Hold, gateway, one_tool, running, user
from tests.gateway.test_switches import switched
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.switches import NotSwitched
from trunkline.operator.desk import Desk, StoppedThing
from trunkline.operator.recent import MOST, Recent


def desk_of(made: Gateway) -> Desk:
    return Desk(made, switched(made), hide=lambda text: text.replace("hunter22", "…"))


@pytest.mark.holds("O4.2")
async def test_the_status_has_all_that_an_operator_wants_to_know() -> None:
    server, broken = one_tool(), one_tool()
    broken.broken = ValueError("bad token hunter22")
    hold = server.methods["tools/call"] = Hold()
    made = gateway(a=server, b=broken)
    desk = desk_of(made)
    async with running(made, server, broken), user(made) as client:
        calling = asyncio.create_task(client.call("a__echo"))
        await hold.begun.wait()
        desk.pause()
        await desk.kill("subject", "anna")
        await desk.kill("server", "b")
        now = desk.status()
        assert (now.name, now.version, now.paused) == ("test-gateway", "1.0", True)
        assert (now.sessions, now.in_flight, now.parked) == (1, 1, 0)
        assert now.uptime >= 0
        assert now.stopped == (
            StoppedThing("server", "b", "operator"),
            StoppedThing("subject", "anna", "operator"),
        )
        a, b = now.servers
        assert (a.state, a.in_flight, a.offers, a.error, a.stopped) == ("ready", 1, 1, None, False)
        assert b.error is not None
        assert "hunter22" not in b.error
        assert b.stopped
        desk.resume()
        await desk.revive("subject", "anna")
        hold.let_go.set()
        await calling
        assert not desk.status().paused


async def test_what_was_done_is_said() -> None:
    server = one_tool()
    hold = server.methods["tools/call"] = Hold()
    made = gateway(a=server)
    desk = desk_of(made)
    async with running(made, server), user(made) as client:
        for ended in ("1 call was ended", "2 calls were ended"):
            calls = [asyncio.create_task(client.call("a__echo")) for _ in range(int(ended[0]))]
            while len(made.layers.under_way) < len(calls):
                await asyncio.sleep(0)
            done = await desk.kill("tool", "a__echo")
            assert done.message == f"tool a__echo is stopped; {ended}"
            assert done.calls_ended == len(calls)
            await asyncio.gather(*calls, return_exceptions=True)
            assert (await desk.kill("tool", "a__echo")).message.endswith("was stopped already")
            assert (await desk.revive("tool", "a__echo")).message == "tool a__echo is revived"
        hold.let_go.set()
    assert desk.resume().message == "it was not paused"
    assert desk.pause().message == "the gateway is paused"
    assert desk.pause().message == "it was paused already"
    assert desk.resume().message == "the gateway goes on"


@pytest.mark.parametrize(("what", "name"), [("role", "x"), ("all", "x"), ("tool", "")])
async def test_what_makes_no_sense_is_refused(what: str, name: str) -> None:
    desk = desk_of(gateway())
    for doing in (desk.kill(what, name), desk.revive(what, name)):
        with pytest.raises(NotSwitched, match="expected"):
            await doing


@pytest.mark.parametrize(("lines", "shown"), [(-5, 1), (0, 1), (3, 3), (10**9, MOST)])
def test_how_many_lines_are_shown_is_within_bounds(lines: int, shown: int) -> None:
    made = gateway()
    recent = Recent()
    made.layers.events.listen(recent.note)
    switches = switched(made)
    for _ in range(MOST):
        switches.pause()
        switches.resume()
    found = Desk(made, switches, recent).logs(lines)
    assert (len(found.lines), found.total_available) == (shown, MOST)
