"""Turns: so many at a time, in order, and nobody for longer than its patience."""

import asyncio
from collections.abc import Callable

import pytest

from trunkline.gateway.turns import Turns
from trunkline.jsonrpc import Due


class Patron:
    """Whoever a turn is for; it may be asked something meanwhile."""

    asked: float | None = None


NOBODY = Patron()


def new_turns(at_once: int, seconds: float) -> Turns[Patron]:
    return Turns(at_once, seconds, lambda patron: patron.asked)


def begun(turns: Turns[Patron], doing: Due) -> Due:
    """Do something in its turn."""
    doing.then(turns.leave)
    return doing


def handing_out(turns: Turns[Patron], given: list[Due]) -> Callable[[], Due]:
    def begin() -> Due:
        given.append(Due())
        return begun(turns, given[-1])

    return begin


def refuse() -> Due:
    raise ValueError("no")


async def test_what_can_begin_at_once_does_and_the_rest_in_its_order() -> None:
    turns, given = new_turns(2, 60.0), list[Due]()
    taken = [turns.take(handing_out(turns, given), NOBODY) for _ in range(4)]
    assert (len(given), len(turns)) == (2, 4)
    given[1].settle("b")
    assert (len(given), len(turns)) == (3, 3)
    given[0].settle("a")
    given[2].settle("c")
    given[3].fail(ValueError("d"))
    assert [turn.result for turn in taken] == ["a", "b", "c", None]
    assert str(taken[3].error) == "d"
    assert len(turns) == 0
    turns.close()


async def test_what_is_settled_at_once_takes_no_place() -> None:
    turns = new_turns(1, 60.0)

    def begin() -> Due:
        done = Due()
        done.settle(7)
        return begun(turns, done)

    assert [turns.take(begin, NOBODY).result for _ in range(3)] == [7, 7, 7]
    assert len(turns) == 0
    turns.close()


async def test_who_cannot_begin_says_so_and_takes_no_place() -> None:
    turns, given = new_turns(1, 60.0), list[Due]()
    with pytest.raises(ValueError, match="no"):
        turns.take(refuse, NOBODY)
    turns.take(handing_out(turns, given), NOBODY)
    waiting, last = turns.take(refuse, NOBODY), turns.take(handing_out(turns, given), NOBODY)
    given[0].settle(None)
    assert str(waiting.error) == "no"
    given[1].settle("then")
    assert last.result == "then"
    assert len(turns) == 0
    turns.close()


async def test_however_many_cannot_begin_the_next_one_does() -> None:
    turns, given = new_turns(1, 60.0), list[Due]()
    turns.take(handing_out(turns, given), NOBODY)
    waiting = [turns.take(refuse, NOBODY) for _ in range(5000)]
    last = turns.take(handing_out(turns, given), NOBODY)
    given[0].settle(None)
    assert {str(turn.error) for turn in waiting} == {"no"}
    assert (len(given), len(turns), last.done) == (2, 1, False)
    given[1].settle(None)
    assert (len(turns), last.done) == (0, True)
    turns.close()


async def test_who_waits_can_leave_and_who_is_under_way_is_stopped() -> None:
    turns, given = new_turns(1, 60.0), list[Due]()
    first, second, third = (turns.take(handing_out(turns, given), NOBODY) for _ in range(3))
    second.cancel()
    assert isinstance(second.error, asyncio.CancelledError)
    assert len(given) == 1
    first.cancel()
    assert isinstance(given[0].error, asyncio.CancelledError)
    third.cancel()
    assert isinstance(given[1].error, asyncio.CancelledError)
    assert isinstance(third.error, asyncio.CancelledError)
    assert len(turns) == 0
    turns.close()


async def test_who_takes_too_long_is_stopped_and_told_so() -> None:
    stopped = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    turns, given = new_turns(1, 0.01), list[Due]()
    working = turns.take(lambda: begun(turns, Due.of(forever())), NOBODY)
    waiting = turns.take(handing_out(turns, given), NOBODY)
    async with asyncio.timeout(5):
        for turn in (working, waiting):
            with pytest.raises(TimeoutError):
                await turn
        assert stopped.is_set()
        again = turns.take(handing_out(turns, given), NOBODY)
        with pytest.raises(TimeoutError):
            await again
    assert len(turns) == 0
    turns.close()
    turns.close()


async def test_each_has_its_own_time() -> None:
    turns, given = new_turns(9, 0.05), list[Due]()
    first = turns.take(handing_out(turns, given), NOBODY)
    await asyncio.sleep(0)
    later = turns.take(handing_out(turns, given), NOBODY)
    async with asyncio.timeout(5):
        await first.wait()
        assert isinstance(first.error, TimeoutError)
        await later.wait()
    assert isinstance(later.error, TimeoutError)
    turns.close()


async def test_the_time_that_a_client_takes_to_answer_does_not_count() -> None:
    turns, given, patron = new_turns(9, 0.01), list[Due](), Patron()
    turn = turns.take(handing_out(turns, given), patron)
    patron.asked = asyncio.get_running_loop().time()
    other = turns.take(handing_out(turns, given), NOBODY)
    async with asyncio.timeout(5):
        await other.wait()
        assert isinstance(other.error, TimeoutError)
        assert not turn.done
        patron.asked = None
        await turn.wait()
    assert isinstance(turn.error, TimeoutError)
    turns.close()


async def test_what_a_client_was_asked_before_its_call_began_gives_that_no_more_time() -> None:
    turns, given, patron = new_turns(9, 0.01), list[Due](), Patron()
    patron.asked = asyncio.get_running_loop().time() - 1.0
    turn = turns.take(handing_out(turns, given), patron)
    async with asyncio.timeout(5):
        await turn.wait()
    assert isinstance(turn.error, TimeoutError)
    turns.close()


async def test_another_patience_is_that_of_all_and_never_more_than_was_left() -> None:
    turns, given = new_turns(4, 60.0), list[Due]()
    old = turns.take(handing_out(turns, given), NOBODY)
    turns.adopt(0, 0.01)
    new = turns.take(handing_out(turns, given), NOBODY)
    async with asyncio.timeout(10):
        await asyncio.gather(old.wait(), new.wait())
    assert isinstance(old.error, TimeoutError)
    assert isinstance(new.error, TimeoutError)
    turns.adopt(0, 0.02)
    hasty = turns.take(handing_out(turns, given), NOBODY)
    turns.adopt(0, 600.0)
    patient = turns.take(handing_out(turns, given), NOBODY)
    async with asyncio.timeout(10):
        await hasty.wait()
    assert not patient.done
    for due in given:
        due.settle(None)
    turns.close()


async def test_more_places_are_taken_at_once_and_less_when_they_are_free() -> None:
    turns, given = new_turns(1, 60.0), list[Due]()
    for _ in range(4):
        turns.take(handing_out(turns, given), NOBODY)
    assert len(given) == 1
    turns.lend(1)
    assert len(given) == 2
    turns.adopt(1, 60.0)  # what was lent stays lent
    assert (len(given), turns.at_once) == (3, 3)
    turns.adopt(-1, 60.0)
    given[0].settle(None)
    assert len(given) == 3
    given[1].settle(None)
    assert len(given) == 4
    for due in given[2:]:
        due.settle(None)
    turns.close()


async def test_those_who_wait_can_be_sent_away_and_those_at_work_stay() -> None:
    turns, given = new_turns(1, 60.0), list[Due]()
    assert not turns.full
    taken = [turns.take(handing_out(turns, given), NOBODY) for _ in range(3)]
    assert turns.full
    turns.dismiss(ValueError("go"))
    assert [str(turn.error) for turn in taken[1:]] == ["go", "go"]
    assert (len(given), len(turns), taken[0].done) == (1, 1, False)
    given[0].settle("a")
    assert (len(turns), turns.full) == (0, False)
    turns.close()


async def test_what_has_waited_learns_why_it_is_stopped() -> None:
    turns, given = new_turns(1, 60.0), list[Due]()
    first, second = (turns.take(handing_out(turns, given), NOBODY) for _ in range(2))
    first.cancel()
    why = TimeoutError()
    second.cancel(why)
    assert given[1].error is second.error is why
    turns.close()
