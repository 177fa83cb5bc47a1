"""`initialize`, from both sides."""

from typing import Any

import pytest

from trunkline.jsonrpc import UNSET, Raw, RpcError, to_raw
from trunkline.mcp.handshake import hello, read_hello, read_welcome, welcome

CLIENT = {"name": "c", "version": "1", "title": "x"}


@pytest.mark.holds("S1.13", "C8", "C17")
def test_a_hello_is_read_and_unknown_members_are_ignored() -> None:
    said = hello("2025-03-26", {"roots": {}}, CLIENT) | {"extra": 1, "_meta": None}
    heard = read_hello(to_raw(said))
    assert (heard.version, heard.capabilities) == ("2025-03-26", {"roots": {}})
    assert heard.client == to_raw(CLIENT)


@pytest.mark.holds("C17")
@pytest.mark.parametrize("field", ["protocolVersion", "capabilities", "clientInfo"])
@pytest.mark.parametrize("value", [None, 5, [], "absent"])
def test_a_hello_without_one_of_its_three_members_is_refused_by_name(
    field: str, value: Any
) -> None:
    said: dict[str, Any] = hello("2025-03-26", {}, CLIENT)
    if value == "absent":
        del said[field]
    else:
        said[field] = value
    with pytest.raises(RpcError) as caught:
        read_hello(to_raw(said))
    assert caught.value.code == -32602
    assert caught.value.data == {"field": field}


def test_a_hello_without_params_is_refused() -> None:
    with pytest.raises(RpcError, match="protocolVersion"):
        read_hello(UNSET)


def test_a_welcome_is_read_back() -> None:
    said = welcome("2025-11-25", {"tools": {}}, {"name": "s"}, "be kind")
    heard = read_welcome(to_raw(said))
    assert (heard.version, heard.capabilities) == ("2025-11-25", {"tools": {}})
    assert (heard.server, heard.instructions) == (Raw(b'{"name":"s"}'), "be kind")
    assert "instructions" not in welcome("2025-11-25", {}, {}, None)
    assert read_welcome(Raw(b'{"protocolVersion":"2024-11-05"}')).instructions is None


@pytest.mark.parametrize(
    "result", [b"[]", b"{}", b'{"protocolVersion":"1999-01-01"}', b'{"protocolVersion":7}']
)
def test_what_is_no_welcome_is_refused(result: bytes) -> None:
    with pytest.raises(ValueError, match=r"[Ee]xpected"):
        read_welcome(Raw(result))
