"""PendingResult: completed once, with callbacks that run on completion."""

import asyncio

import pytest

from trunkline.jsonrpc import PendingResult, Superseded, as_pending


def recording_result(found: list[object]) -> PendingResult:
    pending = PendingResult()
    pending.add_callback(lambda d: found.append(("first", d.result, d.error)))
    pending.add_callback(lambda d: found.append("second"))
    return pending


def test_callbacks_run_once_in_the_order_they_were_added() -> None:
    found: list[object] = []
    pending = recording_result(found)
    assert not pending.done
    pending.set_result(7)
    assert pending.done
    pending.set_result(8)
    pending.set_exception(ValueError("late"))
    pending.cancel()
    assert found == [("first", 7, None), "second"]
    pending.add_callback(lambda d: found.append(d.result))
    assert found[2:] == [7]


def test_a_callback_added_after_completion_runs_immediately() -> None:
    found: list[object] = []
    PendingResult.from_result(7).add_callback(lambda d: found.append(d.result))
    assert found == [7]


def test_a_callback_may_replace_the_result() -> None:
    pending = PendingResult()
    pending.add_callback(lambda d: setattr(d, "result", d.result + 1))
    pending.set_result(1)
    assert pending.result == 2


@pytest.mark.parametrize("failure", [ValueError("broken"), asyncio.CancelledError()])
def test_a_callback_that_raises_becomes_the_outcome_and_the_rest_run(
    failure: BaseException,
) -> None:
    found: list[object] = []
    pending = PendingResult()

    def fail(_: PendingResult) -> None:
        raise failure

    pending.add_callback(fail)
    pending.add_callback(lambda d: found.append((d.result, d.error)))
    pending.set_result(1)
    assert found == [(None, failure)]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SystemExit(2)])
def test_an_exception_that_ends_the_process_is_raised_after_all_callbacks_have_run(
    failure: BaseException,
) -> None:
    found: list[object] = []
    pending = PendingResult()

    def fail(_: PendingResult) -> None:
        raise failure

    pending.add_callback(fail)
    pending.add_callback(lambda d: found.append(d.error))
    with pytest.raises(type(failure)):
        pending.set_result(1)
    assert found == [failure]


def superseded_result(found: list[object]) -> tuple[PendingResult, PendingResult]:
    """Return a result that is superseded on completion, and its replacement."""
    pending, replacement = PendingResult(), PendingResult()
    pending.add_callback(lambda d: found.append(d.error))

    def supersede(pending: PendingResult) -> None:
        raise Superseded(replacement)

    pending.add_callback(supersede)
    pending.add_callback(lambda d: found.append((d.result, d.error)))
    return pending, replacement


def test_a_superseded_result_completes_with_its_replacement() -> None:
    found: list[object] = []
    pending, replacement = superseded_result(found)
    lost = ValueError("lost")
    pending.set_exception(lost)
    assert found == [lost]
    assert not pending.done
    replacement.set_result(7)
    assert pending.done
    assert found == [lost, (7, None)]


def test_cancelling_a_superseded_result_cancels_the_replacement() -> None:
    found: list[object] = []
    pending, replacement = superseded_result(found)
    pending.set_exception(ValueError("lost"))
    reason = KeyError("enough")
    pending.cancel(reason)
    assert replacement.done
    assert found[1:] == [(None, reason)]


def test_a_completed_result_can_be_superseded() -> None:
    pending, replacement = PendingResult.from_result(1), PendingResult()

    def supersede(pending: PendingResult) -> None:
        raise Superseded(replacement)

    pending.add_callback(supersede)
    assert not pending.done
    replacement.set_result(2)
    assert (pending.done, pending.result) == (True, 2)


def test_a_chained_result_completes_and_cancels_with_its_source() -> None:
    for outcome in (7, ValueError("no")):
        first, second = PendingResult(), PendingResult()
        second.chain(first)
        first.set_result(outcome) if isinstance(outcome, int) else first.set_exception(outcome)
        assert (second.result or second.error) == outcome
    first, second, reason = PendingResult(), PendingResult(), KeyError("enough")
    second.chain(first)
    second.cancel(reason)
    assert first.done
    assert second.error is reason


def test_copy_from_copies_result_or_exception() -> None:
    for outcome in (7, ValueError("no")):
        first, second = PendingResult(), PendingResult()
        first.add_callback(second.copy_from)
        first.set_result(outcome) if isinstance(outcome, int) else first.set_exception(outcome)
        assert (second.result or second.error) == outcome


def test_cancel_completes_unless_a_canceller_must_complete() -> None:
    plain = PendingResult()
    plain.cancel()
    assert isinstance(plain.error, asyncio.CancelledError)
    stopped: list[PendingResult] = []
    busy = PendingResult(stopped.append)
    reason = TimeoutError()
    busy.cancel(reason)
    busy.cancel()
    assert stopped == [busy, busy]
    assert not busy.done
    busy.set_exception(asyncio.CancelledError())
    assert busy.error is reason
    other = PendingResult()
    other.set_canceller(lambda d: d.set_exception(ValueError("mine")))
    other.cancel(reason)
    assert str(other.error) == "mine"


async def test_awaiting_returns_the_result_or_raises_the_exception() -> None:
    done, failed, later = PendingResult(), PendingResult(), PendingResult()
    done.set_result(1)
    failed.set_exception(ValueError("no"))
    asyncio.get_running_loop().call_soon(later.set_result, 2)
    assert [await done, await later] == [1, 2]
    with pytest.raises(ValueError, match="no"):
        await failed


async def test_cancelling_an_await_cancels_the_result_but_cancelling_wait_does_not() -> None:
    awaited, watched = PendingResult(), PendingResult()

    async def want() -> None:
        await awaited

    wanting, waiting = asyncio.create_task(want()), asyncio.create_task(watched.wait())
    await asyncio.sleep(0)
    for task in (wanting, waiting):
        task.cancel()
    await asyncio.gather(wanting, waiting, return_exceptions=True)
    assert isinstance(awaited.error, asyncio.CancelledError)
    assert not watched.done
    watched.set_result(None)
    await watched.wait()


async def test_a_task_completes_its_result_however_it_ends() -> None:
    async def give() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("no")

    started, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert await PendingResult.from_awaitable(give()) == 7
    with pytest.raises(ValueError, match="no"):
        await PendingResult.from_awaitable(fail())
    working = PendingResult.from_awaitable(work())
    working.cancel()  # before its first step: it starts, and then stops
    with pytest.raises(asyncio.CancelledError):
        await working
    assert started.is_set()
    assert ended.is_set()


async def test_as_pending_converts_only_awaitables() -> None:
    async def give() -> int:
        return 7

    pending = PendingResult()
    assert as_pending(pending) is pending
    assert as_pending({}) == {}
    assert await as_pending(give()) == 7


def test_no_callback_runs_while_the_result_is_held() -> None:
    for end in ("result", "exception"):
        found: list[object] = []
        pending = recording_result(found)
        pending.hold()
        pending.hold()
        pending.set_result(7) if end == "result" else pending.set_exception(ValueError("no"))
        pending.set_result(8)
        pending.set_exception(ValueError("late"))
        pending.cancel()
        pending.release()
        assert (found, pending.done) == ([], False)
        pending.release()
        assert (len(found), pending.done) == (2, True)
        assert (pending.result or str(pending.error)) == (7 if end == "result" else "no")


def test_a_late_callback_waits_while_the_result_is_held() -> None:
    found: list[object] = []
    pending = PendingResult.from_result(7)
    pending.hold()
    pending.add_callback(lambda pending: found.append(pending.result))
    pending.add_callback(lambda pending: found.append(pending.done))
    pending.set_result(8)
    assert found == []
    pending.release()
    assert found == [7, True]
    pending.add_callback(lambda pending: found.append(pending.result))
    assert found == [7, True, 7]


def test_a_released_result_completes_normally() -> None:
    found: list[object] = []
    pending = recording_result(found)
    pending.hold()
    pending.release()
    assert found == []
    pending.set_result(7)
    assert len(found) == 2
