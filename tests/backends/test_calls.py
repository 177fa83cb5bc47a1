"""Calls under way: whose they are, and whom what a server says about them is for."""

from typing import Any

import pytest

from tests.backends.test_remote import Ear
from trunkline.backends.calls import Calls
from trunkline.jsonrpc import Notification, Raw, from_raw, to_raw


def progress(token: Any) -> Notification:
    params = {"progress": 1, "progressToken": token, "_meta": {"x": 1}}
    return Notification("notifications/progress", to_raw(params))


def test_progress_goes_to_its_call_under_the_clients_own_token() -> None:
    calls, one, two = Calls(), Ear(), Ear()
    for client, token in ((one, "t"), (two, 0), (one, "u")):
        number = calls.next_number
        assert calls.begin(client, token) == number
        told = calls.progress(progress(number))
        assert told is not None
        assert told[0] is client
        params = from_raw(told[1], object)
        assert params == {"progress": 1, "progressToken": token, "_meta": {"x": 1}}


@pytest.mark.parametrize("token", ["1", 1.0, True, 3, None, [1]])
def test_progress_that_is_nobodys_is_nobodys(token: Any) -> None:
    calls = Calls()
    calls.begin(Ear(), "t")
    calls.begin(Ear(), None)
    assert calls.progress(progress(token)) is None
    assert calls.progress(progress(2)) is None  # whose client does not want to hear of it
    assert calls.progress(Notification("notifications/progress", Raw(b"{}"))) is None


def test_progress_that_comes_late_is_nobodys() -> None:
    calls = Calls()
    number = calls.begin(Ear(), "t")
    calls.end(number)
    assert calls.progress(progress(number)) is None
    assert calls.next_number != number


def test_whose_calls_these_are_is_known_while_they_are_all_one_conversations() -> None:
    calls, one, two = Calls(), Ear(), Ear()
    assert (calls.only_client(), calls.crowded) == (None, False)
    first = calls.begin(one, None)
    second = calls.begin(one, None)
    assert (calls.only_client(), calls.crowded) == (one, False)
    calls.begin(two, None)
    assert (calls.only_client(), calls.crowded) == (None, True)
    calls.end(first)
    assert calls.crowded
    calls.end(second)
    assert (calls.only_client(), calls.crowded) == (two, False)
