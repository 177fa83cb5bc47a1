"""Calls in flight, and the client of each message about them."""

import asyncio
import math
from functools import partial
from typing import Any

import pytest

from tests.backends.test_session_server import Recorder
from tests.contexts import call_of, end_call
from tests.tasks import hang_guard
from trunkline.backends.in_flight import CallStreamHandler, InFlightCalls
from trunkline.gateway.call_context import CallContext
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


def progress(token: Any) -> Notification:
    params = {"progress": 1, "progressToken": token, "_meta": {"x": 1}}
    return Notification("notifications/progress", to_raw(params))


NO_TOKEN = Raw(b"{}")


def wanting(token: Any) -> Raw:
    """Return the params of a call with this progress token."""
    return to_raw({"_meta": {"progressToken": token}})


def begin(
    calls: InFlightCalls,
    client: Recorder,
    params: Raw = NO_TOKEN,
    answer: PendingResult | None = None,
    method: str = "tools/call",
) -> CallContext:
    """Add a call, which ends with its answer."""
    context = call_of(client, params, method=method)
    calls.subscribe_progress(context)
    context.answer = calls.add(context, answer or PendingResult())
    context.answer.add_callback(partial(end_call, context))
    return context


def test_progress_goes_to_its_call_under_the_clients_own_token() -> None:
    calls, one, two = InFlightCalls(), Recorder(), Recorder()
    for client, token in ((one, "t"), (two, 0), (one, "u")):
        number = begin(calls, client, wanting(token)).params.progress_token
        recipient = calls.recipient(progress(number), None)
        assert recipient is not None
        assert recipient[0] is client
        params = from_raw(recipient[1], object)
        assert params == {"progress": 1, "progressToken": token, "_meta": {"x": 1}}


def test_a_call_that_is_repeated_at_another_server_keeps_the_token_of_its_client() -> None:
    first, second, client = InFlightCalls(), InFlightCalls(), Recorder()
    begin(second, client, wanting("other"))  # so that the two servers count differently
    context = begin(first, client, wanting("t"))
    second.subscribe_progress(context)
    second.add(context, PendingResult())
    found = second.recipient(progress(context.params.progress_token), None)
    assert found is not None
    assert from_raw(found[1], dict[str, Any])["progressToken"] == "t"


@pytest.mark.parametrize("token", ["1", 1.0, True, 3, None, [1]])
def test_progress_of_an_unknown_call_is_dropped(token: Any) -> None:
    calls = InFlightCalls()
    begin(calls, Recorder(), wanting("t"))
    begin(calls, Recorder())
    assert calls.recipient(progress(token), None) is None
    assert calls.recipient(progress(2), None) is None  # whose client wants no progress
    assert calls.recipient(Notification("notifications/progress", Raw(b"{}")), None) is None


class CountingTimer:
    """Counts how often the timeout of a call is restarted."""

    def __init__(self) -> None:
        self.restarts = 0

    def restart(self, context: CallContext) -> None:
        self.restarts += 1


async def test_progress_on_the_stream_of_a_call_restarts_its_timeout() -> None:
    calls, client, server = InFlightCalls(), Recorder(), RecordingServer()
    for params, forwarded in ((NO_TOKEN, 0), (wanting("t"), 1)):
        context = begin(calls, client, params)
        context.timer = timer = CountingTimer()
        waited = CallStreamHandler(server, calls, client).notified(progress(context.sequence))
        if waited is not None:
            await waited
        assert (timer.restarts, client.notifications.qsize()) == (1, forwarded)


async def test_an_answer_of_a_client_restarts_the_timeouts_of_its_own_calls() -> None:
    calls, client, other = InFlightCalls(), Recorder(), Recorder()
    timers: list[CountingTimer] = []
    for each, queued_at in ((client, 0.0), (client, math.inf), (other, 0.0)):
        context = begin(calls, each)
        context.queued_at = queued_at
        context.timer = timer = CountingTimer()
        timers.append(timer)
    await calls.send_request(client, "roots/list", None)
    assert [timer.restarts for timer in timers] == [1, 0, 0]
    client.refusal = RpcError.method_not_found("roots/list")
    with pytest.raises(RpcError):  # a server could ask such questions for ever
        await calls.send_request(client, "roots/list", None)
    assert [timer.restarts for timer in timers] == [1, 0, 0]


class SlowListener(Recorder):
    """A client that never reads its notifications."""

    def __init__(self) -> None:
        super().__init__()
        self.sending: list[asyncio.Task[None]] = []
        self.stages: list[str] = []

    def queue_notification(self, method: str, params: Any) -> Any:
        self.sending.append(asyncio.create_task(self._deliver()))
        return self.sending[-1]

    async def _deliver(self) -> None:
        self.stages.append("notified")
        await asyncio.Event().wait()


async def test_a_notification_comes_before_the_answer_for_a_client_that_never_reads() -> None:
    calls, one, two = InFlightCalls(), SlowListener(), SlowListener()
    answers = [PendingResult(), PendingResult(), PendingResult()]
    clients = zip((one, one, two), answers, strict=True)
    begun = [begin(calls, client, wanting("t"), answer) for client, answer in clients]
    answers[0].add_callback(lambda _: one.stages.append("answered"))
    assert calls.route_notification(progress(begun[0].params.progress_token))
    for answer in answers:
        answer.set_result(7)
    assert [answer.done for answer in answers] == [False, False, True]  # only its own wait
    async with hang_guard():
        assert [await answer for answer in answers] == [7, 7, 7]
    assert one.stages == ["notified", "answered"]
    assert not one.sending[0].done()
    one.sending[0].cancel()
    assert calls.only_client() is None


def test_a_request_belongs_to_a_call_during_which_requests_are_allowed() -> None:
    calls, one, two = InFlightCalls(), Recorder(), Recorder()
    begin(calls, one, method="completion/complete")
    assert calls.request_target() is one  # there is no other client
    begin(calls, two)
    assert (calls.request_target(), calls.ambiguous) == (two, False)


def test_late_progress_is_dropped() -> None:
    calls = InFlightCalls()
    answer = PendingResult()
    number = begin(calls, Recorder(), wanting("t"), answer).params.progress_token
    answer.set_result(None)
    assert calls.recipient(progress(number), None) is None
    assert begin(calls, Recorder(), wanting("t")).params.progress_token != number


def test_the_client_of_a_message_is_known_while_all_calls_are_of_one_session() -> None:
    calls, one, two = InFlightCalls(), Recorder(), Recorder()
    assert (calls.only_client(), calls.ambiguous) == (None, False)
    first, second = PendingResult(), PendingResult()
    begin(calls, one, answer=first)
    begin(calls, one, answer=second)
    assert (calls.only_client(), calls.ambiguous) == (one, False)
    begin(calls, two)
    assert (calls.only_client(), calls.ambiguous) == (None, True)
    first.set_result(None)
    assert calls.ambiguous
    second.set_exception(ValueError("failed"))
    assert (calls.only_client(), calls.ambiguous) == (two, False)


async def test_only_the_stream_of_a_slow_clients_call_waits() -> None:
    calls, listener = InFlightCalls(), Recorder()
    token = begin(calls, listener, wanting("t")).sequence
    server = RecordingServer()
    waited = CallStreamHandler(server, calls, listener).notified(progress(token))
    assert waited is not None
    assert listener.notifications.empty()
    await waited
    assert listener.notifications.get_nowait()[0] == "notifications/progress"
    assert calls.route_notification(progress(token))
    assert listener.notifications.get_nowait()[0] == "notifications/progress"


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
