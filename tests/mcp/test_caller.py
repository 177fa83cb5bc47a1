"""Who is asking."""

from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller


def test_a_caller_can_what_it_declared() -> None:
    caller = Caller("local", "2025-11-25", {"sampling": {}}, Raw(b"{}"))
    assert caller.can("sampling")
    assert not caller.can("elicitation")
