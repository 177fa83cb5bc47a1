"""The client of one stateless call: its notifications, and what is dropped without a request."""

import pytest

from tests.gateway.stateless_callers import RecordingStream
from trunkline.gateway.stateless import StatelessClient
from trunkline.jsonrpc import PendingResult, Raw, RpcError, to_raw
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2026_07_28

PROGRESS, MESSAGE = "notifications/progress", "notifications/message"


def caller(level: str | None = None) -> Caller:
    return Caller(Principal("p"), V2026_07_28, {}, Raw(b"{}"), level)


async def test_a_client_receives_the_notifications_it_asked_for() -> None:
    for level, expected in ((None, [PROGRESS]), ("info", [PROGRESS, MESSAGE])):
        stream = RecordingStream()
        client = StatelessClient(caller(level), stream)
        await client.notify(PROGRESS, {"progressToken": 1, "progress": 1})
        await client.notify(MESSAGE, to_raw({"level": "warning", "data": 1}))
        await client.notify(MESSAGE, to_raw({"level": "debug", "data": 1}))
        await client.notify("notifications/tools/list_changed", None)
        assert [method for method, _ in stream.take_notifications()] == expected


async def test_a_returning_client_gets_progress_under_its_new_token_or_none() -> None:
    first, second, third = RecordingStream(), RecordingStream(), RecordingStream()
    client = StatelessClient(caller(), first)
    news = {"progressToken": "a", "progress": 1}
    await client.notify(PROGRESS, news)
    client.attach_request(caller(), second, "b")
    await client.notify(PROGRESS, news)
    client.attach_request(caller(), third, None)
    await client.notify(PROGRESS, news)
    tokens = [
        [found["progressToken"] for _, found in p.take_notifications()]
        for p in (first, second, third)
    ]
    assert tokens == [["a"], ["b"], []]


async def test_a_client_without_a_suspended_call_cannot_be_asked() -> None:
    client = StatelessClient(caller(), RecordingStream())
    assert (client.call_group, client.has_pending_requests) == (client, False)
    with pytest.raises(RpcError) as refused:
        await client.send_request("roots/list", None)
    assert refused.value.code == -32601


async def test_a_failure_for_lack_of_a_capability_names_it() -> None:
    failure, nothing = RpcError(-5, "no"), to_raw({})
    for method, params, code in (
        ("roots/list", nothing, -32021),
        ("roots/list", None, -5),
        ("vendor/question", nothing, -5),
    ):
        client, call = StatelessClient(caller(), stream := RecordingStream()), PendingResult()
        with pytest.raises(RpcError):
            await client.send_request(method, params)
        call.add_callback(client.finish)
        call.set_exception(failure)
        assert isinstance(call.error, RpcError)
        assert call.error.code == code
        await client.notify(PROGRESS, {"progressToken": 1, "progress": 1})
        assert stream.take_notifications() == []
