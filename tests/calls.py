"""Call summaries for tests of event listeners."""

from typing import Any
from unittest.mock import Mock

from trunkline.gateway.call_context import CallContext, CallSummary
from trunkline.jsonrpc import Raw, Request, to_raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2025_06_18, V2025_11_25
from trunkline.routing.catalog import CatalogEntry

_KINDS = {"tools/call": FeatureKind.TOOL, "prompts/get": FeatureKind.PROMPT}

DEFAULT_FIELDS: dict[str, Any] = {
    "id": "0123456789abcdef0123456789abcdef",
    "at": 1000.0,
    "request_id": 7,
    "trace": None,
    "principal": Principal("ann"),
    "client": Raw(b'{"name":"cursor","version":"1"}'),
    "revision": V2025_11_25,
    "method": "tools/call",
    "name": "fs__read",
    "backend": "fs",
    "backend_revision": V2025_06_18,
    "rule": None,
    "wrapper": None,
    "status": "success",
    "kind": None,
    "code": None,
    "total": 0.012,
    "upstream": 0.01,
    "bytes_in": 10,
    "bytes_out": 20,
    "arguments": Raw(b'{"path":"/secret"}'),
    "mismatch": None,
    "failure": None,
    "address": "",
}


def ended_call(**fields: Any) -> CallSummary:
    """Return the summary of a successful call, with `fields` overridden."""
    values = DEFAULT_FIELDS | fields
    method, name, backend = values["method"], values["name"], values["backend"]
    kind = _KINDS.get(method, FeatureKind.RESOURCE)
    caller = Caller(values["principal"], values["revision"], {}, values["client"])
    params = to_raw({"name": name})
    context = CallContext(
        caller,
        Request(values["request_id"], method, params),
        CLIENT_REQUESTS[method],
        Params(params),
        Mock(caller=caller, address=values["address"]),
        sequence=values["id"],
        wall_time=values["at"],
        started_at=0.0,
        entry=None if backend is None else CatalogEntry(kind, name, backend, name, Raw(b"{}")),
        backend_revision=values["backend_revision"],
        traceparent=values["trace"],
        rule=values["rule"],
        arguments=values["arguments"],
        mismatch=values["mismatch"],
        id_prefix="",
    )
    if (wrapper := values["wrapper"]) is not None:
        context.wrapper = CatalogEntry(FeatureKind.TOOL, wrapper, "search", "call_tool", Raw(b"{}"))
    measurements = (values[each] for each in ("total", "upstream", "bytes_in", "bytes_out"))
    status, kind, code = (values[each] for each in ("status", "kind", "code"))
    return CallSummary(context, status, kind, code, *measurements, failure=values["failure"])
