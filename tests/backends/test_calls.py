"""Calls under way: whose they are, and whom what a server says about them is for."""

import asyncio
from typing import Any

import pytest

from tests.backends.test_remote import Ear
from trunkline.backends.calls import Calls, Hearing
from trunkline.jsonrpc import (
    Due,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    from_raw,
    to_raw,
)
from trunkline.mcp.meta import Params


def progress(token: Any) -> Notification:
    params = {"progress": 1, "progressToken": token, "_meta": {"x": 1}}
    return Notification("notifications/progress", to_raw(params))


def wanting(token: Any) -> Params:
    """Return the params of a call whose client wants to hear of progress under a token, or not."""
    return Params(to_raw({} if token is None else {"_meta": {"progressToken": token}}))


def begin(calls: Calls, client: Ear, params: Params, answer: Due | None = None) -> int:
    """Have a call under way; return our token for it, 0 if its client wants to hear of nothing."""
    wish = calls.wish(params)
    calls.add(answer or Due(), client, wish=wish)
    return 0 if wish is None else wish.number


def test_progress_goes_to_its_call_under_the_clients_own_token() -> None:
    calls, one, two = Calls(), Ear(), Ear()
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
def test_progress_that_is_nobodys_is_nobodys(token: Any) -> None:
    calls = Calls()
    begin(calls, Ear(), wanting("t"))
    begin(calls, Ear(), wanting(None))
    assert calls.recipient(progress(token), None) is None
    assert calls.recipient(progress(2), None) is None  # whose client does not want to hear of it
    assert calls.recipient(Notification("notifications/progress", Raw(b"{}")), None) is None


class Deaf(Ear):
    """A client that is told, and never takes it in."""

    def __init__(self) -> None:
        super().__init__()
        self.being_told: list[asyncio.Task[None]] = []
        self.stages: list[str] = []

    def post(self, method: str, params: Any) -> Any:
        self.being_told.append(asyncio.create_task(self.hear()))
        return self.being_told[-1]

    async def hear(self) -> None:
        self.stages.append("told")
        await asyncio.Event().wait()


async def test_a_client_is_told_first_and_answered_then_though_it_never_listens() -> None:
    calls, one, two = Calls(), Deaf(), Deaf()
    answers = [Due(), Due(), Due()]
    clients = zip((one, one, two), answers, strict=True)
    numbers = [begin(calls, client, wanting("t"), answer) for client, answer in clients]
    answers[0].then(lambda _: one.stages.append("answered"))
    assert calls.post(progress(numbers[0]))
    for answer in answers:
        answer.settle(7)
    assert [answer.done for answer in answers] == [False, False, True]  # only its own wait
    async with asyncio.timeout(5):
        assert [await answer for answer in answers] == [7, 7, 7]
    assert one.stages == ["told", "answered"]
    assert not one.being_told[0].done()
    one.being_told[0].cancel()
    assert calls.only_client() is None


def test_a_question_is_about_a_call_in_whose_course_something_may_be_asked() -> None:
    calls, one, two = Calls(), Ear(), Ear()
    calls.add(Due(), one, may_ask=False)
    assert calls.whom_to_ask() is one  # whose else?
    calls.add(Due(), two)
    assert (calls.whom_to_ask(), calls.crowded) == (two, False)


def test_progress_that_comes_late_is_nobodys() -> None:
    calls = Calls()
    answer = Due()
    number = begin(calls, Ear(), wanting("t"), answer)
    answer.settle(None)
    assert calls.recipient(progress(number), None) is None
    assert begin(calls, Ear(), wanting("t")) != number


def test_whose_calls_these_are_is_known_while_they_are_all_one_conversations() -> None:
    calls, one, two = Calls(), Ear(), Ear()
    assert (calls.only_client(), calls.crowded) == (None, False)
    first, second = calls.add(Due(), one), calls.add(Due(), one)
    assert (calls.only_client(), calls.crowded) == (one, False)
    calls.add(Due(), two)
    assert (calls.only_client(), calls.crowded) == (None, True)
    first.settle(None)
    assert calls.crowded
    second.fail(ValueError("whatever came of it"))
    assert (calls.only_client(), calls.crowded) == (two, False)


async def test_who_is_behind_is_waited_for_on_the_stream_of_its_call_alone() -> None:
    calls, ear = Calls(), Ear()
    begin(calls, ear, wanting("t"))
    server = Noting()
    waited = Hearing(server, calls, ear).notified(progress(1))
    assert waited is not None
    assert ear.told_of.empty()
    await waited
    assert ear.told_of.get_nowait()[0] == "notifications/progress"
    assert calls.post(progress(1))
    assert ear.told_of.get_nowait()[0] == "notifications/progress"


def test_what_is_for_no_client_is_left_to_the_server() -> None:
    calls, server = Calls(), Noting()
    news = Notification("vendor/news", Raw(b"{}"))
    assert not calls.post(news)
    hearing = Hearing(server, calls, Ear())
    assert hearing.notified(news) is None
    assert hearing.called(Request(1, "roots/list")) == "asked"
    hearing.violated(RemoteProtocolError(RpcError.parse_error()))
    assert server.noted == ["vendor/news", "roots/list", "violated"]


class Noting:
    """A server that is heard, and what it said."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def called_by(self, request: Request, client: object) -> str:
        self.noted.append(request.method)
        return "asked"

    def take_note(self, notification: Notification) -> None:
        self.noted.append(notification.method)

    def violated(self, violation: RemoteProtocolError) -> None:
        self.noted.append("violated")
