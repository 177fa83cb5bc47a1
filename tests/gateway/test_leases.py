"""Leases: a conversation for each party, in turn, and none too many."""

import asyncio
from typing import Any

import pytest

from trunkline.gateway import leases
from trunkline.gateway.leases import ANYBODY, NOBODY, Kind, Leases
from trunkline.jsonrpc import ConnectionLost, Due

FORM = frozenset(("elicitation.form",))
NOTHING: frozenset[str] = frozenset()


class House:
    """Opens conversations, which are numbers, and remembers what was begun in which."""

    def __init__(self, most: int = 2, first: frozenset[str] = NOTHING) -> None:
        self.opened: list[frozenset[str]] = []
        self.closed: list[int] = []
        self.begun: list[tuple[str, int]] = []
        self.calls: dict[str, Due] = {}
        self.failure: Exception | None = None
        self.dead: set[int] = set()
        self.leases: Leases[int] = Leases(most, self.open, self.close)
        self.leases.settle_in(0, Kind(first))

    async def open(self, kind: Kind) -> int:
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.opened.append(kind.can)
        return len(self.opened)

    async def close(self, held: int) -> None:
        self.closed.append(held)

    def take(
        self,
        name: str,
        party: object,
        can: frozenset[str] = FORM,
        *,
        urgent: bool = False,
        owner: str | None = None,
    ) -> Due:
        def begin(held: int) -> Any:
            if held in self.dead:
                raise ConnectionLost("gone")
            self.begun.append((name, held))
            self.calls[name] = Due()
            return self.calls[name]

        return self.leases.take(party, Kind(can, owner), begin, urgent=urgent)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_first_one_that_may_ask_nothing_is_left_to_those_who_cannot_be_asked() -> None:
    house = House()
    house.take("a", "A")
    house.take("n", NOBODY, NOTHING)
    await house.settle()
    assert sorted(house.begun) == [("a", 1), ("n", 0)]
    assert house.opened == [FORM]
    await house.leases.aclose()
    assert house.closed == [1]


async def test_a_first_one_that_may_ask_is_for_one_party_at_a_time() -> None:
    house = House(most=0, first=FORM)
    house.take("a", "A")
    house.take("a2", "A")
    waiting = house.take("b", "B")
    house.take("n", NOBODY, NOTHING)
    assert house.begun == [("a", 0), ("a2", 0)]
    house.calls["a"].settle(1)
    house.calls["a2"].settle(2)
    assert house.begun[2:] == [("b", 0)]
    house.calls["b"].settle(3)
    assert waiting.result == 3
    assert house.begun[3:] == [("n", 0)]
    await house.leases.aclose()


async def test_whoever_has_a_conversation_goes_behind_those_who_wait_unless_it_is_urgent() -> None:
    house = House(most=0, first=FORM)
    house.take("a", "A")
    house.take("b", "B")
    house.take("late", "A")
    house.take("urgent", "A", urgent=True)
    assert house.begun == [("a", 0), ("urgent", 0)]
    house.calls["a"].settle(1)
    house.calls["urgent"].settle(1)
    assert house.begun[2:] == [("b", 0)]
    house.calls["b"].settle(1)
    assert house.begun[3:] == [("late", 0)]
    await house.leases.aclose()


async def test_a_conversation_of_another_kind_makes_room_if_nobody_needs_it() -> None:
    house = House(most=1)
    house.take("a", "A")
    await house.settle()
    other = frozenset(("sampling",))
    house.take("b", "B", other)
    await house.settle()
    assert house.opened == [FORM]
    house.calls["a"].settle(1)
    await house.settle()
    assert (house.opened, house.closed) == ([FORM, other], [1])
    assert house.begun[-1] == ("b", 2)
    await house.leases.aclose()


async def test_who_cannot_wait_any_longer_leaves_the_queue() -> None:
    house = House(most=0, first=FORM)
    house.take("a", "A")
    waiting = house.take("b", "B")
    waiting.cancel()
    house.calls["a"].settle(1)
    assert house.begun == [("a", 0)]
    begun = house.take("c", "C")
    begun.cancel()
    assert isinstance(house.calls["c"].error, asyncio.CancelledError)
    await house.leases.aclose()


async def test_where_no_other_can_be_opened_a_call_is_made_in_which_nobody_is_asked() -> None:
    house = House()
    house.failure = OSError("no")
    house.take("a", "A")
    await house.settle()
    house.failure = None
    house.take("b", "B")  # not tried again at once
    await house.settle()
    assert (house.opened, house.begun) == ([], [("a", 0), ("b", 0)])
    await house.leases.aclose()


async def test_where_no_other_may_be_opened_calls_are_made_in_the_first() -> None:
    house = House(most=0)
    house.take("a", "A")
    house.take("b", "B")
    assert house.begun == [("a", 0), ("b", 0)]
    await house.leases.aclose()


async def test_those_who_wait_learn_of_the_end() -> None:
    house = House(most=0, first=FORM)
    house.take("a", "A")
    waiting = house.take("b", "B")
    await house.leases.aclose()
    assert isinstance(waiting.error, ConnectionLost)


async def test_what_finds_its_conversation_ended_is_begun_in_another() -> None:
    house = House(most=1)
    house.take("a", "A")
    await house.settle()
    waiting = house.take("b", "B")
    house.dead.add(1)  # which nobody has told the leases yet
    house.calls["a"].fail(ConnectionLost("gone"))
    await house.settle()
    assert house.begun == [("a", 1), ("b", 2)]
    house.dead.add(2)
    house.calls["b"].settle(7)
    assert waiting.result == 7
    house.take("c", "C")
    await house.settle()
    assert house.begun[2:] == [("c", 3)]
    assert house.closed == [1, 2]
    await house.leases.aclose()


async def test_with_the_first_conversation_all_have_ended() -> None:
    house = House(most=0, first=FORM)
    house.take("a", "A")
    waiting = house.take("b", "B")
    house.dead.add(0)
    with pytest.raises(ConnectionLost):
        house.take("a2", "A", urgent=True)
    house.calls["a"].fail(ConnectionLost("gone"))
    assert isinstance(waiting.error, ConnectionLost)
    await house.leases.aclose()


async def test_who_needs_another_kind_is_not_passed_over_for_ever() -> None:
    house = House(most=1)
    house.take("a", "A")
    await house.settle()
    other = frozenset(("sampling",))
    house.take("b", "B", other)
    house.take("c", "C")  # later, and of the kind that is there
    house.calls["a"].settle(1)
    await house.settle()
    assert house.begun == [("a", 1), ("b", 2)]
    house.calls["b"].settle(1)
    await house.settle()
    assert house.begun[2:] == [("c", 3)]
    await house.leases.aclose()


async def test_what_nobody_needs_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "IDLE", 0.01)
    house = House()
    house.take("a", "A")
    await house.settle()
    house.calls["a"].settle(1)
    async with asyncio.timeout(5):
        while not house.closed:
            await asyncio.sleep(0)
    assert house.leases.extra == 0
    await house.leases.aclose()


async def test_one_that_has_ended_is_not_used_any_more() -> None:
    house = House()
    house.take("a", "A")
    await house.settle()
    house.leases.lost(1)
    house.calls["a"].fail(ConnectionError("gone"))
    house.take("a2", "A")
    await house.settle()
    assert house.begun[-1] == ("a2", 2)
    await house.leases.aclose()


async def test_one_is_prepared_for_those_who_will_come_unless_there_is_one() -> None:
    house = House(most=1)
    await asyncio.gather(*(house.leases.prepare(Kind(FORM)) for _ in range(2)))
    await house.leases.prepare(Kind(frozenset(("sampling",))))  # which would be one too many
    assert house.opened == [FORM]
    house.take("a", "A")
    assert house.begun == [("a", 1)]
    await house.leases.aclose()


async def test_none_is_prepared_where_the_first_is_for_all_or_where_one_just_failed() -> None:
    house = House(first=FORM)
    await house.leases.prepare(Kind(frozenset(("sampling",))))
    assert house.opened == []
    house = House()
    house.failure = OSError("no more processes")
    await house.leases.prepare(Kind(FORM))
    house.failure = None
    await house.leases.prepare(Kind(FORM))
    assert house.opened == []


SAMPLING = frozenset(("sampling",))


async def test_anybody_shares_a_conversation_of_the_same_kind_and_of_no_other() -> None:
    house = House(first=FORM | SAMPLING)
    for name, kind in (("a", FORM), ("b", FORM), ("c", SAMPLING), ("d", FORM | SAMPLING)):
        house.take(name, ANYBODY, kind, urgent=True)
    await house.settle()
    assert house.opened == [FORM, SAMPLING]
    assert sorted(house.begun) == [("a", 1), ("b", 1), ("c", 2), ("d", 0)]
    await house.leases.aclose()


async def test_anybody_has_the_first_one_if_there_are_too_many_kinds() -> None:
    house = House(most=1, first=FORM | SAMPLING)
    house.take("a", ANYBODY, FORM, urgent=True)
    house.take("b", ANYBODY, SAMPLING, urgent=True)
    await house.settle()
    house.take("c", ANYBODY, SAMPLING, urgent=True)
    assert house.begun == [("a", 1), ("b", 0), ("c", 0)]
    house.calls["a"].settle(1)
    house.take("d", ANYBODY, SAMPLING, urgent=True)
    await house.settle()
    assert (house.closed, house.begun[-1]) == ([1], ("d", 2))
    await house.leases.aclose()


async def test_anybody_has_the_first_one_if_no_other_can_be_opened() -> None:
    house = House(first=FORM | SAMPLING)
    house.failure = OSError("no")
    house.take("a", ANYBODY, FORM, urgent=True)
    await house.settle()
    house.take("b", ANYBODY, FORM, urgent=True)
    assert house.begun == [("a", 0), ("b", 0)]
    await house.leases.aclose()


async def test_who_waited_in_vain_learns_that_it_was_not_for_the_server() -> None:
    house = House(most=0, first=FORM)
    house.take("a", "A")
    waiting = house.take("b", "B")
    waiting.cancel(TimeoutError())
    assert isinstance(waiting.error, ConnectionLost)
    assert "max_conversations" in str(waiting.error)
    begun = house.take("c", "A", urgent=True)
    begun.cancel(TimeoutError())
    assert isinstance(begun.error, TimeoutError)
    await house.leases.aclose()


async def test_more_conversations_may_be_opened_when_there_may_be_more() -> None:
    house = House(most=1)
    for name in "abc":
        house.take(name, name.upper())
    await house.settle()
    assert house.begun == [("a", 1)]
    house.leases.adopt(2)
    await house.settle()
    assert house.begun == [("a", 1), ("b", 2)]
    house.leases.adopt(3)
    await house.settle()
    assert house.begun == [("a", 1), ("b", 2), ("c", 3)]
    await house.leases.aclose()


async def test_what_is_too_many_is_closed_when_nobody_needs_it() -> None:
    house = House(most=3)
    for name in "abc":
        house.take(name, name.upper())
    await house.settle()
    house.calls["a"].settle(None)
    house.leases.adopt(1)
    await house.settle()
    assert (house.closed, house.leases.extra) == ([1], 2)
    house.take("d", "D")
    house.calls["b"].settle(None)
    await house.settle()
    assert house.begun[-1] == ("d", 2)
    house.take("e", "E", frozenset(("sampling",)))
    house.calls["c"].settle(None)
    await house.settle()
    assert (house.closed, house.leases.extra) == ([1, 3], 1)
    await house.leases.aclose()


async def test_those_who_wait_can_be_sent_away_and_their_conversations_stay() -> None:
    house = House(most=0, first=FORM)
    house.take("a", "A")
    waiting = house.take("b", "B")
    house.leases.dismiss(ValueError("go"))
    assert str(waiting.error) == "go"
    house.calls["a"].settle(1)
    house.take("c", "C")
    assert [name for name, _ in house.begun] == ["a", "c"]
    await house.leases.aclose()


async def test_what_has_waited_learns_why_it_is_stopped() -> None:
    house, why = House(most=0, first=FORM), TimeoutError()
    house.take("a", "A")
    waiting = house.take("b", "B")
    house.calls["a"].settle(1)
    waiting.cancel(why)
    assert house.calls["b"].error is why
    await house.leases.aclose()


async def test_what_is_one_owners_is_nobody_elses_though_nobody_uses_it() -> None:
    house = House(most=1)
    house.take("a", "A", owner="ann")
    await house.settle()
    house.calls["a"].settle(None)
    house.take("again", "A2", owner="ann")
    house.take("b", "B", owner="bob")
    await house.settle()
    assert house.begun == [("a", 1), ("again", 1)]
    house.calls["again"].settle(None)
    await house.settle()
    assert house.begun[2:] == [("b", 2)]
    assert house.closed == [1]
    await house.leases.aclose()


async def test_who_prepares_one_while_all_end_is_not_kept_waiting() -> None:
    house = House()
    house.take("a", "A").cancel()
    preparing = asyncio.create_task(house.leases.prepare(Kind(frozenset(("sampling",)))))
    await house.leases.aclose()  # before what is being opened has begun to be
    async with asyncio.timeout(5):
        await preparing
    assert (house.opened, house.leases.held) == ([], [])
