"""The gateway's own errors: one kind, two codes."""

import pytest

from trunkline.jsonrpc import INTERNAL_ERROR, UNSET, Raw, RpcError
from trunkline.mcp.errors import ErrorKind, gateway_error, mask_error
from trunkline.mcp.versions import V2024_11_05, V2025_11_25, V2026_07_28


@pytest.mark.holds("S1.12", "C22")
@pytest.mark.parametrize(
    ("kind", "session_code", "stateless_code"),
    [
        (ErrorKind.UNAUTHENTICATED, -32001, 4010),
        (ErrorKind.NOT_INITIALIZED, -32002, -32603),
        (ErrorKind.NOT_ALLOWED, -32003, 4030),
        (ErrorKind.RATE_LIMITED, -32004, 4290),
        (ErrorKind.DISABLED, -32005, 4031),
        (ErrorKind.UPSTREAM_TIMEOUT, -32603, 5040),
        (ErrorKind.UPSTREAM_UNAVAILABLE, -32007, 5030),
    ],
)
def test_the_code_depends_on_the_revision_but_the_kind_does_not(
    kind: ErrorKind, session_code: int, stateless_code: int
) -> None:
    for revision, code in (
        (None, session_code),
        (V2024_11_05, session_code),
        (V2025_11_25, session_code),
        (V2026_07_28, stateless_code),
    ):
        error = gateway_error(kind, "why", revision, server="s")
        assert (error.code, error.message) == (code, "why")
        assert error.data == {"type": kind.value, "server": "s"}


@pytest.mark.holds("C22")
@pytest.mark.parametrize("kind", ErrorKind)
def test_a_stateless_client_gets_no_code_that_its_protocol_reserves(kind: ErrorKind) -> None:
    code = gateway_error(kind, "why", V2026_07_28).code
    assert code == INTERNAL_ERROR or not -32768 <= code <= -32000


def test_secrets_are_masked_in_the_message_and_the_data_of_an_error() -> None:
    def mask(text: str) -> str:
        return text.replace("42", "[redacted]")

    plain = RpcError(1, "no", Raw(b'{"a":1}'))
    assert mask_error(plain, mask) is plain
    found = mask_error(RpcError(1, "no 42", Raw(b'{"a":"42"}')), mask)
    assert (found.code, found.message) == (1, "no [redacted]")
    assert isinstance(found.data, Raw)
    assert bytes(found.data) == b'{"a":"[redacted]"}'
    number = mask_error(RpcError(1, "no", Raw(b'{"a":42}')), mask)
    assert number.data is UNSET  # masking has made it invalid JSON
    assert mask_error(RpcError(1, "42", {"a": 1}), mask).data == {"a": 1}
