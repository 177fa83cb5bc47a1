"""Due: settled once, and all that was to be done is done in that moment."""

import asyncio

import pytest

from trunkline.jsonrpc import Due, Instead, due


def noting(found: list[object]) -> Due:
    asked = Due()
    asked.then(lambda d: found.append(("first", d.result, d.error)))
    asked.then(lambda d: found.append("second"))
    return asked


def test_what_was_added_is_done_in_order_and_once() -> None:
    found: list[object] = []
    asked = noting(found)
    assert not asked.done
    asked.settle(7)
    assert asked.done
    asked.settle(8)
    asked.fail(ValueError("late"))
    asked.cancel()
    assert found == [("first", 7, None), "second"]
    asked.then(lambda d: found.append(d.result))
    assert found[2:] == [7]


def test_an_answer_that_is_there_has_what_is_added_done_at_once() -> None:
    found: list[object] = []
    Due.settled(7).then(lambda d: found.append(d.result))
    assert found == [7]


def test_whoever_adds_something_may_change_the_outcome() -> None:
    asked = Due()
    asked.then(lambda d: setattr(d, "result", d.result + 1))
    asked.settle(1)
    assert asked.result == 2


def test_a_step_that_fails_is_the_outcome_and_the_rest_is_done() -> None:
    found: list[object] = []
    asked = Due()
    failure = ValueError("broken")

    def fail(_: Due) -> None:
        raise failure

    asked.then(fail)
    asked.then(lambda d: found.append((d.result, d.error)))
    asked.settle(1)
    assert found == [(None, failure)]


def doing_instead(found: list[object]) -> tuple[Due, Due]:
    """Return what fails and is not to count, and what is done instead."""
    asked, another = Due(), Due()
    asked.then(lambda d: found.append(d.error))

    def look(asked: Due) -> None:
        raise Instead(another)

    asked.then(look)
    asked.then(lambda d: found.append((d.result, d.error)))
    return asked, another


def test_something_else_done_instead_is_what_counts_for_the_rest() -> None:
    found: list[object] = []
    asked, another = doing_instead(found)
    lost = ValueError("lost")
    asked.fail(lost)
    assert found == [lost]
    assert not asked.done
    another.settle(7)
    assert asked.done
    assert found == [lost, (7, None)]


def test_to_cancel_what_was_begun_instead_stops_that() -> None:
    found: list[object] = []
    asked, another = doing_instead(found)
    asked.fail(ValueError("lost"))
    why = KeyError("enough")
    asked.cancel(why)
    assert another.done
    assert found[1:] == [(None, why)]


def test_one_that_is_settled_already_is_due_again_if_something_is_done_instead() -> None:
    asked, another = Due.settled(1), Due()

    def look(asked: Due) -> None:
        raise Instead(another)

    asked.then(look)
    assert not asked.done
    another.settle(2)
    assert (asked.done, asked.result) == (True, 2)


def test_one_waits_for_another_and_takes_that_along() -> None:
    for outcome in (7, ValueError("no")):
        first, second = Due(), Due()
        second.wait_for(first)
        first.settle(outcome) if isinstance(outcome, int) else first.fail(outcome)
        assert (second.result or second.error) == outcome
    first, second, why = Due(), Due(), KeyError("enough")
    second.wait_for(first)
    second.cancel(why)
    assert first.done
    assert second.error is why


def test_one_follows_another() -> None:
    for outcome in (7, ValueError("no")):
        first, second = Due(), Due()
        first.then(second.follow)
        first.settle(outcome) if isinstance(outcome, int) else first.fail(outcome)
        assert (second.result or second.error) == outcome


def test_to_cancel_is_to_settle_unless_somebody_has_to_stop_first() -> None:
    plain = Due()
    plain.cancel()
    assert isinstance(plain.error, asyncio.CancelledError)
    stopped: list[Due] = []
    busy = Due(stopped.append)
    why = TimeoutError()
    busy.cancel(why)
    busy.cancel()
    assert stopped == [busy, busy]
    assert not busy.done
    busy.fail(asyncio.CancelledError())
    assert busy.error is why
    other = Due()
    other.stop_by(lambda d: d.fail(ValueError("mine")))
    other.cancel(why)
    assert str(other.error) == "mine"


async def test_it_can_be_awaited_and_gives_what_it_was_settled_with() -> None:
    done, failed, later = Due(), Due(), Due()
    done.settle(1)
    failed.fail(ValueError("no"))
    asyncio.get_running_loop().call_soon(later.settle, 2)
    assert [await done, await later] == [1, 2]
    with pytest.raises(ValueError, match="no"):
        await failed


async def test_who_gives_up_awaiting_cancels_it_and_who_only_waits_does_not() -> None:
    awaited, watched = Due(), Due()

    async def want() -> None:
        await awaited

    wanting, waiting = asyncio.create_task(want()), asyncio.create_task(watched.wait())
    await asyncio.sleep(0)
    for task in (wanting, waiting):
        task.cancel()
    await asyncio.gather(wanting, waiting, return_exceptions=True)
    assert isinstance(awaited.error, asyncio.CancelledError)
    assert not watched.done
    watched.settle(None)
    await watched.wait()


async def test_a_task_settles_it_in_whichever_way_it_ends() -> None:
    async def give() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("no")

    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert await Due.of(give()) == 7
    with pytest.raises(ValueError, match="no"):
        await Due.of(fail())
    working = Due.of(work())
    working.cancel()  # before it had a chance to begin: it begins, and then it stops
    with pytest.raises(asyncio.CancelledError):
        await working
    assert begun.is_set()
    assert ended.is_set()


async def test_only_what_can_be_awaited_becomes_one() -> None:
    async def give() -> int:
        return 7

    asked = Due()
    assert due(asked) is asked
    assert due({}) == {}
    assert await due(give()) == 7


def test_while_it_is_held_nothing_is_done_though_it_be_settled() -> None:
    for end in ("settle", "fail"):
        found: list[object] = []
        asked = noting(found)
        asked.hold()
        asked.hold()
        asked.settle(7) if end == "settle" else asked.fail(ValueError("no"))
        asked.settle(8)
        asked.fail(ValueError("late"))
        asked.cancel()
        asked.release()
        assert (found, asked.done) == ([], False)
        asked.release()
        assert (len(found), asked.done) == (2, True)
        assert (asked.result or str(asked.error)) == (7 if end == "settle" else "no")


def test_what_is_added_too_late_waits_as_well_while_it_is_held() -> None:
    found: list[object] = []
    asked = Due.settled(7)
    asked.hold()
    asked.then(lambda due: found.append(due.result))
    asked.then(lambda due: found.append(due.done))
    asked.settle(8)
    assert found == []
    asked.release()
    assert found == [7, True]
    asked.then(lambda due: found.append(due.result))
    assert found == [7, True, 7]


def test_what_was_held_and_let_go_is_settled_as_ever() -> None:
    found: list[object] = []
    asked = noting(found)
    asked.hold()
    asked.release()
    assert found == []
    asked.settle(7)
    assert len(found) == 2
