"""Kill switches from the configuration and from the operator: who may revive which."""

from typing import Any

import pytest

from tests.gateway.servers import make_gateway, one_tool, running, session_client
from tests.gateway.test_kill_switch import ECHO, LOCAL_USER, SUBJECT_SWITCH, A, refusal, switched
from trunkline.gateway.events import GatewayEvent, KillSwitchChanged
from trunkline.gateway.kill_switch import ActiveSwitch, KillSwitchControl, SwitchError
from trunkline.gateway.settings import KillSwitchLimits
from trunkline.routing.kill_switch import SWITCH_ALL, KillSwitch, SwitchKind


def make_switches(**more: Any) -> KillSwitchControl:
    return switched(make_gateway(a=one_tool()), **more)


async def test_a_switch_of_the_configuration_cannot_be_revived_by_the_operator() -> None:
    file = {ECHO: "t.toml:4", KillSwitch(SwitchKind.TOOL, "a__e*"): "t.toml:5"}
    switches = make_switches(configured=file)
    with pytest.raises(SwitchError) as raised:
        await switches.revive(ECHO)
    assert str(raised.value) == (
        "tool a__echo is disabled by the file t.toml:4; change it there; "
        "tool a__e* is disabled by the file t.toml:5; change it there"
    )
    await switches.kill(ECHO)
    assert ActiveSwitch("tool", "a__echo", "t.toml:4") in switches.list_active()
    assert ActiveSwitch("tool", "a__echo", "operator") in switches.list_active()
    notes = (await switches.revive(ECHO)).notes
    assert notes[0].startswith(
        "it is still disabled: tool a__echo is disabled by the file t.toml:4"
    )
    assert [active_switch.by for active_switch in switches.list_active()] == [
        "t.toml:5",
        "t.toml:4",
    ]


async def test_reviving_an_active_target_reports_the_active_switches() -> None:
    switches = make_switches()
    for switch, why in (
        (ECHO, "tool a__echo is not disabled; operators disabled: nothing"),
        (A, "server a is not disabled; operators disabled: nothing"),
    ):
        with pytest.raises(SwitchError, match=why):
            await switches.revive(switch)
    await switches.kill(SWITCH_ALL)
    with pytest.raises(SwitchError, match="all is disabled; revive that"):
        await switches.revive(ECHO)


async def test_killing_an_unknown_target_is_reported() -> None:
    switches = make_switches()
    with pytest.raises(SwitchError, match="there is no server 'x'; there are: a"):
        await switches.kill(KillSwitch(SwitchKind.SERVER, "x"))
    notes = (await switches.kill(ECHO)).notes
    assert notes[0] == "no server offers such a tool now; if it appears later, it is disabled"
    assert (await switches.kill(ECHO)).changed is False


async def test_the_number_of_kill_switches_is_limited() -> None:
    switches = make_switches(limits=KillSwitchLimits(max_switches=1))
    await switches.kill(ECHO)
    await switches.kill(ECHO)
    with pytest.raises(SwitchError, match="at most 1"):
        await switches.kill(A)


async def test_every_change_of_a_switch_emits_one_event() -> None:
    gateway = make_gateway(a=one_tool())
    switches = switched(gateway)
    events: list[GatewayEvent] = []
    gateway.pipeline.events.add_listener(events.append)
    assert not switches.active
    await switches.kill(ECHO, "anna")
    assert switches.active
    await switches.kill(ECHO, "anna")
    await switches.revive(ECHO)
    assert not switches.active
    expected = [
        KillSwitchChanged("tool", "a__echo", True, "anna"),
        KillSwitchChanged("tool", "a__echo", False, "operator"),
    ]
    assert events == expected


class RecordingStore:
    """A switch store that records, and can report a problem."""

    def __init__(self) -> None:
        self.saved: list[tuple[KillSwitch, bool]] = []
        self.problem: str | None = None

    def load(self) -> frozenset[KillSwitch]:
        return frozenset([A])

    async def save(self, switch: KillSwitch, is_disabled: bool) -> str | None:
        self.saved.append((switch, is_disabled))
        return self.problem


async def test_switches_are_stored_and_hold_even_if_storing_fails() -> None:
    store = RecordingStore()
    switches = make_switches(store=store)
    assert [active_switch.name for active_switch in switches.list_active()] == ["a"]
    assert (await switches.kill(SWITCH_ALL)).notes == ()
    await switches.revive(A)
    assert store.saved == [(SWITCH_ALL, True), (A, False)]
    store.problem = "the disk is full"
    result = await switches.kill(LOCAL_USER)
    assert result.changed
    assert result.notes == ("this change is lost when the gateway restarts: the disk is full",)
    assert switches.active


async def test_a_reload_replaces_the_switches_of_the_configuration_only() -> None:
    server = one_tool()
    gateway = make_gateway(a=server)
    events: list[GatewayEvent] = []
    switches = switched(gateway, configured={ECHO: "t:1"})
    async with running(gateway, server), session_client(gateway) as client:
        gateway.pipeline.events.add_listener(events.append)
        await switches.kill(SUBJECT_SWITCH)
        switches.apply_config({A: "t:2"}, frozenset())
        assert (await refusal(client)).message == "Server is disabled: a"
        switches.apply_config({A: "t:3"}, frozenset())
        assert switches.list_active()[0] == ActiveSwitch("server", "a", "t:3")
        switches.apply_config({}, frozenset())
        await client.call("a__echo")
        assert [active_switch.kind for active_switch in switches.list_active()] == ["subject"]
    changes = [(e.kind, e.disabled, e.by) for e in events if isinstance(e, KillSwitchChanged)]
    assert changes[1:] == [
        ("server", True, "t:2"),
        ("tool", False, "t:1"),
        ("server", False, "t:3"),
    ]


def test_may_receive_without_a_caller_depends_only_on_the_server() -> None:
    assert make_switches(configured={KillSwitch(SwitchKind.SUBJECT, "anna"): "t:1"}).may_receive(
        None, "a"
    )
    assert not make_switches(configured={A: "t:1"}).may_receive(None, "a")
    assert make_switches().may_receive(None, "a")
