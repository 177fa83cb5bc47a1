"""Subscription filters and log levels."""

from typing import Any

import pytest

from trunkline.jsonrpc import UNSET, Raw, RpcError, to_raw
from trunkline.mcp.notifications import (
    LOG_LEVELS,
    MAX_SUBSCRIBED_URIS,
    SubscriptionFilter,
    acknowledged_uris,
    announced_list_changes,
    meets_log_level,
    most_verbose_level,
    subscribed_uri,
    write_subscription_filter,
)
from trunkline.mcp.params import Params


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
def test_malformed_subscription_filters_are_rejected(notifications: bytes) -> None:
    with pytest.raises(RpcError) as caught:
        SubscriptionFilter(Params(Raw(b'{"notifications":' + notifications + b"}")))
    assert caught.value.code == -32602


def test_a_subscription_filter_is_required_and_bounded() -> None:
    with pytest.raises(RpcError, match="missing 'notifications'"):
        SubscriptionFilter(Params(to_raw({})))
    uris = [f"x:{n}" for n in range(MAX_SUBSCRIBED_URIS)]
    made = SubscriptionFilter(Params(to_raw({"notifications": {"resourceSubscriptions": uris}})))
    assert made.uris == tuple(uris)
    with pytest.raises(RpcError, match="at most"):
        SubscriptionFilter(
            Params(to_raw({"notifications": {"resourceSubscriptions": [*uris, "y:"]}}))
        )


def test_a_uri_that_is_listed_twice_counts_once() -> None:
    filters = {"resourceSubscriptions": ["a:", "b:", "a:"], "toolsListChanged": False, "vendor": 1}
    made = SubscriptionFilter(Params(to_raw({"notifications": filters})))
    assert (made.uris, made.kinds) == (("a:", "b:"), set())


def test_a_subscription_includes_contained_resources() -> None:
    followed = {"p:1": ("a", "x:1"), "d/": ("a", "x:d/")}
    for native, is_known in (
        ("x:1", "p:1"),
        ("x:1/deep", "p:1/deep"),
        ("x:d/e", "d/e"),
        ("x:12", None),
        ("x:", None),
    ):
        assert subscribed_uri(followed, "a", native) == is_known
        assert subscribed_uri(followed, "b", native) is None


def test_what_is_written_can_be_read_back() -> None:
    sent = write_subscription_filter(["tools", "prompts"], ["a:", "b:"])
    assert list(sent) == ["promptsListChanged", "toolsListChanged", "resourceSubscriptions"]
    read = SubscriptionFilter(Params(to_raw({"notifications": sent})))
    assert (read.kinds, read.uris) == ({"tools", "prompts"}, ("a:", "b:"))
    assert write_subscription_filter([], []) == {}


@pytest.mark.parametrize("odd", [None, True, 1, "x", [], {}, {"listChanged": 1}])
def test_only_true_flags_announce_changes(odd: Any) -> None:
    declared = {"tools": {"listChanged": True}, "prompts": odd, "logging": {"listChanged": True}}
    assert announced_list_changes(declared) == ["tools"]


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
def test_an_acknowledgement_covers_the_uris_it_names(acknowledged: Any, covered: set[str]) -> None:
    assert acknowledged_uris(Params(to_raw(acknowledged))) == covered


def test_the_most_verbose_level_satisfies_all_clients() -> None:
    assert most_verbose_level({"error", "info", "emergency"}) == "info"
    assert most_verbose_level({"alert"}) == "alert"
    assert most_verbose_level(set()) is None


@pytest.mark.parametrize("wanted", LOG_LEVELS)
def test_messages_pass_from_the_minimum_level_on(wanted: str) -> None:
    covered = [level for level in LOG_LEVELS if meets_log_level({"level": level}, wanted)]
    assert covered == list(LOG_LEVELS[LOG_LEVELS.index(wanted) :])


def test_without_a_minimum_all_messages_pass() -> None:
    assert meets_log_level({"level": "debug"}, None)


@pytest.mark.parametrize(
    "params",
    [
        UNSET,
        None,
        {},
        [],
        {"level": "strange"},
        {"level": 3},
        {"level": ["debug"]},
        {"level": None},
        Raw(b'{"level":1e999}'),
        Raw(b'{"level":"debug","level":"debug"}'),
    ],
)
def test_messages_without_a_known_level_pass(params: Any) -> None:
    assert meets_log_level(params, "emergency")
