"""The session endpoint: ownership of sessions, and requests, streams and batches in them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.endpoints.exchanges import (
    BlockedMethod,
    FakeExchange,
    FakeMcpService,
    make_context,
    make_request,
    rpc_notification,
    rpc_request,
    rpc_response,
    with_head,
)
from tests.tasks import settle, tidy
from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.principal_limits import InFlightLimiter
from trunkline.endpoints.session import REQUEST_CANCELLED, SessionEndpoint
from trunkline.endpoints.session_state import ResumableEventStream
from trunkline.gateway.stores import SessionStore
from trunkline.jsonrpc import Incident, RpcError, decode
from trunkline.mcp.versions import V2025_03_26, V2025_06_18

pytestmark = pytest.mark.at_once


class EndpointClient:
    """Sends fake exchanges to a SessionEndpoint."""

    def __init__(
        self,
        service: FakeMcpService,
        limiter: InFlightLimiter,
        store: SessionStore | None = None,
        **settings: Any,
    ) -> None:
        self.service = service
        self.reports: list[Incident] = []
        self.now = 0.0
        self.opened: list[ResumableEventStream] = []
        self.endpoint = SessionEndpoint(
            service,
            EndpointSettings(**settings),
            limiter,
            self.reports.append,
            lambda: self.now,
            store=store,
        )

    def post(
        self, message: Any, session: str = "", principal: str = "p", **headers: str
    ) -> FakeExchange:
        exchange = FakeExchange(make_request(message, mcp_session_id=session, **headers))
        self.endpoint.handle_post(
            make_context(exchange, principal), decode(json.dumps(message).encode())
        )
        return exchange

    def begin(self, principal: str = "p") -> str:
        exchange = self.post(rpc_request(0, "initialize"), principal=principal)
        assert exchange.status == 200
        return exchange.headers[b"mcp-session-id"].decode()

    def get(self, session: str = "", principal: str = "p", **headers: str) -> FakeExchange:
        exchange = FakeExchange(make_request(method="GET", mcp_session_id=session, **headers))
        self.endpoint.handle_get(make_context(exchange, principal), self.opened.append)
        return exchange

    def delete(self, session: str, principal: str = "p") -> FakeExchange:
        exchange = FakeExchange(make_request(method="DELETE", mcp_session_id=session))
        self.endpoint.handle_delete(make_context(exchange, principal))
        return exchange


@asynccontextmanager
async def opened(
    service: FakeMcpService | None = None, limiter: InFlightLimiter | None = None, **settings: Any
) -> AsyncGenerator[EndpointClient]:
    client = EndpointClient(
        service or FakeMcpService(), limiter or InFlightLimiter(100, 100), **settings
    )
    try:
        yield client
    finally:
        await client.endpoint.aclose()
        assert len(client.endpoint) == 0
        assert client.endpoint.streams == []
        assert len(client.service.closed) == len(client.service.sessions)


# Sessions


@pytest.mark.holds("S3.15")
@tidy
async def test_initialize_opens_a_session_and_returns_its_id() -> None:
    async with opened() as client:
        exchange = client.post(rpc_request("a", "initialize"))
        assert exchange.json == {
            "jsonrpc": "2.0",
            "id": "a",
            "result": {"protocolVersion": "2025-11-25"},
        }
        assert len(exchange.headers[b"mcp-session-id"]) == 32
        assert exchange.headers[b"x-any"] == b"1"
        assert len(client.endpoint) == 1
        assert client.service.sessions[0].principal.id == "p"
        session = exchange.headers[b"mcp-session-id"].decode()
        later = client.post(rpc_request(2, "ping"), session)
        assert later.json == {"jsonrpc": "2.0", "id": 2, "result": {}}
        assert b"mcp-session-id" not in later.headers


@tidy
async def test_an_initialize_whose_result_is_not_known_yet_is_answered_later() -> None:
    async with opened() as client:
        client.service.delay = asyncio.Event()
        exchange = client.post(rpc_request("a", "initialize"))
        await settle()
        assert (exchange.status, len(client.endpoint)) == (0, 0)
        client.service.delay.set()
        await settle()
        assert exchange.json["result"] == {"protocolVersion": "2025-11-25"}
        assert b"mcp-session-id" in exchange.headers
        assert len(client.endpoint) == 1


@tidy
async def test_a_failed_initialize_leaves_no_session() -> None:
    async with opened() as client:
        client.service.open_error = RpcError.invalid_params("no")
        exchange = client.post(rpc_request(1, "initialize"))
        assert (exchange.status, exchange.code) == (200, -32602)
        assert b"mcp-session-id" not in exchange.headers
        await settle()
        assert len(client.endpoint) == 0
        assert client.service.closed == client.service.sessions


@tidy
async def test_a_session_above_the_limit_gets_retry_after() -> None:
    async with opened(max_sessions=1) as client:
        client.begin("q")
        exchange = client.post(rpc_request(1, "initialize"))
        assert (exchange.status, exchange.code) == (503, -32603)
        assert exchange.json["error"]["data"] == {"limit": "http.max_sessions"}
        assert client.service.limits == [("p", "http.max_sessions", False)]
        assert exchange.headers[b"retry-after"] == b"1"
        await settle()
        assert len(client.endpoint) == 1
        assert client.service.closed == client.service.sessions[1:]


@tidy
async def test_a_session_id_is_required() -> None:
    async with opened() as client:
        for exchange in (client.post(rpc_request()), client.get(), client.delete("")):
            assert (exchange.status, exchange.code) == (400, -32600)
        for exchange in (client.post(rpc_request(), "x"), client.get("x"), client.delete("x")):
            assert (exchange.status, exchange.code) == (404, -32600)


@pytest.mark.holds("T65")
@tidy
async def test_a_session_does_not_exist_for_another_principal() -> None:
    async with opened() as client:
        session = client.begin("p")
        for exchange in (
            client.post(rpc_request(1, "ping"), session, "q"),
            client.post(rpc_notification("stolen"), session, "q"),
            client.get(session, "q"),
            client.delete(session, "q"),
        ):
            assert (exchange.status, exchange.code) == (404, -32600)
        assert client.service.sessions[0].notifications == []
        assert client.post(rpc_request(1, "ping"), session, "p").json["result"] == {}


@tidy
async def test_a_repeated_session_id_header_is_rejected() -> None:
    async with opened() as client:
        session = client.begin()
        request = make_request(rpc_request(1, "ping"), mcp_session_id=session)
        twice = with_head(request, repeated=frozenset({b"mcp-session-id"}))
        exchange = FakeExchange(twice)
        client.endpoint.handle_post(make_context(exchange), decode(twice.body))
        assert exchange.status == 404


@pytest.mark.parametrize("settings", [{"session_idle": 9.0}, {"session_max_age": 9.0}])
@tidy
async def test_an_expired_session_is_not_found_and_then_ended(settings: dict[str, Any]) -> None:
    async with opened(**settings) as client:
        session = client.begin()
        client.now = 9.0
        client.endpoint.expire_sessions()
        assert len(client.endpoint) == 1
        client.now = 9.1
        assert client.post(rpc_request(1, "ping"), session).status == 404
        assert client.service.closed == []
        client.endpoint.expire_sessions()
        await settle()
        assert len(client.endpoint) == 0
        assert client.service.closed == client.service.sessions


@tidy
async def test_a_busy_session_is_not_idle() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(V2025_03_26, wait=blocked), session_idle=9.0) as client:
        listens, calls, batches, idle = (client.begin() for _ in range(4))
        stream = client.get(listens)
        exchanges = [client.post(rpc_request(), calls), client.post([rpc_request()], batches)]
        for client.now in (8.0, 16.0, 24.0):
            client.endpoint.expire_sessions()
        found = [
            client.post(rpc_request(2, "ping"), each).status for each in (listens, calls, batches)
        ]
        assert found == [200, 200, 200]
        assert client.post(rpc_request(2, "ping"), idle).status == 404
        assert len(client.endpoint) == 3
        stream.disconnect()
        blocked.unblocked.set()
        await asyncio.gather(*(exchange.answered.wait() for exchange in exchanges))
        client.now = 99.0
        client.endpoint.expire_sessions()
        assert len(client.endpoint) == 0


@tidy
async def test_a_session_is_idle_from_the_end_of_its_last_request() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(V2025_03_26, wait=blocked), session_idle=9.0) as client:
        sessions = listens, calls, batches = [client.begin() for _ in range(3)]
        stream = client.get(listens)
        exchanges = [client.post(rpc_request(), calls), client.post([rpc_request()], batches)]
        for client.now in (20.0, 40.0):
            assert [client.post(rpc_notification("here"), each).status for each in sessions] == [
                202
            ] * 3
        client.now = 60.0
        stream.disconnect()
        blocked.unblocked.set()
        await asyncio.gather(*(exchange.answered.wait() for exchange in exchanges))
        client.now = 69.0
        assert [client.post(rpc_notification("here"), each).status for each in sessions] == [
            202
        ] * 3


@tidy
async def test_a_session_that_is_too_old_ends_even_if_busy() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(wait=blocked), session_max_age=9.0) as client:
        session = client.begin()
        stream, exchange = client.get(session), client.post(rpc_request(), session)
        client.now = 10.0
        client.endpoint.expire_sessions()
        await exchange.answered.wait()
        assert exchange.code == REQUEST_CANCELLED
        assert stream.ended
        assert len(client.endpoint) == 0


# Calls


@tidy
async def test_an_immediate_response_is_a_json_body() -> None:
    async with opened() as client:
        session = client.begin()
        exchange = client.post(rpc_request("x", "ping"), session)
        assert exchange.json == {"jsonrpc": "2.0", "id": "x", "result": {}}


@pytest.mark.holds("C24")
@tidy
async def test_errors_of_a_request_have_status_200() -> None:
    def reject(request: Any, stream: Any) -> Any:
        raise RpcError.method_not_found("x")

    async def fail(request: Any, stream: Any) -> Any:
        raise RpcError(-5, "later")

    def break_down(request: Any, stream: Any) -> Any:
        raise ValueError("secret")

    def babble(request: Any, stream: Any) -> Any:
        return object()

    service = FakeMcpService(reject=reject, fail=fail, broken=break_down, babble=babble)
    async with opened(service) as client:
        session = client.begin()
        assert client.post(rpc_request(1, "reject"), session).code == -32601
        later = client.post(rpc_request(2, "fail"), session)
        for method in ("broken", "babble"):
            exchange = client.post(rpc_request(1, method), session)
            assert (exchange.status, exchange.code) == (200, -32603)
            assert b"secret" not in exchange.body
        await later.answered.wait()
        assert (later.status, later.code) == (200, -5)
        assert [incident.method for incident in client.reports] == ["broken", "babble"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("begun", [False, True])
@tidy
async def test_a_cancelled_request_is_answered_and_released(streaming: bool, begun: bool) -> None:
    blocked, limiter = BlockedMethod(), InFlightLimiter(1, 1)
    async with opened(FakeMcpService(wait=blocked), limiter) as client:
        session = client.begin()
        exchange = client.post(rpc_request(7), session)
        if begun:
            await blocked.started.wait()
        if begun and streaming:
            await blocked.streams[0].notify("a", {})
        assert limiter.refusal("p") is not None
        for _ in range(2):  # a repetition changes nothing
            assert (
                client.post(
                    rpc_notification("notifications/cancelled", requestId=7), session
                ).status
                == 202
            )
        await exchange.answered.wait()
        answer = exchange.data[-1] if begun and streaming else exchange.json
        assert (answer["id"], answer["error"]["code"]) == (7, REQUEST_CANCELLED)
        assert blocked.cancelled == 1
        assert limiter.refusal("p") is None
        assert (
            client.post(rpc_notification("notifications/cancelled", requestId=7), session).status
            == 202
        )


@tidy
async def test_a_slow_client_that_cancels_still_gets_the_response() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(wait=blocked)) as client:
        session = client.begin()
        exchange = client.post(rpc_request(7), session)
        await blocked.started.wait()
        await blocked.streams[0].notify("a", {})
        exchange.room.clear()
        for _ in range(3):
            client.post(rpc_notification("notifications/cancelled", requestId=7), session)
            await settle()
        exchange.room.set()
        await exchange.answered.wait()
        assert exchange.data[-1]["error"]["code"] == REQUEST_CANCELLED


@tidy
async def test_a_disconnect_does_not_cancel_the_request() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(wait=blocked)) as client:
        session = client.begin()
        exchange = client.post(rpc_request(7), session)
        await blocked.started.wait()
        exchange.disconnect()
        await settle()
        assert blocked.cancelled == 0
        blocked.unblocked.set()
        await settle()
        assert client.endpoint.streams == []


@tidy
async def test_a_duplicate_request_id_is_rejected() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(wait=blocked)) as client:
        session = client.begin()
        first = client.post(rpc_request(1), session)
        second = client.post(rpc_request(1), session)
        assert (second.status, second.code, second.json["id"]) == (400, -32600, None)
        third = client.post(rpc_request("1"), session)
        blocked.unblocked.set()
        await asyncio.gather(first.answered.wait(), third.answered.wait())
        assert (first.json["id"], third.json["id"]) == (1, "1")
        assert client.post(rpc_request(1), session).status == 0  # free again, and being answered


@pytest.mark.parametrize(("most", "status"), [((1, 9), 503), ((9, 1), 429)])
@tidy
async def test_a_request_above_the_limit_gets_retry_after(
    most: tuple[int, int], status: int
) -> None:
    blocked = BlockedMethod()
    service = FakeMcpService(V2025_03_26, wait=blocked)
    async with opened(service, InFlightLimiter(*most)) as client:
        session = client.begin()
        first = client.post(rpc_request(1), session)
        for message in (rpc_request(2), [rpc_request(3)]):
            exchange = client.post(message, session)
            assert (exchange.status, exchange.code) == (status, -32603)
            assert exchange.headers[b"retry-after"] == b"1"
        blocked.unblocked.set()
        await first.answered.wait()
        again = client.post(rpc_request(4), session)
        await again.answered.wait()
        assert again.status == 200


@tidy
async def test_a_notification_is_accepted_even_if_its_handler_raises() -> None:
    async with opened() as client:
        session = client.begin()
        assert client.post(rpc_notification("oops"), session).status == 202
        assert [incident.method for incident in client.reports] == ["oops"]


@tidy
async def test_responses_of_the_client_reach_the_waiting_request() -> None:
    async def consult(request: Any, stream: Any) -> Any:
        return await stream.call("roots/list", {})

    async with opened(FakeMcpService(V2025_06_18, consult=consult)) as client:
        session = client.begin()
        exchange = client.post(rpc_request(1, "consult"), session)
        await settle()
        (question,) = exchange.data
        answer = rpc_response(question["id"], roots=[])
        other = client.begin()
        assert client.post(answer, other).status == 202  # but it is not this session's question
        await settle()
        assert not exchange.ended
        accepted = client.post(answer, session)
        assert (accepted.status, accepted.body) == (202, b"")
        await exchange.answered.wait()
        assert exchange.data[1]["result"] == {"roots": []}


# Streams


@tidy
async def test_a_second_standalone_stream_is_rejected() -> None:
    async with opened() as client:
        session = client.begin()
        first, second = client.get(session), client.get(session)
        assert (first.status, second.status) == (200, 409)
        first.disconnect()
        await settle()
        assert client.get(session).status == 200


@tidy
async def test_a_stream_needs_an_accept_header() -> None:
    async with opened() as client:
        session = client.begin()
        assert client.get(session, accept="application/json").status == 406
        assert client.get(session, accept="").status == 406
        assert client.get(session, accept="*/*").status == 200


@tidy
async def test_a_client_can_resume_the_stream_of_its_request() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(V2025_06_18, wait=blocked)) as client:
        session = client.begin()
        cut_off = client.post(rpc_request(1), session)
        await blocked.started.wait()
        await blocked.streams[0].notify("a", {})
        await blocked.streams[0].notify("b", {})
        # Its connection is dead, but not reported so.
        back = client.get(session, last_event_id="2-1")
        assert cut_off.ended
        blocked.unblocked.set()
        await back.answered.wait()
        assert [entry.get("method") for entry in back.data] == ["b", None]
        assert back.data[1]["result"] == {"done": True}
        again = client.get(session, last_event_id="2-0")
        await again.answered.wait()
        assert [event.id for event in again.events] == ["2-1", "2-2", "2-3"]


@tidy
async def test_resuming_a_dropped_stream_is_rejected() -> None:
    async def chat(request: Any, stream: Any) -> Any:
        await stream.notify("log", {"much": "x" * 700_000})
        return {}

    async with opened(FakeMcpService(V2025_06_18, chat=chat)) as client:
        session = client.begin()
        for id in (1, 2):
            await client.post(rpc_request(id, "chat"), session).answered.wait()
        assert client.get(session, last_event_id="2-1").status == 400
        assert client.get(session, last_event_id="3-1").status == 200
        assert client.get(session, last_event_id="another's").status == 200


# The end


@pytest.mark.parametrize("streaming", [False, True])
@tidy
async def test_delete_ends_requests_in_both_directions_and_streams(streaming: bool) -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(V2025_06_18, wait=blocked)) as client:
        session = client.begin()
        listening = client.get(session)
        exchange = client.post(rpc_request(1), session)
        await blocked.started.wait()
        if streaming:
            await blocked.streams[0].notify("a", {})
        question = asyncio.create_task(client.service.sessions[0].stream.call("roots/list", {}))
        await settle()
        deleted = client.delete(session)
        assert (deleted.status, deleted.body) == (204, b"")
        await exchange.answered.wait()
        answer = exchange.data[-1] if streaming else exchange.json
        assert answer["error"]["code"] == REQUEST_CANCELLED
        assert listening.ended
        (why,) = await asyncio.gather(question, return_exceptions=True)
        assert str(why) == "the session has ended"
        assert client.service.closed == client.service.sessions
        assert client.post(rpc_request(1, "ping"), session).status == 404
        assert client.delete(session).status == 404


@tidy
async def test_closing_does_not_wait_for_clients_that_do_not_read() -> None:
    blocked = BlockedMethod()
    async with opened(FakeMcpService(V2025_06_18, wait=blocked), close_timeout=0.01) as client:
        session = client.begin()
        exchange = client.post(rpc_request(1), session)
        await blocked.started.wait()
        await blocked.streams[0].notify("a", {})
        exchange.room.clear()
        await client.endpoint.aclose()
        assert exchange.data[-1]["error"]["code"] == REQUEST_CANCELLED
