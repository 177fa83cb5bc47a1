"""Principals, callers and calls."""

from typing import Any

from trunkline.jsonrpc import Raw, from_raw
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller, Principal, cancelled_notification
from trunkline.mcp.params import META_PREFIX
from trunkline.mcp.versions import V2024_11_05, V2025_11_25, V2026_07_28


def test_the_subject_is_the_id_unless_set() -> None:
    assert LOCAL_PRINCIPAL.subject == LOCAL_PRINCIPAL.id == "local"
    assert Principal("key:1", "ci").subject == "ci"


def test_records_show_the_subject_unless_another_label_is_set() -> None:
    assert Principal("key:1", "ci").label == "ci"
    assert Principal("x", "ann", label="local as ann").label == "local as ann"


def test_principals_with_other_roles_are_not_equal() -> None:
    assert Principal("a", roles=("dev",)) != Principal("a", roles=("admin",))
    assert Principal("a", roles=("dev",)) == Principal("a", roles=("dev",))


ALL = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}, "experimental": {}}


def declared_capabilities(caller: Caller) -> Any:
    """Return the client capabilities in a caller's envelope."""
    return from_raw(caller.envelope, dict[str, Any])[f"{META_PREFIX}clientCapabilities"]


def test_a_caller_has_the_declared_features_of_its_revision() -> None:
    new = Caller(Principal("local"), V2025_11_25, ALL, Raw(b"{}"))
    assert new.client_features == {"sampling", "elicitation.form", "roots"}
    assert declared_capabilities(new) == {"sampling": {}, "elicitation": {"form": {}}, "roots": {}}
    old = Caller(Principal("local"), V2024_11_05, ALL, Raw(b"{}"))
    assert old.client_features == {"sampling", "roots"}
    assert declared_capabilities(old) == {"sampling": {}, "roots": {}}


def test_a_caller_without_capabilities_has_no_features() -> None:
    caller = Caller(Principal("local"), V2026_07_28, {"tools": {}}, Raw(b"{}"))
    assert (caller.client_features, declared_capabilities(caller)) == (frozenset(), {})


def test_a_cancelled_notification_names_the_request_id() -> None:
    assert cancelled_notification(41).encode() == (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled",'
        b'"params":{"requestId":41,"reason":"cancelled"}}'
    )
