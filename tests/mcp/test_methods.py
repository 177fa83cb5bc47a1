"""The table of methods, held against what the revisions define."""

import pytest

from trunkline.mcp import methods
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.methods import Method, ResultShape, RoutingMode, undefined_method
from trunkline.mcp.versions import (
    REVISIONS,
    SESSION_REVISIONS,
    STATELESS_REVISIONS,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
)

TABLES = [
    methods.CLIENT_REQUESTS,
    methods.CLIENT_NOTIFICATIONS,
    methods.SERVER_REQUESTS,
    methods.SERVER_NOTIFICATIONS,
]


def names_where(condition: str) -> set[str]:
    """Return the client requests whose row has something."""
    return {name for name, row in methods.CLIENT_REQUESTS.items() if getattr(row, condition)}


@pytest.mark.parametrize("table", TABLES)
def test_a_method_is_listed_under_its_own_name_and_known_revisions(
    table: dict[str, Method],
) -> None:
    for name, method in table.items():
        assert method.name == name
        assert method.revisions <= set(REVISIONS)


def test_notifications_are_named_so_and_requests_are_not() -> None:
    for requests in (methods.CLIENT_REQUESTS, methods.SERVER_REQUESTS):
        assert not [name for name in requests if name.startswith("notifications/")]
    for notifications in (methods.CLIENT_NOTIFICATIONS, methods.SERVER_NOTIFICATIONS):
        assert [name for name in notifications if name.startswith("notifications/")] == list(
            notifications
        )


def test_the_stateless_protocol_has_no_initialize_ping_or_subscribe() -> None:
    gone = {"initialize", "ping", "logging/setLevel", "resources/subscribe"}
    for table in TABLES[:1] + TABLES[2:3]:
        for name in gone & set(table):
            assert table[name].revisions <= set(SESSION_REVISIONS)


def test_elicitation_came_with_the_third_revision() -> None:
    assert methods.SERVER_REQUESTS["elicitation/create"].revisions == {
        V2025_06_18,
        V2025_11_25,
        V2026_07_28,
    }


def test_methods_with_a_name_go_to_the_backend_that_has_it() -> None:
    ways = {name: method.mode for name, method in methods.CLIENT_REQUESTS.items()}
    assert {name for name, way in ways.items() if way is RoutingMode.BY_NAME} == {
        "tools/call",
        "prompts/get",
    }
    assert ways["resources/read"] is RoutingMode.BY_URI
    assert ways["completion/complete"] is RoutingMode.BY_REF


def test_the_stateless_protocol_has_discover_and_listen_instead() -> None:
    for name in ("server/discover", "subscriptions/listen"):
        assert methods.CLIENT_REQUESTS[name].revisions == set(STATELESS_REVISIONS)
    acknowledged = methods.SERVER_NOTIFICATIONS["notifications/subscriptions/acknowledged"]
    assert acknowledged.revisions == set(STATELESS_REVISIONS)


def test_a_client_needs_the_capability_of_a_server_request_or_a_part_of_it() -> None:
    assert {name: row.client_features for name, row in methods.SERVER_REQUESTS.items()} == {
        "ping": (),
        "roots/list": ("roots",),
        "sampling/createMessage": ("sampling", "sampling.tools"),
        "elicitation/create": ("elicitation.form", "elicitation.url"),
    }


def test_methods_about_tasks_are_defined_also_if_they_have_no_row() -> None:
    for name in ("tasks/get", "tasks/list", "notifications/tasks", "notifications/tasks/status"):
        assert methods.is_defined(name)
    assert methods.is_defined("roots/list")
    assert not methods.is_defined("vendor/tasks")


def test_no_table_contains_tasks() -> None:
    assert not [name for table in TABLES for name in table if "task" in name]


def test_every_kind_of_feature_has_a_list_and_a_notification_of_changes() -> None:
    for kind in FeatureKind:
        row = methods.CLIENT_REQUESTS[kind.method]
        assert (row.mode, row.kind, row.capability) == (RoutingMode.MERGED, kind, kind.capability)
        changed = methods.SERVER_NOTIFICATIONS[kind.change_notification]
        assert changed.mode is RoutingMode.MERGED
        assert changed.kind is not None
        assert changed.kind.capability == kind.capability


def test_calls_are_the_requests_that_go_to_the_owner_of_their_target() -> None:
    assert names_where("is_call") == {
        "tools/call",
        "prompts/get",
        "resources/read",
        "completion/complete",
    }
    rows = methods.CLIENT_REQUESTS
    targets = {name: row.target for name, row in rows.items() if row.target is not None}
    assert targets == {
        "tools/call": "name",
        "prompts/get": "name",
        "resources/read": "uri",
        "resources/subscribe": "uri",
        "resources/unsubscribe": "uri",
        "completion/complete": "ref",
    }
    assert {name for name, row in rows.items() if row.header_member} == {
        "tools/call",
        "prompts/get",
        "resources/read",
    }


def test_what_a_result_may_be_follows_the_specification() -> None:
    assert names_where("may_request_input") == {"tools/call", "prompts/get", "resources/read"}
    assert names_where("may_be_task") == {"tools/call"}
    lists = {kind.method for kind in FeatureKind}
    assert names_where("is_cacheable") == {"server/discover", "resources/read", *lists}
    shapes = {name: row.result for name, row in methods.CLIENT_REQUESTS.items()}
    assert {name for name, shape in shapes.items() if shape is ResultShape.EMPTY} == {
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
    }


def test_an_undefined_method_has_a_row_that_promises_nothing() -> None:
    row = undefined_method("x/y")
    assert (row.name, row.mode) == ("x/y", RoutingMode.PASSTHROUGH)
    assert row.target is None
    for condition in ("is_call", "is_cacheable", "may_request_input", "may_be_task"):
        assert not getattr(row, condition)


def test_requests_about_tasks_are_only_sent() -> None:
    for name, row in methods.TASK_REQUESTS.items():
        assert row.mode is RoutingMode.REFUSED
        assert name not in methods.CLIENT_REQUESTS
    assert methods.TASK_REQUESTS["tasks/get"].header_member == "taskId"


def test_a_receiver_has_a_method_of_its_revision_whose_capability_it_declared() -> None:
    row = Method("x/y", RoutingMode.BROADCAST, frozenset((V2025_11_25,)), "x")
    assert row.is_known_to(V2025_11_25, {"x": {}})
    assert not row.is_known_to(V2025_11_25, {"y": {}})
    assert not row.is_known_to(V2025_06_18, {"x": {}})
    assert Method("x/y", RoutingMode.BROADCAST, row.revisions).is_known_to(V2025_11_25, ())
