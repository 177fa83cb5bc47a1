"""Batches (2025-03-26): each entry is a request of its own, with one common response."""

from typing import Any

import pytest

from tests.endpoints.exchanges import BlockedMethod, FakeMcpService, rpc_notification, rpc_request
from tests.endpoints.test_session import opened
from tests.tasks import tidy
from trunkline.endpoints.session import REQUEST_CANCELLED
from trunkline.mcp.versions import V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25

pytestmark = pytest.mark.at_once


@tidy
async def test_a_batch_is_answered_in_its_order_and_cancelled_by_the_entry() -> None:
    blocked, slow = BlockedMethod(), BlockedMethod()
    async with opened(FakeMcpService(V2025_03_26, wait=blocked, slow=slow)) as client:
        session = client.begin()
        batch = [
            rpc_request(1, "slow"),
            rpc_notification("a"),
            rpc_request(2, "ping"),
            {"jsonrpc": "2.0", "id": 3},
            rpc_request(4, "initialize"),
            rpc_request(5),
            rpc_request(5, "ping"),
            rpc_notification("notifications/cancelled", requestId=5),
        ]
        exchange = client.post(batch, session)
        await slow.started.wait()
        slow.unblocked.set()
        await exchange.answered.wait()
        found = [(each["id"], each.get("error", {}).get("code")) for each in exchange.json]
        assert found == [
            (1, None),
            (2, None),
            (3, -32600),
            (4, -32600),
            (5, REQUEST_CANCELLED),
            (None, -32600),
        ]
        assert client.service.sessions[0].notifications == ["a", "notifications/cancelled"]
        assert blocked.cancelled == 1


@tidy
async def test_a_batch_without_requests_is_accepted() -> None:
    async with opened(FakeMcpService(V2025_03_26)) as client:
        session = client.begin()
        broken = {"jsonrpc": "2.0", "id": 1, "result": 1, "error": 2}
        for batch in (
            [rpc_notification("a"), rpc_notification("b")],
            [broken],
            [rpc_notification("c"), broken],
        ):
            exchange = client.post(batch, session)
            assert (exchange.status, exchange.body) == (202, b"")


@tidy
async def test_messages_during_a_batch_precede_its_response() -> None:
    async def chat(request: Any, stream: Any) -> Any:
        await stream.notify("log", {"by": request.id})
        return {}

    async with opened(FakeMcpService(V2025_03_26, chat=chat)) as client:
        session = client.begin()
        exchange = client.post([rpc_request(1, "chat"), rpc_request(2, "chat")], session)
        await exchange.answered.wait()
        assert [entry["params"]["by"] for entry in exchange.data[:2]] == [1, 2]
        assert [entry["id"] for entry in exchange.data[2]] == [1, 2]


@tidy
async def test_a_stateless_request_in_a_batch_is_rejected() -> None:
    async with opened(FakeMcpService(V2025_03_26)) as client:
        enveloped = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
        batch = [
            rpc_request(1, "ping", **enveloped),
            rpc_request(2, "ping", _meta={}),
            rpc_request(3, "ping", _meta=7),
        ]
        exchange = client.post(batch, client.begin())
        await exchange.answered.wait()
        found = [(each["id"], each.get("error", {}).get("code")) for each in exchange.json]
        assert found == [(1, -32600), (2, None), (3, None)]


@tidy
async def test_only_one_revision_has_batches() -> None:
    for revision in (V2024_11_05, V2025_06_18, V2025_11_25):
        async with opened(FakeMcpService(revision)) as client:
            exchange = client.post([rpc_request(1, "ping")], client.begin())
            assert (exchange.status, exchange.code) == (400, -32600)
