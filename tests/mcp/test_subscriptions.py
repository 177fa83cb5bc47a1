"""Subscriptions: what a client may ask to be told of."""

from typing import Any

import pytest

from trunkline.jsonrpc import Raw, RpcError, to_raw
from trunkline.mcp.meta import Params
from trunkline.mcp.subscriptions import (
    LIST_CHANGED,
    MAX_URIS,
    Wishes,
    announced,
    followed_as,
    honoured,
    wishes,
)


@pytest.mark.parametrize(
    "notifications",
    [
        b"[]",
        b"null",
        b"7",
        b'"toolsListChanged"',
        b'{"toolsListChanged":1}',
        b'{"toolsListChanged":null}',
        b'{"toolsListChanged":"true"}',
        b'{"promptsListChanged":1e999}',
        b'{"toolsListChanged":true,"toolsListChanged":true}',
        b'{"resourceSubscriptions":"x:"}',
        b'{"resourceSubscriptions":{"x:":1}}',
        b'{"resourceSubscriptions":[1]}',
        b'{"resourceSubscriptions":null}',
        b'{"resourceSubscriptions":["\\ud800"]}',
        b'{"resourceSubscriptions":[1e999]}',
    ],
)
def test_wishes_that_make_no_sense_are_refused(notifications: bytes) -> None:
    with pytest.raises(RpcError) as caught:
        Wishes(Params(Raw(b'{"notifications":' + notifications + b"}")))
    assert caught.value.code == -32602


def test_wishes_must_be_there_and_not_be_too_many() -> None:
    with pytest.raises(RpcError, match="missing 'notifications'"):
        Wishes(Params(to_raw({})))
    uris = [f"x:{n}" for n in range(MAX_URIS)]
    made = Wishes(Params(to_raw({"notifications": {"resourceSubscriptions": uris}})))
    assert made.uris == tuple(uris)
    with pytest.raises(RpcError, match="at most"):
        Wishes(Params(to_raw({"notifications": {"resourceSubscriptions": [*uris, "y:"]}})))


def test_a_wish_that_comes_twice_is_one() -> None:
    wishes = {"resourceSubscriptions": ["a:", "b:", "a:"], "toolsListChanged": False, "vendor": 1}
    made = Wishes(Params(to_raw({"notifications": wishes})))
    assert (made.uris, made.kinds) == (("a:", "b:"), set())


def test_who_follows_something_follows_what_is_in_it() -> None:
    followed = {"p:1": ("a", "x:1"), "d/": ("a", "x:d/")}
    for native, known in (
        ("x:1", "p:1"),
        ("x:1/deep", "p:1/deep"),
        ("x:d/e", "d/e"),
        ("x:12", None),
        ("x:", None),
    ):
        assert followed_as(followed, "a", native) == known
        assert followed_as(followed, "b", native) is None


def test_what_is_written_is_what_is_read() -> None:
    said = wishes(["tools", "prompts"], ["a:", "b:"])
    assert list(said) == ["promptsListChanged", "toolsListChanged", "resourceSubscriptions"]
    read = Wishes(Params(to_raw({"notifications": said})))
    assert (read.kinds, read.uris) == ({"tools", "prompts"}, ("a:", "b:"))
    assert wishes([], []) == {}


@pytest.mark.parametrize("odd", [None, True, 1, "x", [], {}, {"listChanged": 1}])
def test_only_what_a_server_says_plainly_is_announced(odd: Any) -> None:
    declared = {"tools": {"listChanged": True}, "prompts": odd, "logging": {"listChanged": True}}
    assert announced(declared) == ["tools"]


@pytest.mark.parametrize(
    ("acknowledged", "covered"),
    [
        ({}, set[str]()),
        ({"notifications": {}}, set[str]()),
        ({"notifications": {"resourceSubscriptions": ["a:", "a:", "b:"]}}, {"a:", "b:"}),
        ({"notifications": {"resourceSubscriptions": 1}}, set[str]()),
        ({"notifications": 1}, set[str]()),
    ],
)
def test_an_acknowledgement_covers_what_it_names(acknowledged: Any, covered: set[str]) -> None:
    assert honoured(Params(to_raw(acknowledged))) == covered


def test_there_is_a_notification_for_each_kind() -> None:
    assert LIST_CHANGED["notifications/tools/list_changed"] == "tools"
    assert sorted(LIST_CHANGED.values()) == ["prompts", "resources", "tools"]
