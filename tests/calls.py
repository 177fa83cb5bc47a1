"""Calls that have ended, for all who are told of them."""

from typing import Any

from trunkline.gateway.passage import CallEnded, Passage
from trunkline.jsonrpc import Raw, Request, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.catalog import Entry

_KINDS = {"tools/call": Kind.TOOL, "prompts/get": Kind.PROMPT}

USUAL: dict[str, Any] = {
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


def ended(**facts: Any) -> CallEnded:
    """Return a call that went well, but for what the test says."""
    given = USUAL | facts
    method, name, backend = given["method"], given["name"], given["backend"]
    kind = _KINDS.get(method, Kind.RESOURCE)
    passage = Passage(
        Caller(given["principal"], given["revision"], {}, given["client"]),
        Request(given["request_id"], method, to_raw({"name": name})),
        number=given["id"],
        at=given["at"],
        began=0.0,
        entry=None if backend is None else Entry(kind, name, backend, name, Raw(b"{}")),
        revision=given["backend_revision"],
        trace=given["trace"],
        rule=given["rule"],
        arguments=given["arguments"],
        run="",
    )
    measured = (given[each] for each in ("total", "upstream", "bytes_in", "bytes_out"))
    return CallEnded(passage, given["status"], given["kind"], given["code"], *measured)
