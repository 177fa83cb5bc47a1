"""Clients are notified of changed lists once, after changes have settled, and if they differ."""

import asyncio
from collections.abc import Collection, Iterator

from tests.gateway.clock import ClockLoop
from trunkline.gateway.list_changes import ListChanges, ListedDigests, NotifyClient
from trunkline.gateway.settings import GatewayLimits
from trunkline.mcp.features import FeatureKind

TOOL, PROMPT = FeatureKind.TOOL, FeatureKind.PROMPT
RESOURCE, TEMPLATE = FeatureKind.RESOURCE, FeatureKind.TEMPLATE


class Clients:
    """Records when clients are notified, and of which kinds."""

    def __init__(self) -> None:
        self.times: list[tuple[float, frozenset[FeatureKind]]] = []
        self.started = asyncio.Event()
        self.settled: list[frozenset[FeatureKind]] = []
        self.changes = ListChanges(
            self._wait_first_start,
            self._each,
            GatewayLimits(),
            lambda kinds: self.settled.append(frozenset(kinds)),
        )

    async def _wait_first_start(self) -> None:
        await self.started.wait()

    def _each(self) -> Iterator[NotifyClient]:
        yield self._notify

    def _notify(self, kinds: Collection[FeatureKind]) -> None:
        now = round(asyncio.get_running_loop().time(), 3)
        self.times.append((now, frozenset(kinds)))


def change_at(*times: float, start: float = 0.0) -> list[tuple[float, frozenset[FeatureKind]]]:
    """Change the list of tools at these times; return when clients were notified."""
    loop, clients = ClockLoop(), Clients()
    loop.call_at(start, clients.started.set)
    for at in times:
        loop.call_at(at, clients.changes.note, [TOOL])
    loop.run_for(10)
    assert clients.settled == [kinds for _, kinds in clients.times]
    loop.run(clients.changes.aclose())
    loop.close()
    return clients.times


def test_changes_in_quick_succession_cause_one_notification_when_they_have_settled() -> None:
    assert change_at(0.0, 0.05, 0.1, 5.0) == [(0.2, {TOOL}), (5.1, {TOOL})]


def test_changes_without_end_are_announced_now_and_then() -> None:
    found = change_at(*(n / 20 for n in range(50)))
    assert [at for at, _ in found] == [1.0, 2.05, 2.55]


def test_changes_of_the_start_are_announced_when_all_servers_have_been_tried() -> None:
    assert change_at(0.0, 1.0, 3.0, start=4.0) == [(4.0, {TOOL})]


def test_a_closed_gateway_sends_no_more_notifications() -> None:
    async def close_early(clients: Clients) -> None:
        clients.changes.note([TOOL, PROMPT])
        await asyncio.sleep(0)
        await clients.changes.aclose()
        await clients.changes.aclose()

    loop, clients = ClockLoop(), Clients()
    loop.run(close_early(clients))
    loop.close()
    assert clients.times == []


def test_a_client_is_notified_of_a_list_that_it_got_and_that_differs() -> None:
    listed = ListedDigests()
    assert listed.changes([TOOL, PROMPT], str) == []
    assert listed.record(TOOL, "a")
    assert not listed.record(TOOL, "a")
    assert listed.changes([TOOL, PROMPT], lambda _: "a") == []
    changed = ["notifications/tools/list_changed"]
    assert listed.changes([TOOL, PROMPT], lambda _: "b") == changed
    assert listed.changes([TOOL], lambda _: "a") == []  # it is again the one that the client got
    listed.record(RESOURCE, "r")
    listed.record(TEMPLATE, "t")
    both = listed.changes([RESOURCE, TEMPLATE], lambda _: "new")
    assert both == ["notifications/resources/list_changed"]
    assert listed.to_record() == {"tools": "a", "resources": "r", "resourceTemplates": "t"}
