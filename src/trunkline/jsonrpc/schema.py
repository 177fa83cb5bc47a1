"""The JSON Schema (2020-12) of the messages, generated from the types that encode them.

The output is `jsonrpc.schema.json` in this folder. One test keeps the two equal, another checks
that schema and decoder accept the same messages. The description lists what a schema cannot
express: that no key occurs twice, that 1.0 is not an integer here, and the limits.
"""

import json
from importlib.resources import files
from typing import Any

import msgspec

from trunkline.jsonrpc.codec import MAX_BATCH_SIZE
from trunkline.jsonrpc.message import ErrorMembers, Notification, Request, Response

SCHEMA_FILE = "jsonrpc.schema.json"

_SCHEMA_LIMITS = (
    "The decoder is stricter than any schema. An integer is written as one, 1 and not 1.0. No key "
    "of a message occurs twice. The length and depth of a payload have limits."
)

# Each message: the type that encodes it, and the members that would make it another message.
_MESSAGE_TYPES: dict[str, tuple[type, tuple[str, ...]]] = {
    "Request": (Request, ("result", "error")),
    "Notification": (Notification, ("id", "result", "error")),
    "Response": (Response, ("method", "error")),
    "ErrorResponse": (ErrorMembers, ("method", "result")),
}


def message_schema() -> dict[str, Any]:
    """Return the schema of one payload: a message, or a batch of them."""
    types = [message_type for message_type, _ in _MESSAGE_TYPES.values()]
    _, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = {"ErrorObject": components["ErrorObject"]}
    for name, (message_type, excluded) in _MESSAGE_TYPES.items():
        definition = components[message_type.__name__] | {"title": name}
        definition["properties"] = definition["properties"] | dict.fromkeys(excluded, False)
        definitions[name] = definition
    messages = [{"$ref": f"#/$defs/{name}"} for name in _MESSAGE_TYPES]
    definitions["Message"] = {"oneOf": messages}
    definitions["Batch"] = {
        "type": "array",
        "items": {"$ref": "#/$defs/Message"},
        "minItems": 1,
        "maxItems": MAX_BATCH_SIZE,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "JSON-RPC 2.0 payload",
        "description": _SCHEMA_LIMITS,
        "oneOf": [{"$ref": "#/$defs/Message"}, {"$ref": "#/$defs/Batch"}],
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the schema as it is shipped."""
    return json.dumps(message_schema(), indent=2) + "\n"


def shipped_schema() -> dict[str, Any]:
    """Read the schema that is shipped with this package."""
    return json.loads(files("trunkline.jsonrpc").joinpath(SCHEMA_FILE).read_text(encoding="utf-8"))
