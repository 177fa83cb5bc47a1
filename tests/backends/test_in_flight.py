"""Calls in flight, and the client of each message about them."""

import asyncio
from typing import Any

import pytest

from tests.backends.test_session_server import Recorder
from trunkline.backends.in_flight import CallStreamHandler, InFlightCalls
from trunkline.jsonrpc import (
    Notification,
    PendingResult,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    from_raw,
    to_raw,
)
from trunkline.mcp.params import Params


def progress(token: Any) -> Notification:
    params = {"progress": 1, "progressToken": token, "_meta": {"x": 1}}
    return Notification("notifications/progress", to_raw(params))


def wanting(token: Any) -> Params:
    """Return the params of a call with this progress token, if any."""
    return Params(to_raw({} if token is None else {"_meta": {"progressToken": token}}))


def begin(
    calls: InFlightCalls,
    client: Recorder,
    params: Params,
    answer: PendingResult | None = None,
) -> int:
    """Add a call; return the gateway's progress token for it, or 0."""
    wish = calls.subscribe_progress(params)
    calls.add(answer or PendingResult(), client, progress=wish)
    return 0 if wish is None else wish.number


def test_progress_goes_to_its_call_under_the_clients_own_token() -> None:
    calls, one, two = InFlightCalls(), Recorder(), Recorder()
    for client, token in ((one, "t"), (two, 0), (one, "u")):
        params = wanting(token)
        number = begin(calls, client, params)
        assert params.progress_token == number
        told = calls.recipient(progress(number), None)
        assert told is not None
        assert told[0] is client
        params = from_raw(told[1], object)
        assert params == {"progress": 1, "progressToken": token, "_meta": {"x": 1}}


@pytest.mark.parametrize("token", ["1", 1.0, True, 3, None, [1]])
def test_progress_of_an_unknown_call_is_dropped(token: Any) -> None:
    calls = InFlightCalls()
    begin(calls, Recorder(), wanting("t"))
    begin(calls, Recorder(), wanting(None))
    assert calls.recipient(progress(token), None) is None
    assert calls.recipient(progress(2), None) is None  # whose client does not want to hear of it
    assert calls.recipient(Notification("notifications/progress", Raw(b"{}")), None) is None


class SlowListener(Recorder):
    """A client that never reads its notifications."""

    def __init__(self) -> None:
        super().__init__()
        self.being_told: list[asyncio.Task[None]] = []
        self.stages: list[str] = []

    def queue_notification(self, method: str, params: Any) -> Any:
        self.being_told.append(asyncio.create_task(self.hear()))
        return self.being_told[-1]

    async def hear(self) -> None:
        self.stages.append("told")
        await asyncio.Event().wait()


async def test_a_notification_comes_before_the_answer_for_a_client_that_never_reads() -> None:
    calls, one, two = InFlightCalls(), SlowListener(), SlowListener()
    answers = [PendingResult(), PendingResult(), PendingResult()]
    clients = zip((one, one, two), answers, strict=True)
    numbers = [begin(calls, client, wanting("t"), answer) for client, answer in clients]
    answers[0].add_callback(lambda _: one.stages.append("answered"))
    assert calls.route_notification(progress(numbers[0]))
    for answer in answers:
        answer.set_result(7)
    assert [answer.done for answer in answers] == [False, False, True]  # only its own wait
    async with asyncio.timeout(5):
        assert [await answer for answer in answers] == [7, 7, 7]
    assert one.stages == ["told", "answered"]
    assert not one.being_told[0].done()
    one.being_told[0].cancel()
    assert calls.only_client() is None


def test_a_request_belongs_to_a_call_during_which_requests_are_allowed() -> None:
    calls, one, two = InFlightCalls(), Recorder(), Recorder()
    calls.add(PendingResult(), one, may_ask=False)
    assert calls.request_target() is one  # whose else?
    calls.add(PendingResult(), two)
    assert (calls.request_target(), calls.ambiguous) == (two, False)


def test_late_progress_is_dropped() -> None:
    calls = InFlightCalls()
    answer = PendingResult()
    number = begin(calls, Recorder(), wanting("t"), answer)
    answer.set_result(None)
    assert calls.recipient(progress(number), None) is None
    assert begin(calls, Recorder(), wanting("t")) != number


def test_the_client_of_a_message_is_known_while_all_calls_are_of_one_session() -> None:
    calls, one, two = InFlightCalls(), Recorder(), Recorder()
    assert (calls.only_client(), calls.ambiguous) == (None, False)
    first, second = calls.add(PendingResult(), one), calls.add(PendingResult(), one)
    assert (calls.only_client(), calls.ambiguous) == (one, False)
    calls.add(PendingResult(), two)
    assert (calls.only_client(), calls.ambiguous) == (None, True)
    first.set_result(None)
    assert calls.ambiguous
    second.set_exception(ValueError("whatever came of it"))
    assert (calls.only_client(), calls.ambiguous) == (two, False)


async def test_only_the_stream_of_a_slow_clients_call_waits() -> None:
    calls, listener = InFlightCalls(), Recorder()
    begin(calls, listener, wanting("t"))
    server = RecordingServer()
    waited = CallStreamHandler(server, calls, listener).notified(progress(1))
    assert waited is not None
    assert listener.told_of.empty()
    await waited
    assert listener.told_of.get_nowait()[0] == "notifications/progress"
    assert calls.route_notification(progress(1))
    assert listener.told_of.get_nowait()[0] == "notifications/progress"


def test_notifications_for_no_client_go_to_the_server_handler() -> None:
    calls, server = InFlightCalls(), RecordingServer()
    news = Notification("vendor/news", Raw(b"{}"))
    assert not calls.route_notification(news)
    hearing = CallStreamHandler(server, calls, Recorder())
    assert hearing.notified(news) is None
    assert hearing.called(Request(1, "roots/list")) == "asked"
    hearing.violated(RemoteProtocolError(RpcError.parse_error()))
    assert server.noted == ["vendor/news", "roots/list", "violated"]


class RecordingServer:
    """Records the messages of a server."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def on_server_request(self, request: Request, client: object) -> str:
        self.noted.append(request.method)
        return "asked"

    def on_server_notification(self, notification: Notification) -> None:
        self.noted.append(notification.method)

    def violated(self, violation: RemoteProtocolError) -> None:
        self.noted.append("violated")
