"""The client of a call: a backend sees no difference between sessions and stateless requests."""

import pytest

from tests.gateway.servers import hello, make_gateway, running, session_client
from tests.gateway.stateless_callers import RecordingStream, StatelessCaller, stateless_caller
from trunkline.backends.functions import FunctionBackend
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import PendingResult, Raw, Request, RpcError, to_raw
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2025_11_25, V2026_07_28


class AskingServer(FunctionBackend):
    """A backend that records its clients, and sends them a request and a notification."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[DownstreamClient] = []

        @self.tool("t")
        def t() -> str:
            return "done"

    def call(self, context: CallContext) -> PendingResult:
        return PendingResult.from_awaitable(self._call(context))

    async def _call(self, context: CallContext) -> Raw:
        client = context.client
        self.clients.append(client)
        await client.notify("notifications/message", {"level": "error", "data": "text"})
        with pytest.raises(RpcError):
            await client.send_request("sampling/createMessage", {})
        assert client.caller == context.caller
        return await super().call(context)


async def test_a_session_is_one_call_group_and_a_stateless_request_is_another() -> None:
    backend = AskingServer()

    async def connect(listener: BackendListener) -> Backend:
        return backend

    gateway = make_gateway()
    gateway.add_upstream(UpstreamSettings("s", "s"), connect)
    async with running(gateway), session_client(gateway) as session_user:
        client: StatelessCaller = await stateless_caller(gateway)
        (session,) = gateway.sessions
        for _ in range(2):
            await session_user.call("s__t")
            await client.call("s__t")
        outcome = session.answer(
            Request(9, "tools/call", to_raw({"name": "s__t"})), RecordingStream()
        )
        await outcome
        first, one, second, two, with_stream = backend.clients
        assert first.call_group is second.call_group is with_stream.call_group
        assert len({first.call_group, one.call_group, two.call_group}) == 3
        assert [c.caller.revision for c in (first, one)] == [V2025_11_25, V2026_07_28]
        assert [c.caller.principal.id for c in (first, one)] == ["local", "poster"]


async def test_messages_about_a_call_use_its_own_stream() -> None:
    backend = AskingServer()

    async def connect(listener: BackendListener) -> Backend:
        return backend

    gateway = make_gateway()
    gateway.add_upstream(UpstreamSettings("s", "s"), connect)
    session_stream, request_stream = RecordingSessionStream(), RecordingStream()
    async with running(gateway):
        session = gateway.open_session(session_stream)
        session.answer(Request(1, "initialize", to_raw(hello())), request_stream)
        await gateway.registry.wait_complete()
        session.operational = True
        await session.answer(Request(2, "tools/call", to_raw({"name": "s__t"})), request_stream)
        assert [method for method, _ in request_stream.take_notifications()] == [
            "notifications/message"
        ]
        assert session_stream.take_notifications() == []
        (client,) = backend.clients
        client.queue_notification("notifications/message", {"level": "error"})
        assert (await request_stream.next_notification())[0] == "notifications/message"
        await gateway.close_session(session)
        assert session_stream.take_notifications() == []


class RecordingSessionStream(RecordingStream):
    def cancel_request(self, request_id: object) -> bool:
        return False


def test_a_caller_gets_no_log_messages_unless_it_asks_for_them() -> None:
    assert Caller(Principal("p"), V2026_07_28, {}, Raw(b"{}")).log_level is None
