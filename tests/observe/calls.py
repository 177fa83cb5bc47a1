"""Calls that have ended, for whoever is told of them."""

from typing import Any

from trunkline.gateway.events import CallEnded
from trunkline.jsonrpc import Raw
from trunkline.mcp.principal import Principal


def ended(**facts: Any) -> CallEnded:
    """Return a call that went well, but for what the test says."""
    usual: dict[str, Any] = {
        "id": "0123456789abcdef0123456789abcdef",
        "at": 1000.0,
        "request_id": 7,
        "trace": None,
        "principal": Principal("ann"),
        "client": Raw(b'{"name":"cursor","version":"1"}'),
        "revision": "2025-11-25",
        "method": "tools/call",
        "name": "fs__read",
        "backend": "fs",
        "backend_revision": "2025-06-18",
        "rule": None,
        "status": "success",
        "kind": None,
        "code": None,
        "total": 0.012,
        "upstream": 0.01,
        "bytes_in": 10,
        "bytes_out": 20,
        "arguments": Raw(b'{"path":"/secret"}'),
    }
    return CallEnded(**(usual | facts))
