"""The gateway's own errors: one kind, two codes."""

import pytest

from trunkline.mcp.refusal import Refusal, refuse


@pytest.mark.parametrize(
    ("kind", "handshake", "envelope"),
    [
        (Refusal.NOT_INITIALIZED, -32002, -32603),
        (Refusal.UPSTREAM_TIMEOUT, -32603, 5040),
        (Refusal.UPSTREAM_UNAVAILABLE, -32007, 5030),
    ],
)
def test_the_code_depends_on_the_revision_and_the_kind_does_not(
    kind: Refusal, handshake: int, envelope: int
) -> None:
    for version, code in (
        (None, handshake),
        ("2024-11-05", handshake),
        ("2025-11-25", handshake),
        ("2026-07-28", envelope),
    ):
        error = refuse(kind, "why", version, server="s")
        assert (error.code, error.message) == (code, "why")
        assert error.data == {"type": kind.value, "server": "s"}
