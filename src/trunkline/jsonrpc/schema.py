"""The JSON Schema (2020-12) of the messages, generated from the types that write them.

`jsonrpc.schema.json` beside this file is its output; a test keeps the two equal, and another checks
that schema and decoder agree on what is valid. Three things a schema cannot say, and it says of
itself that it cannot: that no key may occur twice, that 1.0 is no integer here, and that there are
limits.
"""

import json
from importlib.resources import files
from typing import Any

import msgspec

from trunkline.jsonrpc.codec import MAX_BATCH
from trunkline.jsonrpc.message import ErrorEnvelope, Notification, Request, Response

FILE = "jsonrpc.schema.json"

_BEYOND = (
    "The decoder is stricter in what no schema can say: an integer is written as one, 1 and not "
    "1.0; no key of a message occurs twice; and the length and depth of a payload have limits."
)

_KINDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "Request": (Request, ("result", "error")),
    "Notification": (Notification, ("id", "result", "error")),
    "Response": (Response, ("method", "error")),
    "ErrorResponse": (ErrorEnvelope, ("method", "result")),
}
"""Each kind: the type that writes it, and the members that would make it another kind."""


def message_schema() -> dict[str, Any]:
    """Return the schema of one payload: a message, or a batch of them."""
    types = [kind for kind, _ in _KINDS.values()]
    _, found = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = {"ErrorObject": found["ErrorObject"]}
    for name, (kind, excluded) in _KINDS.items():
        definition = found[kind.__name__] | {"title": name}
        definition["properties"] = definition["properties"] | dict.fromkeys(excluded, False)
        definitions[name] = definition
    messages = [{"$ref": f"#/$defs/{name}"} for name in _KINDS]
    definitions["Message"] = {"oneOf": messages}
    definitions["Batch"] = {
        "type": "array",
        "items": {"$ref": "#/$defs/Message"},
        "minItems": 1,
        "maxItems": MAX_BATCH,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "JSON-RPC 2.0 payload",
        "description": _BEYOND,
        "oneOf": [{"$ref": "#/$defs/Message"}, {"$ref": "#/$defs/Batch"}],
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the schema as it is shipped."""
    return json.dumps(message_schema(), indent=2) + "\n"


def shipped_schema() -> dict[str, Any]:
    """Read the schema that was shipped with this package."""
    return json.loads(files("trunkline.jsonrpc").joinpath(FILE).read_text(encoding="utf-8"))
