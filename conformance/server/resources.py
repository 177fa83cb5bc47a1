"""The resources, one template, and the error for an unknown resource."""

import json
import re

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, ReadResourceRequestParams

from conformance.server.changes import is_stateless
from conformance.server.samples import PNG, Context, JsonObject, complete

_NOT_FOUND = -32002  # the session protocol's code; since 2026-07-28 it is Invalid params

_TEMPLATE = re.compile(r"test://template/([^/]+)/data")

CONTENTS: dict[str, JsonObject] = {
    "test://static-text": {
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    },
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Something to watch."},
}

LISTED: list[JsonObject] = [
    {
        "uri": uri,
        "name": uri.removeprefix("test://"),
        "description": f"The {uri.removeprefix('test://')} of the tests.",
        "mimeType": content["mimeType"],
    }
    for uri, content in CONTENTS.items()
]

TEMPLATES: list[JsonObject] = [
    {
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "Data for any id.",
        "mimeType": "application/json",
    }
]


async def read(ctx: Context, params: ReadResourceRequestParams) -> JsonObject:
    """Return a resource's contents."""
    uri = str(params.uri)
    content = CONTENTS.get(uri)
    if content is None and (found := _TEMPLATE.fullmatch(uri)):
        data = {"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"}
        content = {"mimeType": "application/json", "text": json.dumps(data)}
    if content is None:
        code = INVALID_PARAMS if is_stateless(ctx) else _NOT_FOUND
        raise MCPError(code, "Resource not found", {"uri": uri})
    return complete({"contents": [{"uri": uri, **content}]})
