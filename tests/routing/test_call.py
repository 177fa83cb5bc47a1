"""A call on its way, and how it is called back."""

import pytest

from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.principal import Principal
from trunkline.routing.call import Call, withdrawal


def test_a_call_does_not_change_on_its_way() -> None:
    caller = Caller(Principal("p"), "2025-11-25", {}, Raw(b"{}"))
    call = Call(caller, "7", "tools/call", Params(Raw(b"{}")))
    with pytest.raises(AttributeError):
        call.id = 7  # pyright: ignore[reportAttributeAccessIssue]  that it cannot be is the point


def test_a_withdrawal_names_the_call_by_the_id_under_which_it_was_made() -> None:
    assert withdrawal(41).encode() == (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled",'
        b'"params":{"requestId":41,"reason":"cancelled"}}'
    )
