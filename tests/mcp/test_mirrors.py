"""Headers that must say what the arguments say."""

import pytest

from trunkline.jsonrpc import Raw, RpcError, to_raw
from trunkline.mcp.headers import HeaderParam
from trunkline.mcp.meta import PREFIX, Params
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


def asked(name: object = "add", version: object = "2026-07-28") -> Params:
    meta: dict[str, object] = {f"{PREFIX}protocolVersion": version}
    meta |= {f"{PREFIX}clientCapabilities": {}}
    return Params(to_raw({"name": name, "_meta": meta}))


def test_what_agreed_once_agrees_again_and_nothing_else_does() -> None:
    headers = {b"mcp-protocol-version": b"2026-07-28", b"mcp-method": b"tools/call"}
    mirrors = Mirrors(headers | {b"mcp-name": b"add"}, frozenset())
    for _ in range(2):
        mirrors.check_body("tools/call", asked())
        for method, params in (
            ("tools/call", asked("other")),
            ("tools/call", asked(version="2025-11-25")),
            ("prompts/get", asked()),
            ("tools/list", asked()),
        ):
            with pytest.raises(RpcError) as caught:
                mirrors.check_body(method, params)
            assert caught.value.code == -32020


def test_nothing_long_is_kept_of_a_body_and_it_is_compared_again() -> None:
    headers = {b"mcp-protocol-version": b"2026-07-28", b"mcp-method": b"tools/call"}
    mirrors = Mirrors(headers | {b"mcp-name": b"a" * 300}, frozenset())
    for _ in range(2):
        mirrors.check_body("tools/call", asked("a" * 300))
        assert mirrors.agreed is not None
        assert mirrors.agreed[2] is None
        mirrors.check_body("tools/call", asked(["no", "name"]))  # whoever needs it refuses it
        mirrors.check_body("tools/call", asked(["no name"] * 100))
        for name in ("b", "b" * 300):
            with pytest.raises(RpcError, match="as Mcp-Name"):
                mirrors.check_body("tools/call", asked(name))
