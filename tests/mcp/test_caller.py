"""Who is asking."""

from trunkline.jsonrpc import Raw, from_raw
from trunkline.mcp.caller import Caller

ALL = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}, "experimental": {}}


def test_a_caller_can_be_asked_what_it_declared_as_its_revision_has_it() -> None:
    new = Caller("local", "2025-11-25", ALL, Raw(b"{}"))
    assert new.askable == {"sampling", "elicitation.form", "roots"}
    assert from_raw(new.declares) == {"sampling": {}, "elicitation": {"form": {}}, "roots": {}}
    old = Caller("local", "2024-11-05", ALL, Raw(b"{}"))
    assert old.askable == {"sampling", "roots"}
    assert from_raw(old.declares) == {"sampling": {}, "roots": {}}


def test_who_declares_nothing_is_asked_nothing() -> None:
    caller = Caller("local", "2026-07-28", {"tools": {}}, Raw(b"{}"))
    assert (caller.askable, bytes(caller.declares)) == (frozenset(), b"{}")
