"""Who stopped something, who may revive it, and what they are told."""

from typing import Any

import pytest

from tests.gateway.servers import gateway, one_tool, running, user
from tests.gateway.test_switches import ECHO, LOCAL_USER, POSTER, A, refusal, switched
from trunkline.gateway import switches as module
from trunkline.gateway.events import Event, Switched
from trunkline.gateway.switches import NotSwitched, Stopped, Switches
from trunkline.routing.switches import EVERYTHING, Switch, What


def made_with(**more: Any) -> Switches:
    return switched(gateway(a=one_tool()), **more)


async def test_what_the_file_stops_is_told_apart_and_nobody_else_revives_it() -> None:
    file = {ECHO: "t.toml:4", Switch(What.TOOL, "a__e*"): "t.toml:5"}
    switches = made_with(file=file)
    with pytest.raises(NotSwitched) as caught:
        await switches.revive(ECHO)
    assert str(caught.value) == (
        "tool a__echo is stopped by the file t.toml:4; change it there; "
        "tool a__e* is stopped by the file t.toml:5; change it there"
    )
    await switches.kill(ECHO)
    assert Stopped("tool", "a__echo", "t.toml:4") in switches.stopped()
    assert Stopped("tool", "a__echo", "operator") in switches.stopped()
    notes = (await switches.revive(ECHO)).notes
    assert notes[0].startswith("it is still stopped: tool a__echo is stopped by the file t.toml:4")
    assert [each.by for each in switches.stopped()] == ["t.toml:5", "t.toml:4"]


async def test_who_revives_what_is_not_stopped_learns_what_is() -> None:
    switches = made_with()
    for switch, why in (
        (ECHO, "tool a__echo is not stopped; stopped is: nothing"),
        (A, "server a is not stopped; stopped is: nothing"),
    ):
        with pytest.raises(NotSwitched, match=why):
            await switches.revive(switch)
    await switches.kill(EVERYTHING)
    with pytest.raises(NotSwitched, match="all is stopped; revive that"):
        await switches.revive(ECHO)


async def test_who_kills_what_is_not_there_is_told() -> None:
    switches = made_with()
    with pytest.raises(NotSwitched, match="there is no server 'x'; there are: a"):
        await switches.kill(Switch(What.SERVER, "x"))
    notes = (await switches.kill(ECHO)).notes
    assert notes[0] == "no tool of this name is offered now; it is stopped when one is"
    assert (await switches.kill(ECHO)).changed is False


async def test_how_much_can_be_stopped_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SWITCHES", 1)
    switches = made_with()
    await switches.kill(ECHO)
    await switches.kill(ECHO)
    with pytest.raises(NotSwitched, match="at most 1"):
        await switches.kill(A)


async def test_what_is_switched_is_told() -> None:
    made = gateway(a=one_tool())
    switches = switched(made)
    events: list[Event] = []
    made.layers.events.listen(events.append)
    assert not switches.active
    await switches.kill(ECHO, "anna")
    assert switches.active
    await switches.kill(ECHO, "anna")
    await switches.revive(ECHO)
    assert not switches.active
    told = [
        Switched("tool", "a__echo", True, "anna"),
        Switched("tool", "a__echo", False, "operator"),
    ]
    assert events == told


class Book:
    """A Keeper that remembers, or cannot."""

    def __init__(self) -> None:
        self.kept: list[tuple[Switch, bool]] = []
        self.problem: str | None = None

    async def keep(self, switch: Switch, off: bool) -> str | None:
        self.kept.append((switch, off))
        return self.problem


async def test_what_is_switched_is_written_down_and_what_cannot_be_holds_all_the_same() -> None:
    book = Book()
    switches = made_with(keeper=book, kept=[A])
    assert [each.name for each in switches.stopped()] == ["a"]
    assert (await switches.kill(EVERYTHING)).notes == ()
    await switches.revive(A)
    assert book.kept == [(EVERYTHING, True), (A, False)]
    book.problem = "the disk is full"
    found = await switches.kill(LOCAL_USER)
    assert found.changed
    assert found.notes == (
        "the gateway will not remember it when it starts again: the disk is full",
    )
    assert switches.active


async def test_a_file_that_is_read_again_stops_what_it_says_by_now_and_nothing_else() -> None:
    server = one_tool()
    made = gateway(a=server)
    events: list[Event] = []
    switches = switched(made, file={ECHO: "t:1"})
    async with running(made, server), user(made) as client:
        made.layers.events.listen(events.append)
        await switches.kill(POSTER)
        switches.follow({A: "t:2"}, frozenset())
        assert (await refusal(client)).message == "Server is disabled: a"
        switches.follow({A: "t:3"}, frozenset())
        assert switches.stopped()[0] == Stopped("server", "a", "t:3")
        switches.follow({}, frozenset())
        await client.call("a__echo")
        assert [each.what for each in switches.stopped()] == ["subject"]
    told = [(e.what, e.off, e.by) for e in events if isinstance(e, Switched)]
    assert told[1:] == [("server", True, "t:2"), ("tool", False, "t:1"), ("server", False, "t:3")]


def test_what_a_server_says_reaches_nobody_or_somebody() -> None:
    assert made_with(file={Switch(What.SUBJECT, "anna"): "t:1"}).hears(None, "a")
    assert not made_with(file={A: "t:1"}).hears(None, "a")
    assert made_with().hears(None, "a")
