"""Who is asking."""

from typing import Any

from trunkline.jsonrpc import Raw, from_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import PREFIX
from trunkline.mcp.principal import Principal

ALL = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}, "experimental": {}}


def told(caller: Caller) -> Any:
    """Return what a server of the envelope era is told that a caller can."""
    return from_raw(caller.envelope, dict[str, Any])[f"{PREFIX}clientCapabilities"]


def test_a_caller_can_be_asked_what_it_declared_as_its_revision_has_it() -> None:
    new = Caller(Principal("local"), "2025-11-25", ALL, Raw(b"{}"))
    assert new.askable == {"sampling", "elicitation.form", "roots"}
    assert told(new) == {"sampling": {}, "elicitation": {"form": {}}, "roots": {}}
    old = Caller(Principal("local"), "2024-11-05", ALL, Raw(b"{}"))
    assert old.askable == {"sampling", "roots"}
    assert told(old) == {"sampling": {}, "roots": {}}


def test_who_declares_nothing_is_asked_nothing() -> None:
    caller = Caller(Principal("local"), "2026-07-28", {"tools": {}}, Raw(b"{}"))
    assert (caller.askable, told(caller)) == (frozenset(), {})
