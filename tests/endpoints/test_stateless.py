"""The stateless endpoint: the order of checks, streams, cancellation and closing."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.endpoints.exchanges import (
    META,
    BlockedMethod,
    FakeExchange,
    FakeMcpService,
    make_context,
    make_request,
    rpc_request,
    with_head,
)
from tests.tasks import LoopClock, is_stuck, settle, tidy
from trunkline.endpoints.principal_limits import InFlightLimiter
from trunkline.endpoints.stateless import StatelessEndpoint
from trunkline.jsonrpc import Incident, Request, RpcError, decode
from trunkline.mcp.params import Params

P = "io.modelcontextprotocol/"


class EndpointClient:
    """Sends fake exchanges to a StatelessEndpoint."""

    def __init__(
        self, limiter: InFlightLimiter, service: FakeMcpService, close_timeout: float
    ) -> None:
        self.service = service
        self.reports: list[Incident] = []
        self.endpoint = StatelessEndpoint(service, limiter, self.reports.append, close_timeout)

    def post(
        self,
        id: Any = 1,
        method: str = "wait",
        repeated: tuple[bytes, ...] = (),
        meta: Any = META,
        **headers: str,
    ) -> FakeExchange:
        every = {"mcp_protocol_version": "2026-07-28", "mcp_method": method}
        request = make_request(rpc_request(id, method, _meta=meta), **(every | headers))
        exchange = FakeExchange(with_head(request, repeated=frozenset(repeated)))
        message = decode(request.body)
        assert isinstance(message, Request)
        self.endpoint.handle_request(make_context(exchange), message, Params(message.params))
        return exchange


@asynccontextmanager
async def opened(
    limiter: InFlightLimiter | None = None, close_timeout: float = 1.0, **methods: Any
) -> AsyncGenerator[EndpointClient]:
    client = EndpointClient(
        limiter or InFlightLimiter(100, 100), FakeMcpService(**methods), close_timeout
    )
    try:
        yield client
    finally:
        await client.endpoint.aclose()
        assert client.endpoint.streams == []


@tidy
async def test_an_immediate_response_is_a_json_body() -> None:
    async with opened() as client:
        exchange = client.post("x", "ping", mcp_session_id="any", last_event_id="1-1")
        assert exchange.json == {"jsonrpc": "2.0", "id": "x", "result": {}}
        assert exchange.headers == {b"content-type": b"application/json", b"x-any": b"1"}


@tidy
async def test_the_first_failed_check_decides() -> None:
    half = {f"{P}protocolVersion": "2026-07-28"}
    async with opened() as client:
        for code, exchange in (
            (-32020, client.post(repeated=(b"mcp-method",), meta={})),
            (-32602, client.post(meta={}, mcp_method="")),
            (-32602, client.post(meta=half, mcp_method="other")),
            (-32020, client.post(mcp_method="")),
            (-32020, client.post(mcp_method="WAIT")),
            (-32020, client.post(mcp_protocol_version="")),
            (-32020, client.post(mcp_protocol_version="v999")),
        ):
            assert (exchange.status, exchange.code, exchange.json["id"]) == (400, code, 1)
        assert client.post(method="ping", repeated=(b"x-forwarded-for",)).status == 200


@pytest.mark.parametrize("later", [False, True])
@tidy
async def test_the_status_depends_on_the_error_code(later: bool) -> None:
    codes = {
        -32700: 400,
        -32600: 400,
        -32601: 404,
        -32602: 400,
        -32020: 400,
        -32021: 400,
        -32022: 400,
        -32603: 200,
        -32000: 200,
        5030: 200,
    }

    def reject(request: Request, stream: Any) -> Any:
        error = RpcError(int(request.id or 0), "no")
        if not later:
            raise error

        async def fail() -> None:
            raise error

        return fail()

    async with opened(reject=reject) as client:
        for code, status in codes.items():
            exchange = client.post(code, "reject")
            await exchange.answered.wait()
            assert (exchange.status, exchange.code, exchange.json["id"]) == (status, code, code)


@tidy
async def test_an_unexpected_exception_is_reported_and_not_shown() -> None:
    async def broken(request: Request, stream: Any) -> Any:
        raise ValueError("secret")

    def babble(request: Request, stream: Any) -> Any:
        return object()

    async with opened(broken=broken, babble=babble) as client:
        for method in ("broken", "babble"):
            exchange = client.post(method=method)
            await exchange.answered.wait()
            assert (exchange.status, exchange.code) == (200, -32603)
            assert b"secret" not in exchange.body
        assert [incident.method for incident in client.reports] == ["broken", "babble"]


@tidy
async def test_a_message_before_the_response_makes_it_a_stream() -> None:
    async def chat(request: Request, stream: Any) -> Any:
        await stream.notify("a", {})
        await stream.notify("b", {})
        raise RpcError.method_not_found("late")

    async with opened(chat=chat) as client:
        exchange = client.post(method="chat")
        await exchange.answered.wait()
        assert exchange.status == 200  # too late for another
        assert [entry.get("method") for entry in exchange.data] == ["a", "b", None]
        assert exchange.data[2]["error"]["code"] == -32601
        assert {event.id for event in exchange.events} == {None}
        assert exchange.headers[b"x-accel-buffering"] == b"no"
        assert exchange.headers[b"x-any"] == b"1"


@tidy
async def test_messages_after_the_response_are_dropped() -> None:
    blocked = BlockedMethod()
    async with opened(wait=blocked) as client:
        for streaming in (False, True):
            blocked.unblocked.clear()
            exchange = client.post()
            await settle()
            stream = blocked.streams[-1]
            if streaming:
                await stream.notify("a", {})
            blocked.unblocked.set()
            await exchange.answered.wait()
            body = exchange.body
            await stream.notify("late", {})
            await stream.send_ping()
            assert exchange.body == body


@tidy
async def test_there_are_no_requests_to_clients() -> None:
    async def consult(request: Request, stream: Any) -> Any:
        return await stream.call("roots/list", {})

    async with opened(consult=consult) as client:
        exchange = client.post(method="consult")
        await exchange.answered.wait()
        assert (exchange.status, exchange.code) == (404, -32601)


@pytest.mark.parametrize("streaming", [False, True])
@tidy
async def test_a_disconnect_cancels_the_request(streaming: bool) -> None:
    blocked, limiter = BlockedMethod(), InFlightLimiter(1, 1)
    async with opened(limiter, wait=blocked) as client:
        exchange = client.post()
        await blocked.started.wait()
        if streaming:
            await blocked.streams[0].notify("a", {})
        assert limiter.refusal("p") is not None
        exchange.disconnect()
        await settle()
        assert blocked.cancelled == 1
        assert limiter.refusal("p") is None
        assert client.endpoint.streams == []
        assert not exchange.ended


@tidy
async def test_an_earlier_disconnect_cancels_the_request() -> None:
    blocked, limiter = BlockedMethod(), InFlightLimiter(1, 1)
    async with opened(limiter, wait=blocked) as client:
        request = make_request(
            rpc_request(1, "wait", _meta=META), mcp_protocol_version="2026-07-28", mcp_method="wait"
        )
        exchange = FakeExchange(request)
        exchange.disconnect()
        message = decode(request.body)
        assert isinstance(message, Request)
        client.endpoint.handle_request(make_context(exchange), message, Params(message.params))
        await settle()
        assert blocked.cancelled == 1
        assert limiter.refusal("p") is None


@pytest.mark.parametrize(("most", "status"), [((1, 9), 503), ((9, 1), 429)])
@tidy
async def test_a_request_above_the_limit_gets_retry_after(
    most: tuple[int, int], status: int
) -> None:
    blocked = BlockedMethod()
    async with opened(InFlightLimiter(*most), wait=blocked) as client:
        first, second = client.post(), client.post()
        assert (second.status, second.code) == (status, -32603)
        assert second.headers[b"retry-after"] == b"1"
        blocked.unblocked.set()
        await first.answered.wait()
        third = client.post()
        await third.answered.wait()
        assert third.status == 200


@tidy
async def test_a_ping_turns_a_slow_response_into_a_stream() -> None:
    blocked = BlockedMethod()
    async with opened(wait=blocked) as client:
        exchange = client.post()
        await blocked.started.wait()
        (reply,) = client.endpoint.streams
        reply.is_idle = True
        await reply.send_ping()
        assert exchange.comments == 1
        assert not reply.is_idle
        blocked.unblocked.set()
        await exchange.answered.wait()
        assert exchange.data == [{"jsonrpc": "2.0", "id": 1, "result": {"done": True}}]


@pytest.mark.parametrize("begun", [False, True])
@tidy
async def test_closing_answers_running_requests(begun: bool) -> None:
    blocked = BlockedMethod()
    async with opened(wait=blocked) as client:
        exchanges = [client.post(), client.post()]
        if begun:
            await blocked.started.wait()
            await blocked.streams[1].notify("a", {})
        await client.endpoint.aclose()
        assert all(exchange.ended for exchange in exchanges)
        assert exchanges[0].code == -32603
        assert blocked.cancelled == 2


@tidy
async def test_closing_does_not_wait_for_clients_that_do_not_read() -> None:
    blocked, clock = BlockedMethod(), LoopClock()
    async with opened(close_timeout=0.01, wait=blocked) as client:
        exchange = client.post()
        await blocked.started.wait()
        await blocked.streams[0].notify("a", {})
        exchange.room.clear()
        closing = asyncio.create_task(client.endpoint.aclose())
        assert await is_stuck(closing)
        await clock.advance(0.01)
        await closing
        assert json.loads(exchange.events[-1].data)["error"]["code"] == -32603
