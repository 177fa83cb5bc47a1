"""Subscriptions and log levels of an upstream: sent once, sent again, and ended."""

import asyncio
import sys
from contextlib import suppress
from typing import Any

import pytest

from tests.gateway.test_upstream import Fake, Watched
from tests.tasks import LoopClock, hang_guard
from trunkline.gateway.backend import BackendAbilities
from trunkline.gateway.upstream import UpstreamState
from trunkline.jsonrpc import METHOD_NOT_FOUND, ConnectionLost, RpcError
from trunkline.mcp.versions import V2025_11_25


class SubscribableBackend(Fake):
    """A backend that records subscriptions and levels."""

    def __init__(self, *capabilities: str) -> None:
        super().__init__()
        self.capabilities |= {name: {} for name in capabilities}
        self.abilities = BackendAbilities(subscriptions=self, set_log_level=self.set_log_level)
        self.sent: asyncio.Queue[str] = asyncio.Queue()
        self.answers: dict[str, Any] = {}
        self.listings = 0

    async def list_features(self) -> Any:
        self.listings += 1
        return await super().list_features()

    async def subscribe(self, uri: str) -> None:
        await self._receive(f"follow {uri}")

    async def unsubscribe(self, uri: str) -> None:
        await self._receive(f"unfollow {uri}")

    async def set_log_level(self, level: str) -> None:
        await self._receive(f"level {level}")

    async def _receive(self, action: str) -> None:
        self.sent.put_nowait(action)
        answer = self.answers.get(action)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()

    def everything(self) -> list[str]:
        return [self.sent.get_nowait() for _ in range(self.sent.qsize())]


class Ready:
    """A ready backend behind an upstream."""

    def __init__(self, *capabilities: str, **settings: Any) -> None:
        self.fake = SubscribableBackend(*capabilities)
        self.settings = settings
        self.timeout = hang_guard()

    async def __aenter__(self) -> Watched:
        await self.timeout.__aenter__()
        self.watched = Watched(self.fake, **self.settings)
        await self.watched.until(UpstreamState.READY)
        return self.watched

    async def __aexit__(self, *_: object) -> None:
        await self.watched.stop()
        await self.timeout.__aexit__(*sys.exc_info())


async def settle() -> None:
    """Let all tasks run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def set_level(watched: Watched, level: str | None) -> None:
    await watched.upstream.subscriptions.set_log_level(level, watched.upstream.backend)


async def restart(watched: Watched) -> None:
    starts = watched.starts
    watched.fake.ended.set()
    while watched.starts == starts:
        await asyncio.sleep(0)
    watched.fake.ended.clear()
    await watched.until(UpstreamState.READY)


async def test_many_subscribers_cause_one_subscription_and_one_unsubscription() -> None:
    ready = Ready()
    async with ready as watched:
        up = watched.upstream
        for _ in range(3):
            await up.subscribe("x:", V2025_11_25)
        for _ in range(2):
            up.subscriptions.unsubscribe("x:")
        await settle()
        assert ready.fake.everything() == ["follow x:"]
        up.subscriptions.unsubscribe("x:")
        assert await ready.fake.sent.get() == "unfollow x:"


async def test_a_new_subscription_at_once_keeps_the_old_one() -> None:
    ready = Ready()
    async with ready as watched:
        await watched.upstream.subscribe("x:", V2025_11_25)
        watched.upstream.subscriptions.unsubscribe("x:")
        await watched.upstream.subscribe("x:", V2025_11_25)
        await settle()
        assert ready.fake.everything() == ["follow x:"]


async def test_unsubscribing_without_a_subscription_changes_nothing() -> None:
    ready = Ready()
    async with ready as watched:
        for _ in range(3):
            watched.upstream.subscriptions.unsubscribe("x:")
        await watched.upstream.subscribe("x:", V2025_11_25)
        await settle()
        assert ready.fake.everything() == ["follow x:"]
        watched.upstream.subscriptions.unsubscribe("x:")
        assert await ready.fake.sent.get() == "unfollow x:"


async def test_many_simultaneous_subscribers_send_one_request() -> None:
    ready = Ready()
    ready.fake.answers["follow x:"] = may_answer = asyncio.Event()
    async with ready as watched:
        following = [
            asyncio.create_task(watched.upstream.subscribe("x:", V2025_11_25)) for _ in range(3)
        ]
        assert await ready.fake.sent.get() == "follow x:"
        may_answer.set()
        await asyncio.gather(*following)
        assert ready.fake.everything() == []


async def test_a_refused_resource_has_no_subscription() -> None:
    ready = Ready()
    ready.fake.answers["follow x:"] = RpcError.method_not_found("resources/subscribe")
    async with ready as watched:
        for _ in range(2):
            with pytest.raises(RpcError) as caught:
                await watched.upstream.subscribe("x:", V2025_11_25)
            assert caught.value.code == -32601
        await settle()
        assert ready.fake.everything() == ["follow x:"] * 2
        await restart(watched)
        await settle()
        assert ready.fake.everything() == []


async def test_a_backend_without_subscriptions_and_log_levels_gets_none() -> None:
    ready = Ready("logging")
    ready.fake.abilities = BackendAbilities()
    async with ready as watched:
        with pytest.raises(RpcError) as caught:
            await watched.upstream.subscribe("x:", V2025_11_25)
        assert (caught.value.code, caught.value.message) == (
            METHOD_NOT_FOUND,
            "Method not found: resources/subscribe",
        )
        await set_level(watched, "info")
        await settle()
        assert (ready.fake.everything(), watched.upstream.subscriptions.subscriber_counts) == (
            [],
            {},
        )


async def test_a_backend_that_ends_meanwhile_is_unavailable() -> None:
    ready = Ready()
    ready.fake.answers["follow x:"] = ConnectionLost("gone")
    async with ready as watched:
        with pytest.raises(RpcError) as caught:
            await watched.upstream.subscribe("x:", V2025_11_25)
        assert caught.value.code == -32007
    with pytest.raises(RpcError) as caught:
        await watched.upstream.subscribe("x:", V2025_11_25)
    assert caught.value.code == -32007
    watched.upstream.subscriptions.unsubscribe("x:")


@pytest.mark.parametrize("action", ["follow x:", "unfollow y:"])
async def test_a_queued_call_waits_no_longer_than_its_timeout(action: str) -> None:
    LoopClock().skip_idle_time()
    ready = Ready(timeout=0.02)
    async with ready as watched:
        await watched.upstream.subscribe("y:", V2025_11_25)
        assert await ready.fake.sent.get() == "follow y:"
        ready.fake.answers[action] = asyncio.Event()
        if action == "unfollow y:":
            watched.upstream.subscriptions.unsubscribe("y:")
            assert await ready.fake.sent.get() == action
            while (
                "follow x:" not in ready.fake.everything()
            ):  # until the first attempt is cancelled
                with suppress(RpcError):
                    await watched.upstream.subscribe("x:", V2025_11_25)
            return
        results = await asyncio.gather(
            *(watched.upstream.subscribe(uri, V2025_11_25) for uri in ("x:", "z:")),
            return_exceptions=True,
        )
        assert [getattr(result, "code", None) for result in results] == [-32603] * 2


async def test_a_cancelled_subscribe_request_leaves_no_subscription() -> None:
    ready = Ready()
    ready.fake.answers["follow x:"] = asyncio.Event()
    async with ready as watched:
        impatient = asyncio.create_task(watched.upstream.subscribe("x:", V2025_11_25))
        patient = asyncio.create_task(watched.upstream.subscribe("x:", V2025_11_25))
        assert await ready.fake.sent.get() == "follow x:"
        ready.fake.answers.clear()
        impatient.cancel()
        await patient
        assert await ready.fake.sent.get() == "follow x:"  # the response is unknown
        await settle()
        assert ready.fake.everything() == []
        watched.upstream.subscriptions.unsubscribe("x:")
        assert await ready.fake.sent.get() == "unfollow x:"
    assert impatient.cancelled()


async def test_a_restarted_backend_gets_all_subscriptions_again() -> None:
    ready = Ready("logging")
    async with ready as watched:
        up = watched.upstream
        for uri in ("x:", "y:", "z:"):
            await up.subscribe(uri, V2025_11_25)
        await set_level(watched, "debug")
        up.subscriptions.unsubscribe("y:")
        assert await ready.fake.sent.get() == "follow x:"
        await settle()
        ready.fake.everything()
        ready.fake.answers["follow x:"] = ValueError("odd")
        await restart(watched)
        await settle()
        assert ready.fake.everything() == ["follow x:", "follow z:", "level debug"]
        up.subscriptions.unsubscribe("z:")
        assert await ready.fake.sent.get() == "unfollow z:"


async def test_a_renewed_session_restores_subscriptions_and_lists() -> None:
    ready = Ready("logging")
    async with ready as watched:
        await watched.upstream.subscribe("x:", V2025_11_25)
        await set_level(watched, "info")
        await settle()
        assert ready.fake.everything() == ["follow x:", "level info"]
        listings = ready.fake.listings
        watched.upstream.on_session_renewed()
        await settle()
        assert ready.fake.everything() == ["follow x:", "level info"]
        assert ready.fake.listings == listings + 1


async def test_a_level_is_sent_only_when_it_changes() -> None:
    ready = Ready("logging")
    async with ready as watched:
        for level in ("info", "info", None, "info", "debug"):
            await set_level(watched, level)
        watched.upstream.subscriptions.schedule_log_level("error")
        await settle()
        watched.upstream.subscriptions.schedule_log_level(None)
        await settle()
        assert ready.fake.everything() == ["level info", "level debug", "level error"]
        await restart(watched)
        await settle()
        assert ready.fake.everything() == []


async def test_the_last_wanted_level_is_kept() -> None:
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
        assert await ready.fake.sent.get() == "level debug"


async def test_a_backend_that_is_down_gets_the_level_when_it_is_back() -> None:
    fake = SubscribableBackend("logging")
    fake.at_listing.append(listing := asyncio.Event())
    watched = Watched(fake)
    await watched.until(UpstreamState.STARTING)
    await set_level(watched, "info")
    listing.set()
    assert await fake.sent.get() == "level info"
    await watched.stop()


async def test_a_backend_without_logging_gets_no_level() -> None:
    ready = Ready()
    async with ready as watched:
        await set_level(watched, "info")
        await settle()
        assert ready.fake.everything() == []


@pytest.mark.parametrize(
    "refusal", [RpcError(-32603, "no"), ConnectionLost("gone"), ValueError("odd")]
)
async def test_refused_levels_and_unsubscriptions_affect_nothing_else(
    refusal: Exception,
) -> None:
    ready = Ready("logging")
    ready.fake.answers = {"level info": refusal, "unfollow x:": refusal}
    async with ready as watched:
        await set_level(watched, "info")
        await watched.upstream.subscribe("x:", V2025_11_25)
        watched.upstream.subscriptions.unsubscribe("x:")
        await settle()
        assert ready.fake.everything() == ["level info", "follow x:", "unfollow x:"]
        await watched.upstream.subscribe("x:", V2025_11_25)
        assert await ready.fake.sent.get() == "follow x:"
        assert watched.upstream.ready


async def test_a_replacement_gets_the_subscriptions_of_its_predecessor() -> None:
    old, new = Ready("logging"), Ready("logging")
    async with old as before, new as after:
        await before.upstream.subscribe("x:", V2025_11_25)
        await before.upstream.subscribe("x:", V2025_11_25)
        after.upstream.subscriptions.copy_from(before.upstream.subscriptions)
        await settle()
        assert new.fake.everything() == ["follow x:"]
        assert after.upstream.subscriptions.subscriber_counts == {"x:": 2}


async def test_a_new_timeout_applies_from_now_on() -> None:
    ready = Ready()
    ready.fake.answers["follow x:"] = asyncio.Event()
    async with ready as watched:
        watched.upstream.subscriptions.reconfigure(0.01)
        with pytest.raises(RpcError) as caught:
            await watched.upstream.subscribe("x:", V2025_11_25)
        assert caught.value.code == -32603
