"""The table of methods, held against what the revisions define."""

import pytest

from trunkline.mcp import methods
from trunkline.mcp.methods import Method, RoutingMode
from trunkline.mcp.versions import (
    REVISIONS,
    SESSION_REVISIONS,
    STATELESS_REVISIONS,
    V2025_06_18,
    V2025_11_25,
)

TABLES = [
    methods.CLIENT_REQUESTS,
    methods.CLIENT_NOTIFICATIONS,
    methods.SERVER_REQUESTS,
    methods.SERVER_NOTIFICATIONS,
]


@pytest.mark.parametrize("table", TABLES)
def test_a_method_is_listed_under_its_own_name_and_known_revisions(
    table: dict[str, Method],
) -> None:
    for name, method in table.items():
        assert method.name == name
        assert set(method.revisions) <= set(REVISIONS)
        assert method.revisions == tuple(r for r in REVISIONS if r in method.revisions)


def test_notifications_are_named_so_and_requests_are_not() -> None:
    for requests in (methods.CLIENT_REQUESTS, methods.SERVER_REQUESTS):
        assert not [name for name in requests if name.startswith("notifications/")]
    for notifications in (methods.CLIENT_NOTIFICATIONS, methods.SERVER_NOTIFICATIONS):
        assert [name for name in notifications if name.startswith("notifications/")] == list(
            notifications
        )


def test_the_stateless_protocol_has_no_initialize_ping_or_server_requests() -> None:
    gone = {"initialize", "ping", "logging/setLevel", "resources/subscribe"}
    gone |= set(methods.SERVER_REQUESTS)
    for table in TABLES[:1] + TABLES[2:3]:
        for name in gone & set(table):
            assert table[name].revisions == tuple(
                v for v in SESSION_REVISIONS if v in table[name].revisions
            )


def test_elicitation_came_with_the_third_revision() -> None:
    assert methods.SERVER_REQUESTS["elicitation/create"].revisions == (V2025_06_18, V2025_11_25)


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
        assert methods.CLIENT_REQUESTS[name].revisions == STATELESS_REVISIONS
    acknowledged = methods.SERVER_NOTIFICATIONS["notifications/subscriptions/acknowledged"]
    assert acknowledged.revisions == STATELESS_REVISIONS


def test_no_table_contains_tasks() -> None:
    assert not [name for table in TABLES for name in table if "task" in name]
