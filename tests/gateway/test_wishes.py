"""What clients want of a backend beside answers: told once, told again, and taken back."""

import asyncio
import sys
from contextlib import suppress
from typing import Any

import pytest

from tests.gateway.test_upstream import Fake, Watched
from trunkline.gateway.upstream import State
from trunkline.jsonrpc import ConnectionLost, RpcError

VERSION = "2025-11-25"


class Wishful(Fake):
    """A backend that remembers what was wanted of it."""

    def __init__(self, *capabilities: str) -> None:
        super().__init__()
        self.capabilities |= {name: {} for name in capabilities}
        self.told_so: asyncio.Queue[str] = asyncio.Queue()
        self.answers: dict[str, Any] = {}
        self.listings = 0

    async def offers(self) -> Any:
        self.listings += 1
        return await super().offers()

    async def follow(self, uri: str) -> None:
        await self._hear(f"follow {uri}")

    async def unfollow(self, uri: str) -> None:
        await self._hear(f"unfollow {uri}")

    async def set_level(self, level: str) -> None:
        await self._hear(f"level {level}")

    async def _hear(self, wish: str) -> None:
        self.told_so.put_nowait(wish)
        answer = self.answers.get(wish)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()

    def everything(self) -> list[str]:
        return [self.told_so.get_nowait() for _ in range(self.told_so.qsize())]


class Ready:
    """A backend that is ready, for a moment."""

    def __init__(self, *capabilities: str, **settings: Any) -> None:
        self.fake = Wishful(*capabilities)
        self.settings = settings
        self.patience = asyncio.timeout(5)

    async def __aenter__(self) -> Watched:
        await self.patience.__aenter__()
        self.watched = Watched(self.fake, **self.settings)
        await self.watched.until(State.READY)
        return self.watched

    async def __aexit__(self, *_: object) -> None:
        await self.watched.stop()
        await self.patience.__aexit__(*sys.exc_info())


async def settle() -> None:
    """Let everybody who can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def set_level(watched: Watched, level: str | None) -> None:
    await watched.upstream.wishes.set_level(level, watched.upstream.backend)


async def restart(watched: Watched) -> None:
    starts = watched.starts
    watched.fake.ended.set()
    while watched.starts == starts:
        await asyncio.sleep(0)
    watched.fake.ended.clear()
    await watched.until(State.READY)


async def test_what_many_follow_is_told_once_and_taken_back_once() -> None:
    ready = Ready()
    async with ready as watched:
        up = watched.upstream
        for _ in range(3):
            await up.follow("x:", VERSION)
        for _ in range(2):
            up.wishes.unfollow("x:")
        await settle()
        assert ready.fake.everything() == ["follow x:"]
        up.wishes.unfollow("x:")
        assert await ready.fake.told_so.get() == "unfollow x:"


async def test_what_is_followed_again_at_once_was_never_taken_back() -> None:
    ready = Ready()
    async with ready as watched:
        await watched.upstream.follow("x:", VERSION)
        watched.upstream.wishes.unfollow("x:")
        await watched.upstream.follow("x:", VERSION)
        await settle()
        assert ready.fake.everything() == ["follow x:"]


async def test_to_take_back_what_was_never_wanted_changes_nothing() -> None:
    ready = Ready()
    async with ready as watched:
        for _ in range(3):
            watched.upstream.wishes.unfollow("x:")
        await watched.upstream.follow("x:", VERSION)
        await settle()
        assert ready.fake.everything() == ["follow x:"]
        watched.upstream.wishes.unfollow("x:")
        assert await ready.fake.told_so.get() == "unfollow x:"


async def test_many_who_follow_at_the_same_time_ask_once() -> None:
    ready = Ready()
    ready.fake.answers["follow x:"] = may_answer = asyncio.Event()
    async with ready as watched:
        following = [asyncio.create_task(watched.upstream.follow("x:", VERSION)) for _ in range(3)]
        assert await ready.fake.told_so.get() == "follow x:"
        may_answer.set()
        await asyncio.gather(*following)
        assert ready.fake.everything() == []


async def test_what_is_refused_is_not_followed() -> None:
    ready = Ready()
    ready.fake.answers["follow x:"] = RpcError.method_not_found("resources/subscribe")
    async with ready as watched:
        for _ in range(2):
            with pytest.raises(RpcError) as caught:
                await watched.upstream.follow("x:", VERSION)
            assert caught.value.code == -32601
        await settle()
        assert ready.fake.everything() == ["follow x:"] * 2
        await restart(watched)
        await settle()
        assert ready.fake.everything() == []


async def test_a_backend_that_goes_meanwhile_is_unavailable() -> None:
    ready = Ready()
    ready.fake.answers["follow x:"] = ConnectionLost("gone")
    async with ready as watched:
        with pytest.raises(RpcError) as caught:
            await watched.upstream.follow("x:", VERSION)
        assert caught.value.code == -32007
    with pytest.raises(RpcError) as caught:
        await watched.upstream.follow("x:", VERSION)
    assert caught.value.code == -32007
    watched.upstream.wishes.unfollow("x:")


@pytest.mark.parametrize("wish", ["follow x:", "unfollow y:"])
async def test_who_waits_for_a_turn_waits_no_longer_than_for_an_answer(wish: str) -> None:
    ready = Ready(timeout=0.02)
    async with ready as watched:
        await watched.upstream.follow("y:", VERSION)
        assert await ready.fake.told_so.get() == "follow y:"
        ready.fake.answers[wish] = asyncio.Event()
        if wish == "unfollow y:":
            watched.upstream.wishes.unfollow("y:")
            assert await ready.fake.told_so.get() == wish
            while "follow x:" not in ready.fake.everything():  # until the other is given up
                with suppress(RpcError):
                    await watched.upstream.follow("x:", VERSION)
            return
        results = await asyncio.gather(
            *(watched.upstream.follow(uri, VERSION) for uri in ("x:", "z:")),
            return_exceptions=True,
        )
        assert [getattr(result, "code", None) for result in results] == [-32603] * 2


async def test_who_does_not_wait_for_the_answer_follows_nothing() -> None:
    ready = Ready()
    ready.fake.answers["follow x:"] = asyncio.Event()
    async with ready as watched:
        impatient = asyncio.create_task(watched.upstream.follow("x:", VERSION))
        patient = asyncio.create_task(watched.upstream.follow("x:", VERSION))
        assert await ready.fake.told_so.get() == "follow x:"
        ready.fake.answers.clear()
        impatient.cancel()
        await patient
        assert await ready.fake.told_so.get() == "follow x:"  # whether it heard is not known
        await settle()
        assert ready.fake.everything() == []
        watched.upstream.wishes.unfollow("x:")
        assert await ready.fake.told_so.get() == "unfollow x:"
    assert impatient.cancelled()


async def test_a_backend_that_starts_again_is_told_again() -> None:
    ready = Ready("logging")
    async with ready as watched:
        up = watched.upstream
        for uri in ("x:", "y:", "z:"):
            await up.follow(uri, VERSION)
        await set_level(watched, "debug")
        up.wishes.unfollow("y:")
        assert await ready.fake.told_so.get() == "follow x:"
        await settle()
        ready.fake.everything()
        ready.fake.answers["follow x:"] = ValueError("odd")
        await restart(watched)
        await settle()
        assert ready.fake.everything() == ["follow x:", "follow z:", "level debug"]
        up.wishes.unfollow("z:")
        assert await ready.fake.told_so.get() == "unfollow z:"


async def test_a_session_that_was_lost_is_made_up_for() -> None:
    ready = Ready("logging")
    async with ready as watched:
        await watched.upstream.follow("x:", VERSION)
        await set_level(watched, "info")
        await settle()
        assert ready.fake.everything() == ["follow x:", "level info"]
        listings = ready.fake.listings
        watched.upstream.session_renewed()
        await settle()
        assert ready.fake.everything() == ["follow x:", "level info"]
        assert ready.fake.listings == listings + 1


async def test_a_level_is_told_if_it_is_another() -> None:
    ready = Ready("logging")
    async with ready as watched:
        for level in ("info", "info", None, "info", "debug"):
            await set_level(watched, level)
        watched.upstream.wishes.wish_level("error")
        await settle()
        watched.upstream.wishes.wish_level(None)
        await settle()
        assert ready.fake.everything() == ["level info", "level debug", "level error"]
        await restart(watched)
        await settle()
        assert ready.fake.everything() == []


async def test_the_level_that_was_wanted_last_is_the_one_that_is_kept() -> None:
    ready = Ready("logging")
    ready.fake.answers["level info"] = slow = asyncio.Event()
    async with ready as watched:
        first = asyncio.create_task(set_level(watched, "info"))
        await settle()
        await set_level(watched, "debug")
        slow.set()
        await first
        assert ready.fake.everything() == ["level info", "level debug"]
        await restart(watched)
        assert await ready.fake.told_so.get() == "level debug"


async def test_a_backend_that_is_not_there_is_told_the_level_when_it_is() -> None:
    fake = Wishful("logging")
    fake.at_listing.append(listing := asyncio.Event())
    watched = Watched(fake)
    await watched.until(State.STARTING)
    await set_level(watched, "info")
    listing.set()
    assert await fake.told_so.get() == "level info"
    await watched.stop()


async def test_a_backend_that_does_not_log_is_told_nothing_of_levels() -> None:
    ready = Ready()
    async with ready as watched:
        await set_level(watched, "info")
        await settle()
        assert ready.fake.everything() == []


@pytest.mark.parametrize(
    "refusal", [RpcError(-32603, "no"), ConnectionLost("gone"), ValueError("odd")]
)
async def test_one_that_will_not_hear_of_it_is_left_alone(refusal: Exception) -> None:
    ready = Ready("logging")
    ready.fake.answers = {"level info": refusal, "unfollow x:": refusal}
    async with ready as watched:
        await set_level(watched, "info")
        await watched.upstream.follow("x:", VERSION)
        watched.upstream.wishes.unfollow("x:")
        await settle()
        assert ready.fake.everything() == ["level info", "follow x:", "unfollow x:"]
        await watched.upstream.follow("x:", VERSION)
        assert await ready.fake.told_so.get() == "follow x:"
        assert watched.upstream.ready
