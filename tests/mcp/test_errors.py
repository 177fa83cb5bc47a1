"""The gateway's own errors: one kind, two codes."""

import pytest

from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.versions import V2024_11_05, V2025_11_25, V2026_07_28


@pytest.mark.parametrize(
    ("kind", "session_code", "stateless_code"),
    [
        (ErrorKind.NOT_INITIALIZED, -32002, -32603),
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
