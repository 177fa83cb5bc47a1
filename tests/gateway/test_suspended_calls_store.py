"""Suspended calls whose store answers when the test lets it: what may happen meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import add, running
from tests.gateway.stateless_callers import StatelessCaller, stateless_caller
from tests.gateway.test_suspended_calls import FORM, INPUT_META, YES, AskingServer, refused, retry
from tests.tasks import settle
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.request_state import KeyRing, StateCipher
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import SuspendedCallLimits
from trunkline.gateway.stores import MemorySuspendedCallStore, SuspendedCallRecord, resolve
from trunkline.gateway.suspended_calls import SuspendedCalls
from trunkline.jsonrpc import ConnectionLost, Incident, RpcError


class HeldStore(MemorySuspendedCallStore):
    """A store whose operations take effect at once, and whose answers may be held."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = asyncio.Event()
        self.error: Exception | None = None
        self.records: list[SuspendedCallRecord] = []

    def add(  # type: ignore[override]
        self, record: SuspendedCallRecord, limits: SuspendedCallLimits, now: float
    ) -> Awaitable[bool]:
        self.records.append(record)
        return self._answer(super().add(record, limits, now))

    def take(  # type: ignore[override]
        self, call_id: str, round: int
    ) -> Awaitable[SuspendedCallRecord | None]:
        return self._answer(super().take(call_id, round))

    async def _answer(self, answer: Any) -> Any:
        answer = await resolve(answer)
        self.asked.set()
        if answer is not None:  # that a call is not there is answered at once
            await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return answer

    async def is_empty(self) -> bool:
        """Return whether the store has none of the records it ever had."""
        return all([await self.take(each.id, each.round) is None for each in self.records])


@asynccontextmanager
async def asking() -> AsyncGenerator[tuple[HeldStore, AskingServer, StatelessCaller]]:
    """Run a server that asks, behind a gateway with a HeldStore; check that nothing is left."""
    store, server = HeldStore(), AskingServer(("elicitation/create", FORM))
    incidents: list[Incident] = []
    calls = SuspendedCalls(StateCipher(KeyRing.generate()), store=store)
    gateway = Gateway(GatewayIdentity("g", "1"), lambda: 0.0, incidents.append, calls)
    add(gateway, "s", server)
    async with running(gateway, server):
        yield store, server, await stateless_caller(gateway)
        assert len(calls) == 0
        assert gateway.pipeline.in_flight == set()
        assert await store.is_empty()


async def test_of_two_retries_one_resumes_the_call_whichever_answer_comes_first() -> None:
    async with asking() as (store, server, client):
        suspended = await client.call("s__t", _meta=INPUT_META)
        store.asked.clear()
        store.may_answer.clear()
        first = asyncio.create_task(client.call("s__t", **retry(suspended, YES, _meta=INPUT_META)))
        await store.asked.wait()
        assert await refused(client, **retry(suspended, YES, _meta=INPUT_META)) == -32602
        store.may_answer.set()
        assert (await first)["structuredContent"] == {"answers": [YES]}
        assert server.runs_of_tool == 1


async def test_a_client_that_leaves_while_its_call_is_stored_leaves_nothing() -> None:
    async with asking() as (store, server, client):
        store.may_answer.clear()
        call = asyncio.create_task(client.call("s__t", _meta=INPUT_META))
        await store.asked.wait()
        call.cancel()
        await server.wait_received("notifications/cancelled")
        store.may_answer.set()
        await settle()


async def test_a_call_that_is_abandoned_while_it_is_stored_ends() -> None:
    async with asking() as (store, server, client):
        store.may_answer.clear()
        call = asyncio.create_task(client.call("s__t", _meta=INPUT_META))
        await store.asked.wait()
        client.gateway.stateless.suspended_calls.abandon_backend("s")
        await server.wait_received("notifications/cancelled")
        store.may_answer.set()
        with pytest.raises(RpcError, match="Internal error"):
            await call


async def test_a_call_that_is_abandoned_while_it_is_taken_ends() -> None:
    async with asking() as (store, server, client):
        suspended = await client.call("s__t", _meta=INPUT_META)
        store.asked.clear()
        store.may_answer.clear()
        resuming = asyncio.create_task(refused(client, **retry(suspended, YES, _meta=INPUT_META)))
        await store.asked.wait()
        client.gateway.stateless.suspended_calls.abandon_backend("s")
        await server.wait_received("notifications/cancelled")
        store.may_answer.set()
        assert await resuming == -32602


async def test_a_store_that_fails_ends_the_call_that_it_was_to_keep() -> None:
    async with asking() as (store, server, client):
        store.error = ConnectionLost("the store is gone")
        with pytest.raises(ConnectionLost):
            await client.call("s__t", _meta=INPUT_META)
        await server.wait_received("notifications/cancelled")
        store.error = None


async def test_a_store_that_fails_at_a_retry_leaves_the_call_waiting() -> None:
    async with asking() as (store, server, client):
        suspended = await client.call("s__t", _meta=INPUT_META)
        store.error = ConnectionLost("the store is gone")
        with pytest.raises(ConnectionLost):
            await client.call("s__t", **retry(suspended, YES, _meta=INPUT_META))
        store.error = None
        calls = client.gateway.stateless.suspended_calls
        assert len(calls) == 1
        calls.abandon_backend("s")
        await server.wait_received("notifications/cancelled")
