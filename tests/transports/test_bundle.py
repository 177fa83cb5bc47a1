"""Bundle: one write for all that was sent in one turn of the loop, in order, and nothing lost."""

import asyncio

from trunkline.transports.bundle import MAX_HELD, Bundle


async def test_what_is_sent_in_one_turn_leaves_together() -> None:
    written: list[bytes] = []
    bundle = Bundle(written.append, asyncio.get_running_loop())
    for piece in (b"a", b"b", b"c"):
        bundle.add(piece)
    assert written == []
    await asyncio.sleep(0)
    bundle.add(b"d")
    await asyncio.sleep(0)
    assert written == [b"abc", b"d"]


async def test_much_does_not_wait_for_the_end_of_the_turn() -> None:
    written: list[bytes] = []
    bundle = Bundle(written.append, asyncio.get_running_loop())
    bundle.add(b"a")
    bundle.add(b"b" * MAX_HELD)
    assert written == [b"a" + b"b" * MAX_HELD]
    await asyncio.sleep(0)
    assert len(written) == 1


async def test_whoever_cannot_wait_writes_at_once_and_nothing_twice() -> None:
    written: list[bytes] = []
    bundle = Bundle(written.append, asyncio.get_running_loop())
    bundle.add(b"a")
    bundle.flush()
    await asyncio.sleep(0)
    assert written == [b"a"]


async def test_one_that_is_alone_waits_for_nobody_and_overtakes_nobody() -> None:
    written: list[bytes] = []
    bundle = Bundle(written.append, asyncio.get_running_loop())
    bundle.add(b"a", alone=True)
    assert written == [b"a"]
    bundle.add(b"b")
    bundle.add(b"c", alone=True)
    assert written == [b"a"]
    await asyncio.sleep(0)
    assert written == [b"a", b"bc"]
