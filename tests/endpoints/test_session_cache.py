"""Requests with equal heads: cached facts are used only while they hold."""

import asyncio
from typing import Any

import pytest

from tests.endpoints.exchanges import (
    BlockedMethod,
    FakeExchange,
    FakeMcpService,
    make_request,
    rpc_notification,
    rpc_request,
)
from tests.endpoints.test_session import EndpointClient, opened
from tests.tasks import settle, tidy
from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.principal_limits import InFlightLimiter
from trunkline.endpoints.request_context import RequestClass, RequestContext
from trunkline.endpoints.router import HttpRouter
from trunkline.jsonrpc import decode
from trunkline.mcp.identity import Principal

pytestmark = pytest.mark.at_once

ANNA, BERT = Principal("anna"), Principal("bert")


class RepeatingClient:
    """Sends requests that all have the same head."""

    def __init__(self, client: EndpointClient, session: str) -> None:
        self.client = client
        self.head = make_request(mcp_session_id=session).head
        self.request_class = RequestClass(())

    def post(self, message: Any, principal: Principal = ANNA) -> FakeExchange:
        request = make_request(message)
        exchange = FakeExchange(type(request)(self.head, request.body))
        self.client.endpoint.handle_post(
            RequestContext(exchange, principal, self.request_class), decode(request.body)
        )
        return exchange

    def ping(self, principal: Principal = ANNA) -> int:
        return self.post(rpc_request(1, "ping"), principal).status


@tidy
async def test_a_cached_session_is_used_while_it_is_valid() -> None:
    async with opened() as client:
        repeater = RepeatingClient(client, session := client.begin("anna"))
        assert [repeater.ping() for _ in range(3)] == [200] * 3
        assert repeater.request_class.session is not None
        assert client.delete(session, "anna").status == 204
        assert [repeater.ping() for _ in range(2)] == [404] * 2
        assert repeater.request_class.session is None


@tidy
async def test_a_cached_session_is_not_used_for_another_principal() -> None:
    async with opened() as client:
        repeater = RepeatingClient(client, client.begin("anna"))
        found = [repeater.ping(principal) for principal in (ANNA, BERT, BERT, ANNA, BERT)]
        assert found == [200, 404, 404, 200, 404]


@tidy
async def test_a_changed_principal_reaches_the_session() -> None:
    async with opened() as client:
        one, other = (RepeatingClient(client, client.begin("anna")) for _ in range(2))
        other.head = one.head
        (mcp_session, _) = client.service.sessions
        admin = Principal("anna", roles=("admin",))
        for repeater, principal in ((one, ANNA), (other, admin), (one, ANNA), (one, admin)):
            assert repeater.ping(principal) == 200
            assert mcp_session.principal is principal


@pytest.mark.parametrize("settings", [{"session_idle": 9.0}, {"session_max_age": 9.0}])
@tidy
async def test_an_expired_cached_session_is_not_used(settings: dict[str, Any]) -> None:
    async with opened(**settings) as client:
        repeater = RepeatingClient(client, client.begin("anna"))
        assert repeater.ping() == 200
        client.now = 9.0
        assert repeater.ping() == 200
        client.now = 18.1
        assert repeater.ping() == 404


@tidy
async def test_every_request_counts_as_activity() -> None:
    blocked = BlockedMethod()
    async with opened(
        FakeMcpService(wait=blocked), InFlightLimiter(1, 1), session_idle=9.0
    ) as client:
        repeater = RepeatingClient(client, client.begin("anna"))
        for client.now in (8.0, 16.0, 24.0):
            assert repeater.ping() == 200
        waiting = repeater.post(rpc_request(2))
        client.now = 99.0  # it is busy
        assert repeater.ping() == 503
        blocked.unblocked.set()
        await waiting.answered.wait()
        for client.now in (108.0, 117.0):
            assert repeater.post(rpc_notification("here")).status == 202
        for client.now in (126.0, 135.0):
            assert repeater.ping() == 200


@tidy
async def test_new_limits_apply_to_existing_sessions() -> None:
    async with opened() as client:
        repeater = RepeatingClient(client, client.begin("anna"))
        assert repeater.ping() == 200
        client.now = 10.0
        client.endpoint.reconfigure(EndpointSettings(session_idle=9.0))
        assert repeater.ping() == 404


@tidy
async def test_closing_waits_for_requests_of_ended_sessions() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def stubborn(request: Any, line: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
        return {}

    async with opened(FakeMcpService(wait=stubborn)) as client:
        repeater = RepeatingClient(client, session := client.begin("anna"))
        exchange = repeater.post(rpc_request())
        await begun.wait()
        assert client.delete(session, "anna").status == 204
        await settle()
        assert len(client.endpoint.streams) == 1
        client.endpoint.expire_sessions()
        assert len(client.endpoint.streams) == 1
        release.set()
        await exchange.answered.wait()
        assert client.endpoint.streams == []


@tidy
async def test_a_request_class_is_bound_to_one_router_and_its_settings() -> None:
    settings = EndpointSettings()
    one, other = HttpRouter(FakeMcpService(), settings), HttpRouter(FakeMcpService(), settings)
    request = make_request(rpc_request(1, "ping"), mcp_session_id="x")
    request_classes: list[Any] = []
    for client in (one, one, other, other):
        client.handle(FakeExchange(request))
        request_classes.append(request.head.app_data)
    one.reconfigure(settings)
    one.handle(FakeExchange(request))
    request_classes.append(request.head.app_data)
    assert request_classes[0] is request_classes[1]
    assert request_classes[2] is request_classes[3]
    assert len({id(request_class) for request_class in request_classes}) == 3
    await asyncio.gather(one.aclose(), other.aclose())
