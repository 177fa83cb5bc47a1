"""Headers that must say what the arguments say."""

import pytest

from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.headers import HeaderParam
from trunkline.mcp.mirrors import Mirrors

REGION = (HeaderParam(b"mcp-param-region", ("region",), "string"),)
ARGUMENTS = Raw(b'{"region":"eu"}')


def test_headers_that_say_the_same_pass() -> None:
    Mirrors({b"mcp-param-region": b"eu"}, frozenset()).check(REGION, ARGUMENTS)


def test_a_tool_that_repeats_nothing_needs_no_headers() -> None:
    Mirrors({b"mcp-param-region": b"us"}, frozenset()).check((), ARGUMENTS)


@pytest.mark.parametrize(
    "mirrors",
    [
        Mirrors({}, frozenset()),
        Mirrors({b"mcp-param-region": b"us"}, frozenset()),
        Mirrors({b"mcp-param-region": b"eu"}, frozenset((b"mcp-param-region",))),
    ],
)
def test_headers_that_do_not_are_refused(mirrors: Mirrors) -> None:
    with pytest.raises(RpcError) as caught:
        mirrors.check(REGION, ARGUMENTS)
    assert caught.value.code == -32020
